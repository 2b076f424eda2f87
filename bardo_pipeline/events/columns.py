"""Columns: how a schema declares one, a table's column as one array, and with its texts encoded. Pure."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def required(name: str, kind: pa.DataType) -> pa.Field:
    """A column that has a value in every row."""
    return pa.field(name, kind, nullable=False)


def listed(name: str, kind: pa.DataType) -> pa.Field:
    """A column of lists, without a null among them or in them."""
    return required(name, pa.list_(required("element", kind)))


def one(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The column as one array; not copied if it is in one piece, as `combine_chunks` would (measured: half a write)."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def encoded(array: pa.Array) -> pa.Array:
    """The same values, every text below as a code and a dictionary: who looks at texts looks at each distinct one."""
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
