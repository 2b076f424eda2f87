"""The update of a projection: handle pending retractions, then append new rows.

A projection declares its name, the consumers whose tables it reads, and how its rows are derived. Checkpoint, order of
retractions, corrections and bookkeeping are done here. A crash at any point is repaired by the next update: rows are
appended once by (golem, cycle), and a retraction counts as handled only after its corrections are written.

Source: architecture ("Projections").
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.checkpoints import checkpoint_of
from bardo_pipeline.derivation.incremental.cycle_reader import CycleBatch, CycleReader
from bardo_pipeline.derivation.incremental.record_queries import curated_through
from bardo_pipeline.derivation.incremental.retraction_tracking import (
    RetractionCursor,
    first_touched_cycles,
    is_from_cycle,
    retraction_event_ids,
)
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
        return first_touched_cycles(self.causes, self.cycle_ticks)

    def touched_rows(self, table: GrowingTable, first: Mapping[str, int]) -> pa.Table:
        """Read each golem's standing rows from its first cycle on, with the hidden columns that `correct` needs."""
        rows = table.read(golems=first, only=pc.field("cycle") >= min(first.values()), hidden=True)
        return rows.filter(is_from_cycle(rows, first))

    def correct(self, table: GrowingTable, standing: pa.Table, wanted: pa.Table) -> Written:
        """Retract the standing rows that are not wanted, and append the wanted rows that are missing."""
        return table.repair(standing, wanted, retraction_event_ids(standing, self.causes, self.cycle_ticks))


@contextmanager
def pending_retraction(context: DerivationContext, consumer: str, after: tuple[str, ...] = ()) -> Iterator[Retraction]:
    """Yield the retraction that a consumer has to handle; mark it as handled if the block succeeds."""
    cursor, left_out = RetractionCursor(context, consumer), context.left_out()
    causes = cursor.pending(left_out, after)
    yield Retraction(causes, left_out, context.policy.curator.cycle_ticks)
    cursor.mark_handled(cause.event_id for cause in causes)


class IncrementalProjection(ABC):
    """A projection whose update costs only as much as its new input.

    name: its consumer name, by default that of its table. after: consumers that handle a retraction before it does.
    """

    name: str
    after: tuple[str, ...] = ()

    def update(self, context: DerivationContext) -> list[Written]:
        """Bring the tables up to date, and return what was written."""
        with context.deriving():
            with pending_retraction(context, self.name, self.after) as retraction:
                written = self.retract(context, retraction) if retraction.causes else []
            return written + self.extend(context, retraction.left_out)

    @abstractmethod
    def retract(self, context: DerivationContext, retraction: Retraction) -> list[Written]:
        """Derive the touched golems again."""

    @abstractmethod
    def extend(self, context: DerivationContext, left_out: LeftOut) -> list[Written]:
        """Derive the rows of new input."""


class CycleProjection(IncrementalProjection):
    """A growing table with rows by (golem, cycle), derived from the records of closed cycles.

    With "curation" in `after`, a closed cycle waits until it is curated.
    columns: of the records that it reads. caches: checkpoints whose rows are stale after a retraction.
    in_batches: whether a long log is read and committed in batches.
    """

    columns: tuple[str, ...]
    caches: tuple[str, ...] = ()
    in_batches: bool = False

    @abstractmethod
    def rows(self, context: DerivationContext, batch: CycleBatch, left_out: LeftOut) -> pa.Table:
        """Return the rows of newly closed cycles."""

    def rows_again(
        self, context: DerivationContext, first: Mapping[str, int], upto: Mapping[str, int], left_out: LeftOut
    ) -> pa.Table:
        """Return the rows of each golem's cycles `first` to `upto`, without retracted records."""
        raise NotImplementedError

    def retract(self, context: DerivationContext, retraction: Retraction) -> list[Written]:
        """Derive each touched golem again from its first touched cycle to the last cycle in the table."""
        for cache in self.caches:
            checkpoint_of(context, cache).remove()
        table = context.projections.growing(self.name)
        touched = {golem_id: max(cycle, 1) for golem_id, cycle in retraction.first.items()}
        upto = {g: done for g, cycle in touched.items() if (done := table.done(g)) is not None and done >= cycle}
        if not upto:
            return []
        first = {golem_id: touched[golem_id] for golem_id in upto}
        standing = retraction.touched_rows(table, first)
        return [retraction.correct(table, standing, self.rows_again(context, first, upto, retraction.left_out))]

    def extend(self, context: DerivationContext, left_out: LeftOut) -> list[Written]:
        """Append the rows of newly closed cycles, and advance the checkpoint."""
        table, written = context.projections.growing(self.name), []
        reader = CycleReader(context, self.name, self.columns, left_out)
        until = partial(curated_through, context) if "curation" in self.after else None
        batches = reader.batches(table.done)[1] if self.in_batches else iter([reader.next_batch(table.done, until)])
        for batch in batches:
            if batch.upto:
                written.append(table.append(self.rows(context, batch, left_out), batch.upto))
        reader.advance(batch)
        return written
