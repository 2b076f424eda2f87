"""Derives the testaments and the candidate bundles of dead golems.

Source: INH S7, architecture ("Running", "Projections").
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.golem_batches import in_batches
from bardo_pipeline.derivation.incremental.record_queries import curated_through
from bardo_pipeline.derivation.incremental.retraction_tracking import (
    RetractionCursor,
    first_touched_cycles,
    is_from_cycle,
    retraction_event_ids,
)
from bardo_pipeline.derivation.katabasis.vote_and_consensus import recorded_deaths
from bardo_pipeline.derivation.legacy.bundle_candidates import (
    BEFORE_CANDIDATES,
    birth_rows,
    entries_of,
    make_candidates,
)
from bardo_pipeline.inheritance.testament import TESTAMENT_SCHEMA, testaments
from bardo_pipeline.storage.delta.table_digest import Written


def derive_testaments(context: DerivationContext) -> list[Written]:
    """Write the testament of every golem that died since, and again where something it rests on is left out since."""
    with context.deriving():
        written = _repair(context, "testaments", _testaments, after=("curation",))
        deaths = _unwritten(context, "testaments")
        if deaths.num_rows:
            written.append(context.projections.growing("testaments").put(_testaments(context, deaths), _upto(deaths)))
        return written


def derive_candidates(context: DerivationContext) -> list[Written]:
    """Press every golem that died since through the bottleneck, and make the bundle it would leave.

    A bundle that rests on something that is left out since is made again; the one that was made before keeps its bytes.
    """
    with context.deriving():
        written = _repair(context, "candidates", make_candidates, after=BEFORE_CANDIDATES)
        deaths = _unwritten(context, "candidates", after=("testaments", "episodes"))
        if deaths.num_rows:
            rows = make_candidates(context, deaths)
            written.append(context.projections.growing("candidates").put(rows, _upto(deaths)))
        return written


def with_lives(context: DerivationContext, deaths: pa.Table) -> pa.Table:
    """Deaths with the generation, lineage, cause and tick that a testament and a bundle name."""
    names = deaths["golem_id"].to_pylist()
    births, events = birth_rows(context, names), context.life("DeathDeclared", names).select(["golem_id", "died"])
    died = {e["golem_id"]: e["died"] for e in events.to_pylist()}
    columns = {
        "generation": pa.array([births[g]["generation"] for g in names], pa.int64()),
        "lineage_id": pa.array([births[g]["lineage_id"] for g in names], pa.string()),
        "cause": pa.array([died[g]["cause"] for g in names], pa.string()),
        "tick": pa.array([died[g]["tick"] for g in names], pa.int64()),
    }
    ticks = columns["tick"].to_numpy()
    columns["is_record_left_out"] = pa.array(context.left_out().records(deaths["golem_id"], ticks), pa.bool_())
    for name, column in columns.items():
        deaths = deaths.append_column(name, column)
    return deaths


def _unwritten(context: DerivationContext, table: str, *, after: tuple[str, ...] = ()) -> pa.Table:
    """Deaths that are curated to their last cycle and known to these tables, but not to this one, with their lives."""
    sources, target = [context.projections.growing(n) for n in after], context.projections.growing(table)
    deaths = recorded_deaths(context)
    keep = [
        target.done(g) is None
        and all(
            known is not None and known >= c for known in (curated_through(context, g), *(t.done(g) for t in sources))
        )
        for g, c in zip(deaths["golem_id"].to_pylist(), deaths["cycle"].to_pylist(), strict=True)
    ]
    return with_lives(context, deaths.filter(pa.array(keep, pa.bool_())))


def _testaments(context: DerivationContext, deaths: pa.Table) -> pa.Table:
    """The testaments of these dead (TESTAMENT_SCHEMA)."""
    parts = [TESTAMENT_SCHEMA.empty_table()]
    for some in in_batches(context, deaths):
        decisions = context.projections.growing("curation").read(golems=some["golem_id"].to_pylist())
        parts.append(testaments(entries_of(context, some), decisions, some, context.policy))
    return pa.concat_tables(parts)


def _repair(
    context: DerivationContext,
    table: str,
    make: Callable[[DerivationContext, pa.Table], pa.Table],
    *,
    after: tuple[str, ...],
) -> list[Written]:
    """Make again the rows of the dead that rest on something that is left out since their row was made.

    after: consumers that must have heeded a cause before.
    """
    heeded, span = RetractionCursor(context, table), context.policy.curator.cycle_ticks
    due, target = (
        heeded.due(context.left_out(), after=[RetractionCursor(context, n) for n in after]),
        context.projections.growing(table),
    )
    deaths = recorded_deaths(context).filter(is_from_cycle(recorded_deaths(context), first_touched_cycles(due, span)))
    made = pa.array([target.done(g) is not None for g in deaths["golem_id"].to_pylist()], pa.bool_())
    deaths = with_lives(context, deaths.filter(made))
    written = []
    if deaths.num_rows:
        standing = target.read(golems=deaths["golem_id"].to_pylist(), hidden=True)
        written.append(target.repair(standing, make(context, deaths), retraction_event_ids(standing, due, span)))
    heeded.keep(cause.event_id for cause in due)
    return written


def _upto(deaths: pa.Table) -> dict[str, int]:
    return dict(zip(deaths["golem_id"].to_pylist(), deaths["cycle"].to_pylist(), strict=True))
