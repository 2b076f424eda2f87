"""The code location for one owner: it shows that owner's rows of every table and mart, and derives nothing."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from bardo_pipeline.cli.fleet.fleet_commands import prepare_dagster_home
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.storage.delta.table_specs import TABLES
from definitions import defs, one_owner
from tests.definitions.running import materializations
from tests.support.homes.two_owners import CORAL, PEARL, belongings


def test_the_views_of_an_owner_are_a_code_location_of_their_own() -> None:
    views = one_owner()
    assert "curator_job" in {job.name for job in defs.resolve_all_job_defs()}, "without BARDO_OWNER: the whole home"
    keys = {key.to_user_string() for key in views.resolve_asset_graph().get_all_asset_keys()}
    assert set(TABLES) | {"dim_golem", "fct_knowledge", "fct_consensus"} <= keys
    assert {job.name for job in views.resolve_all_job_defs()} - {"__ASSET_JOB"} == {"show_job"}


@pytest.mark.row("X-12")
def test_the_views_show_the_rows_of_their_owner_only(two_owners_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BARDO_HOME", str(two_owners_home))
    monkeypatch.setenv("BARDO_OWNER", CORAL)
    pearl, tables = belongings(two_owners_home, PEARL), [dg.AssetKey(name) for name in TABLES]
    marts = [dg.AssetKey(name) for name in ("dim_golem", "fct_knowledge", "fct_consensus")]
    with dg.DagsterInstance.ephemeral() as instance:
        job = one_owner().resolve_job_def("show_job")
        result = job.execute_in_process(instance=instance, asset_selection=[*tables, *marts])
    shown = materializations(result)
    assert len(shown) == len(tables) + len(marts)
    for name, made in shown.items():
        assert pearl.traces(repr(made.metadata)) == [], name
    assert "CORAL/USDC" in shown["grimoire"].metadata["rows"].value
    assert "coral text" in shown["fct_knowledge"].metadata["rows"].value


def test_the_views_of_an_owner_keep_their_runs_apart(two_owners_home: Path) -> None:
    home = DerivationContext.open(two_owners_home).home
    folders = {prepare_dagster_home(home, owner) for owner in (None, CORAL, PEARL)}
    assert len(folders) == 3
    assert all((folder / "dagster.yaml").exists() for folder in folders)
