"""Compares heirs with golems that inherit nothing or everything, over lineages in a market.

Generations of ancestors live one after another. Then the market changes, and the judged generation lives under each
condition side by side, with equal traits, budget, lifespan and luck. Its days suffice for deaths by poverty, because
deaths by age are equal under all conditions. Source: X-5; docs/adr/0029.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import get_context

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Float64Array
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.events.life.events import Born, golem_name
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA, MOMENT
from bardo_pipeline.heartbeat.fleet import Founding, born
from bardo_pipeline.inheritance.endowment_conditions import (
    ATTENTION_ONLY,
    CONDITIONS,
    ENTRIES_ONLY,
    HEIRS,
    INHERITED,
    ORPHANS,
    endowment,
    renamed,
)
from bardo_pipeline.market.market import Market
from bardo_pipeline.market.regime import DAY_US
from bardo_pipeline.market.synthetic import synthetic_market
from bardo_pipeline.market.synthetic_spec import DAY_BARS, START, graded_spec
from bardo_pipeline.market.tick_series import Tape, tape_of
from bardo_pipeline.mortality.random_streams import seed_of
from bardo_pipeline.policy import Policy
from bardo_pipeline.quality.lineage_statistics import (
    MEASURES,
    Gain,
    LifeResults,
    gain,
    gain_over_cash,
    gains,
    interval,
    lineage_bounds,
)
from bardo_pipeline.quality.memory_targets import Bound
from bardo_pipeline.runtime.in_memory_fleet import InMemoryFleet, Lives, Start

LIFESPAN_SHARE_MIN = 0.75
"""Minimum lifespan as a share of the generation's part of the market; the maximum is the whole part."""


@dataclass(frozen=True)
class Descent:
    """Settings: seed, number of lineages, days of each ancestor generation and of the judged one, ancestor generations.

    turns: whether the market changes before the judged generation.
    """

    seed: int
    golems: int = 4
    days: int = 4
    judged_days: int = 10
    ancestors: int = 2
    turns: bool = True

    def __post_init__(self) -> None:
        for name in ("golems", "days", "judged_days", "ancestors"):
            if getattr(self, name) < 1:
                raise ConfigError(f"a lineage needs {name.replace('_', '-')} from 1 up, not {getattr(self, name)}")


@dataclass(frozen=True)
class LineageLives:
    """Results of the judged generation by condition, golems in the same order.

    known: initial active entries by condition, summed over golems.
    """

    market: str
    lives: dict[str, Lives]
    known: dict[str, int]


@dataclass(frozen=True)
class Graded:
    """Comparison over lineages: results by condition, gains of a condition over another, and bounds.

    known: mean initial entries by condition. spent: mean micro-dollars for inference and for gas by condition.
    end_worth: median worth at the end of life as a share of the budget, and its 95 % interval, by condition.
    gains: heirs over every other condition, entries only and attention only over orphans, each condition over cash.
    """

    markets: tuple[str, ...]
    lived: dict[str, LifeResults]
    known: dict[str, float]
    spent: dict[str, tuple[float, float]]
    end_worth: dict[str, tuple[float, float, float]]
    gains: tuple[Gain, ...]
    bounds: tuple[Bound, ...]

    @property
    def kept(self) -> bool:
        """Whether every bound is kept."""
        return all(bound.kept for bound in self.bounds)


def grade_lineages(
    descents: Sequence[Descent], policy: Policy, on_progress: Callable[[float], None], *, workers: int | None = None
) -> Graded:
    """Run all lineages and compare them. The result does not depend on `workers`.

    workers: processes; None: one per processor; 1: this process only.
    """
    count = min(workers or os.cpu_count() or 1, len(descents))
    if count == 1:
        return graded(_gathered((live_synthetic(d, policy) for d in descents), len(descents), on_progress), policy)
    with ProcessPoolExecutor(max_workers=count, mp_context=get_context("spawn")) as pool:
        results = pool.map(live_synthetic, descents, [policy] * len(descents))
        return graded(_gathered(results, len(descents), on_progress), policy)


def _gathered(results: Iterable[LineageLives], number: int, on_progress: Callable[[float], None]) -> list[LineageLives]:
    out = []
    for result in results:
        out.append(result)
        on_progress(len(out) / number)
    return out


def graded(results: Sequence[LineageLives], policy: Policy) -> Graded:
    """Compare the results. Worth is compared at the age that all golems of a pair reached."""
    span = policy.curator.cycle_ticks
    lives = {c: [result.lives[c] for result in results] for c in CONDITIONS}
    market = np.concatenate([np.full(len(result.ticks), i) for i, result in enumerate(lives[HEIRS])])
    shortest = [np.minimum.reduce([lives[c][i].ticks for c in CONDITIONS]) for i in range(len(results))]
    lived = {
        c: LifeResults(
            market,
            np.concatenate([part.ticks for part in parts]),
            np.concatenate([part.returns_at(age, span) for part, age in zip(parts, shortest, strict=True)]),
            np.concatenate([part.end_worth for part in parts]),
            tuple(cause for part in parts for cause in part.causes()),
        )
        for c, parts in lives.items()
    }
    gain_rows = _gains(lived, policy)
    golems = len(market)
    return Graded(
        tuple(result.market for result in results), lived,
        {c: sum(result.known[c] for result in results) / golems for c in CONDITIONS},
        {c: _mean_spent(parts) for c, parts in lives.items()},
        {c: _median_end_worth(results, policy) for c, results in lived.items()},
        gain_rows, lineage_bounds(gain_rows, policy.worth),
    )  # fmt: skip


def _gains(lived: dict[str, LifeResults], policy: Policy) -> tuple[Gain, ...]:
    parts_of_heirs = [
        gain(lived[part], lived[ORPHANS], (part, ORPHANS), measure, 0, policy.worth)
        for measure in MEASURES
        for part in (ENTRIES_ONLY, ATTENTION_ONLY)
    ]
    over_cash = [gain_over_cash(results, c, 0, policy.worth) for c, results in lived.items()]
    return (*gains(lived, HEIRS, 0, policy.worth), *parts_of_heirs, *over_cash)


def _median_end_worth(results: LifeResults, policy: Policy) -> tuple[float, float, float]:
    low, high = interval(results.ends, results.market, 0, policy.worth.bootstrap_draws)
    return float(np.median(results.ends)), low, high


def _mean_spent(parts: Sequence[Lives]) -> tuple[float, float]:
    inference, gas = np.concatenate([part.spent for part in parts], axis=1).mean(axis=1).tolist()
    return inference, gas


def live_recorded(market: Market, golems: int, ancestors: int, policy: Policy) -> LineageLives:
    """Run a lineage on a recorded market, its days divided equally among the generations."""
    edges = np.linspace(int(market.at_us[0]), int(market.at_us[-1]), ancestors + 2).astype(np.int64)
    return lived(market, edges[:-1].tolist(), golems, policy)


def live_synthetic(descent: Descent, policy: Policy) -> LineageLives:
    """Run the generations on a seed's synthetic market, the judged one under every condition."""
    before = descent.ancestors * descent.days
    spec = graded_spec(before * DAY_BARS if descent.turns else None)
    bars = (before + descent.judged_days) * DAY_BARS
    market = synthetic_market(seed=descent.seed, bars=bars, start=START, spec=spec)
    start_us = int(market.at_us[0])
    bounds = [start_us + day * descent.days * DAY_US for day in range(descent.ancestors + 1)]
    return lived(market, bounds, descent.golems, policy)


def lived(market: Market, bounds_us: Sequence[int], golems: int, policy: Policy) -> LineageLives:
    """Run the ancestors between these moments, and the judged generation from the last moment on.

    All golems die within their generation's part of the market, at the latest of age.
    """
    tape = tape_of(market, policy)
    edges = [*np.searchsorted(tape.at_us, bounds_us).tolist(), tape.ticks]
    left: Generation | None = None
    for generation, (start, stop) in enumerate(pairwise(edges[:-1])):
        births = _births(market, golems, generation, stop - start, left, policy)
        left = _ancestors(tape, start, stop, births, left, policy)
    assert left is not None, "a lineage has a first generation"
    births = _births(market, golems, len(edges) - 2, edges[-1] - edges[-2], left, policy)
    return _judged(tape, edges[-2], births, left, policy)


@dataclass(frozen=True)
class Generation:
    """State that a generation of ancestors leaves, by lineage: births, deaths, entries at death, learning state.

    ever: all past states of entries, including those of earlier ancestors.
    """

    golem_ids: list[str]
    births: list[Born]
    deaths: pa.Table
    entries: pa.Table
    ever: pa.Table
    variance: Float64Array
    attention: Float64Array


def _births(
    market: Market, golems: int, generation: int, ticks: int, left: Generation | None, policy: Policy
) -> list[tuple[str, Born]]:
    """Build a generation's births: lifespans end within `ticks`, traits are those of the lineage's founder."""
    founding = Founding(lifespan_ticks=(round(ticks * LIFESPAN_SHARE_MIN), ticks))
    return [
        born(
            lineage_id=f"{market.name}/{i}", generation=generation, owner_id=founding.owners[0], founding=founding,
            market=market.name, market_hash=market.content_hash, derivation_id="-", policy=policy,
            predecessor_id=None if left is None else left.golem_ids[i],
            traits=None if left is None else left.births[i].traits,
        )
        for i in range(golems)
    ]  # fmt: skip


def _ancestors(
    tape: Tape, start: int, stop: int, births: list[tuple[str, Born]], before: Generation | None, policy: Policy
) -> Generation:
    """Run one generation of ancestors, heirs of the generation before."""
    names = [g for g, _ in births]
    fleet = InMemoryFleet(tape, start, _starts(births, names, HEIRS, before), policy, remember=True)
    heirs = {} if before is None else dict(zip(before.golem_ids, names, strict=True))
    fleet.begin(_endowed(HEIRS, before, heirs, policy))
    lives = fleet.live(stop)
    at = pa.array(tape.at_us[lives.last_at]).cast(MOMENT)
    ever = [fleet.ever()] if before is None else [renamed(before.ever, heirs), fleet.ever()]
    return Generation(
        names, [b for _, b in births], pa.table({"golem_id": pa.array(names), "at": at}), fleet.grimoire(),
        pa.concat_tables(ever), lives.forecast_variance,
        lives.attention,
    )  # fmt: skip


def _judged(tape: Tape, start: int, births: list[tuple[str, Born]], left: Generation, policy: Policy) -> LineageLives:
    """Run the judged generation under every condition, side by side."""
    starts, given, known = [], [], {}
    for condition in CONDITIONS:
        names = [golem_name(f"{b.lineage_id}/{condition}", b.generation) for _, b in births]
        starts += _starts(births, names, condition, left)
        entries = _endowed(condition, left, dict(zip(left.golem_ids, names, strict=True)), policy)
        known[condition] = pc.sum(pc.equal(entries["status"], "active")).as_py() or 0
        given.append(entries)
    fleet = InMemoryFleet(tape, start, starts, policy)
    fleet.begin(pa.concat_tables(given))
    lives = fleet.live(tape.ticks)
    size = len(births)
    return LineageLives(
        tape.market.name, {c: lives.some(slice(i * size, (i + 1) * size)) for i, c in enumerate(CONDITIONS)}, known
    )


def _starts(births: list[tuple[str, Born]], names: list[str], condition: str, left: Generation | None) -> list[Start]:
    """Build initial states: equal luck under all conditions; the learning state that the condition passes on."""
    starts = [Start(name, birth, seed_of(g)) for name, (g, birth) in zip(names, births, strict=True)]
    if left is None:
        return starts
    if INHERITED[condition].forecasts:
        starts = [s._replace(forecast_variance=tuple(left.variance[:, i].tolist())) for i, s in enumerate(starts)]
    if INHERITED[condition].attention:
        thoughts, vain = left.attention
        starts = [s._replace(attention=(tuple(thoughts[:, i]), tuple(vain[:, i]))) for i, s in enumerate(starts)]
    return starts


def _endowed(condition: str, left: Generation | None, heirs: dict[str, str], policy: Policy) -> pa.Table:
    if left is None:
        return ENTRY_SCHEMA.empty_table()
    return endowment(condition, left.entries, left.ever, left.deaths, heirs, policy)
