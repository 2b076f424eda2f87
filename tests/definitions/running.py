"""Jobs run in this process, the metadata of their materializations, and decisions of schedules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import dagster as dg

from assets.resources import LazyStores
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.journal.event_writer import EventWriter
from definitions import defs
from tests.conftest import NOW
from tests.crash.roles import line_of


def run(job: str, instance: dg.DagsterInstance, **options) -> dg.ExecuteInProcessResult:
    """Run a job of the code location to its end, in this process."""
    return defs.resolve_job_def(job).execute_in_process(instance=instance, **options)


def decision_of(
    schedule: dg.ScheduleDefinition, root: Path, instance: dg.DagsterInstance | None = None
) -> dg.RunRequest | dg.SkipReason:
    """Evaluate a schedule for a home. instance: a persistent one; default: one without runs."""
    with dg.instance_for_test() as without_runs:
        resources = {"home": LazyStores(root)}
        decision = schedule(dg.build_schedule_context(instance=instance or without_runs, resources=resources))
    assert isinstance(decision, dg.RunRequest | dg.SkipReason)
    return decision


def materializations(result: dg.ExecuteInProcessResult) -> dict[str, dg.AssetMaterialization]:
    """Return the materializations by asset."""
    return {
        e.asset_key.to_user_string(): e.step_materialization_data.materialization
        for e in result.all_events
        if e.event_type_value == "ASSET_MATERIALIZATION"
    }


def data_version(made: dg.AssetMaterialization) -> str:
    """Return the data version that Dagster recorded."""
    return made.tags["dagster/data_version"]


def metadata_value(made: dg.AssetMaterialization, name: str):
    """Return one metadata value of a materialization."""
    return made.metadata[name].value


def checks(result: dg.ExecuteInProcessResult) -> dict[str, dg.AssetCheckEvaluation]:
    """Return the check results by name."""
    return {e.check_name: e for e in result.get_asset_check_evaluations()}


@contextmanager
def undrained(home: Home, age: timedelta, records: int = 3) -> Iterator[EventWriter]:
    """An open writer whose records are drained only when it closes."""
    with EventWriter.open(home, "g-1", clock=lambda: NOW - age, writer="runtime-1", drain="none") as writer:
        for tick in range(1, records + 1):
            writer.append(line_of("g-1", tick))
        yield writer
