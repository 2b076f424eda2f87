"""Rows of the warehouse in force that a build keeps: those of golems whose inputs have not changed since.

The marts by golem are functions of one golem's records, life events and projections. A build stores a fingerprint of
each golem's inputs in the warehouse (schema `build`). The next build with the same derivation, policy, dbt project and
DuckDB reads the records of changed golems only, and takes the other rows from the warehouse in force. Source: P-4;
ADR 0105.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import duckdb

from bardo_pipeline.storage.delta.table_specs import TABLES
from bardo_pipeline.storage.projections.projections import HIDDEN
from bardo_pipeline.storage.warehouse.build import quoted
from bardo_pipeline.storage.warehouse.derived_sources import DATABASE

BY_GOLEM = (
    "fct_choices", "fct_decisions", "fct_episodes", "fct_experiences", "fct_retrievals", "fct_ticks",
    "fct_tier_verdicts",
)  # fmt: skip
"""Marts whose models call the macro `kept_rows`."""

_READ = ("curation", "dreams", "episodes", "grimoire", "lessons")
"""Projections that these marts read; each row names its golem."""

_TABLE_ROWS_MAX = 4_000
"""Records that are read once, into memory. More of them stay a view, and each model that reads it opens their files."""

_RAW = f"{DATABASE}.raw"
_CHANGED = f"(from {_RAW}.changed_golems)"


def keep_rows(conn: duckdb.DuckDBPyConnection, warehouse: Path | None, settings: Sequence[str]) -> None:
    """Create the sources that separate changed golems from others, and store the fingerprints in the new warehouse.

    Creates `raw.changed_golems`, `raw.fresh_cycles` (their records) and, in schema `kept`, a view of the other rows of
    each mart by golem, if there are any.

    Parameters
    ----------
    conn : connection to the new warehouse, with the attached sources
    warehouse : the warehouse in force; None keeps no row
    settings : texts that change with the derivation, the policy and the dbt project
    """
    key = hashlib.sha256("\n".join((*settings, duckdb.__version__)).encode()).hexdigest()
    conn.execute(f"create table {_RAW}.golem_inputs as {' union all '.join(_hashes())}")
    conn.execute("create schema build")
    conn.execute(
        "create table build.golems as select golem_id, sum(hash(source, inputs))::varchar as fingerprint "  # noqa: S608
        f"from {_RAW}.golem_inputs group by golem_id order by golem_id"
    )
    conn.execute("create table build.settings as select $1 as key", [key])
    earlier, kept = "select null, null where false", warehouse is not None and _attached(conn, warehouse, key)
    if kept:
        earlier = "select golem_id, fingerprint from kept.build.golems"
    conn.execute(
        f"create table {_RAW}.changed_golems as select golem_id from build.golems "  # noqa: S608
        f"where (golem_id, fingerprint) not in ({earlier})"
    )
    fresh = f"from {_RAW}.log_cycles {f'where golem_id in {_CHANGED}' if kept else ''}"
    ((fresh_count,),) = conn.execute(
        f"select count(*) from {_RAW}.golem_inputs where source = 'log_cycles' and golem_id in {_CHANGED}"  # noqa: S608
    ).fetchall()
    conn.execute(f"create {'table' if fresh_count <= _TABLE_ROWS_MAX else 'view'} {_RAW}.fresh_cycles as {fresh}")
    conn.execute(f"create schema {DATABASE}.kept")
    for mart in BY_GOLEM if kept else ():
        rows = f"from kept.main.{mart} semi join kept.build.golems using (golem_id) where golem_id not in {_CHANGED}"
        conn.execute(f"create view {DATABASE}.kept.{mart} as {rows}")


def _hashes() -> Iterator[str]:
    """Yield the SQL of a hash of each input row. Records, events and rows of growing tables are named by their keys."""
    yield f"select golem_id, 'log_cycles' as source, hash(tick) as inputs from {_RAW}.log_cycles"  # noqa: S608
    yield f"select golem_id, 'log_life', hash(event_id) from {_RAW}.log_life where golem_id <> '*'"  # noqa: S608
    yield f"select golem_id, 'left_out', hash(tick_from, tick_to, event_id) from {_RAW}.left_out"  # noqa: S608
    for name in _READ:
        spec = TABLES[name]
        names = [*spec.key, *(field.name for field in HIDDEN)] if spec.grows else spec.schema.names
        columns = ", ".join(f'"{column}"' for column in names)
        yield f"select golem_id, '{name}', hash({columns}) from {_RAW}.derived_{name}"  # noqa: S608


def _attached(conn: duckdb.DuckDBPyConnection, warehouse: Path, key: str) -> bool:
    """Attach the warehouse as `kept`. Returns False if it is missing, damaged or built from other settings."""
    if not warehouse.exists():
        return False
    try:
        conn.execute(f"attach {quoted(str(warehouse))} as kept (read_only)")
        return conn.execute("select key from kept.build.settings").fetchall() == [(key,)]
    except duckdb.Error:
        return False
