"""A dbt-duckdb plugin that shows dbt the log and one derivation, as views over the files of pinned table versions.

profiles.yml names this module. The views are in schema `raw` of an attached in-memory database, so the warehouse file
itself contains no view of outside files. Each process pins the versions once, so all models see the same log while
golems write. Source: facts ("DuckDB 2.0 over Delta", "dbt").
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from dbt.adapters.duckdb.plugins import BasePlugin
from deltalake.exceptions import TableNotFoundError

from bardo_pipeline.errors import ConfigError
from bardo_pipeline.events.life.retractions import WITHDRAWALS, LeftOut
from bardo_pipeline.events.record.arrow_columns import all_nullable
from bardo_pipeline.grimoire.confidence import ppm
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS, GAS_BANDS
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.checksums import check_files
from bardo_pipeline.storage.delta.durable_commits import opened, stored_files
from bardo_pipeline.storage.delta.files_by_version import absolute
from bardo_pipeline.storage.delta.parquet_io import scan
from bardo_pipeline.storage.delta.table_specs import TABLES
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.log.protocol import CYCLES_SCHEMA, LIFE_LOG_SCHEMA
from bardo_pipeline.storage.projections.projections import HIDDEN, WITHDRAWAL_SCHEMA, Projections, withdrawals
from bardo_pipeline.storage.warehouse.build import quoted
from bardo_pipeline.storage.warehouse.derived_sources import DATABASE, DERIVED
from bardo_pipeline.storage.warehouse.kept_rows import keep_rows

_DECAY = (
    "regime_conditional_days", "tactical_days", "ephemeral_days", "fact_e_fold_days", "bloodstain_multiplier",
    "dreamt_multiplier", "routine_days", "notable_days", "critical_days", "emergency_days", "episode_retention_min",
)  # fmt: skip

_DEFAULTS = {"home": ".bardo", "derivation": "", "policy": "", "project": ""}

LEFT_OUT_SCHEMA = pa.schema(
    [
        pa.field("golem_id", pa.string()),
        *all_nullable(pa.int64(), "tick_from", "tick_to"),
        *all_nullable(pa.string(), "event_id", "kind"),
    ]
)


class Plugin(BasePlugin):
    """Views of one home. Config: home (a folder), derivation (its id; empty for the only one), policy (JSON), project.

    project is a hash of the dbt project's files; without it no row of an earlier build is kept. Missing settings come
    from the environment (BARDO_HOME, BARDO_DERIVATION, BARDO_POLICY, BARDO_PROJECT), because dbt parses the whole
    project again whenever a profile's text changes.
    """

    def initialize(self, plugin_config: dict[str, Any]) -> None:
        """Store the config; files are opened when dbt connects."""
        from_environment = {name: os.environ.get(f"BARDO_{name.upper()}", value) for name, value in _DEFAULTS.items()}
        self._config = from_environment | plugin_config
        self._views: list[str] | None = None
        self._tables: dict[str, pa.Table] = {}

    def configure_connection(self, conn: duckdb.DuckDBPyConnection) -> None:
        """Create the views and tables in the connection."""
        if self._views is None:
            self._views = list(self._pinned(conn))
        conn.execute(f"attach ':memory:' as {DATABASE}")
        conn.execute(f"create schema {DATABASE}.raw")
        for view in self._views:
            conn.execute(view)
        for name, table in self._tables.items():
            conn.register("rows", table)
            conn.execute(f"create table {DATABASE}.raw.{name} as select * from rows")  # noqa: S608
            conn.unregister("rows")
        settings = [self._config[name] for name in ("derivation", "policy", "project")]
        keep_rows(conn, self._home.warehouse if self._config["project"] else None, settings)

    def _pinned(self, conn: duckdb.DuckDBPyConnection) -> Iterator[str]:
        """Yield the views' SQL. Life events are pinned last, so that every golem in another table has its birth."""
        home = self._home = Home.open(Path(self._config["home"]))
        derivation = home.derivation(self._config["derivation"] or _only_derivation(home))
        for name in DERIVED:
            columns = [*TABLES[name].schema, *(HIDDEN if TABLES[name].grows else ())]
            yield _view(conn, f"derived_{name}", _files(derivation / name), pa.schema(columns))
        yield _view(conn, "log_cycles", _files(home.cycles), CYCLES_SCHEMA)
        life = _files(home.life)
        yield _view(conn, "log_life", life, LIFE_LOG_SCHEMA)
        given = self._config["policy"]
        policy = Policy.model_validate_json(given) if given else Policy()
        left = LeftOut.of(scan(life, LIFE_LOG_SCHEMA, filter=ds.field("kind").isin(WITHDRAWALS)))
        taken_back = withdrawals(Projections(derivation, home.bucket_count, policy)) if left.causes else None
        self._tables = {
            "left_out": _excluded_ticks(left),
            "derived_withdrawals": WITHDRAWAL_SCHEMA.empty_table() if taken_back is None else taken_back,
            "policy": _policy_row(policy),
        }


def _excluded_ticks(left: LeftOut) -> pa.Table:
    runs = [c for c in left.causes if c.tick_from]
    columns = {name: [getattr(c, name) for c in runs] for name in LEFT_OUT_SCHEMA.names}
    return pa.table(columns, schema=LEFT_OUT_SCHEMA)


def _only_derivation(home: Home) -> str:
    ids = sorted(path.name for path in home.derivations.iterdir() if path.is_dir())
    if len(ids) != 1:
        raise ConfigError(f"{home.root} has {len(ids)} derivations ({', '.join(ids)}): set BARDO_DERIVATION to one")
    return ids[0]


def _view(conn: duckdb.DuckDBPyConnection, name: str, files: list[str], schema: pa.Schema) -> str:
    """Write the SQL of a view over a table's files, or of an empty view with the same columns."""
    if files:
        # Without union_by_name DuckDB silently drops nested fields that only newer files have.
        listed = ", ".join(quoted(file) for file in files)
        rows = f"select *{_absent(conn, files, schema)} from read_parquet([{listed}], union_by_name = true, "  # noqa: S608
        rows += "hive_partitioning = false)"
    else:
        rows = f"select {', '.join(_nulls(conn, schema))} where false"
    return f"create view {DATABASE}.raw.{name} as {rows}"


def _nulls(conn: duckdb.DuckDBPyConnection, schema: pa.Schema) -> Iterator[str]:
    """Yield a null of each column of a schema as SQL."""
    empty = conn.from_arrow(schema.empty_table())
    return (f'null::{kind} as "{column}"' for column, kind in zip(empty.columns, empty.types, strict=True))


def _absent(conn: duckdb.DuckDBPyConnection, files: list[str], schema: pa.Schema) -> str:
    """Write the SQL of the columns that no file has, because an earlier version wrote all of them."""
    absent = schema
    for file in reversed(files):  # a file of today has all columns
        present = set(pq.read_schema(file).names)
        absent = pa.schema([field for field in absent if field.name not in present])
        if not len(absent):
            return ""
    return "".join(f", {null}" for null in _nulls(conn, absent))


def _files(path: Path) -> list[str]:
    """Return the absolute paths of a table's current files; none if there is no table."""
    try:
        # file_uris() would percent-encode the folder as well, and DuckDB takes paths literally.
        files = [absolute(path, file.path) for file in stored_files(opened(path))]
    except TableNotFoundError:
        return []
    check_files(files)  # DuckDB verifies no checksums
    return files


def _policy_row(policy: Policy) -> pa.Table:
    decay, gating = policy.decay, policy.gating
    return pa.table(
        {
            **{name: pa.array([getattr(decay, name)], pa.float64()) for name in _DECAY},
            "anti_knowledge_floor_ppm": [ppm(decay.anti_knowledge_floor)],
            "bloodstain_floor_ppm": [ppm(decay.bloodstain_floor)],
            "cycle_ticks": [policy.curator.cycle_ticks],
            "effect_min_ppm": pa.array([policy.curator.effect_min_ppm], pa.float64()),
            "delta_ticks": [gating.delta_ticks],
            "window_ticks": [gating.window_ticks],
            "event_error_min": pa.array([gating.event_error_min], pa.float64()),
            "event_loss_min": pa.array([gating.event_loss_min], pa.float64()),
            "trial_effect_min_ppm": [gating.effect_min_ppm],
            "prediction_floor_micros": [policy.tools.prediction_floor_micros],
            "scar_half_life_days": pa.array([policy.katabasis.scar_half_life_days], pa.float64()),
            "anomaly_edges": pa.array([policy.curator.anomaly_edges], pa.list_(pa.float64())),
            "anomaly_bands": [list(ANOMALY_BANDS)],
            "gas_edges": pa.array([policy.curator.gas_edges], pa.list_(pa.float64())),
            "gas_bands": [list(GAS_BANDS)],
        }
    )
