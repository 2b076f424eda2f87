"""Trials of loans: what shadow loans state, compared with a row-at-a-time reference (HB-24)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bardo_pipeline.events.record.model import DecisionCycleRecord
from bardo_pipeline.events.record.validate import violations
from bardo_pipeline.heartbeat.defi.loan_trials import gains_of_loans
from bardo_pipeline.market.market import Market
from bardo_pipeline.market.tick_series import tape_of
from bardo_pipeline.policy import Policy
from tests.reference.market.choice_trials import loan_effect_ppm, loan_gain
from tests.support.fleets.loan_markets import CENTRE, RICH, done, indebted, lending, loan
from tests.support.fleets.memory_fleets import Lived, live

POLICY = Policy()


def stormy(bars: int, seed: int = 5) -> Market:
    """A market that wanders, and falls by 16 % within the fourth hour."""
    steps = np.random.default_rng(seed).integers(-12, 13, bars)
    walk = CENTRE + np.cumsum(steps) + np.where(np.arange(bars) >= 400, 1_800, 0)
    return lending(walk.tolist(), earned=2e-8, paid=6e-8)


def loans_tried(lived: Lived) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    return [(row, trial) for row in lived.rows for trial in row["trials"] or () if trial["choice"] == "loan"]


def compared(market: Market, collateral: str, golems: int = 2) -> set[tuple[str, str, str]]:
    """Compare each trial of a loan with the reference; return (horizon, alternative, taken) of the trials."""
    lived, tape = indebted(market, 0.7, collateral, golems=golems), tape_of(market, POLICY)
    records = {(row["golem_id"], row["tick"]): row for row in lived.rows}
    at = {int(us): t for t, us in enumerate(tape.at_us.tolist())}
    seen = set()
    for row, trial in loans_tried(lived):
        decided = records[row["golem_id"], trial["decision_tick"]]
        owes = any(p["protocol"] == "aave_v3" for p in decided["observation"]["positions"])
        assert trial["taken"] == ("levered" if owes else "unlevered")
        assert owes or trial["alternative"] == "borrow"
        assert trial["beside"] == {"borrow": "unlevered", "repay": "keep"}[trial["alternative"]]
        if trial["alternative"] == "borrow" and decided["playbook_version"] > 1:
            continue  # the playbook may prefer another half-width
        start, stop = (at[round(r["observed_at"].timestamp() * 1e6)] for r in (decided, row))
        width = lived.births[row["golem_id"]].traits.range_half_width_ticks
        expected = loan_effect_ppm(trial, decided, tape, start, stop, POLICY, width, loan(0.7, collateral))
        assert trial["effect_ppm"] == pytest.approx(expected, abs=1.0, rel=1e-6), trial
        seen.add((trial["horizon"], trial["alternative"], trial["taken"]))
    assert violations(lived.records, DecisionCycleRecord) == []
    return seen


@pytest.mark.row("HB-24")
@pytest.mark.parametrize("collateral", ["WETH", "USDC"])
def test_each_trial_of_a_loan_states_interest_liquidations_and_costs(collateral: str) -> None:
    market = stormy(520)
    seen = compared(market, collateral)
    acts = {act for _, act, _, _ in done(indebted(market, 0.7, collateral).rows)}
    assert ("liquidated" in acts) is (collateral == "WETH")
    assert {(h, a) for h, a, _ in seen} >= {(h, a) for h in ("30_ticks", "4_hours") for a in ("borrow", "repay")}


@pytest.mark.row("HB-24")
@pytest.mark.full
def test_loans_are_tried_over_24_hours() -> None:
    seen = compared(stormy(2_900), "WETH", golems=4)
    assert ("24_hours", "borrow") in {(h, a) for h, a, _ in seen}


@pytest.mark.row("HB-24")
def test_a_loan_is_tried_for_golems_that_may_borrow_and_a_repayment_for_those_with_a_debt() -> None:
    assert not loans_tried(live(stormy(200), lineages=range(2), founding=RICH))
    first = indebted(stormy(200), 0.7).rows[0]
    assert not first["trials"]


@pytest.mark.row("HB-24")
def test_a_shadow_loan_is_liquidated_tick_by_tick_and_written_off_beyond_its_collateral() -> None:
    for ticks, asset in (
        ([CENTRE] * 3 + [CENTRE + 1_900, CENTRE + 2_000, CENTRE + 2_600] * 3, 1),
        ([CENTRE] * 3 + [CENTRE + 1_800] * 4 + [CENTRE + 9_000] * 3, 1),
        ([CENTRE] * 3 + [CENTRE - 2_100] * 8, 0),
    ):
        tape = tape_of(lending(ticks, earned=1e-6, paid=4e-6), POLICY)
        unit = (1.0, float(tape.price[0]))
        supplied, owed = 30e6, np.array([0.0, 12e6, 20e6, 21e6])
        made = gains_of_loans(
            tape, 0, tape.ticks - 1, np.full(4, asset), np.full(4, supplied / unit[asset]), owed / unit[1 - asset],
            POLICY,
        )  # fmt: skip
        expected = [loan_gain(tape, 0, tape.ticks - 1, supplied, debt, asset == 1, POLICY) for debt in owed.tolist()]
        np.testing.assert_allclose(made, expected, rtol=1e-9, atol=1e-3)
        assert made[3] < -0.02 * owed[3], "this loan is liquidated"
        assert made[0] > 0.0 > made[1]


@pytest.mark.row("HB-24")
def test_trials_do_not_depend_on_the_other_golems_of_a_fleet() -> None:
    market, founding = stormy(300), replace(RICH, loan=loan(0.7))
    both = live(market, lineages=(0, 1), founding=founding)
    alone = live(market, lineages=(1,), founding=founding)
    (name,) = alone.births
    assert both.of(name).equals(alone.records)
