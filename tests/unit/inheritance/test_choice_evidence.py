"""Evidence about choices: what crosses a death, at what discount, and what an heir decides with it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from bardo_pipeline.curator.curate import curate
from bardo_pipeline.curator.playbook import Playbooks
from bardo_pipeline.curator.state.decision_log import fold
from bardo_pipeline.curator.state.grimoire_state import from_table, to_table
from bardo_pipeline.curator.state.structures import Structure, choice_act
from bardo_pipeline.derivation.strikes_and_reorgs import inherited_losses
from bardo_pipeline.events.life.retractions import LeftOut
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA
from bardo_pipeline.inheritance.bundle_files import LEARNING, roots_of
from bardo_pipeline.inheritance.choice_evidence import (
    ChoiceEvidence,
    crossing_evidence,
    evidence_bundles,
    evidence_of,
    name_bundles,
    with_evidence,
)
from bardo_pipeline.inheritance.endowment_conditions import ATTENTION_ONLY, CLONES, ENTRIES_ONLY, HEIRS, endowment
from bardo_pipeline.inheritance.heir_entries import (
    inherited_entries,
    received_decisions,
    with_bundle_evidence,
)
from bardo_pipeline.policy import Policy
from tests.support.knowledge.handmade_bundles import bundle_of
from tests.support.knowledge.handmade_grimoires import DIED, POLICY, entry, grimoire
from tests.support.records.handmade_records import cycles_of, record, table

AT = datetime(2024, 3, 2, tzinfo=UTC)
RESET = Policy().model_copy(update={"inheritance": Policy().inheritance.model_copy(update={"weismann": "reset"})})
EFFECTS = (-2_600, 900, -2_900, -700, -3_400, 400, -2_000, -1_500)
"""Effects of entering in eight windows: too few for a rule."""


def choice(alternative: str = "enter", regime: str | None = None) -> Structure:
    return Structure("choice", "ethereum", "uniswap_v3", "USDC/WETH", *choice_act(alternative, "range_160"), regime)


def tried(about: Structure, count: int, total: int, squares: int, **fields: Any) -> dict[str, Any]:
    """A candidate with these sums."""
    return entry(about=about, status="candidate", own_count=count, own_sum=total, own_sumsq=squares, **fields)


def crossed(*rows: dict[str, Any], policy: Policy = POLICY) -> list[ChoiceEvidence]:
    return crossing_evidence(grimoire(*rows), {}, policy).get("g-1", [])


def heir_of(*evidence: ChoiceEvidence, rows: pa.Table | None = None) -> pa.Table:
    return with_evidence(ENTRY_SCHEMA.empty_table() if rows is None else rows, evidence, "heir", POLICY)


@pytest.mark.row("INH-8")
def test_evidence_about_choices_crosses_at_a_discount_that_keeps_the_mean() -> None:
    (kept,) = crossed(tried(choice(), 20, -30_000, 90_000_000))
    assert (kept.structure, kept.windows, kept.total, kept.squares) == (choice(), 17, -25_500, 76_500_000)
    again = crossing_evidence(grimoire(*heir_of(kept).to_pylist()), {"heir": (kept,)}, POLICY)["heir"]
    assert [(e.windows, e.total / e.windows) for e in again] == [(14, -1_500)]
    assert [(e.entry_id, e.received_as) for e in again] == [(kept.entry_id, kept.entry_id)]


@pytest.mark.row("INH-8")
def test_evidence_about_own_decisions_and_retracted_choices_does_not_cross() -> None:
    own = entry(about="uniswap_rebalance", own_count=40, own_sum=9_000, own_sumsq=90_000)
    gone = tried(choice("leave"), 20, 1_000, 90_000) | {"status": "retracted"}
    assert crossed(own, gone, tried(choice(), 1, 500, 250_000)) == []
    assert crossed(tried(choice(), 20, -30_000, 90_000_000), policy=RESET) == []


@pytest.mark.row("INH-8")
def test_an_heir_holds_the_evidence_as_own_sums_of_entries_and_candidates() -> None:
    rule = entry(about=choice("range_400"), kind="heuristic", own_count=40, own_sum=40_000, own_sumsq=50_000_000)
    waiting = tried(choice(regime="volatile"), 20, -30_000, 90_000_000)
    bundle = bundle_of(rule, learning={"evidence": [e._asdict() for e in crossed(rule, waiting)]})
    held = with_evidence(inherited_entries(bundle, "heir", POLICY), evidence_of(bundle.learning), "heir", POLICY)
    rows = {row["entry_id"]: row for row in held.to_pylist()}
    assert {e: (row["status"], row["own_count"], row["own_sum"]) for e, row in rows.items()} == {
        rule["entry_id"]: ("active", 34, 34_000), waiting["entry_id"]: ("candidate", 17, -25_500),
    }  # fmt: skip
    assert rows[rule["entry_id"]]["evidence_count"] == 40
    decisions = received_decisions(held, bundle.bundle_hash, AT, POLICY.hash)
    assert sorted(decisions["operation"].to_pylist()) == ["received", "staged"]
    assert fold(decisions).equals(held)
    assert to_table(from_table(held), POLICY.curator, POLICY.decay).equals(held)


def enter_trial(tick: int, effect_ppm: int) -> dict[str, Any]:
    return {
        "decision_tick": tick - 30, "choice": "presence", "taken": "hold", "alternative": "enter", "beside": "hold",
        "horizon": "4_hours", "regime": "volatile", "anomaly_score": 0.2, "gas_ratio": 1.0,
        "value_micros": 48_000_000, "effect_ppm": effect_ppm, "verified": True, "ground_truth_source": "trace",
    }  # fmt: skip


def life_after(held: pa.Table) -> pa.Table:
    """Return the choices that a life with EFFECTS, one window a cycle, makes rules of, after this inheritance."""
    records = [
        record("heir", tick, trials=[enter_trial(tick, EFFECTS[tick // 50 - 1])] if tick % 50 == 0 else None)
        for tick in range(1, 50 * len(EFFECTS) + 1)
    ]
    state, rows = from_table(held), table(records)
    curate(state, Playbooks(), rows, cycles_of(rows), policy=POLICY, policy_hash="p")
    return to_table(state, POLICY.curator, POLICY.decay)


def rules(entries: pa.Table) -> list[tuple[str | None, int]]:
    chosen = entries.filter(pc.and_(pc.equal(entries["source"], "choice"), pc.equal(entries["status"], "active")))
    return sorted(zip(chosen["regime"].to_pylist(), chosen["sign"].to_pylist(), strict=True), key=str)


@pytest.mark.row("INH-8", "P-2")
def test_a_decision_about_pooled_sums_names_the_bundle_until_an_order_clears_them() -> None:
    about = Structure("choice", "polygon", "uniswap_v3", "WETH/USDC", *choice_act("enter", "hold"))
    held = heir_of(*crossed(tried(about, 20, -30_000, 90_000_000)))
    first = received_decisions(held, "b" * 64, AT, POLICY.hash)
    bundles = evidence_bundles(first)
    assert bundles == {("heir", about.key): "b" * 64}
    trials = [enter_trial(50, -2_600), enter_trial(50, -2_600) | {"alternative": "leave"}]
    rows = table([record("heir", t, trials=trials if t == 50 else None) for t in range(1, 51)])
    later = curate(from_table(held), Playbooks(), rows, cycles_of(rows), policy=POLICY, policy_hash="p").decisions
    named, left = name_bundles(later, bundles)
    assert left == bundles
    decided = {row["structure"]: row for row in named.to_pylist()}
    assert (decided[about.key]["own_count"], decided[about.key]["cause_bundle"]) == (18, "b" * 64)
    assert decided[about.key]["cause_ticks"]
    assert {row["cause_bundle"] for key, row in decided.items() if key != about.key} == {None}

    place = later.schema.get_field_index("own_count")
    cleared = later.set_column(place, later.schema.field(place), pa.array([0] * later.num_rows, pa.int64()))
    in_turn = pa.concat_tables([later, cleared, later])
    named, left = name_bundles(in_turn, bundles)
    own = named.filter(pc.equal(named["structure"], about.key))
    assert own["cause_bundle"].to_pylist() == ["b" * 64, None, None]
    assert left == {}
    assert evidence_bundles(pa.concat_tables([first, cleared])) == {}, "a golem that is loaded knows the order too"


@pytest.mark.row("INH-8", "HB-24")
def test_a_line_learns_what_one_life_is_too_short_for() -> None:
    first = life_after(ENTRY_SCHEMA.empty_table())
    assert rules(first) == []
    given = crossing_evidence(first, {}, POLICY)["heir"]
    second = life_after(heir_of(*given))
    given = crossing_evidence(second, {}, POLICY)["heir"]
    third = life_after(heir_of(*given))
    assert {regime for regime, _ in rules(third)} >= {None}
    assert {sign for _, sign in rules(third)} == {-1}


@pytest.mark.parametrize(
    "fault",
    [
        {"windows": 0},
        {"windows": True},
        {"squares": -1},
        {"regime": "sunny"},
        {"pair": None},
        {"more": 1},
        {"total": 2**63},
    ],
)
def test_evidence_without_valid_values_is_left_out(fault: dict[str, Any]) -> None:
    (good,) = crossed(tried(choice(), 20, -30_000, 90_000_000))
    assert evidence_of({"evidence": [good._asdict() | fault, good._asdict()]}) == (good,)
    for learning in (None, {}, {"evidence": 3}, {"evidence": ["x"]}):
        assert evidence_of(learning) == ()


@pytest.mark.row("X-4")
def test_withdrawn_evidence_is_not_inherited_and_a_bundle_lists_its_evidence_as_a_root() -> None:
    given = crossed(tried(choice(), 20, -30_000, 90_000_000), tried(choice("leave"), 20, 500, 90_000))
    empty, gone = ENTRY_SCHEMA.empty_table(), frozenset({given[0].entry_id})
    held = with_evidence(empty, given, "heir", POLICY, gone)
    assert held["entry_id"].to_pylist() == [given[1].entry_id]
    bundle = bundle_of(entry(about="h"), learning={"evidence": [e._asdict() for e in given]})
    assert roots_of(bundle)["g-1"].evidence == tuple(given)
    assert orjson.loads(bundle.files[LEARNING])["evidence"][0]["windows"] == given[0].windows


@pytest.mark.row("INH-8")
def test_a_bought_bundle_gives_no_evidence_and_no_more_confidence_than_a_purchase_or_its_own() -> None:
    given = [e._asdict() for e in crossed(tried(choice(), 20, -30_000, 90_000_000))]
    rows = [entry(about=name, confidence_ppm=ppm, generation=1) for name, ppm in (("sure", 900_000), ("weak", 20_000))]
    bundle = bundle_of(*rows, learning={"evidence": given})
    for bought, counts, most in ((True, {0}, 255_000), (False, {0, 17}, 10**6)):
        heir = inherited_entries(bundle, "heir", POLICY, bought=bought)
        limited = [min(ppm, most) for ppm in bundle.entries()["confidence_ppm"].to_pylist()]
        assert sorted(heir["confidence_ppm"].to_pylist()) == sorted(limited)
        own = with_bundle_evidence(heir, bundle, "heir", POLICY, bought=bought)["own_count"]
        assert set(own.to_pylist()) == counts


@pytest.mark.row("X-5")
def test_heirs_and_heirs_with_entries_alone_get_the_evidence_and_clones_keep_theirs_whole() -> None:
    entries = grimoire(tried(choice(), 20, -30_000, 90_000_000))
    deaths = pa.table({"golem_id": ["g-1"], "at": pa.array([DIED], pa.timestamp("us", tz="UTC"))})

    def counts(condition: str) -> list[int]:
        given = endowment(condition, entries, ENTRY_SCHEMA.empty_table(), deaths, {"g-1": "heir"}, POLICY)
        counted: list[int] = given["own_count"].to_pylist()
        return counted

    assert [counts(c) for c in (HEIRS, ENTRIES_ONLY, CLONES, ATTENTION_ONLY)] == [[17], [17], [20], []]


@pytest.mark.row("X-4")
def test_an_heir_loses_evidence_and_the_rule_made_from_it_if_an_ancestor_loses_a_part() -> None:
    rule = entry(about=choice(), kind="warning", sign=-1, own_count=20, own_sum=-30_000, own_sumsq=90_000_000)
    evidence = crossed(rule, tried(choice("leave"), 20, 500, 90_000))
    (kept,) = (e for e in evidence if e.action_type == "add_liquidity")
    given = [e._replace(received_as=f"earlier {e.action_type}") for e in evidence]
    bundle = bundle_of(rule, learning={"evidence": [e._asdict() for e in given]})
    root = roots_of(bundle)["g-1"]
    assert inherited_losses(root, {"earlier add_liquidity": "why"}) == {kept.entry_id: "why"}
    assert kept.entry_id in root.entries["entry_id"].to_pylist()
    assert inherited_losses(root, {"a stranger": "why"}) == {}
    before = root._replace(made_without=LeftOut.listed("g-1", {"ticks": [], "entry_ids": ["earlier add_liquidity"]}))
    assert inherited_losses(before, {"earlier add_liquidity": "why"}) == {}, "the bundle was made without that part"
