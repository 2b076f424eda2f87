"""Health in Dagster: observations, failing checks by asset, and the sensor for backpressure."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationPlanned
from dagster._core.events import DagsterEvent, DagsterEventType

from assets.log import CYCLES
from assets.resources import LazyStores
from bardo_pipeline.errors import BackpressureError
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.intake.quarantine import Quarantine, QuarantineItem
from definitions import defs
from sensors.home_sensors import writers_outrun_the_drainer
from tests.conftest import NOW, home_without_verdicts
from tests.definitions.running import undrained
from tests.support.records.drawn_records import records

pytestmark = pytest.mark.row("X-11")


class StoresAt(LazyStores):
    """The stores of a home at a fixed time."""

    moment = NOW

    def now(self):
        """The moment."""
        return self.moment


@pytest.fixture
def home(tmp_path: Path) -> StoresAt:
    Home.create(tmp_path / "home", Policy(), NOW)
    return StoresAt(tmp_path / "home")


@pytest.fixture
def instance() -> dg.DagsterInstance:
    return dg.DagsterInstance.ephemeral()


def run_sensor(home: LazyStores, instance: dg.DagsterInstance) -> dg.SkipReason:
    return writers_outrun_the_drainer(dg.build_sensor_context(instance=instance, resources={"home": home}))


def last(instance: dg.DagsterInstance, name: str, asset: str = "log/cycles") -> dg.AssetCheckEvaluation | None:
    key = dg.AssetCheckKey(dg.AssetKey.from_user_string(asset), name)
    record = instance.get_latest_asset_check_evaluation_record(key)
    return record.evaluation if record else None


def test_the_backpressure_sensor_skips_a_missing_home(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    assert "there is no home" in run_sensor(LazyStores(tmp_path / "none"), instance).skip_message


def test_the_backpressure_sensor_skips_while_the_drainer_keeps_up(home: StoresAt, instance: dg.DagsterInstance) -> None:
    with undrained(home.stores.home, timedelta(seconds=40)):
        evaluation = run_sensor(home, instance).skip_message
    assert re.match(r"1 journals hold \d\d,\d\d\d bytes", evaluation)
    assert last(instance, "journals_are_drained").passed


def test_the_backpressure_sensor_fails_while_writers_outrun_the_drainer(
    home: StoresAt, instance: dg.DagsterInstance
) -> None:
    result = r"writer runtime-1: .* 180 s ago are not in the log.*bardo drain"
    with undrained(home.stores.home, timedelta(minutes=3)), pytest.raises(BackpressureError, match=result):
        run_sensor(home, instance)
    results = last(instance, "journals_are_drained")
    assert (results.passed, results.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert "bardo drain" in results.description


def test_the_backpressure_sensor_runs_by_default_and_fails_its_tick(
    home: StoresAt, instance: dg.DagsterInstance
) -> None:
    assert writers_outrun_the_drainer.default_status == dg.DefaultSensorStatus.RUNNING
    assert "writers_outrun_the_drainer" in {s.name for s in defs.sensors}
    context = dg.build_sensor_context(instance=instance, resources={"home": home})
    with undrained(home.stores.home, timedelta(minutes=3)), pytest.raises(BackpressureError):
        writers_outrun_the_drainer.evaluate_tick(context)


def test_a_planned_evaluation_of_another_run_holds_no_result(home: StoresAt, instance: dg.DagsterInstance) -> None:
    """A run with its checks is queued, works or was killed: its planned evaluations are the newest records."""
    key = dg.AssetCheckKey(CYCLES, "journals_are_drained")
    with undrained(home.stores.home, timedelta(seconds=1)):
        for _ in range(2):
            run = dg.DagsterRun(job_name="curator_job", run_id=dg._core.utils.make_new_run_id())
            planned = DagsterEvent(
                DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED.value,
                "curator_job",
                event_specific_data=AssetCheckEvaluationPlanned(asset_key=key.asset_key, check_name=key.name),
            )
            instance.report_dagster_event(planned, instance.add_run(run).run_id)
            run_sensor(home, instance)
    history = instance.event_log_storage.get_asset_check_execution_history(key, limit=20)
    assert [record.status.value for record in history] == ["PLANNED", "SUCCEEDED", "PLANNED"]


def test_a_check_is_recorded_only_when_its_result_changes(home: StoresAt, instance: dg.DagsterInstance) -> None:
    key = dg.AssetCheckKey(CYCLES, "journals_are_drained")

    def evaluations() -> int:
        return len(instance.event_log_storage.get_asset_check_execution_history(key, limit=20))

    with undrained(home.stores.home, timedelta(seconds=1)):
        run_sensor(home, instance)
        run_sensor(home, instance)
        assert evaluations() == 1
        home.moment = NOW + timedelta(hours=1)
        for _ in range(2):
            with pytest.raises(BackpressureError):
                run_sensor(home, instance)
        assert evaluations() == 2
    run_sensor(home, instance)
    assert evaluations() == 3, "closing the writer drains its journal"
    assert last(instance, "journals_are_drained").passed


def test_refusals_and_silence_fail_the_checks_of_the_log(home: StoresAt, instance: dg.DagsterInstance) -> None:
    bad = QuarantineItem("spool", "bad.jsonl", 1, None, None, "RecordError", "no number", b"{}")
    Quarantine(home.stores.home).put([bad], NOW)
    home.stores.log.append(records(10, golems=1).take([0, 1, 5]), writer="w", segment=1, recorded_at=NOW)
    run_sensor(home, instance)
    assert not last(instance, "quarantine_is_rare").passed
    assert not last(instance, "records_keep_coming").passed
    assert last(instance, "curation_is_fresh", "curation").passed


def test_underived_records_fail_the_freshness_checks(
    small_home: Path, tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    late = StoresAt(home_without_verdicts(small_home, tmp_path / "home"))
    late.moment = NOW + timedelta(hours=1)
    run_sensor(late, instance)
    for name, asset in (("episodes_are_fresh", "episodes"), ("curation_is_fresh", "curation")):
        result = last(instance, name, asset)
        assert (result.passed, result.severity) == (False, dg.AssetCheckSeverity.WARN)
        assert "run `bardo derive` or the curator job" in result.description
    assert last(instance, "marts_are_fresh", "dim_golem").passed, "no marts exist"


def test_an_outdated_mart_fails_its_freshness_check(copied_home: Path, instance: dg.DagsterInstance) -> None:
    home = StoresAt(copied_home)
    warehouse = home.stores.home.warehouse
    warehouse.write_bytes(b"")
    os.utime(warehouse, (NOW.timestamp(),) * 2)
    home.moment = LazyStores.now() + timedelta(hours=1)
    run_sensor(home, instance)
    assert not last(instance, "marts_are_fresh", "dim_golem").passed
