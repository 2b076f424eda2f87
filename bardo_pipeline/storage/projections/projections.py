"""Projections: the derived tables of a derivation, each with an incremental fingerprint.

A fingerprint is a hash of the sum of the row digests and the row count; each commit stores it. Source: architecture
("Projections", "Fingerprints hash logical rows").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from bardo_pipeline.errors import DamagedError
from bardo_pipeline.events.record.arrow_columns import all_required, codes_of, contiguous, required
from bardo_pipeline.events.record.row_digest import digest_column, row_digests
from bardo_pipeline.grimoire.entry_columns import newest_per_golem
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.delta.append_only_table import AppendOnlyTable, Facts
from bardo_pipeline.storage.delta.durable_commits import commit_path, note_version, noted_version
from bardo_pipeline.storage.delta.replaceable_table import ReplaceableTable
from bardo_pipeline.storage.delta.table_digest import EMPTY, Digest, Written
from bardo_pipeline.storage.delta.table_specs import TABLES, TableSpec

HIDDEN = pa.schema([pa.field("turn", pa.int64()), pa.field("because", pa.string())])
"""Bookkeeping columns of a growing table. turn: number of repairs of the table before this row (null: none). because:
id of the life event for which this row retracts the row of the same key and turn (null: it is no retraction)."""


class GrowingTable:
    """An append-only projection with exactly-once writes by (app, number), usually golem and cycle.

    Wrong rows are retracted by later rows (HIDDEN): `read` returns the valid rows, `taken_back` the retracted ones.
    """

    def __init__(self, name: str, path: Path, spec: TableSpec, policy: Policy) -> None:
        self.name, self.spec = name, spec
        physical = pa.schema([*spec.schema, *HIDDEN])
        self.table = AppendOnlyTable(path, physical, list(spec.stats), policy=policy, earlier=spec.earlier)
        self._retracted, self._retracted_version = _joined_key(physical.empty_table(), spec.key), -1
        self._newest: dict[tuple[str, ...], tuple[int, int, pa.Table]] = {}
        self._check_row_count()

    def _check_row_count(self) -> None:
        """Compare the rows of the files with the newest digest; a repair leaves more rows than are valid."""
        facts, rows = self.table.opened_state()
        if "digest" in facts:
            expected = Digest(*orjson.loads(str(facts["digest"]))).rows
            if rows < expected or (rows > expected and "turn" not in facts):
                raise DamagedError(self.table.path, f"it holds {rows} of {expected} rows")

    def done(self, app: str) -> int | None:
        """Return the newest committed number of an app."""
        return self.table.transaction_version(app)

    def append(self, rows: pa.Table, upto: Mapping[str, int]) -> Written:
        """Append the rows of golems that advance; rows of committed cycles are left out.

        Parameters
        ----------
        rows : with golem_id and cycle
        upto : golem -> cycle that it reaches with these rows
        """
        committed = [-1 if (number := self.done(name)) is None else number for name in upto]
        # code -1, of a golem that does not advance, takes the last element
        past = np.array([*committed, 2**62], np.int64)[codes_of(rows["golem_id"], list(upto))]
        is_new = rows["cycle"].to_numpy() > past
        return self.put(rows if is_new.all() else rows.filter(pa.array(is_new)), upto)

    def put(self, rows: pa.Table, upto: Mapping[str, int]) -> Written:
        """Append all these rows if an app advances. For rows without golem_id; the caller leaves out committed rows."""
        done = {app: self.done(app) for app in upto}
        advancing = {app: number for app, number in upto.items() if (last := done[app]) is None or last < number}
        if not advancing:
            return self._written(0, None)
        added = Digest.of(rows)
        version = self.table.append(
            self._physical(rows, self.turn),
            transactions=advancing,
            facts=lambda before: _facts(_total(before) + added, _turn(before)),
        )
        return self._written(rows.num_rows, version)

    def repair(self, standing: pa.Table, wanted: pa.Table, because: pa.Array) -> Written:
        """Retract wrong rows and add missing ones in one commit; no commit without a difference.

        Parameters
        ----------
        standing : valid rows, as returned by `read(hidden=True)`
        wanted : the rows that should be valid instead
        because : for each row of `standing`, the life event that would retract it
        """
        names = self.spec.schema.names
        have, want = (digest_column(row_digests(rows.select(names))) for rows in (standing, wanted))
        wrong = pc.invert(pc.is_in(have, value_set=want))
        fresh = wanted.filter(pc.invert(pc.is_in(want, value_set=have)))
        back = standing.drop_columns(["because"]).append_column(HIDDEN.field("because"), because).filter(wrong)
        if not back.num_rows and not fresh.num_rows:
            return self._written(0, None)
        removed, added = Digest.of(back.select(names)), Digest.of(fresh)
        rows = pa.concat_tables([back.select(self.table.schema.names), self._physical(fresh, self.turn + 1)])
        version = self.table.append(
            rows.combine_chunks(),
            transactions={},
            facts=lambda before: _facts(_total(before) - removed + added, _turn(before) + 1),
        )
        return self._written(rows.num_rows, version)

    def _physical(self, rows: pa.Table, turn: int) -> pa.Table:
        """Return the rows with the bookkeeping columns."""
        turns = pa.repeat(pa.scalar(turn or None, pa.int64()), rows.num_rows)
        columns = [*rows.select(self.spec.schema.names).cast(self.spec.schema).columns, turns]
        return pa.Table.from_arrays([*columns, pa.nulls(rows.num_rows, pa.string())], schema=self.table.schema)

    def digest(self) -> Digest:
        """Return the digest of all valid rows."""
        return _total(self.table.facts())

    @property
    def row_count(self) -> int:
        """Number of valid rows."""
        return self.digest().rows

    @property
    def turn(self) -> int:
        """Number of repairs of the table."""
        return _turn(self.table.facts())

    @property
    def version(self) -> int:
        """Newest committed version of any process."""
        return self.table.version

    def _written(self, rows: int, version: int | None) -> Written:
        if version is not None:
            note_version(self.table.path, version)
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
        """Read valid rows, all or those committed after a version, of all golems or of these, in any order.

        Parameters
        ----------
        only : condition on the rows
        hidden : include the bookkeeping columns, for `repair`
        """
        wanted = list(self.spec.schema.names if columns is None else columns)
        only = self._condition(only, golems)
        if not self.turn:
            return self.table.read(wanted + (HIDDEN.names if hidden else []), since_version, only)
        extra = [n for n in (*self.spec.key, *HIDDEN.names) if n not in wanted]
        rows = self.table.read([*wanted, *extra], since_version, only)
        rows = rows.filter(pc.is_null(rows["because"]))
        is_retracted = pc.is_in(_joined_key(rows, self.spec.key), value_set=self._retracted_keys())
        return rows.filter(pc.invert(is_retracted)).select(wanted + (HIDDEN.names if hidden else []))

    def read_as_written(self) -> pa.Table:
        """Read all valid rows in the columns in which they were written, which the digest counts."""
        written = self.table.columns
        return self.read([n for n in written.names if n not in HIDDEN.names] if written.is_earlier else None)

    def newest(self, by: str, columns: Sequence[str]) -> pa.Table:
        """Return golem_id and these columns of each golem's valid row with the largest value in column `by`.

        The result is cached; a repeated call reads only new rows.
        """
        wanted, version, turn = ("golem_id", *columns), self.table.version, self.turn
        at_version, at_turn, cached = self._newest.get((by, *wanted), (None, turn, None))
        if at_turn != turn:
            at_version, cached = None, None
        if cached is None or at_version != version:
            fresh = self.read(list(wanted), at_version)
            cached = newest_per_golem(fresh if cached is None else pa.concat_tables([cached, fresh]), by)
            self._newest[by, *wanted] = version, turn, cached
        return cached

    def _retracted_keys(self) -> pa.Array:
        version = self.table.version
        if version != self._retracted_version:
            fresh = _joined_key(self.taken_back(list(self.spec.key), self._retracted_version), self.spec.key)
            self._retracted = pa.concat_arrays([self._retracted, fresh]).unique()
            self._retracted_version = version
        return self._retracted

    def taken_back(
        self,
        columns: list[str] | None = None,
        since_version: int | None = None,
        golems: Iterable[str] | None = None,
        *,
        only: ds.Expression | None = None,
    ) -> pa.Table:
        """Read retracted rows, with the bookkeeping columns; see `read`."""
        wanted = list(self.spec.schema.names if columns is None else columns)
        wanted += [n for n in HIDDEN.names if n not in wanted]
        if not self.turn:
            return self.table.schema.empty_table().select(wanted)
        is_retracted = pc.field("because").is_valid()
        only = self._condition(is_retracted if only is None else is_retracted & only, golems)
        return self.table.read(wanted, since_version, only)

    def _condition(self, only: ds.Expression | None, golems: Iterable[str] | None) -> ds.Expression | None:
        """Return the condition on the rows that are read; a subclass adds its own."""
        if golems is None:
            return only
        is_golem = pc.field("golem_id").isin(pa.array(list(golems), pa.string()))
        return is_golem if only is None else only & is_golem


def _joined_key(rows: pa.Table, key: Sequence[str]) -> pa.Array:
    """Return key and turn of each row as one text; ids and numbers have no control characters."""
    parts = [rows[name].cast(pa.string()) for name in key]
    turn = pc.fill_null(rows["turn"], 0).cast(pa.string())
    return contiguous(pc.binary_join_element_wise(*parts, turn, "\x1f"))


def _total(facts: Facts) -> Digest:
    return Digest(*orjson.loads(text)) if (text := facts.get("digest")) else EMPTY


def _turn(facts: Facts) -> int:
    return int(facts.get("turn", 0))


def _facts(total: Digest, turn: int) -> Facts:
    return {"digest": orjson.dumps(total.listed).decode()} | ({"turn": str(turn)} if turn else {})


class Projections:
    """The tables of one derivation in a folder."""

    def __init__(self, root: Path, bucket_count: int, policy: Policy) -> None:
        self.root, self.bucket_count, self._policy = root, bucket_count, policy
        self._open: dict[str, GrowingTable | ReplaceableTable] = {}

    def growing(self, name: str) -> GrowingTable:
        """Return an append-only projection by name."""
        table = self._table(name)
        assert isinstance(table, GrowingTable), f"{name} does not grow"
        return table

    def replaceable(self, name: str) -> ReplaceableTable:
        """Return a projection whose buckets are replaced, by name."""
        table = self._table(name)
        assert isinstance(table, ReplaceableTable), f"{name} is not replaced by bucket"
        return table

    def _table(self, name: str) -> GrowingTable | ReplaceableTable:
        if name not in self._open:
            spec, path = TABLES[name], self.root / name
            noted = noted_version(path)
            if noted >= 0 and not commit_path(path, 0).parent.exists():  # opening it would create it
                raise DamagedError(path, "it is missing")
            table = (
                GrowingTable(name, path, spec, self._policy)
                if spec.grows
                else ReplaceableTable(name, path, spec, self.bucket_count, part_rows=self._policy.growth.partition_rows)
            )
            if table.version < noted:
                raise DamagedError(commit_path(path, noted), "it is missing")
            self._open[name] = table
        return self._open[name]

    def read(self, name: str) -> pa.Table:
        """Read all rows of a projection, sorted by its key."""
        return self._table(name).read().sort_by([(k, "ascending") for k in TABLES[name].key])

    def recounted(self, name: str) -> Digest:
        """Read all rows of a projection and return their digest."""
        return Digest.of(self._table(name).read_as_written())

    def digest(self, name: str) -> Digest:
        """Return the digest of a projection."""
        return self._table(name).digest()


WITHDRAWAL_SCHEMA = pa.schema(
    [
        required("table_name", pa.string()),
        pa.field("golem_id", pa.string()),
        *all_required(pa.string(), "row_name", "because"),
        required("row_count", pa.int64()),
        required("made_again", pa.bool_()),
    ]
)
"""One row per table, row name and causing life event. golem_id: null for an anonymous vote. row_count: retracted rows
with the name. made_again: a row with the name is valid now, with other content."""

_NAMED_BY = {
    "episodes": "episode_id",
    "curation": "entry_id",
    "cycles": "cycle",
    "playbooks": "version",
    "credits": "entry_id",
    "hypotheses": "hypothesis_id",
    "dreams": "cycle",
    "failures": "scar_id",
    "votes": "vote_id",
    "vote_causes": "vote_id",
    "testaments": "golem_id",
    "candidates": "bundle_hash",
}


def withdrawals(projections: Projections) -> pa.Table:
    """Return all retractions by table, golem and name (WITHDRAWAL_SCHEMA).

    They are part of the history of the tables; a rebuild from the log has no retractions. Source: canon 20 ("withdrawn
    and named").
    """
    parts = [_of_table(projections.growing(name)) for name, spec in TABLES.items() if spec.grows]
    order = [(name, "ascending") for name in ("table_name", "golem_id", "row_name", "because")]
    return pa.concat_tables(parts).sort_by(order)


def _of_table(table: GrowingTable) -> pa.Table:
    column = _NAMED_BY[table.name]
    owner = "golem_id" if "golem_id" in table.spec.schema.names else None
    wanted = [column] if owner in (None, column) else ["golem_id", column]
    retracted = table.taken_back(wanted)
    if not retracted.num_rows:
        return WITHDRAWAL_SCHEMA.empty_table()
    by = "golem_id" if owner else column
    valid = table.read(wanted, only=ds.field(by).isin(retracted[by].unique()))
    named = _named(retracted, column, owner).append_column("because", retracted["because"])
    counted = named.group_by(["golem_id", "row_name", "because"], use_threads=False).aggregate([([], "count_all")])
    is_made_again = pc.is_in(_pair(counted), value_set=_pair(_named(valid, column, owner)))
    columns = {
        "table_name": pa.repeat(pa.scalar(table.name), counted.num_rows),
        **{name: counted[name] for name in ("golem_id", "row_name", "because")},
        "row_count": counted["count_all"],
        "made_again": is_made_again,
    }
    return pa.table(columns).cast(WITHDRAWAL_SCHEMA)


def _named(rows: pa.Table, column: str, owner: str | None) -> pa.Table:
    golems = rows[owner] if owner else pa.nulls(rows.num_rows, pa.string())
    return pa.table({"golem_id": golems, "row_name": rows[column].cast(pa.string())})


def _pair(rows: pa.Table) -> pa.Array:
    return contiguous(pc.binary_join_element_wise(pc.fill_null(rows["golem_id"], ""), rows["row_name"], "\x1f"))
