"""Deaths: a recorded death asks for the death job."""

from __future__ import annotations

import dagster as dg

from assets.stores import LazyStores
from bardo_pipeline.errors import NoHomeError
from jobs.death import death_job
from sensors.cursor import Cursor


@dg.sensor(
    job=death_job,
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Looks for deaths recorded since the last look and runs the death job once for all of them. Runs "
    "as soon as Dagster does; switch it off on its page.",
)
def deaths_recorded(
    context: dg.SensorEvaluationContext, home: dg.ResourceParam[LazyStores]
) -> dg.SensorResult | dg.SkipReason:
    """One run per look that finds deaths. The cursor is the version of the life events that was read last."""
    try:
        stores = home.stores
    except NoHomeError as error:
        return dg.SkipReason(str(error))
    now = Cursor.of(stores)
    before = Cursor.read(context.cursor, home=now.home)
    dead = stores.log.life("DeathDeclared", since_version=before.life_version)
    names = sorted(set(dead["golem_id"].to_pylist()))
    if not names:
        return dg.SensorResult(skip_reason=dg.SkipReason("nobody died since the last look"), cursor=now.text)
    why = f"{', '.join(names[:5])}{f' and {len(names) - 5} more' if len(names) > 5 else ''} died"
    request = dg.RunRequest(run_key=f"{now.home}/life-{now.life_version}", tags={"bardo/why": why})
    return dg.SensorResult(run_requests=[request], cursor=now.text)
