"""Links and crossings equal their twins, and only entries that the documents allow may cross."""

from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bardo_pipeline.curator.views.crossings import CROSSING_SCHEMA, LINK_SCHEMA, crossings_of, is_elder, links_of
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS, CHANGE_CATEGORY
from bardo_pipeline.grimoire.gas_bands import GAS_SPANS
from tests.reference.learning.bridge import crossings_by_row, links_by_row
from tests.support.example_count import times
from tests.support.knowledge.handmade_grimoires import DIED, POLICY, baseline, causal, dreamt, entry, grimoire, pattern

examples = settings(max_examples=times(40), deadline=None, derandomize=True)
trust = st.integers(0, 10**6)
rules = st.builds(
    pattern, st.sampled_from(["uniswap_v3_rebalance", "other"]), regime=st.sampled_from(REGIMES),
    anomaly_band=st.sampled_from(ANOMALY_BANDS), gas_band=st.sampled_from(GAS_SPANS),
)  # fmt: skip
NEAR = [
    pattern("uniswap_v3_rebalance", regime=regime, anomaly_band=anomaly, gas_band=gas)
    for regime in REGIMES[:2] for anomaly in ANOMALY_BANDS[1:4] for gas in ("cheap", "normal", "not_dear")
]  # fmt: skip
"""Rules each of which bears on many of the others."""
chains = st.builds(causal, st.sampled_from(["crash", "gas_gwei"]), st.sampled_from(["gas_gwei", "volume"]))
dreams = st.builds(
    dreamt, st.sampled_from(sorted(CHANGE_CATEGORY)), regime=st.sampled_from(REGIMES),
    anomaly_band=st.sampled_from(ANOMALY_BANDS),
)  # fmt: skip
levels = st.builds(baseline, st.sampled_from(["gas_price", "pool_volume"]))


@st.composite
def known(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw the knowledge of some golems: rules, chains and levels of every kind and trust."""
    rows = {}
    for golem_id in ("g-1", "g-2"):
        which = draw(st.integers(0, 2 ** len(NEAR) - 1))
        near = [about for place, about in enumerate(NEAR) if which >> place & 1]
        others = draw(st.lists(st.one_of(rules, chains, chains, dreams, levels), max_size=6, unique=True))
        for about in dict.fromkeys([*near, *others]):
            sign = 0 if about.source == "baseline" else draw(st.sampled_from([-1, 1, 1, 0]))
            unit = draw(st.sampled_from([1, 1, 10**13]))  # a baseline may have any metric and a value of any size
            low, size = draw(st.integers(-3_000, 3_000)) * unit, draw(st.integers(0, 4_000)) * unit
            made = DIED - timedelta(days=20)
            row = entry(
                golem_id, about, sign=sign, confidence_ppm=draw(trust), own_count=draw(st.integers(0, 12)),
                kind=draw(st.sampled_from(["insight", "heuristic", "warning", "causal_link"])),
                status=draw(st.sampled_from(["active", "active", "active", "pruned", "folded"])),
                validations=draw(st.integers(0, 4)), contradictions=draw(st.integers(0, 4)), effect_low_ppm=low,
                effect_high_ppm=low + size, effect_mean_ppm=low + size // 2, created_at=made,
                validated_at=made + timedelta(days=draw(st.integers(0, 3))),
            )  # fmt: skip
            rows[golem_id, row["entry_id"]] = row
    return list(rows.values())


@pytest.mark.row("MEM-14", "MEM-16", "INH-20")
@examples
@given(known(), st.sets(st.sampled_from(["g-1", "g-2"])))
def test_links_and_crossings_equal_their_twins(rows: list[dict[str, Any]], old: set[str]) -> None:
    entries = grimoire(*rows)
    assert links_of(entries).to_pylist() == links_by_row(rows)
    assert crossings_of(entries, POLICY, old).to_pylist() == crossings_by_row(rows, POLICY, old)


@pytest.mark.row("INH-20")
@pytest.mark.parametrize(
    ("trust", "young", "old"), [(399_999, False, False), (400_000, False, True), (600_000, True, True)]
)
def test_an_elder_pushes_insights_from_a_lower_confidence(trust: int, young: bool, old: bool) -> None:
    sure = entry(about=pattern("uniswap_v3_rebalance"), kind="insight", confidence_ppm=trust, own_count=12,
                 validations=4, effect_low_ppm=990, effect_high_ppm=1_010, effect_mean_ppm=1_000)  # fmt: skip
    for elders, crosses in (((), young), ((sure["golem_id"],), old), (("g-other",), young)):
        (row,) = crossings_of(grimoire(sure), POLICY, elders).to_pylist()
        assert (row["gate"], row["crosses"]) == ("admission", crosses), row["reason"]


def test_crossings_equal_their_twin_for_a_zero_mean_with_a_huge_spread() -> None:
    fields = {"effect_mean_ppm": 0, "effect_low_ppm": -(10**18), "effect_high_ppm": 10**18, "own_count": 4}
    rows = [
        entry(about=pattern("uniswap_v3_rebalance"), **fields),
        entry(about=baseline("gas_price"), sign=0, **fields),
    ]
    assert crossings_of(grimoire(*rows), POLICY).to_pylist() == crossings_by_row(rows, POLICY)


@pytest.mark.row("MEM-14")
def test_an_admission_score_equal_to_the_minimum_does_not_cross() -> None:
    sure = grimoire(entry(kind="insight", confidence_ppm=900_000, own_count=12, validations=4))
    (row,) = crossings_of(sure, POLICY).to_pylist()
    for asked, crosses in ((row["admission_ppm"], False), (row["admission_ppm"] - 1, True)):
        bridge = POLICY.bridge.model_copy(update={"admission_min": asked / 10**6})
        (again,) = crossings_of(sure, POLICY.model_copy(update={"bridge": bridge})).to_pylist()
        assert again["crosses"] is crosses


@pytest.mark.row("INH-20")
def test_a_golem_is_old_above_a_hayflick_ratio_of_0_85() -> None:
    assert is_elder(np.array([849, 850, 851]), np.array([1_000] * 3), POLICY.bridge).tolist() == [False, False, True]


def test_an_empty_grimoire_yields_no_links_and_no_crossings() -> None:
    assert links_of(grimoire()).equals(LINK_SCHEMA.empty_table())
    assert crossings_of(grimoire(), POLICY).equals(CROSSING_SCHEMA.empty_table())


def test_rules_link_across_one_band_and_causal_links_chain() -> None:
    here = entry(about=pattern("uniswap_v3_rebalance"))
    further = entry(about=pattern("uniswap_v3_rebalance", anomaly_band="stretched"))
    trending = entry(about=pattern("uniswap_v3_rebalance", regime="trending_up"), sign=-1)
    far = entry(about=pattern("uniswap_v3_rebalance", regime="trending_up", gas_band="dear"))
    cause, next_cause = (entry(about=causal(a, b), sign=1) for a, b in (("crash", "gas_gwei"), ("gas_gwei", "volume")))
    links = links_of(grimoire(here, further, trending, far, cause, next_cause)).to_pylist()
    keys = {(frozenset((r["entry_id"], r["other_id"])), r["relation"], r["across"]) for r in links}
    ids = [row["entry_id"] for row in (here, further, trending, far, cause, next_cause)]
    assert keys == {
        (frozenset(ids[:2]), "agrees", "anomaly"),
        (frozenset((ids[0], ids[2])), "differs", "regime"),
        (frozenset(ids[2:4]), "differs", "gas"),
        (frozenset(ids[4:]), "leads_to", "cause"),
    }
    (chain,) = [r for r in links if r["across"] == "cause"]
    assert (chain["entry_id"], chain["other_id"]) == (ids[4], ids[5])


def _gate(**fields: Any) -> dict[str, Any]:
    plain = {"own_count": 6, "confidence_ppm": 800_000, "validations": 3, "created_at": DIED - timedelta(days=12)}
    (row,) = crossings_of(grimoire(entry(**(plain | fields))), POLICY).to_pylist()
    return row


@pytest.mark.row("MEM-14")
@pytest.mark.parametrize(
    ("row", "crosses"),
    [
        ({}, True),
        ({"confidence_ppm": 599_999}, False),
        ({"validations": 0, "contradictions": 8, "own_count": 1, "effect_low_ppm": -3_000}, False),
        ({"kind": "heuristic"}, True),
        ({"kind": "heuristic", "confidence_ppm": 699_999}, False),
        ({"kind": "heuristic", "validations": 2, "contradictions": 2}, False),
        ({"kind": "heuristic", "validated_at": DIED - timedelta(days=12)}, False),
        ({"kind": "warning", "confidence_ppm": 1, "validations": 0, "contradictions": 9}, True),
    ],
)
def test_insights_heuristics_and_warnings_cross_by_their_own_gates(row: dict[str, Any], crosses: bool) -> None:
    assert _gate(**row)["crosses"] is crosses


@pytest.mark.row("MEM-14")
def test_an_entry_without_own_evidence_does_not_cross() -> None:
    assert crossings_of(grimoire(entry(own_count=0)), POLICY).num_rows == 0


@pytest.mark.row("MEM-14")
def test_a_warning_repeated_by_similar_entries_does_not_cross() -> None:
    fields = {"kind": "warning", "own_count": 4, "sign": -1}
    regimes = [entry(about=pattern("uniswap_v3_rebalance", regime=regime), **fields) for regime in REGIMES]
    near = [
        entry(about=pattern("uniswap_v3_rebalance", anomaly_band=band), **fields) for band in ("stirred", "stretched")
    ]
    rows = {r["entry_id"]: r for r in crossings_of(grimoire(*regimes, *near), POLICY).to_pylist()}
    (middle,) = [e["entry_id"] for e in regimes if e["regime"] == "volatile"]
    assert not rows[middle]["crosses"]
    assert rows[middle]["reason"] == "others of the golem say as much"


@pytest.mark.row("MEM-14")
def test_crossings_have_no_columns_of_private_data() -> None:
    names = set(CROSSING_SCHEMA.names)
    assert not {n for n in names if any(w in n for w in ("pnl", "value", "episode", "tick", "effect", "text"))}
