"""Digest of a table: the sum of its row digests, and the result of a write.

The sum is independent of the order; each row contains its key. Source: architecture ("Fingerprints hash logical rows").
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.events.record.row_digest import row_digests


@dataclass(frozen=True)
class Digest:
    """Sum of row digests and the number of rows."""

    low: int
    high: int
    rows: int

    @classmethod
    def of(cls, table: pa.Table) -> Digest:
        """Return the digest of a table's rows."""
        low, high = (int(x) for x in row_digests(table).sum(axis=0, dtype=np.uint64)) if table.num_rows else (0, 0)
        return cls(low, high, table.num_rows)

    @classmethod
    def of_each(cls, table: pa.Table, codes: Int64Array) -> dict[int, Digest]:
        """Return the digest of the rows of each code."""
        if not table.num_rows:
            return {}
        order = np.argsort(codes, kind="stable")
        code, first, count = np.unique(codes[order], return_index=True, return_counts=True)
        sums = np.add.reduceat(row_digests(table)[order], first, axis=0)  # wraps around, as `+` does
        groups = zip(code.tolist(), sums.tolist(), count.tolist(), strict=True)
        return {group: cls(low, high, rows) for group, (low, high), rows in groups}

    def __add__(self, other: Digest) -> Digest:
        return Digest((self.low + other.low) % 2**64, (self.high + other.high) % 2**64, self.rows + other.rows)

    def __sub__(self, other: Digest) -> Digest:
        return Digest((self.low - other.low) % 2**64, (self.high - other.high) % 2**64, self.rows - other.rows)

    @property
    def listed(self) -> list[int]:
        """The parts, as stored in a commit."""
        return [self.low, self.high, self.rows]

    @property
    def fingerprint(self) -> str:
        """Fingerprint of 32 hex characters."""
        return hashlib.sha256(f"{self.low:016x}{self.high:016x}{self.rows}".encode()).hexdigest()[:32]


EMPTY = Digest(0, 0, 0)


@dataclass(frozen=True)
class Written:
    """Result of a write: written rows; then row count, fingerprint and version of the table (None: unchanged)."""

    table: str
    rows_written: int
    row_count: int
    fingerprint: str
    version: int | None
