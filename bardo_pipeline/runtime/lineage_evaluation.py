"""Lineage: whether heirs live longer and do better than those who inherit nothing, or everything.

Generations live through a market, each the heirs of the one before, and die; then the market turns, and the next one
lives under each condition, side by side: same traits, budget, lifespan and luck, another beginning. Nobody is told what
is to come. It has days enough that poverty ends its lives: those that age ends are alike whatever was inherited.
Source: issue 5 ("Proof of worth"), X-5.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from multiprocessing import get_context

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.errors import ConfigError
from bardo_pipeline.events.life.events import Born
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA, MOMENT
from bardo_pipeline.heartbeat.fleet import Founding, born, golem_name
from bardo_pipeline.inheritance.endowment_conditions import CONDITIONS, HEIRS, ORPHANS, endowment, renamed
from bardo_pipeline.market.market import Market
from bardo_pipeline.market.synthetic import synthetic_market
from bardo_pipeline.market.synthetic_spec import graded_spec
from bardo_pipeline.market.tick_series import Tape, tape_of
from bardo_pipeline.mortality.random_streams import seed_of
from bardo_pipeline.policy import Policy
from bardo_pipeline.quality.lineage_statistics import Gain, LifeResults, gains, lineage_bounds
from bardo_pipeline.quality.memory_targets import Bound
from bardo_pipeline.runtime.in_memory_fleet import Brood, Lives, Start

START = datetime(2026, 1, 1, tzinfo=UTC)
DAY_BARS = 1_440
_DAY_US = 86_400_000_000
LIFESPAN_SHARE_MIN = 0.75
"""A generation's lifespans are drawn between this share of its stretch of the market, and all of it."""


@dataclass(frozen=True)
class Descent:
    """What a lineage lives through: a market's seed, how many lineages, days of each generation of ancestors and of the
    judged one, generations of ancestors, and whether the market turns before the judged one begins."""

    seed: int
    golems: int = 4
    days: int = 4
    judged_days: int = 10
    ancestors: int = 2
    turns: bool = True

    def __post_init__(self) -> None:
        """Check ranges."""
        for name in ("golems", "days", "judged_days", "ancestors"):
            if getattr(self, name) < 1:
                raise ConfigError(f"a lineage needs {name.replace('_', '-')} from 1 up, not {getattr(self, name)}")


@dataclass(frozen=True)
class Told:
    """How the judged generation lived under each condition: condition to lives, golem by golem in the same order."""

    market: str
    lives: dict[str, Lives]
    known: dict[str, int]


@dataclass(frozen=True)
class Graded:
    """What lineages gave: how each condition's golems lived, pair by pair, what heirs gained, and the bounds. known: of
    each condition, entries a golem began with; spent: micro-dollars a golem spent on thought and on gas."""

    markets: tuple[str, ...]
    lived: dict[str, LifeResults]
    known: dict[str, float]
    spent: dict[str, tuple[float, float]]
    gains: tuple[Gain, ...]
    bounds: tuple[Bound, ...]

    @property
    def kept(self) -> bool:
        """Whether every bound is kept."""
        return all(bound.kept for bound in self.bounds)


def grade_lineages(
    descents: Sequence[Descent], policy: Policy, tell: Callable[[float], None], *, workers: int | None = None
) -> Graded:
    """Live all of these lineages and compare. Same lineages and policy, same answer, however many workers.

    workers: processes at once; None: as many as there are processors; 1: none but this one.
    """
    count = min(workers or os.cpu_count() or 1, len(descents))
    if count == 1:
        return graded(_gathered((live_synthetic(d, policy) for d in descents), len(descents), tell), policy)
    with ProcessPoolExecutor(max_workers=count, mp_context=get_context("spawn")) as pool:
        told = pool.map(live_synthetic, descents, [policy] * len(descents))
        return graded(_gathered(told, len(descents), tell), policy)


def _gathered(told: Iterable[Told], number: int, tell: Callable[[float], None]) -> list[Told]:
    out = []
    for one in told:
        out.append(one)
        tell(len(out) / number)
    return out


def graded(told: Sequence[Told], policy: Policy) -> Graded:
    """Compare what was lived in these markets. Worth is compared at the age that both of a pair reached."""
    span = policy.curator.cycle_ticks
    lives = {c: [one.lives[c] for one in told] for c in CONDITIONS}
    market = np.concatenate([np.full(len(one.ticks), i) for i, one in enumerate(lives[HEIRS])])
    shortest = [np.minimum.reduce([lives[c][i].ticks for c in CONDITIONS]) for i in range(len(told))]
    lived = {
        c: LifeResults(
            market,
            np.concatenate([one.ticks for one in mine]),
            np.concatenate([one.returns_at(age, span) for one, age in zip(mine, shortest, strict=True)]),
            tuple(cause for one in mine for cause in one.causes()),
        )
        for c, mine in lives.items()
    }
    found = gains(lived, HEIRS, 0, policy.worth)
    golems = len(market)
    return Graded(
        tuple(one.market for one in told), lived,
        {c: sum(one.known[c] for one in told) / golems for c in CONDITIONS},
        {
            c: (_mean([one.ledger.thought for one in mine]), _mean([one.ledger.gas for one in mine]))
            for c, mine in lives.items()
        },
        found, lineage_bounds(found, policy.worth),
    )  # fmt: skip


def _mean(parts: Sequence[np.ndarray]) -> float:
    return float(np.concatenate(parts).mean())


def live_recorded(market: Market, golems: int, ancestors: int, policy: Policy) -> Told:
    """The same on a recorded market: its days are shared out equally between all generations."""
    edges = np.linspace(int(market.at_us[0]), int(market.at_us[-1]), ancestors + 2).astype(np.int64)
    return lived(market, edges[:-1].tolist(), golems, policy)


def live_synthetic(descent: Descent, policy: Policy) -> Told:
    """The generations of a synthetic market's seed, the judged one under every condition."""
    before = descent.ancestors * descent.days
    spec = graded_spec(before * DAY_BARS if descent.turns else None)
    bars = (before + descent.judged_days) * DAY_BARS
    market = synthetic_market(seed=descent.seed, bars=bars, start=START, spec=spec)
    start_us = int(market.at_us[0])
    bounds = [start_us + day * descent.days * _DAY_US for day in range(descent.ancestors + 1)]
    return lived(market, bounds, descent.golems, policy)


def lived(market: Market, bounds_us: Sequence[int], golems: int, policy: Policy) -> Told:
    """Live the generations of ancestors between these moments, and the judged one from the last of them on.

    Ancestors die of age within their stretch if of nothing else before, and so does the judged generation within the
    market's days.
    """
    tape = tape_of(market, policy)
    edges = [*np.searchsorted(tape.at_us, bounds_us).tolist(), tape.ticks]
    left: Left | None = None
    for generation, (start, stop) in enumerate(pairwise(edges[:-1])):
        births = _births(market, golems, generation, stop - start, left, policy)
        left = _ancestors(tape, start, stop, births, left, policy)
    assert left is not None, "a lineage has a first generation"
    births = _births(market, golems, len(edges) - 2, edges[-1] - edges[-2], left, policy)
    return _judged(tape, edges[-2], births, left, policy)


@dataclass(frozen=True)
class Left:
    """What a generation left, of golems in the order of their lineages: names, births, deaths (golem_id, at), grimoires
    as they died, every state that an entry of theirs or their ancestors' was in, and the spread of their forecasts."""

    golem_ids: list[str]
    births: list[Born]
    deaths: pa.Table
    entries: pa.Table
    ever: pa.Table
    variance: np.ndarray
    attention: np.ndarray


def _births(
    market: Market, golems: int, generation: int, ticks: int, left: Left | None, policy: Policy
) -> list[tuple[str, Born]]:
    """Births of a generation whose lifespans end within so many ticks; traits are those of each lineage's founder."""
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
    tape: Tape, start: int, stop: int, births: list[tuple[str, Born]], before: Left | None, policy: Policy
) -> Left:
    """Live a generation of ancestors, heirs of the one before them."""
    names = [g for g, _ in births]
    brood = Brood(tape, start, _starts(births, names, HEIRS, before), policy, remember=True)
    heirs = {} if before is None else dict(zip(before.golem_ids, names, strict=True))
    brood.begin(_endowed(HEIRS, before, heirs, policy))
    lives = brood.live(stop)
    at = pa.array(tape.at_us[lives.last_at]).cast(MOMENT)
    ever = [brood.ever()] if before is None else [renamed(before.ever, heirs), brood.ever()]
    return Left(
        names, [b for _, b in births], pa.table({"golem_id": pa.array(names), "at": at}), brood.grimoire(),
        pa.concat_tables(ever), lives.forecast_variance,
        lives.attention,
    )  # fmt: skip


def _judged(tape: Tape, start: int, births: list[tuple[str, Born]], left: Left, policy: Policy) -> Told:
    """Live the judged generation under every condition, side by side."""
    starts, given, known = [], [], {}
    for condition in CONDITIONS:
        names = [golem_name(f"{b.lineage_id}/{condition}", b.generation) for _, b in births]
        starts += _starts(births, names, condition, left)
        mine = _endowed(condition, left, dict(zip(left.golem_ids, names, strict=True)), policy)
        known[condition] = pc.sum(pc.equal(mine["status"], "active")).as_py() or 0
        given.append(mine)
    brood = Brood(tape, start, starts, policy)
    brood.begin(pa.concat_tables(given))
    lives = brood.live(tape.ticks)
    size = len(births)
    return Told(
        tape.market.name,
        {c: lives.some(slice(i * size, (i + 1) * size)) for i, c in enumerate(CONDITIONS)},
        known,
    )


def _starts(births: list[tuple[str, Born]], names: list[str], condition: str, left: Left | None) -> list[Start]:
    """How these golems begin: the same luck whatever the condition, forecasts as wide as the predecessor's, or new."""
    if left is None or condition == ORPHANS:
        return [Start(name, birth, seed_of(g)) for name, (g, birth) in zip(names, births, strict=True)]
    return [
        Start(
            name,
            birth,
            seed_of(g),
            tuple(left.variance[:, i].tolist()),
            (tuple(left.attention[0, :, i].tolist()), tuple(left.attention[1, :, i].tolist())),
        )
        for i, (name, (g, birth)) in enumerate(zip(names, births, strict=True))
    ]


def _endowed(condition: str, left: Left | None, heirs: dict[str, str], policy: Policy) -> pa.Table:
    if left is None:
        return ENTRY_SCHEMA.empty_table()
    return endowment(condition, left.entries, left.ever, left.deaths, heirs, policy)
