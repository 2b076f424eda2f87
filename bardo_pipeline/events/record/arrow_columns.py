"""Declaration, conversion and fast access of Arrow columns, and conversion of rows of older versions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.errors import SchemaVersionError

ADDED_LATER = frozenset(
    {
        "pipeline",
        "sealed",
        "dream_tag",
        "attention",
        "credit_partitions",
        "trials",
        "retrieval",
        "experiences",
        "gating",
        "triage",
        "spending",
        "permits",
        "cached_decision",
        "attention_changes",
        "residual_digest",
        "failed_subsystems",
        "clocks",
    }
)
"""Columns of records added after version 1; their nulls do not count in row digests and golem slices.

Version 2 added `pipeline` and `sealed`, and the value "reorg" of `forced_by`; version 3 added `dream_tag`;
version 4 added `attention` and `credit_partitions`, and writes the tier `suppress` where attention passes a tick over;
version 5 added `trials`, null where no choice is judged, and `retrieval`, null without one;
version 6 added `experiences`, null where the runtime reports none, and the market "none";
version 7 added the choices "recentring" and "loan" of `trials`;
version 8 added `gating`, null without a learned gate;
version 9 added `triage`, null without a router of chain events;
version 10 added `spending`, null below the first band of the budget, `permits`, null without a sent action,
`cached_decision`, null without a lookup, `attention_changes` and `residual_digest`, null without one,
`failed_subsystems`, null if none failed, and `clocks`, null in a simulated life.
"""


def required(name: str, kind: pa.DataType) -> pa.Field:
    """Return a non-nullable field."""
    return pa.field(name, kind, nullable=False)


def all_required(kind: pa.DataType, *names: str) -> list[pa.Field]:
    """Return columns of one type that have a value in every row."""
    return [required(name, kind) for name in names]


def all_nullable(kind: pa.DataType, *names: str) -> list[pa.Field]:
    """Return columns of one type that may be null."""
    return [pa.field(name, kind) for name in names]


def listed(name: str, kind: pa.DataType) -> pa.Field:
    """Return a field of lists without nulls."""
    return required(name, pa.list_(required("element", kind)))


def contiguous(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the column as one array, without the copy that `combine_chunks` makes of a single chunk."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def codes_of(values: pa.Array | pa.ChunkedArray, words: pa.Array | Sequence[str]) -> Int64Array:
    """Return the index of each value in `words`, -1 for null and other values."""
    index = pc.index_in(values, value_set=words if isinstance(words, pa.Array) else pa.array(words, pa.string()))
    return pc.fill_null(index, -1).to_numpy(zero_copy_only=False).astype(np.int64)


def rows_of_golems(rows: pa.Table, golem_ids: Iterable[str]) -> pa.Table:
    """Return the rows of these golems."""
    return rows.filter(_is_of(rows, golem_ids))


def rows_of_other_golems(rows: pa.Table, golem_ids: Iterable[str]) -> pa.Table:
    """Return the rows of all golems but these."""
    return rows.filter(pc.invert(_is_of(rows, golem_ids)))


def _is_of(rows: pa.Table, golem_ids: Iterable[str]) -> pa.ChunkedArray:
    return pc.is_in(rows["golem_id"], value_set=pa.array(sorted(golem_ids), pa.string()))


def is_number(kind: pa.DataType) -> bool:
    """Whether the type has a fixed-width numeric buffer: integer, float or timestamp."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_timestamp(kind))


def present(array: pa.Array) -> NDArray[np.bool_]:
    """Return the mask of non-null values, five times faster than `is_valid`."""
    count, first = len(array), array.offset % 8
    if array.null_count in (0, count):
        return np.full(count, array.null_count == 0)
    bits = np.frombuffer(array.buffers()[0], np.uint8)[array.offset // 8 :]
    return np.unpackbits(bits, count=first + count, bitorder="little")[first:].view(np.bool_)


def slots(array: pa.Array) -> NDArray[Any]:
    """Return numbers or timestamps (microseconds) without copying; values of nulls are undefined."""
    kind = array.type
    assert is_number(kind), f"{kind} has no numeric buffer"
    letter = "i" if pa.types.is_signed_integer(kind) or pa.types.is_timestamp(kind) else "u"
    letter = "f" if pa.types.is_floating(kind) else letter
    dtype = np.dtype(f"<{letter}{kind.bit_width // 8}")
    if not len(array):  # its buffer may have a byte that belongs to no value
        return np.zeros(0, dtype)
    values: NDArray[Any] = np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)
    return values


def text_offsets(array: pa.Array) -> NDArray[np.int32]:
    """Return the offsets of the texts in the array's bytes, [len + 1]."""
    offsets = array.buffers()[1]
    if offsets is None or not len(array):
        return np.zeros(len(array) + 1, dtype=np.int32)
    return np.frombuffer(offsets, dtype=np.int32, count=len(array) + 1, offset=4 * array.offset)


def encoded(array: pa.Array) -> pa.Array:
    """Dictionary-encode all texts at any depth, so that each distinct text is processed once."""
    kind = array.type
    if pa.types.is_string(kind):
        return array.dictionary_encode()
    if pa.types.is_struct(kind) and kind.num_fields:
        children = [encoded(array.field(i)) for i in range(kind.num_fields)]
        fields = [field.with_type(child.type) for field, child in zip(kind, children, strict=True)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null() if array.null_count else None)
    if pa.types.is_list(kind):
        first, last = (array.offsets[0].as_py(), array.offsets[-1].as_py()) if len(array) else (0, 0)
        values = encoded(array.values.slice(first, last - first))
        element = pa.list_(kind.value_field.with_type(values.type))
        mask = array.is_null() if array.null_count else None
        return pa.ListArray.from_arrays(pc.subtract(array.offsets, first), values, type=element, mask=mask)
    return array


def absent(kind: pa.DataType, count: int) -> pa.Array:
    """Return `count` nulls. A null struct has values in its non-nullable fields."""
    if not pa.types.is_struct(kind) or count == 0:
        return pa.nulls(count, kind)
    children = [absent(child.type, count) if child.nullable else _zeros(child.type, count) for child in kind]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=pa.repeat(True, count))


def _zeros(kind: pa.DataType, count: int) -> pa.Array:
    """Return `count` times zero, or the empty text, list or struct."""
    if not pa.types.is_list(kind):
        return pa.repeat(_zero(kind), count)
    offsets = pa.repeat(pa.scalar(0, pa.int32()), count + 1)  # repeating a list takes a hundred times as long
    return pa.ListArray.from_arrays(offsets, pa.array([], kind.value_type), type=kind)


def _zero(kind: pa.DataType) -> pa.Scalar:
    if pa.types.is_struct(kind):
        return pa.scalar({child.name: _zero(child.type).as_py() for child in kind}, kind)
    empty: object = (
        "" if pa.types.is_string(kind) else b"" if pa.types.is_binary(kind) else [] if pa.types.is_list(kind) else 0
    )
    return pa.scalar(bool(empty) if pa.types.is_boolean(kind) else empty, kind)


def upcast(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows in the current schema, with nulls in later columns; values, digests and versions stay.

    Raises SchemaVersionError for an unknown column and for a missing column that is not nullable.
    """
    unknown = sorted(set(table.column_names) - set(schema.names))
    missing = [f.name for f in schema if f.name not in table.column_names and not f.nullable]
    if unknown or missing:
        raise SchemaVersionError(
            f"these rows have columns {', '.join(unknown) or 'none'} too many and lack {', '.join(missing) or 'none'}: "
            "read them with the version that wrote them, or a newer one"
        )
    columns = [table.column(f.name) if f.name in table.column_names else absent(f.type, table.num_rows) for f in schema]
    return pa.table(columns, schema=schema)
