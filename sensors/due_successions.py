"""Successions: deaths that want an heir, and steps whose time has come, ask for the succession job."""

from __future__ import annotations

from datetime import datetime

import dagster as dg

from assets.resources import LazyStores
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.succession.succeed import due
from jobs.succession import succession_job
from sensors.run_requests import few, requested


@dg.sensor(
    job=succession_job,
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Looks for what is due of successions by now: what failed says in its event when it is due again. "
    "Without `auto = true` under [succession] only what was begun by hand is. Runs as soon as Dagster does; switch it "
    "off on its page.",
)
def successions_due(
    context: dg.SensorEvaluationContext, home: dg.ResourceParam[LazyStores]
) -> dg.RunRequest | dg.SkipReason:
    """One run for all that is due: the run's key is whose step it is, and the how-manieth attempt."""
    return requested(home, _due, at_rest="nothing is due of any succession")


def _due(stores: DerivationContext, now: datetime) -> tuple[list[str], str]:
    waiting = due(stores, now)
    told = [f"{one.golem_id}: {one.why}" for one in waiting]
    return [f"{one.golem_id}@{one.tried}" for one in waiting], few(told, "; ")
