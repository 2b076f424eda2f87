"""Marts: what analysts ask, in one DuckDB file that dbt builds beside and that is swapped in whole.

The graph's edges are read from the models themselves: a mart depends on what its SQL names, through staging.
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
from assets.resources import LazyStores
from bardo_pipeline.project_files import DBT_PROJECT
from bardo_pipeline.storage.delta.table_digest import Digest
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.warehouse.build import build_warehouse, quoted

_SOURCES = {
    "log_cycles": [CYCLES],
    "log_life": [LIFE_EVENTS],
    "left_out": [LIFE_EVENTS],
    "derived_withdrawals": [dg.AssetKey(name) for name in ("episodes", "curation", "votes")],
}
"""What a source of dbt's is made from, where it is not a projection of that name."""

_NAMED = re.compile(r"\{\{\s*(ref|source)\((?:'home',\s*)?'(\w+)'\)\s*\}\}")


def _models() -> list[dict[str, Any]]:
    """The marts as dbt describes them: name, description, columns."""
    return list(yaml.safe_load((DBT_PROJECT / "models" / "marts" / "schema.yml").read_text())["models"])


def _causes(sql: str) -> set[dg.AssetKey]:
    """The assets that a model's SQL reads, through every staging model that it names."""
    found: set[dg.AssetKey] = set()
    for kind, name in _NAMED.findall(sql):
        if kind == "ref" and (DBT_PROJECT / "models" / "staging" / f"{name}.sql").exists():
            found |= _causes((DBT_PROJECT / "models" / "staging" / f"{name}.sql").read_text())
        elif kind == "ref":
            found.add(dg.AssetKey(name))
        elif name != "policy":
            found |= set(_SOURCES.get(name) or [dg.AssetKey(name.removeprefix("derived_"))])
    return found


def _spec(model: dict[str, Any]) -> dg.AssetSpec:
    columns = [dg.TableColumn(c["name"], c["data_type"], c["description"]) for c in model["columns"]]
    causes = _causes((DBT_PROJECT / "models" / "marts" / f"{model['name']}.sql").read_text())
    return dg.AssetSpec(
        model["name"], group_name="marts", kinds={"dbt", "duckdb"}, owners=OWNERS, description=model["description"],
        deps=[*sorted(causes), "bundles"], metadata={"dagster/column_schema": dg.TableSchema(columns)},
    )  # fmt: skip


SPECS = [_spec(model) for model in _models()]


@dg.multi_asset(specs=SPECS, name="warehouse")
def warehouse(home: dg.ResourceParam[LazyStores]) -> Iterator[dg.MaterializeResult]:
    """Build every mart and put them in force together, if every data test passes.

    Depends on the bundles only for order: while one that is published is not what it should be, no mart is built.
    """
    stores = home.stores
    seen = Seen.before(stores, ["cycles", "grimoire", "lessons", "consensus", "testaments", "library"])
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
    """The digest of each mart in force."""
    with duckdb.connect(":memory:") as connection:
        connection.execute(f"attach {quoted(str(home.warehouse))} as warehouse (read_only)")
        names = [spec.key.to_user_string() for spec in SPECS]
        return {n: Digest.of(connection.sql(f"from warehouse.{n}").to_arrow_table()) for n in names}
