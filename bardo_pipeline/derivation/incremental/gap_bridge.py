"""Across gaps: from the tick before ticks that were given up to the tick behind them.

Such a step is told once, by whichever came last: the later of its two records, or the acceptance of the ticks between
them. Which that was, the moments of recording say. Source: EV-7, INH-1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.events.stream.from_changes import NEIGHBOUR_COLUMNS, Steps

_STEP = pa.schema([RECORD_SCHEMA.field(name) for name in NEIGHBOUR_COLUMNS])
_BESIDE = [*NEIGHBOUR_COLUMNS, "recorded_at", "version"]


class Lost(NamedTuple):
    """A run of a golem's ticks that were given up, none of them on record; when that was so, and by which event."""

    golem_id: str
    tick_from: int
    tick_to: int
    accepted_at: datetime
    event_id: str


class Bridge(NamedTuple):
    """A run of lost ticks with the records on both sides (NEIGHBOUR_COLUMNS with when they were recorded)."""

    lost: Lost
    before: dict[str, Any]
    after: dict[str, Any]

    @property
    def last(self) -> dict[str, Any]:
        """Whichever of the two records came last."""
        return max((self.before, self.after), key=lambda row: (row["recorded_at"], row["version"] or 0, row["tick"]))

    @property
    def is_told_by_gap(self) -> bool:
        """Whether the acceptance came last of all."""
        return bool(self.last["recorded_at"] <= self.lost.accepted_at)


class GapSteps:
    """The steps across accepted gaps of a home's log."""

    def __init__(self, context: DerivationContext) -> None:
        self._context = context

    def told_by_gaps(self, events: pa.Table) -> Steps:
        """Of these life events: the steps that an acceptance among them was the last to make known."""
        gaps = events.filter(pc.equal(events["kind"], "GapAccepted"))
        mine = set(gaps["event_id"].to_pylist())
        found = self._bridges(run for run in self._lost(set(gaps["golem_id"].to_pylist())) if run.event_id in mine)
        return _steps(one for one in found if one.is_told_by_gap)

    def told_by_records(self, records: pa.Table) -> Steps:
        """Of the records of one commit: the steps that one of them was the last to make known."""
        gaps = self._context.life("GapAccepted")["golem_id"].combine_chunks()
        rows = records.select(["golem_id", "tick"]).filter(pc.is_in(records["golem_id"], value_set=gaps))
        mine = set(zip(rows["golem_id"].to_pylist(), rows["tick"].to_pylist(), strict=True))
        lost = self._lost({golem_id for golem_id, _ in mine})
        ends = [{(run.golem_id, run.tick_from - 1), (run.golem_id, run.tick_to + 1)} for run in lost]
        found = self._bridges(run for run, beside in zip(lost, ends, strict=True) if beside & mine)
        return _steps(one for one in found if not one.is_told_by_gap and (one.lost.golem_id, one.last["tick"]) in mine)

    def _lost(self, golem_ids: Collection[str]) -> list[Lost]:
        """Every run of lost ticks of these golems."""
        out: list[Lost] = []
        told = self._context.life("GapAccepted", golem_ids).select(["golem_id", "event_id", "recorded_at", "gap"])
        said = [Lost(r["golem_id"], r["gap"]["tick_from"], r["gap"]["tick_to"], r["recorded_at"], r["event_id"])
                for r in told.to_pylist()]  # fmt: skip
        for one in sorted(said):
            if out and out[-1].golem_id == one.golem_id and one.tick_from <= out[-1].tick_to + 1:
                later = max((out[-1], one), key=lambda run: (run.accepted_at, run.event_id))
                reach = max(out[-1].tick_to, one.tick_to)
                out[-1] = later._replace(tick_from=out[-1].tick_from, tick_to=reach)
            else:
                out.append(one)
        return [part for run in out for part in self._without_records(run)]

    def _without_records(self, run: Lost) -> list[Lost]:
        """The parts of an accepted run between the ticks of it that were on record before."""
        rows = self._context.log.read_stretch(["tick"], [run.golem_id], run.tick_from, run.tick_to)
        ends = [run.tick_from - 1, *sorted(rows["tick"].to_pylist()), run.tick_to + 1]
        parts = [(low + 1, high - 1) for low, high in pairwise(ends) if high > low + 1]
        return [run._replace(tick_from=first, tick_to=last) for first, last in parts]

    def _bridges(self, lost: Iterable[Lost]) -> list[Bridge]:
        """Those of these runs that have a record on both sides."""
        found = []
        for run in lost:  # a few: an owner accepted each of them
            rows = self._context.log.read_stretch(_BESIDE, [run.golem_id], run.tick_from - 1, run.tick_to + 1)
            sides = {row["tick"]: row for row in rows.to_pylist()}
            if len(sides) == 2:
                found.append(Bridge(run, sides[run.tick_from - 1], sides[run.tick_to + 1]))
        return found


def _steps(bridges: Iterable[Bridge]) -> Steps:
    pairs = [(one.before, one.after) for one in bridges]
    return Steps(*(pa.Table.from_pylist([pair[side] for pair in pairs], schema=_STEP) for side in (0, 1)))
