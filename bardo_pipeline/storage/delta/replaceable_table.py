"""Projections that keep the newest state, bucket by bucket, and no history.

Each file contains one or more complete buckets. The newest commit alone names the files, their buckets and each
bucket's digest, so a write costs the same however long the history is.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable, Schema
from deltalake.exceptions import TableNotFoundError

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.errors import DamagedError, StoreError
from bardo_pipeline.events.record.arrow_columns import contiguous
from bardo_pipeline.grimoire.entry_columns import sorted_by
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.delta import durable_commits as commits
from bardo_pipeline.storage.delta.durable_commits import Added, Commits
from bardo_pipeline.storage.delta.earlier_columns import stored_columns
from bardo_pipeline.storage.delta.files_by_version import absolute
from bardo_pipeline.storage.delta.parquet_io import portions, scan, write_parquet
from bardo_pipeline.storage.delta.table_digest import EMPTY, Digest, Written
from bardo_pipeline.storage.delta.table_specs import TableSpec
from bardo_pipeline.storage.home import bucket_of, sync_file, sync_folder, writing_to

GATHERED_ROWS = 4_096
"""Buckets with at most this many rows in total share a file: writing 16 files of 100 rows takes as long as one of
15,000."""

_PARTITION = "bucket"
"""Partition column of tables of the first edition, with a file or more per bucket. Their first write removes it."""


@dataclass(frozen=True)
class _State:
    """Content of the newest commit: version, buckets of each file (by path), digest of each bucket, and note."""

    version: int
    files: Mapping[str, Sequence[int]]
    digests: Mapping[int, Digest] = field(default_factory=dict)
    note: Mapping[str, Any] = field(default_factory=dict)

    def files_with(self, buckets: Collection[int]) -> set[str]:
        """Return the files that contain any of these buckets."""
        wanted = set(buckets)
        return {path for path, contained in self.files.items() if not wanted.isdisjoint(contained)}

    def buckets_in(self, paths: Iterable[str]) -> set[int]:
        """Return the buckets of these files."""
        return {bucket for path in paths for bucket in self.files[path]}


class ReplaceableTable:
    """A projection whose buckets are replaced: it keeps the newest state and no history.

    Parameters
    ----------
    part_rows : rows of a row group; a reader of few keys reads only the row groups whose statistics match
    """

    def __init__(
        self, name: str, path: Path, spec: TableSpec, bucket_count: int, *, part_rows: int | None = None
    ) -> None:
        self.name, self.spec, self.path, self.bucket_count = name, spec, path, bucket_count
        self._part_rows = part_rows or Policy().growth.partition_rows
        try:
            handle = commits.opened(path)
        except TableNotFoundError:
            configuration = {"delta.dataSkippingStatsColumns": ",".join(spec.stats)}
            commits.make_table(path, spec.schema, configuration, durable=True)
            handle = commits.opened(path)
        self._partitioned = handle.metadata().partition_columns == [_PARTITION]
        partition = [pa.field(_PARTITION, pa.int32(), nullable=False)] if self._partitioned else []
        self.columns = stored_columns(handle, path, spec.schema, spec.earlier, more=partition)
        self._commits = Commits(path, int(handle.version()))
        self._newest_state: _State | None = None
        if not self._partitioned:
            self._check_files(handle)

    def _check_files(self, handle: DeltaTable) -> None:
        """Compare the table's files and their rows with the files and digests in its newest commit."""
        state = self._read_state(int(handle.version()))
        stored = {unquote(file.path): file.rows for file in commits.stored_files(handle)}
        rows = sum(digest.rows for digest in state.digests.values())
        if stored.keys() != state.files.keys() or sum(stored.values()) != rows:
            raise DamagedError(self.path, f"it holds {sum(stored.values())} of {rows} rows")

    @property
    def version(self) -> int:
        """Newest committed version of any process."""
        return self._commits.version

    def buckets(self, keys: Iterable[str]) -> set[int]:
        """Return the buckets of these keys."""
        return {bucket_of(k, self.bucket_count) for k in keys}

    def _bucket_column(self, rows: pa.Table) -> Int64Array:
        keys = contiguous(rows[self.spec.key[0]]).dictionary_encode()
        buckets = np.array([bucket_of(k, self.bucket_count) for k in keys.dictionary.to_pylist()], np.int64)
        return buckets[keys.indices.to_numpy()]

    def read(self, buckets: Iterable[int] | None = None, *, only: Iterable[str] | None = None) -> pa.Table:
        """Read the rows of these buckets (all for None), sorted by key.

        Parameters
        ----------
        only : values of the key's first column to which the rows are limited
        """
        keys = None if only is None else pa.array(sorted(set(only)), pa.string())
        if keys is not None and buckets is None:
            buckets = self.buckets(keys.to_pylist())
        return self._rows_at(self._state(), None if buckets is None else set(buckets), keys)

    def _rows_at(self, state: _State, wanted: set[int] | None, keys: pa.Array | None = None) -> pa.Table:
        first = self.spec.key[0]
        paths = sorted(state.files if wanted is None else state.files_with(wanted))
        condition = None if keys is None else ds.field(first).isin(keys)
        try:
            files = [absolute(self.path, path) for path in paths]
            rows = scan(files, self.spec.schema, filter=condition, stored=self.columns)
        except FileNotFoundError as error:
            raise DamagedError(self.path, f"its newest commit names a missing file: {error}") from error
        expected = sum(digest.rows for bucket, digest in state.digests.items() if wanted is None or bucket in wanted)
        if wanted is not None and not state.buckets_in(paths) <= wanted:
            rows = rows.filter(pa.array(np.isin(self._bucket_column(rows), sorted(wanted))))
        if condition is None and rows.num_rows != expected:
            raise DamagedError(self.path, f"it holds {rows.num_rows} of {expected} rows")
        return sorted_by(rows, self.spec.key)

    def read_as_written(self) -> pa.Table:
        """Read all rows in the columns in which they were written, which the digests count."""
        if not self.columns.is_earlier:
            return self.read()
        files = [absolute(self.path, path) for path in sorted(self._state().files)]
        return scan(files, self.columns.schema, self.columns.names)

    def done(self, app: str) -> int | None:
        """Return the newest committed number of an app (a golem and its cycle); None without one."""
        return self._commits.transaction(app)

    def noted(self, name: str) -> dict[str, str]:
        """Return the entry of this name in the newest commit's note."""
        entry = self._state().note.get(name, {})
        assert isinstance(entry, dict), f"{self.name}: a note is a mapping"
        return dict(entry)

    def digests(self) -> dict[int, Digest]:
        """Return the digest of each bucket's rows."""
        return dict(self._state().digests)

    def digest(self) -> Digest:
        """Return the digest of all rows."""
        return sum(self._state().digests.values(), EMPTY)

    def _state(self) -> _State:
        version = self._commits.version
        if self._newest_state is None or self._newest_state.version != version:
            self._newest_state = self._read_state(version)
        return self._newest_state

    def _read_state(self, version: int) -> _State:
        facts = commits.facts_of(commits.commit_path(self.path, version))
        digests, files, note = (orjson.loads(str(facts.get(n, "{}"))) for n in ("digests", "files", "note"))
        if version and not self._partitioned and not {"files", "digests"} <= facts.keys():
            raise DamagedError(commits.commit_path(self.path, version), "it names no files")
        if self._partitioned and "files" not in facts:
            actions = pa.table(commits.opened(self.path, version).get_add_actions(flatten=True))
            buckets = zip(actions["path"].to_pylist(), actions[f"partition.{_PARTITION}"].to_pylist(), strict=True)
            files = {path: [bucket] for path, bucket in buckets}
        return _State(version, files, {int(b): Digest(*d) for b, d in digests.items()}, note)

    def replace(
        self,
        rows: pa.Table,
        buckets: set[int],
        *,
        upto: Mapping[str, int] | None = None,
        note: Mapping[str, Mapping[str, str]] | None = None,
    ) -> Written:
        """Replace all rows of these buckets by these rows, in one commit.

        A row belongs to the bucket of its key's first column. Files without a changed bucket are not rewritten.

        Parameters
        ----------
        rows : in any order
        upto : app -> number that the app reaches with this commit (`done`)
        note : values kept in the commits from now on, over those of the same names (`noted`)

        Raises
        ------
        StoreError : the disk refuses a write, or another process changed these buckets in the meantime
        """
        state = self._state()
        version = self._replace(state, sorted_by(rows.cast(self.spec.schema), self.spec.key), buckets, upto, note)
        return self._written(rows.num_rows, version)

    def replace_keys(
        self,
        rows: pa.Table,
        keys: Iterable[str],
        *,
        upto: Mapping[str, int] | None = None,
        note: Mapping[str, Mapping[str, str]] | None = None,
    ) -> Written:
        """Replace the rows with these values in the key's first column; keep all other rows. See `replace`."""
        keys = set(keys)
        buckets = self.buckets(keys)
        stored = self.read(buckets)
        is_replaced = pc.is_in(stored[self.spec.key[0]], value_set=pa.array(sorted(keys), pa.string()))
        kept = stored.filter(pc.invert(is_replaced))
        return self.replace(pa.concat_tables([kept, rows]), buckets, upto=upto, note=note)

    def upsert(self, rows: pa.Table, *, by: Sequence[str], upto: Mapping[str, int] | None = None) -> Written:
        """Replace the rows whose `by` columns match; keep all other rows.

        `upto` and errors as in `replace`; StoreError also where a file contradicts the digest in the newest commit.
        """
        state, rows = self._state(), rows.cast(self.spec.schema)
        buckets = set(self._bucket_column(rows).tolist())
        stored = self._read_checked(state, buckets)
        is_replaced = pc.is_in(_joined(stored, by), value_set=_joined(rows, by), skip_nulls=True)
        merged = pa.concat_tables([stored.filter(pc.invert(is_replaced)), rows])
        version = self._replace(state, sorted_by(merged, self.spec.key), buckets, upto, None)
        return self._written(rows.num_rows, version)

    def _read_checked(self, state: _State, buckets: set[int]) -> pa.Table:
        """Read all rows of these buckets before rewriting them. Raises StoreError where they contradict a digest."""
        rows = self._rows_at(state, buckets)
        digests = Digest.of_each(rows, self._bucket_column(rows))
        if any(digests.get(b, EMPTY) != state.digests.get(b, EMPTY) for b in buckets):
            raise DamagedError(self.path, "it has other rows than its newest commit says")
        return rows

    def _replace(
        self,
        state: _State,
        rows: pa.Table,
        buckets: set[int],
        upto: Mapping[str, int] | None,
        note: Mapping[str, Mapping[str, str]] | None,
    ) -> int:
        """Commit these rows, sorted by key, as the content of these buckets; return the version.

        A commit that another process made meanwhile is kept if it left these buckets unchanged.
        """
        self.columns.check_writable(self.path)
        new_digests = Digest.of_each(rows, self._bucket_column(rows))
        assert set(new_digests) <= buckets, f"{self.name}: rows outside the buckets that are replaced"
        while not self._put(state, rows, buckets, new_digests, upto or {}, note or {}):
            newest = self._state()
            if self._partitioned or any(newest.digests.get(b) != state.digests.get(b) for b in buckets):
                raise StoreError(f"{self.path}: version {newest.version} was taken meanwhile: derive again")
            state = newest
        self._partitioned = False
        return state.version + 1

    def _put(
        self,
        state: _State,
        rows: pa.Table,
        buckets: set[int],
        new_digests: Mapping[int, Digest],
        upto: Mapping[str, int],
        note: Mapping[str, Mapping[str, str]],
    ) -> bool:
        """Commit these rows after this state; return False if another process took the version."""
        digests = {**state.digests, **{b: new_digests.get(b, EMPTY) for b in buckets}}
        changed = {b for b in buckets if digests[b] != state.digests.get(b, EMPTY)}
        removed = set(state.files) if self._partitioned else state.files_with(changed)
        rewritten = changed | state.buckets_in(removed)
        if neighbours := rewritten - buckets:
            rows = sorted_by(pa.concat_tables([rows, self._read_checked(state, neighbours)]), self.spec.key)
        filled = sorted(b for b in rewritten if digests[b].rows)
        groups = list(portions(filled, lambda b: digests[b].rows, GATHERED_ROWS))
        bucket = self._bucket_column(rows)
        rows_of = [rows.filter(pa.array(np.isin(bucket, group))) for group in groups]
        new_paths: list[Path] = []
        is_committed = False
        try:
            with writing_to(self.path):
                new_paths.extend(map(self._write, rows_of))
                facts = {
                    "digests": {str(b): d.listed for b, d in sorted(digests.items())},
                    "files": {path: group for path, group in state.files.items() if path not in removed}
                    | {path.name: group for path, group in zip(new_paths, groups, strict=True)},
                    "note": {**state.note, **{name: {**state.note.get(name, {}), **note[name]} for name in note}},
                }
                added = [
                    commits.described(self.path, path.name, part, self.spec.stats)
                    for path, part in zip(new_paths, rows_of, strict=True)
                ]
                is_committed = self._commit(state.version + 1, sorted(removed), added, upto, facts)
        except BaseException:
            is_committed = commits.has_commit(self.path, state.version + 1)  # perhaps this one, so its files stay
            raise
        finally:
            if not is_committed:
                for path in new_paths:
                    path.unlink(missing_ok=True)
        return is_committed

    def _write(self, rows: pa.Table) -> Path:
        """Write and sync a new file; return its path."""
        draft = self.path / f"part-00000-{uuid4()}-c000.parquet"
        try:
            path = write_parquet(draft, rows, self.spec.schema, stats=self.spec.stats, row_group_rows=self._part_rows)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        sync_file(path)
        return path

    def _written(self, rows: int, version: int) -> Written:
        commits.note_version(self.path, version)
        total = self.digest()
        return Written(self.name, rows, total.rows, total.fingerprint, version)

    def _commit(
        self,
        version: int,
        removed: Sequence[str],
        added: Sequence[Added],
        upto: Mapping[str, int],
        facts: Mapping[str, object],
    ) -> bool:
        """Commit new files in place of others, durably; return False if another process took the version."""
        if added:
            sync_folder(self.path)
        self._commits.checkpoint_if_due(durable=True)
        schema = Schema.from_arrow(self.spec.schema)
        log = self.path / "_delta_log"
        os.utime(log)  # use the clock of the file system, as for modification times of files
        actions = commits.write_actions(
            "Overwrite",
            log.stat().st_mtime_ns // 1_000_000,
            {name: orjson.dumps(fact).decode() for name, fact in facts.items()},
            added=added,
            removed=removed,
            transactions=upto,
            metadata=commits.metadata_as(commits.opened(self.path), schema) if self._partitioned else None,
        )
        if not commits.put_commit(self.path, version, actions, durable=True):
            return False
        sync_folder(log)
        return True


def _joined(rows: pa.Table, columns: Sequence[str]) -> pa.Array:
    """Return columns of text as one, for comparison; the separator does not occur in ids."""
    return contiguous(pc.binary_join_element_wise(*(rows[name] for name in columns), "\x1f"))
