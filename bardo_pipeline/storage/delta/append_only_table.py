"""One append-only Delta table: written exactly once, read by what is new. Nothing here changes or removes a row.

Source: facts ("Delta"): a kept handle, statistics on few columns, no clean-up at a commit, no nested slices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from datetime import datetime
from itertools import accumulate, groupby
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError

from bardo_pipeline.errors import SchemaVersionError, StoreError
from bardo_pipeline.events.record.row_digest import row_digests
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.delta.app_transactions import Transactions
from bardo_pipeline.storage.delta.durable_commits import (
    CHECKPOINT_COMMITS,
    Added,
    StoredFile,
    appending,
    commit_path,
    described,
    facts_of,
    has_commit,
    make_table,
    metadata_with,
    newest_checkpoint,
    point_to,
    put_checkpoint,
    put_commit,
    replacing,
)
from bardo_pipeline.storage.delta.files_by_version import DataFile, absolute, brought_between, still_there, within
from bardo_pipeline.storage.delta.parquet_io import rows_in, scan, write_parquet
from bardo_pipeline.storage.disk_errors import writing_to
from bardo_pipeline.storage.home import sync_file, sync_folder
from bardo_pipeline.storage.log.checksum_manifest import Sums

_PART_ROWS = 100_000
_LOOKS = 5  # a reader looks again where a compaction took a file away before it was opened


class Part(NamedTuple):
    """Some rows of a table, contiguous, and whether they are the last that were asked for."""

    rows: pa.Table
    is_last: bool


class AppendOnlyTable:
    """A Delta table that only grows.

    path: its folder; made, with its parents, where it is missing. schema: the Arrow schema of its rows.
    stats_columns: top-level columns whose smallest and largest value a file is found by. durable: whether what
    was appended stays when the machine loses its power. sums: where the hash of each of its files is written down.
    by_version: whether a column `version` says of each row which commit brought it.
    Raises SchemaVersionError when the table on disk has other columns than `schema`.
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
    ) -> None:
        self.path, self.schema, self.by_version, self._durable, self._sums = path, schema, by_version, durable, sums
        self._log = path / "_delta_log"
        self._reopen_commits = (policy or Policy()).log.reopen_commits
        self._checkpoint: int | None = None
        self._apps = Transactions(path)
        self._stats_columns = tuple(stats_columns)
        try:
            self._handle = DeltaTable(path)
        except TableNotFoundError:
            with writing_to(path):
                make_table(path, schema, _configuration(stats_columns), durable=durable)
            self._handle = DeltaTable(path)
        self._at = self._opened_at = int(self._handle.version())
        self._checkpointed = newest_checkpoint(path, self._at) or 0
        if sums is not None:
            sums.follow(self._at)  # what a process that was killed left without
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
        # A commit is a file with the next number; looking for it costs nothing, asking Delta lists the whole log.
        while has_commit(self.path, self._at + 1):
            self._at += 1
        if not has_commit(self.path, self._at):  # maintenance has trimmed the log behind newer ones
            self._handle.update_incremental()
            self._at = int(self._handle.version())
        return self._at

    def _delta(self) -> DeltaTable:
        """Delta's own view of the newest version; a handle slows with every commit that it has seen."""
        newest = self.version
        if newest - self._opened_at >= self._reopen_commits:
            self._handle, self._opened_at = DeltaTable(self.path), newest
        elif newest > int(self._handle.version()):
            self._handle.update_incremental()
        self._at = max(newest, int(self._handle.version()))
        return self._handle

    def transaction_version(self, app: str) -> int | None:
        """The newest transaction of this app that is committed; None when there is none."""
        return self._apps.newest(app, self.version)

    def append(
        self, table: pa.Table, *, transactions: Mapping[str, int], facts: Mapping[str, str] | None = None
    ) -> int | None:
        """Append the rows as one commit, marked with these transactions (app to a number that only rises).

        facts: text kept in the commit itself (see `facts`).

        Returns the commit's version, or None when all of them are on record already and nothing was written.
        Raises StoreError when only some are on record, or when the disk or Delta did not take every row.
        """
        self.checkpointed_version()
        if self.done(transactions):
            return None
        return self.commit([self.write(table)], transactions=transactions, facts=facts)

    def write(self, rows: pa.Table) -> Added:
        """The rows as a Parquet file that no commit names yet. Raises StoreError; what is half written goes again.

        pyarrow writes it: Delta would check NOT NULL in every leaf, in twice the time, of rows that were checked.
        """
        assert rows.schema.equals(self.schema), f"{self.path} was given other columns than its own"
        name = f"part-00000-{uuid4()}-c000.parquet"
        try:
            with writing_to(self.path):
                write_parquet(self.path / name, rows, self.schema, stats=self._stats_columns)
                if (count := rows_in(self.path / name)) != rows.num_rows:
                    raise StoreError(f"{self.path}: {count} rows were written of {rows.num_rows} that were given")
                if self._durable:
                    sync_file(self.path / name)
        except BaseException:
            (self.path / name).unlink(missing_ok=True)
            raise
        return self.described(name, rows)

    def described(self, name: str, rows: pa.Table) -> Added:
        """A file that holds these rows, as a commit names it."""
        return described(self.path, name, rows, self._stats_columns)

    def discard(self, adds: Sequence[Added]) -> None:
        """Take files away, unless a commit named them after all: a disk may fail behind a name that it has taken."""
        try:
            named = {file.path for file in self.stored()}
        except (OSError, DeltaError):
            return  # maintenance takes them, when the disk answers again
        for add in adds:
            if add.path not in named:
                (self.path / add.path).unlink(missing_ok=True)

    def commit(
        self,
        adds: Sequence[Added],
        *,
        transactions: Mapping[str, int],
        facts: Mapping[str, str] | None = None,
        version: int | None = None,
    ) -> int | None:
        """Make files part of the table, by one commit; see `append`. version: which one it must become, if any.

        Where no commit is made, the files go. Raises StoreError when another commit has that version, and when the
        disk does not take it.
        """
        due = None
        try:
            with writing_to(self.path):
                if self._durable:
                    sync_folder(self.path)
                due = self._put(adds, transactions, facts, version)
        finally:
            if due is None:
                self.discard(adds)
        if due is None:
            return None
        with writing_to(self.path):
            if self._durable:
                sync_folder(self._log)
        self._at, self._lacks = due, []
        if self._checkpoint is not None:
            with suppress(OSError):  # it saves time, and the rows are on record
                point_to(self.path, self._checkpoint)
            self._checkpoint = None
        if self._sums is not None:
            self._sums.follow(due)
        return due

    def _put(
        self,
        adds: Sequence[Added],
        transactions: Mapping[str, int],
        facts: Mapping[str, str] | None,
        version: int | None,
    ) -> int | None:
        """Give the commit the next version that is free; None when its transactions are on record meanwhile."""
        while True:
            due = self._at + 1
            if version is not None and due != version:
                raise StoreError(f"{self.path}: version {version} was taken meanwhile: send this again")
            widened = metadata_with(self._delta(), self._lacks) if self._lacks else None
            actions = appending(adds, transactions, facts or {}, widened)
            if put_commit(self.path, due, actions, durable=self._durable):
                return due
            self._at = due
            if self.done(transactions):
                return None

    def stored(self) -> list[StoredFile]:
        """The files of the table as it is now, by path."""
        actions = pa.table(self._delta().get_add_actions(flatten=True))
        columns = (actions[n].to_pylist() for n in ("path", "num_records", "size_bytes", "modification_time"))
        return sorted(map(StoredFile, *columns), key=lambda file: file.path)

    def replace(
        self,
        removed: Sequence[str],
        added: Sequence[Added],
        *,
        at: datetime,
        lock: AbstractContextManager[None],
        versions: Mapping[str, int] | None = None,
    ) -> int:
        """Put files in the place of others that hold the same rows, by a commit that tells readers of no change.

        removed: paths as `stored` gives them. lock: what appends hold, taken for the commit alone. versions: for
        files without a column `version`, what the others say there. Returns the commit's version. Where no commit is
        made, the files that would be added go.
        Raises StoreError unless both sides, read back, hold the same rows, and the table still has those removed.
        """
        known = versions or {}
        before = added_up(self._content(path, known.get(path)) for path in removed)
        after = added_up(self._content(add.path, None) for add in added)
        if before != after:
            self.discard(added)
            raise StoreError(f"{self.path}: {after[0]} rows would replace {before[0]}, or others than those: not done")
        try:
            with lock, writing_to(self.path):
                held = {file.path: file for file in self.stored()}
                if gone := sorted(set(removed) - set(held)):
                    raise StoreError(f"{self.path}: {gone[0]} is not in the table any more")
                for folder in {(self.path / add.path).parent for add in added}:
                    sync_folder(folder)
                version = self.version + 1
                taken = [held[path] for path in removed]
                if not put_commit(self.path, version, replacing(self.path, version, taken, added, at), durable=True):
                    raise StoreError(f"{self.path}: version {version} was taken meanwhile: try again")
                sync_folder(self._log)
        except BaseException:
            self.discard(added)
            raise
        if self._sums is not None:
            self._sums.follow(version)
        return version

    def _content(self, path: str, version: int | None) -> tuple[int, int, int]:
        """How many rows a file holds, and the sum of their digests, in two lanes."""
        rows = self.raised(scan([self._absolute(path)], self.schema), version)
        low, high = (int(lane) for lane in row_digests(rows).sum(axis=0, dtype=np.uint64))
        return rows.num_rows, low, high

    def raised(self, rows: pa.Table, version: int | None) -> pa.Table:
        """Rows of a file that may lack the column `version`: with it, if it is known."""
        if version is None:
            return rows
        at = rows.schema.get_field_index("version")
        return rows.set_column(at, rows.schema.field(at), pc.fill_null(rows.column(at), version))

    def facts(self) -> dict[str, str]:
        """The text that the newest commit carries."""
        said = facts_of(commit_path(self.path, self.version))
        return {name: value for name, value in said.items() if isinstance(value, str)}

    def files(self, since_version: int | None = None) -> list[str]:
        """Absolute paths of the files that hold the rows committed after a version; of all rows for None.

        After a compaction they hold others, too: a reader must bear rows that it has seen.
        """
        return [file.path for file in self.tail(since_version)[1]]

    def tail(self, since_version: int | None = None, until_version: int | None = None) -> tuple[int, list[DataFile]]:
        """The newest version, and the files as `files` gives them, of one and the same moment.

        until_version: be a reader of that version instead: nothing that came after it is there, compacted or not.
        Rows that do not say which version brought them (no column `version`) may come again after a compaction.
        """
        newest = self.version
        version = newest if until_version is None else until_version
        assert version <= newest, f"{self.path} has no version {version} yet"
        since = None if since_version is None or since_version < 0 else since_version
        asked = (since, until_version)
        return version, [replace(file, asked=asked) for file in self._files(since, version, newest)]

    def _files(self, since: int | None, version: int, newest: int) -> list[DataFile]:
        if since is not None:
            files = brought_between(self.path, since, version, newest, by_version=self.by_version)
            if files is not None:
                return files
        elif version == newest:
            return self._active(self._delta())
        elif files := self._active_at(version):
            return files
        only = within(since, version) if self.by_version else None
        return [DataFile(file.path, file.rows, only=only) for file in self._active(self._delta())]

    def _active_at(self, version: int) -> list[DataFile]:
        """The files of an earlier version; none where one of them, or the way to it, is gone."""
        try:
            files = self._active(DeltaTable(self.path, version=version))
        except (TableNotFoundError, DeltaError):
            return []
        return files if still_there(files) else []

    def overlapping(self, bounds: Mapping[str, tuple[object, object]]) -> list[str]:
        """Paths of the active files that may hold rows within all these bounds (column to smallest and largest)."""
        actions = pa.table(self._delta().get_add_actions(flatten=True))
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
        for _ in range(_LOOKS):
            try:
                return self._loaded(files, columns, filter)
            except FileNotFoundError:  # the grace of what was compacted ended since `tail`: look where its rows are now
                asked = {file.asked for file in files}
                assert len(asked) == 1, "files that are read together were asked for together"
                (since, until), *_ = (found for found in asked if found is not None)
                files = self.tail(since, until)[1]
        raise StoreError(f"{self.path} is compacted faster than it can be read: give maintenance a longer grace")

    def _loaded(
        self, files: Sequence[DataFile], columns: Sequence[str] | None, filter: ds.Expression | None
    ) -> pa.Table:
        plain = [file for file in files if file.only is None]
        found = scan([file.path for file in plain if file.rows], self.schema, columns, filter)
        expected = sum(file.rows for file in plain)
        if filter is None and found.num_rows != expected:
            raise StoreError(f"{self.path}: read {found.num_rows} rows of {expected} on record")
        parts = [found]
        for file in files:
            if file.only is not None:
                asked = file.only if filter is None else file.only & filter
                parts.append(scan([file.path], self.schema, columns, asked))
        return found if len(parts) == 1 else pa.concat_tables(parts)

    def load_parts(
        self,
        files: Sequence[DataFile],
        columns: Sequence[str] | None = None,
        filter: ds.Expression | None = None,
        *,
        by: str,
    ) -> Iterator[Part]:
        """The rows of these files, some files at a time, in the order of their smallest values of a column.

        The next are read meanwhile, into memory that earlier ones have left, where a whole table takes new pages from
        the system. At least one part, each contiguous. What a compaction moves meanwhile may come more than once.
        """

        def part(some: Sequence[DataFile]) -> pa.Table:
            return self.load(some, columns, filter).combine_chunks()

        few = sum(file.rows for file in files) <= _PART_ROWS
        groups = [list(files)] if few else _in_groups(self._ordered(files, by))
        if len(groups) == 1:
            yield Part(part(files), is_last=True)
            return
        with ThreadPoolExecutor(1) as reader:
            ahead = reader.submit(part, groups[0])
            for group in groups[1:]:
                ready, ahead = ahead.result(), reader.submit(part, group)
                yield Part(ready, is_last=False)
            yield Part(ahead.result(), is_last=True)

    def done(self, transactions: Mapping[str, int]) -> bool:
        """Whether all of these transactions are on record. Raises StoreError when only some are."""
        newest = {app: self._apps.newest(app, self.version) for app in transactions}
        done = [app for app, number in transactions.items() if (at := newest[app]) is not None and at >= number]
        if done and len(done) < len(transactions):
            raise StoreError(f"{self.path}: of one commit's transactions only {', '.join(sorted(done))} are on record")
        return bool(transactions) and len(done) == len(transactions)

    def checkpointed_version(self) -> int:
        """The newest version, behind a checkpoint that is near."""
        version = self.version
        if version >= self._checkpointed + CHECKPOINT_COMMITS:  # unless another handle made one
            self._checkpointed = newest_checkpoint(self.path, version) or 0
        if version >= self._checkpointed + CHECKPOINT_COMMITS:
            with writing_to(self.path):
                put_checkpoint(self.path, version, durable=self._durable)
            self._checkpoint = self._checkpointed = version
        return version

    def _active(self, handle: DeltaTable) -> list[DataFile]:
        actions = pa.table(handle.get_add_actions(flatten=True)).select(["path", "num_records"])
        found = [DataFile(self._absolute(row["path"]), int(row["num_records"])) for row in actions.to_pylist()]
        return sorted(found, key=lambda file: file.path)

    def _ordered(self, files: Sequence[DataFile], column: str) -> list[DataFile]:
        """Files by the smallest value of a column; those of which none is known come first."""
        actions = pa.table(self._delta().get_add_actions(flatten=True)).select(["path", f"min.{column}"])
        known = {self._absolute(row["path"]): row[f"min.{column}"] for row in actions.to_pylist()}
        least = {path: value for path, value in known.items() if value is not None}
        unknown = [file for file in files if file.path not in least]
        return unknown + sorted((f for f in files if f.path in least), key=lambda file: (least[file.path], file.path))

    def _absolute(self, path: str) -> str:
        return absolute(self.path, path)


def added_up(parts: Iterable[tuple[int, int, int]]) -> tuple[int, int, int]:
    """Rows and digests of several files."""
    rows, low, high = map(sum, zip((0, 0, 0), *parts, strict=True))
    return rows, low % 2**64, high % 2**64


def _in_groups(files: Sequence[DataFile]) -> list[list[DataFile]]:
    """Files that are read together, of about _PART_ROWS rows."""
    before = accumulate((file.rows for file in files), initial=0)
    several = groupby(zip(files, before, strict=False), key=lambda one: one[1] // _PART_ROWS)
    return [[file for file, _ in group] for _, group in several]


def _configuration(stats_columns: Sequence[str]) -> dict[str, str]:
    return {"delta.appendOnly": "true", "delta.dataSkippingStatsColumns": ",".join(stats_columns)}
