"""Sensors of the event log: closed cycles, queued dreams and recorded deaths since the cursor."""

from __future__ import annotations

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from assets.resources import LazyStores
from bardo_pipeline.derivation.dreams.derive_dreams import early_dreams
from bardo_pipeline.events.life.retractions import WITHDRAWALS
from jobs.asset_jobs import curator_job, death_job, dream_job, pending_work
from sensors.home_sensor import Cursor, advance, few, home_sensor, request


@home_sensor(
    curator_job,
    60,
    "Requests the curator job for cycles that closed since the last look. Off by default, because the schedule does "
    "the same every ten minutes; switch it on for a shorter delay.",
    running=False,
)
def cycles_closed(context: dg.SensorEvaluationContext, home: LazyStores) -> dg.SensorResult | dg.SkipReason:
    """Request one run if cycles closed. Compares two log versions if nothing was recorded since the last look."""
    now = Cursor.of(home.stores)
    if Cursor.read(context.cursor, home=now.home) == now:
        return dg.SkipReason("nothing was recorded since the last look")
    pending = pending_work(home.stores)
    return advance("no cycle closed since the last look" if pending is None else request(pending, now.run_key), now)


@home_sensor(
    dream_job,
    60,
    "Requests the dream job for episodes tagged for a dream and for golems born with a bundle, once their cycles are "
    "curated.",
)
def dreams_queued(context: dg.SensorEvaluationContext, home: LazyStores) -> dg.SensorResult:
    """Request one run if a dream is queued. The run key contains the versions of log and curation."""
    now, why = Cursor.of(home.stores), early_dreams(home.stores)
    if why is None:
        return advance("no dream is queued before its time", now)
    curated = home.stores.projections.growing("curation").table.version
    return advance(request(why, f"{now.run_key}-curation-{curated}"), now)


@home_sensor(
    death_job,
    30,
    "Requests the death job once for all deaths recorded since the last look and for retractions in the lives of dead "
    "golems.",
)
def deaths_recorded(context: dg.SensorEvaluationContext, home: LazyStores) -> dg.SensorResult:
    """Request one run if there are deaths or bundles to derive again. The cursor holds the last life event version."""
    stores, now = home.stores, Cursor.of(home.stores)
    news = stores.log.life(since_version=Cursor.read(context.cursor, home=now.home).life_version)
    dead = sorted(set(news.filter(pc.equal(news["kind"], "DeathDeclared"))["golem_id"].to_pylist()))
    retracted = set(news.filter(pc.is_in(news["kind"], value_set=pa.array(WITHDRAWALS)))["golem_id"].to_pylist())
    long_dead = set(stores.life("DeathDeclared")["golem_id"].to_pylist()) - set(dead) if retracted else set()
    remade = sorted(retracted & long_dead)
    causes = [(dead, "died"), (remade, "left bundles with retracted records")]
    why = "; ".join(f"{few(names)} {text}" for names, text in causes if names)
    return advance(request(why, f"{now.home}/life-{now.life_version}") if why else "no death since the last look", now)
