"""Building and querying of the warehouse: marts for analysts in one DuckDB file.

dbt builds a draft, which then replaces the warehouse atomically. Open connections keep reading the old file. If a model
or a data test fails, the old warehouse stays. Source: P-4; architecture ("Running").
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import orjson

from bardo_pipeline.errors import ConfigError, DerivationError, QueryError
from bardo_pipeline.policy import Policy
from bardo_pipeline.project_files import DBT_PROJECT, IMPORT_ROOT, checkout
from bardo_pipeline.storage.home import Home, sync_file, sync_folder
from bardo_pipeline.storage.warehouse.dbt_docs import docs_page, write_docs

_BUILD = ("--no-use-colors", "--log-level-file", "none", "build", "--exclude-resource-type", "unit_test")
_SHOWN, _ROWS_SHOWN = 5, 3
_PARSED = "partial_parse.msgpack"


@dataclass(frozen=True)
class WarehouseReport:
    """The result of a build. as_of: the log's last event time, None for a log without events."""

    rows: dict[str, int]
    tests_passed: int
    seconds: float
    as_of: datetime | None


def build_warehouse(
    home: Home, derivation_id: str, policy: Policy | None = None, *, project: Path = DBT_PROJECT
) -> WarehouseReport:
    """Build and test every mart from the log and a derivation, then replace the warehouse and its docs; one at a time.

    policy: the derivation's policy; by default the specification's.
    Raises DerivationError with the failed models and tests; the old warehouse then stays.
    """
    started = time.perf_counter()
    with home.lock("warehouse"):
        folder = home.root / "warehouse.draft"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            draft = folder / home.warehouse.name
            passed = _dbt_build(folder, dbt_environment(home, derivation_id, policy or Policy(), draft.name), project)
            rows, as_of = _checkpointed(draft)
            page = folder / docs_page(home).name
            with duckdb.connect(draft, read_only=True) as connection:
                write_docs(folder / "manifest.json", connection, page)
            _swap(draft, home.warehouse)
            _swap(page, docs_page(home))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return WarehouseReport(rows, passed, time.perf_counter() - started, as_of)


def dbt_environment(home: Home, derivation_id: str, policy: Policy, database: str) -> dict[str, str]:
    """Return this process's environment with the variables that dbt/profiles.yml and its plugin read.

    database: file name in dbt's working folder. It is the same for all homes, so that dbt reuses its parsed project.
    """
    paths = [str(IMPORT_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("DBT_")}
    return inherited | {
        "BARDO_HOME": str(home.root.absolute()),
        "BARDO_DERIVATION": derivation_id,
        "BARDO_POLICY": policy.model_dump_json(),
        "BARDO_WAREHOUSE": database,
        "PYTHONPATH": os.pathsep.join(paths),  # makes dbt's process load the plugin of this same code
        "DO_NOT_TRACK": "1",
    }


def _dbt_build(folder: Path, environment: dict[str, str], project: Path) -> int:
    """Run dbt in a subprocess, because its state is global and it keeps the draft open. Returns the passed tests."""
    command = Path(sys.executable).with_name("dbt")
    if not command.exists() or not (project / "dbt_project.yml").exists():
        raise ConfigError(f"building marts needs {command} and {project}: install the project again")
    parsed = project / "target" / _PARSED
    if parsed.exists():
        shutil.copyfile(parsed, folder / _PARSED)
    places = ["--project-dir", project, "--profiles-dir", project, "--target-path", folder, "--log-path", folder]
    ran = subprocess.run(
        [command, *_BUILD, *map(str, places)], env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    _keep_parsed(folder / _PARSED, parsed)
    ran_nodes = folder / "run_results.json"
    results = orjson.loads(ran_nodes.read_bytes())["results"] if ran_nodes.exists() else []
    failed = [r for r in results if r["status"] in ("error", "fail")]
    if failed:
        # unique_id is kind.project.name, and a hash for a generic test
        causes = "; ".join(f"{r['unique_id'].split('.')[2]}: {_cause(r, folder)}" for r in failed[:_SHOWN])
        more = f"; and {len(failed) - _SHOWN} more" if len(failed) > _SHOWN else ""
        raise DerivationError(f"dbt build failed, the warehouse is unchanged: {causes}{more}")
    if ran.returncode or not results:
        output = "\n".join((ran.stdout + ran.stderr).strip().splitlines()[-12:])
        raise DerivationError(f"dbt build ended with {ran.returncode}, the warehouse is unchanged:\n{output}")
    return sum(r["unique_id"].startswith("test.") and r["status"] == "pass" for r in results)


def _keep_parsed(parsed: Path, cache: Path) -> None:
    """Keep dbt's parse cache in the project if it is writable, which saves two to three seconds a build.

    dbt compares the project files by content and parses only the changed ones again.
    """
    folder = cache.parent if cache.parent.exists() else cache.parents[1]
    if parsed.exists() and checkout() and os.access(folder, os.W_OK):
        cache.parent.mkdir(exist_ok=True)
        draft = cache.with_name(f"{cache.name}.{os.getpid()}")
        shutil.copyfile(parsed, draft)
        draft.replace(cache)


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
    rows = connection.execute("select table_name from duckdb_tables() where not internal order by all").fetchall()
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
