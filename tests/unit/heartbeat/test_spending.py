"""Bands of the daily budget: limits, tiers, the UTC day, restarts, and the cost model of HB S3."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from bardo_pipeline.events.record.model import TIERS
from bardo_pipeline.heartbeat.safety.spending import DAY_US, band_of, begin_day, lowered
from bardo_pipeline.policy import GatewayPolicy, Policy
from bardo_pipeline.quality.reason_checks import contradictions
from tests.support.fleets.gated_fleets import GATED
from tests.support.fleets.memory_fleets import Lived, live, lively_market
from tests.support.fleets.spending_checks import check_bands
from tests.support.records.stated_reasons import stated_in_rules
from tests.unit.heartbeat.test_choose import fleet_of

CAP = 150_000
"""Micro-dollars: less than four deliberations at T2 cost."""

MODES = {"attention": Policy(), "learned": GATED}


def capped(policy: Policy, cap: int = CAP) -> Policy:
    return policy.model_copy(update={"gateway": GatewayPolicy(daily_budget_micros=cap)})


@cache
def lived(mode: str) -> Lived:
    """Golems with little to spend a day, over two midnights, with many steers."""
    steers = {("*", tick): ("high", "look") for tick in range(20, 3_000, 40)}
    return live(lively_market(3_200), lineages=range(3), policy=capped(MODES[mode]), steers=steers)


@pytest.mark.row("HB-17")
@pytest.mark.parametrize(
    ("spent", "band"),
    [(0, 0), (6_999_999, 0), (7_000_000, 1), (8_999_999, 1), (9_000_000, 2), (9_999_999, 2), (10_000_000, 3)],
)
def test_a_band_begins_at_its_share_of_ten_dollars_to_the_micro_dollar(spent: int, band: int) -> None:
    assert band_of(np.array([spent]), Policy()).tolist() == [band]


@pytest.mark.row("HB-17")
def test_a_band_lowers_tiers_and_never_raises_one() -> None:
    names = {(tier, band): TIERS[int(lowered(np.array([code], np.int8), np.array([band]))[0])]
             for code, tier in enumerate(TIERS) for band in range(4)}  # fmt: skip
    assert [names["T2", band] for band in range(4)] == ["T2", "T1", "T0", "T0"]
    assert [names["T1", band] for band in range(4)] == ["T1", "T1", "T0", "T0"]
    assert all(names[tier, band] == tier for tier in ("T0", "suppress") for band in range(4))


@pytest.mark.row("HB-17")
@pytest.mark.parametrize("mode", ["attention", pytest.param("learned", marks=pytest.mark.full)])
def test_every_tick_keeps_to_the_band_of_the_recorded_costs_of_its_day(mode: str) -> None:
    days, seen = check_bands(lived(mode).rows, capped(Policy()))
    assert len(days) >= 3, "the budget begins anew at each midnight"
    assert {band for band, _ in seen} >= {"no_large_model", "no_model"}
    assert any(forced == "steer" for _, forced in seen), "nothing overrides a band"


@pytest.mark.row("HB-17")
@pytest.mark.parametrize("mode", ["attention", pytest.param("learned", marks=pytest.mark.full)])
def test_a_lowered_tick_states_its_figures_without_a_contradiction(mode: str) -> None:
    records = lived(mode).records
    assert contradictions(records) == []
    assert stated_in_rules(records) == records.num_rows


@pytest.mark.row("HB-17")
def test_a_steer_that_the_budget_stops_waits_for_the_next_deliberation() -> None:
    policy = capped(Policy(), 1)
    rows = live(lively_market(1_600), policy=policy, steers={("*", 30): ("high", "look")}).rows
    steered, later = (next(r for r in rows if r["tick"] == tick) for tick in (30, 31))
    assert (steered["forced_by"], steered["tier"], steered["spending"]["wanted_tier"]) == ("steer", "T0", "T2")
    assert later["prediction_error_sources"]["interventions"] == pytest.approx(policy.gate.intervention_weight)


@pytest.mark.row("HB-17")
def test_a_run_that_lives_its_recorded_ticks_again_goes_on_with_their_spending() -> None:
    first, again = (live(lively_market(700), lineages=range(2), policy=capped(Policy())) for _ in range(2))
    assert first.records["spending"].null_count < first.records.num_rows
    assert again.records.equals(first.records)


@pytest.mark.row("HB-17")
def test_a_day_ends_at_utc_midnight_of_event_time() -> None:
    fleet = fleet_of(2)
    begin_day(fleet, 5 * DAY_US)
    fleet.day_spent += 7
    begin_day(fleet, 6 * DAY_US - 1)
    assert fleet.day_spent.tolist() == [7, 7]
    begin_day(fleet, 6 * DAY_US)
    assert fleet.day_spent.tolist() == [0, 0]
