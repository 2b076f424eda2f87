"""Schema versions of records, and conversion of rows of older versions. Pure.

Conversion adds columns; values, digests and the version number of a record stay.
Version 1: HB S6. Version 2: `pipeline` and `sealed` are new (null before), `forced_by` may be "reorg".
Version 3: `dream_tag` is new (null before).
"""

from __future__ import annotations

import pyarrow as pa

from bardo_pipeline.errors import SchemaVersionError

ADDED_LATER = frozenset({"pipeline", "sealed", "dream_tag"})
"""Columns added after version 1; their nulls do not count in row digests and golem slices."""


def absent(kind: pa.DataType, count: int) -> pa.Array:
    """Return `count` nulls. A null struct has values in its non-nullable fields."""
    if not pa.types.is_struct(kind) or count == 0:
        return pa.nulls(count, kind)
    children = [absent(child.type, count) if child.nullable else pa.repeat(_zero(child.type), count) for child in kind]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=pa.repeat(True, count))


def _zero(kind: pa.DataType) -> pa.Scalar:
    if pa.types.is_struct(kind):
        return pa.scalar({child.name: _zero(child.type).as_py() for child in kind}, kind)
    empty: object = (
        "" if pa.types.is_string(kind) else b"" if pa.types.is_binary(kind) else [] if pa.types.is_list(kind) else 0
    )
    return pa.scalar(bool(empty) if pa.types.is_boolean(kind) else empty, kind)


def upcast(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows in the current schema, with nulls in later columns.

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
