"""The grimoire commands: show what a golem knows; pin, correct and retract entries of a living golem."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bardo_pipeline.derivation.context import DerivationContext
from tests.conftest import NOW, copy_home
from tests.property.derivation.test_laws import POLICY, fingerprints, stores_at
from tests.support.homes.homes_to_repair import births, derive_all_again, rebuilt_fingerprints
from tests.support.homes.owner_events import live_until
from tests.support.processes.bardo_command import bardo


@pytest.fixture
def home(half_lived: Path, tmp_path: Path) -> Path:
    return copy_home(half_lived, tmp_path / "home")


def asked(home: Path, *words: str) -> Any:
    return json.loads(bardo("grimoire", *words, "--format", "json", home=home))


def known(home: Path) -> tuple[str, list[dict[str, Any]]]:
    """Return the golem with the most entries, and its entries, most confident first."""
    golems = sorted(births(DerivationContext.open(home)))
    held = {golem: asked(home, "list", golem)["entries"] for golem in golems}
    golem = max(golems, key=lambda g: len(held[g]))
    assert len(held[golem]) >= 3
    return golem, held[golem]


@pytest.mark.full
@pytest.mark.row("X-8")
def test_an_owner_pins_corrects_and_retracts_entries_of_a_living_golem(home: Path, tmp_path: Path) -> None:
    golem, held = known(home)
    pinned, corrected, retracted = (row["entry_id"] for row in held[:3])
    output = bardo("grimoire", "pin", golem, pinned[:9], "--why", "I rely on it", home=home)
    assert f"entry {pinned} is pinned" in output
    assert "recorded as of tick 300; it takes effect when cycle 7 closes, at tick 350 or at death" in output
    words = ("--confidence", "0.42", "--note", "seen by hand")
    bardo("grimoire", "correct", golem, corrected, *words, "--why", "too sure", home=home)
    bardo("grimoire", "retract", golem, retracted, "--why", "it is a lie", home=home)
    before = {row["entry_id"]: row for row in asked(home, "list", golem)["entries"]}
    assert {pinned, corrected, retracted} <= set(before), "a closed cycle does not change"
    assert "waits for cycle 7: EntryRetracted" in bardo("grimoire", "show", golem, retracted, home=home)
    assert "is already pinned; nothing is recorded" in bardo("grimoire", "pin", golem, pinned, "--why", "x", home=home)
    assert "it is removed when its cycle closes" in bardo(
        "grimoire", "pin", golem, retracted, "--why", "x", home=home, expect=2
    )

    stores = stores_at(home, POLICY)
    live_until(stores, 350, NOW)
    after = {row["entry_id"]: row for row in asked(home, "list", golem, "--status", "all")["entries"]}
    assert after[pinned]["pinned_ppm"] == before[pinned]["confidence_now_ppm"]
    assert after[retracted]["status"] == "retracted"
    by_key = {e: asked(home, "show", golem, e)["decisions"] for e in (pinned, corrected, retracted)}
    for entry, operation, why in ((pinned, "pinned", "I rely on it"), (corrected, "corrected", "too sure"),
                                  (retracted, "retracted", "it is a lie")):  # fmt: skip
        (item,) = (d for d in by_key[entry] if d["operation"] == operation)
        assert (item["cycle"], item["reason"]) == (7, f"its owner {operation} it: {why}")
        assert item["cause_event"] in stores.log.life()["event_id"].to_pylist()
    (item,) = (d for d in by_key[corrected] if d["operation"] == "corrected")
    assert item["confidence_ppm"] == 420_000
    shown = bardo("grimoire", "show", golem, corrected, home=home)
    assert "seen by hand" in shown
    assert f"bardo lineage {corrected[:12]}" in shown
    assert pinned in bardo("grimoire", "list", golem, "--pinned", "--format", "json", home=home)

    stores = stores_at(home, POLICY)
    live_until(stores, None, NOW)
    derive_all_again(stores)
    assert fingerprints(stores) == rebuilt_fingerprints(stores, tmp_path / "beside")


@pytest.mark.row("X-8")
def test_an_invalid_override_is_refused_with_a_reason(home: Path) -> None:
    golem, held = known(home)
    entry, why = held[0]["entry_id"], ("--why", "I say so")
    keys = {
        ("pin", golem, "zzzz"): "no entry 'zzzz': `bardo grimoire list",
        ("pin", golem, ""): "no entry ''",
        ("pin", "g-none", entry): "no golem of this name was born",
        (
            "correct",
            golem,
            entry,
            "--confidence",
            "1.7",
        ): "confidence: Input should be less than or equal to 1, not 1.7",
        ("correct", golem, entry, "--confidence", "nan"): "Invalid value for '--confidence'",
        ("correct", golem, entry): "a correction names a confidence, a verdict, a decay class or a note",
        ("correct", golem, entry, "--verdict", "pays"): "a verdict needs a confidence",
        ("correct", golem, entry, "--decay-class", "fact"): "decay_class: ",
    }
    for words, answer in keys.items():
        assert answer in bardo("grimoire", *words, *why, home=home, expect=2), words
    assert "why: String should have at least 1 character" in bardo(
        "grimoire", "pin", golem, entry, "--why", "", home=home, expect=2
    )
    several = next(i for i in range(25) if sum(row["entry_id"].startswith(entry[:i]) for row in held) == 1)
    if several > 1:
        output = bardo("grimoire", "pin", golem, entry[: several - 1], *why, home=home, expect=2)
        assert "give more of the id" in output
    fact = next((row["entry_id"] for row in held if row["source"] == "baseline"), None)
    if fact is not None:
        words = ("--verdict", "harms", "--confidence", "0.5")
        assert "has no verdict on whether acting pays" in bardo(
            "grimoire", "correct", golem, fact, *words, *why, home=home, expect=2
        )
    assert DerivationContext.open(home).overrides().events == (), "a refused override was recorded"


@pytest.mark.full
@pytest.mark.row("X-8")
def test_an_override_of_a_dead_golem_is_refused_and_names_living_heirs(home: Path) -> None:
    stores = stores_at(home, POLICY)
    live_until(stores, 400, NOW)
    born, died = births(stores), set(stores.life("DeathDeclared")["golem_id"].to_pylist())
    heir = next(g for g, b in sorted(born.items()) if b["predecessor_id"] and g not in died)
    dead = born[heir]["predecessor_id"]
    inherited = {e["entry_id"] for e in asked(home, "list", heir)["entries"]}
    shared = next(e["entry_id"] for e in asked(home, "list", dead)["entries"] if e["entry_id"] in inherited)
    refused = bardo("grimoire", "retract", dead, shared, "--why", "a lie", home=home, expect=2)
    assert f"golem {dead} died at tick" in refused
    assert f"override it in the heirs that hold it: {heir}" in refused
    done = bardo("grimoire", "retract", dead, shared, "--heirs", "--why", "a lie", home=home)
    assert f"golem {heir}: entry {shared} is retracted" in done
    assert {order.golem_id for order in DerivationContext.open(home).overrides().events} == {heir}
    again = bardo("grimoire", "retract", heir, shared, "--why", "a lie", home=home)
    assert "is already retracted; nothing is recorded" in again
