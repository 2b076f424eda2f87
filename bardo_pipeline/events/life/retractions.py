"""Retractions: struck records, reorged records and withdrawn knowledge, which derivations exclude. Pure.

The result depends on the set of life events; order and repetition do not matter.
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

from bardo_pipeline.events.record.arrow_columns import codes_of

WITHDRAWALS = ("RecordStruck", "ReorgObserved", "KnowledgeWithdrawn")
"""Kinds of life events that retract records or entries."""

_NEVER = datetime.min.replace(tzinfo=UTC)
_TICK_BITS = 40
_TICK_LAST = 2**_TICK_BITS - 1

Ticks = NDArray[np.int64]
Bounds = tuple[tuple[int, int], ...]


class Cause(NamedTuple):
    """An event that retracts records of ticks (tick_from 0: none) or inherited entries.

    root: for entries, a description of the record from which they derive.
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
        """Return the first affected cycle; 0 is birth."""
        return (self.tick_from - 1) // cycle_ticks + 1 if self.tick_from else 0

    @property
    def summary(self) -> str:
        """Short description of the retraction."""
        if self.entry_ids:
            return f"{len(self.entry_ids)} inherited entries, from {self.root}"
        more = f" to {self.tick_to}" if self.tick_to > self.tick_from else ""
        return f"tick {self.tick_from}{more} {'reorged' if self.kind == 'ReorgObserved' else 'struck'}"


class _Runs(NamedTuple):
    """Runs of ticks of all golems as ascending packed keys. counted: number of ticks before each run."""

    first: Ticks
    last: Ticks
    counted: Ticks


@dataclass(frozen=True)
class LeftOut:
    """Retracted records and entries by golem. causes: by golem, time and id."""

    causes: tuple[Cause, ...] = ()

    @classmethod
    def of(cls, events: pa.Table) -> LeftOut:
        """Read life events (LIFE_SCHEMA); events of other kinds are ignored."""
        retractions = events.filter(pc.is_in(events["kind"], value_set=pa.array(WITHDRAWALS)))
        names = ["golem_id", "observed_at", "event_id", "kind", "struck", "reorg", "withdrawn"]
        return cls(tuple(sorted({_cause(row) for row in retractions.select(names).to_pylist()})))

    @cached_property
    def _golems(self) -> dict[str, tuple[Bounds, frozenset[str]]]:
        """Disjoint ascending runs of ticks and inherited entries by golem."""
        ticks: dict[str, list[tuple[int, int]]] = defaultdict(list)
        entries: dict[str, set[str]] = defaultdict(set)
        for cause in self.causes:
            if 0 < cause.tick_from <= _TICK_LAST:
                ticks[cause.golem_id].append((cause.tick_from, min(cause.tick_to, _TICK_LAST)))
            entries[cause.golem_id].update(cause.entry_ids)
        return {g: (_merged(ticks[g]), frozenset(entries[g])) for g in sorted(entries)}

    @property
    def golem_ids(self) -> list[str]:
        """Golems with a retraction, by id."""
        return list(self._golems)

    def of_golem(self, golem_id: str) -> tuple[Bounds, frozenset[str]]:
        """Return the retracted runs of ticks (first and last) and the withdrawn entries of a golem."""
        return self._golems.get(golem_id, ((), frozenset()))

    def entries(self, golem_id: str) -> frozenset[str]:
        """Return the ids of the entries that were withdrawn from a golem."""
        return self.of_golem(golem_id)[1]

    def listing(self, golem_id: str) -> dict[str, Any] | None:
        """Return the retractions of a golem as a JSON object (for `listed`); None without any."""
        ticks, entry_ids = self.of_golem(golem_id)
        return {"ticks": [list(run) for run in ticks], "entry_ids": sorted(entry_ids)} if ticks or entry_ids else None

    @classmethod
    def listed(cls, golem_id: str, listing: Mapping[str, Any] | None) -> LeftOut:
        """Build from the JSON object of `listing`; its causes have no event."""
        content = listing or {"ticks": [], "entry_ids": []}
        runs = [(first, last, ()) for first, last in content["ticks"]] + [(0, 0, tuple(content["entry_ids"]))]
        return cls(tuple(Cause(golem_id, _NEVER, "", "", *run) for run in runs))

    def only(self, causes: Iterable[Cause]) -> LeftOut:
        """Return the retractions limited to these causes."""
        chosen = set(causes)
        return LeftOut(tuple(cause for cause in self.causes if cause in chosen))

    def records(self, golem_ids: pa.ChunkedArray | pa.Array, ticks: Ticks) -> NDArray[np.bool_]:
        """Return a mask of the retracted records (golem and tick)."""
        runs = self._runs
        if not len(runs.first):
            return np.zeros(len(ticks), np.bool_)
        rank, ticks = codes_of(golem_ids, self.golem_ids), np.asarray(ticks, np.int64)
        key = (rank << _TICK_BITS) | np.minimum(ticks, _TICK_LAST)
        place = np.searchsorted(runs.first, key, side="right") - 1
        return (rank >= 0) & (ticks <= _TICK_LAST) & (place >= 0) & (key <= runs.last[np.maximum(place, 0)])

    def revision(self, golem_ids: pa.ChunkedArray | pa.Array, cycles: Ticks, cycle_ticks: int) -> Ticks:
        """Count the retracted ticks of each golem up to the end of its cycle, plus its withdrawn entries.

        Each retraction increases the count, so it distinguishes rows derived before a retraction from later ones.
        """
        rank = codes_of(golem_ids, self.golem_ids)
        if not self._golems:
            return np.zeros(len(rank), np.int64)
        withdrawn = np.array([len(entry_ids) for _, entry_ids in self._golems.values()], np.int64)[rank]
        runs, key = self._runs, (rank << _TICK_BITS) | np.minimum(np.asarray(cycles) * cycle_ticks, _TICK_LAST)
        first, stop = (np.searchsorted(runs.first, k, side="right") for k in (rank << _TICK_BITS, key))
        beyond = np.zeros(len(rank), np.int64)
        has_run = stop > first
        beyond[has_run] = np.maximum(runs.last[stop[has_run] - 1] - key[has_run], 0)
        return np.where(rank >= 0, runs.counted[stop] - runs.counted[first] - beyond + withdrawn, 0)

    @cached_property
    def _runs(self) -> _Runs:
        packed = [
            ((rank << _TICK_BITS) | first, (rank << _TICK_BITS) | last)
            for rank, (ticks, _) in enumerate(self._golems.values())
            for first, last in ticks
        ]
        counted = accumulate((last - first + 1 for first, last in packed), initial=0)
        first, last = np.array(packed, np.int64).reshape(-1, 2).T
        return _Runs(first, last, np.array(list(counted), np.int64))


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
    merged: list[tuple[int, int]] = []
    for first, last in sorted(runs):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)
