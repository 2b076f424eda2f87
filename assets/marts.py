"""Assets of the warehouse: one for each dbt mart, in one DuckDB file that is built beside the old one and swapped in.

dbt's manifest gives the assets, their upstream assets and columns, and a check for each data test (ADR 0104).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import Any

import dagster as dg
import duckdb
from dagster_dbt import DagsterDbtTranslator, DbtProject

from assets.metadata import Seen, materialized
from assets.plots import plots_of
from assets.resources import DERIVE, LazyStores
from assets.retries import retried
from bardo_pipeline.client.running_server import server_url
from bardo_pipeline.errors import MartsRefused
from bardo_pipeline.storage.delta.table_digest import Digest
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.warehouse.build import DataTest, build_warehouse, quoted
from bardo_pipeline.storage.warehouse.dbt_process import manifest_of
from bardo_pipeline.storage.warehouse.derived_sources import DATABASE, DERIVED
from bardo_pipeline.visible_text import visible

_IN_MEMORY = {"config": {"materialized": "ephemeral"}}


def _described() -> dict[str, Any]:
    """Return dbt's manifest. Staging tables live as long as a build, so they are ephemeral for Dagster."""
    manifest = manifest_of()
    nodes = {
        name: node | (_IN_MEMORY if node.get("database") == DATABASE else {})
        for name, node in manifest["nodes"].items()
    }
    return manifest | {"nodes": nodes}


_MANIFEST = _described()

_CLAIMS = {
    "dollars": "Each amount in dollars is the millionth part of that in micro-dollars.",
    "one_of": "Every value is one of those of its column: {columns}.",
    "of_records": "A row about a record has: {columns}.",
    "ranges": "Every value is in its range, bounds included: {columns}.",
    "relationships": "{column_name} is a {field} of {to}.",
    "unique_together": "No key is repeated or has a NULL: {columns}.",
}
"""Generic test -> the claim that it checks, with the arguments of the test."""


class MartTranslator(DagsterDbtTranslator):
    """Names in Dagster of the models, sources and data tests of the dbt project."""

    def get_description(self, dbt_resource_props: Mapping[str, Any]) -> str:
        """Return the description of a model or source, without its SQL."""
        return dbt_resource_props["description"]

    def get_asset_spec(self, manifest: Mapping[str, Any], unique_id: str, project: DbtProject | None) -> dg.AssetSpec:
        """Return the asset of a model or source. A mart also waits for the check of published bundles."""
        spec = super().get_asset_spec(manifest, unique_id, project)
        tables = [dep for dep in spec.deps if dep.asset_key != dg.AssetKey("policy")]  # a setting, no table of the home
        return spec.replace_attributes(deps=[*tables, "bundles"]) if unique_id.startswith("model.") else spec

    def get_asset_check_spec(
        self, asset_spec: dg.AssetSpec, manifest: Mapping[str, Any], unique_id: str, project: DbtProject | None
    ) -> dg.AssetCheckSpec | None:
        """Return the check of a data test, named by the test and its column; None for a test of another asset."""
        spec = super().get_asset_check_spec(asset_spec, manifest, unique_id, project)
        test = self.get_resource_props(manifest, unique_id)
        if spec is None or not (generic := test.get("test_metadata")):
            return spec and spec._replace(description=test["description"], additional_deps=[])
        claim = _CLAIMS[generic["name"]].format_map({name: _words(value) for name, value in generic["kwargs"].items()})
        name = "_".join(filter(None, (generic["name"], test["column_name"])))
        return spec._replace(name=name, description=claim, additional_deps=[])


def _words(value: Any) -> str:
    """Write an argument of a data test as words."""
    if isinstance(value, Mapping):
        return "; ".join(f"{name} {_words_of_column(allowed)}" for name, allowed in value.items())
    return (
        ", ".join(map(str, value)) if isinstance(value, list) else str(value).removeprefix("ref('").removesuffix("')")
    )


def _words_of_column(allowed: Sequence[Any]) -> str:
    """Write the two bounds of a column, or its words."""
    if any(isinstance(value, str) for value in allowed):
        return f"({', '.join(allowed)})"
    low, high = allowed
    return f"[{'-∞' if low is None else low}, {'∞' if high is None else high}]"


def _declared() -> tuple[list[dg.AssetSpec], dict[str, dg.AssetCheckSpec]]:
    """Return the assets of the marts, and the check of each data test by the test's id in the manifest."""
    translator, specs, checks = MartTranslator(), [], {}
    for unique_id in TopologicalSorter(_MANIFEST["parent_map"]).static_order():  # as Dagster wants materializations
        if not unique_id.startswith("model.") or _MANIFEST["nodes"][unique_id]["config"]["materialized"] == "ephemeral":
            continue
        specs.append(spec := translator.get_asset_spec(_MANIFEST, unique_id, None))
        for child in _MANIFEST["child_map"][unique_id]:
            if child.startswith("test.") and (check := translator.get_asset_check_spec(spec, _MANIFEST, child, None)):
                checks[child] = check
    return specs, checks


SPECS, CHECKS = _declared()


@dg.multi_asset(specs=SPECS, check_specs=[*CHECKS.values()], name="warehouse", pool=DERIVE)
@retried
def warehouse(home: dg.ResourceParam[LazyStores]) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult]:
    """Build all marts and swap them in together, if every data test passes.

    Depends on bundles only for order: a failed check of published bundles blocks the marts.
    """
    stores = home.stores
    seen = Seen.before(stores, DERIVED)
    try:
        report = build_warehouse(stores.home, stores.derivation_id, stores.policy)
    except MartsRefused as refused:
        yield from _judged(refused.tests)
        raise
    more: dict[str, Any] = {
        "as_of": str(report.as_of), "dbt_tests_passed": report.tests_passed, "build_seconds": round(report.seconds, 1),
        "path": dg.MetadataValue.path(stores.home.warehouse),
        "dbt_docs": dg.MetadataValue.url(f"{server_url(stores.home.root)}/docs/dbt/"),
    }  # fmt: skip
    digests, plots = _read_marts(stores.home)
    for spec in SPECS:
        name = spec.key.to_user_string()
        facts = more | ({"plot": plots[name]} if name in plots else {})
        yield materialized(
            stores, name, seen, digests[name], rows_written=report.rows[name], version=seen.log_version, more=facts
        )
    yield from _judged(report.tests)


def _judged(tests: Sequence[DataTest]) -> Iterator[dg.AssetCheckResult]:
    """Yield the check result of each data test that ran."""
    for test in tests:
        spec = CHECKS[test.unique_id]
        yield dg.AssetCheckResult(
            asset_key=spec.asset_key, check_name=spec.name, passed=test.fault is None,
            metadata={"failing_rows": test.failing_rows}, description=test.fault and visible(test.fault),
        )  # fmt: skip


def _read_marts(home: Home) -> tuple[dict[str, Digest], dict[str, dg.MarkdownMetadataValue]]:
    """Return the digest of each mart, and the plots."""
    with duckdb.connect(":memory:") as connection:
        connection.execute(f"attach {quoted(str(home.warehouse))} as warehouse (read_only)")
        names = [spec.key.to_user_string() for spec in SPECS]
        digests = {n: Digest.of(connection.sql(f"from warehouse.{n}").to_arrow_table()) for n in names}
        return digests, plots_of(connection)
