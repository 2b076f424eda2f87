"""Building and querying of the warehouse: marts for analysts in one DuckDB file.

dbt builds a draft, which then replaces the warehouse atomically. Open connections keep reading the old file. If a model
or a data test fails, the old warehouse stays. Source: P-4; architecture ("Running").
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb

from bardo_pipeline.errors import MartsRefused, QueryError
from bardo_pipeline.policy import Policy
from bardo_pipeline.project_files import DBT_PROJECT
from bardo_pipeline.storage.home import Home, sync_file, sync_folder
from bardo_pipeline.storage.warehouse.dbt_docs import docs_page, is_page_of, write_docs
from bardo_pipeline.storage.warehouse.dbt_process import (
    MANIFEST,
    content_hash,
    keep_manifest,
    project_environment,
    run_dbt,
)

_BUILD = ("build", "--exclude-resource-type", "unit_test")
_SHOWN, _ROWS_SHOWN = 5, 3


@dataclass(frozen=True)
class DataTest:
    """The result of one data test: its id in dbt's manifest, its failing rows; fault is None for a passed test."""

    unique_id: str
    fault: str | None
    failing_rows: int


@dataclass(frozen=True)
class WarehouseReport:
    """The result of a build. as_of: the log's last event time, None for a log without events."""

    rows: dict[str, int]
    tests: tuple[DataTest, ...]
    seconds: float
    as_of: datetime | None

    @property
    def tests_passed(self) -> int:
        """The number of data tests; all of them passed."""
        return len(self.tests)


def build_warehouse(
    home: Home, derivation_id: str, policy: Policy | None = None, *, project: Path = DBT_PROJECT
) -> WarehouseReport:
    """Build and test every mart from the log and a derivation, then replace the warehouse and its docs; one at a time.

    policy: the derivation's policy; by default the specification's.
    Raises MartsRefused with the failed models and tests; the old warehouse then stays.
    """
    started = time.perf_counter()
    with home.lock("warehouse"):
        for left in home.root.glob("warehouse.draft*"):
            shutil.rmtree(left, ignore_errors=True)
        # A folder of its own, because the dbt process of a killed build may still write to the earlier one.
        folder = Path(tempfile.mkdtemp(dir=home.root, prefix="warehouse.draft-"))
        started_ns = folder.stat().st_mtime_ns
        try:
            draft, page, version = folder / home.warehouse.name, docs_page(home), content_hash(project)
            environment = dbt_environment(home, derivation_id, policy or Policy(), draft.name)
            is_described = is_page_of(page, version)
            options = ("--no-write-json",) if is_described else ()  # dbt takes a second to write its manifest
            try:
                tests = _dbt_build(options, folder, environment | {"BARDO_PROJECT": version}, project)
            except MartsRefused:
                if not home.warehouse.exists():
                    raise
                draft.unlink(missing_ok=True)
                tests = _dbt_build(options, folder, environment, project)  # the kept rows may be the fault
            rows, as_of = _checkpointed(draft)
            if not is_described:
                keep_manifest(folder, project)
                with duckdb.connect(draft, read_only=True) as connection:
                    write_docs(folder / MANIFEST, connection, folder / page.name, version)
            os.utime(draft, ns=(started_ns, started_ns))  # a later change of a table is not in it
            _swap(draft, home.warehouse)
            if not is_described:
                _swap(folder / page.name, page)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return WarehouseReport(rows, tests, time.perf_counter() - started, as_of)


def dbt_environment(home: Home, derivation_id: str, policy: Policy, database: str) -> dict[str, str]:
    """Return the environment of a run of dbt over a home, which its plugin reads. database: as project_environment."""
    return project_environment(database) | {
        "BARDO_HOME": str(home.root.absolute()),
        "BARDO_DERIVATION": derivation_id,
        "BARDO_POLICY": policy.model_dump_json(),
    }


def _dbt_build(
    options: tuple[str, ...], folder: Path, environment: dict[str, str], project: Path
) -> tuple[DataTest, ...]:
    """Run dbt and return the data tests, which all passed. Raises MartsRefused if a model or a test failed."""
    ran = run_dbt((*options, *_BUILD), folder, environment, project)
    failed = [r for r in ran.results if r["status"] in ("error", "fail")]
    cause = {result["unique_id"]: _cause(result, folder) for result in failed}
    tests = tuple(
        DataTest(name, cause.get(name), int(result["failures"] or 0))
        for result in ran.results
        if (name := result["unique_id"]).startswith("test.") and result["status"] in ("pass", "error", "fail")
    )
    if failed:
        # unique_id is kind.project.name, and a hash for a generic test
        causes = "; ".join(f"{name.split('.')[2]}: {text}" for name, text in list(cause.items())[:_SHOWN])
        more = f"; and {len(failed) - _SHOWN} more" if len(failed) > _SHOWN else ""
        raise MartsRefused(f"dbt build failed, the warehouse is unchanged: {causes}{more}", tests)
    if ran.code or not ran.results:
        raise MartsRefused(f"dbt build ended with {ran.code}, the warehouse is unchanged:\n{ran.last_lines}", tests)
    return tests


def _cause(result: dict[str, Any], folder: Path) -> str:
    """Describe a failure; for a data test, with its first failing rows."""
    message = " ".join(str(result["message"]).split())[:300]
    if result["status"] == "error":
        return message
    with duckdb.connect(next(folder.glob("*.duckdb")), read_only=True) as connection:
        cursor = connection.execute(result["compiled_code"])
        names = [column[0] for column in cursor.description]
        rows = [dict(zip(names, map(str, row), strict=True)) for row in cursor.fetchmany(_ROWS_SHOWN)]
    return f"{message} {', '.join(map(str, rows))}"


def _checkpointed(draft: Path) -> tuple[dict[str, int], datetime | None]:
    """Checkpoint the draft and check that it has no views. Returns the row count by mart and the newest as_of."""
    with duckdb.connect(draft) as connection:
        connection.execute("checkpoint")
        views = connection.execute("select view_name from duckdb_views() where not internal").fetchall()
        assert not views, f"the warehouse would read outside itself: {views}"
        rows: dict[str, int] = {}
        moments: list[datetime] = []
        for name in marts_of(connection):
            ((rows[name], as_of),) = connection.execute(f'select count(*), max(as_of) from "{name}"').fetchall()  # noqa: S608
            moments += [] if as_of is None else [as_of.replace(tzinfo=UTC)]
    return rows, max(moments, default=None)


def marts_of(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Return the names of all marts in the connection's databases."""
    rows = connection.execute(
        "select table_name from duckdb_tables() where schema_name = 'main' order by all"
    ).fetchall()
    return [name for (name,) in rows]


def _swap(draft: Path, target: Path) -> None:
    """Replace the target by the draft, atomically and durably."""
    sync_file(draft)
    draft.replace(target)
    sync_folder(target.parent)


def quoted(text: str) -> str:
    """Quote text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def query(home: Home, sql: str, limit: int | None = None) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Run SQL on the warehouse, read-only and without access to other files. Returns column names and rows.

    limit: maximum number of rows. Raises QueryError if there is no warehouse or DuckDB rejects the SQL.
    """
    with duckdb.connect(":memory:") as connection:
        attach(connection, home)
        connection.execute("use warehouse")
        connection.execute("set enable_external_access = false")
        connection.execute("set python_enable_replacements = false")
        return answer(connection, sql, limit)


def attach(connection: duckdb.DuckDBPyConnection, home: Home) -> None:
    """Attach the warehouse read-only. Raises QueryError if its file is missing or cannot be read.

    `duckdb.connect(path)` would return the process's open database of that path, even after the file was replaced.
    """
    if not home.warehouse.exists():
        raise QueryError(f"there is no warehouse in {home.root} yet: `bardo derive` builds it")
    try:
        connection.execute(f"attach {quoted(str(home.warehouse))} as warehouse (read_only)")
    except duckdb.Error as error:
        raise QueryError(f"{home.warehouse} cannot be read: `bardo derive` builds it again: {error}") from error


def answer(
    connection: duckdb.DuckDBPyConnection, sql: str, limit: int | None
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Run SQL and return column names and rows. Raises QueryError if DuckDB rejects it."""
    tables = marts_of(connection)
    try:
        cursor = connection.execute(sql)
        if cursor is None:
            raise QueryError("the query is empty: try for example `from dim_golem`")
        names = [column[0] for column in cursor.description]
        rows = cursor.fetchall() if limit is None else cursor.fetchmany(limit)
    except duckdb.CatalogException as error:
        raise QueryError(f"{error}\nThe tables are {', '.join(tables)}.") from error
    except duckdb.Error as error:
        raise QueryError(str(error)) from error
    return names, rows
