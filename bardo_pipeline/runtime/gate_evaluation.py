"""Compares gates: fixed, attention, learned, learned with an inherited state, with the router, and an oracle.

Ancestors with the learned gate live in the first days of a market. In the following days, golems with equal traits,
budget, lifespan and luck live under each gate, without inherited entries. A tick is important if a deliberation would
execute an action; that is computed at every tick, whatever the gate chose. Source: HB S5; docs/adr/0109.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import NamedTuple

import numpy as np

from bardo_pipeline.arrays import Float64Array, Int8Array
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA
from bardo_pipeline.heartbeat.decide import HOLD, considered
from bardo_pipeline.heartbeat.fleet import Fleet, Founding, born
from bardo_pipeline.heartbeat.observe import Sight
from bardo_pipeline.heartbeat.recall_table import Recall
from bardo_pipeline.heartbeat.refusals import EXECUTED
from bardo_pipeline.heartbeat.step import Waking
from bardo_pipeline.market.market import Market
from bardo_pipeline.market.regime import DAY_US
from bardo_pipeline.market.synthetic import synthetic_market
from bardo_pipeline.market.synthetic_spec import DAY_BARS, START, graded_spec
from bardo_pipeline.market.tick_series import Tape, tape_of
from bardo_pipeline.mortality.random_streams import seed_of
from bardo_pipeline.policy import Policy
from bardo_pipeline.quality.memory_targets import Bound
from bardo_pipeline.runtime.in_memory_fleet import InMemoryFleet, Lives, Start

GATES = ("fixed", "attention", "learned", "inherited", "routed", "oracle")
FIXED, ATTENTION, LEARNED, INHERITED, ROUTED, ORACLE = GATES
MODES = dict.fromkeys((LEARNED, INHERITED, ROUTED), "learned") | {ATTENTION: "attention"}
"""Mode of the policy by gate; `fixed` of others."""

FIRST_TICKS = 200
"""Ticks of a life within which an inherited gate is compared with the fixed one."""

COST_MAX = 0.7
"""Largest cost of thought of the learned gate, as a share of the fixed gate's."""


class Trial(NamedTuple):
    """Settings of one market: seed, golems, days of the ancestors, days that are compared, recorded market if any."""

    seed: int
    golems: int = 3
    ancestor_days: float = 1.0
    days: float = 1.0
    recorded: Market | None = None


class Tally(NamedTuple):
    """Figures of one gate in one market, summed over golems.

    chosen_micros, forced_micros: cost of the deliberations that the gate chose, and of those that were forced.
    end_worth: mean worth at the end of life as a share of the budget.
    """

    ticks: int
    important: int
    caught: int
    chosen_micros: int
    forced_micros: int
    end_worth: float


class GateLives(NamedTuple):
    """Tallies of one market by gate: of whole lives, and of the first FIRST_TICKS ticks."""

    market: str
    whole: dict[str, Tally]
    first: dict[str, Tally]


class Watch:
    """Overseer that notes important ticks and thoughts, [ticks of life, golems].

    decides: as an oracle does, important ticks alone deliberate, at T1, beside forced ones.
    """

    def __init__(self, golems: int, ticks: int, policy: Policy, *, decides: bool) -> None:
        self._policy, self._decides = policy, decides
        self.lived, self.important, self.thought = np.zeros((3, ticks, golems), bool)

    def __call__(self, fleet: Fleet, tape: Tape, t: int, sight: Sight, waking: Waking, recall: Recall) -> Int8Array:
        """Note a tick, and return its tiers."""
        golem = np.flatnonzero(fleet.alive)
        nothing, acts = np.zeros(len(golem), bool), np.zeros(fleet.size, bool)
        choice, _ = considered(fleet, tape, t, sight, golem, nothing, recall, self._policy, nothing, None)
        acts[golem] = (choice.action != HOLD) & (choice.status == EXECUTED)
        forced = waking.forced >= 0
        tier = np.where(forced, waking.tier, acts).astype(np.int8) if self._decides else waking.tier
        at = fleet.tick[golem] - 1, golem
        for column, value in (
            (self.lived, fleet.alive), (self.important, acts), (self.thought, (tier == 1) | (tier == 2)),
        ):  # fmt: skip
            column[at] = value[golem]
        return tier


def compare_gates(trial: Trial, policy: Policy) -> GateLives:
    """Run one market under every gate."""
    if trial.recorded is not None:
        return lives_under_gates(trial.recorded, trial, policy)
    bars = round((trial.ancestor_days + trial.days) * DAY_BARS)
    market = synthetic_market(seed=trial.seed, bars=bars, start=START, spec=graded_spec(None))
    return lives_under_gates(market, trial, policy)


def lives_under_gates(market: Market, trial: Trial, policy: Policy) -> GateLives:
    """Run the ancestors up to the days that are compared, and then golems under every gate."""
    policies = {gate: _policy_of(gate, policy) for gate in GATES}
    tape = tape_of(market, policy)
    start = int(np.searchsorted(tape.at_us, int(market.at_us[0]) + round(trial.ancestor_days * DAY_US)))
    ancestors, _ = _live(tape, 0, start, _starts(market, trial.golems, 0, start, policy), policies[LEARNED], None)
    starts = _starts(market, trial.golems, 1, tape.ticks - start, policy)
    heirs = [s._replace(gate=state) for s, state in zip(starts, _states(ancestors.fleet, policy), strict=True)]
    whole, first = {}, {}
    for gate in GATES:
        watch = Watch(trial.golems, tape.ticks - start, policy, decides=gate == ORACLE)
        lived = _live(tape, start, tape.ticks, heirs if gate == INHERITED else starts, policies[gate], watch)
        whole[gate] = _tally(*lived, watch, tape.ticks, policy)
        first[gate] = _tally(*lived, watch, FIRST_TICKS, policy)
    return GateLives(market.name, whole, first)


def _policy_of(gate: str, policy: Policy) -> Policy:
    """Return the policy under which golems live with this gate."""
    mode, events = MODES.get(gate, "fixed"), "routed" if gate == ROUTED else "off"
    parts = {
        "gate": policy.gate.model_copy(update={"mode": mode}),
        "triage": policy.triage.model_copy(update={"mode": events}),
    }
    return policy.model_copy(update=parts)


def recorded_trial(market: Market, golems: int) -> Trial:
    """Return the trial of a recorded market: ancestors live in the first half of its days."""
    days = (int(market.at_us[-1]) - int(market.at_us[0])) / DAY_US / 2.0
    return Trial(0, golems, days, days, market)


def _starts(market: Market, golems: int, generation: int, ticks: int, policy: Policy) -> list[Start]:
    founding = Founding(lifespan_ticks=(round(0.75 * ticks), ticks))
    births = (
        born(
            lineage_id=f"{market.name}/{i}", generation=generation, owner_id="owner-1", founding=founding,
            market=market.name, market_hash=market.content_hash, derivation_id="-", policy=policy,
        )
        for i in range(golems)
    )  # fmt: skip
    return [Start(golem_id, birth, seed_of(golem_id)) for golem_id, birth in births]


def _live(
    tape: Tape, start: int, stop: int, starts: Sequence[Start], policy: Policy, watch: Watch | None
) -> tuple[InMemoryFleet, Lives]:
    fleet = InMemoryFleet(tape, start, starts, policy)
    fleet.overseer = watch
    fleet.begin(ENTRY_SCHEMA.empty_table())
    return fleet, fleet.live(stop)


def _states(fleet: Fleet, policy: Policy) -> list[tuple[list[float], list[list[float]]]]:
    """Return the gate that each golem leaves: logarithms of weights, and boundaries."""
    weights = np.log(np.maximum(fleet.expert_weights, 1e-300))
    logs = weights - weights.max(axis=0)
    return [(logs[:, i].tolist(), fleet.boundaries[..., i].T.tolist()) for i in range(fleet.size)]


def _tally(fleet: InMemoryFleet, lives: Lives, watch: Watch, ticks: int, policy: Policy) -> Tally:
    """Sum the first ticks of the lives of a fleet."""
    columns = watch.lived, watch.important, watch.important & watch.thought
    lived, important, caught = (int(column[:ticks].sum()) for column in columns)
    cycles = fleet.thought_costs[: -(-ticks // policy.curator.cycle_ticks)]
    chosen, forced = np.sum(cycles, axis=(0, 2)).tolist()
    return Tally(lived, important, caught, chosen, forced, float(lives.end_worth.mean()))


class Compared(NamedTuple):
    """Comparison of one gate with the fixed one, over markets, each figure with its 95 % interval (low, high).

    cost: of the deliberations per tick that the gate chose, as a share of the fixed gate's. whole_cost: with the forced
    ones, which every gate pays. caught: share of important ticks. ahead: that share less
    the fixed gate's. worth: mean end worth less the fixed gate's, in shares of the budget.
    """

    gate: str
    caught: float
    cost: tuple[float, float, float]
    whole_cost: tuple[float, float, float]
    ahead: tuple[float, float, float]
    worth: tuple[float, float, float]


@dataclass(frozen=True)
class GateReport:
    """Comparison of gates: of whole lives, of the first ticks, and the bounds."""

    markets: tuple[str, ...]
    whole: tuple[Compared, ...]
    first: tuple[Compared, ...]
    bounds: tuple[Bound, ...]

    @property
    def kept(self) -> bool:
        """Whether every bound is kept."""
        return all(bound.kept for bound in self.bounds)


def grade_gates(
    trials: Sequence[Trial], policy: Policy, on_progress: Callable[[float], None], *, workers: int | None = None
) -> GateReport:
    """Run all markets and compare the gates; the result does not depend on `workers` (None: one per processor)."""
    count, results = min(workers or os.cpu_count() or 1, len(trials)), []
    with ProcessPoolExecutor(max_workers=count, mp_context=get_context("spawn")) as pool:
        for lives in pool.map(compare_gates, trials, [policy] * len(trials)):
            results.append(lives)
            on_progress(len(results) / len(trials))
    return graded_gates(results, policy)


def graded_gates(results: Sequence[GateLives], policy: Policy) -> GateReport:
    """Compare the tallies of markets. Intervals come from a bootstrap over markets, paired by market."""
    whole, first = (
        tuple(_compared([getattr(r, part) for r in results], gate, policy) for gate in GATES)
        for part in ("whole", "first")
    )
    learned, heirs = whole[GATES.index(LEARNED)], first[GATES.index(INHERITED)]
    bounds = []
    for name, row in (("learned gate", learned), (f"inherited gate, {FIRST_TICKS} ticks", heirs)):
        bounds += [
            Bound.of(f"{name}: cost", row.cost[2], "at most", COST_MAX, "share of the fixed gate's; high end of 95 %"),
            Bound.of(f"{name}: caught", row.ahead[1], "at least", 0.0, "ahead of the fixed gate; low end of 95 %"),
        ]
    return GateReport(tuple(r.market for r in results), whole, first, tuple(bounds))


def _compared(tallies: Sequence[dict[str, Tally]], gate: str, policy: Policy) -> Compared:
    own, fixed = (np.array([t[name] for t in tallies], float).T for name in (gate, FIXED))
    draws = np.random.default_rng(0).integers(0, len(tallies), (policy.worth.bootstrap_draws, len(tallies)))

    def with_interval(figure: Callable[[Float64Array, Float64Array], float]) -> tuple[float, float, float]:
        values = [figure(own[:, row], fixed[:, row]) for row in draws]
        low, high = np.percentile(values, (2.5, 97.5))
        return figure(own, fixed), float(low), float(high)

    def cost(first: int, last: int) -> tuple[float, float, float]:
        return with_interval(lambda a, b: _rate(a[first:last].sum(), a[0]) / _rate(b[first:last].sum(), b[0]))

    ahead = with_interval(lambda a, b: _rate(a[2].sum(), a[1]) - _rate(b[2].sum(), b[1]))
    worth = with_interval(lambda a, b: float((a[5] - b[5]).mean()))
    return Compared(gate, _rate(own[2].sum(), own[1]), cost(3, 4), cost(3, 5), ahead, worth)


def _rate(whole: float, of: Float64Array) -> float:
    return float(whole / max(of.sum(), 1.0))
