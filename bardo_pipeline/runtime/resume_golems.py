"""Lets golems that were born between runs live in the next run of their market. Source: INH S13, step 7.

They live in separate passes, so that a run's founders do not depend on waiting golems. A recorded event names each
pass, so that a repeated run gives the same golems and writes nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import datetime

import orjson

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.death_queries import births_of, waiting_golems
from bardo_pipeline.events.life.events import life_event
from bardo_pipeline.events.life.succession_events import TakenUp
from bardo_pipeline.runtime.run_settings import Heir, Run


def waiting(context: DerivationContext) -> list[Heir]:
    """Return golems that were born between runs and have not lived yet, by id."""
    births = births_of(context, waiting_golems(context))
    return [Heir(golem_id, *births[golem_id]) for golem_id in sorted(births)]


def passes(context: DerivationContext, run: Run, last: datetime, *, now: datetime) -> list[Run]:
    """Return a run's passes: those that it made before, and one for golems that wait now. Records the latter.

    last: the market's last moment; golems born later wait for another run.
    """
    taken = context.life("GolemTakenUp").select(["golem_id", "taken_up"]).to_pylist()
    births = births_of(context, [row["golem_id"] for row in taken])
    groups: dict[str, list[Heir]] = {}
    for row in taken:
        if row["taken_up"]["began_with"] == run.name:
            heir = Heir(row["golem_id"], *births[row["golem_id"]])
            groups.setdefault(row["taken_up"]["run"], []).append(heir)
    waiting_heirs = [heir for heir in waiting(context) if heir.birth.market == run.market.name and heir.at < last]
    if waiting_heirs:
        content = orjson.dumps([run.name, [heir.golem_id for heir in waiting_heirs]])
        name = hashlib.sha256(content).hexdigest()[:8]
        payload = TakenUp(run=name, began_with=run.name, market=run.market.name, market_hash=run.market.content_hash)
        context.log.record([life_event(heir.golem_id, heir.at, payload) for heir in waiting_heirs], now)
        groups[name] = waiting_heirs
    return [
        replace(run, name=name, golems=0, heirs=tuple(sorted(heirs, key=lambda heir: heir.golem_id)))
        for name, heirs in groups.items()
    ]
