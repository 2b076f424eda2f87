"""Gives a bundle to a living golem: previews the verdict on each entry, and records the delivery.

The event follows the newest tick; the entries enter quarantine when the cycle of the next tick closes.
Source: INH S5.2, S7.6.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.clock import micros_of
from bardo_pipeline.curator.state.received_entries import verdicts
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.record_overrides import Grimoire, grimoire_of
from bardo_pipeline.derivation.legacy.bundle_sales import is_sale
from bardo_pipeline.derivation.legacy.bundle_store import load_bundle
from bardo_pipeline.derivation.legacy.death_queries import owners_of
from bardo_pipeline.derivation.strikes_and_reorgs import withdraw
from bardo_pipeline.errors import QueryError, RegressionError
from bardo_pipeline.events.life.events import LifeEvent, Received, life_event
from bardo_pipeline.events.life.received_knowledge import Arrival, Quarantined
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA
from bardo_pipeline.inheritance.bundle_files import Bundle
from bardo_pipeline.inheritance.bundle_inspection import Claim, claims_of, unproven
from bardo_pipeline.inheritance.clade_parcel import is_parcel

_ATTEMPTS = 20
"""Attempts to record a delivery while the golem keeps ticking."""


class ChainOfLog:
    """The chain as known from this home's records: the transactions of their actions."""

    def __init__(self, context: DerivationContext) -> None:
        self._context = context

    def known(self, tx_hashes: Collection[str]) -> set[str]:
        """Return those of these transactions that a record contains."""
        actions = self._context.whole.log.read_cycles(["actions"])["actions"].combine_chunks()
        recorded = pc.struct_field(pc.list_flatten(actions), "tx_hash")
        return set(pc.utf8_lower(recorded.drop_null()).unique().to_pylist()) & set(tx_hashes)


@dataclass(frozen=True)
class Offer:
    """A bundle offered to a living golem, judged as if its open cycle closed now.

    received and way are the content of the event to record; verdicts has VERDICT_SCHEMA; claims are the entries' claims
    on the chain; waits is an earlier delivery of the same bundle whose cycle is open, else None.
    """

    grimoire: Grimoire
    received: Received
    way: Quarantined
    entries: pa.Table
    verdicts: pa.Table
    claims: tuple[Claim, ...]
    waits: Arrival | None

    @property
    def counts(self) -> dict[str, int]:
        """Verdict -> number of entries."""
        return {row["values"]: row["counts"] for row in self.verdicts["verdict"].value_counts().to_pylist()}


def preview_offer(context: DerivationContext, golem_id: str, bundle_hash: str) -> Offer:
    """Judge a bundle of this home for a golem.

    A bundle left by a replicant of this golem is received as its report, another owner's as a purchase, a sibling's
    parcel as one of the clade, any other as an import.

    Raises QueryError for an unknown or dead golem, BundleError for another owner's bundle without consent.
    """
    grimoire, bundle = grimoire_of(context, golem_id), load_bundle(context.home, bundle_hash)
    if grimoire.died_at_tick is not None:
        raise QueryError(f"golem {golem_id} died at tick {grimoire.died_at_tick}: give it to one that lives")
    hypothesis = replicants_of(context, golem_id).get(bundle.golem_id)
    received, way, claims = _delivery(context, bundle, golem_id, hypothesis, grimoire.tick)
    entries, held = bundle.entries(), grimoire.entries.select(ENTRY_SCHEMA.names)
    at_us = micros_of(grimoire.at)
    judgements = verdicts(entries, held, at_us, received.source, context.policy, unproven=way.unproven)
    span = context.policy.curator.cycle_ticks
    arrivals = (a for a in context.arrivals().of_golem(golem_id) if a.cycle(span) > grimoire.cycle)
    waits = next((arrival for arrival in arrivals if arrival.content_hash == bundle_hash), None)
    return Offer(grimoire, received, way, entries, judgements, claims, waits)


def _delivery(
    context: DerivationContext, bundle: Bundle, golem_id: str, hypothesis: str | None, tick_seen: int
) -> tuple[Received, Quarantined, tuple[Claim, ...]]:
    """The content of a delivery event after `tick_seen`, and the bundle's claims on the chain.

    hypothesis is the one a replicant tested, None for an import or a purchase.
    """
    entries = bundle.entries()
    claims = claims_of(entries)
    replicant_fields = {} if hypothesis is None else {
        "replicant_id": bundle.golem_id, "parent_id": golem_id, "hypothesis": hypothesis,
    }  # fmt: skip
    way = Quarantined(tick_seen=tick_seen, unproven=unproven(claims, ChainOfLog(context)), **replicant_fields)
    is_bought = hypothesis is None and is_sale(context, bundle, owners_of(context.whole)[golem_id])
    source: Literal["import", "replicant", "purchase", "clade"] = "clade" if is_parcel(bundle) else "import"
    source = "replicant" if hypothesis is not None else "purchase" if is_bought else source
    received = Received(
        source=source, from_golem_id=bundle.golem_id, content_hash=bundle.bundle_hash, entry_count=entries.num_rows
    )
    return received, way, claims


def replicant_report(
    context: DerivationContext, replicant_id: str, bundle_hash: str, *, tick_seen: int, at: datetime
) -> LifeEvent:
    """Return the event that delivers a dead replicant's bundle to its parent, whose newest tick is `tick_seen`."""
    (sent,) = context.life("ReplicantSent", [replicant_id])["replicant"].to_pylist()
    bundle = load_bundle(context.home, bundle_hash)
    received, way, _ = _delivery(context, bundle, sent["parent_id"], sent["hypothesis"], tick_seen)
    return life_event(sent["parent_id"], at, received, way)


def replicants_of(context: DerivationContext, golem_id: str) -> dict[str, str]:
    """Return replicant -> hypothesis for the replicants that a golem sent."""
    sent = context.life_fields("ReplicantSent", "parent_id", "hypothesis").to_pylist()
    return {e["golem_id"]: e["hypothesis"] for e in sent if e["parent_id"] == golem_id}


class LastTick(NamedTuple):
    """The last tick before the first gap of a golem's stream, 0 without one, and its time or that of the birth."""

    tick: int
    at: datetime


def last_ticks(context: DerivationContext, golem_ids: Sequence[str]) -> dict[str, LastTick]:
    """Return the last tick of each of these golems that lives, read together."""
    heads = {g: context.log.head_of(g).contiguous for g in golem_ids if context.log.death_of(g) is None}
    rows = context.log.read_ticks(["golem_id", "tick", "observed_at"], {g: tick for g, tick in heads.items() if tick})
    read = {(row["golem_id"], row["tick"]): row["observed_at"] for row in rows.to_pylist()}
    return {g: LastTick(tick, read.get((g, tick)) or grimoire_of(context, g).at) for g, tick in heads.items()}


def give_parcels(context: DerivationContext, given: Mapping[str, Sequence[str]], *, now: datetime) -> None:
    """Record the deliveries of parcels that golems have not received, in one commit and without a preview.

    given: golem -> content hashes. A golem that died meanwhile receives nothing.
    """
    bundles = {name: load_bundle(context.home, name) for name in {*chain.from_iterable(given.values())}}
    for attempt in range(_ATTEMPTS):
        events = []
        for golem_id, last in last_ticks(context, list(given)).items():
            for name in given[golem_id]:
                received, way, _ = _delivery(context, bundles[name], golem_id, None, last.tick)
                events.append(life_event(golem_id, last.at, received, way))
        try:
            context.log.record(events, now)
        except RegressionError:
            if attempt + 1 == _ATTEMPTS:
                raise
            continue
        withdraw(context.whole, now=now)  # their sources may have been retracted since the parcels were made
        return


def give_bundle(context: DerivationContext, golem_id: str, bundle_hash: str, *, now: datetime) -> tuple[Offer, str]:
    """Record the delivery of a bundle. Return the offer and the event id, the existing one if the delivery waits.

    Raises QueryError as `preview_offer` does.
    """
    for attempt in range(_ATTEMPTS):
        offer = preview_offer(context, golem_id, bundle_hash)
        if offer.waits is not None:
            return offer, offer.waits.event_id
        event = life_event(golem_id, offer.grimoire.at, offer.received, offer.way)
        try:
            context.log.record([event], now)
        except RegressionError:
            if attempt + 1 == _ATTEMPTS:
                raise
            continue
        withdraw(context.whole, now=now)  # its sources may have been retracted since the bundle was made
        return offer, event.event_id
    raise AssertionError("the last attempt raises")
