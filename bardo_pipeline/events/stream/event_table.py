"""Tables of typed events: one frame per name, the order of the events of a commit, changes between ticks. Pure.

A frame has the columns of FRAME and a payload struct. Events of a commit are ordered by event time, golem, tick, name
(order of EVENTS) and position in the record's list.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.events.record.arrow_columns import all_required, contiguous, required
from bardo_pipeline.events.record.arrow_schema import MOMENT, arrow_schema
from bardo_pipeline.events.stream.catalogue import EVENTS, GolemEvent

FRAME = pa.schema(
    [
        *all_required(pa.string(), "event_id", "golem_id"),
        pa.field("tick", pa.int64()),
        required("at", MOMENT),
        required("ordinal", pa.int64()),
    ]
)
"""Columns of all events, one row per event; the column `payload` has the fields of the name."""


@dataclass
class Emitted:
    """The events of one commit, one frame per name."""

    frames: dict[str, pa.Table] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(frame.num_rows for frame in self.frames.values())

    @cached_property
    def order(self) -> tuple[Int64Array, Int64Array]:
        """Name (index in EVENTS) and row of the frame for each event, in order."""
        names = list(EVENTS)
        ranked = [(names.index(name), frame) for name, frame in self.frames.items()]
        if not ranked:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        rank = np.repeat([n for n, _ in ranked], [frame.num_rows for _, frame in ranked])
        row = np.concatenate([np.arange(frame.num_rows) for _, frame in ranked])
        common = pa.concat_tables([frame.select(FRAME.names) for _, frame in ranked]).combine_chunks()
        golems = np.unique(common["golem_id"].to_numpy(zero_copy_only=False), return_inverse=True)[1]
        ticks = pc.fill_null(common["tick"], -1).to_numpy()
        order = np.lexsort(
            (common["ordinal"].to_numpy(), rank, ticks, golems, common["at"].cast(pa.int64()).to_numpy())
        )
        return rank[order], row[order]

    def events(
        self,
        first: int = 0,
        last: int | None = None,
        *,
        names: Collection[str] | None = None,
        golems: Collection[str] | None = None,
    ) -> list[tuple[int, GolemEvent]]:
        """Return (index, event) in order, limited to a range of indices, names and golems."""
        ranks, rows = self.order
        events: dict[int, GolemEvent] = {}
        for rank, name in enumerate(EVENTS):
            if name not in self.frames or (names is not None and name not in names):
                continue
            where = np.flatnonzero(ranks[first:last] == rank) + first
            for place, row in zip(
                where.tolist(), self.frames[name].take(pa.array(rows[where])).to_pylist(), strict=True
            ):
                if golems is None or row["golem_id"] in golems:
                    events[place] = GolemEvent.of(name, row)
        return sorted(events.items())

    def add(
        self,
        name: str,
        golems: pa.Array,
        ticks: pa.Array,
        at: pa.Array,
        numbers: Sequence[pa.Array | str],
        payload: Mapping[str, pa.Array],
        ordinal: Int64Array | None = None,
    ) -> None:
        """Add all events of one name. numbers: texts that identify an event within its golem.

        The id of an event is name/numbers/golem; with the golem's id last, ids are unique for any golem id.
        """
        if not len(golems):
            return
        assert name not in self.frames, f"{name} is emitted twice"
        place = pc.binary_join_element_wise(*numbers, ".")
        ids = pc.binary_join_element_wise(pa.scalar(name), place, golems, "/")
        fields = list(arrow_schema(EVENTS[name].payload))
        children = [payload[f.name].cast(f.type) for f in fields]
        struct = pa.StructArray.from_arrays(children, fields=fields) if fields else pa.array([{}] * len(ids))
        order = pa.array(np.zeros(len(ids)) if ordinal is None else ordinal, pa.int64())
        columns = [ids, golems, ticks, at.cast(MOMENT), order, struct]
        schema = FRAME.append(pa.field("payload", struct.type, nullable=False))
        self.frames[name] = pa.table(columns, schema=schema)


def flat(lists: pa.Array) -> tuple[Int64Array, Int64Array, pa.Array]:
    """Flatten a list column: row of each element, index in that row, elements."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
    owner = np.repeat(np.arange(len(lists)), lengths)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return owner, place, lists.flatten()


def relisted(rows: Int64Array, owner: Int64Array, values: pa.Array) -> pa.Array:
    """Group elements, sorted by row, into one list per row."""
    offsets = pa.array(np.searchsorted(owner, np.append(rows, len(rows))).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, values)


NEIGHBOUR_COLUMNS = ("golem_id", "tick", "observed_at", "regime", "phase")
"""Columns of neighbouring records that are needed to detect changes."""

_WATCHED = (("heartbeat:regime_shift", "regime"), ("mortality:phase_transition", "phase"))


class Steps(NamedTuple):
    """Pairs of consecutive records, NEIGHBOUR_COLUMNS each."""

    before: pa.Table
    after: pa.Table

    @classmethod
    def of(cls, *parts: Steps) -> Steps:
        """Concatenate pairs."""
        return cls(*(pa.concat_tables(tables) for tables in zip(*parts, strict=True)))


def steps_within(records: pa.Table, neighbours: pa.Table) -> Steps:
    """Return the pairs with a watched change in which at least one record is new."""
    both = pa.concat_tables([table.select(NEIGHBOUR_COLUMNS) for table in (records, neighbours)])
    tick, code = both["tick"].to_numpy(), contiguous(both["golem_id"]).dictionary_encode().indices.to_numpy()
    order = np.lexsort((tick, code))
    follows = (code[order][1:] == code[order][:-1]) & (tick[order][1:] == tick[order][:-1] + 1)
    is_new = order < records.num_rows
    follows &= is_new[1:] | is_new[:-1]
    earlier, later = order[:-1][follows], order[1:][follows]
    changed = np.zeros(len(earlier), np.bool_)
    for _, column in _WATCHED:
        values = contiguous(both[column])
        changed |= np.asarray(pc.not_equal(values.take(pa.array(earlier)), values.take(pa.array(later))), np.bool_)
    return Steps(both.take(pa.array(earlier[changed])), both.take(pa.array(later[changed])))


def add_change_events(steps: Steps, out: Emitted) -> None:
    """Add an event at the later tick for each watched column that changed."""
    for name, column in _WATCHED:
        before, after = contiguous(steps.before[column]), contiguous(steps.after[column])
        at = pa.array(np.flatnonzero(pc.not_equal(before, after)))
        golems, ticks, moments = (
            contiguous(steps.after[name]).take(at) for name in ("golem_id", "tick", "observed_at")
        )
        payload = {"before": before.take(at), "after": after.take(at)}
        out.add(name, golems, ticks, moments, [pc.cast(ticks, pa.string()), "0"], payload)
