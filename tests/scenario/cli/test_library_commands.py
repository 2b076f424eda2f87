"""An owner's library: entries are exported from the living and pulled from the dying, bought, and given to heirs."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.derivation.curation.record_overrides import grimoire_of
from bardo_pipeline.derivation.library.acquisitions import export_entry, order_kit
from bardo_pipeline.derivation.library.derive_library import equipped_structures
from bardo_pipeline.derivation.strikes_and_reorgs import strike, withdraw
from bardo_pipeline.derivation.succession.birth_events import birth_record
from bardo_pipeline.derivation.versions.rebuild import rebuild
from bardo_pipeline.events.life.bundle_events import EntryPulled
from bardo_pipeline.events.life.events import Born, life_event
from tests.conftest import NOW, copy_home
from tests.property.derivation.test_laws import POLICY, stores_at
from tests.support.homes.homes_to_repair import births
from tests.support.homes.owner_events import live_until
from tests.support.processes.bardo_command import bardo

pytestmark = pytest.mark.row("INH-16")

WHY = ("--why", "it paid")


def library(home: Path, *words: str) -> dict[str, Any]:
    return json.loads(bardo("library", "list", *words, "--format", "json", home=home))


def known(stores: DerivationContext, golem: str) -> list[str]:
    """Return a golem's entries, most confident first."""
    rows = grimoire_of(stores, golem).entries
    return rows.filter(pc.equal(rows["status"], "active"))["entry_id"].to_pylist()


def ticks_of(stores: DerivationContext, golem: str, entry: str) -> list[int]:
    """The ticks that an entry of a golem rests on."""
    rows = stores.projections.growing("curation").read(golems=[golem]).to_pylist()
    return sorted({tick for r in rows if r["entry_id"] == entry for tick in r["cause_ticks"]})


@pytest.mark.full
def test_exported_entries_are_given_to_the_next_heir_in_a_kit(half_lived: Path, tmp_path: Path) -> None:
    home = copy_home(half_lived, tmp_path / "home")
    stores = DerivationContext.open(home)
    golem = max(sorted(births(stores)), key=lambda g: len(known(stores, g)))
    stale, sure = known(stores, golem)[:2]
    assert library(home)["entries"] == [], "a living golem deposits no entries by itself"
    assert "golem " + golem + " lives" in bardo("library", "pull", golem, sure, *WHY, home=home, expect=2)
    assert f"entry {sure} is exported into the library of owner-1" in bardo(
        "library", "export", golem, sure[:9], *WHY, home=home
    )
    assert "nothing is recorded" in bardo("library", "export", golem, sure, *WHY, home=home)
    (row,) = library(home)["entries"]
    assert (row["entry_id"], row["channels"], row["golem_ids"]) == (sure, ["export"], [golem])
    assert "acquired by export" in bardo("library", "show", sure[:9], home=home)
    assert "wait for the owner's next golem" in bardo("library", "equip", sure[:9], *WHY, home=home)
    assert "order 1: 1 entries wait" in bardo("library", "list", home=home)
    for words in (("export", golem, stale), ("equip", stale)):
        bardo("library", *words, *WHY, home=home)
    wrong = min(set(ticks_of(stores, golem, stale)) - set(ticks_of(stores, golem, sure)))
    assert strike(DerivationContext.open(home), golem, wrong, "it was wrong", now=NOW).heirs == (), (
        "no golem has the entry yet"
    )

    stores = stores_at(home, POLICY)
    live_until(stores, None, NOW)
    came = [e for e in stores.life("KnowledgeReceived").to_pylist() if e["received"]["from_golem_id"] == "library"]
    orders = {e["bundle_hash"]: e["number"] for e in stores.life("KitOrdered")["kit_ordered"].to_pylist()}
    given, late = sorted(came, key=lambda e: orders[e["received"]["content_hash"]])
    heir = given["golem_id"]
    assert births(stores)[heir]["generation"] == 1
    assert given["quarantined"]["tick_seen"] == 0
    lost = {e["golem_id"]: e for e in stores.life("KnowledgeWithdrawn").to_pylist()}[late["golem_id"]]
    assert (lost["withdrawn"]["entry_ids"], lost["observed_at"]) == ([stale], late["observed_at"]), (
        "the entry must be withdrawn at birth"
    )
    assert library(home)["waiting"] == [], "each order must equip one heir"
    rows = stores.projections.growing("curation").read(golems=[heir]).to_pylist()
    selected_rows = [r for r in rows if r["cause_event"] == given["event_id"]]
    assert selected_rows, "the received entries were not judged"
    assert {r["cycle"] for r in selected_rows} == {1}

    bardo("library", "equip", sure, *WHY, home=home)
    for name, birth in births(stores).items():
        events = birth_record(stores, name, Born.model_validate(birth), NOW).events
        assert all(e.quarantined is None for e in events), "a golem already born receives no kit"


@pytest.mark.full
@pytest.mark.row("X-4")
def test_a_strike_withdraws_entries_received_in_a_kit(half_lived: Path, tmp_path: Path) -> None:
    stores = DerivationContext.open(copy_home(half_lived, tmp_path / "home"))
    derive_curation(stores)
    giver = max(sorted(births(stores)), key=lambda g: len(known(stores, g)))
    entry = known(stores, giver)[0]
    tick = ticks_of(stores, giver, entry)[0]
    export_entry(stores, giver, entry, "it paid", now=NOW)

    def equipped_golem(name: str) -> list[tuple[str, ...]]:
        """Return a founder that receives the ordered kit, and the entries withdrawn from it since."""
        birth = births(stores)[giver] | {"lineage_id": name}
        stores.log.record(birth_record(stores, name, Born.model_validate(birth), NOW).events, NOW)
        withdraw(stores, now=NOW)
        rows = stores.life("KnowledgeWithdrawn").to_pylist()
        return [tuple(e["withdrawn"]["entry_ids"]) for e in rows if e["golem_id"] == name]

    order_kit(stores, [entry], None, "it paid", now=NOW)
    assert equipped_golem("g-before") == []
    assert equipped_structures(stores, ["g-before"]).num_rows == 1
    order_kit(stores, [entry], None, "another", now=NOW)

    (lost,) = strike(stores, giver, tick, "it was wrong", now=NOW).heirs
    assert lost.withdrawn is not None
    assert (lost.golem_id, lost.withdrawn.entry_ids) == ("g-before", (entry,))
    assert (lost.withdrawn.from_golem_id, lost.withdrawn.tick) == (giver, tick), (
        "the withdrawal must name the golem and tick of the record"
    )
    assert withdraw(stores, now=NOW) == [], "an entry was withdrawn twice"
    assert equipped_structures(stores, ["g-before"]).num_rows == 0, "the withdrawn entry is still equipped"
    assert equipped_golem("g-later") == [(entry,)], "a kit ordered before the strike and received after it"

    derive_curation(stores)
    other = next(e for e in known(stores, giver) if e != entry)
    export_entry(stores, giver, other, "it held", now=NOW)
    order_kit(stores, [other], None, "made without it", now=NOW)
    assert equipped_golem("g-after") == [], "a kit ordered after the strike loses no entry"
    assert all(table.equal for table in rebuild(stores, now=NOW))


@pytest.mark.full
def test_entries_of_a_dying_golem_can_be_pulled_for_25_seconds(brief_home: Path, tmp_path: Path) -> None:
    home = copy_home(brief_home, tmp_path / "home")
    stores = DerivationContext.open(home)
    died = {e["golem_id"]: e["observed_at"] for e in stores.life("DeathDeclared").to_pylist()}
    owner_of = {g: b["owner_id"] for g, b in births(stores).items()}
    held = {g: known(stores, g) for g in sorted(died)}
    golem = max(held, key=lambda g: len(held[g]))
    entry, owner = held[golem][-1], owner_of[golem]
    late = (died[golem] + timedelta(seconds=25.5)).isoformat()
    refused = bardo("library", "pull", golem, entry, "--at", late, *WHY, home=home, expect=2)
    assert "could be pulled from until" in refused
    assert "could be pulled from until" in bardo("library", "pull", golem, entry, *WHY, home=home, expect=2)
    assert "lives" not in refused
    at = (died[golem] + timedelta(seconds=25)).isoformat()
    assert "is pulled" in bardo("library", "pull", golem, entry, "--at", at, *WHY, home=home)
    assert "nothing is recorded" in bardo("library", "pull", golem, entry, "--at", at, *WHY, home=home)
    shelf = library(home, "--owner", owner)
    (row,) = (r for r in shelf["entries"] if entry in r["entry_ids"])
    assert "pull" in row["channels"]
    assert "died at tick" in bardo("library", "export", golem, entry, *WHY, home=home, expect=2)
    assert [b["golem_id"] for b in shelf["playbooks"]] == sorted(g for g in died if owner_of[g] == owner)
    assert "PLAYBOOK of " + golem in bardo("library", "show", golem, "--owner", owner, home=home)
    others = {o for o in owner_of.values() if o != owner}
    for other in others:
        assert not {e for r in library(home, "--owner", other)["entries"] for e in r["entry_ids"]} & {entry}
        assert "no entry" in bardo("library", "show", entry, "--owner", other, home=home, expect=2)
    if others:
        assert "give --owner" in bardo("library", "list", home=home, expect=2)
    assert "no owner of this home is called 'nobody'" in bardo(
        "library", "list", "--owner", "nobody", home=home, expect=2
    )
    stale = life_event(golem, died[golem] + timedelta(seconds=60), EntryPulled(entry_id=entry, why="too late"))
    before = library(home, "--owner", owner)["entries"]
    DerivationContext.open(home).log.record([stale], NOW)
    assert library(home, "--owner", owner)["entries"] == before, "a late event deposited an entry"


def test_entries_of_a_bought_bundle_start_at_30_percent_confidence(
    brief_home: Path, half_lived: Path, tmp_path: Path
) -> None:
    home, file = copy_home(half_lived, tmp_path / "buyer"), tmp_path / "one.tar.gz"
    seller = json.loads(bardo("bundle", "show", "--format", "json", home=brief_home))[0]["golem"]
    bardo("bundle", "export", seller, str(file), home=brief_home)
    assert "no imported bundle" in bardo("library", "buy", "ab", *WHY, home=home, expect=2)
    bardo("bundle", "import", str(file), "--unsigned", home=home)
    assert "nothing is a default yet" in bardo("library", "equip", *WHY, home=home, expect=2)
    (bundle,) = DerivationContext.open(home).life("BundleImported")["imported"].to_pylist()
    assert "is bought" in bardo("library", "buy", bundle["bundle_hash"][:9], *WHY, home=home)
    assert "nothing is recorded" in bardo("library", "buy", bundle["bundle_hash"][:9], *WHY, home=home)
    rows = library(home, "--channel", "purchase")["entries"]
    assert len(rows) == bundle["entry_count"] > 0
    for row in rows:
        assert (row["deposited_ppm"], row["provenance"]) == (300_000, "marketplace_purchase")
        assert row["golem_ids"] == [seller]
