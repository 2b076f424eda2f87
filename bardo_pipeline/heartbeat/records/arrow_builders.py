"""Columns: small builders of nested Arrow arrays from numpy. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def real(values: np.ndarray) -> pa.Array:
    """float64 with NaN as null."""
    array = np.ascontiguousarray(values, dtype=np.float64)
    missing = np.isnan(array)
    return pa.array(array, mask=missing) if missing.any() else pa.array(array)


def whole(values: np.ndarray, missing: np.ndarray | None = None) -> pa.Array:
    """int64, null where missing."""
    return pa.array(np.ascontiguousarray(values, dtype=np.int64), mask=missing)


def flag(values: np.ndarray) -> pa.Array:
    """bool."""
    return pa.array(np.ascontiguousarray(values, dtype=bool))


def word(choices: tuple[str | None, ...] | pa.Array, codes: np.ndarray) -> pa.Array:
    """Strings by code; -1 is null."""
    table = choices if isinstance(choices, pa.Array) else pa.array(choices, pa.string())
    codes = np.asarray(codes, dtype=np.int64)
    missing = codes < 0
    if missing.all():
        return pa.nulls(len(codes), table.type)
    return table.take(pa.array(codes, mask=missing) if missing.any() else pa.array(codes))


def same(value: object, count: int, kind: pa.DataType | None = None) -> pa.Array:
    """One value, count times."""
    return pa.repeat(pa.scalar(value, kind) if kind is not None else pa.scalar(value), count)


def struct(kind: pa.DataType, parts: Mapping[str, pa.Array], missing: np.ndarray | None = None) -> pa.Array:
    """A struct array of exactly this type, its children given by name; null where missing."""
    children = [_as(parts[f.name], f.type) for f in kind]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=None if missing is None else pa.array(missing))


def absent(kind: pa.DataType, count: int) -> pa.Array:
    """Nulls of a struct type, their children valid where they have to be."""
    mask = pa.array(np.ones(count, bool))
    return pa.StructArray.from_arrays([_blank(f, count) for f in kind], fields=list(kind), mask=mask)


def _blank(field: pa.Field, count: int) -> pa.Array:
    if field.nullable:
        return pa.nulls(count, field.type)
    if pa.types.is_struct(field.type):
        return pa.StructArray.from_arrays([_blank(f, count) for f in field.type], fields=list(field.type))
    if pa.types.is_list(field.type):
        return empty_lists(field.type, count)
    return same("" if pa.types.is_string(field.type) else 0, count).cast(field.type)


def scattered(values: pa.Array, place: np.ndarray) -> pa.Array:
    """Structs put at their places: place[i] is the position in values of row i, or -1 for null.

    Children of a null stay valid, since a field that may not be null may not be null even where its parent is.
    """
    missing = place < 0
    if not len(values):
        return absent(values.type, len(place))
    at = pa.array(np.where(missing, 0, place))
    null = missing | np.asarray(values.is_null())[np.where(missing, 0, place)]
    children = [values.field(i).take(at) for i in range(values.type.num_fields)]
    return pa.StructArray.from_arrays(children, fields=list(values.type), mask=pa.array(null))


def listed(kind: pa.DataType, counts: np.ndarray, values: pa.Array) -> pa.Array:
    """A list array of exactly this type: counts [rows], values in row order."""
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), _as(values, kind.value_type), type=kind)


def lists_beside(first: np.ndarray, one: pa.Array, second: np.ndarray, other: pa.Array) -> pa.Array:
    """The values of two lists a row as those of one, the first list's before the second's.

    first, second: lengths [rows]; one, other: the values of each, in row order.
    """
    rows = np.concatenate([np.repeat(np.arange(len(first)), first), np.repeat(np.arange(len(second)), second)])
    return pa.concat_arrays([one, other]).take(pa.array(np.argsort(rows, kind="stable")))


def empty_lists(kind: pa.DataType, count: int) -> pa.Array:
    """count empty lists."""
    return listed(kind, np.zeros(count, np.int64), pa.array([], kind.value_type))


def percent(values: np.ndarray, digits: int = 2) -> pa.Array:
    """Rounded decimal text."""
    return pc.cast(pa.array(np.round(np.nan_to_num(values), digits)), pa.string())


def joined(*parts: pa.Array | str) -> pa.Array:
    """Text parts joined without a separator; a null part makes null."""
    return pc.binary_join_element_wise(*parts, "")


def _as(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array if array.type == kind else array.cast(kind)
