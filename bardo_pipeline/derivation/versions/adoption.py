"""Adoption of another derivation by one recorded event.

The derivation is updated to the log first and then the event is recorded, so an interrupted adoption has no effect
before the event and is complete after it. The next derivation updates PLAYBOOK.md files, marts and the index. A running
fleet keeps the derivation that it began with.
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
from bardo_pipeline.derivation.versions.side_derivations import build, open_adoptable
from bardo_pipeline.errors import DerivationError
from bardo_pipeline.events.life.events import EVERY_GOLEM, Adopted, LifeEvent, life_event
from bardo_pipeline.storage.warehouse.build import build_warehouse


def adopt(
    context: DerivationContext, name: str, why: str, *, now: datetime, tell: Callable[[str], None] = lambda _: None
) -> LifeEvent:
    """Update a side derivation to the log and adopt it.

    Raises DerivationError without a reason, and for a derivation that is in force, was not built, has only some golems,
    or was made by another edition of the passes.
    """
    if not why.strip():
        raise DerivationError("an adoption is recorded with its reason: say why")
    with context.home.lock("adoption"):
        current = in_force(context.log.life("DerivationAdopted"))
        if name == current.derivation_id:
            raise DerivationError(f"derivation {name} is in force already: `bardo whatif --list` shows the others")
        chosen = open_adoptable(context, name)
        build(context, chosen, now=now, tell=tell)
        return switch_to(context, chosen, why.strip(), now=now)


def switch_to(
    context: DerivationContext, chosen: DerivationContext, why: str, *, now: datetime, at: datetime | None = None
) -> LifeEvent:
    """Record the adoption of an updated derivation. The caller holds the lock `adoption`.

    at: event time in an empty log; default: creation time of the home.
    """
    current = in_force(context.log.life("DerivationAdopted"))
    payload = Adopted(
        derivation_id=chosen.derivation_id,
        previous_derivation_id=current.derivation_id,
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
    """Return the last event time of the log, or a later time if an event of this kind has it, to keep them ordered.

    at: result for an empty log; default: creation time of the home.
    """
    earlier = pc.max(context.log.life(kind)["observed_at"]).as_py()
    newest = last_event_time(context) or at or context.home.created_at
    return newest if earlier is None else max(newest, earlier + timedelta(microseconds=1))


def adoptions(context: DerivationContext) -> pa.Table:
    """Return the recorded adoptions, oldest first: event_id, observed_at, recorded_at, adopted."""
    rows = context.log.life("DerivationAdopted")
    ordered = rows.sort_by([("observed_at", "ascending"), ("event_id", "ascending")])
    return ordered.select(["event_id", "observed_at", "recorded_at", "adopted"])


def settle(context: DerivationContext, *, now: datetime) -> None:
    """Update playbook files, index and existing marts after an adoption."""
    derive_everything(context, now=now)
    refresh_index(context)
    if context.home.warehouse.exists():
        build_warehouse(context.home, context.derivation_id, context.policy)
