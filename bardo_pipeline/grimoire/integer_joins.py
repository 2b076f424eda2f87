"""Joins of small tables over their columns as whole numbers. Pure.

A database takes 5 ms to plan a question of several joins, whatever it is asked of; a grimoire's answer takes less.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.events.record.arrow_columns import one, present, slots

_ROOM = 2**62


class Pairs(NamedTuple):
    """Rows that belong together: which of the left, which of the right. Each [pairs]."""

    left: NDArray[np.intp]
    right: NDArray[np.intp]


def codes(column: pa.ChunkedArray) -> Int64Array:
    """A number for each distinct word, from 0; -1 for none. int64 [rows]."""
    return worded(column)[0]


def worded(column: pa.ChunkedArray) -> tuple[Int64Array, pa.Array]:
    """The place of each value among the distinct words of a column (-1 for none, int64 [rows]); and the words."""
    encoded = one(column).dictionary_encode()
    return _numbered(encoded.indices), encoded.dictionary


def places(column: pa.ChunkedArray, words: pa.Array) -> Int64Array:
    """The place of each value among these words; -1 for none, or another. int64 [rows]."""
    return _numbered(one(pc.index_in(column, value_set=words, skip_nulls=True)))


def _numbered(codes: pa.Array) -> Int64Array:
    return np.where(present(codes), slots(codes), -1).astype(np.int64)


def matched(left: Sequence[Int64Array], right: Sequence[Int64Array]) -> Pairs:
    """Every row of the left with every row of the right that has the same numbers; -1 in either is like nothing.

    left, right: the columns of both sides, from -1 on, [left rows] and [right rows].
    """
    if left is right:
        mine = theirs = _key(left)
    else:
        keys = _key([np.concatenate(pair) for pair in zip(left, right, strict=True)])
        mine, theirs = keys[: len(left[0])], keys[len(left[0]) :]
    some, others = np.flatnonzero(mine >= 0), np.flatnonzero(theirs >= 0)
    others = others[np.argsort(theirs[others], kind="stable")]
    first = np.searchsorted(theirs[others], mine[some], side="left")
    count = np.searchsorted(theirs[others], mine[some], side="right") - first
    inside = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return Pairs(np.repeat(some, count), others[np.repeat(first, count) + inside])


def _key(columns: Sequence[Int64Array]) -> Int64Array:
    """One number a row, the same where all of these are; -1 where one of them is. [rows]"""
    joined, size = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        count = int(column.max(initial=0)) + 1
        if size * count > _ROOM:
            known, joined = np.unique(joined, return_inverse=True)
            size = len(known)
        joined, size = joined * count + column, size * count
    return np.where(np.min(columns, axis=0) >= 0, joined, -1)
