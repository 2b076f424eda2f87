"""Conversion between a schema and its loose form, in which every value may be null.

Arrow's JSON reader accepts null structs only in the loose form, and other writers of Arrow choose nullability, names of
list elements and units of time freely. Nulls that the schema forbids are kept; `row_errors` reports them.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.errors import SchemaVersionError
from bardo_pipeline.events.record.arrow_columns import absent, contiguous


def loosened(schema: pa.Schema, moments: pa.DataType | None = None) -> pa.Schema:
    """Return the loose form of a schema. moments: another type for timestamps."""
    return pa.schema([pa.field(column.name, _loosened(column.type, moments)) for column in schema])


def _loosened(kind: pa.DataType, moments: pa.DataType | None) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(child.name, _loosened(child.type, moments)) for child in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _loosened(kind.value_type, moments)))
    return moments if moments is not None and pa.types.is_timestamp(kind) else kind


def tightened(loose: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a loose table (unsliced, one chunk per column) in its original schema, without copying."""
    columns = [_tightened(contiguous(loose.column(column.name)), column, None) for column in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _tightened(array: pa.Array, column: pa.Field, hole: pa.Array | None) -> pa.Array:
    """Tighten one column. hole: mask of null parents, below which a non-nullable child has arbitrary values."""
    kind, null = column.type, array.is_null() if array.null_count else None
    if null is not None and hole is not None and not column.nullable:
        null = pc.and_not(null, hole)
    if pa.types.is_struct(kind):
        below = array.is_null() if array.null_count else None
        children = [_tightened(array.field(i), child, below) for i, child in enumerate(kind)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=null)
    if pa.types.is_list(kind):
        values = _tightened(array.values, kind.value_field, None)
        return pa.ListArray.from_arrays(array.offsets, values, type=kind, mask=null)
    if null is None:
        return array
    assert array.offset == 0, "a loose table holds no slice"
    return pa.Array.from_buffers(kind, len(array), [pc.invert(null).buffers()[1], *array.buffers()[1:]])


_FAMILIES = (
    (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_binary),
    (pa.types.is_integer,),
    (pa.types.is_floating,),
    (pa.types.is_boolean,),
    (pa.types.is_timestamp,),
)
"""Families of convertible types; a timestamp needs its time zone."""


def conformed(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    """Convert a received array to a loose type: struct children by name, absent ones null.

    Raises SchemaVersionError for an unknown child or a type of another family.
    """
    if pa.types.is_null(array.type):
        return absent(kind, len(array))
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_struct(kind) and pa.types.is_struct(array.type):
        received = {child.name: array.field(i) for i, child in enumerate(array.type)}
        unknown = sorted(set(received) - {child.name for child in kind})
        if unknown or len(received) < array.type.num_fields:
            raise SchemaVersionError(f"{path} has fields that no version up to this one knows: {', '.join(unknown)}")
        children = [
            conformed(received[child.name], child.type, f"{path}.{child.name}")
            if child.name in received
            else absent(child.type, len(array))
            for child in kind
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    if pa.types.is_list(kind) and (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        values = conformed(array.values, kind.value_type, f"{path}[]")
        return pa.ListArray.from_arrays(array.offsets.cast(pa.int32()), values, type=kind, mask=array.is_null())
    if array.type == kind:
        return array
    is_family = any(any(f(kind) for f in family) and any(f(array.type) for f in family) for family in _FAMILIES)
    if not is_family or (pa.types.is_timestamp(array.type) and array.type.tz is None):
        raise SchemaVersionError(f"{path} is of type {array.type}, not {kind}")
    try:
        return array.cast(kind)
    except pa.ArrowInvalid as error:
        raise SchemaVersionError(f"{path} holds a {array.type} that is no {kind}: {error}") from error
