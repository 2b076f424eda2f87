"""Deaths: a recorded death asks for the death job."""

from __future__ import annotations

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from assets.resources import LazyStores
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.events.life.retractions import WITHDRAWALS
from jobs.death import death_job
from sensors.log_cursor import Cursor, looked
from sensors.run_requests import few


@dg.sensor(
    job=death_job,
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Looks for deaths recorded since the last look, and for what was struck in the lives of the dead, and "
    "runs the death job once for all of them. Runs as soon as Dagster does; switch it off on its page.",
)
def deaths_recorded(
    context: dg.SensorEvaluationContext, home: dg.ResourceParam[LazyStores]
) -> dg.SensorResult | dg.SkipReason:
    """One run per look that finds deaths, or bundles to be made anew.

    The cursor is the version of the life events that was read last.
    """
    return looked(context, home, _died)


def _died(stores: DerivationContext, before: Cursor, now: Cursor) -> dg.RunRequest | str:
    news = stores.log.life(since_version=before.life_version)
    dead = sorted(set(news.filter(pc.equal(news["kind"], "DeathDeclared"))["golem_id"].to_pylist()))
    struck = set(news.filter(pc.is_in(news["kind"], value_set=pa.array(WITHDRAWALS)))["golem_id"].to_pylist())
    long_dead = set(stores.life("DeathDeclared")["golem_id"].to_pylist()) - set(dead) if struck else set()
    remade = sorted(struck & long_dead)
    told = [(dead, "died"), (remade, "left bundles that rest on what is struck")]
    why = "; ".join(f"{few(names)} {what}" for names, what in told if names)
    if not why:
        return "nobody died since the last look"
    return dg.RunRequest(run_key=f"{now.home}/life-{now.life_version}", tags={"bardo/why": why})
