"""An append-only Delta table with exactly-once commits and reads since a version.

Source: facts ("Delta"): a kept handle, statistics on few columns, no clean-up at a commit, no nested slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError

from bardo_pipeline.errors import DamagedError, StoreError
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.delta import durable_commits as commits
from bardo_pipeline.storage.delta.checksum_manifest import Sums
from bardo_pipeline.storage.delta.durable_commits import Added, Commits, StoredFile
from bardo_pipeline.storage.delta.earlier_columns import NO_EARLIER, Earlier, StoredColumns, stored_columns
from bardo_pipeline.storage.delta.files_by_version import DataFile, absolute, files_added, within
from bardo_pipeline.storage.delta.parquet_io import portions, scan, write_parquet
from bardo_pipeline.storage.delta.table_digest import EMPTY, Digest
from bardo_pipeline.storage.home import sync_file, sync_folder, writing_to

_PART_ROWS = 100_000
_READ_ATTEMPTS = 5  # a reader retries if compaction deleted a file before it was opened

Facts = Mapping[str, str]
"""Texts stored in a commit."""


class Part(NamedTuple):
    """Some rows of a read in one chunk, and whether they are the last."""

    rows: pa.Table
    is_last: bool


class AppendOnlyTable:
    """An append-only Delta table, created with its folders if missing.

    Raises SchemaVersionError if the table on disk has other columns than `schema`.

    Parameters
    ----------
    stats_columns : top-level columns with min/max statistics, by which files are pruned
    durable : commits survive a power cut
    sums : checksum manifest of the table's files
    by_version : the column `version` names the commit of each row
    earlier : values of the columns that a table of an earlier edition lacks; such a table is read-only
    """

    def __init__(
        self,
        path: Path,
        schema: pa.Schema,
        stats_columns: list[str],
        *,
        policy: Policy | None = None,
        durable: bool = True,
        sums: Sums | None = None,
        by_version: bool = False,
        earlier: Earlier = NO_EARLIER,
    ) -> None:
        self.path, self.schema, self.by_version, self._durable, self._sums = path, schema, by_version, durable, sums
        self._log = path / "_delta_log"
        self._reopen_commits = (policy or Policy()).log.reopen_commits
        self._checkpoint: int | None = None
        self._facts: tuple[int, Facts] = (-1, {})
        self._stats_columns = tuple(stats_columns)
        try:
            self._handle = commits.opened(path)
        except TableNotFoundError:
            configuration = {"delta.appendOnly": "true", "delta.dataSkippingStatsColumns": ",".join(stats_columns)}
            with writing_to(path):
                commits.make_table(path, schema, configuration, durable=durable)
            self._handle = commits.opened(path)
        self._opened_at = int(self._handle.version())
        self._commits = Commits(path, self._opened_at)
        if sums is not None:
            sums.follow(self._opened_at)  # add lines that a killed process did not write
        self._earlier = earlier
        self.columns = self._compared_columns()
        """The columns of the table's files."""

    def opened_state(self) -> tuple[dict[str, object], int]:
        """Return the facts of the commit at which the table was opened, and the rows of its files there."""
        facts = commits.facts_of(commits.commit_path(self.path, self._opened_at))
        return facts, sum(file.rows for file in commits.stored_files(self._handle))

    def _compared_columns(self) -> StoredColumns:
        return stored_columns(self._handle, self.path, self.schema, self._earlier, grows=True)

    @property
    def table_id(self) -> str:
        """Id of the table in its Delta metadata."""
        return str(self._handle.metadata().id)

    @property
    def version(self) -> int:
        """Newest committed version of any process."""
        return self._commits.version

    def _delta(self) -> DeltaTable:
        """Return a Delta handle at the newest version, reopened at times because handles slow down with each commit."""
        newest = self.version
        if newest - self._opened_at >= self._reopen_commits:
            self._handle, self._opened_at = commits.opened(self.path), newest
        elif newest > int(self._handle.version()):
            try:
                for version in range(int(self._handle.version()) + 1, newest + 1):
                    commits.actions_of(commits.commit_path(self.path, version))
                self._handle.update_incremental()
            except FileNotFoundError:  # maintenance deleted commits before a checkpoint
                self._handle, self._opened_at = commits.opened(self.path), newest
        self._commits.at = max(newest, int(self._handle.version()))
        return self._handle

    def transaction_version(self, app: str) -> int | None:
        """Return the newest committed transaction number of an app; None without one."""
        return self._commits.transaction(app)

    def append(
        self, table: pa.Table, *, transactions: Mapping[str, int], facts: Callable[[Facts], Facts] | None = None
    ) -> int | None:
        """Append the rows in one commit with these transactions (app -> increasing number).

        Returns the version, or None if all transactions were committed before. Raises StoreError if only some of them
        were committed, or if the disk refuses the rows.

        Parameters
        ----------
        facts : makes the facts of the commit from those of the commit before, which may be of another process
        """
        self.checkpointed_version()
        if self.done(transactions):
            return None
        return self.commit([self.write(table)], transactions=transactions, facts=facts)

    def write(self, rows: pa.Table) -> Added:
        """Write the rows to a Parquet file without committing it. Raises StoreError and deletes a partial file.

        pyarrow writes the file because Delta checks NOT NULL in every leaf again, which doubles the time.
        """
        assert rows.schema.equals(self.schema), f"{self.path}: the rows have other columns than the table"
        self.columns.check_writable(self.path)
        path = self.path / f"part-00000-{uuid4()}-c000.parquet"
        try:
            with writing_to(self.path):
                path = write_parquet(path, rows, self.schema, stats=self._stats_columns)
                if (count := pq.read_metadata(path).num_rows) != rows.num_rows:
                    raise StoreError(f"{self.path}: only {count} of {rows.num_rows} rows were written")
                if self._durable:
                    sync_file(path)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return self.described(path.name, rows)

    def described(self, name: str, rows: pa.Table) -> Added:
        """Describe a file with these rows for a commit."""
        return commits.described(self.path, name, rows, self._stats_columns)

    def discard(self, adds: Sequence[Added]) -> None:
        """Delete files, unless a commit names them: a failed write may have created the commit."""
        try:
            committed = {file.path for file in self.stored()}
        except (OSError, DeltaError, DamagedError):
            return  # maintenance deletes them later
        for add in adds:
            if add.path not in committed:
                (self.path / add.path).unlink(missing_ok=True)

    def commit(
        self,
        adds: Sequence[Added],
        *,
        transactions: Mapping[str, int],
        facts: Callable[[Facts], Facts] | None = None,
        version: int | None = None,
    ) -> int | None:
        """Commit files; see `append`. Without a commit, the files are deleted.

        Raises StoreError if the version is taken or the disk refuses the commit.

        Parameters
        ----------
        version : required version of the commit; None for the next one
        """
        committed = None
        try:
            with writing_to(self.path):
                if self._durable:
                    sync_folder(self.path)
                committed = self._put(adds, transactions, facts, version)
        finally:
            if committed is None:
                self.discard(adds)
        if committed is None:
            return None
        with writing_to(self.path):
            if self._durable:
                sync_folder(self._log)
        self._commits.at, self.columns = committed, replace(self.columns, absent=())
        if self._checkpoint is not None:
            with suppress(OSError):  # the pointer only saves time
                commits.point_to(self.path, self._checkpoint)
            self._checkpoint = None
        if self._sums is not None:
            self._sums.follow(committed)
        return committed

    def _put(
        self,
        adds: Sequence[Added],
        transactions: Mapping[str, int],
        facts: Callable[[Facts], Facts] | None,
        version: int | None,
    ) -> int | None:
        """Commit at the next free version; None if another process committed the transactions meanwhile."""
        while True:
            candidate = self._commits.at + 1
            if version is not None and candidate != version:
                raise StoreError(f"{self.path}: version {version} was taken meanwhile: retry")
            actions = commits.write_actions(
                "Append",
                max(add.modified_ms for add in adds),
                {} if facts is None else facts(self._facts_at(candidate - 1)),
                added=adds,
                transactions=transactions,
                metadata=self._widened_metadata(),
            )
            if commits.put_commit(self.path, candidate, actions, durable=self._durable):
                return candidate
            self._commits.at = candidate
            if self.done(transactions):
                return None

    def _widened_metadata(self) -> dict[str, object] | None:
        if not self.columns.absent:
            return None
        handle = self._delta()
        self.columns = self._compared_columns()  # another handle may have added columns meanwhile
        if not self.columns.absent:
            return None
        fields = [*handle.schema().fields, *Schema.from_arrow(pa.schema(self.columns.absent)).fields]
        return commits.metadata_as(handle, Schema(fields))

    def stored(self) -> list[StoredFile]:
        """Return the files of the newest version by path."""
        return commits.stored_files(self._delta())

    def replace(
        self,
        removed: Sequence[str],
        added: Sequence[Added],
        *,
        at: datetime,
        lock: AbstractContextManager[None],
        versions: Mapping[str, int] | None = None,
    ) -> int:
        """Replace files by others with the same rows, in a commit without a data change; return its version.

        Raises StoreError, and deletes the added files, unless both sides have the same rows when read back and the
        removed files are still in the table.

        Parameters
        ----------
        removed : paths as returned by `stored`
        lock : lock of appends, held during the commit only
        versions : commit versions of removed files that lack the column `version`
        """
        version_of = versions or {}
        before = sum((self._content(path, version_of.get(path)) for path in removed), EMPTY)
        after = sum((self._content(add.path, None) for add in added), EMPTY)
        if before != after:
            self.discard(added)
            raise StoreError(f"{self.path}: {after.rows} rows cannot replace {before.rows} different rows")
        try:
            with lock, writing_to(self.path):
                stored = {file.path: file for file in self.stored()}
                if missing := sorted(set(removed) - set(stored)):
                    raise StoreError(f"{self.path}: {missing[0]} is no longer in the table")
                for folder in {(self.path / add.path).parent for add in added}:
                    sync_folder(folder)
                version = self.version + 1
                old = [stored[path] for path in removed]
                actions = commits.compaction_actions(self.path, version, old, added, at)
                if not commits.put_commit(self.path, version, actions, durable=True):
                    raise StoreError(f"{self.path}: version {version} was taken meanwhile: try again")
                sync_folder(self._log)
        except BaseException:
            self.discard(added)
            raise
        if self._sums is not None:
            self._sums.follow(version)
        return version

    def _content(self, path: str, version: int | None) -> Digest:
        return Digest.of(self.raised(scan([self._absolute(path)], self.schema), version))

    def raised(self, rows: pa.Table, version: int | None) -> pa.Table:
        """Fill nulls in the column `version` if the version is given."""
        if version is None:
            return rows
        at = rows.schema.get_field_index("version")
        return rows.set_column(at, rows.schema.field(at), pc.fill_null(rows.column(at), version))

    def facts(self) -> Facts:
        """Return the texts stored in the newest commit."""
        return self._facts_at(self.version)

    def _facts_at(self, version: int) -> Facts:
        if self._facts[0] != version:
            facts = commits.facts_of(commits.commit_path(self.path, version))
            self._facts = version, {name: value for name, value in facts.items() if isinstance(value, str)}
        return self._facts[1]

    def tail(self, since_version: int | None = None, until_version: int | None = None) -> tuple[int, list[DataFile]]:
        """Return the newest version and its files with the rows after `since_version`, as one snapshot.

        After a compaction, older rows without a value in the column `version` may be returned again.

        Parameters
        ----------
        until_version : read this version instead of the newest one
        """
        newest = self.version
        version = newest if until_version is None else until_version
        assert version <= newest, f"{self.path} has no version {version} yet"
        since = None if since_version is None or since_version < 0 else since_version
        span = (since, until_version)
        return version, [replace(file, span=span) for file in self._files(since, version, newest)]

    def _files(self, since: int | None, version: int, newest: int) -> list[DataFile]:
        if since is not None:
            files = files_added(self.path, since, version)
            if files is not None:
                return files
        elif version < newest:
            with suppress(TableNotFoundError, DamagedError):  # maintenance removed the commit
                files = self._active(commits.opened(self.path, version))
                if all(file.exists for file in files):
                    return files
        only = within(since, version) if self.by_version and (since is not None or version < newest) else None
        return [replace(file, only=only) for file in self._active(self._delta())]

    def overlapping(self, bounds: Mapping[str, tuple[object, object]]) -> list[str]:
        """Return the paths of the files whose statistics overlap these bounds (column -> minimum and maximum)."""
        actions = pa.table(self._delta().get_add_actions(flatten=True))
        if actions.num_rows == 0:
            return []
        for column, (low, high) in bounds.items():
            least, most = actions.column(f"min.{column}"), actions.column(f"max.{column}")
            overlaps = pc.and_(pc.less_equal(least, pa.scalar(high)), pc.greater_equal(most, pa.scalar(low)))
            actions = actions.filter(pc.fill_null(overlaps, True))
        return [self._absolute(path) for path in actions.column("path").to_pylist()]

    def read(
        self,
        columns: Sequence[str] | None = None,
        since_version: int | None = None,
        filter: ds.Expression | None = None,
    ) -> pa.Table:
        """Read the rows committed after a version (None: all) in any order.

        Raises StoreError if a file has fewer rows than its commit says.

        Parameters
        ----------
        columns : names or dotted paths into structs ("observation.price"), which name the result; None for all
        """
        return self.load(self.tail(since_version)[1], columns, filter)

    def load(
        self, files: Sequence[DataFile], columns: Sequence[str] | None = None, filter: ds.Expression | None = None
    ) -> pa.Table:
        """Read the rows of these files; see `read`."""
        for _ in range(_READ_ATTEMPTS):
            try:
                return self._loaded(files, columns, filter)
            except FileNotFoundError:  # maintenance deleted a compacted file since `tail`: find its rows in newer files
                spans = {file.span for file in files}
                assert len(spans) == 1, "all files come from one call of `tail`"
                (since, until), *_ = (span for span in spans if span is not None)
                files = self.tail(since, until)[1]
        if missing := [file for file in files if not file.exists]:
            raise DamagedError(missing[0].path, "it is missing")
        raise StoreError(
            f"{self.path} is compacted faster than it can be read: increase the grace period of maintenance"
        )

    def _loaded(
        self, files: Sequence[DataFile], columns: Sequence[str] | None, filter: ds.Expression | None
    ) -> pa.Table:
        plain = [file for file in files if file.only is None]
        rows = self._scanned([file.path for file in plain if file.rows], columns, filter)
        expected = sum(file.rows for file in plain)
        if filter is None and rows.num_rows != expected:
            raise DamagedError(self.path, f"it holds {rows.num_rows} of {expected} rows")
        parts = [rows]
        for file in files:
            if file.only is not None:
                condition = file.only if filter is None else file.only & filter
                parts.append(self._scanned([file.path], columns, condition))
        return rows if len(parts) == 1 else pa.concat_tables(parts)

    def _scanned(self, paths: Sequence[str], columns: Sequence[str] | None, filter: ds.Expression | None) -> pa.Table:
        return scan(paths, self.schema, columns, filter, self.columns)

    def load_parts(
        self,
        files: Sequence[DataFile],
        columns: Sequence[str] | None = None,
        filter: ds.Expression | None = None,
        *,
        by: str,
    ) -> Iterator[Part]:
        """Read these files in parts, ordered by the minimum of column `by`; yields at least one part.

        A thread reads the next part meanwhile, which reuses memory. A concurrent compaction may cause repeated rows.
        """

        def part(group: Sequence[DataFile]) -> pa.Table:
            return self.load(group, columns, filter).combine_chunks()

        few = sum(file.rows for file in files) <= _PART_ROWS
        groups = [list(files)] if few else list(portions(self._ordered(files, by), lambda f: f.rows, _PART_ROWS))
        with ThreadPoolExecutor(1) as reader:
            ahead = reader.submit(part, groups[0])
            for group in groups[1:]:
                ready, ahead = ahead.result(), reader.submit(part, group)
                yield Part(ready, is_last=False)
            yield Part(ahead.result(), is_last=True)

    def done(self, transactions: Mapping[str, int]) -> bool:
        """Return whether all these transactions are committed. Raises StoreError if only some are."""
        newest = {app: self.transaction_version(app) for app in transactions}
        done = [app for app, number in transactions.items() if (at := newest[app]) is not None and at >= number]
        if done and len(done) < len(transactions):
            raise StoreError(f"{self.path}: of one commit's transactions only {', '.join(sorted(done))} are committed")
        return bool(transactions) and len(done) == len(transactions)

    def checkpointed_version(self) -> int:
        """Return the newest version, after writing a checkpoint if the last one is old."""
        with writing_to(self.path):
            if self._commits.checkpoint_if_due(durable=self._durable):
                self._checkpoint = self._commits.at
        return self.version

    def _active(self, handle: DeltaTable) -> list[DataFile]:
        return [DataFile(self._absolute(file.path), file.rows, file.bounds) for file in commits.stored_files(handle)]

    def _ordered(self, files: Sequence[DataFile], column: str) -> list[DataFile]:
        """Sort files by the minimum of a column; files without statistics come first."""
        actions = pa.table(self._delta().get_add_actions(flatten=True)).select(["path", f"min.{column}"])
        minima = {self._absolute(row["path"]): row[f"min.{column}"] for row in actions.to_pylist()}
        least = {path: value for path, value in minima.items() if value is not None}
        unknown = [file for file in files if file.path not in least]
        return unknown + sorted((f for f in files if f.path in least), key=lambda file: (least[file.path], file.path))

    def _absolute(self, path: str) -> str:
        return absolute(self.path, path)
