"""Strategy fragments: rules that are learned together, as one entry that crosses a death (MEM-7)."""

from __future__ import annotations

from datetime import timedelta
from itertools import permutations
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bardo_pipeline.curator.choice_rules import PRESENCE, Choices
from bardo_pipeline.curator.passes.bind_fragments import _parts
from bardo_pipeline.curator.state.decision_log import fold
from bardo_pipeline.curator.state.grimoire_state import from_table
from bardo_pipeline.derivation.curation.curator_state import CuratorState
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS, MOMENT
from bardo_pipeline.inheritance.bundle_files import TESTAMENT_PAGE, read_bundle
from bardo_pipeline.inheritance.bundle_inspection import faults_of
from bardo_pipeline.inheritance.endowment_conditions import HEIRS, endowment
from bardo_pipeline.inheritance.heir_entries import inherited_entries
from tests.support.knowledge.handmade_bundles import bundle_of
from tests.support.knowledge.handmade_grimoires import DIED, entry, grimoire, pattern
from tests.unit.curator.test_choice_rules import POLICY, learned, trial

STEADY = [3_000, 3_200, 2_900, 3_100, 3_000, 3_100, 2_900, 3_000]


def fragments(entries: pa.Table) -> dict[str | None, dict[str, Any]]:
    """Active strategy fragments by regime."""
    rows = entries.to_pylist()
    return {row["regime"]: row for row in rows if row["kind"] == "strategy_fragment" and row["status"] == "active"}


@pytest.mark.row("MEM-7")
def test_a_half_width_and_an_exit_that_are_learned_together_become_a_fragment_as_sure_as_its_weakest_part() -> None:
    made, _ = learned(STEADY, trial(50, 4_000, "4_hours", "leave"))
    entries = fold(made.decisions)
    found = fragments(entries)
    assert set(found) == {None, "volatile"}
    parts = {
        row["regime"]: min(
            (r for r in entries.to_pylist() if r["source"] == "choice" and r["regime"] == row["regime"]),
            key=lambda r: r["confidence_ppm"],
        )
        for row in found.values()
    }
    for regime, row in found.items():
        assert row["source"] == "strategy"
        assert row["action_type"] == "range_400_over_160+remove_liquidity"
        assert row["category"] == "strategic_patterns"
        assert row["confidence_ppm"] <= parts[regime]["confidence_ppm"]
        assert row["effect_mean_ppm"] in {
            r["effect_mean_ppm"] for r in entries.to_pylist() if r["regime"] == regime and r["source"] == "choice"
        }
    assert found["volatile"]["text"].startswith("In a volatile market, with ")
    assert found[None]["text"].endswith("these were learned together: a half-width of 400 ticks, leaving.")


@pytest.mark.row("MEM-7")
def test_a_fragment_cites_the_ticks_of_its_parts_and_is_made_once_and_then_confirmed() -> None:
    made, _ = learned(STEADY, trial(50, 4_000, "4_hours", "leave"))
    about = [r for r in made.decisions.to_pylist() if r["source"] == "strategy" and r["regime"] is None]
    assert [r["operation"] for r in about][:2] == ["created", "reinforced"]
    assert {r["operation"] for r in about} == {"created", "reinforced"}
    for row in about:
        verdict = max(row["cause_ticks"])
        assert verdict % 50 == 0
        assert {20, verdict - 30} <= set(row["cause_ticks"]), "the decisions of both parts"


@pytest.mark.row("MEM-7")
def test_a_rule_alone_and_rules_that_are_not_in_force_make_no_fragment() -> None:
    assert not fragments(fold(learned(STEADY)[0].decisions))
    weak = trial(50, 10, "4_hours", "leave")
    assert not fragments(fold(learned(STEADY, weak)[0].decisions))
    narrow = learned([-effect for effect in STEADY], trial(50, 4_000, "4_hours", "leave"))[0]
    assert not fragments(fold(narrow.decisions)), "a half-width to avoid sizes nothing"


@pytest.mark.row("MEM-7")
def test_a_warning_against_entering_is_a_part_with_no() -> None:
    made, _ = learned(STEADY, trial(50, -4_000, "4_hours", "enter"))
    found = fragments(fold(made.decisions))
    assert found[None]["action_type"] == "range_400_over_160+no_add_liquidity"
    assert found[None]["text"].endswith("a half-width of 400 ticks, no entering.")


@pytest.mark.row("MEM-7")
def test_equally_sure_rules_are_parts_by_their_structure_not_by_the_order_of_registration() -> None:
    rules = [
        entry("g-1", pattern("uniswap_v3_rebalance", anomaly_band=band), kind="heuristic") for band in ANOMALY_BANDS
    ]
    chosen = set()
    for order in permutations(rules, len(rules)):
        state = from_table(grimoire(*order))
        (part,) = {int(row) for row in _parts(state, np.arange(state.rows)).flat if row >= 0}
        chosen.add(state.structures.keys()[state["structure"][part]])
    assert len(chosen) == 1


@pytest.mark.row("MEM-7")
def test_a_fragment_crosses_a_death_with_its_parts() -> None:
    made, _ = learned(STEADY, trial(50, 4_000, "4_hours", "leave"))
    entries = fold(made.decisions)
    last = max(row["anchor_at"] for row in entries.to_pylist())
    deaths = pa.table({"golem_id": ["g-1"], "at": pa.array([last + timedelta(hours=1)], MOMENT)})
    crossed = endowment(HEIRS, entries, entries, deaths, {"g-1": "g-2"}, POLICY)
    found = fragments(crossed)
    assert set(found) == {None, "volatile"}
    assert {row["generation"] for row in found.values()} == {1}
    assert found[None]["confidence_ppm"] == pytest.approx(0.85 * fragments(entries)[None]["confidence_ppm"], rel=0.05)
    sources = {row["source"] for row in crossed.to_pylist()}
    assert {"choice", "strategy"} <= sources


@pytest.mark.row("MEM-7", "HB-24")
def test_choices_and_fragments_pass_the_inspection_of_a_bundle_and_an_heir_acts_by_them_from_birth() -> None:
    made, _ = learned(STEADY, trial(50, 4_000, "4_hours", "leave"))
    rows = [row for row in fold(made.decisions).to_pylist() if row["status"] == "active"]
    last = max(row["anchor_at"] for row in rows) - DIED
    rows = [
        row | {name: row[name] - last - timedelta(hours=1) for name in ("anchor_at", "created_at", "validated_at")}
        for row in rows
    ]
    bundle = bundle_of(*rows)
    assert faults_of(bundle.files, POLICY.inheritance) == []
    heirs = inherited_entries(read_bundle(bundle.files), "g-2", POLICY)
    assert set(heirs["source"].to_pylist()) >= {"choice", "strategy"}
    mind = CuratorState(POLICY)
    mind.begin_life("g-2", at=DIED + timedelta(hours=1), base_threshold=0.7, inherited=heirs, bundle_hash="b")
    choices = mind.playbooks.choices_of("g-2")
    assert set(choices.width) == {400}
    assert {PRESENCE[code] for code in choices.presence} == {"leave"}
    assert set(choices.width_rule) <= set(heirs["entry_id"].to_pylist())
    assert Choices.of_columns(choices.columns) == choices, "a playbook restores them"
    testament = bundle.files[TESTAMENT_PAGE].decode()
    assert "prefer a half-width of 400 ticks" in testament
