"""Records next to a commit's records: the neighbouring ticks, and steps across accepted gaps.

A change between two ticks is reported by the record that was committed later, so a record needs those neighbours that
were committed before it. Most are in the same batch of commits or are their golem's newest record. The others are
searched in the log in both directions from the batch, because older commits may hold later ticks.

A step across a gap leads from the last tick before a run of lost ticks to the first tick after it. It is reported once,
by the event that came last: one of the two records, or the acceptance of the gap. The times of recording decide.
Source: EV-7, INH-1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.event_stream.sources import Commit
from bardo_pipeline.derivation.incremental.record_queries import values_by_golem
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.events.stream.event_table import NEIGHBOUR_COLUMNS, Steps
from bardo_pipeline.grimoire.entry_columns import newest_per_golem
from bardo_pipeline.storage.log.event_log import EventLog

GolemTick = tuple[str, int]
"""A golem's id and a tick."""

_FIRST_SPAN = 8
"""Commits searched first in each direction; each further search covers four times as many."""


class Neighbours:
    """Finds the neighbours of commits' records. Batches must come in ascending order."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._batch: Sequence[Commit] = ()
        self._before: pa.Table | None = None
        self._newest: pa.Table | None = None

    def of(self, commit: Commit, batch: Sequence[Commit]) -> pa.Table:
        """Return records committed before a commit that may adjoin its records (NEIGHBOUR_COLUMNS).

        Parameters
        ----------
        batch : the commits that were read together with this one, itself included, ascending
        """
        if batch is not self._batch:
            self._load_batch(batch)
        earlier = [other.rows.select(NEIGHBOUR_COLUMNS) for other in batch if other.version < commit.version]
        assert self._before is not None, "a batch was loaded"
        return pa.concat_tables([self._before, *earlier])

    def _load_batch(self, batch: Sequence[Commit]) -> None:
        """Read the neighbours committed before a batch, and update each golem's newest record."""
        rows = pa.concat_tables([commit.rows.select(NEIGHBOUR_COLUMNS) for commit in batch])
        newest = rows.slice(0, 0) if self._newest is None else self._newest
        missing = self._missing_keys(pa.concat_tables([rows, newest]), rows)
        self._before = pa.concat_tables([newest, *self._search(missing, batch[0].version, batch[-1].version)])
        self._newest, self._batch = newest_per_golem(pa.concat_tables([newest, rows]), "tick"), batch

    def _missing_keys(self, loaded: pa.Table, rows: pa.Table) -> set[GolemTick]:
        """Return the recorded ticks adjacent to these rows that are not loaded."""
        adjacent = {(golem_id, tick + step) for golem_id, tick in _keys(rows) for step in (-1, 1)} - _keys(loaded)
        highest = values_by_golem(self._log.heads(), "highest")
        return {key for key in adjacent if 0 < key[1] <= highest.get(key[0], 0) and not self._is_missing(*key)}

    def _is_missing(self, golem_id: str, tick: int) -> bool:
        head = self._log.head_of(golem_id)
        return any(first <= tick <= last for first, last in (*head.missing, *head.accepted))

    def _search(self, keys: set[GolemTick], low: int, high: int) -> list[pa.Table]:
        """Return the records of these keys that were committed before version `low`.

        The search widens from the batch (versions low to high) in both directions until each key has been seen.
        """
        parts: list[pa.Table] = []
        unseen, span, newest = set(keys), _FIRST_SPAN, self._log.version
        below, above = low - 1, high
        while unseen and (below > 0 or above < newest):
            lowest, highest = max(below - span, 0), min(above + span, newest)
            parts.append(self._read(unseen, lowest, below))
            unseen -= _keys(parts[-1])
            unseen -= _keys(self._read(unseen, above, highest))
            below, above, span = lowest, highest, span * 4
        return parts

    def _read(self, keys: set[GolemTick], since: int, until: int) -> pa.Table:
        if since >= until:
            keys = set()
        columns, golems = [*NEIGHBOUR_COLUMNS, "version"], sorted({golem_id for golem_id, _ in keys})
        rows = self._log.read_cycles(columns, since, golems, until_version=max(until, since))
        versions = pc.fill_null(rows["version"], until)
        ticks = pc.is_in(rows["tick"], value_set=pa.array(sorted({tick for _, tick in keys}), pa.int64()))
        is_inside = pc.and_(pc.greater(versions, since), pc.less_equal(versions, until))
        rows = rows.filter(pc.and_(is_inside, ticks))
        is_key = [key in keys for key in zip(rows["golem_id"].to_pylist(), rows["tick"].to_pylist(), strict=True)]
        return rows.filter(pa.array(is_key, pa.bool_())).select(NEIGHBOUR_COLUMNS)


def _keys(rows: pa.Table) -> set[GolemTick]:
    return set(zip(rows["golem_id"].to_pylist(), rows["tick"].to_pylist(), strict=True))


_STEP = pa.schema([RECORD_SCHEMA.field(name) for name in NEIGHBOUR_COLUMNS])
_SIDE_COLUMNS = [*NEIGHBOUR_COLUMNS, "recorded_at", "version"]


class LostRun(NamedTuple):
    """A run of a golem's lost ticks, none of them recorded, with the event that accepted the loss."""

    golem_id: str
    tick_from: int
    tick_to: int
    accepted_at: datetime
    event_id: str


class Bridge(NamedTuple):
    """A run of lost ticks with the records before and after it (_SIDE_COLUMNS)."""

    lost: LostRun
    before: dict[str, Any]
    after: dict[str, Any]

    @property
    def last(self) -> dict[str, Any]:
        """The record of the two that was recorded last."""
        return max((self.before, self.after), key=lambda row: (row["recorded_at"], row["version"] or 0, row["tick"]))

    @property
    def is_completed_by_gap(self) -> bool:
        """Whether the gap was accepted after both records came."""
        return bool(self.last["recorded_at"] <= self.lost.accepted_at)


class GapSteps:
    """The steps across accepted gaps of a home's log."""

    def __init__(self, context: DerivationContext) -> None:
        self._context = context

    def completed_by_gaps(self, events: pa.Table) -> Steps:
        """Return the steps that an acceptance among these life events was the last to complete."""
        gaps = events.filter(pc.equal(events["kind"], "GapAccepted"))
        event_ids = set(gaps["event_id"].to_pylist())
        lost = self._lost_runs(set(gaps["golem_id"].to_pylist()))
        bridges = self._bridges(run for run in lost if run.event_id in event_ids)
        return _steps(bridge for bridge in bridges if bridge.is_completed_by_gap)

    def completed_by_records(self, records: pa.Table) -> Steps:
        """Return the steps that one of the records of one commit was the last to complete."""
        gaps = self._context.life("GapAccepted")["golem_id"].combine_chunks()
        rows = records.select(["golem_id", "tick"]).filter(pc.is_in(records["golem_id"], value_set=gaps))
        keys = set(zip(rows["golem_id"].to_pylist(), rows["tick"].to_pylist(), strict=True))
        lost = self._lost_runs({golem_id for golem_id, _ in keys})
        ends = [{(run.golem_id, run.tick_from - 1), (run.golem_id, run.tick_to + 1)} for run in lost]
        bridges = self._bridges(run for run, sides in zip(lost, ends, strict=True) if sides & keys)
        return _steps(b for b in bridges if not b.is_completed_by_gap and (b.lost.golem_id, b.last["tick"]) in keys)

    def _lost_runs(self, golem_ids: Collection[str]) -> list[LostRun]:
        """Return all runs of lost ticks of these golems; overlapping acceptances are merged."""
        merged: list[LostRun] = []
        rows = self._context.life("GapAccepted", golem_ids).select(["golem_id", "event_id", "recorded_at", "gap"])
        runs = [LostRun(r["golem_id"], r["gap"]["tick_from"], r["gap"]["tick_to"], r["recorded_at"], r["event_id"])
                for r in rows.to_pylist()]  # fmt: skip
        for run in sorted(runs):
            if merged and merged[-1].golem_id == run.golem_id and run.tick_from <= merged[-1].tick_to + 1:
                later = max((merged[-1], run), key=lambda r: (r.accepted_at, r.event_id))
                tick_to = max(merged[-1].tick_to, run.tick_to)
                merged[-1] = later._replace(tick_from=merged[-1].tick_from, tick_to=tick_to)
            else:
                merged.append(run)
        return [part for run in merged for part in self._without_records(run)]

    def _without_records(self, run: LostRun) -> list[LostRun]:
        """Split an accepted run at its ticks that are on record."""
        rows = self._context.log.read_stretch(["tick"], [run.golem_id], run.tick_from, run.tick_to)
        ends = [run.tick_from - 1, *sorted(rows["tick"].to_pylist()), run.tick_to + 1]
        parts = [(low + 1, high - 1) for low, high in pairwise(ends) if high > low + 1]
        return [run._replace(tick_from=first, tick_to=last) for first, last in parts]

    def _bridges(self, lost: Iterable[LostRun]) -> list[Bridge]:
        bridges = []
        for run in lost:  # few: an owner accepts each gap by hand
            rows = self._context.log.read_stretch(_SIDE_COLUMNS, [run.golem_id], run.tick_from - 1, run.tick_to + 1)
            sides = {row["tick"]: row for row in rows.to_pylist()}
            if len(sides) == 2:
                bridges.append(Bridge(run, sides[run.tick_from - 1], sides[run.tick_to + 1]))
        return bridges


def _steps(bridges: Iterable[Bridge]) -> Steps:
    pairs = [(bridge.before, bridge.after) for bridge in bridges]
    return Steps(*(pa.Table.from_pylist([pair[side] for pair in pairs], schema=_STEP) for side in (0, 1)))
