"""The update of a projection. Each derived table is declared as one of three kinds:

- IncrementalProjection: a growing table; pending retractions are handled, then new rows are appended.
- CycleProjection: the same from the records of closed cycles; a RederivedProjection derives touched cycles again.
- RecomputedProjection: a replaceable table, recomputed whole for the keys whose sources changed.

A projection declares its name, its sources and how its rows are derived; `table_specs.py` declares its key. A crash at
any point is repaired by the next update: rows are appended once by (golem, cycle), and a retraction counts as handled
only after its corrections are written.
Source: architecture ("Projections").
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental import retraction_tracking as tracking
from bardo_pipeline.derivation.incremental.checkpoints import checkpoint_of
from bardo_pipeline.derivation.incremental.cycle_reader import CycleBatch, CycleReader
from bardo_pipeline.derivation.incremental.record_queries import curated_through
from bardo_pipeline.events.life.retractions import Cause, LeftOut
from bardo_pipeline.storage.delta.table_digest import Written
from bardo_pipeline.storage.projections.projections import GrowingTable


@dataclass(frozen=True)
class Retraction:
    """The retractions that a consumer has to handle. left_out: all retractions of the log, handled or not."""

    causes: tuple[Cause, ...]
    left_out: LeftOut
    cycle_ticks: int

    @cached_property
    def first(self) -> dict[str, int]:
        """Each touched golem's first touched cycle; 0 is its birth."""
        return tracking.first_touched_cycles(self.causes, self.cycle_ticks)

    def touched_rows(self, table: GrowingTable, first: Mapping[str, int]) -> pa.Table:
        """Read each golem's standing rows from its first cycle on, with the hidden columns that `correct` needs."""
        rows = table.read(golems=first, only=pc.field("cycle") >= min(first.values()), hidden=True)
        return rows.filter(tracking.is_from_cycle(rows, first))

    def correct(self, table: GrowingTable, standing: pa.Table, wanted: pa.Table) -> Written:
        """Retract the standing rows that are not wanted, and append the wanted rows that are missing."""
        return table.repair(standing, wanted, tracking.retraction_event_ids(standing, self.causes, self.cycle_ticks))


class Projection(ABC):
    """A derived table or several.

    by_golem: whether each row depends on one golem, so that a hash bucket of golems can be derived alone.
    """

    by_golem: bool = False

    def update(self, context: DerivationContext) -> list[Written]:
        """Bring the tables up to date, bucket by bucket if the golems are divided, and return what was written."""
        assert self.by_golem or context.bucket is None, "a table across golems is derived for all golems"
        with context.deriving():
            parts = context.by_bucket() if self.by_golem else [context]
            return [written for part in parts for written in self.write(part)]

    @abstractmethod
    def write(self, context: DerivationContext) -> list[Written]:
        """Bring the rows of the context's golems up to date."""


class IncrementalProjection(Projection):
    """A projection whose update costs only as much as its new input.

    name: its table, and its name as a consumer. sources: other projections that it reads, which handle a retraction
    before it does.
    """

    name: str
    sources: tuple[str, ...] = ()

    def write(self, context: DerivationContext) -> list[Written]:
        """Handle the pending retractions, then derive the rows of new input."""
        cursor, left_out = tracking.RetractionCursor(context, self.name), context.left_out()
        causes, written = cursor.pending(left_out, self.sources), list[Written]()
        if causes:
            written = self.retract(context, Retraction(causes, left_out, context.policy.curator.cycle_ticks))
            cursor.mark_handled(cause.event_id for cause in causes)
        return written + self.derive(context, left_out)

    @abstractmethod
    def derive(self, context: DerivationContext, left_out: LeftOut) -> list[Written]:
        """Derive the rows of new input."""

    @abstractmethod
    def retract(self, context: DerivationContext, retraction: Retraction) -> list[Written]:
        """Derive the touched golems again."""


class CycleProjection(IncrementalProjection):
    """A growing table with rows by (golem, cycle), derived from the records of closed cycles.

    With "curation" among its sources, a closed cycle waits until it is curated.
    columns: of the records that it reads. in_batches: whether a long log is read and committed in batches.
    """

    by_golem = True
    columns: tuple[str, ...]
    in_batches: bool = False

    @abstractmethod
    def rows(self, context: DerivationContext, batch: CycleBatch, left_out: LeftOut) -> pa.Table:
        """Return the rows of newly closed cycles."""

    def derive(self, context: DerivationContext, left_out: LeftOut) -> list[Written]:
        """Append the rows of newly closed cycles, and advance the checkpoint."""
        table, written = context.projections.growing(self.name), []
        reader = CycleReader(context, self.name, self.columns, left_out)
        until = partial(curated_through, context) if "curation" in self.sources else None
        batches = reader.batches(table.done)[1] if self.in_batches else iter([reader.next_batch(table.done, until)])
        for batch in batches:
            if batch.upto:
                written.append(table.append(self.rows(context, batch, left_out), batch.upto))
        reader.advance(batch)
        return written


class RederivedProjection(CycleProjection):
    """Derives the touched cycles again after a retraction. caches: checkpoints that the retraction makes stale."""

    caches: tuple[str, ...] = ()

    @abstractmethod
    def rows_again(
        self, context: DerivationContext, first: Mapping[str, int], upto: Mapping[str, int], left_out: LeftOut
    ) -> pa.Table:
        """Return the rows of each golem's cycles `first` to `upto`, without retracted records."""

    def retract(self, context: DerivationContext, retraction: Retraction) -> list[Written]:
        """Derive each touched golem again from its first touched cycle to the last cycle in the table."""
        for cache in self.caches:
            checkpoint_of(context, cache).remove()
        table = context.projections.growing(self.name)
        touched = {golem_id: max(cycle, 1) for golem_id, cycle in retraction.first.items()}
        upto = {g: done for g, cycle in touched.items() if (done := table.done(g) or 0) >= cycle}
        if not upto:
            return []
        first = {golem_id: touched[golem_id] for golem_id in upto}
        rows = retraction.touched_rows(table, first)
        return [retraction.correct(table, rows, self.rows_again(context, first, upto, retraction.left_out))]


class RecomputedProjection(Projection):
    """A replaceable table, recomputed whole for each key (owner, golem, proposition) with changed sources.

    A retraction changes the sources, so it is not handled separately.
    """
