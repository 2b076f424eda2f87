"""Sensor of recorded deaths: requests the death job."""

from __future__ import annotations

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from assets.resources import LazyStores
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.events.life.retractions import WITHDRAWALS
from jobs.death import death_job
from sensors.log_cursor import Cursor, look
from sensors.run_requests import few


@dg.sensor(
    job=death_job,
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Requests the death job once for all deaths recorded since the last look and for retractions in the "
    "lives of dead golems. Starts with Dagster; switch it off on its page.",
)
def deaths_recorded(
    context: dg.SensorEvaluationContext, home: dg.ResourceParam[LazyStores]
) -> dg.SensorResult | dg.SkipReason:
    """Request one run if there are deaths or bundles to derive again. The cursor holds the last life event version."""
    return look(context, home, _died)


def _died(stores: DerivationContext, before: Cursor, now: Cursor) -> dg.RunRequest | str:
    news = stores.log.life(since_version=before.life_version)
    dead = sorted(set(news.filter(pc.equal(news["kind"], "DeathDeclared"))["golem_id"].to_pylist()))
    retracted = set(news.filter(pc.is_in(news["kind"], value_set=pa.array(WITHDRAWALS)))["golem_id"].to_pylist())
    long_dead = set(stores.life("DeathDeclared")["golem_id"].to_pylist()) - set(dead) if retracted else set()
    remade = sorted(retracted & long_dead)
    causes = [(dead, "died"), (remade, "left bundles with retracted records")]
    why = "; ".join(f"{few(names)} {text}" for names, text in causes if names)
    if not why:
        return "no death since the last look"
    return dg.RunRequest(run_key=f"{now.home}/life-{now.life_version}", tags={"bardo/why": why})
