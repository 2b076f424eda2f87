"""Foresight: confirmed links move the prediction of the price, and a broken link raises the probe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bardo_pipeline.curator.causality.variables import (
    ALL_VARIABLES,
    PRICE_EXCURSION,
    SCALE,
    WARM,
    readings,
    standardised,
)
from bardo_pipeline.curator.state.grimoire_state import from_table
from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.heartbeat.causal_forecast import foresight_of, nothing_foreseen
from bardo_pipeline.heartbeat.fleet import Fleet, Founding, born
from bardo_pipeline.heartbeat.observe import PRICE, forecast, sigma_now
from bardo_pipeline.heartbeat.probes import LINK_CANDIDATE, LINK_INVALIDATED
from bardo_pipeline.market.market import tick_of_price
from bardo_pipeline.market.tick_series import Tape, tape_of
from tests.support.fleets.memory_fleets import drawn_market, live
from tests.support.knowledge.handmade_grimoires import DIED, POLICY, entry, grimoire

NOW = int(DIED.timestamp() * 10**6)
REVERTS = Structure(
    "causal", "polygon", "uniswap_v3", "WETH/USDC", cause="price_excursion", effect="price_return", lag_ticks=1
)


def link(golem_id: str = "g-1", **fields: Any) -> dict[str, Any]:
    """Return a link: a price above its mean falls by a tenth of its spread per percent."""
    plain = {"kind": "causal_link", "sign": -1, "confidence_ppm": 900_000, "effect_mean_ppm": -100_000, "text": "-"}
    return entry(golem_id, REVERTS, **{**plain, "anchor_at": DIED, "evidence_count": 9, **fields})


def newborn(golems: int) -> Fleet:
    """A fleet that has not lived yet."""
    lives = [
        born(
            lineage_id=f"l/{i}", generation=0, owner_id="owner-1", founding=Founding(), market="m", market_hash="h",
            derivation_id="-", policy=POLICY,
        )
        for i in range(golems)
    ]  # fmt: skip
    return Fleet([golem_id for golem_id, _ in lives], [birth for _, birth in lives], POLICY)


def tape_with(ticks: int = 300) -> Tape:
    """A market that follows a random walk, with one excursion."""
    steps = np.random.default_rng(5).normal(0.0, 3.0, ticks)
    steps[200:204] += 80.0
    start = int(tick_of_price(np.array([2_000.0]))[0])
    return tape_of(drawn_market((start + np.cumsum(np.rint(steps))).astype(int).tolist()), POLICY)


@pytest.mark.row("MEM-22")
def test_readings_of_a_tape_equal_those_of_its_records() -> None:
    steps = np.random.default_rng(7).normal(0.0, 4.0, WARM + 80).cumsum()
    start = int(tick_of_price(np.array([2_000.0]))[0])
    market = drawn_market((start + np.rint(steps)).astype(int).tolist())
    records = live(market).records
    rows = records.filter(np.equal(np.array(records["golem_id"].to_pylist()), records["golem_id"][0].as_py()))
    result = standardised(readings(rows), np.arange(rows.num_rows), POLICY.causal)
    assert np.array_equal(result, tape_of(market, POLICY).readings[: rows.num_rows])


@pytest.mark.row("MEM-22")
def test_a_trusted_link_shifts_the_expected_price_and_an_uncertain_link_does_not() -> None:
    tape = tape_with()
    state = from_table(grimoire(link("g-1"), link("g-2", confidence_ppm=500_000)))
    foresight = foresight_of(state, ["g-2", "g-1"], NOW, POLICY)
    t = 204
    result = tape.readings[t, PRICE_EXCURSION]
    assert abs(result) > SCALE
    shift = foresight.shift(tape, t)
    assert shift[0] == 0.0
    assert shift[1] == pytest.approx(-0.1 * result / SCALE)
    assert foresight.knows.tolist() == [False, True]
    wild = replace(foresight, weight=1e3 * foresight.weight)
    assert wild.shift(tape, t).tolist() == [0.0, -4.0 * np.sign(result)], "a shift is at most four spreads"


@pytest.mark.row("MEM-22")
def test_a_price_forecast_includes_the_shift_of_the_links() -> None:
    tape, fleet = tape_with(), newborn(2)
    state = from_table(grimoire(link(fleet.golem_ids[0])))
    foresight = foresight_of(state, fleet.golem_ids, NOW, POLICY)
    t = 204
    forecast(fleet, tape, t, fleet.health, sigma_now(fleet, POLICY), POLICY, foresight)
    walked = float(np.exp(foresight.shift(tape, t)[0] * tape.spread_ppm[t] / 1e6))
    assert fleet.expected[PRICE].tolist() == pytest.approx([tape.price[t] * walked, tape.price[t]], rel=1e-12)
    assert walked != 1.0


@pytest.mark.row("MEM-22")
def test_a_large_opposite_move_invalidates_the_link_and_raises_the_probe() -> None:
    tape = tape_with()
    state = from_table(grimoire(link("g-1"), link("g-3", status="candidate", confidence_ppm=0)))
    foresight = foresight_of(state, ["g-1", "g-2", "g-3"], NOW, POLICY)
    moved = tape.price_return[202] * 1e6 / tape.spread_ppm[201]
    against = np.full(3, -np.sign(moved))
    assert abs(moved) > POLICY.causal.probe_sigma
    seen = foresight.look(tape, 202, against, POLICY)
    assert seen[0] == LINK_INVALIDATED
    assert np.isnan(seen[1])
    assert seen[2] == LINK_CANDIDATE
    assert foresight.look(tape, 202, -against, POLICY)[0] == 0.0
    assert foresight.look(tape, 150, np.zeros(3), POLICY)[0] == 0.0


@pytest.mark.row("MEM-22")
def test_the_foresight_of_a_golem_does_not_depend_on_other_golems() -> None:
    tape = tape_with()
    other = replace_link("past_return", 300_000)
    state = from_table(grimoire(link("g-1"), other))
    alone = foresight_of(state, ["g-1"], NOW, POLICY)
    together = foresight_of(state, ["g-2", "g-1"], NOW, POLICY)
    for t in range(150, 250, 7):
        assert alone.shift(tape, t)[0] == together.shift(tape, t)[1]


def replace_link(cause: str, weight_ppm: int) -> dict[str, Any]:
    """Another golem's link into the price."""
    about = REVERTS._replace(cause=cause)
    plain = {"kind": "causal_link", "sign": 1, "confidence_ppm": 900_000, "text": "-", "anchor_at": DIED}
    return entry("g-2", about, effect_mean_ppm=weight_ppm, **plain)


@pytest.mark.row("MEM-22")
def test_golems_without_links_have_no_probe_value_and_no_shift() -> None:
    tape, none = tape_with(), nothing_foreseen(2)
    assert none.shift(tape, 100).tolist() == [0.0, 0.0]
    assert np.isnan(none.look(tape, 100, np.zeros(2), POLICY)).all()
    assert replace(none, candidate=np.array([True, False])).look(tape, 100, np.zeros(2), POLICY)[0] == LINK_CANDIDATE
    assert len(ALL_VARIABLES) == tape.readings.shape[1]
