"""Read and write the Parquet files of Delta tables, and describe their columns to a commit.

Source: facts ("Delta": ZSTD 1, statistics on few columns, no nested slices).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import fs

from bardo_pipeline.errors import DamagedError
from bardo_pipeline.events.record.arrow_columns import absent
from bardo_pipeline.storage.checksums import check_files, named_by_checksum
from bardo_pipeline.storage.delta.earlier_columns import StoredColumns

T = TypeVar("T")


def write_parquet(
    path: Path, rows: pa.Table, schema: pa.Schema, *, stats: Sequence[str], row_group_rows: int | None = None
) -> Path:
    """Write rows to a Parquet file with ZSTD level 1; return its path, to whose name the file's checksum is added.

    Strings are dictionary-encoded because they repeat; numbers seldom do. Columns without a value are neither encoded
    nor compressed, which halves the time of a small file of life events. Min/max statistics are limited to the
    columns by which readers prune, because each further column costs writing time.

    Parameters
    ----------
    stats : names of the top-level columns that get min/max statistics
    row_group_rows : largest number of rows in a row group; None for the default of pyarrow
    """
    filled = [column for column in schema if rows.column(column.name).null_count < rows.num_rows]
    leaves = [leaf for column in filled for leaf in leaves_of(column)]
    with pq.ParquetWriter(
        path,
        schema,
        compression={leaf: "zstd" for leaf, _ in leaves},
        compression_level={leaf: 1 for leaf, _ in leaves},
        use_dictionary=[leaf for leaf, kind in leaves if pa.types.is_string(kind)],
        write_statistics=list(stats),
        write_page_checksum=True,
    ) as out:
        out.write_table(rows, row_group_rows)
    return named_by_checksum(path)


def bounds_of(rows: pa.Table, columns: Sequence[str]) -> dict[str, dict[str, object]]:
    """Return minimum, maximum and null count of columns, in the format of the Delta protocol."""
    bounds: dict[str, dict[str, object]] = {"minValues": {}, "maxValues": {}, "nullCount": {}}
    for name in columns:
        column = rows.column(name)
        ends = pc.min_max(column).as_py()
        bounds["nullCount"][name] = column.null_count
        if ends["min"] is not None:
            bounds["minValues"][name], bounds["maxValues"][name] = ends["min"], ends["max"]
    return bounds


def leaves_of(column: pa.Field) -> Iterator[tuple[str, pa.DataType]]:
    """Yield Parquet path and type of each leaf of a column."""
    if pa.types.is_struct(column.type):
        below = (leaf for child in column.type for leaf in leaves_of(child))
        yield from ((f"{column.name}.{path}", kind) for path, kind in below)
    elif pa.types.is_list(column.type):
        yield from ((f"{column.name}.list.{path}", kind) for path, kind in leaves_of(column.type.value_field))
    else:
        yield column.name, column.type


def scan(
    paths: Sequence[str],
    schema: pa.Schema,
    columns: Sequence[str] | None = None,
    filter: ds.Expression | None = None,
    stored: StoredColumns | None = None,
) -> pa.Table:
    """Read rows of Parquet files, in the order of the paths, and verify checksums of files and pages.

    Raises FileNotFoundError for a missing file, DamagedError for an altered one.

    Parameters
    ----------
    columns : names or dotted paths into structs ("observation.price"), which name the resulting columns; None for all
    stored : columns of the files, if they may differ from `schema`
    """
    values = {} if stored is None else stored.values
    source = stored.schema if stored is not None and values else schema
    names = schema.names if columns is None else columns
    projection = {name: values.get(name, ds.field(*name.split("."))) for name in names}
    check_files(paths)
    files = [_FORMAT.make_fragment(path, _DISK) for path in paths]
    try:
        rows = _filled(ds.FileSystemDataset(files, source, _FORMAT, _DISK).to_table(columns=projection, filter=filter))
        if values:
            rows = rows.cast(pa.schema([schema.field(n) if n in values else rows.schema.field(n) for n in names]))
        return rows
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        where = (
            paths[0] if len(paths) == 1 else next((path for path in paths if path in str(error)), Path(paths[0]).parent)
        )
        raise DamagedError(where, str(error).splitlines()[0]) from error


_FORMAT = ds.ParquetFileFormat(
    default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True)
)
_DISK = fs.LocalFileSystem()


def _filled(table: pa.Table) -> pa.Table:
    """Fill the null structs of files that lack a newer column, so that their non-nullable children hold values."""
    for at, column in enumerate(table.schema):
        if pa.types.is_struct(column.type) and not all(child.nullable for child in column.type):
            chunks = table.column(at).chunks
            if any(chunk.null_count == len(chunk) > 0 for chunk in chunks):
                filled = [absent(c.type, len(c)) if c.null_count == len(c) else c for c in chunks]
                table = table.set_column(at, column, pa.chunked_array(filled, column.type))
    return table


def portions(items: Iterable[T], rows_of: Callable[[T], int], rows_max: int) -> Iterator[list[T]]:
    """Yield the items in lists of at most `rows_max` rows in total; a larger item has a list of its own."""
    portion: list[T] = []
    rows = 0
    for item in items:
        if portion and rows + rows_of(item) > rows_max:
            yield portion
            portion, rows = [], 0
        portion.append(item)
        rows += rows_of(item)
    if portion:
        yield portion
