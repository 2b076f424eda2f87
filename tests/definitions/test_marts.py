"""The assets of the marts: their checks are dbt's data tests, and a failed test keeps the old warehouse."""

from base64 import b64decode
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from assets import marts
from assets.plots import PLOTS
from assets.resources import LazyStores
from bardo_pipeline.errors import MartsRefused
from tests.conftest import copy_home

pytestmark = pytest.mark.full


def build(root: Path, **options) -> dg.ExecuteInProcessResult:
    lazy = LazyStores(root)
    try:
        return dg.materialize([marts.warehouse], resources={"home": lazy}, **options)
    finally:
        lazy.close()


@pytest.mark.row("P-2", "P-4")
def test_a_failed_data_test_fails_its_check_and_keeps_the_old_warehouse(marts_home: Path, tmp_path: Path) -> None:
    root = copy_home(marts_home, tmp_path / "home")
    lazy = LazyStores(root)
    grimoire = lazy.stores.projections.replaceable("grimoire")
    rows = grimoire.read()
    doubled = rows.filter(pc.field("status") == "active").slice(0, 1)
    grimoire.replace(pa.concat_tables([rows, doubled]), grimoire.buckets(rows["golem_id"].to_pylist()))
    lazy.close()
    before = lazy.stores.home.warehouse.read_bytes()
    result = build(root, raise_on_error=False)
    assert not result.success
    (failure,) = [event.step_failure_data for event in result.all_events if event.is_step_failure]
    assert failure.error.cause.cls_name == MartsRefused.__name__
    checks = {(c.asset_key.to_user_string(), c.check_name): c for c in result.get_asset_check_evaluations()}
    failed = {key for key, check in checks.items() if not check.passed}
    assert ("fct_knowledge", "unique_together") in failed
    assert {name for _, name in failed} == {"unique_together"}, "a retrieval of the entry is doubled too"
    check = checks["fct_knowledge", "unique_together"]
    assert check.metadata["failing_rows"].value == 1
    assert doubled["entry_id"][0].as_py() in (check.description or "")
    assert len(checks) > 57
    assert not result.get_asset_materialization_events()
    assert lazy.stores.home.warehouse.read_bytes() == before


@pytest.mark.row("P-2", "P-4")
def test_a_build_materializes_each_mart_and_passes_each_check(marts_home: Path, tmp_path: Path) -> None:
    result = build(copy_home(marts_home, tmp_path / "home"))
    made = {event.asset_key for event in result.get_asset_materialization_events()}
    assert made == {spec.key for spec in marts.SPECS}
    plotted = {}
    for event in result.get_asset_materialization_events():
        if plot := event.materialization.metadata.get("plot"):
            image = b64decode(str(plot.value).partition("base64,")[2].rstrip(")"))
            plotted[event.asset_key.to_user_string()] = image.count(b"<polyline")
    assert plotted.keys() == PLOTS.keys(), "the home has costs, active entries and deaths"
    assert plotted["fct_tier_costs"] == 3, "a curve for each tier"
    passed = {(c.asset_key, c.check_name) for c in result.get_asset_check_evaluations() if c.passed}
    assert passed == {(spec.asset_key, spec.name) for spec in marts.CHECKS.values()}
