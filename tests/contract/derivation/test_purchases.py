"""Bundles between owners: a receipt needs the consent of the owner who gives, and is a purchase at 0.3."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pyarrow.compute as pc
import pytest

from bardo_pipeline.curator.state.received_entries import entering_ppm
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.derivation.incremental.record_queries import last_event_time
from bardo_pipeline.derivation.legacy.bundle_sales import consent
from bardo_pipeline.derivation.legacy.bundle_store import load_bundle
from bardo_pipeline.derivation.legacy.death_queries import births_of
from bardo_pipeline.derivation.library.acquisitions import buy_bundle
from bardo_pipeline.derivation.strikes_and_reorgs import strike
from bardo_pipeline.derivation.succession.birth_events import birth_record
from bardo_pipeline.derivation.succession.deliver_bundle import give_bundle, preview_offer
from bardo_pipeline.derivation.versions.rebuild import rebuild
from bardo_pipeline.errors import BundleError, ConfigError, LibraryError, QueryError
from bardo_pipeline.events.life.events import Born, Received, life_event
from bardo_pipeline.events.life.ownership import given_bundles
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.log import event_log
from tests.conftest import NOW, copy_home
from tests.support.homes.two_owners import CORAL, PEARL, Belongings, belongings
from tests.support.processes.bardo_command import bardo

BUYER = "g-buyer"
BASE_PPM = 300_000


@pytest.fixture
def home(two_owners_home: Path, tmp_path: Path) -> Path:
    return copy_home(two_owners_home, tmp_path / "home")


def sell(stores: DerivationContext, bundle: str) -> None:
    """Record the consent of the bundle's owner to sell it to CORAL."""
    consent(stores, bundle, CORAL, 2_000_000, "a fair price", now=NOW)


def birth_with(stores: DerivationContext, own: Belongings, bundle: str) -> tuple[Born, datetime]:
    """A birth of an owner's golem that inherits a bundle, after all recorded events."""
    moment = last_event_time(stores)
    assert moment is not None
    born = births_of(stores, [own.golem])[own.golem][0]
    fields = {"lineage_id": "buyer/0", "predecessor_id": None, "bundle_hash": bundle}
    return born.model_copy(update=fields), moment + timedelta(minutes=1)


def confidence(stores: DerivationContext, golem: str) -> dict[str, int]:
    """Entry -> confidence in ppm of a golem's grimoire; candidates have none."""
    derive_curation(stores)
    rows = stores.projections.replaceable("grimoire").read(only=[golem])
    rows = rows.filter(pc.not_equal(rows["status"], "candidate"))
    return dict(zip(rows["entry_id"].to_pylist(), rows["confidence_ppm"].to_pylist(), strict=True))


@pytest.mark.row("X-12")
def test_a_gift_across_owners_needs_consent_and_is_a_purchase(home: Path) -> None:
    stores, coral, pearl = DerivationContext.open(home), belongings(home, CORAL), belongings(home, PEARL)
    before = stores.log.life().num_rows
    with pytest.raises(BundleError, match=r"did not consent.*`bardo bundle consent"):
        give_bundle(stores, coral.heir, pearl.bundle, now=NOW)
    assert stores.log.life().num_rows == before, "a refused gift leaves no event"
    sell(stores, pearl.bundle)
    offer, _ = give_bundle(stores, coral.heir, pearl.bundle, now=NOW)
    assert offer.received.source == "purchase"
    (arrival,) = stores.arrivals().of_golem(coral.heir)
    assert (arrival.source, arrival.content_hash) == ("purchase", pearl.bundle)
    assert preview_offer(stores, coral.heir, coral.bundle).received.source == "import", "an own bundle is no purchase"
    with pytest.raises(BundleError, match="did not consent"):
        give_bundle(stores, pearl.heir, coral.bundle, now=NOW)


def test_a_bought_entry_enters_at_the_confidence_of_a_purchase(home: Path) -> None:
    bundle = load_bundle(DerivationContext.open(home).home, belongings(home, PEARL).bundle)
    entries, died_at = bundle.entries(), datetime.fromisoformat(bundle.manifest["died_at"])
    at_us = round(died_at.timestamp() * 1_000_000)
    assert set(entering_ppm(entries, at_us, "purchase", Policy()).tolist()) == {BASE_PPM}
    assert set(entering_ppm(entries, at_us, "import", Policy()).tolist()) == {400_000}


@pytest.mark.row("X-12")
def test_a_birth_across_owners_needs_consent_and_inherits_at_the_confidence_of_a_purchase(home: Path) -> None:
    stores, coral, pearl = DerivationContext.open(home), belongings(home, CORAL), belongings(home, PEARL)
    with pytest.raises(BundleError, match="did not consent"):
        birth_record(stores, BUYER, *birth_with(stores, coral, pearl.bundle))
    sell(stores, pearl.bundle)
    birth = birth_record(stores, BUYER, *birth_with(stores, coral, pearl.bundle))
    assert [e.received.source for e in birth.events if e.received is not None] == ["purchase"]
    assert birth.inherited is not None
    assert set(birth.inherited["confidence_ppm"].to_pylist()) == {BASE_PPM}
    stores.log.record(birth.events, NOW)
    assert set(confidence(stores, BUYER).values()) == {BASE_PPM}, "the curator and the runtime agree"
    own = birth_record(stores, "g-own", *birth_with(stores, coral, coral.bundle))
    assert own.inherited is not None
    entries = own.inherited.filter(pc.not_equal(own.inherited["status"], "candidate"))
    assert min(entries["confidence_ppm"].to_pylist()) > BASE_PPM
    assert all(table.equal for table in rebuild(DerivationContext.open(home), now=NOW))


@pytest.mark.full
@pytest.mark.row("X-12")
def test_a_birth_from_before_consents_keeps_its_confidence(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stores, coral, pearl = DerivationContext.open(home), belongings(home, CORAL), belongings(home, PEARL)
    born, at = birth_with(stores, coral, pearl.bundle)
    received = Received(source="succession", from_golem_id=pearl.golem, content_hash=pearl.bundle, entry_count=2)
    with monkeypatch.context() as older:
        older.setattr(event_log, "check_authority", lambda *_, **__: None)
        stores.log.record([life_event(BUYER, at, born), life_event(BUYER, at, received)], NOW)
    before = confidence(stores, BUYER)
    assert min(before.values()) > BASE_PPM
    sell(stores, pearl.bundle)
    assert confidence(DerivationContext.open(home), BUYER) == before
    assert all(table.equal for table in rebuild(DerivationContext.open(home), now=NOW))


def test_a_birth_by_a_runtime_after_the_consent_is_a_purchase_whatever_its_receipt_states(home: Path) -> None:
    stores, coral, pearl = DerivationContext.open(home), belongings(home, CORAL), belongings(home, PEARL)
    sell(stores, pearl.bundle)
    born, at = birth_with(stores, coral, pearl.bundle)
    stores.log.record([life_event(BUYER, at, born)], NOW)
    assert set(confidence(stores, BUYER).values()) == {BASE_PPM}


@pytest.mark.full
def test_a_strike_withdraws_entries_from_the_golem_that_bought_them(home: Path) -> None:
    stores, coral, pearl = DerivationContext.open(home), belongings(home, CORAL), belongings(home, PEARL)
    sell(stores, pearl.bundle)
    stores.log.record(birth_record(stores, BUYER, *birth_with(stores, coral, pearl.bundle)).events, NOW)
    rows = stores.projections.growing("curation").read(golems=[pearl.golem]).to_pylist()
    tick = min(tick for row in rows if row["entry_id"] == pearl.entry for tick in row["cause_ticks"])
    struck = strike(stores, pearl.golem, tick, "poisoned", now=NOW)
    assert BUYER in {event.golem_id for event in struck.heirs}


@pytest.mark.row("X-12")
def test_a_library_buys_a_bundle_that_another_owner_sells(home: Path) -> None:
    stores, pearl = DerivationContext.open(home, owner=CORAL), belongings(home, PEARL)
    with pytest.raises(LibraryError, match="no imported bundle"):
        buy_bundle(stores, pearl.bundle, "it looks good", now=NOW)
    sell(DerivationContext.open(home), pearl.bundle)
    assert buy_bundle(stores, pearl.bundle, "it looks good", now=NOW).owner_id == CORAL


def test_only_the_owner_of_a_bundle_consents_to_sell_it(home: Path) -> None:
    coral, pearl = belongings(home, CORAL), belongings(home, PEARL)
    stores = DerivationContext.open(home, owner=CORAL)
    with pytest.raises(QueryError, match="does not concern owner 'coral'"):
        sell(stores, pearl.bundle)
    with pytest.raises(ConfigError, match="belongs to 'coral' already"):
        sell(stores, coral.bundle)
    with pytest.raises(QueryError, match="no owner of this home is called 'amber'"):
        consent(stores, coral.bundle, "amber", 0, "a gift", now=NOW)
    with pytest.raises(QueryError, match="belongs to no owner of this home"):
        consent(stores, "0" * 64, PEARL, 0, "a gift", now=NOW)
    assert given_bundles(DerivationContext.open(home).log.life()) == frozenset()


@pytest.mark.full
def test_the_command_records_a_consent_once_and_opens_the_bundle_to_the_buyer(home: Path) -> None:
    pearl = belongings(home, PEARL)
    words = ("bundle", "consent", pearl.golem, "--to", CORAL, "--price", "2.5", "--why", "a fair price")
    assert "no bundle matches" in bardo("bundle", "show", pearl.bundle, "--owner", CORAL, home=home, expect=2)
    for _ in range(2):
        printed = bardo(*words, "--owner", PEARL, home=home)
        assert f"owner pearl sells bundle {pearl.bundle[:16]} to coral for $2.50" in printed
    assert given_bundles(DerivationContext.open(home).log.life()) == {(CORAL, pearl.bundle)}
    assert DerivationContext.open(home).life("BundleConsented").num_rows == 1
    assert pearl.golem in bardo("bundle", "show", pearl.bundle, "--owner", CORAL, home=home)
