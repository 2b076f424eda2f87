"""Read tables with the columns of an earlier edition in the columns of this version.

A derivation of an earlier edition of the passes can be read but not continued. Its tables keep the columns in which
they were written, and their digests count these columns alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Schema

from bardo_pipeline.errors import SchemaVersionError


@dataclass(frozen=True)
class Earlier:
    """Values of the columns that rows of earlier editions lack.

    Parameters
    ----------
    values : column -> expression over the columns of an earlier edition
    former : columns of earlier editions that this version does not write
    """

    values: Mapping[str, pc.Expression] = field(default_factory=dict)
    former: pa.Schema = field(default_factory=lambda: pa.schema([]))


NO_EARLIER = Earlier()


@dataclass(frozen=True)
class StoredColumns:
    """The columns of a table's files, compared with the columns that this version writes.

    Parameters
    ----------
    schema : columns of the files, with nulls in the columns of `absent`
    names : names of the columns that were written, in their order
    absent : nullable columns that the table lacks; its first append adds them
    values : expressions of the other columns that the table lacks; a table with any is read-only
    """

    schema: pa.Schema
    names: tuple[str, ...]
    absent: tuple[pa.Field, ...] = ()
    values: Mapping[str, pc.Expression] = field(default_factory=dict)

    @property
    def is_earlier(self) -> bool:
        """Whether an earlier edition wrote the table, so that this version cannot append to it."""
        return bool(self.values)

    def check_writable(self, path: Path) -> None:
        """Raise SchemaVersionError if an earlier edition wrote the table."""
        if self.is_earlier:
            raise SchemaVersionError(
                f"{path} has the columns of an earlier edition, which this version reads and does not write: "
                "`bardo whatif` derives the log by this version, and `bardo adopt` switches to it"
            )


def stored_columns(
    handle: DeltaTable,
    path: Path,
    schema: pa.Schema,
    earlier: Earlier = NO_EARLIER,
    *,
    more: Sequence[pa.Field] = (),
    grows: bool = False,
) -> StoredColumns:
    """Compare the columns of a table with `schema`.

    Raises SchemaVersionError for a column of another type, an unknown column, or a column without a value in its rows.

    Parameters
    ----------
    more : columns that the table has beside those of `schema`
    grows : the table may lack nullable columns, which its first append adds
    """
    written = {column.name: column for column in handle.schema().fields}
    expected = {column.name: column for column in Schema.from_arrow(pa.schema([*schema, *more])).fields}
    lacking = [column for column in schema if column.name not in written]
    values = {column.name: earlier.values[column.name] for column in lacking if column.name in earlier.values}
    absent = tuple(column for column in lacking if column.name not in values)
    former = [column for column in earlier.former if values and column.name in written]
    expected |= {column.name: column for column in Schema.from_arrow(pa.schema(former)).fields}
    fits = all(expected.get(name) == column for name, column in written.items())
    if not fits or not all(grows and column.nullable for column in absent):
        raise SchemaVersionError(
            f"{path} has other columns than this version writes: use the version that made it, or newer"
        )
    present = pa.schema([*(column for column in schema if column.name not in values), *former])
    return StoredColumns(present, tuple(written), absent, values)
