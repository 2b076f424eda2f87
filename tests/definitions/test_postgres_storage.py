"""Dagster keeps its runs, events and schedules in PostgreSQL, with the settings of compose.yaml."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster_postgres import DagsterPostgresStorage
from sqlalchemy.exc import SQLAlchemyError

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.unfinished_deaths import unfinished_deaths
from bardo_pipeline.storage.operations.dagster_settings import DAGSTER_SETTINGS
from jobs.run_requests import DUE_TAG, request_due
from tests.conftest import NOW, home_without_verdicts
from tests.definitions.running import run
from tests.support.processes.postgres import PASSWORD, postgres

pytestmark = [pytest.mark.row("P-3"), pytest.mark.full]

SETTINGS = Path(__file__).resolve().parents[2] / "deploy" / "dagster.yaml"


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    with postgres() as variables:
        yield variables


@pytest.fixture
def instance(server: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    """An instance with the settings of the image."""
    for name, value in server.items():
        monkeypatch.setenv(name, value)
    shutil.copy(SETTINGS, tmp_path / "dagster.yaml")
    with dg.DagsterInstance.from_config(str(tmp_path)) as made:
        yield made


def test_the_settings_of_the_image_are_those_of_init_with_a_storage() -> None:
    stated = yaml.safe_load(SETTINGS.read_text())
    assert "postgres_db" in stated.pop("storage")["postgres"]
    assert stated == yaml.safe_load(DAGSTER_SETTINGS)


def test_a_job_runs_and_is_remembered(
    instance: dg.DagsterInstance, small_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = home_without_verdicts(small_home, tmp_path / "home")
    monkeypatch.setenv("BARDO_HOME", str(root))
    assert run("death_job", instance).success
    assert not unfinished_deaths(DerivationContext.open(root))
    again = dg.DagsterInstance.from_ref(instance.get_ref())
    (record,) = again.get_run_records(dg.RunsFilter(job_name="death_job"))
    assert record.dagster_run.status == dg.DagsterRunStatus.SUCCESS
    assert again.get_latest_materialization_event(dg.AssetKey("bundles")) is not None


def test_a_request_of_3_000_golems_is_stored_and_found_by_its_key(instance: dg.DagsterInstance) -> None:
    request = request_due(instance, "observe_job", [f"g-{k:08}" for k in range(3_000)], "3,000 fell silent", NOW)
    assert isinstance(request, dg.RunRequest)
    assert request.run_key is not None
    tags = {**request.tags, "dagster/run_key": request.run_key}
    instance.add_run(dg.DagsterRun(job_name="observe_job", tags=tags))
    (stored,) = instance.get_runs(dg.RunsFilter(tags={"dagster/run_key": request.run_key}))
    assert stored.tags[DUE_TAG] == request.tags[DUE_TAG]


def test_a_run_key_that_lists_the_golems_is_refused(instance: dg.DagsterInstance) -> None:
    """PostgreSQL indexes tags of some kilobytes only; the key of a request is a hash for this reason."""
    key = ",".join(f"g-{k:08x}" for k in range(2_000, 9_000))
    with pytest.raises(SQLAlchemyError, match="maximum size"):
        instance.add_run(dg.DagsterRun(job_name="observe_job", tags={"dagster/run_key": key}))


def test_a_url_without_a_driver_is_refused_and_the_scheme_of_the_settings_is_not(server: dict[str, str]) -> None:
    address = f"dagster:{PASSWORD}@127.0.0.1:{server['DAGSTER_POSTGRES_PORT']}/dagster"
    with pytest.raises(ModuleNotFoundError, match="psycopg"):
        DagsterPostgresStorage.from_config_value(None, {"postgres_url": f"postgresql://{address}"})
    DagsterPostgresStorage.from_config_value(None, {"postgres_url": f"postgresql+psycopg2://{address}"})
