"""Derivation: records per second with 64 and 8 golems; a curator cycle against the row-at-a-time reference."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.curator.curate import curate
from bardo_pipeline.curator.playbook import Playbooks
from bardo_pipeline.curator.state.evidence import EVIDENCE_COLUMNS
from bardo_pipeline.curator.state.grimoire_state import GrimoireState, to_table
from benchmarks.figures import Figure, derive, seconds
from benchmarks.growth import batches, cycles_for
from benchmarks.world import GOLEMS, NOW, SPAN, World
from tests.reference.learning.curator import Mind, curate_by_row, grimoire_by_row

RECORDS, DERIVE_LIMIT = 1_000_000, 100_000
FEW, FEW_TICKS = 8, 6_400
TOGETHER = 50_000  # records per commit
TWIN_CYCLES = 4
MANY, MANY_CYCLES = 1_000, 3


def derive_figures(world: World, root: Path, on_step: Callable[[str], None] = lambda _: None) -> list[Figure]:
    """Measure records per second of the whole derivation without embedding, with 64 and 8 golems."""
    figures = []
    for golems, suffix in ((GOLEMS, ""), (FEW, f"_{FEW}_golems")):
        on_step(f"deriving {RECORDS:,} records of {golems} golems")
        measured = world if golems == GOLEMS else World(FEW_TICKS, golems)
        stores, cycles = measured.home(root / str(golems)), cycles_for(RECORDS, golems)
        for segment, batch in enumerate(batches(measured, 0, cycles, max(TOGETHER // (golems * SPAN), 1)), 1):
            stores.log.append(batch, writer="bench", segment=segment, recorded_at=NOW, simulated=True)
        rate = cycles * golems * SPAN / seconds(lambda stores=stores: derive(stores))
        for name in ("grimoire", "facts", "votes", "consensus"):
            assert stores.projections.read(name).num_rows, f"{name} of {golems} golems is empty"
        assert stores.projections.growing("cycles").read(["cycle"]).num_rows == cycles * golems
        how = (
            f"{cycles * golems * SPAN:,} records of {golems} golems, from an empty home: curation, grimoire, "
            "playbooks, facts, links, crossings, episodes without vectors, votes, consensus, on Delta; peer: the aim"
        )
        figures.append(
            Figure(
                f"derive_records_per_s{suffix}", rate, "records/s", DERIVE_LIMIT, rate / DERIVE_LIMIT, "ratio >= 1", how
            )
        )
        stores.log.close()
    return figures


def curator_figures(world: World) -> list[Figure]:
    """Compare curate() with its reference on the same records: 4 cycles of 64 golems, 1 cycle of 1,000."""
    ours, reference, records = _compare_with_reference(world, 0, TWIN_CYCLES)
    peer = "without trials of choices, best of three; peer: tests/reference, row at a time, rows in Python; same output"
    how = f"curate() on {records:,} records in Arrow, {peer}"
    figures = [Figure("derive_vs_twin", ours, "s", reference, reference / ours, "ratio >= 10", how)]
    many = World(MANY_CYCLES * SPAN, MANY, curates=False)
    ours, reference, records = _compare_with_reference(many, MANY_CYCLES - 1, MANY_CYCLES)
    how = (
        f"curate() on cycle {MANY_CYCLES} of {MANY:,} golems, {records:,} records in Arrow, all passes, in memory, "
        f"{peer}"
    )
    return [*figures, Figure("curator_cycle_s", ours, "s", reference, reference / ours, "ratio >= 10", how)]


def _compare_with_reference(world: World, first: int, last: int) -> tuple[float, float, int]:
    """Return seconds of curate(), seconds of its reference, and the record count of cycles first to last.

    Cycles are 0-based, end excluded; earlier cycles are curated first, untimed. Best of three runs; the reference runs
    once. Asserts that both give equal, non-empty decisions and grimoires.
    """
    policy, state, playbooks, minds = world.policy, GrimoireState(), Playbooks(), dict[str, Mind]()

    def ours(records: pa.Table, cycle: Int64Array) -> pa.Table:
        return curate(state, playbooks, records, cycle, policy=policy, policy_hash=policy.hash).decisions

    def twin(by_golem: Iterable[list[tuple[dict[str, Any], int]]]) -> None:
        for rows in by_golem:  # by golem, because the reference scans all of its input repeatedly
            curate_by_row(minds, rows, policy)

    if first:
        records, cycle = _records_of(world, 0, first)
        ours(records, cycle)
        twin(_rows(records, cycle))
    records, cycle = _records_of(world, first, last)
    rows, decisions = _rows(records, cycle), list[pa.Table]()
    before, best = copy.deepcopy((state, playbooks)), math.inf
    for _ in range(3):
        state, playbooks = copy.deepcopy(before)
        best = min(best, seconds(lambda: decisions.append(ours(records, cycle))))
    peer = seconds(lambda: twin(rows))
    reference_decisions = [row for name in sorted(minds) for row in minds[name].decisions if row["cycle"] > first]
    assert reference_decisions
    assert decisions[0].to_pylist() == reference_decisions, "curate() and its reference decide alike"
    entries = to_table(state, policy.curator, policy.decay)
    assert entries.to_pylist() == grimoire_by_row(minds, policy), "curate() and its reference give equal grimoires"
    return best, peer, records.num_rows


def _records_of(world: World, first: int, last: int) -> tuple[pa.Table, Int64Array]:
    """Return the records of some cycles without trials of choices, which the reference does not learn from.

    Each record's cycle is the second value.
    """
    cycles = world.cycles[first:last]
    number = [np.full(table.num_rows, k) for k, table in enumerate(cycles, first + 1)]
    records = pa.concat_tables(cycles).combine_chunks()
    place = records.schema.get_field_index("trials")
    none = pa.nulls(records.num_rows, records.schema.field(place).type)
    return records.set_column(place, records.schema.field(place), none), np.concatenate(number)


def _rows(records: pa.Table, cycle: Int64Array) -> list[list[tuple[dict[str, Any], int]]]:
    """Return the records as Python rows with their cycles, grouped by golem."""
    by_golem = []
    for golem_id in sorted(pc.unique(records["golem_id"]).to_pylist()):
        is_golem = pc.equal(records["golem_id"], golem_id)
        rows = records.select(EVIDENCE_COLUMNS).filter(is_golem).to_pylist()
        by_golem.append(list(zip(rows, cycle[is_golem.to_numpy()].tolist(), strict=True)))
    return by_golem
