"""Silence: golems of which nothing was heard for too long ask for the observe job."""

from __future__ import annotations

from datetime import datetime

import dagster as dg

from assets.resources import LazyStores
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.silence import declare_silent_golems
from jobs.observe import observe_job
from sensors.run_requests import few, requested

MINUTES = 5


@dg.sensor(
    job=observe_job,
    minimum_interval_seconds=60 * MINUTES,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Looks for living golems that left no tick for longer than the policy bears, and runs the observe job "
    "once for all of them. One whose writer still runs is left to it, and asked for when that has ended. Runs as soon "
    "as Dagster does; switch it off on its page.",
)
def golems_silent(
    context: dg.SensorEvaluationContext, home: dg.ResourceParam[LazyStores]
) -> dg.RunRequest | dg.SkipReason:
    """One run for all that are silent: the run's key is who they are and since which tick."""
    return requested(home, _silent, at_rest="of every living golem something was heard")


def _silent(stores: DerivationContext, now: datetime) -> tuple[list[str], str]:
    silent = [one for one in declare_silent_golems(stores, now=now, dry_run=True) if one.outcome == "silent"]
    names = [one.golem_id for one in silent]
    return [f"{one.golem_id}@{one.tick}" for one in silent], f"{few(names)} fell silent"
