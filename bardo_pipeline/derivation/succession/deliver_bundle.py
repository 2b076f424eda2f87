"""Giving: a bundle is put before a golem that lives. What would become of each entry, and the event that it came.

The event stands behind the newest tick; the entries are let into quarantine when the cycle of the next tick closes.
Source: INH S5.2, S7.6.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.state.received_entries import verdicts
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.record_overrides import Grimoire, grimoire_of
from bardo_pipeline.derivation.legacy.bundle_store import load_bundle
from bardo_pipeline.derivation.repair.strikes_and_reorgs import withdraw
from bardo_pipeline.errors import QueryError, RegressionError
from bardo_pipeline.events.life.events import LifeEvent, Received, life_event
from bardo_pipeline.events.life.received_knowledge import Arrival, Quarantined
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA
from bardo_pipeline.inheritance.bundle_files import Bundle
from bardo_pipeline.inheritance.chain_claims import Claim, claims_of, unproven

_ATTEMPTS = 20
"""How often a bundle is put before a golem anew because its stream went on meanwhile."""


class ChainOfLog:
    """What this home's records say of the chain: the transactions of their actions."""

    def __init__(self, context: DerivationContext) -> None:
        self._context = context

    def known(self, tx_hashes: Collection[str]) -> set[str]:
        """Those of these transactions that some golem's record names."""
        acted = self._context.log.read_cycles(["actions"])["actions"].combine_chunks()
        named = pc.struct_field(pc.list_flatten(acted), "tx_hash")
        return set(pc.utf8_lower(named.drop_null()).unique().to_pylist()) & set(tx_hashes)


@dataclass(frozen=True)
class Offer:
    """A bundle beside a golem that lives: what would become of each entry if its open cycle closed now.

    verdicts: VERDICT_SCHEMA. claims: what the entries say of the chain. way: as it would be recorded. waits: the same
    bundle waits already.
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
        """How many entries got each verdict."""
        found = self.verdicts["verdict"].value_counts().to_pylist()
        return {one["values"]: one["counts"] for one in found}


def offered(context: DerivationContext, golem_id: str, bundle_hash: str) -> Offer:
    """Look at a bundle of this home as a golem would. Raises QueryError for a golem that is unknown or dead.

    A bundle that a replicant of this golem left is its report; any other is an import.
    """
    grimoire, bundle = grimoire_of(context, golem_id), load_bundle(context.home, bundle_hash)
    if grimoire.died_at_tick is not None:
        raise QueryError(f"golem {golem_id} died at tick {grimoire.died_at_tick}: give it to one that lives")
    sent = replicants_of(context, golem_id).get(bundle.golem_id)
    received, way, claims = _coming(context, bundle, golem_id, sent, grimoire.tick)
    entries, held = bundle.entries(), grimoire.entries.select(ENTRY_SCHEMA.names)
    at_us = round(grimoire.at.timestamp() * 1_000_000)
    judged = verdicts(entries, held, at_us, received.source, context.policy, unproven=way.unproven)
    span = context.policy.curator.cycle_ticks
    came = (a for a in context.arrivals().of_golem(golem_id) if a.cycle(span) > grimoire.cycle)
    waits = next((arrival for arrival in came if arrival.content_hash == bundle_hash), None)
    return Offer(grimoire, received, way, entries, judged, claims, waits)


def _coming(
    context: DerivationContext, bundle: Bundle, golem_id: str, hypothesis: str | None, tick_seen: int
) -> tuple[Received, Quarantined, tuple[Claim, ...]]:
    """How a bundle comes to a golem behind a tick, and what it claims of the chain.

    hypothesis: what a replicant was to find out whose report it is, None for an import.
    """
    entries = bundle.entries()
    claims = claims_of(entries)
    told = {} if hypothesis is None else {
        "replicant_id": bundle.golem_id, "parent_id": golem_id, "hypothesis": hypothesis,
    }  # fmt: skip
    way = Quarantined(tick_seen=tick_seen, unproven=unproven(claims, ChainOfLog(context)), **told)
    source: Literal["import", "replicant"] = "import" if hypothesis is None else "replicant"
    received = Received(
        source=source, from_golem_id=bundle.golem_id, content_hash=bundle.bundle_hash, entry_count=entries.num_rows
    )
    return received, way, claims


def report_of(
    context: DerivationContext, replicant_id: str, bundle_hash: str, *, tick_seen: int, at: datetime
) -> LifeEvent:
    """What a replicant that died left, as it comes to its parent. tick_seen, at: the parent's newest tick."""
    (sent,) = context.life("ReplicantSent", [replicant_id])["replicant"].to_pylist()
    bundle = load_bundle(context.home, bundle_hash)
    received, way, _ = _coming(context, bundle, sent["parent_id"], sent["hypothesis"], tick_seen)
    return life_event(sent["parent_id"], at, received, way)


def replicants_of(context: DerivationContext, golem_id: str) -> dict[str, str]:
    """The replicants that a golem sent out, each with the hypothesis that it was to test."""
    sent = context.life("ReplicantSent").select(["golem_id", "replicant"]).to_pylist()
    return {e["golem_id"]: e["replicant"]["hypothesis"] for e in sent if e["replicant"]["parent_id"] == golem_id}


def give(context: DerivationContext, golem_id: str, bundle_hash: str, *, now: datetime) -> tuple[Offer, str]:
    """Put a bundle before a golem: what it looks like to it, and the id of the event, the one on record if it waits.

    now: the moment of recording. Errors as of `offered`.
    """
    for attempt in range(_ATTEMPTS):
        offer = offered(context, golem_id, bundle_hash)
        if offer.waits is not None:
            return offer, offer.waits.event_id
        event = life_event(golem_id, offer.grimoire.at, offer.received, offer.way)
        try:
            context.log.record([event], now)
        except RegressionError:
            if attempt + 1 == _ATTEMPTS:
                raise
            continue
        withdraw(context, now=now)  # what it rests on may be left out since the bundle was made
        return offer, event.event_id
    raise AssertionError("the last attempt raises")
