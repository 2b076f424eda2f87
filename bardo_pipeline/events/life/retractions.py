"""Left out: what of the log counts as never having been: struck records, reorged ones, withdrawn knowledge. Pure.

A set of life events decides it, in whatever order they came; an event that says again what is known changes nothing.
Source: canon 20, EV-8, X-4.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

WITHDRAWALS = ("RecordStruck", "ReorgObserved", "KnowledgeWithdrawn")
"""Kinds of life events that leave something out."""

_NEVER = datetime.min.replace(tzinfo=UTC)
_TICK_BITS = 40
_TICK_LAST = 2**_TICK_BITS - 1

Ticks = NDArray[np.int64]
Bounds = tuple[tuple[int, int], ...]


class Cause(NamedTuple):
    """One event that leaves something out: records of ticks (tick_from 0: none), or inherited entries.

    root: of withdrawn entries, whose tick they came from, in words.
    """

    golem_id: str
    at: datetime
    event_id: str
    kind: str
    tick_from: int
    tick_to: int
    entry_ids: tuple[str, ...]
    root: str = ""

    def cycle(self, cycle_ticks: int) -> int:
        """The first cycle that it touches; 0 is birth."""
        return (self.tick_from - 1) // cycle_ticks + 1 if self.tick_from else 0

    @property
    def said(self) -> str:
        """What is left out, in a few words."""
        if self.entry_ids:
            return f"{len(self.entry_ids)} inherited entries, from {self.root}"
        more = f" to {self.tick_to}" if self.tick_to > self.tick_from else ""
        return f"tick {self.tick_from}{more} {'reorged' if self.kind == 'ReorgObserved' else 'struck'}"


class _Golem(NamedTuple):
    """What is left out of one golem's stream: runs of ticks, ascending and apart, and inherited entries."""

    ticks: Bounds
    entry_ids: frozenset[str]


class _Runs(NamedTuple):
    """All golems' runs of ticks as packed keys, ascending; counted: ticks before each run, over all golems."""

    first: Ticks
    last: Ticks
    counted: Ticks


@dataclass(frozen=True)
class LeftOut:
    """What counts as never having been, by golem. causes: by golem, moment and id."""

    causes: tuple[Cause, ...] = ()

    @classmethod
    def of(cls, events: pa.Table) -> LeftOut:
        """From life events (LIFE_SCHEMA); events of other kinds do no harm."""
        told = events.filter(pc.is_in(events["kind"], value_set=pa.array(WITHDRAWALS)))
        names = ["golem_id", "observed_at", "event_id", "kind", "struck", "reorg", "withdrawn"]
        return cls(tuple(sorted({_cause(row) for row in told.select(names).to_pylist()})))

    @cached_property
    def _golems(self) -> dict[str, _Golem]:
        ticks: dict[str, list[tuple[int, int]]] = defaultdict(list)
        entries: dict[str, set[str]] = defaultdict(set)
        for cause in self.causes:
            if 0 < cause.tick_from <= _TICK_LAST:
                ticks[cause.golem_id].append((cause.tick_from, min(cause.tick_to, _TICK_LAST)))
            entries[cause.golem_id].update(cause.entry_ids)
        return {g: _Golem(_merged(ticks[g]), frozenset(entries[g])) for g in sorted(entries)}

    @property
    def golem_ids(self) -> list[str]:
        """Golems of whose streams something is left out, by id."""
        return list(self._golems)

    def of_golem(self, golem_id: str) -> tuple[Bounds, frozenset[str]]:
        """Runs of ticks (first and last) and ids of inherited entries that are left out of a golem's stream."""
        return self._golems.get(golem_id, _Golem((), frozenset()))

    def entries(self, golem_id: str) -> frozenset[str]:
        """Ids of the inherited entries that were withdrawn from a golem."""
        return self.of_golem(golem_id)[1]

    def listing(self, golem_id: str) -> dict[str, Any] | None:
        """What is left out of a golem's stream as a JSON object (`listed` reads it), None where nothing is."""
        ticks, entry_ids = self.of_golem(golem_id)
        return {"ticks": [list(run) for run in ticks], "entry_ids": sorted(entry_ids)} if ticks or entry_ids else None

    @classmethod
    def listed(cls, golem_id: str, listing: Mapping[str, Any] | None) -> LeftOut:
        """What such an object says; its causes have no event."""
        said = listing or {"ticks": [], "entry_ids": []}
        runs = [(first, last, ()) for first, last in said["ticks"]] + [(0, 0, tuple(said["entry_ids"]))]
        return cls(tuple(Cause(golem_id, _NEVER, "", "", *run) for run in runs))

    def only(self, causes: Iterable[Cause]) -> LeftOut:
        """What these of the causes leave out."""
        chosen = set(causes)
        return LeftOut(tuple(cause for cause in self.causes if cause in chosen))

    def records(self, golem_ids: pa.ChunkedArray | pa.Array, ticks: Ticks) -> NDArray[np.bool_]:
        """Which records (golem and tick) count as never having been."""
        runs = self._runs
        if not len(runs.first):
            return np.zeros(len(ticks), np.bool_)
        rank, ticks = self._ranks(golem_ids), np.asarray(ticks, np.int64)
        key = (rank << _TICK_BITS) | np.minimum(ticks, _TICK_LAST)
        place = np.searchsorted(runs.first, key, side="right") - 1
        return (rank >= 0) & (ticks <= _TICK_LAST) & (place >= 0) & (key <= runs.last[np.maximum(place, 0)])

    def revision(self, golem_ids: pa.ChunkedArray | pa.Array, cycles: Ticks, cycle_ticks: int) -> Ticks:
        """How much is left out of what rests on these golems' streams up to the end of these cycles.

        Counts the golem's left-out ticks up to there and its withdrawn entries: 0 where nothing is. It only rises, and
        rises with everything that is left out, so that it tells what was derived with it from what was not.
        """
        rank = self._ranks(golem_ids)
        if not self._golems:
            return np.zeros(len(rank), np.int64)
        withdrawn = np.array([len(golem.entry_ids) for golem in self._golems.values()], np.int64)[rank]
        runs, key = self._runs, (rank << _TICK_BITS) | np.minimum(np.asarray(cycles) * cycle_ticks, _TICK_LAST)
        first, stop = (np.searchsorted(runs.first, k, side="right") for k in (rank << _TICK_BITS, key))
        beyond = np.zeros(len(rank), np.int64)
        begun = stop > first
        beyond[begun] = np.maximum(runs.last[stop[begun] - 1] - key[begun], 0)
        return np.where(rank >= 0, runs.counted[stop] - runs.counted[first] - beyond + withdrawn, 0)

    @cached_property
    def _runs(self) -> _Runs:
        packed = [
            ((rank << _TICK_BITS) | first, (rank << _TICK_BITS) | last)
            for rank, golem in enumerate(self._golems.values())
            for first, last in golem.ticks
        ]
        counted = accumulate((last - first + 1 for first, last in packed), initial=0)
        first, last = np.array(packed, np.int64).reshape(-1, 2).T
        return _Runs(first, last, np.array(list(counted), np.int64))

    def _ranks(self, golem_ids: pa.ChunkedArray | pa.Array) -> Ticks:
        """The place of each row's golem among those of whom something is left out, -1 for the others."""
        place = pc.index_in(golem_ids, value_set=pa.array(self.golem_ids, pa.string()))
        found: Ticks = pc.fill_null(place, -1).to_numpy(zero_copy_only=False).astype(np.int64)
        return found


def _cause(row: Mapping[str, Any]) -> Cause:
    first = last = 0
    if row["struck"]:
        first = last = row["struck"]["tick"]
    elif row["reorg"]:
        first, last = row["reorg"]["tick_from"], row["reorg"]["tick_to"]
    entry_ids: tuple[str, ...] = ()
    root = ""
    if row["withdrawn"]:
        entry_ids = tuple(sorted(row["withdrawn"]["entry_ids"]))
        root = f"tick {row['withdrawn']['tick']} of {row['withdrawn']['from_golem_id']}"
    return Cause(row["golem_id"], row["observed_at"], row["event_id"], row["kind"], first, last, entry_ids, root)


def _merged(runs: Sequence[tuple[int, int]]) -> Bounds:
    out: list[tuple[int, int]] = []
    for first, last in sorted(runs):
        if out and first <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(out[-1][1], last))
        else:
            out.append((first, last))
    return tuple(out)
