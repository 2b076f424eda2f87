"""Makes the events of a birth, equally for runs and successions, and records the births of founders.

A kit that the owner ordered from the library is received with the next birth; its entries stay in quarantine until the
golem's own outcomes confirm them (INH S5.2, S14).
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import NamedTuple

import pyarrow as pa

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.legacy.bundle_sales import is_sale
from bardo_pipeline.derivation.legacy.bundle_store import load_bundle
from bardo_pipeline.derivation.library.library_queries import waiting_orders
from bardo_pipeline.events.custody.authority import Door
from bardo_pipeline.events.life.events import Born, LifeEvent, LoanGranted, Received, life_event
from bardo_pipeline.events.life.received_knowledge import Quarantined
from bardo_pipeline.events.life.succession_events import DefaultsInherited, Instincts
from bardo_pipeline.heartbeat.fleet import Founding, born
from bardo_pipeline.inheritance.bundle_files import LIBRARIAN, Bundle
from bardo_pipeline.inheritance.heir_entries import defaults_of, inherited_entries, with_bundle_evidence

UNKNOWN = "-"
"""Market and market hash of a golem whose records name no replayable market."""


class BirthRecord(NamedTuple):
    """The events of a birth, the inherited bundle, entries and evidence (None for founders), defaults and the loan."""

    events: list[LifeEvent]
    bundle: Bundle | None
    inherited: pa.Table | None
    instincts: Instincts = Instincts()
    loan: LoanGranted | None = None


def birth_record(
    context: DerivationContext, golem_id: str, birth: Born, at: datetime, beside: Collection[LifeEvent] = (),
    loan: LoanGranted | None = None,
) -> BirthRecord:  # fmt: skip
    """Return the birth of a golem with everything it inherits or receives as a kit.

    Raises BundleError for a missing or altered bundle, and for another owner's without consent. A golem that was born
    before receives no kit.

    Parameters
    ----------
    beside : events of earlier births in the same commit, whose kits are taken
    loan : loan of a founder; an heir gets the loan of its predecessor
    """
    granted = loan if birth.predecessor_id is None else loan_of(context, birth.predecessor_id)
    events = [life_event(golem_id, at, birth), *_equipment(context, golem_id, birth, at, beside)]
    if granted is not None:
        events.append(life_event(golem_id, at, granted))
    if birth.bundle_hash is None:
        return BirthRecord(events, None, None, loan=granted)
    bundle = load_bundle(context.home, birth.bundle_hash)
    bought = is_sale(context, bundle, birth.owner_id)
    inherited = inherited_entries(bundle, golem_id, context.policy, bought=bought)
    received = Received(
        source="purchase" if bought else "succession",
        from_golem_id=bundle.golem_id,
        content_hash=birth.bundle_hash,
        entry_count=inherited.num_rows,
    )
    events.append(life_event(golem_id, at, received))
    died_at = datetime.fromisoformat(bundle.manifest["died_at"])
    defaults = defaults_of(inherited, died_at, birth.traits.rebalance_threshold, context.policy)
    instincts = Instincts()
    if defaults:
        events.append(life_event(golem_id, at, DefaultsInherited(bundle_hash=birth.bundle_hash, defaults=defaults)))
        instincts = Instincts({golem_id: [default.model_dump() for default in defaults]})
    knowledge = with_bundle_evidence(inherited, bundle, golem_id, context.policy, bought=bought)
    return BirthRecord(events, bundle, knowledge, instincts, granted)


def record_founder(
    context: DerivationContext,
    golem_id: str | None,
    *,
    owner_id: str,
    lineage_id: str,
    founding: Founding,
    market: str,
    at: datetime,
    now: datetime,
    door: Door = "home",
) -> tuple[str, bool]:
    """Record the birth of a golem of generation 0, which founds its owner if that is unknown.

    Return its id, and True if it was born by this call. Raises ConfigError if the budget does not cover the death
    reserve, and AuthorityError if the door does not prove that the owner may record this birth.

    Parameters
    ----------
    golem_id : None draws the id from the lineage
    door : way by which the birth came; `token` is for a request with the token of the owner
    """
    name, birth = born(
        lineage_id=lineage_id, generation=0, owner_id=owner_id, founding=founding, market=market, market_hash=UNKNOWN,
        derivation_id=context.derivation_id, policy=context.policy,
    )  # fmt: skip
    golem_id = golem_id or name
    with context.home.lock("succession"):
        if context.life("GolemBorn", [golem_id]).num_rows:
            return golem_id, False
        context.log.record(birth_record(context, golem_id, birth, at).events, now, door=door)
    return golem_id, True


def loan_of(context: DerivationContext, golem_id: str) -> LoanGranted | None:
    """Return the loan granted to a golem, None without one."""
    rows = context.life("LoanGranted", [golem_id])["granted"].to_pylist()
    return LoanGranted.model_validate(rows[0]) if rows else None


def _equipment(
    context: DerivationContext, golem_id: str, birth: Born, at: datetime, beside: Collection[LifeEvent]
) -> list[LifeEvent]:
    """The event that delivers the owner's oldest waiting kit; empty without one."""
    waiting = waiting_orders(context, birth.owner_id, beside)
    if not waiting or context.life("GolemBorn", [golem_id]).num_rows:
        return []
    kit = waiting[0]
    received = Received(
        source="import", from_golem_id=LIBRARIAN, content_hash=kit["bundle_hash"], entry_count=kit["entry_count"]
    )
    return [life_event(golem_id, at, received, Quarantined(tick_seen=0))]
