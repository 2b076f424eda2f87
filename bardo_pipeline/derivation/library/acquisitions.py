"""Acquiring: what an owner pulls, exports and buys into the library, and orders from it, each as an event.

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
from bardo_pipeline.derivation.curation.record_overrides import Grimoire, find, grimoire_of
from bardo_pipeline.derivation.death.death_queries import owners_of
from bardo_pipeline.derivation.incremental.record_queries import curated_through
from bardo_pipeline.derivation.incremental.retraction_tracking import handled_retractions
from bardo_pipeline.derivation.legacy.bundle_store import load_bundle, write_bundle
from bardo_pipeline.derivation.library.library_queries import found, kits_of, library_of, owner_named, refreshed
from bardo_pipeline.derivation.versions.adoption import log_moment
from bardo_pipeline.errors import LibraryError, QueryError
from bardo_pipeline.events.life.events import EVERY_GOLEM, life_event
from bardo_pipeline.events.life.library_events import BundlePurchased, EntryExported, EntryPulled, KitOrdered
from bardo_pipeline.events.record.model import Part
from bardo_pipeline.grimoire.confidence import PPM, ppm
from bardo_pipeline.inheritance.bundle_provenance import root_said
from bardo_pipeline.inheritance.library.kits import pack_kit
from bardo_pipeline.inheritance.library.library_entries import LIBRARY_SCHEMA
from bardo_pipeline.storage.intake.json_reader import sentence_of


@dataclass(frozen=True)
class Acquired:
    """What became of an owner's word: the event, None where it was said before, and what it is about."""

    event_id: str | None
    owner_id: str
    what: str


def pull(context: DerivationContext, golem_id: str, entry: str, why: str, *, at: datetime, now: datetime) -> Acquired:
    """Take an entry of a golem that has just died, whatever its confidence. at: event time; now: of recording.

    Raises LibraryError for a golem that lives and for a moment that is not within the grace after its testament,
    QueryError for an entry that it did not know.
    """
    grimoire = grimoire_of(context, golem_id)
    if grimoire.died_at_tick is None:
        raise LibraryError(f"golem {golem_id} lives: `bardo library export` takes what it is sure enough of")
    deaths = context.life("DeathDeclared")
    died = min(deaths.filter(pc.equal(deaths["golem_id"], golem_id))["observed_at"].to_pylist())
    last = died + timedelta(seconds=context.policy.library.pull_seconds)
    if not died <= at <= last:
        raise LibraryError(
            f"golem {golem_id} left its testament at {died:%Y-%m-%d %H:%M:%S} UTC and could be pulled from until "
            f"{last:%H:%M:%S}, not at {at:%Y-%m-%d %H:%M:%S}: what came by itself is in `bardo library list`"
        )
    row = _known(grimoire, entry)
    if any(e["pulled"]["entry_id"] == row["entry_id"] for e in _said(context, "EntryPulled", golem_id)):
        return Acquired(None, owners_of(context)[golem_id], row["entry_id"])
    event = life_event(golem_id, at, _payload(EntryPulled, entry_id=row["entry_id"], why=why))
    context.log.record([event], now)
    return Acquired(event.event_id, owners_of(context)[golem_id], row["entry_id"])


def export(context: DerivationContext, golem_id: str, entry: str, why: str, *, now: datetime) -> Acquired:
    """Take an entry of a golem that lives, as it stands at its last closed cycle. now: the moment of recording.

    Raises LibraryError for a golem that is dead, an entry that is trusted too little, and what a dream taught, which
    stays with the one who dreamt; QueryError for an entry that it does not know.
    """
    grimoire = grimoire_of(context, golem_id)
    if grimoire.died_at_tick is not None:
        raise LibraryError(f"golem {golem_id} died at tick {grimoire.died_at_tick}: `bardo library pull` takes from it")
    row, least = _known(grimoire, entry), context.policy.library.export_confidence
    if row["source"] == "dream":
        raise LibraryError(f"entry {row['entry_id']} is what a dream taught: it stays with golem {golem_id}")
    if row["confidence_now_ppm"] < ppm(least):
        raise LibraryError(
            f"entry {row['entry_id']} of golem {golem_id} is trusted {row['confidence_now_ppm'] / PPM:.0%}, and what "
            f"is exported needs {least:.0%}: wait until its outcomes bear it out"
        )
    held = (row["entry_id"], grimoire.cycle)
    said = _said(context, "EntryExported", golem_id)
    if any((e["exported"]["entry_id"], e["exported"]["cycle_seen"]) == held for e in said):
        return Acquired(None, owners_of(context)[golem_id], row["entry_id"])
    payload = _payload(
        EntryExported, entry_id=row["entry_id"], tick_seen=grimoire.tick, cycle_seen=grimoire.cycle, why=why
    )
    event = life_event(golem_id, grimoire.at, payload)
    context.log.record([event], now)
    return Acquired(event.event_id, owners_of(context)[golem_id], row["entry_id"])


def buy(context: DerivationContext, bundle: str, owner: str | None, why: str, *, now: datetime) -> Acquired:
    """Take what is in a bundle that was imported as bought. bundle: its hash, or the beginning. now: of recording.

    Raises LibraryError for a bundle that was not imported, or that a golem of the same owner left.
    """
    owner_id = owner_named(context, owner)
    imported = {e["bundle_hash"]: e for e in context.life("BundleImported")["imported"].to_pylist()}
    hits = sorted(h for h in imported if bundle and h.startswith(bundle))
    if len(hits) != 1:
        said = f"{len(hits)} imported bundles begin with {bundle!r}" if hits else f"no imported bundle is {bundle!r}"
        raise LibraryError(f"{said}: `bardo bundle import` takes one in, `bardo bundle show` lists all")
    content, seller = load_bundle(context.home, hits[0]), imported[hits[0]]["from_golem_id"]
    if owners_of(context).get(seller) == owner_id:
        raise LibraryError(f"golem {seller} was of {owner_id}, whose library has by itself what it left")
    if any((e["purchased"]["owner_id"], e["purchased"]["bundle_hash"]) == (owner_id, hits[0])
           for e in _said(context, "BundlePurchased", EVERY_GOLEM)):  # fmt: skip
        return Acquired(None, owner_id, hits[0])
    payload = _payload(
        BundlePurchased, owner_id=owner_id, bundle_hash=hits[0], from_golem_id=seller,
        entry_count=content.entries().num_rows, why=why,
    )  # fmt: skip
    event = life_event(EVERY_GOLEM, log_moment(context, "BundlePurchased"), payload)
    context.log.record([event], now)
    return Acquired(event.event_id, owner_id, hits[0])


@dataclass(frozen=True)
class Ordered:
    """A kit that waits for the next golem: the order's event and number, the kit's hash, and what is in it."""

    event_id: str
    owner_id: str
    number: int
    bundle_hash: str
    entries: tuple[dict[str, Any], ...]


def equip(
    context: DerivationContext, entries: Sequence[str], kit: str | None, owner: str | None, why: str, *, now: datetime
) -> Ordered:
    """Order library entries for the owner's next golem, with the defaults of their archetypes. now: of recording.

    entries: ids, or beginnings of them. kit: a seed kit's id, or the beginning. Without either, the defaults alone.
    Raises LibraryError where that is nothing, or a kit that is not published; QueryError for what is not there.
    """
    owner_id = owner_named(context, owner)
    refreshed(context)
    rows = library_of(context, owner_id)
    wanted = {found(rows, owner_id, entry)["entry_id"] for entry in entries}
    if kit is not None:
        wanted |= set(_published(context, owner_id, kit))
    named = rows.filter(pc.is_in(rows["entry_id"], value_set=pa.array(sorted(wanted), pa.string())))
    about = set(named["archetype"].to_pylist()) if wanted else set(rows["archetype"].to_pylist())
    default = pc.and_(rows["is_default"], pc.is_in(rows["archetype"], value_set=pa.array(sorted(about), pa.string())))
    chosen = rows.filter(pc.or_(default, pc.is_in(rows["entry_id"], value_set=named["entry_id"].combine_chunks())))
    if not chosen.num_rows:
        raise LibraryError(f"library of {owner_id}: nothing is a default yet; name entries, or a kit by --kit")
    number = 1 + sum(e["kit_ordered"]["owner_id"] == owner_id for e in _said(context, "KitOrdered", EVERY_GOLEM))
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
    return Ordered(event.event_id, owner_id, number, bundle.bundle_hash, tuple(chosen.to_pylist()))


def _roots(context: DerivationContext, rows: pa.Table) -> list[dict[str, Any]]:
    """On whose lives these rows of a library rest, as far as they are curated, by golem."""
    entries: dict[str, list[str]] = defaultdict(list)
    for entry_id, golem_ids in zip(rows["entry_id"].to_pylist(), rows["golem_ids"].to_pylist(), strict=True):
        for golem_id in golem_ids:
            entries[golem_id].append(entry_id)
    left, span = handled_retractions(context, ["curation"]), context.policy.curator.cycle_ticks
    return [root_said(g, ids, (curated_through(context, g) or 0) * span, left) for g, ids in sorted(entries.items())]


def _published(context: DerivationContext, owner_id: str, kit: str) -> list[str]:
    hits = [k for k in kits_of(context, owner_id) if kit and k["kit_id"].startswith(kit)]
    if len(hits) != 1:
        raise QueryError(f"library of {owner_id}: {len(hits)} kits begin with {kit!r}: `bardo library list` shows all")
    if not hits[0]["is_published"]:
        least = context.policy.library.kit_validators
        raise LibraryError(f"kit {hits[0]['kit_id']} is proposed: {least} golems must bear out an entry of it first")
    return list(hits[0]["entry_ids"])


def _known(grimoire: Grimoire, entry: str) -> dict[str, Any]:
    row = find(grimoire, entry)
    if row["status"] != "active":
        raise LibraryError(
            f"golem {grimoire.golem_id} does not know entry {row['entry_id']} at the end of cycle {grimoire.cycle}: it "
            f"is {row['status']}"
        )
    return row


def _said(context: DerivationContext, kind: str, golem_id: str) -> list[dict[str, Any]]:
    events = context.life(kind)
    return events.filter(pc.equal(events["golem_id"], golem_id)).to_pylist()


def _payload(kind: type[Part], **said: Any) -> Part:
    try:
        return kind.model_validate(said)
    except ValidationError as error:
        raise LibraryError(sentence_of(error)) from None
