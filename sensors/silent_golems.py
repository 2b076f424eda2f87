"""Sensor of silent golems: requests the observe job."""

from __future__ import annotations

from datetime import datetime

import dagster as dg

from assets.resources import LazyStores
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.silence import declare_silent_golems
from jobs.observe import observe_job
from sensors.run_requests import few, request_run

MINUTES = 5


@dg.sensor(
    job=observe_job,
    minimum_interval_seconds=60 * MINUTES,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Requests the observe job once for all living golems without a tick for longer than the policy allows. "
    "Golems with a running writer are skipped until the writer has ended. Starts with Dagster; switch it off on its "
    "page.",
)
def golems_silent(
    context: dg.SensorEvaluationContext, home: dg.ResourceParam[LazyStores]
) -> dg.RunRequest | dg.SkipReason:
    """Request one run for all silent golems. The run key lists golems and last ticks."""
    return request_run(home, _silent, at_rest="no living golem is silent")


def _silent(stores: DerivationContext, now: datetime) -> tuple[list[str], str]:
    golems = declare_silent_golems(stores, now=now, dry_run=True)
    silent = [golem for golem in golems if golem.outcome == "silent"]
    names = [golem.golem_id for golem in silent]
    return [f"{golem.golem_id}@{golem.tick}" for golem in silent], f"{few(names)} fell silent"
