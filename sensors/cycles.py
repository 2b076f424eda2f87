"""Cycles: a newly closed cycle asks for the curator, for those who will not wait for the clock."""

from __future__ import annotations

import dagster as dg

from assets.stores import LazyStores
from bardo_pipeline.errors import NoHomeError
from jobs.curator import curator_job, what_is_new
from sensors.cursor import Cursor


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
    try:
        stores = home.stores
    except NoHomeError as error:
        return dg.SkipReason(str(error))
    now = Cursor.of(stores)
    if Cursor.read(context.cursor, home=now.home) == now:
        return dg.SkipReason("nothing was recorded since the last look")
    new = what_is_new(stores)
    if new is None:
        return dg.SensorResult(skip_reason=dg.SkipReason("no cycle closed since the last look"), cursor=now.text)
    key = f"{now.home}/log-{now.log_version}-life-{now.life_version}"
    return dg.SensorResult(run_requests=[dg.RunRequest(run_key=key, tags={"bardo/why": new})], cursor=now.text)
