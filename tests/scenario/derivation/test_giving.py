"""Knowledge from other golems: its surprise for a golem, and its fate in that golem's life."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.derivation.legacy.bundle_archives import import_bundle, read_bundle_files
from bardo_pipeline.derivation.legacy.bundle_store import write_bundle
from bardo_pipeline.derivation.strikes_and_reorgs import strike, withdraw
from bardo_pipeline.derivation.succession import deliver_bundle
from bardo_pipeline.derivation.succession.birth_events import birth_record
from bardo_pipeline.derivation.versions.rebuild import rebuild
from bardo_pipeline.events.life.events import Born, life_event
from bardo_pipeline.events.life.received_knowledge import Replicant
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA
from tests.conftest import NOW, copy_home
from tests.support.homes.owner_events import live_until
from tests.support.knowledge.handmade_bundles import bundle_of
from tests.support.knowledge.handmade_grimoires import DIED, entry, pattern
from tests.support.processes.bardo_command import bardo


@pytest.mark.full
@pytest.mark.row("INH-10")
def test_bundle_rank_orders_entries_by_surprise_for_a_golem(asked_home: Path) -> None:
    bundles = orjson.loads(bardo("bundle", "show", "--format", "json", home=asked_home))
    heir = next(row for row in bundles if row["generation"] == 1)
    own = orjson.loads(
        bardo("bundle", "rank", heir["golem"], "--for", heir["golem"], "--format", "json", home=asked_home)
    )
    assert {row["relation"] for row in own} == {"same"}, "a golem must rank its own entries as known"
    other = next(row for row in bundles if row["generation"] == 0)
    ranked = orjson.loads(
        bardo("bundle", "rank", heir["golem"], "--for", other["golem"], "--format", "json", home=asked_home)
    )
    order = [("opposed", "unknown", "same").index(row["relation"]) for row in ranked]
    assert order == sorted(order)
    assert [row["priority"] for row in ranked] == list(range(1, heir["entries"] + 1))
    assert "no golem of this name" in bardo("bundle", "rank", heir["golem"], "--for", "g-x", home=asked_home, expect=2)


@pytest.mark.full
@pytest.mark.row("INH-11", "INH-13")
def test_a_given_entry_is_quarantined_as_a_candidate(half_lived: Path, tmp_path: Path) -> None:
    home = copy_home(half_lived, tmp_path / "home")
    stores = DerivationContext.open(home)
    derive_curation(stores)
    held = stores.projections.replaceable("grimoire").read().to_pylist()
    level = next(row for row in held if row["source"] == "baseline" and row["status"] == "active")
    golem = level["golem_id"]
    market = {name: level[name] for name in ("chain", "protocol", "pair")}
    about = Structure("pattern", **market, tool="uniswap_v3_rebalance", action_type="rebalance", regime="volatile",
                      anomaly_band="calm", gas_band="cheap")  # fmt: skip
    claims = (entry("g-far", about), entry("g-far", about._replace(chain="elsewhere")),
              entry("g-far", Structure("baseline", *market.values(), metric=level["metric"]),
                    **{name: level[name] for name in level if name.startswith("effect_")}))  # fmt: skip
    report, other = bundle_of(*claims, golem_id="g-far"), bundle_of(claims[0], golem_id="g-far")
    for made in (report, other):
        write_bundle(tmp_path / "away", made)
    folder, more = (str(tmp_path / "away" / made.bundle_hash) for made in (report, other))
    import_bundle(stores, read_bundle_files(Path(folder)), public_key=None, now=NOW)

    give = ("bundle", "give", report.bundle_hash[:12], "--to", golem)
    shown = orjson.loads(bardo(*give, "--dry-run", "--format", "json", home=home))
    assert (shown["event_id"], shown["source"], shown["cycle"]) == (None, "import", 7)
    assert shown["counts"] == {"accepted": 1, "anomalous": 1, "redundant": 1}
    assert not DerivationContext.open(home).arrivals().events, "nothing was recorded"
    printed = bardo(*give, home=home)
    assert "1 accepted, 1 redundant, 1 anomalous; given" in printed
    assert "chain: no claims" in printed

    stores = DerivationContext.open(home)
    (event,) = stores.arrivals().of_golem(golem)
    sent = life_event("g-far", event.at, Replicant(parent_id=golem, hypothesis="calm seas pay"))
    stores.log.record([sent], NOW)
    import_bundle(stores, read_bundle_files(Path(more)), public_key=None, now=NOW)
    assert deliver_bundle.give_bundle(stores, golem, report.bundle_hash, now=NOW)[1] == event.event_id, (
        "a second give must return the same event"
    )
    assert "a replicant's report on its hypothesis: calm seas pay" in bardo(
        "bundle", "give", other.bundle_hash[:12], "--to", golem, home=home
    )
    live_until(DerivationContext.open(home), 350, NOW)
    derive_curation(DerivationContext.open(home))
    decided = DerivationContext.open(home).projections.growing("curation").read(golems=[golem]).to_pylist()
    came = [row for row in decided if row["cause_event"]]
    assert {row["cycle"] for row in came} == {7}
    (waits,) = [row for row in came if row["operation"] == "quarantined"]
    assert (waits["status"], waits["structure"]) == ("candidate", about.key)
    provenances = {report.bundle_hash: "import", other.bundle_hash: "replicant"}
    assert waits["provenance"] == provenances[waits["cause_bundle"]]
    assert len([row for row in came if row["operation"] == "noted"]) == 2, "the level, and the second time of the rule"
    assert "candidate" in (output := bardo("lineage", waits["entry_id"], home=home))
    assert "received from g-far" in output
    assert all(table.equal for table in rebuild(DerivationContext.open(home), now=NOW))


@pytest.mark.row("INH-12")
def test_an_heir_inherits_default_thresholds_of_its_line(half_lived: Path, tmp_path: Path) -> None:
    home = copy_home(half_lived, tmp_path / "home")
    stores = DerivationContext.open(home)
    life = stores.life("GolemBorn").to_pylist()[0]
    rule = entry("g-far", pattern("uniswap_v3_rebalance"), kind="warning", sign=-1, generation=3, anchor_at=DIED,
                 confidence_ppm=800_000)  # fmt: skip
    bundle = bundle_of(rule, golem_id="g-far")
    write_bundle(stores.home.bundles, bundle)
    answer = life["born"] | {"bundle_hash": bundle.bundle_hash, "generation": 4, "predecessor_id": "g-far"}
    begun = birth_record(stores, "g-heir", Born.model_validate(answer), DIED)
    assert [event.kind for event in begun.events] == ["GolemBorn", "KnowledgeReceived", "DefaultsInherited"]
    stores.log.record(begun.events, NOW)
    derive_curation(stores)
    (page,) = stores.projections.growing("playbooks").read(golems=["g-heir"]).to_pylist()
    own = answer["traits"]["rebalance_threshold"]
    assert page["rebalance_threshold"]["volatile"] == max(0.8, own)
    assert page["rebalance_threshold"]["range_bound"] == own
    line = f"volatile: 0.80, by {rule['entry_id'][:12]}"
    assert line in page["markdown"]
    assert f"default of its line: re-centres {line}" in bardo("golem", "show", "g-heir", home=home)


@pytest.mark.full
@pytest.mark.row("INH-11", "X-4")
def test_a_strike_withdraws_given_entries_of_the_struck_record(half_lived: Path, tmp_path: Path) -> None:
    home = copy_home(half_lived, tmp_path / "home")
    stores = DerivationContext.open(home)
    derive_curation(stores)
    giver, other = sorted(stores.life("GolemBorn")["golem_id"].to_pylist())[:2]
    table = stores.projections.growing("curation").read(golems=[giver]).to_pylist()
    made = next(row for row in table if row["operation"] == "created")
    by_key = {name: made[name] for name in ENTRY_SCHEMA.names}
    bundle = bundle_of(by_key, golem_id=giver)
    write_bundle(stores.home.bundles, bundle)
    _, event_id = deliver_bundle.give_bundle(stores, other, bundle.bundle_hash, now=NOW)
    (arrival,) = stores.arrivals().of_golem(other)
    assert (arrival.event_id, arrival.source) == (event_id, "import")
    done = strike(stores, giver, made["cause_ticks"][0], "it was wrong", now=NOW)
    (lost,) = done.heirs
    assert lost.withdrawn is not None
    assert (lost.golem_id, lost.withdrawn.entry_ids) == (other, (made["entry_id"],))
    assert withdraw(stores, now=NOW) == [], "an entry was withdrawn twice"
    live_until(DerivationContext.open(home), 350, NOW)
    derive_curation(stores)
    rows = stores.projections.growing("curation").read(golems=[other]).to_pylist()
    assert not [row for row in rows if row["cause_event"] == event_id], "the withdrawn entry left a decision"
