"""One append-only Delta table: written exactly once, read by what is new. Nothing here changes or removes a row.

Source: facts ("Delta"): a kept handle, ZSTD 1, statistics on few columns, no clean-up at a commit, no nested slices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote
from uuid import uuid4

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import (
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    Schema,
    Transaction,
)
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction

from bardo_pipeline.errors import SchemaVersionError, StoreError
from bardo_pipeline.events.upcast import absent
from bardo_pipeline.policy import Policy

_RETRIES = 200  # four processes lost none at 200; the default of 15 failed once in 1,200 (facts)
_CHECKPOINT_COMMITS = 20  # a commit costs 10 ms behind a checkpoint and 25 ms a hundred commits after it
_HOOKS = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)


@dataclass(frozen=True)
class DataFile:
    """A Parquet file of the table: its absolute path and how many rows it holds."""

    path: str
    rows: int


class AppendOnlyTable:
    """A Delta table that only grows.

    path: its folder; made, with its parents, where it is missing. schema: the Arrow schema of its rows.
    stats_columns: top-level columns whose smallest and largest value a file is found by.
    Raises SchemaVersionError when the table on disk has other columns than `schema`.
    """

    def __init__(
        self, path: Path, schema: pa.Schema, stats_columns: list[str], *, policy: Policy | None = None
    ) -> None:
        self.path, self.schema = path, schema
        self._log = path / "_delta_log"
        self._reopen_commits = (policy or Policy()).log.reopen_commits
        self._commits = 0
        self._stats_columns = tuple(stats_columns)
        leaves = [leaf for column in schema for leaf in _leaves(column)]
        # Text repeats, so it is worth a dictionary; numbers are not. Nobody finds a file by the extremes of lists.
        self._dictionaries = [path for path, kind in leaves if pa.types.is_string(kind)]
        self._extremes = [path for path, _ in leaves if ".list." not in path]
        try:
            self._handle = DeltaTable(path)
        except TableNotFoundError:
            self._handle = _create(path, schema, stats_columns)
        self._lacks = self._missing_columns()

    def _missing_columns(self) -> list[pa.Field]:
        """Columns that came after the table was made; the first append adds them."""
        known = {field.name: field for field in self._handle.schema().fields}
        wanted = {field.name: field for field in Schema.from_arrow(self.schema).fields}
        lacking = [column for column in self.schema if column.name not in known]
        if any(wanted.get(name) != field for name, field in known.items()) or not all(c.nullable for c in lacking):
            raise SchemaVersionError(
                f"{self.path} has other columns than this version writes: use the version that made it"
            )
        return lacking

    @property
    def table_id(self) -> str:
        """The id that Delta gave this table when it was made."""
        return str(self._handle.metadata().id)

    @property
    def version(self) -> int:
        """The newest committed version, whoever wrote it."""
        self._refresh()
        return int(self._handle.version())

    def transaction_version(self, app: str) -> int | None:
        """The newest transaction of this app that is committed; None when there is none."""
        self._refresh()
        found = self._committed(app)
        return None if found < 0 else found

    def append(
        self, table: pa.Table, *, transactions: Mapping[str, int], facts: Mapping[str, str] | None = None
    ) -> int | None:
        """Append the rows as one commit, marked with these transactions (app to a number that only rises).

        facts: text kept in the commit itself (see `facts`).

        Returns the commit's version, or None when all of them are on record already and nothing was written.
        Raises StoreError when only some are on record, or when Delta did not take every row.
        """
        assert table.schema.equals(self.schema), f"{self.path} was given other columns than its own"
        self._renew()
        if self._done(transactions):
            return None
        if self._lacks:
            self._handle.alter.add_columns(Schema.from_arrow(pa.schema(self._lacks)).fields)
            self._lacks = []
            self._reopen()
        add = self._write(whole(table), table.num_rows)
        try:
            self._handle.create_write_transaction(
                [add],
                "append",
                self._handle.schema(),
                commit_properties=CommitProperties(
                    app_transactions=[Transaction(app, number) for app, number in transactions.items()],
                    custom_metadata=dict(facts or {}),
                    max_commit_retries=_RETRIES,
                ),
                post_commithook_properties=_HOOKS,
            )
        except CommitFailedError as error:
            (self.path / add.path).unlink()
            self._reopen()
            if self._done(transactions):
                return None
            raise StoreError(f"{self.path}: a commit failed: {error}") from error
        self._commits += 1
        return self._version_of(add)

    def _version_of(self, add: AddAction) -> int:
        """The commit that names the file: the next one, or a later one if others were faster."""
        before = int(self._handle.version())
        self._handle.update_incremental()
        name = self._absolute(add.path)
        for version in range(before + 1, int(self._handle.version()) + 1):
            if any(file.path == name for file in self._added(version) or ()):
                return version
        raise StoreError(f"{self.path}: no version after {before} names {add.path}, though its commit succeeded")

    def _write(self, rows: pa.Table, expected: int) -> AddAction:
        """The rows as a Parquet file that no commit names yet.

        pyarrow writes it: Delta would check NOT NULL in every leaf, in twice the time, of rows that were checked.
        """
        name = f"part-00000-{uuid4()}-c000.zstd.parquet"
        written: list[pq.FileMetaData] = []
        with pq.ParquetWriter(
            self.path / name,
            self.schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=self._dictionaries,
            write_statistics=self._extremes,
            metadata_collector=written,
        ) as out:
            out.write_table(rows)
        count = sum(file.num_rows for file in written)
        if not count == rows.num_rows == expected:
            raise StoreError(f"{self.path}: {count} rows were written of {expected} that were given")
        stats = orjson.dumps({"numRecords": count, **self._bounds(rows)}).decode()
        made = (self.path / name).stat()
        return AddAction(name, made.st_size, {}, made.st_mtime_ns // 1_000_000, True, stats)

    def _bounds(self, rows: pa.Table) -> dict[str, dict[str, object]]:
        """Smallest and largest value and count of nulls of the columns by which a file is found."""
        bounds: dict[str, dict[str, object]] = {"minValues": {}, "maxValues": {}, "nullCount": {}}
        for name in self._stats_columns:
            column = rows.column(name)
            ends = pc.min_max(column).as_py()
            bounds["nullCount"][name] = column.null_count
            if ends["min"] is not None:
                bounds["minValues"][name], bounds["maxValues"][name] = ends["min"], ends["max"]
        return bounds

    def facts(self) -> dict[str, str]:
        """The text that the newest commit carries."""
        self._refresh()
        return {k: v for k, v in self._handle.history(1)[0].items() if isinstance(v, str)}

    def files(self, since_version: int | None = None) -> list[str]:
        """Absolute paths of the files that hold the rows committed after a version; of all rows for None.

        Where the log's JSON was cleaned up since then, all files: a reader must bear rows that it has seen.
        """
        return [file.path for file in self.tail(since_version)[1]]

    def tail(self, since_version: int | None = None, until_version: int | None = None) -> tuple[int, list[DataFile]]:
        """The newest version, and the files as `files` gives them, of one and the same moment.

        until_version: be a reader of that version instead: nothing that came after it is there, compacted or not.
        """
        newest = self.version
        version = newest if until_version is None else until_version
        assert version <= newest, f"{self.path} has no version {version} yet"
        files = None if since_version is None else self._between(since_version, version)
        if files is None:
            files = self._active(self._handle if version == newest else DeltaTable(self.path, version=version))
        return version, files

    def overlapping(self, bounds: Mapping[str, tuple[object, object]]) -> list[str]:
        """Paths of the active files that may hold rows within all these bounds (column to smallest and largest)."""
        self._refresh()
        actions = pa.table(self._handle.get_add_actions(flatten=True))
        if actions.num_rows == 0:
            return []
        for column, (low, high) in bounds.items():
            least, most = actions.column(f"min.{column}"), actions.column(f"max.{column}")
            meets = pc.and_(pc.less_equal(least, pa.scalar(high)), pc.greater_equal(most, pa.scalar(low)))
            actions = actions.filter(pc.fill_null(meets, True))
        return [self._absolute(path) for path in actions.column("path").to_pylist()]

    def read(
        self,
        columns: Sequence[str] | None = None,
        since_version: int | None = None,
        filter: ds.Expression | None = None,
    ) -> pa.Table:
        """Rows committed after a version (all for None), in no promised order.

        columns: names, or paths into structs ("observation.price"), which come back under that path; all for None.
        Raises StoreError when a file holds fewer rows than its commit says.
        """
        return self.load(self.tail(since_version)[1], columns, filter)

    def load(
        self,
        files: Sequence[DataFile],
        columns: Sequence[str] | None = None,
        filter: ds.Expression | None = None,
    ) -> pa.Table:
        """The rows of these files; see `read`."""
        found = scan([file.path for file in files if file.rows], self.schema, columns, filter)
        expected = sum(file.rows for file in files)
        if filter is None and found.num_rows != expected:
            raise StoreError(f"{self.path}: read {found.num_rows} rows of {expected} on record")
        return found

    def _done(self, transactions: Mapping[str, int]) -> bool:
        done = [app for app, number in transactions.items() if self._committed(app) >= number]
        if done and len(done) < len(transactions):
            raise StoreError(f"{self.path}: of one commit's transactions only {', '.join(sorted(done))} are on record")
        return bool(transactions) and len(done) == len(transactions)

    def _committed(self, app: str) -> int:
        found = self._handle.transaction_version(app)
        return -1 if found is None else int(found)

    def _refresh(self) -> None:
        # A commit is a file with the next number; looking for it costs nothing, asking Delta lists the whole log.
        if (self._log / f"{int(self._handle.version()) + 1:020}.json").exists():
            self._handle.update_incremental()

    def _renew(self) -> None:
        if self._commits >= self._reopen_commits:
            self._reopen()
        else:
            self._refresh()

    def _reopen(self) -> None:
        self._handle, self._commits = DeltaTable(self.path), 0

    def _active(self, handle: DeltaTable) -> list[DataFile]:
        actions = pa.table(handle.get_add_actions(flatten=True)).select(["path", "num_records"])
        found = [DataFile(self._absolute(row["path"]), int(row["num_records"])) for row in actions.to_pylist()]
        return sorted(found, key=lambda file: file.path)

    def _between(self, since_version: int, until_version: int) -> list[DataFile] | None:
        """Files with the rows of these commits; None when the JSON of one of them is gone."""
        found: list[DataFile] = []
        for version in range(since_version + 1, until_version + 1):
            added = self._added(version)
            if added is None:
                return None
            found.extend(added)
        return found

    def _added(self, version: int) -> list[DataFile] | None:
        """Files that a commit added with new rows; None when the commit's JSON is gone."""
        try:
            lines = (self._log / f"{version:020}.json").read_bytes().splitlines()
        except FileNotFoundError:
            return None
        adds = [action["add"] for line in lines if (action := orjson.loads(line)).get("add")]
        return [
            DataFile(self._absolute(add["path"]), int(orjson.loads(add["stats"])["numRecords"]))
            for add in adds
            if add["dataChange"]
        ]

    def _absolute(self, path: str) -> str:
        return str(self.path.absolute() / unquote(path))


def _leaves(column: pa.Field) -> Iterator[tuple[str, pa.DataType]]:
    """Parquet path and type of each leaf below a column."""
    if pa.types.is_struct(column.type):
        below = (leaf for child in column.type for leaf in _leaves(child))
        yield from ((f"{column.name}.{path}", kind) for path, kind in below)
    elif pa.types.is_list(column.type):
        yield from ((f"{column.name}.list.{path}", kind) for path, kind in _leaves(column.type.value_field))
    else:
        yield column.name, column.type


def _create(path: Path, schema: pa.Schema, stats_columns: Sequence[str]) -> DeltaTable:
    path.mkdir(parents=True, exist_ok=True)
    return DeltaTable.create(
        path,
        schema,
        mode="ignore",
        configuration={
            "delta.appendOnly": "true",
            "delta.dataSkippingStatsColumns": ",".join(stats_columns),
            "delta.checkpointInterval": str(_CHECKPOINT_COMMITS),
        },
    )


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
