"""Sales of bundles between owners of a home: consent of the owner who gives, and receipts at the purchase's confidence.

A receipt of another owner's bundle, given during life or inherited at birth, needs that owner's recorded consent.
Source: X-12; INH S14; canon 3; ADR 0065.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from pydantic import ValidationError

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.record_queries import log_moment
from bardo_pipeline.errors import BundleError, ConfigError, QueryError
from bardo_pipeline.events.life.bundle_events import BundleConsented
from bardo_pipeline.events.life.events import EVERY_GOLEM, life_event
from bardo_pipeline.inheritance.bundle_files import Bundle
from bardo_pipeline.storage.intake.json_reader import sentence_of


def consent(
    context: DerivationContext, bundle_hash: str, to_owner: str, price_micros: int, why: str, *, now: datetime
) -> tuple[BundleConsented, bool]:
    """Record that the owner of a bundle sells it to another owner. Return the consent, and False if it was on record.

    Raises QueryError for a bundle of no owner here and an unknown buyer, ConfigError for the seller as buyer and an
    invalid reason or price.
    """
    ownership = context.ownership()
    owner = ownership.bundles.get(bundle_hash)
    if owner is None:
        raise QueryError(f"bundle {bundle_hash} belongs to no owner of this home: every owner may receive it")
    if to_owner == owner:
        raise ConfigError(f"bundle {bundle_hash} belongs to {owner!r} already: name another owner by --to")
    if to_owner not in ownership.owners:
        raise QueryError(f"no owner of this home is called {to_owner!r}: a golem, a key or credit makes an owner known")
    try:
        payload = BundleConsented(
            owner_id=owner, bundle_hash=bundle_hash, to_owner_id=to_owner, price_micros=price_micros, why=why
        )
    except ValidationError as error:
        raise ConfigError(sentence_of(error)) from None
    if (to_owner, bundle_hash) in ownership.given:
        return payload, False
    context.log.record([life_event(EVERY_GOLEM, log_moment(context.whole, "BundleConsented"), payload)], now)
    return payload, True


def is_sale(context: DerivationContext, bundle: Bundle, golem_owner: str) -> bool:
    """Whether a golem of this owner buys the bundle. Raises BundleError without the consent of the bundle's owner."""
    births = context.whole.life_fields("GolemBorn", "owner_id", golems=[bundle.golem_id])
    if golem_owner in births["owner_id"].to_pylist():
        return False
    ownership, pair = context.ownership(), (golem_owner, bundle.bundle_hash)
    seller = ownership.bundles.get(bundle.bundle_hash, ownership.golems.get(bundle.golem_id))
    if seller in (None, golem_owner):
        return False
    if pair not in ownership.given:
        raise BundleError(
            f"bundle {bundle.bundle_hash} belongs to another owner, who did not consent to sell it to {golem_owner!r}: "
            f"that owner records it by `bardo bundle consent {bundle.bundle_hash[:16]} --to {golem_owner} --why ...`"
        )
    return True


def bought_at_birth(context: DerivationContext, golem_ids: Collection[str]) -> frozenset[str]:
    """Return the golems that bought their inheritance: the receipt states it, or a consent precedes the birth.

    A later consent changes nothing, so homes from before consents keep their tables.
    """
    receipts = context.life_fields("KnowledgeReceived", "source", "content_hash", golems=golem_ids).to_pylist()
    bought = {(row["golem_id"], row["content_hash"]) for row in receipts if row["source"] == "purchase"}
    consents = context.life_fields("BundleConsented", "to_owner_id", "bundle_hash").to_pylist()
    sold_at = {(row["to_owner_id"], row["bundle_hash"]): row["observed_at"] for row in consents}
    golems = set()
    for row in context.life("GolemBorn", golem_ids).select(["golem_id", "observed_at", "born"]).to_pylist():
        owner_id, bundle_hash = row["born"]["owner_id"], row["born"]["bundle_hash"]
        at = sold_at.get((owner_id, bundle_hash))
        if (row["golem_id"], bundle_hash) in bought or (at is not None and at < row["observed_at"]):
            golems.add(row["golem_id"])
    return frozenset(golems)
