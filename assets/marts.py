"""Assets of the warehouse: the dbt marts in one DuckDB file, which is built aside and swapped in whole.

The upstream assets of a mart are read from its SQL: every ref and source, staging models resolved.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import dagster as dg
import duckdb
import yaml  # type: ignore[import-untyped]

from assets.log import CYCLES, LIFE_EVENTS
from assets.metadata import OWNERS, Seen, materialized
from assets.resources import DERIVE, LazyStores
from bardo_pipeline.project_files import DBT_PROJECT
from bardo_pipeline.storage.delta.table_digest import Digest
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.warehouse.build import build_warehouse, quoted
from bardo_pipeline.storage.warehouse.derived_sources import DERIVED

_SOURCES = {
    "log_cycles": [CYCLES],
    "log_life": [LIFE_EVENTS],
    "left_out": [LIFE_EVENTS],
    "derived_withdrawals": [dg.AssetKey(name) for name in ("episodes", "curation", "votes")],
}
"""Upstream assets of dbt sources that are not a projection of the same name."""

_MODELS = DBT_PROJECT / "models"

_NAMED = re.compile(r"\b(ref|source)\((?:'home',\s*)?'(\w+)'\)")


def _upstream_of(sql: str) -> set[dg.AssetKey]:
    """Return the assets that a model's SQL reads, directly or through staging models."""
    upstream: set[dg.AssetKey] = set()
    for kind, name in _NAMED.findall(sql):
        staging = _MODELS / "staging" / f"{name}.sql"
        if kind == "ref" and staging.exists():
            upstream |= _upstream_of(staging.read_text())
        elif kind == "ref":
            upstream.add(dg.AssetKey(name))
        elif name != "policy":
            upstream |= set(_SOURCES.get(name) or [dg.AssetKey(name.removeprefix("derived_"))])
    return upstream


def _spec(model: dict[str, Any]) -> dg.AssetSpec:
    columns = [dg.TableColumn(c["name"], c["data_type"], c["description"]) for c in model["columns"]]
    causes = _upstream_of((_MODELS / "marts" / f"{model['name']}.sql").read_text())
    return dg.AssetSpec(
        model["name"], group_name="marts", kinds={"dbt", "duckdb"}, owners=OWNERS, description=model["description"],
        deps=[*sorted(causes), "bundles"], metadata={"dagster/column_schema": dg.TableSchema(columns)},
    )  # fmt: skip


SPECS = [_spec(model) for model in yaml.safe_load((_MODELS / "marts" / "schema.yml").read_text())["models"]]


@dg.multi_asset(specs=SPECS, name="warehouse", pool=DERIVE)
def warehouse(home: dg.ResourceParam[LazyStores]) -> Iterator[dg.MaterializeResult]:
    """Build all marts and swap them in together, if every data test passes.

    Depends on bundles only for order: a failed check of published bundles blocks the marts.
    """
    stores = home.stores
    seen = Seen.before(stores, DERIVED)
    report = build_warehouse(stores.home, stores.derivation_id, stores.policy)
    more: dict[str, Any] = {
        "as_of": str(report.as_of), "dbt_tests_passed": report.tests_passed, "build_seconds": round(report.seconds, 1),
        "path": dg.MetadataValue.path(stores.home.warehouse),
    }  # fmt: skip
    digests = _digests(stores.home)
    for spec in SPECS:
        name = spec.key.to_user_string()
        facts = more | {"dagster/table_name": f"warehouse.main.{name}"}
        yield materialized(
            stores, name, seen, digests[name], rows_written=report.rows[name], version=seen.log_version, more=facts
        )


def _digests(home: Home) -> dict[str, Digest]:
    with duckdb.connect(":memory:") as connection:
        connection.execute(f"attach {quoted(str(home.warehouse))} as warehouse (read_only)")
        names = [spec.key.to_user_string() for spec in SPECS]
        return {n: Digest.of(connection.sql(f"from warehouse.{n}").to_arrow_table()) for n in names}
