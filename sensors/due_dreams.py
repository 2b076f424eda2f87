"""Sensor of early dreams: requests the dream job for tagged episodes and inherited bundles."""

from __future__ import annotations

import dagster as dg

from assets.resources import LazyStores
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.dreams.derive_dreams import early_dreams
from jobs.dream import dream_job
from sensors.log_cursor import Cursor, look


@dg.sensor(
    job=dream_job,
    minimum_interval_seconds=60,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Requests the dream job for episodes tagged for a dream and for golems born with a bundle, once their "
    "cycles are curated. Starts with Dagster; switch it off on its page.",
)
def dreams_queued(
    context: dg.SensorEvaluationContext, home: dg.ResourceParam[LazyStores]
) -> dg.SensorResult | dg.SkipReason:
    """Request one run if a dream is queued. The run key contains the versions of log and curation."""
    return look(context, home, _queued)


def _queued(stores: DerivationContext, _: Cursor, now: Cursor) -> dg.RunRequest | str:
    why = early_dreams(stores)
    if why is None:
        return "no dream is queued before its time"
    curated = stores.projections.growing("curation").table.version
    key = f"{now.home}/log-{now.log_version}-life-{now.life_version}-curation-{curated}"
    return dg.RunRequest(run_key=key, tags={"bardo/why": why})
