"""Projections: the derived tables of one derivation, each with a fingerprint that costs only what is new.

A table's fingerprint is the sum of its rows' digests (each row holds its key, so order cannot show), hashed with their
number; it is kept in the commit that changed it. Source: architecture ("Projections", "Fingerprints hash logical
rows").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from bardo_pipeline.events.record.row_digest import digest_column, row_digests
from bardo_pipeline.grimoire.entry_columns import newest_per_golem
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.delta.append_only_table import AppendOnlyTable
from bardo_pipeline.storage.delta.replaceable_table import ReplaceableTable
from bardo_pipeline.storage.delta.table_digest import EMPTY, Digest, Written
from bardo_pipeline.storage.projections.table_specs import TABLES, TableSpec

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
        self._newest: dict[tuple[str, ...], tuple[int, int, pa.Table]] = {}

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

    def newest(self, by: str, columns: Sequence[str]) -> pa.Table:
        """The row of each golem that has the most of a column: of the rows that stand, these columns and golem_id.

        What was read once is kept: asking again reads and orders only what is new.
        """
        wanted, version, turn = ("golem_id", *columns), self.table.version, self._turn()
        seen, at_turn, known = self._newest.get((by, *wanted), (None, turn, None))
        if seen != version or at_turn != turn:
            since = seen if at_turn == turn else None
            fresh = self.read(list(wanted), since)
            if known is None or since is None:
                known = newest_per_golem(fresh, by)
            else:
                again = pc.is_in(known["golem_id"], value_set=fresh["golem_id"].unique())
                moved = newest_per_golem(pa.concat_tables([known.filter(again), fresh]), by)
                known = pa.concat_tables([known.filter(pc.invert(again)), moved]).combine_chunks()
            self._newest[by, *wanted] = version, turn, known
        return known

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


class Projections:
    """All tables of one derivation, under one folder."""

    def __init__(self, root: Path, bucket_count: int, policy: Policy) -> None:
        self.root, self.bucket_count, self._policy = root, bucket_count, policy
        self._open: dict[str, GrowingTable | ReplaceableTable] = {}

    def growing(self, name: str) -> GrowingTable:
        """A projection that grows, by name."""
        found = self._table(name)
        assert isinstance(found, GrowingTable), f"{name} does not grow"
        return found

    def replaceable(self, name: str) -> ReplaceableTable:
        """Return a projection whose buckets are replaced, by name."""
        found = self._table(name)
        assert isinstance(found, ReplaceableTable), f"{name} is not replaced by bucket"
        return found

    def _table(self, name: str) -> GrowingTable | ReplaceableTable:
        if name not in self._open:
            spec, path = TABLES[name], self.root / name
            self._open[name] = (
                GrowingTable(name, path, spec, self._policy)
                if spec.grows
                else ReplaceableTable(name, path, spec, self.bucket_count, part_rows=self._policy.growth.partition_rows)
            )
        return self._open[name]

    def read(self, name: str) -> pa.Table:
        """All rows of a projection, sorted by its key."""
        table = self._table(name).read()
        return table.sort_by([(k, "ascending") for k in TABLES[name].key]) if table.num_rows else table

    def digest(self, name: str) -> Digest:
        """Digest of a projection."""
        return self._table(name).digest()


def _packed(digest: Digest) -> str:
    return orjson.dumps(digest.listed).decode()
