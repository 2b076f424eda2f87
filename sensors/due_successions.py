"""Sensor of due succession steps: requests the succession job."""

from __future__ import annotations

from datetime import datetime

import dagster as dg

from assets.resources import LazyStores
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.succession.succeed import due_successions
from jobs.succession import succession_job
from sensors.run_requests import few, request_run


@dg.sensor(
    job=succession_job,
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Requests the succession job for due steps; a failed step's event contains the time of its retry. "
    "Without `auto = true` under [succession] only successions begun by hand have due steps. Starts with Dagster; "
    "switch it off on its page.",
)
def successions_due(
    context: dg.SensorEvaluationContext, home: dg.ResourceParam[LazyStores]
) -> dg.RunRequest | dg.SkipReason:
    """Request one run for all due steps. The run key lists golems and attempts."""
    return request_run(home, _due, at_rest="no succession step is due")


def _due(stores: DerivationContext, now: datetime) -> tuple[list[str], str]:
    steps = due_successions(stores, now)
    reasons = [f"{step.golem_id}: {step.why}" for step in steps]
    return [f"{step.golem_id}@{step.tried}" for step in steps], few(reasons, "; ")
