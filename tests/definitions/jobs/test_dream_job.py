"""The dream job: scheduled every four hours, queued earlier by tags and imports; its tables with what the UI shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from assets.resources import LazyStores
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.derivation.dreams.derive_dreams import derive_dreams
from definitions import defs
from jobs.schedules import dreams_every_four_hours
from sensors.home_sensors import dreams_queued
from tests.definitions.running import data_version, decision_of, materializations, metadata_value, run
from tests.support.fleets.memory_fleets import Lived
from tests.support.homes.dreaming_homes import home_of, long_lives, tagged

pytestmark = [pytest.mark.row("MEM-16", "MEM-23"), pytest.mark.full]

DREAMT = ("dreams", "hypotheses", "lessons")


@pytest.fixture(scope="module")
def life() -> Lived:
    lived = long_lives(700)
    return Lived(tagged(lived.records, [430]), lived.births, lived.deaths)


@pytest.fixture(scope="module")
def stores(life: Lived, small_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DerivationContext]:
    """Half a day of a golem's records with nothing derived."""
    root = home_of(life, tmp_path_factory.mktemp("dream_job") / "home").home.root
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BARDO_HOME", str(root))
        yield DerivationContext.open(root)


@pytest.fixture(scope="module")
def runs(stores: DerivationContext) -> list[dg.ExecuteInProcessResult]:
    instance = dg.DagsterInstance.ephemeral()
    return [run("dream_job", instance), run("dream_job", instance)]


def test_the_dream_job_derives_episodes_curation_and_dreams(
    runs: list[dg.ExecuteInProcessResult], stores: DerivationContext
) -> None:
    made = materializations(runs[0])
    assert {"episodes", "curation", "grimoire", *DREAMT} <= set(made)
    for table in DREAMT:
        digest = stores.projections.digest(table)
        assert (
            metadata_value(made[table], "rows_written")
            == metadata_value(made[table], "dagster/row_count")
            == digest.rows
        ), table
        assert digest.rows or table == "lessons", "half a day confirms nothing"
        assert data_version(made[table]) == digest.fingerprint
        assert metadata_value(made[table], "inputs")["curation"]["fingerprint"]
    assert "| schedule |" in metadata_value(made["dreams"], "began_by")
    assert "| imagined |" in metadata_value(made["hypotheses"], "fate")


def test_a_second_run_of_the_dream_job_writes_nothing(runs: list[dg.ExecuteInProcessResult]) -> None:
    first, second = (materializations(r) for r in runs)
    for table in DREAMT:
        assert metadata_value(second[table], "rows_written") == 0
        assert data_version(second[table]) == data_version(first[table])


def test_the_schedule_runs_every_four_hours_if_a_cycle_closed(life: Lived, tmp_path: Path) -> None:
    schedule = defs.resolve_schedule_def("dreams_every_four_hours")
    assert (schedule.cron_schedule, schedule.job_name) == ("5 */4 * * *", "dream_job")
    assert "no home" in decision_of(dreams_every_four_hours, tmp_path / "nothing").skip_message
    stores = home_of(life, tmp_path / "home")
    assert decision_of(dreams_every_four_hours, stores.home.root).tags["bardo/why"] == "closed cycles of 1 golems"
    derive_curation(stores)
    derive_dreams(stores)
    assert (
        decision_of(dreams_every_four_hours, stores.home.root).skip_message == "no cycle closed since the last dreams"
    )


def test_the_sensor_requests_the_job_early_for_a_curated_tag(life: Lived, tmp_path: Path) -> None:
    stores = home_of(life, tmp_path / "home")
    lazy = LazyStores(stores.home.root)

    def run_sensor() -> dg.RunRequest | dg.SkipReason:
        with dg.DagsterInstance.ephemeral() as instance:
            return dreams_queued(dg.build_sensor_context(instance=instance, resources={"home": lazy}))

    assert isinstance(run_sensor(), dg.SkipReason)
    derive_curation(stores)
    request = run_sensor()
    assert request.tags["bardo/why"] == "dreams are due: 1 for tagged episodes, 0 for imports"
    derive_dreams(stores)
    assert isinstance(run_sensor(), dg.SkipReason), "the tag is queued once"
    dreams = stores.projections.read("dreams").to_pylist()
    assert "tag" in {row["began_by"] for row in dreams}
