"""The maintenance job: its metadata, unchanged answers of the home, and Dagster's removed history."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from assets.resources import LazyStores
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.versions.rebuild import rebuild
from bardo_pipeline.errors import CustodyError
from bardo_pipeline.policy import Policy
from jobs.home_jobs import delete_old_runs
from jobs.schedules import every_hour
from tests.conftest import NOW, copy_home
from tests.definitions.running import decision_of, run


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


def metadata_of(result: dg.ExecuteInProcessResult, step: str) -> dict[str, object]:
    (output,) = [e for e in result.all_events if e.event_type_value == "STEP_OUTPUT" and e.step_key == step]
    return {name: value.value for name, value in output.step_output_data.metadata.items()}


@pytest.mark.full
@pytest.mark.row("EV-6", "X-13")
def test_the_maintenance_job_reports_its_work_and_a_second_run_does_none(
    root: Path, instance: dg.DagsterInstance
) -> None:
    before = DerivationContext.open(root).log.read_cycles().num_rows
    first = metadata_of(run("maintenance_job", instance), "maintain_home")
    assert first["rows_rewritten"] >= before
    assert 0 < first["files_after"] < first["files_before"]
    assert "log/cycles" in first["done"]
    second = metadata_of(run("maintenance_job", instance), "maintain_home")
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
    with pytest.raises(CustodyError, match=part.name):
        run("maintenance_job", instance)
    assert part.read_bytes() == bytes(content)


@pytest.mark.full
@pytest.mark.row("X-13")
def test_the_oldest_dagster_runs_beyond_the_quota_are_deleted(root: Path, instance: dg.DagsterInstance) -> None:
    @dg.job(executor_def=dg.in_process_executor)
    def deletion_job() -> None:
        delete_old_runs()

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
    result = deletion_job.execute_in_process(instance=instance, resources={"home": lazy})
    assert metadata_of(result, "delete_old_runs") == {"runs_forgotten": 3, "runs_kept_max": 2}
    assert {r.run_id for r in instance.get_runs()} == {*ran[3:], result.run_id}
    left = {path.stem for path in Path(instance.root_directory).rglob("*")}
    assert [run_id in left for run_id in ran] == [False, False, False, True, True]
    with dg.DagsterInstance.local_temp(instance.root_directory) as reopened:
        assert [bool(reopened.all_logs(run_id)) for run_id in ran] == [False, False, False, True, True]


def test_the_maintenance_schedule_requests_a_run_if_a_home_exists(root: Path, tmp_path: Path) -> None:
    def evaluate_schedule(folder: Path) -> dg.RunRequest | dg.SkipReason:
        return decision_of(every_hour, folder)

    request = evaluate_schedule(root)
    assert isinstance(request, dg.RunRequest)
    assert "version" in request.tags["bardo/why"]
    assert isinstance(evaluate_schedule(tmp_path / "none"), dg.SkipReason)
