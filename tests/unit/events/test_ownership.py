"""Owners of golems and bundles, and the events that an owner may see and record."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from bardo_pipeline.events.life.bundle_events import BundleConsented, BundleImported, KitOrdered
from bardo_pipeline.events.life.events import EVERY_GOLEM, Published, Struck, life_event
from bardo_pipeline.events.life.life_schema import LIFE_SCHEMA
from bardo_pipeline.events.life.ownership import Ownership, given_bundles, is_of_owner, visible_events
from bardo_pipeline.events.life.succession_events import Credited
from bardo_pipeline.events.record.arrow_schema import to_table
from bardo_pipeline.heartbeat.fleet import Founding, born
from bardo_pipeline.policy import Policy

AT = datetime(2026, 1, 1, tzinfo=UTC)


def credit(owner: str) -> Credited:
    return Credited(owner_id=owner, amount_micros=1, number=1, why="known")


def imported(bundle: str, signer: str | None) -> BundleImported:
    return BundleImported(bundle_hash=bundle, from_golem_id="g-far", owner_id=signer, key_id=None, entry_count=1)


KIT = KitOrdered(owner_id="ann", number=1, bundle_hash="kit", entry_count=1, why="for the next one")
SALE = BundleConsented(owner_id="ann", bundle_hash="kit", to_owner_id="bob", price_micros=5, why="a fair price")
EVENTS = [
    life_event(EVERY_GOLEM, AT, credit("ann")),
    life_event(EVERY_GOLEM, AT, credit("bob")),
    life_event(EVERY_GOLEM, AT, KIT),
    life_event("g-far", AT, imported("signed", "bob")),
    life_event("g-far", AT, imported("unsigned", None)),
    life_event("g-far", AT, imported("foreign", "cid")),
    life_event("g-1", AT, Published(bundle_hash="unborn", entry_count=1, derivation_id="d")),
]


def table(*more: BundleConsented) -> pa.Table:
    return to_table([*EVENTS, *(life_event(EVERY_GOLEM, AT, sale) for sale in more)], LIFE_SCHEMA)


@pytest.mark.row("X-12")
def test_an_owner_sees_its_own_bundles_ownerless_ones_and_those_that_it_bought() -> None:
    before, after = Ownership.of(table()), Ownership.of(table(SALE))
    assert before.owners == {"ann", "bob"}
    seen = {owner: {b for b in before.bundles if before.sees_bundle(owner, b)} for owner in before.owners}
    assert seen["ann"] == {"kit", "unsigned", "foreign"}
    assert seen["bob"] == {"signed", "unsigned", "foreign"}
    assert after.sees_bundle("bob", "kit")
    assert not after.sees_bundle("bob", "no such bundle")
    assert (given_bundles(table()), given_bundles(table(SALE))) == (frozenset(), {("bob", "kit")})


@pytest.mark.row("X-12")
def test_a_local_birth_takes_no_bundle_from_the_owner_who_signed_it() -> None:
    _, birth = born(
        lineage_id="far", generation=0, owner_id="ann", founding=Founding(), market="m", market_hash="-",
        derivation_id="d", policy=Policy(),
    )  # fmt: skip
    ownership = Ownership.of(to_table([*EVENTS, life_event("g-far", AT, birth)], LIFE_SCHEMA))
    assert ownership.bundles["signed"] == "bob"
    assert not ownership.sees_bundle("ann", "signed")


def test_both_sides_of_a_sale_see_it_and_no_third_owner_does() -> None:
    no_golems = pa.array([], pa.string())
    for owner, kinds in {
        "ann": ["CreditCommitted", "KitOrdered", "BundleConsented"],
        "bob": ["CreditCommitted", "BundleConsented"],
        "cid": [],
    }.items():
        assert visible_events(table(SALE), owner, no_golems)["kind"].to_pylist() == kinds


def test_an_owner_records_events_about_itself_and_its_golems_only() -> None:
    strike = life_event("g-1", AT, Struck(tick=1, why="poisoned"))
    assert is_of_owner(strike, "ann", frozenset({"g-1"}))
    assert not is_of_owner(strike, "ann", frozenset())
    sale = life_event(EVERY_GOLEM, AT, SALE)
    assert is_of_owner(sale, "ann", frozenset())
    assert not is_of_owner(sale, "bob", frozenset())
