"""Compares golems with and without the decision cache: hit rate, cost of thought, worth.

Golems with equal traits, budget, lifespan and luck live through each market twice, with the cache and without it.
Source: HB S11 (hit rate above 30 % at 7 days); docs/adr/0114.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Literal, NamedTuple

import numpy as np

from bardo_pipeline.arrays import Float64Array, Int8Array, Int64Array
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA
from bardo_pipeline.heartbeat.fleet import Fleet, Founding, born
from bardo_pipeline.heartbeat.observe import Sight
from bardo_pipeline.heartbeat.recall_table import Recall
from bardo_pipeline.heartbeat.safety.decision_cache import HIT, RESULTS
from bardo_pipeline.heartbeat.step import Waking
from bardo_pipeline.market.regime import DAY_US
from bardo_pipeline.market.synthetic import synthetic_market
from bardo_pipeline.market.synthetic_spec import DAY_BARS, START, graded_spec
from bardo_pipeline.market.tick_series import tape_of
from bardo_pipeline.mortality.random_streams import seed_of
from bardo_pipeline.policy import Policy
from bardo_pipeline.quality.cost_model import daily_cost_micros
from bardo_pipeline.quality.memory_targets import Bound
from bardo_pipeline.runtime.in_memory_fleet import InMemoryFleet, Start

HIT_RATE_MIN = 0.3
"""Least share of lookups that the cache answers (HB S11)."""

MODES: tuple[Literal["off", "on"], ...] = ("off", "on")


class CacheTrial(NamedTuple):
    """Settings of one market: seed, golems, days, and the gate's mode."""

    seed: int
    golems: int
    days: int
    gate: str


class CacheLives(NamedTuple):
    """Figures of one market, without the cache and with it.

    results: lookups by result, in the order of RESULTS. daily_usd: dollars for models per golem and day, by the cost
    model over the lived ticks. worth: at the end of life, as shares of the budget.
    """

    results: tuple[int, ...]
    daily_usd: tuple[float, float]
    worth: tuple[float, float]


class CacheWatch:
    """Overseer that counts lookups and deliberations, and leaves the tiers alone."""

    def __init__(self) -> None:
        self.results: Int64Array = np.zeros(len(RESULTS), np.int64)
        self.ticks = self.calls = 0

    def __call__(
        self, fleet: Fleet, _tape: object, _t: int, _sight: Sight, waking: Waking, _recall: Recall
    ) -> Int8Array:
        """Count a tick, and return its tiers."""
        self.ticks += int(fleet.alive.sum())
        self.calls += int(((waking.tier == 1) | (waking.tier == 2)).sum())
        if waking.cached is not None:
            asked = waking.cached.result[waking.cached.asked]
            self.results += np.bincount(asked, minlength=len(RESULTS))
        return waking.tier


def compare_cache(trial: CacheTrial, policy: Policy) -> CacheLives:
    """Run one market without the cache and with it."""
    market = synthetic_market(seed=trial.seed, bars=trial.days * DAY_BARS, start=START, spec=graded_spec(None))
    tape, figures = tape_of(market, policy), []
    days = (int(tape.at_us[-1]) - int(tape.at_us[0])) / DAY_US
    founding = Founding(lifespan_ticks=(2 * tape.ticks, 3 * tape.ticks), credit_share=0.1)
    births = (
        born(
            lineage_id=f"{market.name}/{i}", generation=0, owner_id="owner-1", founding=founding, market=market.name,
            market_hash=market.content_hash, derivation_id="-", policy=policy,
        )
        for i in range(trial.golems)
    )  # fmt: skip
    starts = [Start(golem_id, birth, seed_of(golem_id)) for golem_id, birth in births]
    for mode in MODES:
        parts = {
            "gate": policy.gate.model_copy(update={"mode": trial.gate}),
            "cache": policy.cache.model_copy(update={"mode": mode}),
        }
        watch, fleet = CacheWatch(), InMemoryFleet(tape, 0, starts, policy.model_copy(update=parts))
        fleet.overseer = watch
        fleet.begin(ENTRY_SCHEMA.empty_table())
        lives = fleet.live(tape.ticks)
        price = float(lives.spent[0].sum()) / max(watch.calls, 1)
        share = watch.calls / max(watch.ticks, 1)
        dollars = daily_cost_micros(tape.ticks / days, {"call": share}, {"call": price}) / 1e6
        figures.append((watch, dollars, float(lives.end_worth.mean())))
    (_, usd_off, worth_off), (watch, usd_on, worth_on) = figures
    return CacheLives(tuple(watch.results.tolist()), (usd_off, usd_on), (worth_off, worth_on))


@dataclass(frozen=True)
class CacheReport:
    """Comparison over markets; each figure with its 95 % interval (low, high) by a bootstrap over markets.

    hit_rate: share of lookups that were answered. saved: dollars per golem and day that the cache saved. worth: gain of
    the end worth in shares of the budget. results: lookups by result.
    """

    markets: int
    hit_rate: tuple[float, float, float]
    saved_usd: tuple[float, float, float]
    worth: tuple[float, float, float]
    results: dict[str, int]

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """The bounds under which the cache would be on by default."""
        return (
            Bound.of("hit rate", self.hit_rate[1], "at least", HIT_RATE_MIN, "share of lookups; low end of 95 %"),
            Bound.of("worth", self.worth[1], "at least", 0.0, "gain in shares of the budget; low end of 95 %"),
        )

    @property
    def kept(self) -> bool:
        """Whether every bound is kept."""
        return all(bound.kept for bound in self.bounds)


def grade_cache(
    trials: Sequence[CacheTrial], policy: Policy, on_progress: Callable[[float], None], *, workers: int | None = None
) -> CacheReport:
    """Run all markets; the result does not depend on `workers` (None: one per processor)."""
    count, results = min(workers or os.cpu_count() or 1, len(trials)), []
    with ProcessPoolExecutor(max_workers=count, mp_context=get_context("spawn")) as pool:
        for lives in pool.map(compare_cache, trials, [policy] * len(trials)):
            results.append(lives)
            on_progress(len(results) / len(trials))
    return graded_cache(results, policy)


def graded_cache(lives: Sequence[CacheLives], policy: Policy) -> CacheReport:
    """Compare the figures of markets, paired by market."""
    draws = np.random.default_rng(0).integers(0, len(lives), (policy.worth.bootstrap_draws, len(lives)))
    results = np.array([own.results for own in lives])
    asked, hits = results.sum(axis=1), results[:, HIT]
    saved, gain = (np.array([pair[i] - pair[1 - i] for pair in pairs]) for i, pairs in (
        (0, [own.daily_usd for own in lives]), (1, [own.worth for own in lives]),
    ))  # fmt: skip

    def with_interval(figure: Callable[[Int64Array], float]) -> tuple[float, float, float]:
        low, high = np.percentile([figure(row) for row in draws], (2.5, 97.5))
        return figure(np.arange(len(lives))), float(low), float(high)

    def mean_of(values: Float64Array) -> tuple[float, float, float]:
        return with_interval(lambda row: float(values[row].mean()))

    return CacheReport(
        len(lives),
        with_interval(lambda row: float(hits[row].sum() / max(asked[row].sum(), 1))),
        mean_of(saved),
        mean_of(gain),
        dict(zip(RESULTS, results.sum(axis=0).tolist(), strict=True)),
    )
