"""Sensor of closed cycles: requests the curator job sooner than its schedule."""

from __future__ import annotations

import dagster as dg

from assets.resources import LazyStores
from bardo_pipeline.derivation.context import DerivationContext
from jobs.curator import curator_job, pending_work
from sensors.log_cursor import Cursor, look


@dg.sensor(
    job=curator_job,
    minimum_interval_seconds=60,
    default_status=dg.DefaultSensorStatus.STOPPED,
    description="Requests the curator job for cycles that closed since the last look. Off by default, because the "
    "schedule does the same every ten minutes; switch it on for a shorter delay.",
)
def cycles_closed(
    context: dg.SensorEvaluationContext, home: dg.ResourceParam[LazyStores]
) -> dg.SensorResult | dg.SkipReason:
    """Request one run if cycles closed. Compares two log versions if nothing was recorded since the last look."""
    return look(context, home, _closed, at_rest="nothing was recorded since the last look")


def _closed(stores: DerivationContext, _: Cursor, now: Cursor) -> dg.RunRequest | str:
    pending = pending_work(stores)
    if pending is None:
        return "no cycle closed since the last look"
    key = f"{now.home}/log-{now.log_version}-life-{now.life_version}"
    return dg.RunRequest(run_key=key, tags={"bardo/why": pending})
