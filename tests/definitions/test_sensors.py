"""Sensors and the schedule: they request a run for due work until a run has done it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.launcher.base import CheckRunHealthResult, WorkerStatus
from dagster._core.storage.tags import GRPC_INFO_TAG
from dagster._grpc.client import DagsterGrpcClient

from assets import marts
from assets.resources import LazyStores
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.derivation.death.derive_thanatopsis import phases_of
from bardo_pipeline.derivation.derive_home import derive_home
from bardo_pipeline.derivation.katabasis.derive_votes import derive_votes
from bardo_pipeline.derivation.memory.derive_episodes import derive_episodes
from bardo_pipeline.derivation.strikes_and_reorgs import strike
from bardo_pipeline.events.life.events import Died, LifeEvent, Vitality, life_event
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.warehouse.build import query
from jobs.home_jobs import pending_work
from jobs.run_launcher import MonitoredRunLauncher
from jobs.run_requests import DUE_TAG, FIRST_PAUSE, LONGEST_PAUSE, request_due
from jobs.schedules import every_ten_minutes
from sensors.home_sensors import cycles_closed, deaths_recorded, marts_behind, runs_failed
from tests.conftest import NOW, copy_home, home_without_verdicts
from tests.definitions.running import decision_of, run
from tests.support.processes.webhook import webhook

Decision = dg.RunRequest | dg.SkipReason


def death(golem_id: str) -> LifeEvent:
    vitality = Vitality(economic=0.0, epistemic=0.5, stochastic=0.5, composite=0.0)
    died = Died(
        cause="economic",
        tick=60,
        phase="terminal",
        vitality=vitality,
        credits_micros=0,
        capital_micros=1,
        earned_micros=0,
    )
    return life_event(golem_id, NOW + timedelta(minutes=int(golem_id[2:])), died)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def empty(tmp_path: Path) -> DerivationContext:
    root = tmp_path / "home"
    Home.create(root, Policy(), NOW)
    return DerivationContext.open(root)


def look(sensor: dg.SensorDefinition, root: Path, instance: dg.DagsterInstance) -> Decision:
    lazy = LazyStores(root)
    decision = sensor(dg.build_sensor_context(instance=instance, resources={"home": lazy}))
    lazy.close()
    assert isinstance(decision, Decision)
    return decision


def launch(
    request: dg.RunRequest, job_name: str, instance: dg.DagsterInstance, status: dg.DagsterRunStatus
) -> dg.DagsterRun:
    """Store the run that the daemon makes of a request."""
    tags = dict(request.tags) | {"dagster/run_key": request.run_key or ""}
    run_id = dg._core.utils.make_new_run_id()
    return instance.add_run(dg.DagsterRun(job_name=job_name, run_id=run_id, status=status, tags=tags))


@pytest.mark.row("P-3")
class TestRequestDue:
    """A state that is due asks for runs until one has done the work."""

    def ask(self, instance: dg.DagsterInstance, due: str = "g-1", after: timedelta = timedelta()) -> Decision:
        return request_due(instance, "death_job", ["home", due], f"{due} died", datetime.now(UTC) + after)

    def request(self, instance: dg.DagsterInstance, after: timedelta = timedelta(), due: str = "g-1") -> dg.RunRequest:
        request = self.ask(instance, due, after)
        assert isinstance(request, dg.RunRequest), request
        return request

    def test_a_repeated_look_asks_with_the_same_run_key(self, instance: dg.DagsterInstance) -> None:
        first = self.request(instance)
        assert first.tags["bardo/why"] == "g-1 died"
        assert self.request(instance).run_key == first.run_key
        assert self.request(instance, due="g-2").run_key != first.run_key

    @pytest.mark.parametrize("status", ["NOT_STARTED", "STARTING", "STARTED", "CANCELING"])
    def test_an_active_run_is_not_asked_for_twice(self, instance: dg.DagsterInstance, status: str) -> None:
        launch(self.request(instance), "death_job", instance, dg.DagsterRunStatus[status])
        for due in ("g-1", "g-2"):
            decision = self.ask(instance, due, after=2 * LONGEST_PAUSE)
            assert isinstance(decision, dg.SkipReason)
            assert decision.skip_message == f"{due} died; a run of death_job is active"

    @pytest.mark.parametrize("status", ["FAILURE", "CANCELED", "SUCCESS"])
    def test_work_that_a_run_left_is_asked_for_again_after_a_pause(
        self, instance: dg.DagsterInstance, status: str
    ) -> None:
        keys, pause = set(), FIRST_PAUSE
        for attempt in range(1, 4):
            request = self.request(instance, after=2 * LONGEST_PAUSE if attempt > 1 else timedelta())
            keys.add(request.run_key)
            launch(request, "death_job", instance, dg.DagsterRunStatus[status])
            early = self.ask(instance, after=pause - timedelta(seconds=10))
            assert isinstance(early, dg.SkipReason)
            assert f"attempt {attempt} ended without it" in (early.skip_message or "")
            assert isinstance(self.ask(instance, after=pause + timedelta(seconds=10)), dg.RunRequest)
            pause *= 2
        assert len(keys) == 3, "Dagster runs each key once"

    def test_the_retries_of_a_run_do_not_lengthen_the_pause(self, instance: dg.DagsterInstance) -> None:
        request = self.request(instance)
        for retry in ({}, {"dagster/retry_number": "1"}, {"dagster/retry_number": "2"}):
            tried = request.with_replaced_attrs(tags={**request.tags, **retry})
            launch(tried, "death_job", instance, dg.DagsterRunStatus.FAILURE)
        assert isinstance(self.ask(instance, after=FIRST_PAUSE - timedelta(seconds=10)), dg.SkipReason)
        again = self.request(instance, after=FIRST_PAUSE + timedelta(seconds=10))
        assert again.run_key != request.run_key

    @pytest.mark.parametrize("retries", [0, 2])
    def test_the_pause_has_a_maximum(self, instance: dg.DagsterInstance, retries: int) -> None:
        for _ in range(12):
            request = self.request(instance, after=2 * LONGEST_PAUSE)
            launch(request, "death_job", instance, dg.DagsterRunStatus.FAILURE)
            for number in range(retries):
                tried = request.with_replaced_attrs(tags={**request.tags, "dagster/retry_number": str(number + 1)})
                launch(tried, "death_job", instance, dg.DagsterRunStatus.FAILURE)
        assert isinstance(self.ask(instance, after=LONGEST_PAUSE - timedelta(seconds=10)), dg.SkipReason)
        assert isinstance(self.ask(instance, after=LONGEST_PAUSE + timedelta(seconds=10)), dg.RunRequest)

    def test_new_work_follows_a_successful_run_at_once(self, instance: dg.DagsterInstance) -> None:
        launch(self.request(instance), "death_job", instance, dg.DagsterRunStatus.FAILURE)
        again = self.request(instance, after=2 * FIRST_PAUSE)
        launch(again, "death_job", instance, dg.DagsterRunStatus.SUCCESS)
        assert isinstance(self.ask(instance, "g-2"), dg.RunRequest)

    def test_new_work_waits_for_the_pause_of_a_failing_job(self, instance: dg.DagsterInstance) -> None:
        launch(self.request(instance), "death_job", instance, dg.DagsterRunStatus.FAILURE)
        assert isinstance(self.ask(instance, "g-2"), dg.SkipReason)

    def test_the_run_key_of_many_golems_is_short(self, instance: dg.DagsterInstance) -> None:
        due = [f"g-{k:08}" for k in range(3_000)]
        request = request_due(instance, "observe_job", due, "3,000 fell silent", NOW)
        assert isinstance(request, dg.RunRequest)
        assert len(request.run_key or "") < 64
        assert len(request.tags[DUE_TAG]) < 64


@pytest.mark.row("P-3")
class TestDeathsRecorded:
    def test_a_missing_home_is_skipped(self, tmp_path: Path, instance: dg.DagsterInstance) -> None:
        decision = look(deaths_recorded, tmp_path / "nowhere", instance)
        assert isinstance(decision, dg.SkipReason)
        assert "there is no home" in (decision.skip_message or "")
        assert not (tmp_path / "nowhere").exists()

    def test_deaths_are_requested_until_they_are_completed(
        self, small_home: Path, tmp_path: Path, instance: dg.DagsterInstance
    ) -> None:
        root = home_without_verdicts(small_home, tmp_path / "home")
        first = look(deaths_recorded, root, instance)
        assert isinstance(first, dg.RunRequest)
        assert first.tags["bardo/why"].endswith(" died")
        run = launch(first, "death_job", instance, dg.DagsterRunStatus.STARTED)
        assert isinstance(look(deaths_recorded, root, instance), dg.SkipReason)
        instance.report_run_failed(run)
        decision = look(deaths_recorded, root, instance)
        assert "attempt 1 ended without it" in (getattr(decision, "skip_message", None) or "")
        derive_home(DerivationContext.open(root), clock=lambda: NOW, marts=False)
        decision = look(deaths_recorded, root, instance)
        assert isinstance(decision, dg.SkipReason)
        assert decision.skip_message == "no death can be completed"

    @pytest.mark.full
    def test_a_retraction_in_the_life_of_a_dead_golem_is_requested_until_its_bundle_is_made_again(
        self, brief_home: Path, tmp_path: Path, instance: dg.DagsterInstance
    ) -> None:
        root = copy_home(brief_home, tmp_path / "home")
        assert isinstance(look(deaths_recorded, root, instance), dg.SkipReason)
        stores = DerivationContext.open(root)
        golem_id = min(stores.life("LegacyLeft")["golem_id"].to_pylist())
        strike(stores, golem_id, 20, "a wrong observation", now=NOW)
        request = look(deaths_recorded, root, instance)
        assert isinstance(request, dg.RunRequest)
        why = request.tags["bardo/why"]  # names the heirs too, from which entries are withdrawn
        assert golem_id in why
        assert why.endswith("left bundles with retracted records")
        derive_home(DerivationContext.open(root), clock=lambda: NOW, marts=False)
        assert isinstance(look(deaths_recorded, root, instance), dg.SkipReason)

    def test_a_death_without_its_birth_waits(self, empty: DerivationContext, instance: dg.DagsterInstance) -> None:
        empty.log.record([death("g-1")], NOW)
        decision = look(deaths_recorded, empty.home.root, instance)
        assert isinstance(decision, dg.SkipReason), "no run could complete it"


@pytest.mark.row("P-3", "P-4")
class TestMartsBehind:
    """Marts are due until a build has all tables, whatever became of the run that derived them."""

    def test_derived_tables_are_requested_until_the_marts_have_them(
        self, small_home: Path, tmp_path: Path, instance: dg.DagsterInstance
    ) -> None:
        root = copy_home(small_home, tmp_path / "home")
        warehouse = Home.open(root).warehouse
        first = look(marts_behind, root, instance)
        assert isinstance(first, dg.RunRequest), "there is no warehouse"
        run = launch(first, "marts_job", instance, dg.DagsterRunStatus.STARTED)
        assert isinstance(look(marts_behind, root, instance), dg.SkipReason)
        instance.report_run_failed(run)
        assert "attempt 1 ended without it" in (getattr(look(marts_behind, root, instance), "skip_message", "") or "")
        warehouse.touch()
        assert getattr(look(marts_behind, root, instance), "skip_message", None) == "the marts lack nothing"
        os.utime(warehouse, (0, 0))
        assert "attempt 1" in (getattr(look(marts_behind, root, instance), "skip_message", "") or ""), "due once more"

    @pytest.mark.parametrize("doer", ["curator_job", "death_job"])
    def test_a_run_that_ends_with_the_marts_is_waited_for(
        self, small_home: Path, tmp_path: Path, instance: dg.DagsterInstance, doer: str
    ) -> None:
        root = copy_home(small_home, tmp_path / "home")
        run = launch(dg.RunRequest(), doer, instance, dg.DagsterRunStatus.STARTED)
        skipped = look(marts_behind, root, instance)
        assert f"a run of {doer} is active" in (getattr(skipped, "skip_message", None) or "")
        instance.report_run_failed(run)
        assert isinstance(look(marts_behind, root, instance), dg.RunRequest)

    def test_an_event_after_a_death_is_a_change(
        self, small_home: Path, tmp_path: Path, instance: dg.DagsterInstance
    ) -> None:
        root = copy_home(small_home, tmp_path / "home")
        stores = DerivationContext.open(root)
        stores.home.warehouse.touch()
        event = {
            name: value
            for name, value in stores.life("BundlePublished").to_pylist()[0].items()
            if name != "recorded_at"
        }
        later = datetime.now(UTC) + timedelta(hours=1)
        changed = LifeEvent.model_validate(event | {"observed_at": event["observed_at"] + timedelta(seconds=1)})
        stores.log.record([life_event(changed.golem_id, changed.observed_at, changed.payload)], later)
        assert isinstance(look(marts_behind, root, instance), dg.RunRequest)

    def test_a_home_without_derived_rows_lacks_nothing(
        self, empty: DerivationContext, instance: dg.DagsterInstance
    ) -> None:
        empty.log.record([death("g-1")], NOW)
        assert isinstance(look(marts_behind, empty.home.root, instance), dg.SkipReason)

    @pytest.mark.full
    def test_a_death_whose_run_ended_before_the_marts_reaches_them(
        self, brief_home: Path, tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        root = home_without_verdicts(brief_home, tmp_path / "home")
        monkeypatch.setenv("BARDO_HOME", str(root))
        run("marts_job", instance)
        with monkeypatch.context() as patch:
            patch.setattr(marts, "build_warehouse", None)
            assert not run("death_job", instance, raise_on_error=False).success
        home = Home.open(root)
        assert query(home, "select count(*) from fct_dying")[1] == [(0,)]
        assert isinstance(look(deaths_recorded, root, instance), dg.SkipReason), "the deaths are complete"
        assert isinstance(look(cycles_closed, root, instance), dg.SkipReason)
        assert "marts lack changes" in str(look(marts_behind, root, instance))
        run("marts_job", instance)
        phases = phases_of(DerivationContext.open(root)).values()
        assert query(home, "select count(*) from fct_dying")[1] == [(sum(map(len, phases)),)]
        assert isinstance(look(marts_behind, root, instance), dg.SkipReason)


@pytest.mark.row("P-3")
class TestCyclesClosed:
    def test_closed_cycles_request_one_curator_run(
        self, small_home: Path, tmp_path: Path, instance: dg.DagsterInstance
    ) -> None:
        root = home_without_verdicts(small_home, tmp_path / "home")
        first = look(cycles_closed, root, instance)
        assert isinstance(first, dg.RunRequest)
        assert "closed cycles of" in first.tags["bardo/why"]
        again = look(cycles_closed, root, instance)
        assert isinstance(again, dg.RunRequest)
        assert again.run_key == first.run_key, "the same state asks with the same key"

    def test_records_that_close_no_cycle_request_no_run(
        self, empty: DerivationContext, instance: dg.DagsterInstance
    ) -> None:
        assert isinstance(look(cycles_closed, empty.home.root, instance), dg.SkipReason)
        empty.log.record([death("g-1")], NOW)
        assert isinstance(look(cycles_closed, empty.home.root, instance), dg.SkipReason)

    def test_a_missing_home_is_skipped(self, tmp_path: Path, instance: dg.DagsterInstance) -> None:
        decision = look(cycles_closed, tmp_path / "nowhere", instance)
        assert "there is no home" in (getattr(decision, "skip_message", None) or "")


@pytest.mark.row("P-3")
class TestRunsFailed:
    """A failed run is posted to the webhook."""

    @dg.job
    def failing_job() -> None:
        @dg.op
        def fail() -> None:
            raise ValueError("the disk is \x1b[31mfull")

        fail()

    def test_a_failed_run_is_posted(self, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
        failed = self.failing_job.execute_in_process(instance=instance, raise_on_error=False, tags={"bardo/why": "x"})
        context = dg.build_run_status_sensor_context(
            "runs_failed", failed.get_run_failure_event(), instance, failed.dagster_run
        ).for_run_failure()
        assert isinstance(runs_failed(context), dg.SkipReason), "without a webhook nothing is posted"
        with webhook() as hook:
            monkeypatch.setenv("BARDO_WEBHOOK", hook.url)
            assert runs_failed(context) is None
        (notice,) = hook.taken
        assert notice["job"] == "failing_job"
        assert notice["run_id"] == failed.run_id
        assert notice["why"] == "x"
        assert "\x1b" not in notice["error"]


@pytest.mark.row("P-3")
class TestRunLauncher:
    """The daemon's question about a started run (`test_killed_runs.py` asks a living code server)."""

    def health(self, tags: dict[str, str]) -> CheckRunHealthResult:
        run = dg.DagsterRun(job_name="death_job", run_id=dg._core.utils.make_new_run_id(), tags=tags)
        return MonitoredRunLauncher().check_run_worker_health(run)

    def test_a_run_whose_code_server_has_ended_is_lost(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as freed:
            port = freed.getsockname()[1]
        health = self.health({GRPC_INFO_TAG: json.dumps({"host": "127.0.0.1", "port": port})})
        assert (health.status, health.msg) == (WorkerStatus.NOT_FOUND, "its code server has ended")

    def test_the_proxy_of_the_ui_answers_about_a_run(self, tmp_path: Path) -> None:
        (tmp_path / "none.py").write_text("import dagster as dg\ndefs = dg.Definitions()\n")
        place = tmp_path / "server.socket"
        command = [sys.executable, "-m", "dagster", "code-server", "start", "--socket", str(place), "-f", "none.py"]
        environment = {**os.environ, "DAGSTER_HOME": str(tmp_path), "DAGSTER_DISABLE_TELEMETRY": "yes"}
        with subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True) as server:
            try:
                client, deadline = DagsterGrpcClient(socket=str(place)), time.monotonic() + 120
                while client.health_check_query() != "SERVING":
                    assert time.monotonic() < deadline, "the code server does not start"
                    time.sleep(0.2)
                health = self.health({GRPC_INFO_TAG: json.dumps({"host": "localhost", "socket": str(place)})})
            finally:
                os.killpg(server.pid, signal.SIGKILL)
        assert (health.status, health.msg) == (WorkerStatus.NOT_FOUND, "its code server does not have it")

    def test_a_run_without_a_code_server_is_unknown(self) -> None:
        assert self.health({}).status is WorkerStatus.UNKNOWN


@pytest.mark.row("P-3")
class TestEveryTenMinutes:
    def test_the_schedule_runs_only_if_work_is_pending(self, small_home: Path, tmp_path: Path) -> None:
        root = home_without_verdicts(small_home, tmp_path / "home")
        assert "closed cycles of" in decision_of(every_ten_minutes, root).tags["bardo/why"]
        stores = DerivationContext.open(root)
        derive_episodes(stores, now=NOW)
        derive_curation(stores)
        assert pending_work(stores) == "decisions without their votes"
        derive_votes(stores)
        skipped = decision_of(every_ten_minutes, root)
        assert isinstance(skipped, dg.SkipReason)
        assert skipped.skip_message == "no cycle closed since the last run"

    @pytest.mark.full
    def test_the_schedule_waits_for_an_active_run(self, small_home: Path, tmp_path: Path) -> None:
        root = home_without_verdicts(small_home, tmp_path / "home")
        with dg.instance_for_test() as instance:
            request = decision_of(every_ten_minutes, root, instance)
            assert isinstance(request, dg.RunRequest)
            launch(request, "curator_job", instance, dg.DagsterRunStatus.STARTED)
            assert decision_of(every_ten_minutes, root, instance).skip_message == "a run of curator_job is active"

    def test_the_schedule_skips_a_missing_home(self, tmp_path: Path) -> None:
        assert "there is no home" in decision_of(every_ten_minutes, tmp_path / "nowhere").skip_message
