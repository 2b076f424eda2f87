"""Silence: golems of which nothing was heard for too long ask for the observe job."""

from __future__ import annotations

import dagster as dg

from assets.stores import LazyStores
from bardo_pipeline.derivation.observing import observe
from bardo_pipeline.errors import NoHomeError
from jobs.observe import observe_job

MINUTES = 5


@dg.sensor(
    job=observe_job,
    minimum_interval_seconds=60 * MINUTES,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Looks for living golems that left no tick for longer than the policy bears, and runs the observe job "
    "once for all of them. One whose writer still runs is asked for again only when others fall silent. Runs as soon "
    "as Dagster does; switch it off on its page.",
)
def golems_silent(
    context: dg.SensorEvaluationContext, home: dg.ResourceParam[LazyStores]
) -> dg.RunRequest | dg.SkipReason:
    """One run for all that are silent: the run's key is who they are and since which tick."""
    try:
        stores = home.stores
    except NoHomeError as error:
        return dg.SkipReason(str(error))
    silent = observe(stores, now=home.now(), dry_run=True)
    if not silent:
        return dg.SkipReason("of every living golem something was heard")
    key = ", ".join(f"{one.golem_id}@{one.tick}" for one in silent)
    more = f" and {len(silent) - 5} more" if len(silent) > 5 else ""
    why = f"{', '.join(one.golem_id for one in silent[:5])}{more} fell silent"
    return dg.RunRequest(run_key=f"{stores.home.created_at.isoformat()}/{key}", tags={"bardo/why": why})
