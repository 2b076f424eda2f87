"""Parts: the same work on several parts of a table at once, one a processor. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TypeVar

import numpy as np
import pyarrow as pa

X = TypeVar("X")
Y = TypeVar("Y")

_PART_ROWS = 12_000  # below it calls cost more than arrays, and a file more costs readers more than it saves a writer


def parts_of(count: int, most: int) -> int:
    """In how many parts it is worth while to work on so many rows."""
    return max(1, min(most, count // _PART_ROWS))


def divided(rows: pa.Table, parts: int) -> list[pa.Table]:
    """The rows in so many parts of about equal length; nothing is copied."""
    edges = np.linspace(0, len(rows), parts + 1).astype(int).tolist()
    return [rows.slice(first, last - first) for first, last in pairwise(edges)]


def at_once(work: Callable[[X], Y], given: Sequence[X]) -> list[Y]:
    """What the work makes of each, in as many threads."""
    if len(given) <= 1:
        return [work(one) for one in given]
    with ThreadPoolExecutor(len(given)) as threads:
        return list(threads.map(work, given))
