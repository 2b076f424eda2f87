"""The reader of cycles: the records of newly closed ones, at the cost of what is new.

What has come but is not closed yet waits in a small file beside the reader's position in the log. A long log is read in
portions that have some cycles of every golem, since passes take a cycle of every golem at a time.
Source: architecture ("Time and order").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.checkpoints import checkpoint_of
from bardo_pipeline.derivation.incremental.record_queries import closed_through, cycle_of, deduplicated
from bardo_pipeline.derivation.incremental.retraction_tracking import without_retracted
from bardo_pipeline.events.life.retractions import LeftOut
from bardo_pipeline.storage.delta.append_only_table import Part

_AS_WIDE = 0.8
"""A portion is handed over when its cycles stand side by side in at least this share of the golems of the whole."""


@dataclass(frozen=True)
class CycleBatch:
    """Records of closed cycles that were not derived yet, the cycle of each, and how far each golem gets with them."""

    records: pa.Table
    cycle: np.ndarray
    upto: dict[str, int]
    version: int
    waiting: pa.Table


class CycleReader:
    """One consumer's place in the log: `fresh` gives what is new, `advance` keeps that it was derived.

    left: what counts as never having been; its ticks close cycles like any others, but their records are not given.
    ordered: whether they are given by golem and tick, or as they come, which spares putting them in order.
    """

    def __init__(
        self, context: DerivationContext, name: str, columns: tuple[str, ...], left: LeftOut, *, ordered: bool = True
    ) -> None:
        self._context, self._columns, self._left, self._ordered = context, list(columns), left, ordered
        self._checkpoint = checkpoint_of(context, name)
        self._span = context.policy.curator.cycle_ticks

    def fresh(self, done: Callable[[str], int | None], until: Callable[[str], int | None] | None = None) -> CycleBatch:
        """Everything closed and not done yet. done: golem to the last cycle that is derived, None before the first.

        until: golem to the last cycle that may be derived, for a consumer that waits for another; the rest waits.
        What is closed is asked before records are read: what a writer adds meanwhile waits for the next time.
        """
        closed = closed_through(self._context)
        if until is not None:
            closed = {g: min(last, until(g) or 0) for g, last in closed.items()}
        version, waiting, news = self._parts()
        return self._all(self._held([*waiting, *(part.rows for part in news)]), done, closed, version)

    def portions(self, done: Callable[[str], int | None]) -> tuple[dict[str, int], Iterator[CycleBatch]]:
        """How far each golem gets with everything closed and not done yet; and that, in portions, one at least.

        A portion has the next cycles of every golem, and what waits behind it. What lies golem by golem in the log, as
        after a compaction, comes whole: each pass over a few golems costs nearly what it costs over all.
        """
        closed = closed_through(self._context)
        version, waiting, news = self._parts()
        first = next(news, None)
        if first is None or first.is_last:
            fresh = self._all(self._held([*waiting, *([] if first is None else [first.rows])]), done, closed, version)
            return fresh.upto, iter([fresh])
        past = {g: done(g) or 0 for g in closed}
        upto = {g: last for g, last in sorted(closed.items()) if last > past[g]}
        return upto, self._cut_up(waiting, chain([first], news), past, closed, version)

    def advance(self, fresh: CycleBatch) -> None:
        """Keep the place, and what waits."""
        self._checkpoint.save(fresh.version, waiting=fresh.waiting)

    def _parts(self) -> tuple[int, list[pa.Table], Iterator[Part]]:
        """The log's version, what waits, and what came since in parts."""
        saved, now = self._checkpoint.load("waiting"), self._context.source.version
        if saved is None:
            return now, [], self._context.source.cycles_in_parts(self._columns)
        since = saved.version
        news = self._context.source.cycles_in_parts(self._columns, since) if now > since else iter(())
        return now, [saved.rows], news

    def _all(
        self, held: _Held, done: Callable[[str], int | None], closed: Mapping[str, int], version: int
    ) -> CycleBatch:
        lost = self._context.life("GapAccepted")["golem_id"].to_pylist()  # a lost cycle closes without rows
        return self._cut(held, {g: done(g) or 0 for g in {*held.golems, *lost}}, closed, version)

    def _cut_up(
        self,
        rows: list[pa.Table],
        parts: Iterator[Part],
        past: dict[str, int],
        closed: Mapping[str, int],
        version: int,
    ) -> Iterator[CycleBatch]:
        width, tried = _width(past, closed), 0
        for part in parts:
            rows = [*rows, part.rows]
            if not part.is_last and sum(held.num_rows for held in rows) < 2 * tried:  # what grew little is as narrow
                continue
            held = self._held(rows)
            through = closed if part.is_last else self._whole(held, past, closed)
            left = held.rows
            if part.is_last or _width(past, through) >= _AS_WIDE * width:
                fresh = self._cut(held, past, through, version)
                past, left = past | fresh.upto, fresh.waiting
                yield fresh
            rows, tried = [left], left.num_rows

    def _held(self, parts: Sequence[pa.Table]) -> _Held:
        some = [part for part in parts if part.num_rows]
        rows = some[0] if len(some) == 1 else pa.concat_tables(some or parts)
        rows, golems, codes = deduplicated(rows, ordered=self._ordered)
        if any(column.num_chunks > 1 for column in rows.columns):
            rows = rows.combine_chunks()  # every column of theirs is looked at more than once
        cycle = cycle_of(rows["tick"].to_numpy(), self._span) if rows.num_rows else np.zeros(0, np.int64)
        return _Held(rows, golems, codes, cycle)

    def _whole(self, held: _Held, past: Mapping[str, int], closed: Mapping[str, int]) -> dict[str, int]:
        """How far each golem gets with what has come so far, whatever else may come.

        A cycle is whole when it has all its ticks; one that death cut short, or of which ticks are lost, waits for the
        end, and so does what follows it.
        """
        key, count = np.unique((held.codes.astype(np.int64) << 32) | held.cycle, return_counts=True)
        owner, cycle, floor = key >> 32, key & 0xFFFFFFFF, held.each(past)
        later = cycle > floor[owner]
        owner, cycle, count = owner[later], cycle[later], count[later]
        first = np.searchsorted(owner, np.arange(len(held.golems)))
        next_one = floor[owner] + 1 + np.arange(len(owner)) - first[owner]
        whole = np.r_[(count == self._span) & (cycle == next_one), False]
        broken = np.flatnonzero(~whole)
        run = broken[np.searchsorted(broken, first)] - first
        stop = np.r_[first[1:], len(owner)] - first
        gets = floor + np.minimum(run, stop)
        return {g: min(last, closed.get(g, 0)) for g, last in zip(held.golems, gets.tolist(), strict=True)}

    def _cut(self, held: _Held, past: Mapping[str, int], through: Mapping[str, int], version: int) -> CycleBatch:
        """The records of cycles after these and up to those; what comes later waits."""
        limit = held.each(through)[held.codes]
        ready, kept = (held.cycle > held.each(past)[held.codes]) & (held.cycle <= limit), held.cycle > limit
        upto = {g: through[g] for g in sorted(past) if through.get(g, 0) > past[g]}
        records = without_retracted(held.rows if ready.all() else held.rows.filter(pa.array(ready)), self._left)
        closing = cycle_of(records["tick"].to_numpy(), self._span)
        return CycleBatch(records, closing, upto, version, held.rows.filter(pa.array(kept)))


@dataclass(frozen=True)
class _Held:
    """Records once each, the ids of their golems, and the golem (its place among them) and cycle of each record."""

    rows: pa.Table
    golems: list[str]
    codes: np.ndarray
    cycle: np.ndarray

    def each(self, of: Mapping[str, int]) -> np.ndarray:
        """What is said of each golem, 0 where nothing is. int64 [golems]."""
        return np.array([of.get(g, 0) for g in self.golems], np.int64)


def _width(past: Mapping[str, int], through: Mapping[str, int]) -> float:
    """How many golems stand side by side, in the mean, where the k-th cycles of all are taken together."""
    cycles = [max(through.get(g, 0) - last, 0) for g, last in past.items()]
    return sum(cycles) / max(max(cycles, default=0), 1)
