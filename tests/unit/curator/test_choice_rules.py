"""Choices: entries learn from trials, the playbook draws half-width and presence from them, and golems act so."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from bardo_pipeline.curator.choice_rules import (
    LEAVE,
    LOANS,
    PRESENCE,
    STAY_OUT,
    TRAIT,
    Choices,
    active_rules,
    choices_of,
    verdicts_of,
)
from bardo_pipeline.curator.curate import Curation, curate
from bardo_pipeline.curator.playbook import Playbooks
from bardo_pipeline.curator.state.grimoire_state import GrimoireState, entry_id, from_table
from bardo_pipeline.curator.state.structures import Structure, choice_act
from bardo_pipeline.derivation.curation.curator_state import CuratorState
from bardo_pipeline.events.life.events import Traits
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.policy import Policy
from bardo_pipeline.quality.reason_checks import contradictions
from tests.support.fleets.memory_fleets import START, Lived, live, lively_market, rule
from tests.support.knowledge.handmade_grimoires import entry, grimoire
from tests.support.records.handmade_records import cycles_of, record, table

POLICY = Policy()
MARKET = lively_market(200)
POOL = POLICY.curator.pool_witnesses


def advice(
    alternative: str, *, regime: str | None = None, effect_ppm: int = 800, horizon: str = "", **fields: Any
) -> dict[str, Any]:
    """A confident inherited rule about a choice."""
    where = (MARKET.chain, MARKET.protocol, MARKET.pair)
    about = Structure("choice", *where, *choice_act(alternative, "range_160", horizon), regime)
    plain = {
        "kind": "heuristic" if effect_ppm > 0 else "warning", "sign": 1 if effect_ppm > 0 else -1,
        "effect_mean_ppm": effect_ppm, "confidence_ppm": 1_000_000, "confidence_origin_ppm": 1_000_000,
        "anchor_at": START, "created_at": START, "validated_at": START, "origin_golem_id": "g-before",
        "provenance": "death_testament", "generation": 1, "evidence_count": 60, "text": "a rule",
    }  # fmt: skip
    return entry("g-before", about, **(plain | fields))


def choices(*rows: dict[str, Any], confidence: int = 1_000_000) -> Choices:
    """Return what the rules of one golem choose at a confidence in ppm."""
    state = from_table(grimoire(*rows))
    places, golem = active_rules(state, state.structures.choices()), np.zeros(1, np.int64)
    return choices_of(verdicts_of(state, golem, places, places * 0 + confidence, POLICY), state, POLICY)[0]


def chosen(*rows: dict[str, Any], confidence: int = 1_000_000) -> tuple[dict[str, int], dict[str, str]]:
    """Half-width and presence by regime."""
    made = choices(*rows, confidence=confidence)
    named = (PRESENCE[code] for code in made.presence)
    return dict(zip(REGIMES, made.width, strict=True)), dict(zip(REGIMES, named, strict=True))


@pytest.mark.row("HB-24")
def test_a_rule_over_all_regimes_holds_in_each_and_a_rule_of_one_may_differ() -> None:
    width, _ = chosen(advice("range_400"), advice("range_250", effect_ppm=300))
    assert width == dict.fromkeys(REGIMES, 400)
    width, _ = chosen(advice("range_400"), advice("range_400", regime="volatile", effect_ppm=-2_000))
    assert width == dict.fromkeys(REGIMES, 400) | {"volatile": 160}


@pytest.mark.row("HB-24")
def test_a_rule_of_few_witnesses_is_shrunk_towards_the_general_one() -> None:
    general, opposite = advice("range_400", effect_ppm=800), {"regime": "volatile", "effect_ppm": -1_000}
    few, many = (advice("range_400", **opposite, evidence_count=n) for n in (int(POOL / 2), int(POOL * 3)))
    assert chosen(general, few)[0]["volatile"] == 400  # a third of -1,000 and two thirds of 800
    assert chosen(general, many)[0]["volatile"] == 160  # three quarters of -1,000 and one of 800


def test_confidence_weighs_and_a_rule_too_weak_leaves_the_trait() -> None:
    assert chosen(advice("range_400", effect_ppm=70))[0]["volatile"] == 400
    assert chosen(advice("range_400", effect_ppm=70), confidence=600_000)[0]["volatile"] == 0
    assert chosen()[0]["volatile"] == 0


def test_leaving_comes_before_staying_out_and_that_before_entering() -> None:
    assert chosen(advice("leave"), advice("enter"))[1]["volatile"] == PRESENCE[LEAVE]
    assert chosen(advice("enter", effect_ppm=-900))[1]["volatile"] == PRESENCE[STAY_OUT]
    assert chosen(advice("enter"), advice("leave", effect_ppm=-900))[1]["volatile"] == "enter"
    assert set(chosen(advice("leave", effect_ppm=-900))[1].values()) == {PRESENCE[TRAIT]}


@pytest.mark.row("HB-24")
def test_rules_of_two_pools_give_the_same_choices_in_any_order_of_registration() -> None:
    here = advice("range_400"), advice("enter", effect_ppm=-900)
    other = tuple(elsewhere(row) for row in (advice("range_400", effect_ppm=-800), advice("enter", effect_ppm=900)))
    assert chosen(*here, *other) == chosen(*other, *here)


def elsewhere(row: dict[str, Any]) -> dict[str, Any]:
    """The same rule about another pair."""
    about = Structure(*(row[name] for name in Structure._fields))._replace(pair="WBTC/USDC")
    return row | {"structure": about.key, "pair": about.pair, "entry_id": entry_id("g-before", about.key)}


@pytest.mark.row("X-4", "HB-24")
def test_a_golem_that_is_derived_again_follows_the_choices_of_its_new_playbook() -> None:
    mind, again = CuratorState(POLICY), CuratorState(POLICY)
    for state, width in ((mind, 400), (again, 1_000)):
        rule = grimoire(advice(f"range_{width}") | {"golem_id": "g-1"})
        state.begin_life("g-1", at=START, base_threshold=0.7, inherited=rule, bundle_hash="b")
        assert set(state.playbooks.choices_of("g-1").width) == {width}
    mind.replace_golems(again)
    assert set(mind.playbooks.choices_of("g-1").width) == {1_000}


CHOICE_OF = {
    "enter": ("presence", "hold"), "leave": ("presence", "hold"), "recenter": ("recentring", "stay"),
    "borrow": ("loan", "unlevered"), "repay": ("loan", "keep"),
}  # fmt: skip


def trial(
    tick: int, effect_ppm: int, horizon: str = "30_ticks", alternative: str = "range_400", score: float = 0.2
) -> dict[str, Any]:
    choice, beside = CHOICE_OF.get(alternative, ("width", "range_160"))
    return {
        "decision_tick": tick - 30, "choice": choice, "taken": "range_160",
        "alternative": alternative, "beside": beside, "horizon": horizon,
        "regime": "volatile", "anomaly_score": score, "gas_ratio": 1.0, "value_micros": 48_000_000,
        "effect_ppm": effect_ppm, "verified": True, "ground_truth_source": "trace",
    }  # fmt: skip


def learned(effects: list[int], *extra: dict[str, Any], **kind: Any) -> tuple[Curation, GrimoireState]:
    """Curate a life with one trial at the end of each cycle; `extra` trials are added to each of these records."""
    records = [
        record("g-1", tick, trials=[trial(tick, effects[tick // 50 - 1], **kind), *extra] if tick % 50 == 0 else None)
        for tick in range(1, 50 * len(effects) + 1)
    ]
    state, rows = GrimoireState(), table(records)
    made = curate(state, Playbooks(), rows, cycles_of(rows), policy=POLICY, policy_hash="p")
    return made, state


@pytest.mark.row("HB-24", "MEM-8")
def test_a_life_of_trials_teaches_a_half_width_that_the_playbook_states_with_its_rule() -> None:
    made, _ = learned([3_000, 3_200, 2_900, 3_100, 3_000, 3_100, 2_900, 3_000])
    last = made.playbooks.to_pylist()[-1]
    about = [row for row in made.decisions.to_pylist() if row["source"] == "choice" and row["kind"] == "heuristic"]
    rules = {row["regime"]: row["entry_id"] for row in about}
    assert set(rules) == {None, "volatile"}
    assert last["range_half_width"] == dict.fromkeys(REGIMES, 400)
    assert last["range_rule"] == dict.fromkeys(REGIMES, rules[None]) | {"volatile": rules["volatile"]}
    assert set(rules.values()) <= set(last["cause_entries"])
    assert f"## rangeHalfWidth\n\n- trending_up: 400 ticks, by rule {rules[None][:12]}" in last["markdown"]
    texts = {row["regime"]: row["text"] for row in about}
    verdict = "a half-width of 400 ticks has strongly beaten one of 160."
    assert texts[None].endswith(f"prefer a half-width of 400 ticks: {verdict}")
    assert texts[None].startswith("In any market, with ")
    assert texts["volatile"].startswith("In a volatile market, with ")
    assert {row["category"] for row in about} == {"range_selection"}


def test_longer_windows_of_a_choice_are_recorded_and_teach_nothing_twice() -> None:
    effects = [3_000, 3_200, 2_900, 3_100]
    alone, _ = learned(effects)
    longer = trial(50, -9_000, "4_hours"), trial(50, -9_000, "24_hours"), trial(50, 9_000, "24_hours", "enter")
    beside, _ = learned(effects, *longer)
    assert alone.decisions.equals(beside.decisions)


@pytest.mark.row("HB-24")
def test_trials_without_ground_truth_teach_nothing() -> None:
    effects = [3_000, 3_200, 2_900, 3_100]
    alone, _ = learned(effects)
    doubted, _ = learned(effects, trial(50, -9_000) | {"verified": False})
    assert alone.decisions.equals(doubted.decisions)


def loaned(*rows: dict[str, Any]) -> str:
    """Return the playbook's word about a loan in a volatile market."""
    return LOANS[choices(*rows).loan[REGIMES.index("volatile")]]


@pytest.mark.row("HB-24")
def test_repaying_comes_before_taking_no_loan_and_that_before_borrowing() -> None:
    hours, day = "4_hours", "24_hours"
    assert loaned() == loaned(advice("repay", horizon=hours, effect_ppm=-900)) == "trait"
    assert loaned(advice("borrow", horizon=hours)) == "borrow"
    assert loaned(advice("borrow", horizon=hours, effect_ppm=-900)) == "unlevered"
    assert loaned(advice("borrow", horizon=hours), advice("repay", horizon=hours)) == "repay"
    assert loaned(advice("borrow", horizon=hours), advice("borrow", horizon=day, effect_ppm=-900)) == "unlevered"
    assert loaned(advice("borrow", horizon=hours), advice("borrow", horizon=day, effect_ppm=-20)) == "borrow"


@pytest.mark.row("HB-24", "MEM-8")
@pytest.mark.parametrize(
    ("alternative", "effect_ppm", "words"),
    [
        ("borrow", 3_000, "prefer borrowing: borrowing has strongly beaten no loan, over 4 hours."),
        ("borrow", -3_000, "avoid borrowing: borrowing has strongly lost to no loan, over 4 hours."),
        (
            "repay",
            3_000,
            "prefer repaying the loan: repaying the loan has strongly beaten keeping it, over 4 hours.",
        ),
    ],
)
def test_trials_of_loans_teach_what_the_playbook_says_about_a_loan(
    alternative: str, effect_ppm: int, words: str
) -> None:
    made, _ = learned([effect_ppm + 100 * (i % 3) for i in range(8)], horizon="4_hours", alternative=alternative)
    last = made.playbooks.to_pylist()[-1]
    rules = {r["regime"]: r["entry_id"] for r in made.decisions.to_pylist() if r["source"] == "choice"}
    said = {"borrow": ("borrow", "unlevered"), "repay": ("repay", "trait")}[alternative][effect_ppm < 0]
    assert last["loan"] == dict.fromkeys(REGIMES, said)
    assert last["loan_rule"] == dict.fromkeys(REGIMES, rules[None]) | {"volatile": rules["volatile"]}
    assert "## loan\n\n- trending_up: " in last["markdown"]
    texts = {r["text"] for r in made.decisions.to_pylist() if r["source"] == "choice" and r["regime"] is None}
    assert any(text.endswith(words) for text in texts), texts
    short, _ = learned([effect_ppm] * 8, alternative=alternative)
    assert short.playbooks.to_pylist()[-1]["loan"] == dict.fromkeys(REGIMES, "trait")


STRAINED = 0.75
"""A score in the band between 0.7 and 0.8."""


@pytest.mark.row("HB-24", "MEM-8")
@pytest.mark.parametrize("horizon", ["4_hours", "24_hours"])
def test_trials_of_re_centring_over_hours_teach_a_threshold(horizon: str) -> None:
    kind: dict[str, Any] = {"horizon": horizon, "alternative": "recenter", "score": STRAINED}
    base = POLICY.playbook.rebalance_threshold
    made, _ = learned([-3_000, -3_200, -2_900, -3_100, -3_000, -3_100, -2_900, -3_000], **kind)
    last = made.playbooks.to_pylist()[-1]
    assert last["rebalance_threshold"] == dict.fromkeys(REGIMES, 0.8)
    warnings = [r for r in made.decisions.to_pylist() if r["action_type"] == f"recenter_strained_{horizon}"]
    assert {r["entry_id"] for r in warnings if r["kind"] == "warning"} <= set(last["cause_entries"])
    (words,) = {r["text"] for r in warnings if r["regime"] is None and r["kind"] == "warning"}
    assert words.endswith(
        "avoid re-centring a position at the edge of its range: re-centring a position at the edge of its range has "
        f"strongly lost to keeping it, over {horizon.replace('_', ' ')}."
    )
    assert {(r["tool"], r["category"]) for r in warnings} == {("uniswap_v3_rebalance", "rebalance_timing")}
    ticks, _ = learned([-3_000] * 8, **(kind | {"horizon": "30_ticks"}))
    assert ticks.playbooks.to_pylist()[-1]["rebalance_threshold"] == dict.fromkeys(REGIMES, base)


def recentring(horizon: str, effect_ppm: int, **fields: Any) -> dict[str, Any]:
    """A confident inherited rule about re-centring over hours at a strained score."""
    where = (MARKET.chain, MARKET.protocol, MARKET.pair)
    about = Structure("choice", *where, *choice_act("recenter", "stay", horizon, "strained"), "volatile")
    plain = advice("enter", regime="volatile", effect_ppm=effect_ppm, **fields)
    own = {name: getattr(about, name) for name in Structure._fields}
    return plain | own | {"structure": about.key, "entry_id": entry_id("g-before", about.key)}


def threshold(*rows: dict[str, Any]) -> float:
    """Return the threshold in a volatile market of an heir with these rules, before its own evidence."""
    mind = CuratorState(POLICY)
    rules = grimoire(*(row | {"golem_id": "g-1"} for row in rows))
    mind.begin_life("g-1", at=START, base_threshold=0.85, inherited=rules, bundle_hash="b")
    return mind.playbooks.of("g-1", POLICY)[1][REGIMES.index("volatile")]


@pytest.mark.row("HB-24", "MEM-8")
def test_the_longest_horizon_that_decides_replaces_the_shorter_ones_in_its_regime_and_band() -> None:
    short = rule(MARKET, "volatile", "strained", "normal", generation=1)
    assert threshold(short) == 0.7
    hours, day = recentring("4_hours", -4_000), recentring("24_hours", 4_000)
    assert threshold(short, hours) == 0.85  # the base is above the band's upper edge, 0.8
    assert threshold(hours) == 0.85
    assert threshold(short, hours, day) == threshold(hours, day) == 0.7
    weak = recentring("24_hours", 100, evidence_count=1)  # too few witnesses to decide against 4 hours
    assert threshold(short, hours, weak) == 0.85
    calm = rule(MARKET, "volatile", "stirred", "normal", generation=1)
    assert threshold(calm) == 0.5
    assert threshold(short, calm, hours) == 0.8  # the other band keeps its rule, and the warning wins


def lived_with(*rows: dict[str, Any]) -> Lived:
    traits = Traits(rebalance_threshold=0.7, range_half_width_ticks=90, forecast_memory=0.95)
    return live(MARKET, lineages=(0, 1), inherited=grimoire(*rows), traits=traits)


def new_ranges(lived: Lived) -> list[tuple[str, int]]:
    """Stated half-width and rule of each executed new range; each is the range of the next record."""
    out = []
    for before, after in zip(lived.rows, lived.rows[1:], strict=False):
        acts = {a["action_type"] for a in before["actions"] if a["status"] == "executed"}
        if before["golem_id"] == after["golem_id"] and acts & {"rebalance", "add_liquidity"}:
            said = re.search(r"half-width (\d+) by (trait|rule \w+)", before["deliberation"]["reasoning_summary"])
            assert said
            (position,) = after["observation"]["positions"]
            half = (position["tick_upper"] - position["tick_lower"]) / 2
            assert 0 <= half - int(said[1]) <= 10  # the range is rounded outwards to the pool's spacing
            out.append((said[2], int(said[1])))
    return out


@pytest.mark.row("HB-24", "HB-4")
def test_golems_with_a_rule_mint_its_half_width_and_name_it_and_others_follow_their_trait() -> None:
    rule = advice("range_400")
    heirs, orphans = lived_with(rule), lived_with(entry("g-before", "uniswap_rebalance"))
    assert set(new_ranges(heirs)) == {(f"rule {rule['entry_id']}", 400)}
    assert set(new_ranges(orphans)) == {("trait", 90)}
    assert contradictions(heirs.records) == contradictions(orphans.records) == []


@pytest.mark.row("HB-24", "HB-4")
def test_golems_leave_stay_out_and_enter_as_their_rules_say() -> None:
    away = lived_with(advice("enter", effect_ppm=-900))
    assert not new_ranges(away)
    left = lived_with(*(advice("leave", regime=r, evidence_count=900) for r in REGIMES if r != "unknown"))
    reasons = [r["deliberation"]["reasoning_summary"] for r in (*away.rows, *left.rows) if r["deliberation"]]
    for words in (
        "no position; the playbook stays out of this regime, rule ",
        "the playbook leaves this regime, rule ",
    ):
        assert any(words in reason for reason in reasons), words
    called = lived_with(
        advice("enter", regime="volatile", effect_ppm=2_000, evidence_count=900),
        *(advice("leave", regime=r, evidence_count=900) for r in REGIMES if r != "volatile"),
    )
    entered = [
        r["regime"]
        for r in called.rows
        if r["deliberation"] and "the playbook enters this regime, rule" in r["deliberation"]["reasoning_summary"]
    ]
    assert set(entered) == {"volatile"}, "without a rule no golem enters a volatile regime"
    for lived in (away, left, called):
        assert contradictions(lived.records) == []


@pytest.mark.row("HB-9", "HB-24")
def test_a_golem_whose_playbook_stays_out_passes_over_what_the_rule_settles_but_no_forced_tick() -> None:
    rule = advice("enter", effect_ppm=-900)
    market = lively_market(400)
    steers = {("*", 300): ("high", "look again")}
    lived = live(market, lineages=(0, 1), inherited=grimoire(rule), steers=steers)
    settled = [r for r in lived.rows if "stays out of this regime" in r["gating_reason"]]
    assert settled
    first = POLICY.gate.attention_after_ticks
    for row in settled:
        assert (row["tier"], row["forced_by"], row["attention"]) == ("suppress", None, None)
        assert row["tick"] > first
        assert row["prediction_error"] >= row["deliberation_threshold"]
        assert row["gating_reason"].endswith(f"; the playbook stays out of this regime, rule {rule['entry_id']}")
        assert not row["observation"]["positions"]
    late = [r for r in lived.rows if r["tick"] > first]
    assert not [r for r in late if r["tier"] == "T1"]
    assert "steer" in {r["forced_by"] for r in late if r["tier"] == "T2"}
    assert contradictions(lived.records) == []
    orphans = live(market, lineages=(0, 1), inherited=grimoire(entry("g-before", "uniswap_rebalance")))
    assert not any("stays out" in r["gating_reason"] for r in orphans.rows)
