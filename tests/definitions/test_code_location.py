"""The code location: it loads with and without a home, and its graph follows the pipeline."""

import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster._core.instance.config import PoolGranularity

from assets import marts
from bardo_pipeline.cli.fleet.fleet_commands import prepare_dagster_home
from bardo_pipeline.policy import Policy
from bardo_pipeline.project_files import COLUMN_TEXTS, DBT_PROJECT
from bardo_pipeline.storage.delta.table_specs import TABLES
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.warehouse import dbt_process
from bardo_pipeline.storage.warehouse.dbt_process import manifest_of
from definitions import defs
from tests.conftest import NOW

ROOT = Path(__file__).resolve().parents[2]
GRAPH = defs.resolve_asset_graph()
NODES = [GRAPH.get(key) for key in sorted(GRAPH.get_all_asset_keys()) if key.path[0] != "upkeep"]
"""Assets that are tables or folders; those of the upkeep are reports."""

ASSET_OF_TABLE = {name: "bundle_candidates" if name == "candidates" else name for name in TABLES}


def parents(asset: str) -> set[str]:
    return {key.to_user_string() for key in GRAPH.get(dg.AssetKey.from_user_string(asset)).parent_keys}


def ancestors(asset: str) -> set[str]:
    return {key.to_user_string() for key in GRAPH.get_ancestor_asset_keys(dg.AssetKey.from_user_string(asset))}


@pytest.mark.row("P-6")
@pytest.mark.parametrize(
    "with_home", [pytest.param(False, marks=pytest.mark.full, id="no home"), pytest.param(True, id="a home")]
)
def test_the_workspace_loads(tmp_path: Path, with_home: bool) -> None:
    root, instance = tmp_path / "home", tmp_path / "dagster"
    instance.mkdir()
    if with_home:
        instance = prepare_dagster_home(Home.create(root, Policy(), NOW))
    ran = subprocess.run(
        [Path(sys.executable).with_name("dagster"), "definitions", "validate", "-w", "workspace.yaml"],
        cwd=ROOT,
        env=os.environ | {"BARDO_HOME": str(root), "DAGSTER_HOME": str(instance), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    printed = ran.stdout + ran.stderr
    assert "Validation successful for code location bardo" in printed
    warnings = [line for line in printed.splitlines() if "warning" in line.lower() and "dagster.yaml" not in line]
    assert all("Use 'dg check defs' instead" in line for line in warnings), "Dagster's notice about its own command"
    assert root.exists() == with_home, "loading definitions makes no home"


@pytest.mark.full
@pytest.mark.row("P-6")
def test_dg_checks_the_definitions_without_a_warning(tmp_path: Path) -> None:
    instance = prepare_dagster_home(Home.create(tmp_path / "home", Policy(), NOW))
    ran = subprocess.run(
        [Path(sys.executable).with_name("dg"), "check", "defs"],
        cwd=ROOT,
        env=os.environ | {"BARDO_HOME": str(tmp_path / "home"), "DAGSTER_HOME": str(instance)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "All definitions loaded successfully." in ran.stdout
    assert "arning" not in ran.stdout + ran.stderr, ran.stderr


@pytest.mark.row("P-2")
@pytest.mark.parametrize("node", NODES, ids=lambda n: n.key.to_user_string())
def test_an_asset_has_a_group_a_description_an_owner_and_a_schema(
    node: dg._core.definitions.assets.graph.asset_graph.AssetNode,
) -> None:
    assert node.group_name in {"log", "memory", "curation", "katabasis", "legacy", "library", "dreams", "marts"}
    assert len(node.description or "") > 30
    assert (
        "One row per" in node.description
        or "One folder" in node.description
        or node.group_name in {"log", "marts", "legacy"}
    )
    assert node.owners
    assert node.kinds
    assert node.metadata["dagster/column_schema"].columns


@pytest.mark.row("P-2")
def test_every_column_of_every_asset_is_described() -> None:
    columns = {
        (node.key.to_user_string(), column.name): column.description
        for node in NODES for column in node.metadata["dagster/column_schema"].columns
    }  # fmt: skip
    assert [place for place, text in columns.items() if len((text or "").removesuffix("Key.")) < 8] == []
    texts = yaml.safe_load(COLUMN_TEXTS.read_text())
    named = {name for _, name in columns} | {f"{asset}.{name}" for asset, name in columns}
    named |= {f"{asset.removeprefix('log/')}.{name}" for asset, name in columns}
    assert sorted(set(texts) - named) == [], "texts of columns that no asset has"


def test_every_projection_is_an_asset() -> None:
    keys = {node.key.to_user_string() for node in NODES}
    assert set(ASSET_OF_TABLE.values()) <= keys
    assert {"verdicts", "bundles", "log/cycles", "log/life_events", "log/vectors"} <= keys


@pytest.mark.row("P-2")
def test_the_asset_graph_follows_the_path_of_a_record() -> None:
    way = ["log/cycles", "episodes", "curation", "grimoire", "votes", "consensus", "fct_consensus"]
    legacy = ["grimoire", "testaments", "bundle_candidates", "verdicts", "bundles", "dim_golem"]
    for line in (way, legacy):
        for cause, effect in pairwise(line):
            assert cause in parents(effect), f"{effect} comes from {parents(effect)}"
    assert "log/life_events" in parents("testaments")
    assert {"log/cycles", "log/life_events"} <= ancestors("bundles")


@pytest.mark.row("P-2")
def test_every_dbt_mart_is_an_asset_with_the_description_of_its_model() -> None:
    models = yaml.safe_load((DBT_PROJECT / "models" / "marts" / "schema.yml").read_text())["models"]
    assert {m["name"] for m in models} == {p.stem for p in (DBT_PROJECT / "models" / "marts").glob("*.sql")}
    for model in models:
        node = GRAPH.get(dg.AssetKey(model["name"]))
        assert node.description == model["description"]
        assert [c.name for c in node.metadata["dagster/column_schema"].columns] == [c["name"] for c in model["columns"]]
        assert "bundles" in parents(model["name"]), "every mart must depend on the check of published bundles"
    assert "grimoire" in parents("fct_knowledge")
    assert "log/cycles" in parents("fct_ticks")


def test_only_data_tests_and_the_bundle_check_are_blocking() -> None:
    blocking = {key for key in GRAPH.asset_check_keys if GRAPH.get_check_spec(key).blocking}
    bundles = {key for key in blocking if key.name == "only_passed_bundles_are_published"}
    assert len(bundles) == 1
    assert blocking - bundles == {spec.key for spec in marts.CHECKS.values()}
    assert all(GRAPH.get_check_spec(key).description for key in GRAPH.asset_check_keys)


@pytest.mark.row("P-2", "P-4")
def test_every_data_test_of_dbt_is_a_check_of_its_mart() -> None:
    tests = {name for name, node in manifest_of()["nodes"].items() if node["resource_type"] == "test"}
    assert set(marts.CHECKS) == tests
    assert len({spec.key for spec in marts.CHECKS.values()}) == len(tests), "a name of its own for each"
    assert {spec.asset_key for spec in marts.CHECKS.values()} == {spec.key for spec in marts.SPECS}


def test_loading_the_definitions_again_parses_no_dbt_project(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest_of()
    manifest_of.cache_clear()
    monkeypatch.setattr(dbt_process, "run_dbt", None)
    assert manifest_of()["metadata"]["project_name"] == "bardo"


@pytest.mark.full
def test_a_changed_dbt_project_is_parsed_again(tmp_path: Path) -> None:
    project = tmp_path / "dbt"
    shutil.copytree(DBT_PROJECT, project, ignore=shutil.ignore_patterns("target"))
    described = manifest_of(project)["nodes"]["model.bardo.fct_ticks"]["description"]
    schema = project / "models" / "marts" / "schema.yml"
    schema.write_text(schema.read_text().replace("The tick index of HB S6", "The ticks of HB S6"))
    manifest_of.cache_clear()
    changed = manifest_of(project)["nodes"]["model.bardo.fct_ticks"]["description"]
    assert changed == described.replace("The tick index", "The ticks")
    assert len(list((project / "target").glob("manifest-*.json"))) == 1, "the earlier one is removed"
    tests = [node for node in manifest_of(project)["nodes"].values() if node["resource_type"] == "test"]
    assert all(test["description"] for test in tests if "test_metadata" not in test), "a partial parse loses them"


@pytest.mark.row("P-3")
def test_the_runs_of_a_pool_follow_each_other(tmp_path: Path) -> None:
    pools = {
        job.name: {pool for node in job.nodes for pool in node.definition.pools}
        for job in defs.resolve_all_job_defs()
        if not job.name.startswith("__")
    }
    derive, intake, read = {"derive"}, {"intake"}, {"read"}
    assert pools == {
        "curator_job": derive, "death_job": derive, "dream_job": derive, "maintenance_job": derive, "marts_job": derive,
        "rebuild_job": derive, "consolidation_job": intake, "observe_job": intake, "proposal_job": intake,
        "spool_job": intake, "succession_job": intake, "drift_job": read, "notices_job": read,
        "verification_job": read,
    }  # fmt: skip
    folder = prepare_dagster_home(Home.create(tmp_path / "home", Policy(), NOW))
    with dg.DagsterInstance.from_config(str(folder)) as instance:
        limits = instance.get_concurrency_config()
        assert limits.pool_config.default_pool_limit == 1
        assert limits.pool_config.pool_granularity is PoolGranularity.RUN
        assert limits.run_queue_config is not None
        assert limits.run_queue_config.max_concurrent_runs > len({"derive", "intake", "read"})
        assert instance.run_monitoring_enabled
        assert instance.run_launcher.supports_check_run_worker_health
        assert instance.run_retries_enabled
        assert not instance.run_retries_retry_on_asset_or_op_failure, "a refused input would fail three times"


EARLIER_SETTINGS = """\
# Settings of this home's Dagster instance. Written once; your changes are kept.

telemetry:
  enabled: false

# One process at a time derives into a home; a second run would only wait for the first one's lock.
concurrency:
  runs:
    max_concurrent_runs: 1

# A schedule or sensor that finds nothing says so at every look: those notes go after a few days.
retention:
  schedule:
    purge_after_days: {skipped: 7, failure: 30, success: -1}
  sensor:
    purge_after_days: {skipped: 2, failure: 30, success: -1}
"""
"""As versions without run monitoring wrote them."""


def test_unchanged_settings_of_an_earlier_version_are_replaced(tmp_path: Path) -> None:
    home = Home.create(tmp_path / "home", Policy(), NOW)
    settings = prepare_dagster_home(home) / "dagster.yaml"
    present = settings.read_text()
    dialog = "# No dialog invites to Dagster's mailing list.\nnux:\n  enabled: false\n\n"
    assert dialog in present
    added = ("# A run that failed for", "  retry_on_asset_or_op_failure")
    ever = "".join(line for line in present.splitlines(keepends=True) if not line.startswith(added))
    for earlier in (EARLIER_SETTINGS, ever.replace(dialog, ""), ever):
        settings.write_text(earlier)
        prepare_dagster_home(home)
        assert settings.read_text() == present
    settings.write_text(EARLIER_SETTINGS + "# mine\n")
    prepare_dagster_home(home)
    assert settings.read_text().endswith("# mine\n")


def test_settings_of_the_dagster_instance_are_written_once(tmp_path: Path) -> None:
    home = Home.create(tmp_path / "home", Policy(), NOW)
    folder = prepare_dagster_home(home)
    assert folder == home.dagster
    settings = yaml.safe_load((folder / "dagster.yaml").read_text())
    assert settings["telemetry"] == {"enabled": False}
    assert settings["run_monitoring"]["enabled"]
    (folder / "dagster.yaml").write_text("telemetry: {enabled: false} # mine\n")
    prepare_dagster_home(home)
    assert (folder / "dagster.yaml").read_text().endswith("# mine\n")
    assert [p.name for p in folder.iterdir()] == ["dagster.yaml"]


def test_the_image_has_the_settings_of_a_home_beside_its_storage(tmp_path: Path) -> None:
    folder = prepare_dagster_home(Home.create(tmp_path / "home", Policy(), NOW))
    image = yaml.safe_load((ROOT / "deploy" / "dagster.yaml").read_text())
    assert "postgres" in image.pop("storage")
    assert image == yaml.safe_load((folder / "dagster.yaml").read_text())
