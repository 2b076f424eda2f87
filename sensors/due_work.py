"""Sensors of due work that leaves no trace in the log: silent golems, succession steps, files in the spool."""

from __future__ import annotations

import dagster as dg

from assets.resources import LazyStores
from bardo_pipeline.derivation.death.silence import declare_silent_golems
from bardo_pipeline.derivation.succession.succeed import due_successions
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
