"""Renewed tables: projections that keep the newest state, bucket by bucket, and not its history.

Each file holds some buckets whole. What commits say beside their rows, which files there are and whose, is read of the
newest one alone, so that a renewal costs what it renews, however many there have been.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable, Schema
from deltalake.exceptions import TableNotFoundError

from bardo_pipeline.errors import SchemaVersionError, StoreError
from bardo_pipeline.events.record.arrow_columns import one
from bardo_pipeline.grimoire.entry_columns import sorted_by
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.delta.app_transactions import Transactions
from bardo_pipeline.storage.delta.durable_commits import (
    CHECKPOINT_COMMITS,
    commit_path,
    described,
    facts_of,
    has_commit,
    make_table,
    metadata_of,
    newest_checkpoint,
    put_checkpoint,
    put_commit,
    renewing,
)
from bardo_pipeline.storage.delta.files_by_version import absolute
from bardo_pipeline.storage.delta.parquet_io import scan, write_parquet
from bardo_pipeline.storage.delta.row_diff import amended, chosen, differing
from bardo_pipeline.storage.delta.table_digest import EMPTY, Digest, Written
from bardo_pipeline.storage.disk_errors import writing_to
from bardo_pipeline.storage.home import bucket_of
from bardo_pipeline.storage.projections.table_specs import TableSpec

GATHERED_ROWS = 4_096
"""Buckets of no more rows together lie in one file: to write 16 files of 100 rows takes as long as one of 15,000."""

_HELD_ROWS = 16_384
"""A table of no more rows, as this process wrote it, is held: whoever writes it reads it next."""

_PARTITION = "bucket"
"""What tables of the first edition are partitioned by, a file or more a bucket. The first renewal gathers them."""


@dataclass(frozen=True)
class _Standing:
    """What the newest commit says: its version, the buckets of each file (by its path), each bucket's digest, notes."""

    version: int
    files: Mapping[str, Sequence[int]]
    digests: Mapping[int, Digest] = field(default_factory=dict)
    note: Mapping[str, Any] = field(default_factory=dict)

    def beside(self, buckets: Collection[int]) -> set[str]:
        """The files in which any of these buckets lies."""
        wanted = set(buckets)
        return {path for path, held in self.files.items() if not wanted.isdisjoint(held)}

    def within(self, paths: Iterable[str]) -> set[int]:
        """The buckets that lie in these files."""
        return {bucket for path in paths for bucket in self.files[path]}


class ReplaceableTable:
    """A projection that is renewed bucket by bucket: the newest state, not its history.

    part_rows: a bucket of more rows lies in parts of so many, by the key's first column, and who asks for few of those
    reads the parts that hold them.
    """

    def __init__(
        self, name: str, path: Path, spec: TableSpec, bucket_count: int, *, part_rows: int | None = None
    ) -> None:
        self.name, self.spec, self.path, self.bucket_count = name, spec, path, bucket_count
        self._part_rows = part_rows or Policy().growth.partition_rows
        try:
            handle = DeltaTable(path)
        except TableNotFoundError:
            told = {"delta.dataSkippingStatsColumns": ",".join(spec.stats)}
            make_table(path, spec.schema, told, durable=False)
            handle = DeltaTable(path)
        self._refuse_others(handle)
        self._at = int(handle.version())
        self._checkpointed = newest_checkpoint(path, self._at) or 0
        self._last: _Standing | None = None
        self._held: dict[str, pa.Table] = {}
        self._begun: set[str] = set()
        self._apps = Transactions(path)

    def _refuse_others(self, handle: DeltaTable) -> None:
        self._partitioned = handle.metadata().partition_columns == [_PARTITION]
        more = [pa.field(_PARTITION, pa.int32(), nullable=False)] if self._partitioned else []
        if handle.schema() != Schema.from_arrow(pa.schema([*self.spec.schema, *more])):
            raise SchemaVersionError(
                f"{self.path} has other columns than this version writes: use the version that made it, or newer"
            )

    def buckets(self, keys: Iterable[str]) -> set[int]:
        """Buckets of these keys."""
        return {bucket_of(k, self.bucket_count) for k in keys}

    def _codes(self, rows: pa.Table) -> np.ndarray:
        """The bucket of each row. int64 [rows]."""
        keys = one(rows[self.spec.key[0]]).dictionary_encode()
        codes = np.array([bucket_of(k, self.bucket_count) for k in keys.dictionary.to_pylist()], np.int64)
        return codes[keys.indices.to_numpy()]

    def read(
        self, buckets: Iterable[int] | None = None, *, only: Iterable[str] | None = None, trusting: bool = False
    ) -> pa.Table:
        """Rows of these buckets (all for None), sorted by key. only: with these values of the key's first column.

        trusting: what this object wrote and still holds is taken as it was written, without another look at the file.
        """
        first = self.spec.key[0]
        names = None if only is None else pa.array(sorted(set(only)), pa.string())
        if names is not None and buckets is None:
            buckets = self.buckets(names.to_pylist())
        standing = self._standing()
        wanted = None if buckets is None else set(buckets)
        paths = list(standing.files) if wanted is None else standing.beside(wanted)
        held = {path: self._held[path] for path in paths if trusting and path in self._held}
        read = [absolute(self.path, path) for path in paths if path not in held]
        parts = [rows if names is None else chosen(rows, first, names) for rows in held.values()]
        if read or not parts:
            parts.append(scan(read, self.spec.schema, None, None if names is None else ds.field(first).isin(names)))
        rows = pa.concat_tables(parts)
        if wanted is not None and not standing.within(paths) <= wanted:
            rows = rows.filter(pa.array(np.isin(self._codes(rows), sorted(wanted))))
        return rows if len(held) == len(paths) == 1 else sorted_by(rows, self.spec.key)

    def done(self, app: str) -> int | None:
        """The newest number of an app (a golem, its cycle) that a renewal carried."""
        return self._apps.newest(app, self._version())

    def begun(self, app: str) -> bool:
        """Whether a renewal ever carried this app. What was found once is kept: an app never goes back."""
        if app not in self._begun and self.done(app) is not None:
            self._begun.add(app)
        return app in self._begun

    def noted(self, name: str) -> dict[str, str]:
        """What the newest commit's note says under a name."""
        found = self._standing().note.get(name, {})
        assert isinstance(found, dict), f"{self.name}: a note is a mapping"
        return dict(found)

    def digests(self) -> dict[int, Digest]:
        """Digest of each bucket's rows."""
        return dict(self._standing().digests)

    def digest(self) -> Digest:
        """Digest of all rows."""
        return sum(self._standing().digests.values(), EMPTY)

    def _version(self) -> int:
        """The newest version: a commit is a file with the next number, and looking for it costs nothing."""
        while has_commit(self.path, self._at + 1):
            self._at += 1
        if not has_commit(self.path, self._at):  # maintenance has trimmed the log behind newer ones
            self._at = int(DeltaTable(self.path).version())
        return self._at

    def _standing(self) -> _Standing:
        """What the newest commit says."""
        version = self._version()
        if self._last is None or self._last.version != version:
            self._last = self._said(version)
        return self._last

    def _said(self, version: int) -> _Standing:
        facts = facts_of(commit_path(self.path, version))
        digests, files, note = (orjson.loads(str(facts.get(n, "{}"))) for n in ("digests", "files", "note"))
        if self._partitioned and "files" not in facts:
            actions = pa.table(DeltaTable(self.path, version=version).get_add_actions(flatten=True))
            places = zip(actions["path"].to_pylist(), actions[f"partition.{_PARTITION}"].to_pylist(), strict=True)
            files = {path: [bucket] for path, bucket in places}
        return _Standing(version, files, {int(b): Digest(*d) for b, d in digests.items()}, note)

    def replace(
        self,
        rows: pa.Table,
        buckets: set[int],
        *,
        upto: Mapping[str, int] | None = None,
        note: Mapping[str, object] | None = None,
    ) -> Written:
        """Put these rows, in any order, in place of all that these buckets hold.

        The key's first column decides a row's bucket.

        upto: apps and the numbers that they reach with this (`done`). note: what the commit carries beside (`noted`).
        Files without a bucket that changed stay as they are. Raises StoreError where the disk does not take it, or
        somebody else renewed the table meanwhile.
        """
        before, rows = self._standing(), sorted_by(rows.cast(self.spec.schema), self.spec.key)
        digests = self._digests_of(before, rows, buckets)
        assert set(digests) <= buckets, f"{self.name}: rows outside the buckets that are renewed"
        version = self._replace(before, rows, {b: digests.get(b, EMPTY) for b in buckets}, upto or {}, note or {})
        return self._written(rows.num_rows, version)

    def upsert(self, rows: pa.Table, *, by: Sequence[str], upto: Mapping[str, int] | None = None) -> Written:
        """Put these rows in place of those that are like them in some columns (by); what is like none stays as it is.

        Costs what is amended, but for writing the files of those buckets. upto: see `renew`. Raises StoreError as
        `renew`, and where the files hold other rows than the newest commit says.
        """
        before, rows = self._standing(), rows.cast(self.spec.schema)
        buckets = set(self._codes(rows).tolist())
        gone, wanted = amended(self._known(before, buckets), rows, by)
        digests = self._shifted(before, gone, rows)
        version = self._replace(before, sorted_by(wanted, self.spec.key), digests, upto or {}, {})
        return self._written(rows.num_rows, version)

    def _known(self, before: _Standing, buckets: set[int]) -> pa.Table:
        """All rows of these buckets. What is not held is read, and digested, since from here on it counts as known."""
        rows = self.read(buckets, trusting=True)
        if not before.beside(buckets) <= self._held.keys():
            found = Digest.of_each(rows, self._codes(rows))
            if any(found.get(b, EMPTY) != before.digests.get(b, EMPTY) for b in buckets):
                raise StoreError(
                    f"{self.path} holds other rows than its newest commit says: `bardo rebuild` says what the log gives"
                )
        return rows

    def _digests_of(self, before: _Standing, rows: pa.Table, buckets: set[int]) -> dict[int, Digest]:
        """What these rows come to, bucket by bucket. Where the table is held, only what differs from it is digested."""
        if before.beside(buckets) <= self._held.keys():
            held = self.read(buckets, trusting=True)
            apart = differing(held, rows, self.spec.key)
            if apart is not None:
                stay = {b: before.digests.get(b, EMPTY) for b in buckets}
                gone, come = (table.filter(pa.array(mask)) for table, mask in zip((held, rows), apart, strict=True))
                return stay | self._shifted(before, gone, come)
        return Digest.of_each(rows, self._codes(rows))

    def _shifted(self, before: _Standing, gone: pa.Table, come: pa.Table) -> dict[int, Digest]:
        """What the buckets come to out of which these rows go and into which these come."""
        codes = [self._codes(rows) for rows in (gone, come)]
        each = Digest.of_each(pa.concat_tables([gone, come]), np.concatenate([-1 - codes[0], codes[1]]))
        buckets = sorted({*codes[0].tolist(), *codes[1].tolist()})
        return {b: before.digests.get(b, EMPTY) - each.get(-1 - b, EMPTY) + each.get(b, EMPTY) for b in buckets}

    def _replace(
        self,
        before: _Standing,
        rows: pa.Table,
        renewed: Mapping[int, Digest],
        upto: Mapping[str, int],
        note: Mapping[str, object],
    ) -> int:
        """Commit these rows as all that their buckets hold; returns the version. renewed: what each bucket comes to."""
        buckets, digests = set(renewed), {**before.digests, **renewed}
        changed = {b for b in buckets if digests[b] != before.digests.get(b, EMPTY)}
        gone = set(before.files) if self._partitioned else before.beside(changed)
        due = changed | before.within(gone)
        wanted = rows if due >= buckets else rows.filter(pa.array(np.isin(self._codes(rows), sorted(due))))
        if due - buckets:
            wanted = sorted_by(pa.concat_tables([wanted, self._known(before, due - buckets)]), self.spec.key)
        placed = {_fresh_name(): group for group in _gathered({b: digests[b].rows for b in sorted(due)})}
        fresh = self._divided(wanted, placed)
        files = {path: held for path, held in before.files.items() if path not in gone}
        facts = {
            "digests": {str(b): d.listed for b, d in sorted(digests.items())},
            "files": files | placed,
            "note": note,
        }
        self._commit(before.version + 1, sorted(gone), fresh, upto, facts)
        held = {path: self._held[path] for path in files if path in self._held} | fresh
        self._held = held if sum(rows.num_rows for rows in held.values()) <= _HELD_ROWS else {}
        return before.version + 1

    def _written(self, rows: int, version: int) -> Written:
        total = self.digest()
        return Written(self.name, rows, total.rows, total.fingerprint, version)

    def _divided(self, rows: pa.Table, placed: Mapping[str, Sequence[int]]) -> dict[str, pa.Table]:
        """The rows of the buckets of each file."""
        if len(placed) <= 1:
            return dict.fromkeys(placed, rows)
        codes = self._codes(rows)
        return {path: rows.filter(pa.array(np.isin(codes, group))) for path, group in placed.items()}

    def _commit(
        self,
        version: int,
        gone: Sequence[str],
        fresh: Mapping[str, pa.Table],
        upto: Mapping[str, int],
        facts: Mapping[str, object],
    ) -> None:
        """Write these files and commit them in place of those. Where that cannot be, they go again."""
        try:
            with writing_to(self.path):
                for path, rows in fresh.items():
                    write_parquet(
                        self.path / path, rows, self.spec.schema, stats=self.spec.stats, row_group_rows=self._part_rows
                    )
                self._gather_commits(version - 1)
                told = metadata_of(DeltaTable(self.path), self.spec.schema) if self._partitioned else None
                packed = {name: orjson.dumps(fact).decode() for name, fact in facts.items()}
                added = [described(self.path, path, rows, self.spec.stats) for path, rows in fresh.items()]
                taken = put_commit(
                    self.path, version, renewing(self.path, gone, added, upto, packed, told), durable=False
                )
        except BaseException:
            if not has_commit(self.path, version):
                for path in fresh:
                    (self.path / path).unlink(missing_ok=True)
            raise
        if not taken:  # maintenance sweeps what is named by no commit
            raise StoreError(f"{self.path}: version {version} was taken meanwhile: derive again")
        self._partitioned = False

    def _gather_commits(self, version: int) -> None:
        """Make a checkpoint where the last one is far: who opens the table reads the commits behind it one by one."""
        if version >= self._checkpointed + CHECKPOINT_COMMITS:
            self._checkpointed = newest_checkpoint(self.path, version) or 0  # unless another handle made one
        if version >= self._checkpointed + CHECKPOINT_COMMITS:
            put_checkpoint(self.path, version, durable=False)
            self._checkpointed = version


def _fresh_name() -> str:
    return f"part-00000-{uuid4()}-c000.parquet"


def _gathered(rows_of: Mapping[int, int]) -> Iterator[list[int]]:
    """Buckets that lie in a file together, of those that have rows. rows_of: how many each has."""
    group: list[int] = []
    for bucket, rows in rows_of.items():
        if group and sum(rows_of[b] for b in group) + rows > GATHERED_ROWS:
            yield group
            group = []
        group += [bucket] if rows else []
    if group:
        yield group
