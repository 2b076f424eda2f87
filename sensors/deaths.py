"""Deaths: a recorded death asks for the death job."""

from __future__ import annotations

import dagster as dg

from assets.stores import LazyStores
from bardo_pipeline.derivation.stores import Stores
from jobs.death import death_job
from sensors.cursor import Cursor, looked


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
    return looked(context, home, _died)


def _died(stores: Stores, before: Cursor, now: Cursor) -> dg.RunRequest | str:
    dead = stores.log.life("DeathDeclared", since_version=before.life_version)
    names = sorted(set(dead["golem_id"].to_pylist()))
    if not names:
        return "nobody died since the last look"
    why = f"{', '.join(names[:5])}{f' and {len(names) - 5} more' if len(names) > 5 else ''} died"
    return dg.RunRequest(run_key=f"{now.home}/life-{now.life_version}", tags={"bardo/why": why})
