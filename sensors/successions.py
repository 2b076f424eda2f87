"""Successions: deaths that want an heir, and steps whose time has come, ask for the succession job."""

from __future__ import annotations

import dagster as dg

from assets.stores import LazyStores
from bardo_pipeline.derivation.succeeding import due
from bardo_pipeline.errors import NoHomeError
from jobs.succession import succession_job


@dg.sensor(
    job=succession_job,
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Looks for what is due of successions by now: what failed says in its event when it is due again. "
    "Without `auto = true` under [succession] nothing is. Runs as soon as Dagster does; switch it off on its page.",
)
def successions_due(
    context: dg.SensorEvaluationContext, home: dg.ResourceParam[LazyStores]
) -> dg.RunRequest | dg.SkipReason:
    """One run for all that is due: the run's key is whose step it is, and the how-manieth attempt."""
    try:
        stores = home.stores
    except NoHomeError as error:
        return dg.SkipReason(str(error))
    waiting = due(stores, home.now())
    if not waiting:
        return dg.SkipReason("nothing is due of any succession")
    key = ", ".join(f"{one.golem_id}@{one.tried}" for one in waiting)
    more = f" and {len(waiting) - 5} more" if len(waiting) > 5 else ""
    why = f"{'; '.join(f'{one.golem_id}: {one.why}' for one in waiting[:5])}{more}"
    return dg.RunRequest(run_key=f"{stores.home.created_at.isoformat()}/{key}", tags={"bardo/why": why})
