"""Builders of nested Arrow arrays from numpy arrays. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike

from bardo_pipeline.arrays import BoolArray, Float64Array, Int64Array
from bardo_pipeline.events.record.arrow_columns import absent


@lru_cache(maxsize=64)
def missing_part(type_: pa.DataType, count: int) -> pa.Array:
    """Return `count` nulls, which are kept, because most chunks of a fleet lack the same parts in as many rows."""
    return absent(type_, count)


def column(part: Any, type_: pa.DataType, count: int) -> pa.Array:
    """Convert a part to an array of a type.

    Parameters
    ----------
    part : Arrow array; numpy array, whose NaN becomes null; struct children by name; or one value for all rows
    """
    if isinstance(part, np.ndarray):
        return pa.array(np.ascontiguousarray(part, type_.to_pandas_dtype()), from_pandas=True)
    if isinstance(part, pa.Array):
        return part if part.type == type_ else part.cast(type_)
    if isinstance(part, Mapping):
        return struct(type_, part)
    return missing_part(type_, count) if part is None else pa.repeat(pa.scalar(part, type_), count)


def struct(type_: pa.DataType, parts: Mapping[str, Any], missing: BoolArray | None = None) -> pa.Array:
    """Build structs from children by name (parts of `column`, at least one array); children not given are null.

    missing: rows whose struct is null.
    """
    count = next(len(part) for part in parts.values() if isinstance(part, pa.Array | np.ndarray))
    children = [column(parts.get(f.name), f.type, count) for f in type_]
    return pa.StructArray.from_arrays(children, fields=list(type_), mask=None if missing is None else pa.array(missing))


def text_of(choices: tuple[str | None, ...] | pa.Array, codes: ArrayLike) -> pa.Array:
    """Look up strings by code; -1 becomes null."""
    table = choices if isinstance(choices, pa.Array) else pa.array(choices, pa.string())
    codes = np.asarray(codes, dtype=np.int64)
    missing = codes < 0
    if not missing.any():
        return table.take(pa.array(codes))
    return pa.nulls(len(codes), table.type) if missing.all() else table.take(pa.array(codes, mask=missing))


def scattered(values: pa.Array, place: Int64Array) -> pa.Array:
    """Build one struct per row: values[place[i]] for row i, null for -1.

    Children of a null struct stay valid, because a non-nullable field needs a value even if its parent is null.
    """
    at = np.where(place < 0, len(values), place)
    return pa.concat_arrays([values, missing_part(values.type, 1)]).take(pa.array(at))


def list_array(type_: pa.DataType, counts: Int64Array, values: pa.Array) -> pa.Array:
    """Build lists from their lengths and their values in row order."""
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    values = column(values, type_.value_type, len(values))
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=type_)


def concat_lists(counts_a: Int64Array, values_a: pa.Array, counts_b: Int64Array, values_b: pa.Array) -> pa.Array:
    """Return the values of the concatenated lists a + b of each row, in row order."""
    rows = np.concatenate([np.repeat(np.arange(len(counts)), counts) for counts in (counts_a, counts_b)])
    return pa.concat_arrays([values_a, values_b]).take(pa.array(np.argsort(rows, kind="stable")))


def empty_lists(type_: pa.DataType, count: int) -> pa.Array:
    """Build `count` empty lists."""
    return list_array(type_, np.zeros(count, np.int64), pa.array([], type_.value_type))


def percent(values: Float64Array) -> pa.Array:
    """Format numbers with at most two decimals; NaN counts as 0."""
    return pc.cast(pa.array(np.round(np.nan_to_num(values), 2)), pa.string())


def concat_text(*parts: pa.Array | str) -> pa.Array:
    """Concatenate text columns and literals; null if a part is null."""
    return pc.binary_join_element_wise(*parts, "")
