"""Frames: the events of one name as columns, and those of one commit in their order. Pure.

A frame has the columns of FRAME and a payload of the name's own type. All frames of a commit have one order: event
time, golem, tick, the order of EVENTS, then the place in the record's own list.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
"""What every event has, one row an event; beside it stands `payload`, a struct of the name's own fields."""


@dataclass
class Emitted:
    """The events of one commit: a frame a name."""

    frames: dict[str, pa.Table] = field(default_factory=dict)
    _order: tuple[np.ndarray, np.ndarray] | None = None

    def __len__(self) -> int:
        return sum(frame.num_rows for frame in self.frames.values())

    def order(self) -> tuple[np.ndarray, np.ndarray]:
        """Which name (place in EVENTS), and which row of its frame, comes first, second and so on: int64 [events]."""
        if self._order is None:
            self._order = self._sorted()
        return self._order

    def _sorted(self) -> tuple[np.ndarray, np.ndarray]:
        names = list(EVENTS)
        made = [(names.index(name), frame) for name, frame in self.frames.items()]
        if not made:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        rank = np.repeat([n for n, _ in made], [frame.num_rows for _, frame in made])
        row = np.concatenate([np.arange(frame.num_rows) for _, frame in made])
        common = pa.concat_tables([frame.select(FRAME.names) for _, frame in made]).combine_chunks()
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
        """The events in order as models, each with its place; from one place to another, of these names or golems."""
        ranks, rows = self.order()
        found: dict[int, GolemEvent] = {}
        for rank, name in enumerate(EVENTS):
            if name not in self.frames or (names is not None and name not in names):
                continue
            where = np.flatnonzero(ranks[first:last] == rank) + first
            for place, row in zip(
                where.tolist(), self.frames[name].take(pa.array(rows[where])).to_pylist(), strict=True
            ):
                if golems is None or row["golem_id"] in golems:
                    found[place] = GolemEvent.of(name, row)
        return sorted(found.items())

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
    ordinal: np.ndarray,
    payload: Mapping[str, pa.Array],
) -> pa.Table:
    """A frame of these columns, the payload in the types of the name's model."""
    fields = list(arrow_schema(EVENTS[name].payload))
    children = [payload[f.name].cast(f.type) for f in fields]
    struct = pa.StructArray.from_arrays(children, fields=fields) if fields else pa.array([{}] * len(ids))
    columns = [ids, golems, ticks, at.cast(MOMENT), pa.array(ordinal, pa.int64()), struct]
    return pa.table(columns, schema=FRAME.append(pa.field("payload", struct.type, nullable=False)))


def event_ids(name: str, golems: pa.Array, *numbers: pa.Array) -> pa.Array:
    """`name/numbers/golem`: the golem's id comes last, so that whatever it holds, no two events have one id."""
    place = pc.binary_join_element_wise(*numbers, ".") if len(numbers) > 1 else numbers[0]
    return pc.binary_join_element_wise(pa.scalar(name), place, golems, "/")


def flat(lists: pa.Array) -> tuple[np.ndarray, np.ndarray, pa.Array]:
    """A list column, flat: the row of each element, its place in that row, the elements."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
    owner = np.repeat(np.arange(len(lists)), lengths)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return owner, place, lists.flatten()


def relisted(rows: np.ndarray, owner: np.ndarray, values: pa.Array) -> pa.Array:
    """Elements that stand in the order of their rows, as lists again, one a row."""
    offsets = pa.array(np.searchsorted(owner, np.append(rows, len(rows))).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, values)


def one(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """A column as one array."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        return pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    return array
