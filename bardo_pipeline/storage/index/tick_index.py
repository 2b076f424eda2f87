"""A DuckDB table of all ticks' categories, costs and outcomes: a cache that answers filters over millions of rows.

It serves the four kinds of query of HB's SQL index: tier and regime; acted with an outcome; the count by phase; the
last ticks. Every query takes one golem, several or all. Everything here derives from the table of cycles.

A refresh appends the log's new rows to a copy of the database file, under the home's lock, and then replaces
`manifest.json`, which names the file in use. Readers therefore never meet a writer: they keep the file that they
opened. A file that is missing, torn, of another log or of an older format is built again from the log.
Source: HB S6.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.errors import DamagedError, QueryError, StoreError
from bardo_pipeline.events.record.arrow_columns import all_required, required
from bardo_pipeline.events.record.arrow_schema import MOMENT
from bardo_pipeline.events.record.model import EMOTIONS, PHASES, REGIMES, TIERS
from bardo_pipeline.storage.checksums import (
    check_files,
    checked_json,
    json_with_checksum,
    matches_name,
    named_by_checksum,
)
from bardo_pipeline.storage.home import Home, replace_file
from bardo_pipeline.storage.log.event_log import EventLog

INDEX_SCHEMA = pa.schema(
    [
        required("golem_id", pa.string()),
        required("tick", pa.int64()),
        *all_required(pa.string(), "regime", "tier"),
        *all_required(pa.bool_(), "has_action", "has_outcome"),
        required("phase", pa.string()),
        required("prediction_error", pa.float64()),
        required("total_cost_micros", pa.int64()),
        pa.field("pnl_impact_micros", pa.int64()),
        required("primary_emotion", pa.string()),
        required("observed_at", MOMENT),
    ]
)
"""One row per tick. has_action: the tick called a tool. Money in micro-dollars; pnl is null without an outcome."""

PHASE_SCHEMA = pa.schema([required("phase", pa.string()), required("tick_count", pa.int64())])
"""One row per phase, in order from thriving to terminal."""

_FORMAT = 4  # raise it when the tables below change; an index of another format is built again
_MANIFEST = "manifest.json"
_DRAFT = ".draft.duckdb"
_NAME = "index_file"  # of the attached database
_TRIES = 5  # a refresh may delete the database file between a reader's two steps: read the manifest, open the file
_CATEGORIES: Mapping[str, Sequence[str]] = {
    "regime": REGIMES,
    "tier": TIERS,
    "phase": PHASES,
    "primary_emotion": EMOTIONS,
}
_LOG_COLUMNS = (
    "golem_id",
    "tick",
    "regime",
    "tier",
    "actions",
    "outcome.verified",
    "phase",
    "prediction_error",
    "cost.total_micros",
    "outcome.pnl_impact_micros",
    "primary_emotion",
    "observed_at",
    "version",
)
_TABLES = """
create table ticks (
    golem_id varchar not null, tick bigint not null, regime {regime} not null, tier {tier} not null,
    has_action boolean not null, has_outcome boolean not null, phase {phase} not null, prediction_error double not null,
    total_cost_micros bigint not null, pnl_impact_micros bigint, primary_emotion {primary_emotion} not null,
    observed_at timestamptz not null
)
""".format(**{name: f"enum {tuple(values)}" for name, values in _CATEGORIES.items()})
_APPEND = "insert into ticks from new_ticks order by tick desc, golem_id"
"""The newest ticks come first, so that a query for the last ticks skips all later row groups by their maximum."""
_UNSTRUCK = """(
    from ticks where not exists (
        from struck where struck.golem_id = ticks.golem_id and ticks.tick between struck.tick_from and struck.tick_to
    )
)"""


@dataclass(frozen=True)
class _Manifest:
    """The state of the index: all records of log `table_id` up to `version`; file is "" without records."""

    table_id: str
    version: int = -1
    file: str = ""
    file_bytes: int = 0
    tick_count: int = 0
    format: int = _FORMAT


class TickIndex:
    """The index of one home's ticks. `open` brings it up to the log. Any number of processes may use it at once."""

    def __init__(self, home: Home, log: EventLog) -> None:
        self._home, self._log = home, log
        self._folder = home.index / "ticks"
        self._manifest = _Manifest(log.table_id)
        self._database: duckdb.DuckDBPyConnection | None = None

    @classmethod
    def open(cls, home: Home, log: EventLog) -> Self:
        """Open the index and append all records that it misses."""
        index = cls(home, log)
        index.refresh()
        return index

    @property
    def version(self) -> int:
        """The log version up to which the index answers; -1 if it is empty."""
        return self._manifest.version

    @property
    def tick_count(self) -> int:
        """Number of indexed ticks."""
        return self._manifest.tick_count

    # refresh

    def refresh(self) -> int:
        """Append the log's new records, or build the index again if it is unusable. Returns the number of new ticks."""
        self._reload()
        if self.version == self._log.version:
            return 0
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._home.lock("ticks"):
            self._reload()
            count_before, until = self.tick_count, self._log.version
            if self.version == until:
                return 0
            try:
                self._append(until)
            except (duckdb.Error, DamagedError):  # the copied file is torn or altered
                self._use(_Manifest(self._log.table_id))
                count_before = 0
                self._append(until)
            return self.tick_count - count_before

    def _append(self, until: int) -> None:
        """Write a new database file with the records up to this version, and make it the one in use."""
        old = self._manifest
        records = self._log.read_cycles(_LOG_COLUMNS, old.version, until_version=until)
        if old.version >= 0:  # the log may return older rows of a file that also has new ones
            records = records.filter(pc.fill_null(pc.greater(records["version"], old.version), True))
        manifest = replace(old, version=until)
        if records.num_rows:
            draft = self._folder / _DRAFT
            for leftover in self._folder.glob(f"{_DRAFT}*"):
                leftover.unlink()
            if old.file:
                check_files([str(self._folder / old.file)])
                shutil.copyfile(self._folder / old.file, draft)
            _write(draft, _index_rows(records))
            os.replace(draft, self._folder / f"{until:020}.duckdb")
            path = named_by_checksum(self._folder / f"{until:020}.duckdb")
            manifest = _Manifest(old.table_id, until, path.name, path.stat().st_size, old.tick_count + records.num_rows)
        replace_file(self._folder / _MANIFEST, json_with_checksum(asdict(manifest)))
        self._delete_files(keep=manifest.file)
        self._use(manifest)

    def _delete_files(self, *, keep: str = "") -> None:
        """Delete all database files but this one, and the files of format 1."""
        for path in (*self._folder.glob("*.duckdb"), *self._folder.glob("*.arrow")):
            if path.name not in (keep, _DRAFT):
                path.unlink()

    def _reload(self) -> None:
        """Open the database file that the manifest names; the index is empty if that file is unusable."""
        for _ in range(_TRIES):
            manifest = self._read_manifest()
            if manifest == self._manifest:
                return
            with suppress(FileNotFoundError, StoreError, duckdb.Error):
                self._use(manifest)
                return
        self._use(_Manifest(self._log.table_id))

    def _read_manifest(self) -> _Manifest:
        empty = _Manifest(self._log.table_id)
        try:
            fields = checked_json(self._folder / _MANIFEST)
            fields.pop("checksum", None)
            manifest = _Manifest(**fields)
        except (FileNotFoundError, DamagedError, AttributeError, TypeError):
            return empty
        of_this_log = manifest.format == _FORMAT and manifest.table_id == self._log.table_id
        return manifest if of_this_log and manifest.version <= self._log.version else empty

    def _use(self, manifest: _Manifest) -> None:
        """Answer from this manifest's file. Raises FileNotFoundError, StoreError (altered), duckdb.Error (torn)."""
        database = None
        if manifest.file:
            path = self._folder / manifest.file
            if path.stat().st_size != manifest.file_bytes:
                raise StoreError(f"{path} has {path.stat().st_size} bytes instead of {manifest.file_bytes}")
            check_files([str(path)])
            database = _attached(str(path), "(read_only)")
        self._manifest, self._database = manifest, database

    def damaged(self) -> list[str]:
        """Return the name of the database file if its bytes differ from those written. Reads the whole file."""
        path = self._folder / self._manifest.file
        whole = not self._manifest.file or (path.exists() and matches_name(str(path)))
        return [] if whole else [path.name]

    def drop(self) -> None:
        """Delete the index; the next refresh builds it again from the log."""
        with self._home.lock("ticks"):
            (self._folder / _MANIFEST).unlink(missing_ok=True)
            self._delete_files()
        self._reload()

    # queries

    def ticks(
        self,
        *,
        golems: Collection[str] | None = None,
        tier: str | Collection[str] | None = None,
        regime: str | Collection[str] | None = None,
        phase: str | Collection[str] | None = None,
        primary_emotion: str | Collection[str] | None = None,
        has_action: bool | None = None,
        has_outcome: bool | None = None,
        limit: int = 1_000,
        struck: bool = True,
    ) -> pa.Table:
        """Return the last ticks that meet all conditions, ordered by tick and golem id, both descending.

        Parameters
        ----------
        golems : ids; None for all golems
        limit : maximum number of rows, at least 1
        struck : include ticks that were struck or reverted by a reorg

        Returns
        -------
        pa.Table, INDEX_SCHEMA

        Raises
        ------
        QueryError : a category has no such value, or limit is below 1
        """
        if limit < 1:
            raise QueryError(f"the limit must be at least one tick, not {limit}")
        categories = {"tier": tier, "regime": regime, "phase": phase, "primary_emotion": primary_emotion}
        conditions = [_category_condition(name, value) for name, value in categories.items() if value is not None]
        flags = {"has_action": has_action, "has_outcome": has_outcome}
        conditions += [f"{name} = {value}" for name, value in flags.items() if value is not None]
        rows = self._latest(conditions, golems, limit, struck)
        if rows.num_rows == limit:  # of the lowest tick, DuckDB chose any golems: take all, then cut in order
            lowest = pc.min(rows["tick"]).as_py()
            ties = self._latest([*conditions, f"tick = {lowest}"], golems, None, struck)
            rows = pa.concat_tables([rows.filter(pc.greater(rows["tick"], lowest)), ties])
        rows = rows.sort_by([("tick", "descending"), ("golem_id", "descending")])
        return rows.slice(0, limit).combine_chunks()

    def _latest(
        self, conditions: Sequence[str], golems: Collection[str] | None, limit: int | None, struck: bool
    ) -> pa.Table:
        last = "" if limit is None else f"order by tick desc limit {limit}"
        where = " and ".join(["{golems}", *conditions])
        columns = ", ".join(INDEX_SCHEMA.names)
        sql = f"select {columns} from {{source}} where {where} {last}"  # noqa: S608
        return self._answer(sql, golems, struck).cast(INDEX_SCHEMA)

    def phases(self, *, golems: Collection[str] | None = None, struck: bool = True) -> pa.Table:
        """Count the ticks of each phase (PHASE_SCHEMA), over all golems or these; `struck` as in `ticks`."""
        sql = "select phase::varchar, count(*) from {source} where {golems} group by phase"
        rows = self._answer(sql, golems, struck)
        counts = dict(zip(*(column.to_pylist() for column in rows.columns), strict=True))
        return pa.table([pa.array(PHASES), pa.array([counts.get(p, 0) for p in PHASES])], schema=PHASE_SCHEMA)

    def _answer(self, sql: str, golems: Collection[str] | None, struck: bool) -> pa.Table:
        """Run a query over `{source}` and `{golems}`; if a block of the file is torn, once more on a new index."""
        try:
            return self._answer_once(sql, golems, struck)
        except duckdb.Error:
            self.drop()
            self.refresh()
            return self._answer_once(sql, golems, struck)

    def _answer_once(self, sql: str, golems: Collection[str] | None, struck: bool) -> pa.Table:
        with (self._database or _empty_database()).cursor() as cursor:
            cursor.execute(f"use {_NAME}")
            if not struck:
                cursor.register("struck", self._struck())
            if golems is not None:
                cursor.register("wanted", pa.table({"golem_id": pa.array([*golems], pa.string())}))
            selected = "true" if golems is None else "golem_id in (from wanted)"
            source = "ticks" if struck else _UNSTRUCK
            return cursor.sql(sql.format(source=source, golems=selected)).to_arrow_table()

    def _struck(self) -> pa.Table:
        """Return the runs of struck and reorged ticks: golem_id, tick_from, tick_to (inclusive)."""
        strikes = self._log.life("RecordStruck").select(["golem_id", "struck"]).to_pylist()
        reorgs = self._log.life("ReorgObserved").select(["golem_id", "reorg"]).to_pylist()
        spans = [(row["golem_id"], row["struck"]["tick"], row["struck"]["tick"]) for row in strikes]
        spans += [(row["golem_id"], row["reorg"]["tick_from"], row["reorg"]["tick_to"]) for row in reorgs]
        columns = zip(*spans, strict=True) if spans else ((), (), ())
        kinds = pa.string(), pa.int64(), pa.int64()
        return pa.table(list(map(pa.array, columns, kinds)), ["golem_id", "tick_from", "tick_to"])


def _attached(path: str, options: str = "") -> duckdb.DuckDBPyConnection:
    """Attach a database file and make it the default.

    `duckdb.connect(path)` would return the process's open database of that path, even after the file was replaced.
    """
    database = duckdb.connect(":memory:")
    try:
        quoted = path.replace("'", "''")
        database.execute(f"attach '{quoted}' as {_NAME} {options}; use {_NAME}")
    except duckdb.Error:
        database.close()
        raise
    return database


def _empty_database() -> duckdb.DuckDBPyConnection:
    database = _attached(":memory:")
    database.execute(_TABLES)
    return database


def _write(path: Path, new_ticks: pa.Table) -> None:
    """Append rows to the database file, which is made if it is missing; no write-ahead log remains."""
    missing = not path.exists()
    with _attached(str(path)) as database:
        if missing:
            database.execute(_TABLES)
        database.register("new_ticks", new_ticks)
        database.execute(_APPEND)
        database.execute("checkpoint")
        database.execute(f"use memory; detach {_NAME}")


def _index_rows(records: pa.Table) -> pa.Table:
    """Convert records (_LOG_COLUMNS) to rows (INDEX_SCHEMA). Raises StoreError for a category's unknown value."""
    for name, values in _CATEGORIES.items():
        unknown = records.filter(pc.invert(pc.is_in(records[name], value_set=pa.array(values))))
        for row in unknown.slice(0, 1).to_pylist():
            raise StoreError(
                f"golem {row['golem_id']}, tick {row['tick']}: there is no {name} {row[name]!r}: run `bardo verify`"
            )
    columns = {
        "has_action": pc.greater(pc.list_value_length(records["actions"]), 0),
        "has_outcome": pc.is_valid(records["outcome.verified"]),
        "total_cost_micros": records["cost.total_micros"],
        "pnl_impact_micros": records["outcome.pnl_impact_micros"],
    }
    return pa.table({name: columns[name] if name in columns else records[name] for name in INDEX_SCHEMA.names})


def _category_condition(name: str, wanted: str | Collection[str]) -> str:
    """Write the SQL condition for a category. Raises QueryError for a value that it does not have."""
    values = [wanted] if isinstance(wanted, str) else sorted(set(wanted))
    for value in values:
        if value not in _CATEGORIES[name]:
            raise QueryError(f"there is no {name} {value!r}: {', '.join(_CATEGORIES[name])}")
    return f"{name} in ({', '.join(map(repr, values))})" if values else "false"
