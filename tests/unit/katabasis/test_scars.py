"""Outcomes and scars: which action failed, when the failure is confirmed, and what a clade receives of it."""

from __future__ import annotations

from typing import Any

import pytest

from bardo_pipeline.errors import DerivationError
from bardo_pipeline.katabasis.action_outcomes import outcomes_of
from bardo_pipeline.katabasis.scar_rules import scar_confidence, scars_of
from tests.support.records.failing_records import (
    ALIVE,
    NO_RULES,
    POLICY,
    act,
    check,
    deaths,
    ended,
    failures,
    moment,
    rule,
    table,
)
from tests.support.records.handmade_records import LULL, RALLY, STORM

pytestmark = pytest.mark.row("KAT-1", "KAT-2")
G, H = "g-1", "g-2"


def outcome_classes(*rows: dict[str, Any], dead: Any = ALIVE) -> list[tuple[str, str | None, int | None]]:
    selected = outcomes_of(table(rows), dead, POLICY).to_pylist()
    return [(r["outcome_class"], r["confirmed"], r["confirmed_tick"]) for r in selected]


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        ({"status": "reverted", "pnl_ppm": None}, "revert"),
        ({"slippage_ppm": 10_001}, "slippage"),
        ({"slippage_ppm": 10_000}, "passed"),
        ({"pnl_ppm": -20_001}, "drawdown"),
        ({"pnl_ppm": -20_000}, "waiting"),
        ({"pnl_ppm": -3_000}, "waiting"),
        ({"pnl_ppm": -2_999}, "passed"),
        ({"pnl_ppm": -50_000, "verified": False}, "passed"),
        ({"slippage_ppm": 50_000, "verified": False}, "passed"),
    ],
)
def test_a_hard_failure_is_confirmed_at_once_and_a_soft_loss_waits(row: dict[str, Any], wanted: str) -> None:
    at_once = wanted in ("revert", "slippage", "drawdown")
    assert outcome_classes(act(G, 5, **row)) == [(wanted, "immediate" if at_once else None, 5 if at_once else None)]


@pytest.mark.parametrize("pnl_ppm", [-5_000, -580])
@pytest.mark.parametrize(("effect", "wanted"), [(-3_000, True), (-2_999, False), (40_000, False)])
def test_the_check_after_thirty_ticks_decides_on_a_soft_loss(pnl_ppm: int, effect: int, wanted: bool) -> None:
    otherwise = "recovered" if pnl_ppm <= -3_000 else "passed"
    result = outcome_classes(act(G, 5, pnl_ppm=pnl_ppm), check(G, 35, 5, effect))
    assert result == [("lasting", "deferred", 35) if wanted else (otherwise, None, None)]


def test_unverified_or_unrelated_checks_confirm_no_failure() -> None:
    hurt = act(G, 5, pnl_ppm=-5_000)
    for verdict in (check(G, 35, 5, -9_000, verified=False), check(G, 35, 5, -9_000, chosen="hold"),
                    check(G, 35, 4, -9_000), check(H, 35, 5, -9_000)):  # fmt: skip
        assert outcome_classes(hurt, verdict) == [("waiting", None, None)]
    assert outcome_classes(act(G, 5, status="blocked", pnl_ppm=None), act(G, 6, status="deferred", pnl_ppm=None)) == []


def test_a_death_before_the_check_makes_a_loss_lasting() -> None:
    hurt = act(G, 31, pnl_ppm=-5_000)
    assert outcome_classes(hurt, dead=ended(G, 60)) == [("lasting", "at_death", 60)]
    assert outcome_classes(hurt, dead=ended(G, 61)) == [("waiting", None, None)], (
        "the tick of its check passed without a verdict"
    )
    assert outcome_classes(hurt, dead=ended(H, 60)) == [("waiting", None, None)]
    assert outcome_classes(act(G, 31), dead=ended(G, 60)) == [("passed", None, None)]


def test_the_narrative_of_a_failure_is_derived_from_its_structure() -> None:
    rows = failures([act(G, 5, pnl_ppm=-5_000), check(G, 35, 5, -6_000), act(G, 40, status="reverted")]).to_pylist()
    assert [r["scar_id"] for r in rows] == ["scar-g-1-1", "scar-g-1-2"]
    late, hard = rows
    assert (late["episode_id"], late["cause_ticks"], late["cycle"]) == ("g-1:5", [5, 35], 1)
    assert (late["confirmed_at"], late["at"]) == (moment(35), moment(5))
    assert late["causal_narrative"] == (
        "In a volatile market, with a WETH/USDC position on uniswap_v3 at the edge of its range and gas normal, "
        "re-centring was 0.60 % behind when it was checked: what re-centring cost was not earned back."
    )
    assert late["causal_context"]["hypothesis_at_action"] == "re-centring beats holding the range that was there"
    assert late["causal_context"]["counterfactual_hint"] == "holding the range that was there would have kept 0.60 %"
    assert (hard["mechanism"], hard["position_state"]) == ("refused", "open")
    assert late["structure"] == STORM.structure.key == hard["structure"]


@pytest.mark.parametrize(
    ("row", "mechanism"),
    [
        ({"pnl_ppm": -30_000}, "unexplained"),
        ({"pnl_ppm": -30_000, "cause": "utilization"}, "cause"),
        ({"pnl_ppm": -30_000, "gas_micros": 800_000}, "gas"),
        ({"pnl_ppm": -12_000, "slippage_ppm": 11_000}, "slipped"),
    ],
)
def test_an_unexplained_loss_creates_no_scar(row: dict[str, Any], mechanism: str) -> None:
    derived = failures([act(G, 5, **row)])
    assert derived["mechanism"].to_pylist() == [mechanism]
    assert derived["is_clear"].to_pylist() == [mechanism != "unexplained"]
    assert scars_of(derived, deaths(), POLICY).num_rows == (mechanism != "unexplained")


def test_a_price_that_returned_has_its_own_mechanism() -> None:
    (result,) = failures([act(G, 5), check(G, 35, 5, -6_000)]).to_pylist()
    assert result["mechanism"] == "return"


def test_the_mood_of_a_failure_is_clamped_and_named_by_its_octant() -> None:
    moods = {(-0.5, 0.4, -0.3): "Anxious", (-0.5, -0.4, 0.3): "Regretful", (-0.5, 0.4, 0.3): "Shocked",
             (0.1, -0.4, -0.3): "Resigned"}  # fmt: skip
    for (pleasure, arousal, dominance), label in moods.items():
        (row,) = failures([act(G, 5, status="reverted", pad=(pleasure, arousal, dominance))]).to_pylist()
        assert row["emotion"] == label
        assert (row["pleasure"], row["arousal"], row["dominance"]) == (pleasure, max(arousal, 0.0), max(dominance, 0.0))


@pytest.mark.parametrize(
    ("when", "sigma", "wanted"),
    [
        (STORM, 0.1, "HighVol"),
        (RALLY, 0.1, "Trending"),
        (LULL, 0.49, "LowVol"),
        (LULL, 0.5, "Ranging"),
        (LULL, None, "Ranging"),
        (STORM._replace(regime="unknown"), 0.1, "Unknown"),
    ],
)
def test_market_regimes_have_the_names_of_the_specification(when: Any, sigma: float | None, wanted: str) -> None:
    (row,) = failures([act(G, 5, status="reverted", when=when, sigma_ratio=sigma)]).to_pylist()
    assert row["market_regime"] == wanted


LATE = (act(G, 5, pnl_ppm=-5_000), check(G, 35, 5, -6_000))
KEY = STORM.structure.key


@pytest.mark.parametrize(
    ("rules", "confidence"),
    [
        (NO_RULES, 700_000),
        (rule(G, KEY, 1, -1, 820_000), 820_000),
        (rule(G, KEY, 1, -1, 500_000), 700_000),
        (rule(G, KEY, 1, 1, 600_000), 400_000),
        (rule(G, KEY, 2, 1, 600_000), 700_000),
        (rule(H, KEY, 1, 1, 600_000), 700_000),
        (rule(G, RALLY.structure.key, 1, 1, 600_000), 700_000),
        (rule(G, KEY, 1, 1, 600_000, status="candidate"), 700_000),
        (rule(G, KEY, 1, 0, 600_000), 700_000),
    ],
)
def test_a_failure_has_the_confidence_of_the_rule_at_its_close(rules: Any, confidence: int) -> None:
    derived = failures(LATE, rules=rules)
    assert derived["confidence_ppm"].to_pylist() == [confidence]
    assert scars_of(derived, deaths(), POLICY).num_rows == (confidence >= 650_000)
    hard = failures([act(G, 5, status="reverted")], rules=rules)
    assert hard["confidence_ppm"].to_pylist() == [700_000], "rules do not change the confidence of a reverted action"


def test_a_failure_known_to_the_clade_is_counted_and_makes_no_new_scar() -> None:
    rows = [act(g, t, status="reverted") for g, t in ((H, 5), (G, 6), (G, 60), (G, 70))]
    rows[3] = act(G, 70, status="reverted", when=RALLY)
    kin = scars_of(failures(rows), deaths(), POLICY).to_pylist()
    assert [(s["scar_id"], s["seen_count"], s["novelty_ppm"]) for s in kin] == [
        ("scar-g-1-3", 1, 10**6 - 3 * 10**6 // 6), ("scar-g-2-1", 3, 10**6),
    ]  # fmt: skip
    apart = scars_of(failures(rows, owners={G: "owner-1", H: "owner-2"}), deaths(), POLICY)
    assert apart["scar_id"].to_pylist() == ["scar-g-1-1", "scar-g-1-3", "scar-g-2-1"]


def test_only_a_scar_published_at_death_is_a_bloodstain_with_slower_decay() -> None:
    rows = [act(G, 5, status="reverted"), act(G, 60, status="reverted", when=RALLY)]
    for at_end in ((G, 70), (G, 100)):
        kept = scars_of(failures(rows), deaths(at_end), POLICY)
        assert kept["is_bloodstain"].to_pylist() == [False, True]
        assert kept["published"].to_pylist() == ["life", "death"]
        assert kept["qualified_at_tick"].to_pylist() == [50, at_end[1]]
    assert not any(scars_of(failures(rows), deaths((G, 101)), POLICY)["is_bloodstain"].to_pylist())
    at_us = kept["confirmed_at"].cast("int64").to_numpy() + 30 * 86_400_000_000
    assert scar_confidence(kept, at_us, POLICY).tolist() == [350_000, round(700_000 * 2 ** (-1 / 3))]
    assert scar_confidence(kept, at_us * 2, POLICY).tolist()[1] == 50_000, "it never goes below its floor"


def test_scar_numbers_continue_after_earlier_scars() -> None:
    derived = failures([act(G, 60, status="reverted")], known={G: 2})
    assert derived["scar_id"].to_pylist() == ["scar-g-1-3"]


def test_a_failure_of_a_golem_without_an_owner_is_refused() -> None:
    with pytest.raises(DerivationError, match="golem g-1: no owner on record"):
        failures([act(G, 5, status="reverted")], owners={H: "owner-1"})
