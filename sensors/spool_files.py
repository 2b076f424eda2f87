"""Spool: files that were dropped ask for the spool job."""

from __future__ import annotations

import dagster as dg

from assets.resources import LazyStores
from bardo_pipeline.errors import NoHomeError
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.intake.spool_folder import shown, waiting
from jobs.spool import spool_job
from sensors.run_requests import few

_UNDER_WAY = [dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTING,
              dg.DagsterRunStatus.STARTED]  # fmt: skip


@dg.sensor(
    job=spool_job,
    minimum_interval_seconds=10,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Looks whether files wait in the spool and runs the spool job once for all of them. While a run is "
    "under way it asks for no other; where one failed, its files still wait and are asked for again. Runs as soon as "
    "Dagster does; switch it off on its page.",
)
def files_dropped(
    context: dg.SensorEvaluationContext, home: dg.ResourceParam[LazyStores]
) -> dg.RunRequest | dg.SkipReason:
    """One run for all that waits. No cursor: a file that was taken is gone."""
    try:
        names = waiting(Home.open(home.root))
    except NoHomeError as error:
        return dg.SkipReason(str(error))
    if not names:
        return dg.SkipReason("nothing waits in the spool")
    if context.instance.get_runs_count(dg.RunsFilter(job_name=spool_job.name, statuses=_UNDER_WAY)):
        return dg.SkipReason(f"{len(names)} files wait, and a run that takes files is under way")
    return dg.RunRequest(tags={"bardo/why": f"{few([shown(name) for name in names])} dropped"})
