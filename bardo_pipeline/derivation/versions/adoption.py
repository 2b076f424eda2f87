"""Adoption: the home goes over to a derivation that was built beside, by one recorded event.

First the derivation is brought up to the log, then the event is recorded: whoever is cut off before it has adopted
nothing, whoever is cut off after it has adopted all. What follows (PLAYBOOK.md files, marts, the index) is made again
by whoever derives next. A fleet under way lives on by what it began with, as its records say.
Source: X-10; architecture ("is switched to by a recorded `DerivationAdopted`").
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.curate import PASSES_EDITION
from bardo_pipeline.derivation.active_derivation import in_force
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.record_queries import last_event_time
from bardo_pipeline.derivation.memory.derive_episodes import refresh_index
from bardo_pipeline.derivation.versions.rebuild import derive_everything
from bardo_pipeline.derivation.versions.side_derivations import build, recorded
from bardo_pipeline.errors import DerivationError
from bardo_pipeline.events.life.events import EVERY_GOLEM, Adopted, LifeEvent, life_event
from bardo_pipeline.storage.warehouse.build import build_warehouse


def adopt(
    context: DerivationContext, name: str, why: str, *, now: datetime, tell: Callable[[str], None] = lambda _: None
) -> LifeEvent:
    """Bring a derivation that was built beside up to the log, and put it in force.

    now: the moment of recording. Raises DerivationError without a reason, and for one that is in force, was not built,
    holds some golems alone, or was made by another edition of the passes.
    """
    if not why.strip():
        raise DerivationError("an adoption is recorded with its reason: say why")
    with context.home.lock("adoption"):
        standing = in_force(context.log.life("DerivationAdopted"))
        if name == standing.derivation_id:
            raise DerivationError(f"derivation {name} is in force already: `bardo whatif --list` shows the others")
        chosen = recorded(context, name)
        build(context, chosen, now=now, tell=tell)
        return switch_to(context, chosen, why.strip(), now=now)


def switch_to(
    context: DerivationContext, chosen: DerivationContext, why: str, *, now: datetime, at: datetime | None = None
) -> LifeEvent:
    """Put a derivation in force that is up to the log: one recorded event. The caller holds the lock `adoption`.

    at: its moment where nothing is on record yet, by default when the home was made.
    """
    standing = in_force(context.log.life("DerivationAdopted"))
    payload = Adopted(
        derivation_id=chosen.derivation_id,
        previous_derivation_id=standing.derivation_id,
        policy_hash=chosen.policy.hash,
        passes_edition=PASSES_EDITION,
        embedder=chosen.embedder_name,
        policy=chosen.policy.content,
        why=why,
    )
    event = life_event(EVERY_GOLEM, log_moment(context, "DerivationAdopted", at), payload)
    context.log.record([event], now)
    return event


def log_moment(context: DerivationContext, kind: str, at: datetime | None = None) -> datetime:
    """The log's last moment, in event time; later than any event of this kind, so that these have an order.

    at: the moment where nothing is on record yet, by default when the home was made.
    """
    earlier = pc.max(context.log.life(kind)["observed_at"]).as_py()
    newest = last_event_time(context) or at or context.home.created_at
    return newest if earlier is None else max(newest, earlier + timedelta(microseconds=1))


def adoptions(context: DerivationContext) -> pa.Table:
    """The adoptions on record, oldest first: observed_at, recorded_at, and what each says."""
    rows = context.log.life("DerivationAdopted")
    ordered = rows.sort_by([("observed_at", "ascending"), ("event_id", "ascending")])
    return ordered.select(["event_id", "observed_at", "recorded_at", "adopted"])


def settle(context: DerivationContext, *, now: datetime) -> None:
    """Make again what follows from an adoption: files of playbooks, the index, and marts where there are any."""
    derive_everything(context, now=now)
    refresh_index(context)
    if context.home.warehouse.exists():
        build_warehouse(context.home, context.derivation_id, context.policy)
