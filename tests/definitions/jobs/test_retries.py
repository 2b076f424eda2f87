"""Retries of a step: what passes is tried again in the same run, everything else fails at once."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import duckdb
import pytest

from assets import log as log_assets
from assets import marts, retries
from assets.resources import LazyStores
from bardo_pipeline.errors import BundleError, MartsRefused
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.intake.spool_folder import Spool
from definitions import defs
from tests.conftest import NOW


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "PAUSE_SECONDS", 0.0)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.create(tmp_path / "home", Policy(), NOW)


def failing(times: int, error: Exception, then: Callable[..., Any]) -> tuple[Callable[..., Any], Counter[str]]:
    """Return a function that raises the error the first times, and the count of its calls."""
    calls: Counter[str] = Counter()

    def call(*arguments: Any, **named: Any) -> Any:
        calls["calls"] += 1
        if calls["calls"] <= times:
            raise error
        return then(*arguments, **named)

    return call, calls


def taken(home: Home, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    """Run the job that ingests the spool."""
    resources = {"home": LazyStores(home.root)}
    return dg.materialize([log_assets.quarantine], resources=resources, instance=instance, raise_on_error=False)


@pytest.mark.row("P-3")
@pytest.mark.parametrize("error", [OSError(errno.EIO, "input/output error"), FileNotFoundError("a swapped file"),
                                   duckdb.IOException("a file was cut short")])  # fmt: skip
def test_a_step_that_fails_once_for_its_files_succeeds_in_the_same_run(
    home: Home, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    take, calls = failing(1, error, Spool.take)
    monkeypatch.setattr(Spool, "take", take)
    with dg.DagsterInstance.ephemeral() as instance:
        result = taken(home, instance)
        assert result.success
        assert calls["calls"] == 2
        assert len(instance.get_runs()) == 1, "sensors count runs, so a retry is no attempt of theirs"
        (materialized,) = result.get_asset_materialization_events()
    assert materialized.materialization.metadata["files"].value == 0


@pytest.mark.row("P-3")
@pytest.mark.parametrize(
    "error", [BundleError("an altered bundle"), PermissionError(errno.EACCES, "denied"), OSError(errno.ENOSPC, "full")]
)
def test_a_failure_that_lasts_fails_the_step_at_once(
    home: Home, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    take, calls = failing(9, error, Spool.take)
    monkeypatch.setattr(Spool, "take", take)
    with dg.DagsterInstance.ephemeral() as instance:
        result = taken(home, instance)
    (failed,) = [event.step_failure_data for event in result.all_events if event.is_step_failure]
    assert not result.success
    assert calls["calls"] == 1
    assert failed.error.cause.cls_name == type(error).__name__


@pytest.mark.row("P-3", "P-4")
@pytest.mark.parametrize(
    ("error", "tries"), [(OSError(errno.EIO, "input/output error"), 3), (MartsRefused("a failed data test", ()), 1)]
)
def test_marts_are_built_again_for_their_files_and_not_for_a_failed_data_test(
    home: Home, monkeypatch: pytest.MonkeyPatch, error: Exception, tries: int
) -> None:
    build, calls = failing(9, error, dict)
    monkeypatch.setattr(marts, "build_warehouse", build)
    resources = {"home": LazyStores(home.root)}
    assert not dg.materialize([marts.warehouse], resources=resources, raise_on_error=False).success
    assert calls["calls"] == tries


def test_a_retry_opens_the_home_again(home: Home) -> None:
    opened: list[object] = []

    @retries.retried
    def compute(home: LazyStores) -> Iterator[int]:
        opened.append(home.stores)
        yield len(opened)
        if len(opened) == 1:
            raise OSError(errno.EIO, "input/output error")

    lazy = LazyStores(home.root)
    with pytest.raises(dg.RetryRequested):
        list(compute(home=lazy))
    assert list(compute(home=lazy)) == [2]
    assert opened[0] is not opened[1]


@pytest.mark.row("P-3")
def test_every_step_that_works_on_the_home_is_retried() -> None:
    nodes = [node for job in defs.resolve_all_job_defs() for node in job.nodes]
    computes = {op.name: op.compute_fn.decorated_fn for node in nodes for op in [node.definition] if op.pools}  # type: ignore[attr-defined]
    assert len(computes) > 20
    assert {name for name, compute in computes.items() if compute.__module__ == "assets.retries"} == set()
    assert {name for name, compute in computes.items() if not hasattr(compute, "__wrapped__")} == set()
