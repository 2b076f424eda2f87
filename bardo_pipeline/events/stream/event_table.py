"""Tables of typed events: one frame per name, and the order of the events of a commit. Pure.

A frame has the columns of FRAME and a payload struct. Events of a commit are ordered by event time, golem, tick, name
(order of EVENTS) and position in the record's list.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.events.record.arrow_schema import MOMENT, arrow_schema
from bardo_pipeline.events.stream.catalogue import EVENTS, GolemEvent

FRAME = pa.schema(
    [
        pa.field("event_id", pa.string(), nullable=False),
        pa.field("golem_id", pa.string(), nullable=False),
        pa.field("tick", pa.int64()),
        pa.field("at", MOMENT, nullable=False),
        pa.field("ordinal", pa.int64(), nullable=False),
    ]
)
"""Columns of all events, one row per event; the column `payload` has the fields of the name."""


@dataclass
class Emitted:
    """The events of one commit, one frame per name."""

    frames: dict[str, pa.Table] = field(default_factory=dict)
    _order: tuple[Int64Array, Int64Array] | None = None

    def __len__(self) -> int:
        return sum(frame.num_rows for frame in self.frames.values())

    def order(self) -> tuple[Int64Array, Int64Array]:
        """Return name (index in EVENTS) and row of the frame for each event, in order."""
        if self._order is None:
            self._order = self._sorted()
        return self._order

    def _sorted(self) -> tuple[Int64Array, Int64Array]:
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
        ranks, rows = self.order()
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

    def add(self, name: str, frame: pa.Table) -> None:
        if frame.num_rows:
            assert name not in self.frames, f"{name} is emitted twice"
            self.frames[name] = frame


def frame_of(
    name: str,
    ids: pa.Array,
    golems: pa.Array,
    ticks: pa.Array,
    at: pa.Array,
    ordinal: Int64Array,
    payload: Mapping[str, pa.Array],
) -> pa.Table:
    """Build a frame, with the payload cast to the types of the name's model."""
    fields = list(arrow_schema(EVENTS[name].payload))
    children = [payload[f.name].cast(f.type) for f in fields]
    struct = pa.StructArray.from_arrays(children, fields=fields) if fields else pa.array([{}] * len(ids))
    columns = [ids, golems, ticks, at.cast(MOMENT), pa.array(ordinal, pa.int64()), struct]
    return pa.table(columns, schema=FRAME.append(pa.field("payload", struct.type, nullable=False)))


def event_ids(name: str, golems: pa.Array, *numbers: pa.Array) -> pa.Array:
    """Return ids of the form name/numbers/golem; with the golem's id last, ids are unique for any golem id."""
    place = pc.binary_join_element_wise(*numbers, ".") if len(numbers) > 1 else numbers[0]
    return pc.binary_join_element_wise(pa.scalar(name), place, golems, "/")


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
