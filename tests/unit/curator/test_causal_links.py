"""Causal links: planted links are learned and confirmed, correlations are not, and ended links are retired."""

from __future__ import annotations

import math
from functools import cache

import pyarrow as pa
import pytest

from bardo_pipeline.curator.causality.granger import critical_sigmas, tasks
from bardo_pipeline.curator.state.grimoire_state import GrimoireState, from_table
from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.grimoire.confidence import PPM
from tests.support.fleets.causal_markets import POLICY, World, learned, links, noise, records_of, with_crashes
from tests.support.knowledge.handmade_grimoires import entry, grimoire

TICKS = 8_000


@cache
def _crashing() -> pa.Table:
    """A market whose crashes raise gas three ticks later, for tests of the policy alone."""
    return records_of(with_crashes(noise(4_000, 2), every=250, gas_after=3))


def _pairs(rows: list[dict[str, object]]) -> set[tuple[object, ...]]:
    return {(row["cause"], row["effect"], row["lag_ticks"], row["sign"]) for row in rows}


def _fleeing(world: World, *, every: int) -> World:
    """Crashes lower liquidity after one tick and raise gas after three, so liquidity precedes gas without causing
    it.
    """
    with_crashes(world, every=every, gas_after=3)
    for start in range(300, len(world.returns) - 80, every):
        world.liquidity[start + 1] -= 1.0
    return world


@pytest.mark.row("MEM-22", "MEM-2")
def test_a_planted_link_is_learned_at_its_lag_and_confirmed_later() -> None:
    learned_rows = links(records_of(with_crashes(noise(TICKS, 1), every=500, gas_after=3)))
    assert _pairs(learned_rows) == {("crash", "gas_gwei", 3, 1)}
    (link,) = learned_rows
    assert link["confidence_ppm"] > 0.6 * PPM
    assert link["kind"] == "causal_link"
    assert link["text"] == "For WETH/USDC on uniswap_v3: a sharp fall moves gas up 3 ticks later."


@pytest.mark.row("MEM-22")
def test_a_link_keeps_its_initial_confidence_until_later_evidence() -> None:
    made = learned(records_of(with_crashes(noise(TICKS, 2), every=500, gas_after=3)))
    selected_decisions = [r for r in made.decisions.to_pylist() if (r["cause"], r["effect"]) == ("crash", "gas_gwei")]
    operations = [row["operation"] for row in selected_decisions]
    assert operations[0] == "staged"
    assert operations.index("staged") < operations.index("created") < operations.index("reinforced")
    before = [
        row for row in selected_decisions if row["cycle"] < selected_decisions[operations.index("reinforced")]["cycle"]
    ]
    assert max(row["confidence_ppm"] for row in before) == POLICY.causal.confidence_found * PPM
    confirmed = selected_decisions[operations.index("reinforced")]
    assert confirmed["confidence_ppm"] >= POLICY.curator.confidence_fact * PPM
    first, last = confirmed["cause_ticks"]
    assert (first, last) == (confirmed["cycle"] * 50 - 999, confirmed["cycle"] * 50)


@pytest.mark.row("MEM-22")
def test_a_link_is_confirmed_by_the_number_of_witnesses_in_the_policy() -> None:
    asked = 5
    strict = POLICY.model_copy(update={"causal": POLICY.causal.model_copy(update={"confirm_witnesses": asked})})
    rows = learned(records_of(with_crashes(noise(2 * TICKS, 2), every=400, gas_after=3)), strict).decisions.to_pylist()
    own_rows = [row for row in rows if (row["cause"], row["effect"]) == ("crash", "gas_gwei")]
    confirmed = next(row for row in own_rows if row["operation"] == "reinforced")
    assert confirmed["own_count"] >= asked
    assert max(row["own_count"] for row in own_rows if row["cycle"] < confirmed["cycle"]) < asked


@pytest.mark.row("MEM-22")
@pytest.mark.parametrize(
    ("number", "missing"),
    [
        ("confirm_sigma", "reinforced"), ("found_sigma", "created"), ("info_min", "created"),
        ("effect_min", "staged"), ("events_min", "staged"),
    ],
)  # fmt: skip
def test_a_link_stops_before_the_stage_of_an_unreached_limit(number: str, missing: str) -> None:
    unreached = POLICY.model_copy(update={"causal": POLICY.causal.model_copy(update={number: 1_000_000})})
    stages = ["staged", "created", "reinforced"]
    for policy, reached in ((POLICY, stages), (unreached, stages[: stages.index(missing)])):
        rows = learned(_crashing(), policy).decisions.to_pylist()
        keys = {row["operation"] for row in rows if (row["cause"], row["effect"]) == ("crash", "gas_gwei")}
        assert keys == set(reached)


@pytest.mark.row("MEM-22")
def test_an_effect_at_another_lag_of_its_cause_creates_no_second_link() -> None:
    world = with_crashes(noise(TICKS, 7), every=400, gas_after=3)
    for start in range(300, TICKS - 80, 400):
        world.gas[start + 5] += 1.5
        world.liquidity[start + 2] -= 1.0
    learned_rows = _pairs(links(records_of(world)))
    assert ("crash", "gas_gwei") in {(cause, effect) for cause, effect, *_ in learned_rows}
    assert ("liquidity", "gas_gwei") not in {(cause, effect) for cause, effect, *_ in learned_rows}


@pytest.mark.row("MEM-22")
def test_two_effects_of_one_cause_are_not_linked_to_each_other() -> None:
    learned_rows = _pairs(links(records_of(_fleeing(noise(TICKS, 3), every=400))))
    assert ("crash", "gas_gwei", 3, 1) in learned_rows
    assert ("crash", "liquidity", 1, -1) in learned_rows
    assert not {(c, e) for c, e, *_ in learned_rows} & {("liquidity", "gas_gwei"), ("gas_gwei", "liquidity")}


@pytest.mark.full
@pytest.mark.row("MEM-22")
def test_noise_yields_no_more_links_than_the_false_discovery_bound() -> None:
    rows = [len(links(records_of(noise(4_000, 50 + seed)))) for seed in range(12)]
    assert sum(1 for count in rows if count) <= max(1, round(POLICY.causal.false_discovery * len(rows)))


@pytest.mark.full
@pytest.mark.row("MEM-22")
def test_a_link_that_stops_holding_is_contradicted_and_loses_its_confidence() -> None:
    stops = 6_000
    lasting = with_crashes(noise(2 * TICKS, 4), every=160, gas_after=3)
    stopped = with_crashes(noise(2 * TICKS, 4), every=160, gas_after=3, until=stops)
    confidence = {}
    for name, world in (("lasting", lasting), ("stopped", stopped)):
        selected_decisions = [
            r for r in learned(records_of(world)).decisions.to_pylist()
            if (r["cause"], r["effect"]) == ("crash", "gas_gwei") and r["cycle"] * 50 > stops + 1_000
        ]  # fmt: skip
        confidence[name] = (
            selected_decisions[-1]["confidence_ppm"] if selected_decisions[-1]["status"] == "active" else 0
        )
        against = sum(row["operation"] == "contradicted" for row in selected_decisions)
        assert (against > 0) == (name == "stopped")
    assert confidence["lasting"] > 0.9 * PPM
    assert confidence["stopped"] < 0.3 * PPM


def _wakes(ticks: int) -> World:
    """Crashes after which the price recovers for an hour, and other swings after which it does not."""
    world = with_crashes(noise(ticks, 6), every=400, gas_after=None, fall=(10, 0.006))
    with_crashes(world, every=400, gas_after=None, first=500)
    for start in range(300, ticks - 80, 400):
        world.returns[start + 10 : start + 75] += 0.0004
        world.returns[start + 204 : start + 275] -= 0.0004
    return world


@pytest.mark.row("MEM-22")
def test_the_crash_depth_separates_crashes_from_other_swings() -> None:
    records = records_of(_wakes(6_000))
    every_fall = POLICY.model_copy(update={"causal": POLICY.causal.model_copy(update={"crash_ppm": 1.0})})
    wake = ("crash", "price_return", 60, 1)
    assert wake in _pairs(links(records))
    assert wake not in _pairs(links(records, every_fall))


@pytest.mark.row("MEM-22")
def test_a_variable_that_changes_during_a_crash_is_not_linked_to_the_price() -> None:
    world = with_crashes(noise(6_000, 9), every=300, gas_after=None, fall=(15, 0.004))
    for start in range(300, 6_000 - 80, 300):
        world.liquidity[start : start + 14] -= 0.06
    keys = {pair[:2] for pair in _pairs(links(records_of(world)))}
    assert ("price_excursion", "price_return") in keys
    assert ("liquidity", "price_return") not in keys


@pytest.mark.row("MEM-22")
@pytest.mark.parametrize(("fresh_sum", "contradicted"), [(0, True), (900_000, False)])
def test_a_link_is_contradicted_by_evidence_against_the_minimum_effect(fresh_sum: int, contradicted: bool) -> None:
    """The stated effect shrank, so that no link is missed; the minimum effect did not."""
    about = Structure(
        "causal", "polygon", "uniswap_v3", "WETH/USDC", cause="price_return", effect="gas_gwei", lag_ticks=2
    )
    held = entry(
        "g-1", about, kind="causal_link", sign=1, confidence_ppm=500_000, effect_mean_ppm=10_000, text="-",
        own_sum=fresh_sum, own_sumsq=9_000_000, own_count=1,
    )  # fmt: skip
    quick = POLICY.model_copy(update={"causal": POLICY.causal.model_copy(update={"test_cycles": 4, "ticks_min": 200})})
    made = learned(records_of(noise(650, 8)), quick, from_table(grimoire(held)))
    selected_decisions = [row for row in made.decisions.to_pylist() if row["structure"] == about.key]
    assert ("contradicted" in {row["operation"] for row in selected_decisions}) is contradicted


@pytest.mark.row("MEM-22")
def test_critical_sigmas_bound_false_discoveries_over_all_pairs_and_lags() -> None:
    tried = sum(len(task.causes) for task in tasks())
    harmonic = sum(1 / i for i in range(1, tried + 1))
    for k, limit in enumerate(critical_sigmas(POLICY.causal), 1):
        chance = math.erfc(limit / math.sqrt(2.0))
        assert chance == pytest.approx(POLICY.causal.false_discovery * k / (tried * harmonic), rel=1e-6)


@pytest.mark.row("MEM-22")
def test_a_golem_with_few_ticks_learns_no_links() -> None:
    state = GrimoireState()
    made = learned(records_of(with_crashes(noise(900, 5), every=100, gas_after=3)), state=state)
    assert "causal" not in made.decisions.column("source").to_pylist()
    assert len(state.moments.of) == 1
