"""The fleet: living golems as columns, and how one enters it. Pure; a fleet of one is a fleet.

Source: architecture ("The fleet steps as columns over golems"); MEM (reserve), canon (lifespan drawn at birth).
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace

import numpy as np

from bardo_pipeline.errors import ConfigError
from bardo_pipeline.events.life import Born, Traits
from bardo_pipeline.events.record import REGIMES
from bardo_pipeline.heartbeat.chance import (
    STREAM_FORECAST,
    STREAM_LIFESPAN,
    STREAM_THRESHOLD,
    STREAM_WIDTH,
    seed_of,
    uniform,
)
from bardo_pipeline.mortality.vitality import death_reserve_micros
from bardo_pipeline.policy import Policy

CHECK_SLOTS = 4
"""Decisions of a golem that can be on trial at once."""

RECALL = 5
"""Entries retrieved for a deliberation (HB S3: top five)."""

CELLS = 5 * 5 * 3
"""Situations: regime x anomaly band x gas band."""


@dataclass(frozen=True)
class Founding:
    """How golems of a run are founded: owners, one budget in micro-dollars, bounds of the lifespan in ticks.

    The budget is INH S13's 50 dollars; a part of it is credits, which pay for thought and gas (ours: a fortieth), the
    rest is put to work. The lifespan's bounds are ours: a day and a half to six days of minutes.
    """

    owners: tuple[str, ...] = ("owner-1", "owner-2")
    budget_micros: int = 50_000_000
    credit_share: float = 0.025
    lifespan_ticks: tuple[int, int] = (2_000, 8_000)

    @property
    def credits_micros(self) -> int:
        """Credits at birth, reserve included."""
        return round(self.budget_micros * self.credit_share)

    @property
    def capital_micros(self) -> int:
        """Capital at birth."""
        return self.budget_micros - self.credits_micros


def golem_name(lineage_id: str, generation: int) -> str:
    """A golem's id: g- and 8 hex characters of its lineage and generation."""
    return "g-" + hashlib.sha256(f"{lineage_id}/{generation}".encode()).hexdigest()[:8]


def born(
    *,
    lineage_id: str,
    generation: int,
    owner_id: str,
    founding: Founding,
    market: str,
    market_hash: str,
    derivation_id: str,
    policy: Policy,
    predecessor_id: str | None = None,
    bundle_hash: str | None = None,
    traits: Traits | None = None,
) -> tuple[str, Born]:
    """(golem id, its birth event). Traits come from the lineage's founder; lifespan from the golem's own seed.

    Raises ConfigError where the budget leaves no credits beside the death reserve.
    """
    golem_id = golem_name(lineage_id, generation)
    seed, zero = np.array([seed_of(golem_id)]), np.zeros(1, np.int64)
    low, high = founding.lifespan_ticks
    lifespan = low + int(uniform(seed, zero, STREAM_LIFESPAN)[0] * (high - low + 1))
    reserve = int(death_reserve_micros(np.array([founding.credits_micros]), policy)[0])
    if founding.credits_micros <= reserve:
        raise ConfigError(_too_poor(founding, reserve, policy))
    return golem_id, Born(
        owner_id=owner_id,
        generation=generation,
        lineage_id=lineage_id,
        predecessor_id=predecessor_id,
        bundle_hash=bundle_hash,
        credits_micros=founding.credits_micros - reserve,
        reserve_micros=reserve,
        capital_micros=founding.capital_micros,
        lifespan_ticks=lifespan,
        market=market,
        market_hash=market_hash,
        policy_hash=policy.hash,
        derivation_id=derivation_id,
        traits=traits or _drawn_traits(seed, zero, policy),
    )


def _too_poor(founding: Founding, reserve: int, policy: Policy) -> str:
    said = (
        f"a budget of ${founding.budget_micros / 1e6:,.2f} gives ${founding.credits_micros / 1e6:,.2f} of credits, "
        f"and the death reserve alone takes ${reserve / 1e6:,.2f}"
    )
    if founding.credit_share <= 0.0 or policy.mortality.reserve_share >= 1.0:
        return f"{said}: no budget is enough with this share of credits or of reserve"
    cent = 10_000
    least = math.floor((policy.mortality.reserve_min_micros + 1) / founding.credit_share / cent) * cent
    while True:
        richer = replace(founding, budget_micros=least)
        if richer.credits_micros > int(death_reserve_micros(np.array([richer.credits_micros]), policy)[0]):
            return f"{said}: give --budget {least / 1e6:.2f} or more"
        least += cent


def _drawn_traits(seed: np.ndarray, zero: np.ndarray, policy: Policy) -> Traits:
    base, width = policy.playbook.rebalance_threshold, policy.playbook.range_half_width_ticks
    rules = policy.traits
    step = int(uniform(seed, zero, STREAM_THRESHOLD)[0] * 3) - 1
    scale = rules.width_scales[int(uniform(seed, zero, STREAM_WIDTH)[0] * len(rules.width_scales))]
    memory = rules.forecast_memory_min + rules.forecast_memory_span * float(uniform(seed, zero, STREAM_FORECAST)[0])
    return Traits(
        rebalance_threshold=round(base + rules.threshold_step * step, 4),
        range_half_width_ticks=int(width * scale) // 10 * 10,
        forecast_memory=round(memory, 4),
    )


class Fleet:
    """State of living golems, arrays [golems] (more axes first). Moments in microseconds, money in micro-dollars.

    rebalance_threshold [regimes, golems] and the recall tables are what the golem sees of its last closed cycle.
    """

    def __init__(self, golem_ids: list[str], births: list[Born], policy: Policy) -> None:
        count = len(golem_ids)
        self.golem_ids, self.births = list(golem_ids), list(births)

        def ints(values: list[int]) -> np.ndarray:
            return np.array(values, dtype=np.int64)

        def zeros(*axes: int) -> np.ndarray:
            return np.zeros((*axes, count))

        def flags(*axes: int) -> np.ndarray:
            return np.zeros((*axes, count), dtype=bool)

        self.seed = np.array([seed_of(g) for g in golem_ids], dtype=np.uint64)
        self.alive = np.ones(count, bool)
        self.tick = np.zeros(count, np.int64)
        self.lifespan = ints([b.lifespan_ticks for b in births])
        self.credits = ints([b.credits_micros for b in births])
        self.first_credits = self.credits.copy()
        self.idle = ints([b.capital_micros for b in births])
        self.earned = np.zeros(count, np.int64)
        self.half_width = ints([b.traits.range_half_width_ticks for b in births])
        self.forecast_memory = np.array([b.traits.forecast_memory for b in births])
        base = np.array([b.traits.rebalance_threshold for b in births])
        self.rebalance_threshold = np.repeat(base[None, :], len(REGIMES), axis=0)
        self.playbook_version = np.zeros(count, np.int64)
        self.cycle_seen = np.zeros(count, np.int64)
        # the position
        self.liquidity, self.root_lower, self.root_upper = zeros(), np.ones(count), np.full(count, 2.0)
        self.lower, self.upper = np.zeros(count, np.int64), np.ones(count, np.int64)
        self.opened_tick = np.zeros(count, np.int64)
        self.hold0, self.hold1, self.fees = zeros(), zeros(), zeros()
        self.high_water = self.idle.astype(np.float64)
        self.nav = self.idle.astype(np.float64)
        self.cooldown = np.zeros(count, np.int64)
        # mood and belief
        self.pad = zeros(3)
        self.confidence = np.full(count, policy.prediction.first_confidence)
        self.composite = np.full(count, policy.prediction.fitness_prior)
        self.health = np.full(count, np.nan)
        self.forecast_var = zeros(3)
        first = policy.prediction
        self.forecast_var[0] = first.first_variance_price
        self.forecast_var[1], self.forecast_var[2] = first.first_variance_gas, first.first_variance_health
        self.expected, self.half = np.full((3, count), np.nan), np.full((3, count), np.nan)
        self.ring = flags(policy.prediction.fitness_window)
        self.ring_used = flags(policy.prediction.fitness_window)
        self.ring_at = np.zeros(count, np.int64)
        self.held_count, self.resolved_count = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.home_mean, self.home_var, self.home_last = zeros(5), zeros(5), zeros(5)
        self.home_seen = np.zeros(count, np.int64)
        self.follow_ups = np.zeros(count, np.int64)
        # how it ended: components of vitality, net asset value, position on the tape
        self.final_life, self.final_nav, self.final_at = (
            zeros(4),
            np.zeros(count, np.int64),
            np.full(count, -1, np.int64),
        )
        # decisions on trial: [slots, golems], two branches each
        self.trial_due = np.full((CHECK_SLOTS, count), -1, np.int64)
        self.trial_tick = np.zeros((CHECK_SLOTS, count), np.int64)
        self.trial_chosen, self.trial_regime = flags(CHECK_SLOTS), np.zeros((CHECK_SLOTS, count), np.int64)
        self.trial_score, self.trial_gas, self.trial_value = zeros(CHECK_SLOTS), zeros(CHECK_SLOTS), zeros(CHECK_SLOTS)
        self.trial_recalled = np.full((RECALL, CHECK_SLOTS, count), -1, np.int64)
        self.branch_liquidity, self.branch_idle, self.branch_fees = (
            zeros(2, CHECK_SLOTS),
            zeros(2, CHECK_SLOTS),
            zeros(2, CHECK_SLOTS),
        )
        self.branch_root_lower, self.branch_root_upper = (
            np.ones((2, CHECK_SLOTS, count)),
            np.full((2, CHECK_SLOTS, count), 2.0),
        )
        self.branch_lower, self.branch_upper = zeros(2, CHECK_SLOTS), np.ones((2, CHECK_SLOTS, count))

    @property
    def size(self) -> int:
        """Number of golems, dead ones included until the fleet is formed anew."""
        return len(self.golem_ids)

    def keep(self, mask: np.ndarray) -> None:
        """Leave out every golem that the mask (bool [golems]) does not hold."""
        count = self.size
        chosen = np.flatnonzero(mask)
        self.golem_ids = [self.golem_ids[i] for i in chosen]
        self.births = [self.births[i] for i in chosen]
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray) and value.shape[-1] == count:
                setattr(self, name, np.ascontiguousarray(value[..., chosen]))

    def join(self, other: Fleet) -> None:
        """Take in the golems of another fleet, after one's own."""
        self.golem_ids += other.golem_ids
        self.births += other.births
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray):
                setattr(self, name, np.concatenate([value, getattr(other, name)], axis=-1))
