"""Parquet files of a table: how fresh ones are written, what a commit says of their columns, how they are read.

Source: facts ("Delta": ZSTD 1, statistics on few columns, no nested slices).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from bardo_pipeline.events.upcast import absent


def write_fresh(path: Path, rows: pa.Table, schema: pa.Schema) -> int:
    """Write rows to a file; returns how many it says that it holds."""
    leaves = [leaf for column in schema for leaf in leaves_of(column)]
    with pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        compression_level=1,
        # Text repeats, so it is worth a dictionary; numbers are not. Nobody finds a file by the extremes of lists.
        use_dictionary=[leaf for leaf, kind in leaves if pa.types.is_string(kind)],
        write_statistics=[leaf for leaf, _ in leaves if ".list." not in leaf],
    ) as out:
        out.write_table(rows)
    return int(pq.read_metadata(path).num_rows)


def bounds_of(rows: pa.Table, columns: Sequence[str]) -> dict[str, dict[str, object]]:
    """Smallest and largest value and count of nulls of columns, as the Delta protocol spells it."""
    bounds: dict[str, dict[str, object]] = {"minValues": {}, "maxValues": {}, "nullCount": {}}
    for name in columns:
        column = rows.column(name)
        ends = pc.min_max(column).as_py()
        bounds["nullCount"][name] = column.null_count
        if ends["min"] is not None:
            bounds["minValues"][name], bounds["maxValues"][name] = ends["min"], ends["max"]
    return bounds


def leaves_of(column: pa.Field) -> Iterator[tuple[str, pa.DataType]]:
    """Parquet path and type of each leaf below a column."""
    if pa.types.is_struct(column.type):
        below = (leaf for child in column.type for leaf in leaves_of(child))
        yield from ((f"{column.name}.{path}", kind) for path, kind in below)
    elif pa.types.is_list(column.type):
        yield from ((f"{column.name}.list.{path}", kind) for path, kind in leaves_of(column.type.value_field))
    else:
        yield column.name, column.type


def scan(
    paths: Sequence[str], schema: pa.Schema, columns: Sequence[str] | None = None, filter: ds.Expression | None = None
) -> pa.Table:
    """Rows of Parquet files, in the order of the paths; a path into structs becomes a column of that name."""
    wanted = None if columns is None else {name: ds.field(*name.split(".")) for name in columns}
    if paths:
        found = ds.dataset(list(paths), schema=schema, format="parquet").to_table(columns=wanted, filter=filter)
        return _filled(found)
    return ds.dataset(schema.empty_table()).to_table(columns=wanted)


def _filled(table: pa.Table) -> pa.Table:
    """The rows, where a file lacks a struct of later times, with values below that null, as the schema promises."""
    for at, column in enumerate(table.schema):
        if pa.types.is_struct(column.type) and not all(child.nullable for child in column.type):
            chunks = table.column(at).chunks
            if any(chunk.null_count == len(chunk) > 0 for chunk in chunks):
                made = [absent(c.type, len(c)) if c.null_count == len(c) else c for c in chunks]
                table = table.set_column(at, column, pa.chunked_array(made, column.type))
    return table


def whole(table: pa.Table) -> pa.Table:
    """The same rows with no slice in them: nested Arrow at an offset aborts Delta and empties LanceDB (facts)."""
    if not any(_sliced(chunk) for column in table.columns for chunk in column.chunks):
        return table
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as out:
        out.write_table(table)
    return pa.ipc.open_stream(sink.getvalue()).read_all()


def _sliced(array: pa.Array) -> bool:
    if array.offset:
        return True
    if pa.types.is_struct(array.type):
        return any(_sliced(array.field(i)) for i in range(array.type.num_fields))
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        return _sliced(array.values) or (len(array) > 0 and array.offsets[0].as_py() != 0)
    return False
