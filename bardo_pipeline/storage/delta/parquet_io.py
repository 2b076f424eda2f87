"""Parquet files of a table: how fresh ones are written, what a commit says of their columns, how they are read.

Source: facts ("Delta": ZSTD 1, statistics on few columns, no nested slices). ZSTD begins anew for each column: of a few
rows that takes a quarter to half of all the time, and Snappy, which need not, leaves nearly as few bytes of all but the
senders' JSON.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, reduce
from itertools import accumulate, groupby
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import fs

from bardo_pipeline.events.record.upcast import absent

_ZSTD_ROWS_MIN = 16_384
"""From so many rows on, ZSTD is worth its beginnings in every column; in one of bytes it always is."""


def write_fresh(
    path: Path, rows: pa.Table, schema: pa.Schema, *, stats: Sequence[str] = (), part_rows: int | None = None
) -> None:
    """Write rows to a file.

    stats: texts whose extremes count though the rows are few. part_rows: rows of each of its parts, if many.
    """
    leaves = [leaf for column in schema for leaf in leaves_of(column)]
    few = rows.num_rows < _ZSTD_ROWS_MIN
    told = {*stats, *(leaf for column in schema if (leaf := _telling(column)) is not None)}
    long = {leaf: not few or pa.types.is_binary(kind) for leaf, kind in leaves}
    with pq.ParquetWriter(
        path,
        schema,
        compression={leaf: "zstd" if zstd else "snappy" for leaf, zstd in long.items()},
        compression_level={leaf: 1 for leaf, zstd in long.items() if zstd} or None,
        # Text repeats, so it is worth a dictionary; numbers are not. Nobody finds a file by the extremes of lists, nor
        # few rows by those of most texts, which take a tenth of the writing.
        use_dictionary=[leaf for leaf, kind in leaves if pa.types.is_string(kind)],
        write_statistics=[
            leaf
            for leaf, kind in leaves
            if ".list." not in leaf and (leaf in told or not few or not pa.types.is_string(kind))
        ],
    ) as out:
        out.write_table(rows, part_rows)


def rows_in(path: Path) -> int:
    """How many rows a file says that it holds."""
    return _file(str(path)).rows


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
    """Rows of Parquet files, in the order of the paths; a path into structs becomes a column of that name.

    Of a column that a file holds only nulls of, nothing is read. FileNotFoundError where a file is gone.
    """
    names = list(schema.names if columns is None else columns)
    if not paths:
        return pa.schema([_field(schema, name) for name in names]).empty_table()
    files = [_file(path) for path in paths]
    if sum(file.rows for file in files) <= _FEW_ROWS:
        return _few(files, schema, names) if filter is None else _few_of(files, schema, names, filter)
    alike = groupby(files, key=lambda file: file.without.intersection(names))
    parts = [_read([f.path for f in several], schema, names, without, filter) for without, several in alike]
    return parts[0] if len(parts) == 1 else pa.concat_tables(parts)


class _File(NamedTuple):
    """A file whose footer is read. without: the columns of which it holds only nulls. held: columns read before."""

    path: str
    footer: pq.FileMetaData
    kinds: Mapping[str, pa.DataType]
    without: frozenset[str]
    held: dict[str, pa.Array]

    @property
    def rows(self) -> int:
        return int(self.footer.num_rows)

    def column(self, field: pa.Field) -> pa.Array | None:
        """A column, or a path into one, if it is held as this type."""
        found = self.held.get(field.name)
        return found if found is not None and found.type == field.type else None


_FORMAT, _DISK = ds.ParquetFileFormat(), fs.LocalFileSystem()
_FOOTERS_KEPT = 512
_HELD_BYTES = 131_072
"""So much is kept of what was read of a file: of all files that are kept no more than 64 MB."""

_NULLS_KEPT_ROWS = 64
_FEW_ROWS = 65_536


def _file(path: str) -> _File:
    found = os.stat(path)
    return _opened(path, found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=_FOOTERS_KEPT)
def _opened(path: str, size: int, changed_ns: int) -> _File:
    """A file of a table is written once: its footer is read once, unless somebody tampers with it."""
    with pq.ParquetFile(path) as file:
        footer, columns = file.metadata, file.schema_arrow
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    places = {groups[0].column(i).path_in_schema: i for i in range(footer.num_columns)} if groups else {}
    without = set()
    for field in columns:
        told = places.get(_telling(field) or "")
        if told is not None and all(_only_nulls(group.column(told), group.num_rows) for group in groups):
            without.add(field.name)
    return _File(path, footer, {field.name: field.type for field in columns}, frozenset(without), {})


def _telling(column: pa.Field) -> str | None:
    """The leaf of a column that is null where the column is and nowhere else, if there is one."""
    if not column.nullable or pa.types.is_list(column.type):
        return None
    name, kind = column.name, column.type
    while pa.types.is_struct(kind):
        below = next((c for c in kind if not c.nullable and not pa.types.is_list(c.type)), None)
        if below is None:
            return None
        name, kind = f"{name}.{below.name}", below.type
    return str(name)


def _only_nulls(chunk: pq.ColumnChunkMetaData, rows: int) -> bool:
    told = chunk.statistics
    return told is not None and told.has_null_count and told.null_count == rows


def _few_of(files: list[_File], schema: pa.Schema, names: list[str], filter: ds.Expression) -> pa.Table:
    """Columns of the rows that a filter asks for. Of a file that has none, only what the filter names is read."""
    named = set(_WORD.findall(str(filter))).intersection(schema.names)  # more than it asks for would do no harm
    told = _few(files, schema, sorted(named))
    kept = pc.fill_null(ds.dataset(told).to_table(columns={"kept": filter})["kept"].combine_chunks(), False)
    starts = accumulate((file.rows for file in files), initial=0)
    masks = [(file, kept.slice(start, file.rows)) for file, start in zip(files, starts, strict=False)]
    some = [(file, mask) for file, mask in masks if mask.true_count]
    if not some:
        return _few(files[:1], schema, names).slice(0, 0)
    return _few([file for file, _ in some], schema, names).filter(pa.concat_arrays([mask for _, mask in some]))


_WORD = re.compile(r"\w+")


def _few(files: list[_File], schema: pa.Schema, names: list[str]) -> pa.Table:
    """Columns of files of few rows, in their order; what is read of a small file is kept."""
    fields = [_field(schema, name) for name in names]
    parts = [_columns(file, schema, fields) for file in files]
    rows = [file.rows for file in files]
    together = [_joined(f.type, same, rows) for f, same in zip(fields, zip(*parts, strict=True), strict=True)]
    return pa.table(together, pa.schema(fields))


def _joined(kind: pa.DataType, parts: Sequence[pa.Array | None], rows: Sequence[int]) -> pa.Array:
    """A column of files, one after the other, of which some hold only nulls (None)."""
    runs: list[pa.Array] = []
    for empty, several in groupby(zip(parts, rows, strict=True), key=lambda part: part[0] is None):
        told = list(several)
        runs += [_nulls(kind, sum(count for _, count in told))] if empty else [part for part, _ in told]
    return runs[0] if len(runs) == 1 else pa.concat_arrays(runs)


def _field(schema: pa.Schema, name: str) -> pa.Field:
    """A column, or what a path into structs leads to."""
    first, *path = name.split(".")
    return reduce(lambda field, child: field.type.field(child), path, schema.field(first)).with_name(name)


def _columns(file: _File, schema: pa.Schema, fields: list[pa.Field]) -> list[pa.Array | None]:
    """Columns of one file, each as one array; None for what is known to hold only nulls."""
    found = {field.name: file.column(field) for field in fields}
    lacking = [name for name, column in found.items() if column is None and name not in file.without]
    if lacking:
        fresh = _fetched(file, schema, lacking)
        room = _HELD_BYTES - sum(column.nbytes for column in list(file.held.values()))  # other threads read it, too
        for name in lacking:
            found[name] = column = _one(fresh.column(name))
            room -= column.nbytes
            if room >= 0:
                file.held[name] = column
    return [found[field.name] for field in fields]


def _fetched(file: _File, schema: pa.Schema, names: list[str]) -> pa.Table:
    """Columns that are read of one file. Where it is of an older schema, Arrow's dataset knows what to make of it."""
    if any(file.kinds.get(first) != schema.field(first).type for first in {name.split(".")[0] for name in names}):
        return _read([file.path], schema, names, frozenset(), None)
    with pq.ParquetFile(file.path, metadata=file.footer) as opened:
        found = opened.read(names, use_threads=False)
    return pa.table({name: _leaf(found, name) for name in names})


def _leaf(table: pa.Table, name: str) -> pa.ChunkedArray:
    first, *path = name.split(".")
    return pc.struct_field(table.column(first), path) if path else table.column(first)


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _read(
    paths: list[str],
    schema: pa.Schema,
    names: list[str],
    without: frozenset[str],
    filter: ds.Expression | None,
) -> pa.Table:
    """Columns of files that hold only nulls of the same ones."""
    wanted = {name: ds.field(*name.split(".")) for name in names if name not in without}
    # A dataset of few columns is opened faster than one of many; a filter may want any of them.
    told = schema if filter is not None else pa.schema([schema.field(n) for n in {n.split(".")[0]: 0 for n in wanted}])
    files = [_FORMAT.make_fragment(path, _DISK) for path in paths]
    found = _filled(ds.FileSystemDataset(files, told, _FORMAT, _DISK).to_table(columns=wanted, filter=filter))
    if not without:
        return found
    fields = [(schema if name in without else found.schema).field(name) for name in names]
    columns = [_nulls(f.type, found.num_rows) if f.name in without else found[f.name] for f in fields]
    return pa.table(columns, pa.schema(fields))


def _nulls(kind: pa.DataType, count: int) -> pa.Array:
    return _few_nulls(kind, count) if count <= _NULLS_KEPT_ROWS else absent(kind, count)


_few_nulls = lru_cache(maxsize=4 * _FOOTERS_KEPT)(absent)


def _filled(table: pa.Table) -> pa.Table:
    """The rows, where a file lacks a struct of later times, with values below that null, as the schema promises."""
    for at, column in enumerate(table.schema):
        if pa.types.is_struct(column.type) and not all(child.nullable for child in column.type):
            chunks = table.column(at).chunks
            if any(chunk.null_count == len(chunk) > 0 for chunk in chunks):
                made = [_nulls(c.type, len(c)) if c.null_count == len(c) else c for c in chunks]
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
