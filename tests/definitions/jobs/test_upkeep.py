"""Upkeep: the maintenance job, its automation condition on the log, and the freshness of verification and drift."""

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._utils.schedules import cron_string_iterator

from assets import upkeep
from assets.resources import LazyStores
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.versions.rebuild import rebuild
from bardo_pipeline.policy import Policy
from definitions import defs
from jobs.schedules import every_night, every_week
from sensors.home_sensors import upkeep_due
from tests.conftest import NOW, copy_home
from tests.definitions.running import materializations, run
from tests.support.records.handmade_births import birth_of


@pytest.fixture
def root(small_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BARDO_HOME", str(copy_home(small_home, tmp_path / "home")))
    return tmp_path / "home"


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """An instance on disk, so that deleted history can be checked there."""
    (tmp_path / "dagster").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster")) as made:
        yield made


def metadata_of(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (made,) = materializations(result).values()
    return {name: value.value for name, value in made.metadata.items()}


@pytest.mark.full
@pytest.mark.row("EV-6", "X-13")
def test_the_maintenance_job_reports_its_work_and_a_second_run_does_none(
    root: Path, instance: dg.DagsterInstance
) -> None:
    before = DerivationContext.open(root).log.read_cycles().num_rows
    first = metadata_of(run("maintenance_job", instance))
    assert first["rows_rewritten"] >= before
    assert 0 < first["files_after"] < first["files_before"]
    assert "log/cycles" in first["done"]
    second = metadata_of(run("maintenance_job", instance))
    assert second["rows_rewritten"] == 0
    assert second["done"] == "none"
    stores = DerivationContext.open(root)
    assert stores.log.read_cycles().num_rows == before
    assert [c.table for c in rebuild(stores, now=NOW) if not c.equal] == []


@pytest.mark.full
@pytest.mark.row("X-13")
def test_an_altered_file_is_not_rewritten_and_fails_the_job(root: Path, instance: dg.DagsterInstance) -> None:
    part = sorted((root / "log" / "cycles").glob("part-*.parquet"))[0]
    content = bytearray(part.read_bytes())
    third = len(content) // 3
    content[third : third + 64] = bytes(byte ^ 0xFF for byte in content[third : third + 64])
    part.write_bytes(content)
    with pytest.raises(dg.Failure, match=f"{part.name}.*bardo verify"):
        run("maintenance_job", instance)
    assert part.read_bytes() == bytes(content)


@pytest.mark.full
@pytest.mark.row("X-13")
def test_the_oldest_dagster_runs_beyond_the_quota_are_deleted(root: Path, instance: dg.DagsterInstance) -> None:
    @dg.op
    def log_message(context: dg.OpExecutionContext) -> None:
        context.log.info("a message")

    @dg.job
    def sample_job() -> None:
        log_message()

    ran = [sample_job.execute_in_process(instance=instance).run_id for _ in range(5)]
    policy = Policy().model_copy(update={"care": Policy().care.model_copy(update={"dagster_runs_max": 2})})
    lazy = LazyStores(root)
    lazy.__dict__["stores"] = DerivationContext.open(root, policy=policy)
    result = dg.materialize([upkeep.maintenance], instance=instance, resources={"home": lazy})
    assert metadata_of(result)["runs_deleted"] == 3
    assert {r.run_id for r in instance.get_runs()} == {*ran[3:], result.run_id}
    left = {path.stem for path in Path(instance.root_directory).rglob("*")}
    assert [run_id in left for run_id in ran] == [False, False, False, True, True]
    with dg.DagsterInstance.local_temp(instance.root_directory) as reopened:
        assert [bool(reopened.all_logs(run_id)) for run_id in ran] == [False, False, False, True, True]


class Hours:
    """Evaluates the automation conditions of the code location half past each hour, as the sensor `upkeep_due` does."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self.instance, self.cursor = instance, None
        self.at = datetime(2040, 1, 1, 8, 30, tzinfo=UTC)

    def after_next(self) -> int:
        """Return the number of requests an hour later."""
        self.at += timedelta(hours=1)
        evaluated = dg.evaluate_automation_conditions(
            defs, self.instance, upkeep_due.asset_selection, evaluation_time=self.at, cursor=self.cursor
        )
        self.cursor = evaluated.cursor
        assert evaluated.get_num_requested(dg.AssetKey(["upkeep", "maintenance"])) == evaluated.total_requested
        return evaluated.total_requested


@pytest.mark.row("P-3")
def test_maintenance_is_requested_hourly_while_the_log_grew_and_every_night(
    root: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    hours = Hours(instance)
    assert [hours.after_next(), hours.after_next()] == [0, 1], "never maintained"
    with monkeypatch.context() as patch:
        patch.setattr(upkeep, "tend", None)
        assert not run("maintenance_job", instance, raise_on_error=False).success
    assert hours.after_next() == 1, "the run failed"
    assert run("maintenance_job", instance).success
    assert [hours.after_next() for _ in range(2)] == [0, 0], "no run saw the log grow"
    DerivationContext.open(root).log.record([birth_of("g-new")], NOW)
    run("curator_job", instance)
    assert hours.after_next() == 1
    assert run("maintenance_job", instance).success
    run("curator_job", instance)
    assert [hours.after_next() for _ in range(24)].count(1) == 1, "once in the night"


@pytest.mark.row("P-3")
def test_the_upkeep_has_freshness_policies_that_warn_after_one_missed_run_and_fail_after_two() -> None:
    graph = defs.resolve_asset_graph()
    policies = {
        key.path[-1]: policy for key in graph.get_all_asset_keys() if (policy := graph.get(key).freshness_policy)
    }
    nightly, weekly = "25 3 * * *", str(every_week.cron_schedule)
    crons = {"maintenance": nightly, "verification": str(every_night.cron_schedule), "drift": weekly}
    assert set(policies) == set(crons)
    for name, cron in crons.items():
        first, second, third, fourth = itertools.islice(cron_string_iterator(NOW.timestamp(), cron, "UTC"), 4)
        policy = policies[name]
        assert second - first < policy.warn_window.to_timedelta() < third - first
        assert third - first < policy.fail_window.to_timedelta() < fourth - first
