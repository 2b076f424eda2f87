"""Repair by command: strike a record, report a reorg, list withdrawals, and prove the removal."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.legacy.bundle_store import load_bundle
from bardo_pipeline.events.life.events import Reorg, life_event
from tests.conftest import NOW, copy_home
from tests.property.derivation.test_laws import birth_of, stores_at
from tests.support.processes.bardo_command import bardo
from tests.support.records.handmade_records import START, STORIES, STORM, Life, full


def inherited(stores: DerivationContext) -> tuple[str, str, int, str]:
    """Return a golem, its heir, a tick that is evidence of an entry, and that entry, which the heir inherited."""
    births = {e["golem_id"]: e["born"] for e in stores.life("GolemBorn").to_pylist()}
    heir = next(g for g, b in sorted(births.items()) if b["predecessor_id"])
    golem = births[heir]["predecessor_id"]
    crossed = load_bundle(stores.home, births[heir]["bundle_hash"]).entries()["entry_id"].to_pylist()
    decided = stores.projections.growing("curation").read(golems=[golem]).sort_by("cycle").to_pylist()
    entry, ticks = next((d["entry_id"], d["cause_ticks"]) for d in decided if d["entry_id"] in crossed)
    return golem, heir, ticks[0], entry


def asked(home: Path, *words: str, expect: int = 0) -> dict[str, object]:
    printed: dict[str, object] = json.loads(bardo(*words, "--format", "json", home=home, expect=expect))
    return printed


@pytest.mark.full
@pytest.mark.row("X-4")
def test_a_struck_record_is_removed_and_its_removal_proven(marts_home: Path, tmp_path: Path) -> None:
    home = copy_home(marts_home, tmp_path / "home")
    golem, heir, tick, entry = inherited(DerivationContext.open(home))
    seen = f"select count(*) n from fct_ticks where golem_id = '{golem}' and tick = {tick}"
    assert json.loads(bardo("sql", seen, "--format", "json", home=home)) == [{"n": 1}]
    assert "no record is struck" in bardo("struck", home=home)

    printed = bardo("strike", golem, str(tick), "--why", "its sensor lied", "--no-derive", home=home)
    assert f"tick {tick} is left out" in printed
    assert f"heir {heir} loses" in printed
    assert entry in printed
    output = bardo("struck", home=home, expect=1)
    assert "Rows that should have been removed" in output
    assert f"tick {tick} is left out" in output

    again = bardo("strike", golem, str(tick), "--why", "a repeated strike", home=home)
    assert "is already left out; nothing is recorded" in again
    proven = bardo("struck", "--withdrawn", home=home)
    assert "no derived row depends on" in proven
    assert "its sensor lied" in proven
    assert "Bundles published before the strike" in proven
    answer = asked(home, "struck")
    assert answer["proven"] is True
    (struck,) = (s for s in answer["struck"] if s["kind"] == "RecordStruck")  # type: ignore[attr-defined]
    assert (struck["golem_id"], struck["tick_from"], struck["why"]) == (golem, tick, "its sensor lied")
    gone = {(w["golem_id"], w["row_name"]) for w in answer["withdrawn"] if w["table_name"] == "curation"}  # type: ignore[attr-defined]
    assert (heir, entry) in gone

    assert json.loads(bardo("sql", seen, "--format", "json", home=home)) == [{"n": 0}]
    why = f"select distinct event_kind from fct_withdrawals where golem_id = '{heir}' and row_name = '{entry}'"
    assert json.loads(bardo("sql", why, "--format", "json", home=home)) == [{"event_kind": "KnowledgeWithdrawn"}]
    line = bardo("lineage", entry, home=home)
    assert f"{heir} (generation 1)" in line
    assert f"inherited entries, from tick {tick} of {golem}" in line
    assert f"tick {tick} struck" in line
    assert "DIFFERENT" not in bardo("rebuild", home=home)


@pytest.mark.full
@pytest.mark.row("X-4")
def test_an_invalid_strike_or_reorg_is_refused_with_a_reason(asked_home: Path, tmp_path: Path) -> None:
    home = copy_home(asked_home, tmp_path / "home")
    golem = DerivationContext.open(home).life("GolemBorn")["golem_id"][0].as_py()
    assert "has no record of tick 9999" in bardo("strike", golem, "9999", "--why", "a lie", home=home, expect=2)
    assert "has no record of tick 1" in bardo("strike", "g-none", "1", "--why", "a lie", home=home, expect=2)
    for words in ([], ["--block-from", "3"], ["--tick-from", "5", "--tick-to", "4"]):
        assert "bardo: " in bardo("reorg", golem, "--chain", "polygon", *words, home=home, expect=2)
    blocks = ("--block-from", "3", "--block-to", "4")
    assert "name no block" in bardo("reorg", golem, "--chain", "polygon", *blocks, home=home, expect=2)
    assert DerivationContext.open(home).left_out().causes == ()


@pytest.fixture
def on_chain(tmp_path: Path) -> Path:
    """A golem whose records name a Polygon block at each tick, from 1,000 on, and another chain's block at every
    third.
    """
    home, life = tmp_path / "home", Life("g-0", {STORM: STORIES[0]}, (3, 2), timedelta(minutes=2), 12)
    rows = life.rows()
    for row in rows:
        other = row["tick"] % 3 == 0
        seen = {"chain": "base" if other else "polygon", "block_number": 990 + 10 * row["tick"]}
        row["observation"] = row["observation"] | seen
    stores = stores_at(home)
    stores.log.record([birth_of(life)], NOW)
    stores.log.append(full(rows), writer="w", segment=1, recorded_at=NOW)
    stores.log.close()
    return home


@pytest.mark.row("EV-8")
def test_a_reorg_marks_the_records_of_its_blocks(on_chain: Path) -> None:
    words = ("reorg", "g-0", "--chain", "polygon", "--block-from", "1010", "--block-to", "1050")
    output = bardo(*words, "--no-derive", home=on_chain)
    assert "tick 2, 4 to 5 is left out" in output, "ticks 3 and 6 saw another chain"
    assert "reorgs in the last 1,000 blocks: 1; an action counts from 2 confirmations on" in output
    causes = DerivationContext.open(on_chain).left_out().causes
    assert {(c.kind, c.tick_from, c.tick_to) for c in causes} == {("ReorgObserved", 2, 2), ("ReorgObserved", 4, 5)}
    assert "is already left out; nothing is recorded" in bardo(*words, "--no-derive", home=on_chain)


@pytest.mark.row("EV-8")
def test_frequent_reorgs_raise_the_required_confirmations(on_chain: Path) -> None:
    stores = stores_at(on_chain)
    for block in range(1_000, 1_010):
        payload = Reorg(chain="polygon", block_from=block, block_to=1_010, tick_from=2, tick_to=2)
        stores.log.record([life_event("g-0", START, payload)], NOW)
    words = ("reorg", "g-0", "--chain", "polygon", "--no-derive", "--block-to", "1010", "--block-from")
    assert "reorgs in the last 1,000 blocks: 10; an action counts from 2 " in bardo(*words, "1009", home=on_chain)
    assert "reorgs in the last 1,000 blocks: 11; an action counts from 5 " in bardo(*words, "1010", home=on_chain)
