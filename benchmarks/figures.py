"""The figures: what is measured, beside what, and how."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from bardo_pipeline.curator.episodes import EPISODE_COLUMNS, episodes_of
from bardo_pipeline.derivation.belief import derive_consensus, derive_votes
from bardo_pipeline.derivation.curation import derive_curation
from bardo_pipeline.derivation.of_grimoire import OF_GRIMOIRE, derive_of_grimoire
from bardo_pipeline.derivation.stores import Stores
from benchmarks.world import GOLEMS, SPAN, World

FLEET_LIMIT = 50_000
DERIVE_LIMIT = 50_000
BATCH = 50_000
TWIN_CYCLES = 4


@dataclass(frozen=True)
class Figure:
    """One figure: its value beside a peer or a limit from the same run."""

    name: str
    value: float
    unit: str
    peer: float
    ratio: float
    aim: str
    how: str


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def fleet_figure(world: World) -> Figure:
    """Golem-ticks a second, from tape to Arrow records."""
    value = world.records / world.live_seconds
    how = (
        f"{GOLEMS} golems stepped as columns: recall, nine steps, Arrow records; no curation, no storage; peer: the aim"
    )
    return Figure("fleet_ticks_per_s", value, "golem-ticks/s", FLEET_LIMIT, value / FLEET_LIMIT, "ratio >= 1", how)


def derive_figures(world: World, root: Path) -> list[Figure]:
    """Records a second through the whole derivation without embedding, and beside the row-at-a-time twin."""
    stores = world.home(root / "derive")
    world.fill(stores, 0, len(world.cycles), batch=BATCH, writer="bench")
    spent = _seconds(lambda: derive(stores))
    rate = world.records / spent
    how = "curation, grimoire, playbooks, facts, episodes without vectors, votes, consensus, on Delta; peer: the aim"
    figures = [Figure("derive_records_per_s", rate, "records/s", DERIVE_LIMIT, rate / DERIVE_LIMIT, "ratio >= 1", how)]
    figures.append(_twin_figure(world))
    return figures


def derive(stores: Stores) -> None:
    """Everything but vectors."""
    derive_curation(stores)
    for name in OF_GRIMOIRE:
        derive_of_grimoire(stores, name)
    records = stores.log.read_cycles(list(EPISODE_COLUMNS))
    episodes_of(records, (records["tick"].to_numpy() - 1) // SPAN + 1, stores.policy)
    derive_votes(stores)
    derive_consensus(stores)


def _twin_figure(world: World) -> Figure:
    """curate() beside its twin that takes one record at a time, on the same cycles."""
    from bardo_pipeline.curator.evidence import EVIDENCE_COLUMNS
    from bardo_pipeline.curator.passes import curate
    from bardo_pipeline.curator.playbook import Playbooks
    from bardo_pipeline.curator.state import GrimoireState
    from tests.reference.curator import curate_by_row

    cycles = world.cycles[:TWIN_CYCLES]
    records = pa.concat_tables(cycles).combine_chunks()
    cycle = np.concatenate([np.full(t.num_rows, k + 1) for k, t in enumerate(cycles)])
    policy = world.policy
    ours = _seconds(
        lambda: curate(GrimoireState(), Playbooks(), records, cycle, policy=policy, policy_hash=policy.hash)
    )
    rows = list(zip(records.select(EVIDENCE_COLUMNS).to_pylist(), cycle.tolist(), strict=True))
    twin = _seconds(lambda: curate_by_row({}, rows, policy))
    how = f"curate() on {records.num_rows:,} records in Arrow; peer: tests/reference, row at a time, rows in Python"
    return Figure("derive_vs_twin", ours, "s", twin, twin / ours, "ratio > 1", how)


def derive_incremental(stores: Stores) -> None:
    """What a curator run does beside vectors."""
    derive_curation(stores)
    for name in OF_GRIMOIRE:
        derive_of_grimoire(stores, name)
    derive_votes(stores)
    derive_consensus(stores)
