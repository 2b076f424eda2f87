"""Laws of loans: interest follows the indexes, and a liquidation costs exactly its bonus, for any loan."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bardo_pipeline.heartbeat.defi.aave_loans import health_of, liquidation
from bardo_pipeline.policy import Policy
from tests.support.example_count import times
from tests.support.fleets.loan_markets import CENTRE, indebted, lending, loan_of

RULES = Policy().lending
money = st.floats(1.0, 1e9)

pytestmark = pytest.mark.row("KAT-1")


@settings(max_examples=times(100), deadline=None, derandomize=True)
@given(st.lists(st.tuples(money, money), min_size=1, max_size=20), st.booleans())
def test_a_liquidation_costs_exactly_its_bonus(loans: list[tuple[float, float]], base: bool) -> None:
    collateral, debt = np.array(loans).T
    threshold, bonus = (
        np.full(len(loans), v)
        for v in ((RULES.weth_threshold, RULES.weth_bonus) if base else (RULES.usdc_threshold, RULES.usdc_bonus))
    )
    health = health_of(collateral, debt, threshold, RULES)
    repaid, taken, emptied = liquidation(collateral, debt, health, bonus, RULES)
    hit = health < 1.0
    assert ((repaid > 0.0) == hit).all()
    np.testing.assert_allclose(taken, repaid * (1.0 + bonus), rtol=1e-12)
    assert (taken <= collateral * (1.0 + 1e-12)).all()
    whole = health <= RULES.full_close_health
    assert (repaid[hit & ~whole] <= RULES.close_factor * debt[hit & ~whole]).all()
    freed = hit & whole & ~emptied
    np.testing.assert_allclose(repaid[freed], debt[freed])
    before, after = collateral - debt, (collateral - taken) - (debt - repaid)
    np.testing.assert_allclose(before - after, bonus * repaid, rtol=1e-6, atol=1e-6 * collateral.max())


@settings(max_examples=times(6), deadline=None, derandomize=True)
@given(st.floats(0.0, 2e-5), st.floats(0.0, 2e-5), st.sampled_from(["WETH", "USDC"]), st.floats(0.1, 0.6))
def test_net_worth_grows_by_the_difference_of_the_interest_indexes(
    earned: float, paid: float, collateral: str, ratio: float
) -> None:
    rows = indebted(lending([CENTRE] * 60, earned=earned, paid=paid), ratio, collateral).records.to_pylist()
    pairs = [(row, loan_of(row)) for row in rows if loan_of(row)]
    first, last = pairs[0], pairs[-1]
    bars = (last[0]["observed_at"] - first[0]["observed_at"]).total_seconds() / 60
    supplied, owed = balances(first[1], collateral)
    grown = supplied * ((1 + earned) ** bars - 1) - owed * ((1 + paid) ** bars - 1)
    assert last[1]["value_micros"] - first[1]["value_micros"] == pytest.approx(grown, abs=2.5)
    assert first[1]["impermanent_loss_micros"] - last[1]["impermanent_loss_micros"] == pytest.approx(grown, abs=2.5)
    held = [sum(p["value_micros"] + p["fees_owed_micros"] for p in r["observation"]["positions"]) for r, _ in pairs]
    worth = [row["observation"]["net_asset_value_micros"] for row, _ in pairs]
    idle = [row["observation"]["idle_micros"] for row, _ in pairs]
    np.testing.assert_allclose(np.add(held, idle), worth, atol=4)


def balances(position: dict[str, float], collateral: str) -> tuple[float, float]:
    """Return (collateral, debt) in micro-dollars from a loan's net value and health."""
    threshold = RULES.weth_threshold if collateral == "WETH" else RULES.usdc_threshold
    debt = position["value_micros"] / (position["health_factor"] / threshold - 1.0)
    return position["value_micros"] + debt, debt


@settings(max_examples=times(6), deadline=None, derandomize=True)
@given(st.integers(-1_800, 1_800), st.sampled_from(["WETH", "USDC"]))
def test_a_loan_is_in_range_while_its_health_is_at_least_1(jump: int, collateral: str) -> None:
    rows = indebted(lending([CENTRE] * 10 + [CENTRE + jump] * 10), 0.7, collateral).records.to_pylist()
    pairs = [(round(np.log(1e12 / r["observation"]["price"]) / np.log(1.0001)), loan_of(r)) for r in rows if loan_of(r)]
    assert {round(p["health_factor"], 3) for _, p in pairs[:3]} == {round(pairs[0][1]["health_factor"], 3)}
    for tick, position in pairs:
        inside = position["tick_lower"] <= tick <= position["tick_upper"]
        assert inside == position["in_range"] == (position["health_factor"] >= 1.0)
