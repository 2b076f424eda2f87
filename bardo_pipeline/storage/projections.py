"""Projections: the derived tables of one derivation, each with a fingerprint that costs only what is new.

A table's fingerprint is the sum of its rows' digests (each row holds its key, so order cannot show), hashed with their
number; it is kept in the commit that changed it. Source: architecture ("Projections", "Fingerprints hash logical
rows").
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import (
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    Schema,
    Transaction,
    WriterProperties,
    write_deltalake,
)
from deltalake.exceptions import TableNotFoundError

from bardo_pipeline.errors import SchemaVersionError
from bardo_pipeline.events.digest import digest_column, row_digests
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.commits import commit_path, facts_of, has_commit, make_table
from bardo_pipeline.storage.delta import AppendOnlyTable
from bardo_pipeline.storage.history import absolute
from bardo_pipeline.storage.home import bucket_of
from bardo_pipeline.storage.parquet import scan, whole
from bardo_pipeline.storage.tables import TABLES, TableSpec
from bardo_pipeline.storage.transactions import Transactions


@dataclass(frozen=True)
class Digest:
    """Sum of row digests and the number of rows."""

    low: int
    high: int
    rows: int

    @classmethod
    def of(cls, table: pa.Table) -> Digest:
        """The digest of a table's rows."""
        low, high = (int(x) for x in row_digests(table).sum(axis=0, dtype=np.uint64)) if table.num_rows else (0, 0)
        return cls(low, high, table.num_rows)

    def __add__(self, other: Digest) -> Digest:
        return Digest((self.low + other.low) % 2**64, (self.high + other.high) % 2**64, self.rows + other.rows)

    def __sub__(self, other: Digest) -> Digest:
        return Digest((self.low - other.low) % 2**64, (self.high - other.high) % 2**64, self.rows - other.rows)

    @property
    def fingerprint(self) -> str:
        """32 hex characters."""
        return hashlib.sha256(f"{self.low:016x}{self.high:016x}{self.rows}".encode()).hexdigest()[:32]


EMPTY = Digest(0, 0, 0)


@dataclass(frozen=True)
class Written:
    """What a write did: rows added or renewed, then the table's rows, fingerprint and version (None: unchanged)."""

    table: str
    rows_written: int
    row_count: int
    fingerprint: str
    version: int | None


HIDDEN = pa.schema([pa.field("turn", pa.int64()), pa.field("because", pa.string())])
"""Columns of a growing table beside those of its rows. turn: how many repairs the table had seen when the row was
written (null: none). because: this row takes back the row of the same key and turn, because of the life event of this
id (null: it takes nothing back)."""


class GrowingTable:
    """A projection that only grows, exactly once by (app, number), an app being a golem and its number a cycle.

    What turned out wrong is not removed but taken back by a later row (HIDDEN): `read` gives the rows that stand,
    `taken_back` the others.
    """

    def __init__(self, name: str, path: Path, spec: TableSpec, policy: Policy) -> None:
        self.name, self.spec = name, spec
        physical = pa.schema([*spec.schema, *HIDDEN])
        self.table = AppendOnlyTable(path, physical, list(spec.stats), policy=policy)
        self._gone, self._gone_version = self._keys_of(physical.empty_table()), -1

    def done(self, app: str) -> int | None:
        """The newest number of an app that is on record."""
        return self.table.transaction_version(app)

    def append(self, rows: pa.Table, upto: Mapping[str, int]) -> Written:
        """Append the rows of golems that advance, and note how far each has come.

        rows: with golem_id and cycle. upto: golem to the cycle that it reaches with these rows. Rows of cycles that are
        on record already are left out.
        """
        moving, before = self._moving(upto)
        if not moving:
            return self._written(0, None)
        names = rows["golem_id"].to_pylist()
        past = np.array([before[n] if n in moving else 2**62 for n in names], dtype=np.int64)
        fresh = rows["cycle"].to_numpy() > past
        return self._commit(rows if fresh.all() else rows.filter(pa.array(fresh)), moving)

    def put(self, rows: pa.Table, upto: Mapping[str, int]) -> Written:
        """Append all of these rows, and note how far each app has come; nothing if no app advances.

        For rows that do not say whose they are; the caller has left out what is on record.
        """
        moving, _ = self._moving(upto)
        return self._commit(rows, moving) if moving else self._written(0, None)

    def repair(self, standing: pa.Table, wanted: pa.Table, because: pa.Array) -> Written:
        """Take back what stands and should not, and put in what should and does not: one commit, none if all is well.

        standing: rows of `read(hidden=True)`. wanted: the rows that should stand in their place. because: for each row
        of `standing`, the life event that would be the reason to take it back.
        """
        names = self.spec.schema.names
        have, want = (digest_column(row_digests(rows.select(names))) for rows in (standing, wanted))
        wrong = pc.invert(pc.is_in(have, value_set=want))
        fresh = wanted.filter(pc.invert(pc.is_in(want, value_set=have)))
        back = standing.drop_columns(["because"]).append_column(HIDDEN.field("because"), because).filter(wrong)
        if not back.num_rows and not fresh.num_rows:
            return self._written(0, None)
        total, turn = self.digest() - Digest.of(back.select(names)) + Digest.of(fresh), self._turn() + 1
        rows = pa.concat_tables([back.select(self.table.schema.names), self._physical(fresh, turn)])
        version = self.table.append(rows.combine_chunks(), transactions={}, facts=_facts(total, turn))
        return self._written(rows.num_rows, version)

    def _moving(self, upto: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
        """Apps that advance with their new numbers, and the number on record of each app (-1 without one)."""
        before = {name: -1 if (known := self.done(name)) is None else known for name in upto}
        return {n: k for n, k in upto.items() if before[n] < k}, before

    def _commit(self, kept: pa.Table, moving: Mapping[str, int]) -> Written:
        total, turn = self.digest() + Digest.of(kept), self._turn()
        rows = self._physical(kept, turn)
        version = self.table.append(rows, transactions=moving, facts=_facts(total, turn))
        return self._written(kept.num_rows, version)

    def _physical(self, rows: pa.Table, turn: int) -> pa.Table:
        """The rows as they are written, with the hidden columns."""
        turns = pa.repeat(pa.scalar(turn or None, pa.int64()), rows.num_rows)
        columns = [*rows.select(self.spec.schema.names).cast(self.spec.schema).columns, turns]
        return pa.Table.from_arrays([*columns, pa.nulls(rows.num_rows, pa.string())], schema=self.table.schema)

    def digest(self) -> Digest:
        """Digest of all rows that stand."""
        text = self.table.facts().get("digest")
        return Digest(*orjson.loads(text)) if text else EMPTY

    def _turn(self) -> int:
        """How many repairs the table has seen."""
        return int(self.table.facts().get("turn", 0))

    def _written(self, rows: int, version: int | None) -> Written:
        total = self.digest()
        return Written(self.name, rows, total.rows, total.fingerprint, version)

    def read(
        self,
        columns: list[str] | None = None,
        since_version: int | None = None,
        golems: Iterable[str] | None = None,
        *,
        only: ds.Expression | None = None,
        hidden: bool = False,
    ) -> pa.Table:
        """Rows that stand, all or those committed after a version, of all golems or of these, in no promised order.

        only: a condition on the rows. hidden: with the hidden columns, too, as `repair` wants them.
        """
        wanted = list(self.spec.schema.names if columns is None else columns)
        if golems is not None:
            mine = pc.field("golem_id").isin(pa.array(list(golems), pa.string()))
            only = mine if only is None else only & mine
        if not self._turn():
            return self.table.read(wanted + (HIDDEN.names if hidden else []), since_version, only)
        extra = [n for n in (*self.spec.key, *HIDDEN.names) if n not in wanted]
        rows = self._standing(self.table.read([*wanted, *extra], since_version, only))
        return rows.select(wanted + (HIDDEN.names if hidden else []))

    def _standing(self, rows: pa.Table) -> pa.Table:
        """Of rows as written, with key and hidden columns, those that stand."""
        rows = rows.filter(pc.is_null(rows["because"]))
        gone = pc.is_in(_joined_key(rows, self.spec.key), value_set=self._gone_keys())
        return rows.filter(pc.invert(gone))

    def _gone_keys(self) -> pa.Array:
        """Keys with turns of all rows that were taken back."""
        version = self.table.version
        if version != self._gone_version:
            fresh = self._keys_of(self.taken_back(list(self.spec.key), self._gone_version))
            self._gone = pa.concat_arrays([self._gone, fresh]).unique()
            self._gone_version = version
        return self._gone

    def _keys_of(self, rows: pa.Table) -> pa.Array:
        key = _joined_key(rows, self.spec.key)
        return key.combine_chunks() if isinstance(key, pa.ChunkedArray) else key

    def taken_back(
        self,
        columns: list[str] | None = None,
        since_version: int | None = None,
        golems: Iterable[str] | None = None,
        *,
        only: ds.Expression | None = None,
    ) -> pa.Table:
        """Rows that were taken back, with the hidden columns: each time as it stood then; see `read`."""
        wanted = list(self.spec.schema.names if columns is None else columns)
        wanted += [n for n in HIDDEN.names if n not in wanted]
        if not self._turn():
            return self.table.schema.empty_table().select(wanted)
        these = pc.field("because").is_valid()
        these = these if only is None else these & only
        if golems is not None:
            these = these & pc.field("golem_id").isin(pa.array(list(golems), pa.string()))
        return self.table.read(wanted, None if since_version is None or since_version < 0 else since_version, these)


def _joined_key(rows: pa.Table, key: Sequence[str]) -> pa.ChunkedArray:
    """A row's key and turn as one text; the parts are ids and numbers, which hold no control characters."""
    parts = [rows[name].cast(pa.string()) for name in key]
    turn = pc.fill_null(rows["turn"], 0).cast(pa.string())
    return pc.binary_join_element_wise(*parts, turn, "\x1f")


def _facts(total: Digest, turn: int) -> dict[str, str]:
    """What a commit of a growing table carries beside its rows."""
    return {"digest": _packed(total)} | ({"turn": str(turn)} if turn else {})


class RenewedTable:
    """A projection that is renewed bucket by bucket: the newest state, not its history.

    part_rows: a bucket of more rows lies in parts of so many, by the key's first column, and who asks for few of those
    reads the parts that hold them.
    """

    def __init__(
        self, name: str, path: Path, spec: TableSpec, bucket_count: int, *, part_rows: int | None = None
    ) -> None:
        self.name, self.spec, self.path, self.bucket_count = name, spec, path, bucket_count
        self._part_rows = part_rows or Policy().growth.partition_rows
        self.schema = spec.schema.append(pa.field("bucket", pa.int32(), nullable=False))
        try:
            self._handle = DeltaTable(path)
        except TableNotFoundError:
            told = {"delta.dataSkippingStatsColumns": ",".join(spec.stats)}
            make_table(path, self.schema, told, partition_by=["bucket"], durable=False)
            self._handle = DeltaTable(path)
        self._begun: set[str] = set()
        self._apps = Transactions(path)
        if self._handle.schema() != Schema.from_arrow(self.schema):
            raise SchemaVersionError(
                f"{path} has other columns than this version writes: use the version that made it, or newer"
            )

    def buckets(self, keys: Iterable[str]) -> set[int]:
        """Buckets of these keys."""
        return {bucket_of(k, self.bucket_count) for k in keys}

    def read(self, buckets: Iterable[int] | None = None, *, only: Iterable[str] | None = None) -> pa.Table:
        """Rows of these buckets (all for None), sorted by key. only: with these values of the key's first column."""
        these = None
        if only is not None:
            names = sorted(set(only))
            these = ds.field(self.spec.key[0]).isin(pa.array(names, pa.string()))
            buckets = self.buckets(names) if buckets is None else buckets
        self._look()
        actions = pa.table(self._handle.get_add_actions(flatten=True))
        if buckets is not None:
            held = pc.is_in(actions["partition.bucket"], value_set=pa.array(sorted(buckets), pa.int32()))
            actions = actions.filter(held)
        files = [absolute(self.path, path) for path in actions["path"].to_pylist()]
        table = scan(files, self.spec.schema, None, these)
        return table.sort_by([(k, "ascending") for k in self.spec.key])

    def done(self, app: str) -> int | None:
        """The newest number of an app (a golem, its cycle) that a renewal carried."""
        self._look()
        return self._apps.newest(app, int(self._handle.version()))

    def _look(self) -> None:
        """See the newest version: a commit is a file with the next number, and looking for it costs nothing."""
        here = int(self._handle.version())
        if has_commit(self.path, here + 1) or not has_commit(self.path, here):
            self._handle.update_incremental()

    def _facts(self) -> dict[str, Any]:
        """What the newest commit that was seen carries."""
        return facts_of(commit_path(self.path, int(self._handle.version())))

    def begun(self, app: str) -> bool:
        """Whether a renewal ever carried this app. What was found once is kept: an app never goes back."""
        if app not in self._begun and self.done(app) is not None:
            self._begun.add(app)
        return app in self._begun

    def renew(
        self,
        rows: pa.Table,
        buckets: set[int],
        *,
        upto: Mapping[str, int] | None = None,
        note: Mapping[str, object] | None = None,
    ) -> Written:
        """Put these rows in place of all rows of these buckets. The key's first column decides a row's bucket.

        upto: apps and the numbers that they reach with this (`done`). note: what the commit carries beside (`noted`).
        """
        self._look()
        digests = self.digests()
        names = rows.column(self.spec.key[0]).to_pylist()
        codes = np.array([bucket_of(n, self.bucket_count) for n in names], dtype=np.int32)
        assert set(codes.tolist()) <= buckets, f"{self.name}: rows outside the buckets that are renewed"
        for bucket in buckets:
            digests[bucket] = Digest.of(rows.filter(pa.array(codes == bucket)))
        table = whole(rows.cast(self.spec.schema).append_column(self.schema.field("bucket"), pa.array(codes)))
        total = sum(digests.values(), EMPTY)
        write_deltalake(
            self._handle,
            table,
            mode="overwrite",
            predicate=f"bucket in ({','.join(str(b) for b in sorted(buckets))})",
            writer_properties=WriterProperties(
                compression="ZSTD", compression_level=1, max_row_group_size=self._part_rows
            ),
            commit_properties=CommitProperties(
                app_transactions=[Transaction(app, number) for app, number in (upto or {}).items()],
                custom_metadata={
                    "digests": orjson.dumps({str(b): _listed(d) for b, d in sorted(digests.items())}).decode(),
                    "note": orjson.dumps(note or {}).decode(),
                },
            ),
            post_commithook_properties=PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False),
        )
        return Written(self.name, rows.num_rows, total.rows, total.fingerprint, int(self._handle.version()))

    def noted(self, name: str) -> dict[str, str]:
        """What the newest commit's note says under a name."""
        text = self._facts().get("note")
        found = orjson.loads(text).get(name, {}) if text else {}
        assert isinstance(found, dict), f"{self.name}: a note is a mapping"
        return found

    def digests(self) -> dict[int, Digest]:
        """Digest of each bucket's rows."""
        text = self._facts().get("digests")
        return {int(b): Digest(*d) for b, d in orjson.loads(text).items()} if text else {}

    def digest(self) -> Digest:
        """Digest of all rows."""
        self._look()
        return sum(self.digests().values(), EMPTY)


class Projections:
    """All tables of one derivation, under one folder."""

    def __init__(self, root: Path, bucket_count: int, policy: Policy) -> None:
        self.root, self.bucket_count, self._policy = root, bucket_count, policy
        self._open: dict[str, GrowingTable | RenewedTable] = {}

    def growing(self, name: str) -> GrowingTable:
        """A projection that grows, by name."""
        found = self._table(name)
        assert isinstance(found, GrowingTable), f"{name} does not grow"
        return found

    def renewed(self, name: str) -> RenewedTable:
        """A projection that is renewed, by name."""
        found = self._table(name)
        assert isinstance(found, RenewedTable), f"{name} is not renewed by bucket"
        return found

    def _table(self, name: str) -> GrowingTable | RenewedTable:
        if name not in self._open:
            spec, path = TABLES[name], self.root / name
            self._open[name] = (
                GrowingTable(name, path, spec, self._policy)
                if spec.grows
                else RenewedTable(name, path, spec, self.bucket_count, part_rows=self._policy.growth.partition_rows)
            )
        return self._open[name]

    def read(self, name: str) -> pa.Table:
        """All rows of a projection, sorted by its key."""
        table = self._table(name).read()
        return table.sort_by([(k, "ascending") for k in TABLES[name].key]) if table.num_rows else table

    def digest(self, name: str) -> Digest:
        """Digest of a projection."""
        return self._table(name).digest()


def _listed(digest: Digest) -> list[int]:
    return [digest.low, digest.high, digest.rows]


def _packed(digest: Digest) -> str:
    return orjson.dumps(_listed(digest)).decode()
