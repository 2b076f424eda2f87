"""The reader of closed cycles: the records of cycles that closed since a consumer last read.

Records of open cycles are saved with the consumer's checkpoint, so each record is read from the log once. A long log
comes in batches that hold some cycles of every golem, because a pass handles one cycle of all golems at a time.

Source: architecture ("Time and order").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.checkpoints import checkpoint_of
from bardo_pipeline.derivation.incremental.record_queries import closed_through, cycle_of, deduplicated, rows_derived
from bardo_pipeline.derivation.incremental.retraction_tracking import without_retracted
from bardo_pipeline.events.life.retractions import LeftOut
from bardo_pipeline.storage.delta.append_only_table import Part

_WIDTH_SHARE_MIN = 0.8
"""Minimum width (see `_width`) of a batch, as a share of the width of all pending records."""


@dataclass(frozen=True)
class CycleBatch:
    """Records of closed cycles that are not derived yet.

    cycle: of each record. upto: each advancing golem's last cycle in the batch. version: of the log when it was read.
    waiting: records of later cycles, which the next batch begins with.
    """

    records: pa.Table
    cycle: Int64Array
    upto: dict[str, int]
    version: int
    waiting: pa.Table


class CycleReader:
    """Reads the new records of one consumer.

    Parameters
    ----------
    left_out : retractions; a retracted record counts towards the end of its cycle but is not returned
    ordered : whether records come by golem and tick; False keeps the log's order, which saves the sorting
    """

    def __init__(
        self,
        context: DerivationContext,
        name: str,
        columns: tuple[str, ...],
        left_out: LeftOut,
        *,
        ordered: bool = True,
    ) -> None:
        self._context, self._columns, self._left_out, self._ordered = context, list(columns), left_out, ordered
        self._checkpoint = checkpoint_of(context, name)
        self._cycle_ticks = context.policy.curator.cycle_ticks

    def next_batch(
        self, done: Callable[[str], int | None], until: Callable[[str], int | None] | None = None
    ) -> CycleBatch:
        """Return the records of all closed cycles that are not derived.

        The closed cycles are determined before records are read, so records written meanwhile wait for the next batch.

        Parameters
        ----------
        done : gives a golem's last derived cycle, None before the first
        until : gives the last cycle that may be derived, for a consumer that waits for another one
        """
        closed = closed_through(self._context)
        if until is not None:
            closed = {g: min(last, until(g) or 0) for g, last in closed.items()}
        version, waiting, parts = self._read_parts()
        return self._whole_batch(self._hold([*waiting, *(part.rows for part in parts)]), done, closed, version)

    def batches(self, done: Callable[[str], int | None]) -> tuple[dict[str, int], Iterator[CycleBatch]]:
        """Return each golem's last cycle after all closed cycles, and their records in one or more batches.

        Each batch has the next cycles of every golem. A log that is ordered by golem, as after a compaction, comes as
        one batch, because a pass over a few golems costs almost as much as a pass over all.
        """
        closed = closed_through(self._context)
        version, waiting, parts = self._read_parts()
        first = next(parts, None)
        if first is None or first.is_last:
            held = self._hold([*waiting, *([] if first is None else [first.rows])])
            batch = self._whole_batch(held, done, closed, version)
            return batch.upto, iter([batch])
        past = {g: done(g) or 0 for g in closed}
        upto = {g: last for g, last in sorted(closed.items()) if last > past[g]}
        return upto, self._split(waiting, chain([first], parts), past, closed, version)

    def advance(self, batch: CycleBatch) -> None:
        """Save the checkpoint after a batch, with the records that wait."""
        self._checkpoint.save(batch.version, waiting=batch.waiting)

    def add_waiting(self, records: pa.Table) -> None:
        """Save records of closed cycles with the checkpoint, so that the next batch begins with them."""
        if (saved := self._checkpoint.load("waiting")) is not None:
            waiting = pa.concat_tables([part.select(self._columns) for part in (saved.rows, records)])
            self._checkpoint.save(saved.version, waiting=waiting)

    def _read_parts(self) -> tuple[int, list[pa.Table], Iterator[Part]]:
        """Return the log's version, the waiting records, and the new records in parts."""
        saved, version = self._checkpoint.load("waiting"), self._context.source.version
        waiting = [] if saved is None else [saved.rows.select(self._columns)]  # an earlier version saved more columns
        if saved is not None and version <= saved.version:
            return version, waiting, iter(())
        parts = self._context.source.cycles_in_parts(self._columns, None if saved is None else saved.version)
        return version, waiting, (part._replace(rows=rows_derived(self._context, part.rows)) for part in parts)

    def _whole_batch(
        self, held: _HeldRecords, done: Callable[[str], int | None], closed: Mapping[str, int], version: int
    ) -> CycleBatch:
        gap_golems = self._context.life("GapAccepted")["golem_id"].to_pylist()  # a lost cycle closes without records
        return self._cut(held, {g: done(g) or 0 for g in {*held.golems, *gap_golems}}, closed, version)

    def _split(
        self, rows: list[pa.Table], parts: Iterator[Part], past: dict[str, int], closed: Mapping[str, int], version: int
    ) -> Iterator[CycleBatch]:
        """Yield a batch when the parts read so far hold enough cycles for one."""
        width, tried = _width(past, closed), 0
        for part in parts:
            rows = [*rows, part.rows]
            if not part.is_last and sum(table.num_rows for table in rows) < 2 * tried:  # too few new rows to be wider
                continue
            held = self._hold(rows)
            through = closed if part.is_last else self._complete_through(held, past, closed)
            waiting = held.rows
            if part.is_last or _width(past, through) >= _WIDTH_SHARE_MIN * width:
                batch = self._cut(held, past, through, version)
                past, waiting = past | batch.upto, batch.waiting
                yield batch
            rows, tried = [waiting], waiting.num_rows

    def _hold(self, parts: Sequence[pa.Table]) -> _HeldRecords:
        filled = [part for part in parts if part.num_rows]
        rows = filled[0] if len(filled) == 1 else pa.concat_tables(filled or parts)
        rows, golems, codes = deduplicated(rows, ordered=self._ordered)
        if any(column.num_chunks > 1 for column in rows.columns):
            rows = rows.combine_chunks()  # each column is read several times
        cycle = cycle_of(rows["tick"].to_numpy(), self._cycle_ticks) if rows.num_rows else np.zeros(0, np.int64)
        return _HeldRecords(rows, golems, codes, cycle)

    def _complete_through(
        self, held: _HeldRecords, past: Mapping[str, int], closed: Mapping[str, int]
    ) -> dict[str, int]:
        """Return each golem's last cycle up to which all ticks are held.

        A cycle that death cut short or that lost ticks waits for the last part, with all cycles after it.
        """
        key, count = np.unique((held.codes.astype(np.int64) << 32) | held.cycle, return_counts=True)
        owner, cycle, floor = key >> 32, key & 0xFFFFFFFF, held.values(past)
        is_later = cycle > floor[owner]
        owner, cycle, count = owner[is_later], cycle[is_later], count[is_later]
        first = np.searchsorted(owner, np.arange(len(held.golems)))
        expected = floor[owner] + 1 + np.arange(len(owner)) - first[owner]
        is_complete = np.r_[(count == self._cycle_ticks) & (cycle == expected), False]
        incomplete = np.flatnonzero(~is_complete)
        run = incomplete[np.searchsorted(incomplete, first)] - first
        stop = np.r_[first[1:], len(owner)] - first
        through = floor + np.minimum(run, stop)
        return {g: min(last, closed.get(g, 0)) for g, last in zip(held.golems, through.tolist(), strict=True)}

    def _cut(self, held: _HeldRecords, past: Mapping[str, int], through: Mapping[str, int], version: int) -> CycleBatch:
        """Return the batch of cycles after `past` up to `through`; later records wait."""
        limit = held.values(through)[held.codes]
        is_closed, waits = (held.cycle > held.values(past)[held.codes]) & (held.cycle <= limit), held.cycle > limit
        upto = {g: through[g] for g in sorted(past) if through.get(g, 0) > past[g]}
        records = held.rows if is_closed.all() else held.rows.filter(pa.array(is_closed))
        records = without_retracted(records, self._left_out)
        cycle = cycle_of(records["tick"].to_numpy(), self._cycle_ticks)
        return CycleBatch(records, cycle, upto, version, held.rows.filter(pa.array(waits)))


@dataclass(frozen=True)
class _HeldRecords:
    """Deduplicated records, their golems' ids, and for each record the golem's place among them and the cycle."""

    rows: pa.Table
    golems: list[str]
    codes: Int64Array
    cycle: Int64Array

    def values(self, by_golem: Mapping[str, int]) -> Int64Array:
        """Return the value of each golem, 0 without one."""
        return np.array([by_golem.get(g, 0) for g in self.golems], np.int64)


def _width(past: Mapping[str, int], through: Mapping[str, int]) -> float:
    """Return how many golems share a step on average, if step k takes the k-th pending cycle of every golem."""
    cycles = [max(through.get(g, 0) - last, 0) for g, last in past.items()]
    return sum(cycles) / max(max(cycles, default=0), 1)
