"""A keeper of loans learns in which situations to repay, to add collateral or to wait, and acts by its rules.

    python examples/keeper/keep_loans.py HOME [SEED]

Each hour the keeper looks at one loan: its health, the trend of the collateral's price and the price of gas. An hour
later the loan is worth more or less, or it was liquidated. The first keeper chooses at random; afterwards it computes
what waiting would have earned and reports that as an alternative. Two keepers then keep the same 400 loans: one
at random, one by the rules of the memory. The last lines state the share of good actions, the liquidations and the
earnings of both.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from bardo_pipeline import Advice, DecisionCycleRecord, EventWriter, advice, birth, derive, open_home, record_of, report

START = datetime(2026, 1, 1, tzinfo=UTC)
ACTIONS = ("wait", "repay", "add_collateral")
HEALTH = {"thin": 1.03, "fair": 1.10, "safe": 1.40}
"""Collateral x liquidation threshold / debt at which a loan is kept, by band."""

DRIFT = {"falling": -0.025, "flat": 0.0, "rising": 0.02}
"""Mean return of the collateral in an hour, by trend."""

SPREAD = 0.03
GAS = {"cheap": 0.001, "dear": 0.012}
"""Cost of a transaction as a share of the collateral."""

LIFTED = {"wait": 0.0, "repay": 0.25, "add_collateral": 0.12}
"""Health that an action adds."""

HELD_BACK = {"wait": 0.0, "repay": 0.004, "add_collateral": 0.001}
"""Cost of an action besides gas: the swap into the debt, and interest that idle collateral would earn."""

PENALTY = 0.08
"""Share of the collateral that a liquidation takes."""

SCALE = 0.1
"""Loss that counts as reward -1."""


@dataclass(frozen=True)
class Hour:
    """A loan at the begin of an hour, and the return of its collateral during it."""

    health: str
    trend: str
    gas: str
    price_return: float

    @property
    def situation(self) -> dict[str, str]:
        """The conditions that a keeper sees."""
        return {"health": self.health, "trend": self.trend, "gas": self.gas}

    def is_liquidated(self, action: str) -> bool:
        """Whether the loan is liquidated after this action."""
        return (HEALTH[self.health] + LIFTED[action]) * (1.0 + self.price_return) < 1.0

    def earned(self, action: str) -> float:
        """Return what the keeper's action changes, as a share of the collateral."""
        cost = 0.0 if action == "wait" else GAS[self.gas] + HELD_BACK[action]
        return -cost - (PENALTY if self.is_liquidated(action) else 0.0)

    def reward(self, action: str) -> float:
        """Return the earnings in the units of a report."""
        return max(self.earned(action) / SCALE, -1.0)


def drawn(draw: random.Random) -> Hour:
    """Draw an hour of a loan."""
    trend = draw.choice(tuple(DRIFT))
    return Hour(draw.choice(tuple(HEALTH)), trend, draw.choice(tuple(GAS)), draw.gauss(DRIFT[trend], SPREAD))


@cache
def good_actions(health: str, trend: str, gas: str) -> frozenset[str]:
    """Return the actions whose mean earnings over 4,000 hours are within 0.02 % of the collateral of the best."""
    draw = random.Random(f"{health} {trend} {gas}")  # noqa: S311 - no secret depends on it
    hours = [Hour(health, trend, gas, draw.gauss(DRIFT[trend], SPREAD)) for _ in range(4_000)]
    mean = {action: sum(hour.earned(action) for hour in hours) / len(hours) for action in ACTIONS}
    return frozenset(action for action in ACTIONS if mean[action] >= max(mean.values()) - 0.0002)


def explored(golem_id: str, seed: int, hours: int) -> Iterator[DecisionCycleRecord]:
    """Act at random, and yield a record of each hour: what the action earned and what waiting would have earned."""
    draw = random.Random(f"explore {seed}")  # noqa: S311
    for tick in range(1, hours + 1):
        hour, action = drawn(draw), draw.choice(ACTIONS)
        instead = {} if action == "wait" else {"wait": hour.reward("wait")}
        told = report(hour.situation, action, hour.reward(action), alternatives=instead, ground_truth_source="price")
        yield record_of(golem_id, tick, START + timedelta(hours=tick), [told], domain="lending")


def kept(seed: int, hours: int, known: Advice | None) -> tuple[float, int, float]:
    """Keep loans, at random or by advice. Return share of good actions, liquidations and mean earnings."""
    draw, guess = (random.Random(f"{part} {seed}") for part in ("loans", "guess"))  # noqa: S311
    good = liquidated = 0
    earned = 0.0
    for _ in range(hours):
        hour = drawn(draw)
        action = guess.choice(ACTIONS) if known is None else known.best(hour.situation, ACTIONS)
        good += action in good_actions(hour.health, hour.trend, hour.gas)
        liquidated += hour.is_liquidated(action)
        earned += hour.earned(action)
    return good / hours, liquidated, earned / hours


def main(home: Path, seed: int = 1, hours: int = 1_200, later: int = 400) -> dict[str, tuple[float, int, float]]:
    """Run the three keepers. Return share of good actions, liquidations and mean earnings of the two later ones."""
    open_home(home)
    golem_id = birth(home, lineage="keeper/1", at=START)
    with EventWriter.open(home, golem_id) as writer:
        for record in explored(golem_id, seed, hours):
            writer.append(record)  # returns when the record is durable
    derive(home)
    known = advice(home, golem_id)
    for rule in known.rules:
        print(f"{rule.kind:9} {rule.effect * SCALE:+.2%} at confidence {rule.confidence:.2f}: {rule.text}")
    results = {"at random": kept(seed, later, None), "asking": kept(seed, later, known)}
    for name, (good, liquidated, earned) in results.items():
        print(
            f"{name}: {good:.0%} good actions, {liquidated} of {later} loans liquidated, "
            f"{earned:+.2%} of the collateral an hour"
        )
    return results


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:3]))
