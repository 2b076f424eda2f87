"""Derivation: records a second at few and at many golems, and a curator's cycle beside the row-at-a-time twin."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.curate import curate
from bardo_pipeline.curator.playbook import Playbooks
from bardo_pipeline.curator.state.evidence import EVIDENCE_COLUMNS
from bardo_pipeline.curator.state.grimoire_state import GrimoireState, to_table
from benchmarks.figures import Figure, derive, seconds
from benchmarks.growth import batches, cycles_for
from benchmarks.world import GOLEMS, NOW, SPAN, World
from tests.reference.curator import Mind, curate_by_row, grimoire_by_row

RECORDS, DERIVE_LIMIT = 1_000_000, 100_000
FEW, FEW_TICKS = 8, 6_400
TOGETHER = 50_000  # records in one commit
TWIN_CYCLES = 4
MANY, MANY_CYCLES = 1_000, 3


def derive_figures(world: World, root: Path, tell: Callable[[str], None] = lambda _: None) -> list[Figure]:
    """Records a second through the whole derivation without embedding, at 64 golems and at 8."""
    figures = []
    for golems, suffix in ((GOLEMS, ""), (FEW, f"_{FEW}_golems")):
        tell(f"deriving {RECORDS:,} records of {golems} golems")
        lived = world if golems == GOLEMS else World(FEW_TICKS, golems)
        stores, cycles = lived.home(root / str(golems)), cycles_for(RECORDS, golems)
        for segment, batch in enumerate(batches(lived, 0, cycles, max(TOGETHER // (golems * SPAN), 1)), 1):
            stores.log.append(batch, writer="bench", segment=segment, recorded_at=NOW)
        rate = cycles * golems * SPAN / seconds(lambda stores=stores: derive(stores))
        for name in ("grimoire", "facts", "votes", "consensus"):
            assert stores.projections.read(name).num_rows, f"{name} of {golems} golems is empty"
        assert stores.projections.growing("cycles").read(["cycle"]).num_rows == cycles * golems
        how = (
            f"{cycles * golems * SPAN:,} records of {golems} golems, from nothing: curation, grimoire, playbooks, "
            "facts, links, crossings, episodes without vectors, votes, consensus, on Delta; peer: the aim"
        )
        figures.append(
            Figure(
                f"derive_records_per_s{suffix}", rate, "records/s", DERIVE_LIMIT, rate / DERIVE_LIMIT, "ratio >= 1", how
            )
        )
        stores.log.close()
    return figures


def curator_figures(world: World) -> list[Figure]:
    """curate() beside its twin on the same records: some cycles of 64 golems, and one cycle of a thousand."""
    ours, twin, records = _beside_twin(world, 0, TWIN_CYCLES)
    peer = "best of three; peer: tests/reference, row at a time, rows in Python; same output"
    how = f"curate() on {records:,} records in Arrow, {peer}"
    figures = [Figure("derive_vs_twin", ours, "s", twin, twin / ours, "ratio >= 10", how)]
    many = World(MANY_CYCLES * SPAN, MANY, curates=False)
    ours, twin, records = _beside_twin(many, MANY_CYCLES - 1, MANY_CYCLES)
    how = (
        f"curate() on cycle {MANY_CYCLES} of {MANY:,} golems, {records:,} records in Arrow, all passes, in memory, "
        f"{peer}"
    )
    return [*figures, Figure("curator_cycle_s", ours, "s", twin, twin / ours, "ratio >= 10", how)]


def _beside_twin(world: World, first: int, last: int) -> tuple[float, float, int]:
    """Seconds to curate cycles first to last (0-based, end excluded), the twin's, and how many records they have.

    The best of three, and the twin's first and only. The cycles before are curated first. What comes of it is equal,
    and not nothing.
    """
    policy, state, playbooks, minds = world.policy, GrimoireState(), Playbooks(), dict[str, Mind]()

    def ours(records: pa.Table, cycle: np.ndarray) -> pa.Table:
        return curate(state, playbooks, records, cycle, policy=policy, policy_hash=policy.hash).decisions

    def twin(by_golem: Iterable[list[tuple[dict[str, Any], int]]]) -> None:
        for rows in by_golem:  # each golem by itself: the twin looks through all that it is given, again and again
            curate_by_row(minds, rows, policy)

    if first:
        records, cycle = _told(world, 0, first)
        ours(records, cycle)
        twin(_rows(records, cycle))
    records, cycle = _told(world, first, last)
    rows, made = _rows(records, cycle), list[pa.Table]()
    before, spent = copy.deepcopy((state, playbooks)), math.inf
    for _ in range(3):
        state, playbooks = copy.deepcopy(before)
        spent = min(spent, seconds(lambda: made.append(ours(records, cycle))))
    peer = seconds(lambda: twin(rows))
    decided = [row for name in sorted(minds) for row in minds[name].decisions if row["cycle"] > first]
    assert decided
    assert made[0].to_pylist() == decided, "curate() decides what its twin decides"
    entries = to_table(state, policy.curator, policy.decay)
    assert entries.to_pylist() == grimoire_by_row(minds, policy), "and leaves the same grimoire"
    return spent, peer, records.num_rows


def _told(world: World, first: int, last: int) -> tuple[pa.Table, np.ndarray]:
    """The records of some cycles, and the cycle of each."""
    cycles = world.cycles[first:last]
    number = [np.full(table.num_rows, k) for k, table in enumerate(cycles, first + 1)]
    return pa.concat_tables(cycles).combine_chunks(), np.concatenate(number)


def _rows(records: pa.Table, cycle: np.ndarray) -> list[list[tuple[dict[str, Any], int]]]:
    """The same as rows in Python, by golem."""
    out = []
    for golem_id in sorted(pc.unique(records["golem_id"]).to_pylist()):
        mine = pc.equal(records["golem_id"], golem_id)
        rows = records.select(EVIDENCE_COLUMNS).filter(mine).to_pylist()
        out.append(list(zip(rows, cycle[mine.to_numpy()].tolist(), strict=True)))
    return out
