"""Cycles: a newly closed cycle asks for the curator, for those who will not wait for the clock."""

from __future__ import annotations

import dagster as dg

from assets.resources import LazyStores
from bardo_pipeline.derivation.context import DerivationContext
from jobs.curator import curator_job, what_is_new
from sensors.log_cursor import Cursor, looked


@dg.sensor(
    job=curator_job,
    minimum_interval_seconds=60,
    default_status=dg.DefaultSensorStatus.STOPPED,
    description="Looks for cycles that closed since the last look and runs the curator. Off by default, as the "
    "schedule does the same every ten minutes: switch it on here for a shorter wait.",
)
def cycles_closed(
    context: dg.SensorEvaluationContext, home: dg.ResourceParam[LazyStores]
) -> dg.SensorResult | dg.SkipReason:
    """One run per look that finds closed cycles. Where nothing was recorded since, it costs a look at two versions."""
    return looked(context, home, _closed, at_rest="nothing was recorded since the last look")


def _closed(stores: DerivationContext, _: Cursor, now: Cursor) -> dg.RunRequest | str:
    new = what_is_new(stores)
    if new is None:
        return "no cycle closed since the last look"
    key = f"{now.home}/log-{now.log_version}-life-{now.life_version}"
    return dg.RunRequest(run_key=key, tags={"bardo/why": new})
