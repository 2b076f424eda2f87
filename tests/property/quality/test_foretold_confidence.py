"""Foretold confidence: monotone, bounded, fed by later verdicts only, independent of the order of votes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from bardo_pipeline.policy import Policy
from bardo_pipeline.quality.foretold_confidence import (
    JUDGED_VOTE_SCHEMA,
    VOTE_OPERATIONS,
    Foretelling,
    foretold_maps,
    foretold_ppm,
    monotone,
)
from tests.support.example_count import times
from tests.support.knowledge.handmade_grimoires import shuffled
from tests.unit.curator.test_choice_rules import learned, trial

pytestmark = pytest.mark.row("X-5", "X-3")
POLICY = Policy()
RULES, CURATOR = POLICY.foretelling, POLICY.curator
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
LAST_US = round((BEGAN + timedelta(days=20)).timestamp()) * 1_000_000


def votes_of(*rows: tuple[float, bool], subject: str = "warning", apart: float = 25.0) -> pa.Table:
    """Return votes (confidence before, agreed) on the rules of one kind, each some hours after the vote before."""
    return pa.Table.from_pylist(
        [
            {
                "structure": "pattern|x", "source": "pattern", "kind": subject,
                "operation": "reinforced" if agreed else "contradicted", "at": BEGAN + timedelta(hours=apart * number),
                "confidence_before_ppm": round(before * 10**6),
            }
            for number, (before, agreed) in enumerate(rows)
        ],
        schema=JUDGED_VOTE_SCHEMA,
    )  # fmt: skip


@st.composite
def judged(draw: st.DrawFn) -> pa.Table:
    """Votes of several kinds on several structures over twelve days, with ties in time."""
    rows = [
        {
            "structure": draw(st.sampled_from("pqr")),
            "source": draw(st.sampled_from(["pattern", "baseline", "causal", "choice"])),
            "kind": draw(st.sampled_from(["insight", "warning"])),
            "operation": draw(st.sampled_from(["reinforced", "contradicted"])),
            "at": BEGAN + timedelta(hours=draw(st.integers(0, 288))),
            "confidence_before_ppm": draw(st.integers(0, 10**6)),
        }
        for _ in range(draw(st.integers(1, 40)))
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=JUDGED_VOTE_SCHEMA)


def by_row(votes: pa.Table, at: datetime) -> dict[str, list[float]]:
    """Return the share of agreeing witnesses by subject and band, before it is made monotone; and the weights."""
    rows = [r for r in votes.to_pylist() if at - timedelta(days=RULES.window_days) < r["at"] <= at]
    named = {"baseline": "level", "causal": "causal_link", "choice": "choice"}
    shares: dict[str, list[float]] = {}
    for subject in {named.get(r["source"], r["kind"]) for r in rows}:
        own = [r for r in rows if named.get(r["source"], r["kind"]) == subject]
        prior = 0.7 if subject in ("level", "causal_link") else 0.6
        share = RULES.prior_witnesses / RULES.bands
        heard, held = [share] * RULES.bands, [share * prior] * RULES.bands
        for row in own:
            crowd = sum(r["structure"] == row["structure"] and r["at"].date() == row["at"].date() for r in own)
            weight = float(Fraction(1, crowd)) * 2 ** (-((at - row["at"]) / timedelta(days=RULES.half_life_days)))
            band = min(row["confidence_before_ppm"] * RULES.bands // 10**6, RULES.bands - 1)
            heard[band] += weight
            held[band] += weight * (row["operation"] == "reinforced")
        fitted = isotonic_regression([a / b for a, b in zip(held, heard, strict=True)], weights=heard).x
        shares[subject] = np.clip(fitted, RULES.foretold_min, RULES.foretold_max).tolist()
    return shares


@settings(max_examples=times(40), deadline=None)
@given(judged(), st.integers(0, 2**32), st.integers(0, 300))
def test_maps_equal_their_twin_in_any_order_and_know_no_later_vote(votes: pa.Table, seed: int, hours: int) -> None:
    at = BEGAN + timedelta(hours=hours)
    at_us = round(at.timestamp()) * 1_000_000
    maps = foretold_maps(votes, at_us, RULES, CURATOR)
    expected = by_row(votes, at)
    assert maps.keys() == expected.keys()
    for subject, known in maps.items():
        assert [p / 10**6 for p in known.foretold_ppm] == pytest.approx(expected[subject], abs=2e-6)
        assert list(known.foretold_ppm) == sorted(known.foretold_ppm)
        assert (
            RULES.foretold_min <= known.foretold_ppm[0] / 10**6 <= known.foretold_ppm[-1] / 10**6 <= RULES.foretold_max
        )
    assert foretold_maps(shuffled(votes, seed), at_us, RULES, CURATOR) == maps
    earlier = votes.filter(pa.array([r["at"] <= at for r in votes.to_pylist()], pa.bool_()))
    if earlier.num_rows:
        assert Foretelling(earlier, RULES, CURATOR).maps(at_us) == maps


@settings(max_examples=times(40), deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.01, 50)), min_size=1, max_size=12))
def test_pooling_adjacent_violators_equals_isotonic_regression(pairs: list[tuple[float, float]]) -> None:
    values, weights = np.array(pairs).T
    assert monotone(values, weights) == pytest.approx(isotonic_regression(values, weights=weights).x, abs=1e-9)


def test_a_confidence_that_foretold_nothing_is_corrected_towards_what_held() -> None:
    surely_wrong = [(0.95, number % 4 == 0) for number in range(40)] + [(0.35, number % 4 != 0) for number in range(40)]
    votes = votes_of(*surely_wrong, apart=24.0)
    at_us = round((BEGAN + timedelta(days=79)).timestamp()) * 1_000_000
    slow = RULES.model_copy(update={"half_life_days": 1000.0, "window_days": 1000.0})
    entries = pa.table({"source": ["pattern"] * 2, "kind": ["warning"] * 2})
    stated = np.array([350_000, 950_000])
    foretold = foretold_ppm(foretold_maps(votes, at_us, slow, CURATOR), entries, stated)
    assert (foretold == foretold[0]).all(), "a map never says less for more confidence"
    assert foretold[0] == pytest.approx(530_000, abs=30_000)
    held = np.array([0.75, 0.25])
    assert ((foretold / 10**6 - held) ** 2).mean() < ((stated / 10**6 - held) ** 2).mean()


def test_siblings_judged_by_one_storm_are_one_witness() -> None:
    storm = votes_of(*[(0.8, False)] * 50, apart=0.0)
    alone = votes_of((0.8, False))
    maps = [foretold_maps(votes, LAST_US - 15 * 86_400_000_000, RULES, CURATOR) for votes in (storm, alone)]
    assert maps[0]["warning"].witnesses == pytest.approx(maps[1]["warning"].witnesses)
    assert maps[0]["warning"].foretold_ppm == maps[1]["warning"].foretold_ppm


def test_confirmations_of_a_fragment_measure_nothing_and_choices_do_not_measure_patterns() -> None:
    made, _ = learned([3_000] * 8, trial(50, 4_000, "4_hours", "leave"))
    votes = made.decisions.filter(pc.is_in(made.decisions["operation"], value_set=pa.array(VOTE_OPERATIONS)))
    assert set(votes["source"].to_pylist()) >= {"choice", "strategy"}
    at_us = max(votes["at"].cast(pa.int64()).to_pylist())
    maps = foretold_maps(votes, at_us, RULES, CURATOR)
    assert set(maps) - {"level"} == {"choice"}
    entries = pa.table({"source": ["strategy", "pattern"], "kind": ["strategy_fragment", "heuristic"]})
    assert foretold_ppm(maps, entries, np.array([700_000, 700_000])).tolist() == [700_000, 700_000]


def test_an_unmeasured_subject_keeps_its_confidence() -> None:
    entries = pa.table({"source": ["pattern", "dream"], "kind": ["insight", "insight"]})
    maps = foretold_maps(votes_of((0.8, True)), LAST_US, RULES, CURATOR)
    assert foretold_ppm(maps, entries, np.array([123_456, 250_000])).tolist() == [123_456, 250_000]
