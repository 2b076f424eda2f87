"""Giving: a bundle is put before a golem that lives. What would become of each entry, and the event that it came.

The event stands behind the newest tick; the entries are let into quarantine when the cycle of the next tick closes.
Source: INH S5.2, S7.6.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.reception import verdicts
from bardo_pipeline.derivation.bundles import load_bundle
from bardo_pipeline.derivation.overriding import Grimoire, grimoire_of
from bardo_pipeline.derivation.repair import withdraw
from bardo_pipeline.derivation.stores import Stores
from bardo_pipeline.errors import QueryError, RegressionError
from bardo_pipeline.events.arrivals import Arrival, Quarantined
from bardo_pipeline.events.life import Received, life_event
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA
from bardo_pipeline.inheritance.chain import Claim, claims_of, unproven

_ATTEMPTS = 20
"""How often a bundle is put before a golem anew because its stream went on meanwhile."""


class ChainOfLog:
    """What this home's records say of the chain: the transactions of their actions."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores

    def known(self, tx_hashes: Collection[str]) -> set[str]:
        """Those of these transactions that some golem's record names."""
        acted = self._stores.log.read_cycles(["actions"])["actions"].combine_chunks()
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


def offered(stores: Stores, golem_id: str, bundle_hash: str) -> Offer:
    """Look at a bundle of this home as a golem would. Raises QueryError for a golem that is unknown or dead.

    A bundle that a replicant of this golem left is its report; any other is an import.
    """
    grimoire, bundle = grimoire_of(stores, golem_id), load_bundle(stores.home, bundle_hash)
    if grimoire.died_at_tick is not None:
        raise QueryError(f"golem {golem_id} died at tick {grimoire.died_at_tick}: give it to one that lives")
    entries, sent = bundle.entries(), replicants_of(stores, golem_id).get(bundle.golem_id)
    source = "import" if sent is None else "replicant"
    claims = claims_of(entries)
    wrong = unproven(claims, ChainOfLog(stores))
    way = Quarantined(tick_seen=grimoire.tick, unproven=wrong)
    if sent is not None:
        way = Quarantined(
            tick_seen=grimoire.tick, unproven=wrong, replicant_id=bundle.golem_id, parent_id=golem_id, hypothesis=sent
        )
    received = Received(
        source="import" if sent is None else "replicant",
        from_golem_id=bundle.golem_id,
        content_hash=bundle_hash,
        entry_count=entries.num_rows,
    )
    at_us = round(grimoire.at.timestamp() * 1_000_000)
    held = grimoire.entries.select(ENTRY_SCHEMA.names)
    judged = verdicts(entries, held, at_us, source, stores.policy, unproven=wrong)
    span = stores.policy.curator.cycle_ticks
    came = (a for a in stores.arrivals().of_golem(golem_id) if a.cycle(span) > grimoire.cycle)
    waits = next((arrival for arrival in came if arrival.content_hash == bundle_hash), None)
    return Offer(grimoire, received, way, entries, judged, claims, waits)


def replicants_of(stores: Stores, golem_id: str) -> dict[str, str]:
    """The replicants that a golem sent out, each with the hypothesis that it was to test."""
    sent = stores.life("ReplicantSent").select(["golem_id", "replicant"]).to_pylist()
    return {e["golem_id"]: e["replicant"]["hypothesis"] for e in sent if e["replicant"]["parent_id"] == golem_id}


def give(stores: Stores, golem_id: str, bundle_hash: str, *, now: datetime) -> tuple[Offer, str]:
    """Put a bundle before a golem: what it looks like to it, and the id of the event, the one on record if it waits.

    now: the moment of recording. Errors as of `offered`.
    """
    for attempt in range(_ATTEMPTS):
        offer = offered(stores, golem_id, bundle_hash)
        if offer.waits is not None:
            return offer, offer.waits.event_id
        event = life_event(golem_id, offer.grimoire.at, offer.received, offer.way)
        try:
            stores.log.record([event], now)
        except RegressionError:
            if attempt + 1 == _ATTEMPTS:
                raise
            continue
        withdraw(stores, now=now)  # what it rests on may be left out since the bundle was made
        return offer, event.event_id
    raise AssertionError("the last attempt raises")
