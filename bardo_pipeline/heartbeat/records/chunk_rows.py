"""Rows: the living rows of a chunk of ticks, and how to read its columns at them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.heartbeat.probes import Probes
from bardo_pipeline.heartbeat.recall_table import Recall
from bardo_pipeline.heartbeat.records.tick_buffers import Buffers
from bardo_pipeline.market.tick_series import Tape
from bardo_pipeline.policy import Policy


@dataclass(frozen=True)
class Chunk:
    """What a stretch of ticks needs to become records."""

    out: Buffers
    tape: Tape
    start: int
    golem_ids: list[str]
    recall: Recall
    derivation_id: str | None
    policy: Policy
    mutations: pa.Array | None = None
    interventions: pa.Array | None = None


def kind(name: str) -> pa.DataType:
    """Arrow type of one part of a record."""
    return RECORD_SCHEMA.field(name).type


class Rows:
    """The living rows of a chunk, and how to read a column at them."""

    def __init__(self, chunk: Chunk) -> None:
        self.chunk, self.out = chunk, chunk.out
        self.at = np.flatnonzero(self.out["alive"].reshape(-1))
        self.golem, self.column = np.divmod(self.at, chunk.out.ticks)
        self.t = chunk.start + self.column
        self.count = len(self.at)
        self.ids = pa.array(chunk.golem_ids, pa.string()).take(pa.array(self.golem))
        self.thinking = np.isin(self["tier"], (1, 2))

    def __getitem__(self, name: str) -> np.ndarray:
        column: np.ndarray = self.out[name][self.golem, self.column]
        return column

    def of(self, name: str, where: np.ndarray) -> np.ndarray:
        """A column at some of the living rows."""
        column: np.ndarray = self.out[name][self.golem[where], self.column[where]]
        return column

    @cached_property
    def probes(self) -> Probes:
        """What the probes said, [12, rows]."""
        return Probes(self["probes"].T, self.chunk.policy.probes)

    def has(self, name: str) -> bool:
        """Whether any tick of the chunk left this column."""
        return name in self.out


def owing(rows: Rows) -> np.ndarray:
    """How many loans each living row has: 0 or 1, int64 [rows]."""
    if not rows.has("loan_shares"):
        return np.zeros(rows.count, np.int64)
    count: np.ndarray = (rows["loan_shares"][:, 0] > 0.0).astype(np.int64)
    return count
