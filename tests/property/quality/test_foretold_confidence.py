"""Foretold confidence: monotone, bounded, fed by later verdicts only, independent of the order of votes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from bardo_pipeline.curator.state.decision_log import DECISION_SCHEMA
from bardo_pipeline.grimoire.confidence import DAY_US
from bardo_pipeline.policy import Policy
from bardo_pipeline.quality.foretold_confidence import (
    FORETOLD_COLUMNS,
    chances_of,
    foretold_maps,
    foretold_ppm,
    monotone,
)
from tests.reference.learning.calibration import sureness
from tests.support.example_count import times
from tests.support.knowledge.handmade_grimoires import shuffled
from tests.unit.curator.test_choice_rules import learned, trial

pytestmark = pytest.mark.row("X-5", "X-3")
POLICY = Policy()
RULES = POLICY.foretelling
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
BEGAN_US = round(BEGAN.timestamp()) * 1_000_000
LAST_US = BEGAN_US + 20 * DAY_US


def decisions_of(*rows: dict[str, Any]) -> pa.Table:
    """Return decisions of one golem about one warning; `rows` change any column. seq is the row's place."""
    plain = {
        "golem_id": "g-1", "revision": 0, "cycle": 1, "at": BEGAN, "operation": "staged", "confidence_before_ppm": 0,
        "structure": "pattern|x", "source": "pattern", "kind": "warning", "status": "active", "sign": -1,
        "confidence_ppm": 600_000, "decay_class": "tactical", "provenance": "self", "is_anti_knowledge": False,
        "is_bloodstain": False, "evidence_count": 0, "pinned_ppm": 0, "own_count": 0, "own_sum": 0, "own_sumsq": 0,
    }  # fmt: skip
    filled = [plain | {"seq": place, "anchor_at": row.get("at", BEGAN)} | row for place, row in enumerate(rows)]
    return pa.Table.from_pylist(filled, schema=pa.schema([DECISION_SCHEMA.field(n) for n in FORETOLD_COLUMNS]))


def lives_of(*days: tuple[float, bool], **fields: Any) -> pa.Table:
    """Return a rule's decisions, one a day: its confidence, and whether the evidence of that day has its sign."""
    rows, total = [], 0
    for day, (stated, held) in enumerate(days):
        at = BEGAN + timedelta(days=day)
        rows.append(
            {"at": at, "cycle": 2 * day, "own_count": day, "own_sum": total, "confidence_ppm": round(stated * 10**6)}
        )
        total += -100 if held else 100
        rows.append(
            {
                "at": at + timedelta(hours=23),
                "cycle": 2 * day + 1,
                "status": "pruned",
                "own_count": day + 1,
                "own_sum": total,
            }
        )
    return decisions_of(*(row | fields for row in rows))


@st.composite
def lived(draw: st.DrawFn) -> pa.Table:
    """Decisions of two golems on several structures over twelve days, with growing evidence."""
    rows: list[dict[str, Any]] = []
    for golem_id, structure in product(("g-1", "g-2"), "pqr"):
        hour = count = total = 0
        source = draw(st.sampled_from(["pattern", "baseline", "causal", "choice", "dream", "strategy"]))
        for cycle in range(draw(st.integers(0, 8))):
            hour += draw(st.integers(0, 60))
            gained = draw(st.integers(0, 3))
            count, total = count + gained, total + gained * draw(st.integers(-3000, 3000))
            rows.append({
                "golem_id": golem_id, "structure": structure, "source": source, "cycle": cycle, "own_count": count,
                "own_sum": total, "own_sumsq": total**2 * draw(st.integers(0, 2)), "at": BEGAN + timedelta(hours=hour),
                "regime": draw(st.sampled_from([None, "volatile"])),
                "kind": draw(st.sampled_from(["insight", "warning"])),
                "operation": draw(st.sampled_from(["reinforced", "contradicted", "staged", "generalized"])),
                "status": draw(st.sampled_from(["active", "active", "pruned"])),
                "sign": draw(st.sampled_from([-1, 0, 1])),
                "confidence_before_ppm": draw(st.integers(0, 10**6)), "confidence_ppm": draw(st.integers(0, 10**6)),
            })  # fmt: skip
    return decisions_of(*rows)


NAMED = {"baseline": "level", "causal": "causal_link", "dream": "dream", "choice": "choice"}


def chance_of(row: dict[str, Any]) -> float:
    """Return the chance that one entry holds on the next day."""
    if row["source"] in ("baseline", "causal", "dream"):
        return 0.6 if row["source"] == "dream" else 0.7
    count, total, prior = row["own_count"], row["own_sum"], POLICY.curator.variance_prior
    if not count:
        return 0.5
    ahead = RULES.pattern_windows
    if row["source"] == "choice":
        ahead = RULES.regime_windows if row["regime"] else RULES.choice_windows
    squares = max(row["own_sumsq"] - total**2 / count, 0)
    variance = (prior * POLICY.curator.effect_sigma_prior_ppm**2 + squares) / (prior + count - 1)
    lead = row["sign"] * total / (count + prior) / math.sqrt(variance * (1 / ahead + 1 / count))
    return 1 / (1 + math.exp(-min(max(1.7 * lead, -700), 700)))


def verdicts_by_row(decisions: pa.Table, at: datetime) -> Iterator[dict[str, Any]]:
    """Yield the verdicts known at a moment, in turn: subject, structure, time, confidence, share of its day, held."""
    rows = decisions.to_pylist()
    for row in rows:
        about = {"subject": NAMED.get(row["source"], row["kind"]), "structure": row["structure"], "at": row["at"]}
        about["chance"] = chance_of(row)
        if not at - timedelta(days=RULES.window_days) < row["at"] <= at or row["source"] == "strategy":
            continue
        if row["source"] not in ("pattern", "choice"):
            if row["operation"] in ("reinforced", "contradicted"):
                held = row["operation"] == "reinforced"
                yield about | {"until": row["at"], "stated": row["confidence_before_ppm"], "share": 1.0, "held": held}
            continue
        if row["status"] != "active" or not row["sign"]:
            continue
        same = [r for r in rows if (r["golem_id"], r["structure"]) == (row["golem_id"], row["structure"])]
        last, until = row, min(at, row["at"] + timedelta(days=1))
        for later in sorted((r for r in same if r["cycle"] > row["cycle"]), key=lambda r: r["cycle"]):
            if later["at"] > until or later["operation"] == "generalized":
                break
            last = later
        if last["own_count"] > row["own_count"]:
            held = (last["own_sum"] - row["own_sum"]) * row["sign"] > 0
            share, stated = (until - row["at"]) / timedelta(days=1), sureness(row, row["at"], POLICY.decay)
            yield about | {
                "until": until,
                "stated": stated,
                "share": share,
                "held": held,
            }


def by_row(decisions: pa.Table, at: datetime) -> dict[str, list[float]]:
    """Return the correction by subject and band, each verdict in turn."""
    known = list(verdicts_by_row(decisions, at))
    corrections: dict[str, list[float]] = {}
    for subject in {v["subject"] for v in known} | {"insight", "heuristic", "warning", "choice"}:
        own = [v for v in known if v["subject"] == subject]
        weights = []
        for verdict in own:
            judged = [v["structure"] for v in own if v["at"].date() == verdict["at"].date()]
            crowd = judged.count(verdict["structure"]) * len(set(judged))
            fading = 2 ** (-((at - verdict["until"]) / timedelta(days=RULES.half_life_days)))
            weights.append(float(Fraction(1, crowd)) * fading * verdict["share"])
        surplus = [v["held"] - v["chance"] for v in own]
        prior = 2.0 if subject in ("level", "causal_link", "dream") else 20.0
        of_all = sum(w * x for w, x in zip(weights, surplus, strict=True)) / (sum(weights) + prior)
        heard, gained = [prior] * RULES.bands, [prior * of_all] * RULES.bands
        for weight, extra, verdict in zip(weights, surplus, own, strict=True):
            band = min(verdict["stated"] * RULES.bands // 10**6, RULES.bands - 1)
            heard[band] += weight
            gained[band] += weight * extra
        fitted = isotonic_regression([a / b for a, b in zip(gained, heard, strict=True)], weights=heard).x
        corrections[subject] = fitted.tolist()
    return corrections


@settings(max_examples=times(40), deadline=None)
@given(lived(), st.integers(0, 2**32), st.integers(0, 300))
def test_maps_equal_their_twin_in_any_order_and_know_nothing_later(decisions: pa.Table, seed: int, hours: int) -> None:
    at = BEGAN + timedelta(hours=hours)
    at_us = round(at.timestamp()) * 1_000_000
    maps = foretold_maps(decisions, at_us, POLICY)
    expected = by_row(decisions, at)
    assert maps.keys() == expected.keys()
    for subject, known in maps.items():
        assert [p / 10**6 for p in known.correction_ppm] == pytest.approx(expected[subject], abs=2e-6)
        foretold = known.of(np.arange(0, 10**6, 50_000), np.full(20, 10 * hours)).tolist()
        assert foretold == sorted(foretold), "a map never says less for more confidence"
        assert 50_000 <= foretold[0] <= foretold[-1] <= 980_000
    subject, chance = chances_of(decisions, POLICY)
    rows = [row for row in decisions.to_pylist() if row["source"] != "strategy"]
    assert len(subject) == decisions.num_rows
    learnt = chance[[row["source"] != "strategy" for row in decisions.to_pylist()]] / 10**6
    assert learnt.tolist() == pytest.approx([chance_of(row) for row in rows], abs=2e-6)
    assert foretold_maps(shuffled(decisions, seed), at_us, POLICY) == maps
    earlier = decisions.filter(pa.array([r["at"] <= at for r in decisions.to_pylist()], pa.bool_()))
    assert foretold_maps(earlier, at_us, POLICY) == maps


@settings(max_examples=times(40), deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.01, 50)), min_size=1, max_size=12))
def test_pooling_adjacent_violators_equals_isotonic_regression(pairs: list[tuple[float, float]]) -> None:
    values, weights = np.array(pairs).T
    assert monotone(values, weights) == pytest.approx(isotonic_regression(values, weights=weights).x, abs=1e-9)


def test_a_confidence_that_foretold_nothing_is_corrected_towards_what_held() -> None:
    surely_wrong = lives_of(*[(0.95, day % 4 == 0) for day in range(80)], structure="p")
    right = lives_of(*[(0.35, day % 4 != 0) for day in range(80)], structure="q")
    slow = RULES.model_copy(update={"half_life_days": 1000.0, "window_days": 1000.0})
    at_us = round((BEGAN + timedelta(days=81)).timestamp()) * 1_000_000
    maps = foretold_maps(
        pa.concat_tables([surely_wrong, right]), at_us, POLICY.model_copy(update={"foretelling": slow})
    )
    stated = np.array([350_000, 950_000])
    foretold = foretold_ppm(maps, np.array(["warning"] * 2, object), np.array([500_000] * 2), stated)
    assert (foretold == foretold[0]).all(), "a map never says less for more confidence"
    assert foretold[0] == pytest.approx(500_000, abs=30_000)
    held = np.array([0.75, 0.25])
    assert ((foretold / 10**6 - held) ** 2).mean() < ((stated / 10**6 - held) ** 2).mean()


@pytest.mark.parametrize("of", ["golem_id", "structure"])
def test_siblings_and_structures_judged_by_one_storm_are_one_witness(of: str) -> None:
    alone = lives_of((0.8, False))
    storm = pa.concat_tables([lives_of((0.8, False), **{of: f"x-{number}"}) for number in range(50)])
    maps = [foretold_maps(decisions, LAST_US - 15 * DAY_US, POLICY) for decisions in (storm, alone)]
    assert maps[0]["warning"].witnesses == pytest.approx(maps[1]["warning"].witnesses)
    assert maps[0]["warning"].correction_ppm == pytest.approx(maps[1]["warning"].correction_ppm, abs=1)


def test_a_verdict_counts_by_the_share_of_its_day_that_has_passed() -> None:
    early = {"own_count": 1, "own_sum": 100}
    rows = decisions_of({}, early | {"at": BEGAN + timedelta(hours=6), "cycle": 2, "status": "pruned"})
    witnesses = [
        foretold_maps(rows, round((BEGAN + timedelta(hours=hours)).timestamp()) * 1_000_000, POLICY)[
            "warning"
        ].witnesses
        for hours in (5, 6, 12, 24)
    ]
    assert witnesses == pytest.approx([0.0, 0.25, 0.5, 1.0])


def test_evidence_taken_over_from_other_rules_is_no_verdict() -> None:
    merged = {"at": BEGAN + timedelta(hours=6), "cycle": 2, "own_count": 9, "own_sum": -900, "operation": "generalized"}
    maps = foretold_maps(decisions_of({}, merged), BEGAN_US + DAY_US, POLICY)
    assert maps["warning"].witnesses == 0.0


def test_confirmations_of_a_fragment_measure_nothing_and_choices_do_not_measure_patterns() -> None:
    made, _ = learned([3_000] * 8, trial(50, 4_000, "4_hours", "leave"))
    assert set(made.decisions["source"].to_pylist()) >= {"choice", "strategy"}
    at_us = max(made.decisions["at"].cast(pa.int64()).to_pylist())
    maps = foretold_maps(made.decisions, at_us, POLICY)
    assert {name for name, known in maps.items() if known.witnesses} - {"level"} == {"choice"}


def test_an_unmeasured_rule_foretells_its_chance_and_a_dream_its_own_confidence() -> None:
    maps = foretold_maps(lives_of((0.8, True)), LAST_US, POLICY)
    subject, chance = np.array(["insight", "choice", "dream"], object), np.array([510_000, 999_000, 600_000])
    assert foretold_ppm(maps, subject, chance, np.array([123_456, 100_000, 250_000])).tolist() == [
        510_000,
        980_000,
        250_000,
    ]


def test_a_chance_grows_with_effect_windows_and_the_part_of_the_day_in_which_it_is_judged() -> None:
    own = {
        "source": "choice",
        "kind": "heuristic",
        "sign": 1,
        "own_count": 40,
        "own_sum": 40_000,
        "own_sumsq": 4 * 10**8,
    }
    rows = decisions_of(
        own | {"sign": -1},
        own | {"own_count": 0, "own_sum": 0, "own_sumsq": 0},
        own | {"own_count": 10, "own_sum": 10_000, "own_sumsq": 10**8, "regime": "volatile"},
        own | {"regime": "volatile"},
        own,
        own | {"own_sum": 80_000, "own_sumsq": 5 * 10**8},
    )
    _, chance = chances_of(rows, POLICY)
    assert chance[1] == 500_000
    assert chance[0] + chance[4] == 10**6
    assert (np.diff(chance) > 0).all()


def test_the_next_days_of_drawn_windows_have_the_sign_of_the_last_ones_as_often_as_foretold() -> None:
    random = np.random.default_rng(7)
    ahead, count = round(RULES.regime_windows), 25
    true = np.abs(random.normal(0, 1_000, 4_000))
    windows = np.rint(random.normal(true[:, None], 2_500, (4_000, count + ahead))).astype(np.int64)
    last, days = windows[:, :count], windows[:, count:].sum(axis=1)
    sign = np.sign(last.sum(axis=1))
    columns = {"own_sum": last.sum(axis=1), "own_sumsq": (last**2).sum(axis=1), "own_count": [count] * 4_000}
    learnt = pa.table(columns | {"sign": sign, "source": ["choice"] * 4_000, "kind": ["heuristic"] * 4_000})
    _, chance = chances_of(learnt.append_column("regime", pa.array(["volatile"] * 4_000)), POLICY)
    held, band = days * sign > 0, np.digitize(chance, [700_000, 900_000])
    for number in range(3):
        own = band == number
        assert own.sum() > 400
        assert held[own].mean() == pytest.approx(chance[own].mean() / 10**6, abs=0.06)
