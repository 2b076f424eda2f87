"""Derives the testaments and the candidate bundles of dead golems.

Source: INH S7, architecture ("Running", "Projections").
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import pyarrow as pa

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.incremental_projection import IncrementalProjection, Retraction
from bardo_pipeline.derivation.incremental.record_queries import (
    birth_rows,
    curated_through,
    in_batches,
    values_by_golem,
)
from bardo_pipeline.derivation.incremental.retraction_tracking import is_from_cycle
from bardo_pipeline.derivation.legacy.bundle_candidates import BEFORE_CANDIDATES, entries_of, make_candidates
from bardo_pipeline.derivation.legacy.death_queries import recorded_deaths
from bardo_pipeline.events.life.retractions import LeftOut
from bardo_pipeline.events.record.arrow_columns import rows_of_golems
from bardo_pipeline.inheritance.testament import TESTAMENT_SCHEMA, testaments
from bardo_pipeline.storage.delta.table_digest import Written


class _RowsOfDeaths(IncrementalProjection):
    """A growing table with one row per dead golem, written when its last cycle is in the tables it is made from."""

    def __init__(
        self,
        table: str,
        sources: tuple[str, ...],
        make_rows: Callable[[DerivationContext, pa.Table], pa.Table],
        golems: Collection[str] | None = None,
    ) -> None:
        self.name, self.sources, self._make_rows, self._golems = table, sources, make_rows, golems

    def retract(self, context: DerivationContext, retraction: Retraction) -> list[Written]:
        """Make the written rows of touched golems again."""
        table, deaths = context.projections.growing(self.name), recorded_deaths(context)
        deaths = deaths.filter(is_from_cycle(deaths, retraction.first))
        is_written = [table.done(golem_id) is not None for golem_id in deaths["golem_id"].to_pylist()]
        deaths = with_lives(context, deaths.filter(pa.array(is_written, pa.bool_())))
        if not deaths.num_rows:
            return []
        standing = table.read(golems=deaths["golem_id"].to_pylist(), hidden=True)
        return [retraction.correct(table, standing, self._make_rows(context, deaths))]

    def derive(self, context: DerivationContext, left_out: LeftOut) -> list[Written]:
        """Write the rows of new deaths."""
        deaths = _unwritten(context, self.name, self.sources, self._golems)
        if not deaths.num_rows:
            return []
        upto = values_by_golem(deaths, "cycle")
        return [context.projections.growing(self.name).put(self._make_rows(context, deaths), upto)]


def derive_testaments(context: DerivationContext, golems: Collection[str] | None = None) -> list[Written]:
    """Write the testaments of new deaths, of all or these golems, and rewrite those that a retraction touches."""
    return _RowsOfDeaths("testaments", ("curation",), _testaments, golems).update(context)


def derive_candidates(context: DerivationContext) -> list[Written]:
    """Make the candidate bundles of new deaths and remake those that a retraction touches.

    A candidate that was made before a retraction keeps its files.
    """
    return _RowsOfDeaths("candidates", BEFORE_CANDIDATES, make_candidates).update(context)


def with_lives(context: DerivationContext, deaths: pa.Table) -> pa.Table:
    """Add generation, lineage_id, cause, tick and is_record_left_out to a table of deaths."""
    names = deaths["golem_id"].to_pylist()
    births, died = birth_rows(context, names), values_by_golem(context.life("DeathDeclared", names), "died")
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


def _unwritten(
    context: DerivationContext, name: str, sources: tuple[str, ...], golems: Collection[str] | None
) -> pa.Table:
    """Return the deaths of all golems, or of these, that lack a row but have a last cycle in all sources; add lives."""
    table, deaths = context.projections.growing(name), recorded_deaths(context)
    if golems is not None:
        deaths = rows_of_golems(deaths, golems)

    def is_in(source: str, golem_id: str, cycle: int) -> bool:
        is_curation, growing = source == "curation", context.projections.growing
        done = curated_through(context, golem_id) if is_curation else growing(source).done(golem_id)
        return done is not None and done >= cycle

    is_ready = [
        table.done(golem_id) is None and all(is_in(source, golem_id, cycle) for source in sources)
        for golem_id, cycle in zip(deaths["golem_id"].to_pylist(), deaths["cycle"].to_pylist(), strict=True)
    ]
    return with_lives(context, deaths.filter(pa.array(is_ready, pa.bool_())))


def _testaments(context: DerivationContext, deaths: pa.Table) -> pa.Table:
    parts = [TESTAMENT_SCHEMA.empty_table()]
    for batch in in_batches(context, deaths):
        decisions = context.projections.growing("curation").read(golems=batch["golem_id"].to_pylist())
        parts.append(testaments(entries_of(context, batch), decisions, batch, context.policy))
    return pa.concat_tables(parts)
