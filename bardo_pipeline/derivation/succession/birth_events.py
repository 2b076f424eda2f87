"""Births: the events with which a golem's life begins, the same ones whoever records them: a run or a succession.

What its owner ordered from the library comes with the next birth, through the door for all knowledge from elsewhere: it
waits in quarantine until the golem's own outcomes bear it out (INH S5.2, S14).
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.legacy.bundle_store import load_bundle
from bardo_pipeline.events.life.events import Born, LifeEvent, Received, life_event
from bardo_pipeline.events.life.inherited_defaults import DefaultsInherited, Instincts
from bardo_pipeline.events.life.loan_granted import LoanGranted
from bardo_pipeline.events.life.received_knowledge import Quarantined
from bardo_pipeline.inheritance.baldwin import defaults_of
from bardo_pipeline.inheritance.bundle_files import LIBRARIAN, Bundle
from bardo_pipeline.inheritance.heir_entries import inherited_entries


class Beginning(NamedTuple):
    """What a life begins with: the events to record, the bundle and its entries as the heir's own, None without one,
    what its line has made a default, and what it may borrow."""

    events: list[LifeEvent]
    bundle: Bundle | None
    inherited: pa.Table | None
    instincts: Instincts = Instincts()
    loan: LoanGranted | None = None


def beginning(
    context: DerivationContext, golem_id: str, birth: Born, at: datetime, beside: Collection[LifeEvent] = (),
    loan: LoanGranted | None = None,
) -> Beginning:  # fmt: skip
    """The birth of a golem at a moment and, where it inherits or its owner ordered a kit for it, what it receives.

    beside: events that are recorded together with these, of births that come before it. loan: what founders may borrow;
    heirs may what their predecessor might. A golem whose birth is on record already is given nothing more. Raises
    BundleError for a bundle that is not there or not what its hash says.
    """
    allowed = loan if birth.predecessor_id is None else granted_to(context, birth.predecessor_id)
    events = [life_event(golem_id, at, birth), *_equipment(context, golem_id, birth, at, beside)]
    if allowed is not None:
        events.append(life_event(golem_id, at, allowed))
    return _received(context, golem_id, birth, at, Beginning(events, None, None, loan=allowed))


def granted_to(context: DerivationContext, golem_id: str) -> LoanGranted | None:
    """What a golem on record may borrow, None: nothing."""
    told = context.life("LoanGranted")
    mine = told.filter(pc.equal(told["golem_id"], golem_id))["granted"].to_pylist()
    return LoanGranted.model_validate(mine[0]) if mine else None


def _received(context: DerivationContext, golem_id: str, birth: Born, at: datetime, begun: Beginning) -> Beginning:
    """The same with what is inherited, where there is a bundle."""
    events = begun.events
    if birth.bundle_hash is None:
        return begun
    bundle = load_bundle(context.home, birth.bundle_hash)
    inherited = inherited_entries(bundle, golem_id, context.policy)
    received = Received(
        source="succession",
        from_golem_id=bundle.golem_id,
        content_hash=birth.bundle_hash,
        entry_count=inherited.num_rows,
    )
    events.append(life_event(golem_id, at, received))
    died_at = datetime.fromisoformat(bundle.manifest["died_at"])
    defaults = defaults_of(inherited, died_at, birth.traits.rebalance_threshold, context.policy)
    if not defaults:
        return begun._replace(bundle=bundle, inherited=inherited)
    events.append(life_event(golem_id, at, DefaultsInherited(bundle_hash=birth.bundle_hash, defaults=defaults)))
    known = Instincts({golem_id: [default.model_dump() for default in defaults]})
    return begun._replace(bundle=bundle, inherited=inherited, instincts=known)


def _equipment(
    context: DerivationContext, golem_id: str, birth: Born, at: datetime, beside: Collection[LifeEvent]
) -> list[LifeEvent]:
    """The kit that its owner ordered for the next golem, as it comes to this one; nothing where none waits."""
    waiting = waiting_orders(context, birth.owner_id, beside)
    if not waiting or pc.any(pc.equal(context.life("GolemBorn")["golem_id"], golem_id)).as_py():
        return []
    kit = waiting[0]
    received = Received(
        source="import", from_golem_id=LIBRARIAN, content_hash=kit["bundle_hash"], entry_count=kit["entry_count"]
    )
    return [life_event(golem_id, at, received, Quarantined(tick_seen=0))]


def waiting_orders(
    context: DerivationContext, owner_id: str, beside: Collection[LifeEvent] = ()
) -> list[dict[str, Any]]:
    """What an owner ordered from the library and no golem received yet (fields of `KitOrdered`), oldest first."""
    orders = context.life("KitOrdered")
    mine = [said for said in orders["kit_ordered"].to_pylist() if said["owner_id"] == owner_id]
    if not mine:
        return []
    came = context.life("KnowledgeReceived")["received"].combine_chunks()
    given = set(pc.struct_field(came, "content_hash").to_pylist()) if len(came) else set()
    given |= {event.received.content_hash for event in beside if event.received is not None}
    return sorted((said for said in mine if said["bundle_hash"] not in given), key=lambda said: said["number"])
