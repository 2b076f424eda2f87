"""Sensor of spool files: requests the spool job."""

from __future__ import annotations

import dagster as dg

from assets.resources import LazyStores
from bardo_pipeline.errors import NoHomeError
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.intake.spool_folder import shown, waiting
from jobs.spool import spool_job
from sensors.run_requests import few

_ACTIVE = [dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTING,
              dg.DagsterRunStatus.STARTED]  # fmt: skip


@dg.sensor(
    job=spool_job,
    minimum_interval_seconds=10,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Requests the spool job once for all files that wait in the spool. Requests none while a run is "
    "active; the files of a failed run still wait and are requested again. Starts with Dagster; switch it off on its "
    "page.",
)
def files_dropped(
    context: dg.SensorEvaluationContext, home: dg.ResourceParam[LazyStores]
) -> dg.RunRequest | dg.SkipReason:
    """Request one run for all waiting files. Needs no cursor, because ingested files leave the spool."""
    try:
        names = waiting(Home.open(home.root))
    except NoHomeError as error:
        return dg.SkipReason(str(error))
    if not names:
        return dg.SkipReason("the spool is empty")
    if context.instance.get_runs_count(dg.RunsFilter(job_name=spool_job.name, statuses=_ACTIVE)):
        return dg.SkipReason(f"{len(names)} files wait, and a run of the spool job is active")
    return dg.RunRequest(tags={"bardo/why": f"{few([shown(name) for name in names])} dropped"})
