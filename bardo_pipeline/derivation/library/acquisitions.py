"""Records what an owner pulls, exports and buys into the library, and the kits ordered from it, as events.

Source: INH S14.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.record_overrides import Grimoire, find_entry, grimoire_of
from bardo_pipeline.derivation.incremental.record_queries import curated_through, log_moment
from bardo_pipeline.derivation.incremental.retraction_tracking import handled_retractions
from bardo_pipeline.derivation.legacy.bundle_sales import is_sale
from bardo_pipeline.derivation.legacy.bundle_store import load_bundle, write_bundle
from bardo_pipeline.derivation.legacy.death_queries import owners_of
from bardo_pipeline.derivation.library.library_queries import (
    find_library_row,
    kits_of,
    library_of,
    refresh_library,
    resolve_owner,
)
from bardo_pipeline.errors import LibraryError, QueryError
from bardo_pipeline.events.life.bundle_events import BundlePurchased, EntryExported, EntryPulled, KitOrdered
from bardo_pipeline.events.life.events import EVERY_GOLEM, life_event
from bardo_pipeline.events.record.model import Part
from bardo_pipeline.grimoire.confidence import PPM, ppm
from bardo_pipeline.inheritance.bundle_files import root_listing
from bardo_pipeline.inheritance.library.kits import pack_kit
from bardo_pipeline.inheritance.library.library_entries import LIBRARY_SCHEMA
from bardo_pipeline.storage.intake.json_reader import sentence_of


@dataclass(frozen=True)
class Acquisition:
    """A recorded acquisition; event_id is None if it was on record. `what` is an entry id or a bundle hash."""

    event_id: str | None
    owner_id: str
    what: str


def pull_entry(
    context: DerivationContext, golem_id: str, entry: str, why: str, *, at: datetime, now: datetime
) -> Acquisition:
    """Record that the owner takes an entry of a recently dead golem, at any confidence.

    Raises LibraryError for a living golem and if `at` (event time) is outside the grace period after the death,
    QueryError for an unknown entry.
    """
    grimoire = grimoire_of(context, golem_id)
    if grimoire.died_at_tick is None:
        raise LibraryError(f"golem {golem_id} lives: `bardo library export` takes entries of living golems")
    died_at = min(context.life("DeathDeclared", [golem_id])["observed_at"].to_pylist())
    pull_end = died_at + timedelta(seconds=context.policy.library.pull_seconds)
    if not died_at <= at <= pull_end:
        raise LibraryError(
            f"golem {golem_id} left its testament at {died_at:%Y-%m-%d %H:%M:%S} UTC and could be pulled from until "
            f"{pull_end:%H:%M:%S}, not at {at:%Y-%m-%d %H:%M:%S}: `bardo library list` shows its automatic deposits"
        )
    row = _active_entry(grimoire, entry)
    if row["entry_id"] in context.life_fields("EntryPulled", "entry_id", golems=[golem_id])["entry_id"].to_pylist():
        return Acquisition(None, owners_of(context)[golem_id], row["entry_id"])
    event = life_event(golem_id, at, _payload(EntryPulled, entry_id=row["entry_id"], why=why))
    context.log.record([event], now)
    return Acquisition(event.event_id, owners_of(context)[golem_id], row["entry_id"])


def export_entry(context: DerivationContext, golem_id: str, entry: str, why: str, *, now: datetime) -> Acquisition:
    """Record that the owner takes an entry of a living golem as of its last closed cycle.

    Raises LibraryError for a dead golem, an entry below the export confidence and an entry from a dream, QueryError for
    an unknown entry.
    """
    grimoire = grimoire_of(context, golem_id)
    if grimoire.died_at_tick is not None:
        raise LibraryError(f"golem {golem_id} died at tick {grimoire.died_at_tick}: `bardo library pull` takes from it")
    row, confidence_min = _active_entry(grimoire, entry), context.policy.library.export_confidence
    if row["source"] == "dream":
        raise LibraryError(f"entry {row['entry_id']} comes from a dream: it stays with golem {golem_id}")
    if row["confidence_now_ppm"] < ppm(confidence_min):
        raise LibraryError(
            f"entry {row['entry_id']} of golem {golem_id} has confidence {row['confidence_now_ppm'] / PPM:.0%}, and an "
            f"export needs {confidence_min:.0%}: wait until its outcomes confirm it"
        )
    version = (row["entry_id"], grimoire.cycle)
    exports = context.life_fields("EntryExported", "entry_id", "cycle_seen", golems=[golem_id]).to_pylist()
    if any((e["entry_id"], e["cycle_seen"]) == version for e in exports):
        return Acquisition(None, owners_of(context)[golem_id], row["entry_id"])
    payload = _payload(
        EntryExported, entry_id=row["entry_id"], tick_seen=grimoire.tick, cycle_seen=grimoire.cycle, why=why
    )
    event = life_event(golem_id, grimoire.at, payload)
    context.log.record([event], now)
    return Acquisition(event.event_id, owners_of(context)[golem_id], row["entry_id"])


def buy_bundle(context: DerivationContext, bundle: str, why: str, *, now: datetime) -> Acquisition:
    """Record the purchase of an imported or sold bundle, given by its hash or a prefix.

    Raises LibraryError for any other bundle and one left by a golem of the same owner, BundleError for another owner's
    bundle without consent.
    """
    owner_id, ownership = resolve_owner(context), context.ownership()
    imported = context.whole.life_fields("BundleImported", "bundle_hash")["bundle_hash"].to_pylist()
    offered = {*imported, *(name for buyer, name in ownership.given if buyer == owner_id)}
    hits = sorted(h for h in offered if bundle and h.startswith(bundle) and ownership.sees_bundle(owner_id, h))
    if len(hits) != 1:
        problem = f"{len(hits)} imported bundles begin with {bundle!r}" if hits else f"no imported bundle is {bundle!r}"
        raise LibraryError(f"{problem}: `bardo bundle import` takes one in, `bardo bundle show` lists all")
    content = load_bundle(context.home, hits[0])
    seller = content.golem_id
    if owners_of(context).get(seller) == owner_id:
        raise LibraryError(f"golem {seller} belonged to {owner_id}, whose library receives its legacy automatically")
    is_sale(context, content, owner_id)
    purchases = context.life_fields("BundlePurchased", "owner_id", "bundle_hash").to_pylist()
    if any((e["owner_id"], e["bundle_hash"]) == (owner_id, hits[0]) for e in purchases):
        return Acquisition(None, owner_id, hits[0])
    payload = _payload(
        BundlePurchased, owner_id=owner_id, bundle_hash=hits[0], from_golem_id=seller,
        entry_count=content.entries().num_rows, why=why,
    )  # fmt: skip
    event = life_event(EVERY_GOLEM, log_moment(context, "BundlePurchased"), payload)
    context.log.record([event], now)
    return Acquisition(event.event_id, owner_id, hits[0])


@dataclass(frozen=True)
class KitOrder:
    """An ordered kit with its entries; the owner's next golem receives it."""

    event_id: str
    owner_id: str
    number: int
    bundle_hash: str
    entries: tuple[dict[str, Any], ...]


def order_kit(
    context: DerivationContext, entries: Sequence[str], kit: str | None, why: str, *, now: datetime
) -> KitOrder:
    """Order library entries for the owner's next golem, together with the defaults of their archetypes.

    Entries and the seed kit are given by ids or prefixes; without either only the defaults are ordered. Raises
    LibraryError for an empty order and an unpublished kit, QueryError for unknown ids.
    """
    owner_id = resolve_owner(context)
    refresh_library(context)
    rows = library_of(context, owner_id)
    entry_ids = {find_library_row(rows, owner_id, entry)["entry_id"] for entry in entries}
    if kit is not None:
        entry_ids |= set(_published(context, owner_id, kit))
    requested = rows.filter(pc.is_in(rows["entry_id"], value_set=pa.array(sorted(entry_ids), pa.string())))
    archetypes = set(requested["archetype"].to_pylist()) if entry_ids else set(rows["archetype"].to_pylist())
    is_default = pc.and_(
        rows["is_default"], pc.is_in(rows["archetype"], value_set=pa.array(sorted(archetypes), pa.string()))
    )
    chosen = rows.filter(
        pc.or_(is_default, pc.is_in(rows["entry_id"], value_set=requested["entry_id"].combine_chunks()))
    )
    if not chosen.num_rows:
        raise LibraryError(f"library of {owner_id}: nothing is a default yet; name entries, or a kit by --kit")
    number = 1 + context.life_fields("KitOrdered", "owner_id")["owner_id"].to_pylist().count(owner_id)
    at = log_moment(context, "KitOrdered")
    bundle = pack_kit(
        chosen.select(LIBRARY_SCHEMA.names), owner_id=owner_id, number=number, at=at, roots=_roots(context, chosen),
        derivation_id=context.derivation_id, policy=context.policy,
    )  # fmt: skip
    write_bundle(context.home.bundles, bundle)
    payload = _payload(
        KitOrdered, owner_id=owner_id, number=number, bundle_hash=bundle.bundle_hash, entry_count=chosen.num_rows,
        why=why,
    )  # fmt: skip
    event = life_event(EVERY_GOLEM, at, payload)
    context.log.record([event], now)
    return KitOrder(event.event_id, owner_id, number, bundle.bundle_hash, tuple(chosen.to_pylist()))


def _roots(context: DerivationContext, rows: pa.Table) -> list[dict[str, Any]]:
    """The golems whose lives these library rows are based on, with the last curated tick, by golem."""
    entries: dict[str, list[str]] = defaultdict(list)
    for entry_id, golem_ids in zip(rows["entry_id"].to_pylist(), rows["golem_ids"].to_pylist(), strict=True):
        for golem_id in golem_ids:
            entries[golem_id].append(entry_id)
    retractions, span = handled_retractions(context, ["curation"]), context.policy.curator.cycle_ticks
    return [
        root_listing(g, ids, (curated_through(context, g) or 0) * span, retractions)
        for g, ids in sorted(entries.items())
    ]


def _published(context: DerivationContext, owner_id: str, kit: str) -> list[str]:
    hits = [k for k in kits_of(context, owner_id) if kit and k["kit_id"].startswith(kit)]
    if len(hits) != 1:
        raise QueryError(f"library of {owner_id}: {len(hits)} kits begin with {kit!r}: `bardo library list` shows all")
    if not hits[0]["is_published"]:
        validators_min = context.policy.library.kit_validators
        raise LibraryError(
            f"kit {hits[0]['kit_id']} is proposed: {validators_min} golems must bear out an entry of it first"
        )
    return list(hits[0]["entry_ids"])


def _active_entry(grimoire: Grimoire, entry: str) -> dict[str, Any]:
    row = find_entry(grimoire, entry)
    if row["status"] != "active":
        raise LibraryError(
            f"golem {grimoire.golem_id}: entry {row['entry_id']} is {row['status']} at the end of cycle "
            f"{grimoire.cycle}, not active"
        )
    return row


def _payload(kind: type[Part], **fields: Any) -> Part:
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise LibraryError(sentence_of(error)) from None
