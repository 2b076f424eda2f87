"""Loose tables: rows that came from elsewhere, under a schema in which all may be null; and back to the one they claim.

Arrow's JSON reader takes no null below a struct that may itself be null unless everything may be, and other writers of
Arrow mark nullability, name list elements and measure moments as they like. What a schema does not allow stays null
here: `row_errors` finds it.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.errors import SchemaVersionError
from bardo_pipeline.events.record.upcast import absent


def loosened(schema: pa.Schema, moments: pa.DataType | None = None) -> pa.Schema:
    """The same columns where everything may be null. moments: another type for them."""
    return pa.schema([pa.field(column.name, _loosened(column.type, moments)) for column in schema])


def _loosened(kind: pa.DataType, moments: pa.DataType | None) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(child.name, _loosened(child.type, moments)) for child in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _loosened(kind.value_type, moments)))
    return moments if moments is not None and pa.types.is_timestamp(kind) else kind


def tightened(loose: pa.Table, schema: pa.Schema) -> pa.Table:
    """A loose table, its columns in one chunk each and no slice, under the schema it came from. Copies nothing."""
    columns = [_tightened(_whole(loose.column(column.name)), column, None) for column in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    assert column.num_chunks <= 1, "a loose table is read in one piece"
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def _tightened(array: pa.Array, column: pa.Field, hole: pa.Array | None) -> pa.Array:
    """hole: where the struct around it is null, so that some value has to lie where none may be null."""
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
"""Types that hold the same kind of value; a moment needs its zone."""


def conformed(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    """An array that another writer made, under a loosened type: struct children by name, absent ones null.

    Raises SchemaVersionError for a child that the type does not know or that is of another family.
    """
    if pa.types.is_null(array.type):
        return absent(kind, len(array))
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_struct(kind) and pa.types.is_struct(array.type):
        given = {child.name: array.field(i) for i, child in enumerate(array.type)}
        unknown = sorted(set(given) - {child.name for child in kind})
        if unknown or len(given) < array.type.num_fields:
            raise SchemaVersionError(f"{path} has fields that no version up to this one knows: {', '.join(unknown)}")
        children = [
            conformed(given[child.name], child.type, f"{path}.{child.name}")
            if child.name in given
            else absent(child.type, len(array))
            for child in kind
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    if pa.types.is_list(kind) and (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        values = conformed(array.values, kind.value_type, f"{path}[]")
        return pa.ListArray.from_arrays(array.offsets.cast(pa.int32()), values, type=kind, mask=array.is_null())
    if array.type == kind:
        return array
    alike = any(any(f(kind) for f in family) and any(f(array.type) for f in family) for family in _FAMILIES)
    if not alike or (pa.types.is_timestamp(array.type) and array.type.tz is None):
        raise SchemaVersionError(f"{path} is of type {array.type}, not {kind}")
    try:
        return array.cast(kind)
    except pa.ArrowInvalid as error:
        raise SchemaVersionError(f"{path} holds a {array.type} that is no {kind}: {error}") from error
