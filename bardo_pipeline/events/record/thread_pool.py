"""Split a table into parts and process them on threads. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TypeVar

import numpy as np
import pyarrow as pa

X = TypeVar("X")
Y = TypeVar("Y")

_PART_ROWS = 12_000  # smaller parts cost more in calls and files than threads save


def part_count(rows: int, limit: int) -> int:
    """Return the number of parts, at most `limit`, for this number of rows."""
    return max(1, min(limit, rows // _PART_ROWS))


def split_rows(rows: pa.Table, parts: int) -> list[pa.Table]:
    """Split rows into slices of about equal length."""
    edges = np.linspace(0, len(rows), parts + 1).astype(int).tolist()
    return [rows.slice(first, last - first) for first, last in pairwise(edges)]


def map_threads(work: Callable[[X], Y], items: Sequence[X]) -> list[Y]:
    """Apply `work` to each item, one thread per item."""
    if len(items) <= 1:
        return [work(item) for item in items]
    with ThreadPoolExecutor(len(items)) as threads:
        return list(threads.map(work, items))
