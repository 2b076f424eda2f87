"""Notices that the webhook did not take are posted later, each once, after pauses that double."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from assets.resources import LazyStores
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.owner_notices import notices_of
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from jobs.run_notices import post_run
from jobs.run_requests import FIRST_PAUSE, LONGEST_PAUSE
from sensors.home_sensors import notices_waiting, runs_failed
from tests.conftest import NOW, copy_home
from tests.definitions.running import run
from tests.support.processes.webhook import Hook, webhook

pytestmark = [pytest.mark.row("P-3", "INH-4"), pytest.mark.usefixtures("at")]


@dg.job
def failing_job() -> None:
    @dg.op
    def fail() -> None:
        raise ValueError("the disk is full")

    fail()


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    """A webhook that refuses every notice until `accepted_max` is raised."""
    with webhook() as server:
        server.accepted_max = 0
        monkeypatch.setenv("BARDO_WEBHOOK", server.url)
        yield server


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "home"
    monkeypatch.setenv("BARDO_HOME", str(root))
    return root


def look(root: Path, instance: dg.DagsterInstance, after: timedelta = timedelta()) -> dg.RunRequest | str:
    """Evaluate the sensor at a moment after now. Return the run request, or the reason of the skip."""
    lazy = LazyStores(root)
    lazy.now = lambda: datetime.now(UTC) + after  # type: ignore[method-assign]
    decision = notices_waiting(dg.build_sensor_context(instance=instance, resources={"home": lazy}))
    lazy.close()
    assert isinstance(decision, dg.RunRequest | dg.SkipReason)
    return decision if isinstance(decision, dg.RunRequest) else decision.skip_message or ""


def fail_a_run(instance: dg.DagsterInstance) -> str:
    """Fail a run while the webhook refuses its notice. Return the run's id."""
    failed = failing_job.execute_in_process(instance=instance, raise_on_error=False)
    context = dg.build_run_status_sensor_context(
        "runs_failed", failed.get_run_failure_event(), instance, failed.dagster_run
    ).for_run_failure()
    with pytest.raises(OSError, match="503"):
        runs_failed(context)
    return failed.run_id


def perform(request: dg.RunRequest | str, instance: dg.DagsterInstance) -> None:
    assert isinstance(request, dg.RunRequest), request
    assert run("notices_job", instance, tags=request.tags).success, "a failed run would be one more notice"


def test_a_refused_notice_of_a_failed_run_is_posted_once_when_the_webhook_answers(
    at: Path, instance: dg.DagsterInstance, hook: Hook
) -> None:
    Home.create(at, Policy(), NOW)
    assert look(at, instance) == "no notice waits"
    failed, pause = fail_a_run(instance), FIRST_PAUSE
    perform(look(at, instance), instance)
    for attempt in (1, 2):
        assert f"attempt {attempt} ended without it" in str(look(at, instance, pause - timedelta(seconds=10)))
        request = look(at, instance, pause + timedelta(seconds=10))
        if attempt == 2:
            hook.accepted_max = 9
        perform(request, instance)
        pause *= 2
    assert [(notice["run_id"], notice["job"]) for notice in hook.taken] == [(failed, "failing_job")]
    assert "failing_job" in hook.taken[0]["error"]
    assert look(at, instance, 2 * LONGEST_PAUSE) == "no notice waits"


@pytest.mark.full
def test_refused_notices_of_deaths_are_posted_once_without_a_further_death(
    at: Path, brief_home: Path, instance: dg.DagsterInstance, hook: Hook
) -> None:
    copy_home(brief_home, at)
    deaths = [notice.event_id for notice in notices_of(DerivationContext.open(at))]
    failed = fail_a_run(instance)
    active = instance.add_run(dg.DagsterRun("death_job", status=dg.DagsterRunStatus.STARTED))
    assert look(at, instance) == "a run that posts notices is active"
    instance.report_run_failed(active)
    hook.accepted_max = 1
    perform(look(at, instance), instance)
    hook.accepted_max = 99
    perform(look(at, instance), instance)
    assert [notice.get("event_id") or notice["run_id"] for notice in hook.taken] == [*deaths, failed]
    assert look(at, instance, 2 * LONGEST_PAUSE) == "no notice waits"


def test_without_a_webhook_or_a_home_no_run_is_requested(
    at: Path, instance: dg.DagsterInstance, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "there is no home" in str(look(at, instance))
    monkeypatch.delenv("BARDO_WEBHOOK")
    assert look(at, instance) == "BARDO_WEBHOOK is not set"
    assert "BARDO_WEBHOOK" not in os.environ


def test_the_notice_of_a_run_without_a_job_names_its_assets(instance: dg.DagsterInstance, hook: Hook) -> None:
    hook.accepted_max = 1
    asset = dg.AssetKey(["upkeep", "maintenance"])
    post_run(instance, dg.DagsterRun("__ASSET_JOB", asset_selection=frozenset({asset})), hook.url)
    assert [notice["job"] for notice in hook.taken] == ["upkeep/maintenance"]
