"""Figures of benchmarks, and the measurements that several benchmarks share."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bardo_pipeline.curator.episodes import EPISODE_COLUMNS, episodes_of
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.derivation.curation.grimoire_views import GRIMOIRE_VIEWS, derive_grimoire_views
from bardo_pipeline.derivation.katabasis.derive_consensus import derive_consensus
from bardo_pipeline.derivation.katabasis.derive_votes import derive_votes
from bardo_pipeline.heartbeat.probes import evaluate
from bardo_pipeline.policy import GatePolicy, Policy
from benchmarks.world import GOLEMS, SPAN, World

FLEET_LIMIT = 50_000
LEARNED_TICKS = 1_000
PROBES_LIMIT_MS = 10.0


@dataclass(frozen=True)
class Figure:
    """A measured value with a peer's value or a limit from the same run."""

    name: str
    value: float
    unit: str
    peer: float
    ratio: float
    aim: str
    how: str


def seconds(work: Callable[[], object]) -> float:
    """Return the seconds that `work` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def fleet_figures(world: World) -> list[Figure]:
    """Measure golem-ticks per second, from market data to Arrow records, with attention and with the learned gate."""
    learned = World(LEARNED_TICKS, gate=GatePolicy(mode="learned"))
    how = f"{GOLEMS} golems in columns: retrieval, nine steps, Arrow records; no curation or storage; peer: the aim"
    rates = {name: w.records / w.live_seconds for name, w in (("", world), ("learned_", learned))}
    return [
        Figure(f"fleet_{name}ticks_per_s", rate, "golem-ticks/s", FLEET_LIMIT, rate / FLEET_LIMIT, "ratio >= 1", how)
        for name, rate in rates.items()
    ]


def probes_figure(policy: Policy) -> Figure:
    """Measure milliseconds to evaluate all twelve probes of 64 golems, best of 200 calls."""
    inputs = {name: np.linspace(0.0, 0.1, GOLEMS) for name in inspect.signature(evaluate).parameters}
    inputs |= {"kill_switch": np.zeros(GOLEMS, bool), "policy": policy}
    spent = 1_000 * min(seconds(lambda: evaluate(**inputs)) for _ in range(200))
    how = f"twelve probes of {GOLEMS} golems, in one call; best of 200; peer: the specification's limit for one golem"
    return Figure("probes_ms", spent, "ms", PROBES_LIMIT_MS, spent / PROBES_LIMIT_MS, "value <= 10", how)


def derive(stores: DerivationContext) -> None:
    """Derive all tables except vectors."""
    derive_curation(stores)
    for name in GRIMOIRE_VIEWS:
        derive_grimoire_views(stores, name)
    for records, _ in stores.log.cycles_in_parts(list(EPISODE_COLUMNS)):
        episodes_of(records, (records["tick"].to_numpy() - 1) // SPAN + 1, stores.policy)
    derive_votes(stores)
    derive_consensus(stores)


def derive_incremental(stores: DerivationContext) -> None:
    """Derive the tables of a curator run except vectors."""
    derive_curation(stores)
    for name in GRIMOIRE_VIEWS:
        derive_grimoire_views(stores, name)
    derive_votes(stores)
    derive_consensus(stores)
