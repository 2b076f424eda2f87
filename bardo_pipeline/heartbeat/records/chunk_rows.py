"""Column buffers of a chunk of ticks, filled by tick and read by row: one row per tick of a living golem. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from bardo_pipeline.arrays import BoolArray, Int64Array
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.heartbeat.probes import Probes
from bardo_pipeline.heartbeat.recall_table import Recall
from bardo_pipeline.heartbeat.records.arrow_builders import list_array, struct, text_of
from bardo_pipeline.market.tick_series import Tape
from bardo_pipeline.policy import Policy


class Buffers:
    """Columns [golems, ticks] or [golems, ticks, items], stored tick by tick so that a tick writes contiguously.

    failures: subsystems that failed after a tick, with their errors.
    """

    def __init__(self, golems: int, ticks: int) -> None:
        self.golems, self.ticks = golems, ticks
        self._columns: dict[str, NDArray[Any]] = {}
        self.failures: dict[int, list[tuple[str, str]]] = {}

    def put(self, at: int, **values: ArrayLike) -> None:
        """Write the columns of the chunk's tick `at`: [golems], [items, golems], or one number for all golems."""
        for name, value in values.items():
            column = self._columns.get(name)
            if column is None:
                column = self._begin(name, np.asarray(value))
            column[at] = value

    def scatter(self, at: int, golem: Int64Array, **values: NDArray[Any]) -> None:
        """Write the columns of some golems, [golems] or [items, golems]; other golems keep zeros."""
        for name, value in values.items():
            column = self._columns.get(name)
            if column is None:
                column = self._begin(name, value)
            column[at][..., golem] = value

    def _begin(self, name: str, first: NDArray[Any]) -> NDArray[Any]:
        """Add a column of zeros of the dtype and the items of this value."""
        self._columns[name] = column = np.zeros((self.ticks, *first.shape[:-1], self.golems), first.dtype)
        return column

    def cut(self, ticks: int) -> None:
        """Keep only the first ticks, because no golem lived longer."""
        self.ticks = ticks
        self._columns = {name: column[:ticks] for name, column in self._columns.items()}

    def __contains__(self, name: str) -> bool:
        """Whether a tick wrote this column."""
        return name in self._columns

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a column [golems, ticks] or [golems, ticks, items]."""
        column = self._columns[name]
        return column.transpose(-1, *range(column.ndim - 1))

    def whole(self, name: str) -> NDArray[Any]:
        """Return the values of all golems at all ticks, golem by golem, as `rows` does."""
        column = self[name]
        return column.reshape(-1, *column.shape[2:])

    def rows(self, name: str, golem: Int64Array, tick: Int64Array) -> NDArray[Any]:
        """Return the values of these golems at these ticks, [rows] or [rows, items]."""
        column = self._columns[name]
        return column.reshape(-1).take(tick * self.golems + golem) if column.ndim == 2 else column[tick, ..., golem]


@dataclass(frozen=True)
class Chunk:
    """Consecutive ticks of a fleet with everything that their records need; `start` is a position on the tape."""

    out: Buffers
    tape: Tape
    start: int
    golem_ids: list[str]
    recall: Recall
    derivation_id: str | None
    policy: Policy
    mutations: pa.Array | None = None
    interventions: pa.Array | None = None

    @cached_property
    def entry_names(self) -> pa.Array:
        """The ids of all entries, by code."""
        return pa.array(self.recall.names.ids, pa.string())


def record_type(name: str) -> pa.DataType:
    """Return the Arrow type of a record's field."""
    return RECORD_SCHEMA.field(name).type


def lists_of(name: str, counts: Int64Array, parts: Mapping[str, Any]) -> pa.Array:
    """Build a record's list field from list lengths and the children of its structs."""
    type_ = record_type(name)
    return list_array(type_, counts, struct(type_.value_type, parts))


class Rows:
    """Rows of a chunk, golem by golem; `rows["tick"]` is a column.

    position: rows as positions in the buffers; None: all ticks of living golems.
    """

    def __init__(self, chunk: Chunk, position: Int64Array | None = None) -> None:
        self.chunk, self.out = chunk, chunk.out
        self.position = np.flatnonzero(self.out["alive"].reshape(-1)) if position is None else position
        self.golem, self.column = np.divmod(self.position, chunk.out.ticks)
        self.t = chunk.start + self.column
        self.count = len(self.position)
        self._is_whole = position is None and self.count == self.out.golems * self.out.ticks

    @cached_property
    def golem_ids(self) -> pa.Array:
        """The golem of each row."""
        return pa.array(self.chunk.golem_ids, pa.string()).take(pa.array(self.golem))

    def __getitem__(self, name: str) -> Any:
        return self.out.whole(name) if self._is_whole else self.out.rows(name, self.golem, self.column)

    def take(self, where: Int64Array) -> Rows:
        """Select rows."""
        return Rows(self.chunk, self.position[where])

    def text(self, name: str) -> pa.Array:
        """Return an integer column as text."""
        return pa.array(self[name].astype(np.int64)).cast(pa.string())

    @cached_property
    def thinking(self) -> BoolArray:
        """Mask of the rows in which the golem deliberated."""
        return np.isin(self["tier"], (1, 2))

    def entry_ids(self, codes: Int64Array) -> pa.Array:
        """Return entry ids by code; -1 becomes null."""
        return text_of(self.chunk.entry_names, codes)

    @cached_property
    def probes(self) -> Probes:
        """The probe results, [12, rows]."""
        return Probes(self["probes"].T, self.chunk.policy.probes)

    def has(self, name: str) -> bool:
        """Whether a tick of the chunk wrote this column."""
        return name in self.out


def loan_counts(rows: Rows) -> Int64Array:
    """Return the number of loans of each row, 0 or 1."""
    if not rows.has("loan_shares"):
        return np.zeros(rows.count, np.int64)
    return (rows["loan_shares"][:, 0] > 0.0).astype(np.int64)
