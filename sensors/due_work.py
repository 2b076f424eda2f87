"""Sensors of due work outside the log: silent golems, succession steps, files in the spool, journal backlog."""

from __future__ import annotations

import dagster as dg

from assets.checks import evaluations
from assets.resources import LazyStores
from bardo_pipeline.derivation.death.silence import declare_silent_golems
from bardo_pipeline.derivation.reports.home_health import health_of, overrun
from bardo_pipeline.derivation.succession.succeed import due_successions
from bardo_pipeline.errors import BackpressureError, NoHomeError
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.intake.spool_folder import shown, waiting
from jobs.asset_jobs import spool_job
from jobs.home_jobs import observe_job, succession_job
from sensors.home_sensor import few, home_sensor, request, request_for

_ACTIVE = [dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTING,
              dg.DagsterRunStatus.STARTED]  # fmt: skip


@home_sensor(
    observe_job,
    300,
    "Requests the observe job once for all living golems without a tick for longer than the policy allows. Golems with "
    "a running writer are skipped until the writer has ended.",
)
def golems_silent(context: dg.SensorEvaluationContext, home: LazyStores) -> dg.RunRequest | dg.SkipReason:
    """Request one run for all silent golems. The run key lists golems and last ticks."""
    golems = declare_silent_golems(home.stores, now=home.now(), dry_run=True)
    silent = [golem for golem in golems if golem.outcome == "silent"]
    if not silent:
        return dg.SkipReason("no living golem is silent")
    why = f"{few([golem.golem_id for golem in silent])} fell silent"
    return request_for(home.stores, [f"{golem.golem_id}@{golem.tick}" for golem in silent], why)


@home_sensor(
    succession_job,
    30,
    "Requests the succession job for due steps; a failed step's event contains the time of its retry. Without "
    "`auto = true` under [succession] only successions begun by hand have due steps.",
)
def successions_due(context: dg.SensorEvaluationContext, home: LazyStores) -> dg.RunRequest | dg.SkipReason:
    """Request one run for all due steps. The run key lists golems and attempts."""
    steps = due_successions(home.stores, home.now())
    if not steps:
        return dg.SkipReason("no succession step is due")
    why = few([f"{step.golem_id}: {step.why}" for step in steps], "; ")
    return request_for(home.stores, [f"{step.golem_id}@{step.tried}" for step in steps], why)


@home_sensor(
    spool_job,
    10,
    "Requests the spool job once for all files that wait in the spool. Requests none while a run is active; the files "
    "of a failed run still wait and are requested again.",
)
def files_dropped(context: dg.SensorEvaluationContext, home: LazyStores) -> dg.RunRequest | dg.SkipReason:
    """Request one run for all waiting files. Needs no cursor, because ingested files leave the spool."""
    names = waiting(Home.open(home.root))
    if not names:
        return dg.SkipReason("the spool is empty")
    if context.instance.get_runs_count(dg.RunsFilter(job_name=spool_job.name, statuses=_ACTIVE)):
        return dg.SkipReason(f"{len(names)} files wait, and a run of the spool job is active")
    return request(f"{few([shown(name) for name in names])} dropped")


@dg.sensor(
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Measures the home and reports health checks whose result changed. Fails while a journal exceeds the "
    "policy's size or age, because writers outrun the drainer or no drainer runs. Requests no run.",
)
def writers_outrun_the_drainer(
    context: dg.SensorEvaluationContext, home: dg.ResourceParam[LazyStores]
) -> dg.SkipReason:
    """Measure once. Raises BackpressureError, with size and age, while a journal is overrun."""
    try:
        stores = home.stores
    except NoHomeError as error:
        return dg.SkipReason(str(error))
    health = health_of(stores, home.now())
    for result in evaluations(health, stores.policy):
        _report_change(context.instance, result)
    overruns = list(overrun(health.journals, stores.policy))
    if overruns:
        raise BackpressureError("; ".join(fault.says for fault in overruns))
    depth = sum(journal.depth.bytes for journal in health.journals)
    return dg.SkipReason(f"{len(health.journals)} journals hold {depth:,} bytes that are not in the log yet")


def _report_change(instance: dg.DagsterInstance, result: dg.AssetCheckResult) -> None:
    """Report a check result only if it changed, so that a healthy home adds no events."""
    assert result.asset_key is not None, "a health check names its asset"
    assert result.check_name is not None, "a health check has a name"
    key = dg.AssetCheckKey(result.asset_key, result.check_name)
    latest = instance.get_latest_asset_check_evaluation_record(key)
    evaluation = latest.evaluation if latest is not None else None
    if evaluation is not None and evaluation.passed == result.passed:
        return
    instance.report_runless_asset_event(
        dg.AssetCheckEvaluation(
            asset_key=key.asset_key,
            check_name=key.name,
            passed=result.passed,
            metadata=result.metadata,
            severity=result.severity,
            description=result.description,
        )
    )
