"""The warehouse: marts for analysts in one DuckDB file, built beside by dbt and swapped in whole.

Whoever has the file open goes on reading the old one; whoever opens it next reads the new one. A model or a data test
that fails leaves the old one in force. Source: P-4; architecture ("Running").
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

_SHOWN, _ROWS_SHOWN = 5, 3
_PARSED = "partial_parse.msgpack"


@dataclass(frozen=True)
class WarehouseReport:
    """What a build made. as_of: the log's last event time, None for a log without events."""

    rows: dict[str, int]
    tests_passed: int
    seconds: float
    as_of: datetime | None


def build_warehouse(
    home: Home, derivation_id: str, policy: Policy | None = None, *, project: Path = DBT_PROJECT
) -> WarehouseReport:
    """Build every mart from the log and one derivation, test them, and put them in force.

    policy: the one that the derivation was made with; the specification by default. One build a home at a time.
    Raises DerivationError naming what failed; the warehouse that was in force stays.
    """
    started = time.perf_counter()
    with home.lock("warehouse"):
        folder = home.root / "warehouse.draft"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            draft = folder / home.warehouse.name
            passed = _dbt_build(folder, dbt_environment(home, derivation_id, policy or Policy(), draft.name), project)
            rows, as_of = _sealed(draft)
            _swap(draft, home.warehouse)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return WarehouseReport(rows, passed, time.perf_counter() - started, as_of)


def dbt_environment(home: Home, derivation_id: str, policy: Policy, database: str) -> dict[str, str]:
    """The variables that dbt/profiles.yml and its plugin read, beside those of this process.

    database: a file in the folder in which dbt runs. By such a name dbt knows what it has parsed for another home.
    """
    paths = [str(IMPORT_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    others = {name: value for name, value in os.environ.items() if not name.startswith("DBT_")}
    return others | {
        "BARDO_HOME": str(home.root.absolute()),
        "BARDO_DERIVATION": derivation_id,
        "BARDO_POLICY": policy.model_dump_json(),
        "BARDO_WAREHOUSE": database,
        "PYTHONPATH": os.pathsep.join(paths),  # so that dbt's process loads the plugin of this very code
        "DO_NOT_TRACK": "1",
    }


def _dbt_build(folder: Path, environment: dict[str, str], project: Path) -> int:
    """Run dbt in a process of its own (its state is global, and it would hold the draft open). Returns tests passed."""
    command = Path(sys.executable).with_name("dbt")
    if not command.exists() or not (project / "dbt_project.yml").exists():
        raise ConfigError(f"building marts needs {command} and {project}: install the project again")
    parsed = project / "target" / _PARSED
    if parsed.exists():
        shutil.copyfile(parsed, folder / _PARSED)
    places = ["--project-dir", project, "--profiles-dir", project, "--target-path", folder, "--log-path", folder]
    ran = subprocess.run(
        [command, "--no-use-colors", "--log-level-file", "none", "build", *map(str, places)],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    _keep_parsed(folder / _PARSED, parsed)
    results = _results(folder)
    failed = [r for r in results if r["status"] in ("error", "fail")]
    if failed:
        told = "; ".join(f"{_name(r)}: {_cause(r, folder)}" for r in failed[:_SHOWN])
        more = f"; and {len(failed) - _SHOWN} more" if len(failed) > _SHOWN else ""
        raise DerivationError(f"dbt build failed, the warehouse stays as it was: {told}{more}")
    if ran.returncode or not results:
        said = "\n".join((ran.stdout + ran.stderr).strip().splitlines()[-12:])
        raise DerivationError(f"dbt build ended with {ran.returncode}, the warehouse stays as it was:\n{said}")
    return sum(r["unique_id"].startswith("test.") and r["status"] == "pass" for r in results)


def _keep_parsed(made: Path, kept: Path) -> None:
    """Keep what dbt parsed of its project where dbt itself would, if that may be written: two to three seconds a build.

    It compares the files by their content, and parses again what changed.
    """
    if made.exists() and checkout() and os.access(kept.parent if kept.parent.exists() else kept.parents[1], os.W_OK):
        kept.parent.mkdir(exist_ok=True)
        fresh = kept.with_name(f"{kept.name}.{os.getpid()}")
        shutil.copyfile(made, fresh)
        fresh.replace(kept)


def _results(folder: Path) -> list[dict[str, Any]]:
    path = folder / "run_results.json"
    return list(orjson.loads(path.read_bytes())["results"]) if path.exists() else []


def _name(result: dict[str, Any]) -> str:
    """The node by name: unique_id is kind.project.name, and a hash for a generic test."""
    return str(result["unique_id"].split(".")[2])


def _cause(result: dict[str, Any], folder: Path) -> str:
    """Why it failed; of a data test, the first rows that it found."""
    told = " ".join(str(result["message"]).split())[:300]
    if result["status"] == "error":
        return told
    with duckdb.connect(next(folder.glob("*.duckdb")), read_only=True) as connection:
        found = connection.execute(result["compiled_code"])
        names = [column[0] for column in found.description]
        rows = [dict(zip(names, map(str, row), strict=True)) for row in found.fetchmany(_ROWS_SHOWN)]
    return f"{told} {', '.join(map(str, rows))}"


def _sealed(draft: Path) -> tuple[dict[str, int], datetime | None]:
    """Rows by mart and their as_of, after all is in the one file and nothing in it points elsewhere."""
    with duckdb.connect(draft) as connection:
        connection.execute("checkpoint")
        views = connection.execute("select view_name from duckdb_views() where not internal").fetchall()
        assert not views, f"the warehouse would read outside itself: {views}"
        rows: dict[str, int] = {}
        moments: list[datetime] = []
        for name in _tables(connection):
            count, as_of = _one(connection, f'select count(*), max(as_of) from "{name}"')  # noqa: S608
            rows[name] = count
            moments += [] if as_of is None else [as_of.replace(tzinfo=UTC)]
    return rows, max(moments, default=None)


def _one(connection: duckdb.DuckDBPyConnection, sql: str) -> tuple[Any, ...]:
    row = connection.execute(sql).fetchone()
    assert row is not None, f"an aggregate has a row: {sql}"
    return tuple(row)


def _tables(connection: duckdb.DuckDBPyConnection) -> list[str]:
    found = connection.execute("select table_name from duckdb_tables() where not internal order by all").fetchall()
    return [name for (name,) in found]


def _swap(draft: Path, target: Path) -> None:
    """Put the draft in the target's place, durably; it is the whole file or the old one, whatever happens."""
    sync_file(draft)
    draft.replace(target)
    sync_folder(target.parent)


def quoted(text: str) -> str:
    """Text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def query(home: Home, sql: str, limit: int | None = None) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Ask the warehouse in force, read only and without a way to other files. Returns names of columns, and rows.

    limit: at most so many rows. Raises QueryError: no warehouse yet, or SQL that DuckDB does not answer.
    """
    if not home.warehouse.exists():
        raise QueryError(f"there is no warehouse in {home.root} yet: run `bardo run` or `bardo demo`")
    # Attached anew, not connected to: DuckDB would hand out a file that this process still has open, though replaced.
    with duckdb.connect(":memory:") as connection:
        try:
            connection.execute(f"attach {quoted(str(home.warehouse))} as warehouse (read_only)")
        except duckdb.Error as error:
            raise QueryError(f"{home.warehouse} cannot be read; `bardo run` builds it again: {error}") from error
        connection.execute("use warehouse")
        connection.execute("set enable_external_access = false")
        connection.execute("set python_enable_replacements = false")
        return _answer(connection, sql, limit)


def _answer(
    connection: duckdb.DuckDBPyConnection, sql: str, limit: int | None
) -> tuple[list[str], list[tuple[Any, ...]]]:
    tables = _tables(connection)
    try:
        asked = connection.execute(sql)
        if asked is None:
            raise QueryError("the query is empty: ask for example `from dim_golem`")
        names = [column[0] for column in asked.description]
        rows = asked.fetchall() if limit is None else asked.fetchmany(limit)
    except duckdb.CatalogException as error:
        raise QueryError(f"{error}\nThe tables are {', '.join(tables)}.") from error
    except duckdb.Error as error:
        raise QueryError(str(error)) from error
    return names, rows
