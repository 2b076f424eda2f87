"""Lending: health computed by hand, the rules to borrow, repay and liquidate, and their record fields."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bardo_pipeline.dreams.recorded_market import recorded_market
from bardo_pipeline.errors import ConfigError, TraceError
from bardo_pipeline.events.record.model import DecisionCycleRecord
from bardo_pipeline.events.record.validate import violations
from bardo_pipeline.heartbeat.defi.aave_loans import health_of, liquidation
from bardo_pipeline.market.market import Reserves
from bardo_pipeline.policy import Policy
from tests.support.fleets.loan_markets import CENTRE, RICH, done, indebted, lending, loan, loan_of, reserves
from tests.support.fleets.memory_fleets import drawn_market, live

RULES = Policy().lending
CALM, FALLEN, CRASHED = CENTRE, CENTRE + 600, CENTRE + 1_300
"""Ticks of the pool: 5.8 % and 12.2 % below where loans are taken."""


def array_of(*values: float) -> np.ndarray:
    return np.array(values)


@pytest.mark.row("HB-13")
def test_health_is_collateral_times_threshold_over_debt() -> None:
    # 2,000 dollars of WETH bear 1,650: for 1,000 owed that is 1.65 times, for 1,650 once
    health = health_of(
        array_of(2_000, 2_000, 2_000, 0, 500), array_of(1_000, 1_650, 0, 0, 1), array_of(*[0.825] * 5), RULES
    )
    np.testing.assert_allclose(health, [1.65, 1.0, RULES.health_free, np.nan, RULES.health_free])


@pytest.mark.row("KAT-1")
def test_a_liquidation_repays_half_or_all_of_the_debt_up_to_the_collateral() -> None:
    collateral, debt, health = (
        array_of(1_000, 1_000, 1_000, 1_000),
        array_of(850, 870, 1_000, 800),
        array_of(0.97, 0.94, 0.82, 1.03),
    )
    repaid, taken, emptied = liquidation(collateral, debt, health, array_of(*[0.05] * 4), RULES)
    np.testing.assert_allclose(repaid, [425, 870, 1_000 / 1.05, 0])
    np.testing.assert_allclose(taken, [446.25, 913.5, 1_000, 0])
    assert emptied.tolist() == [False, False, True, False]


def test_a_loan_starts_at_the_health_of_its_ratio_and_enlarges_the_position() -> None:
    plain = indebted(lending([CALM] * 4), 0.0).records.to_pylist()
    for collateral, threshold in (("WETH", RULES.weth_threshold), ("USDC", RULES.usdc_threshold)):
        rows = indebted(lending([CALM] * 4), 0.6, collateral).records.to_pylist()
        assert done(rows) == [(1, "borrow", "executed", None)]
        assert loan_of(rows[0]) is None
        assert loan_of(rows[1])["health_factor"] == pytest.approx(threshold / 0.6, rel=1e-3)
        pools = [next(p for p in r[1]["observation"]["positions"] if p != loan_of(r[1])) for r in (plain, rows)]
        assert pools[1]["value_micros"] / pools[0]["value_micros"] == pytest.approx(0.5 + 0.5 * 0.6, rel=2e-3)
        worth = [r[1]["observation"]["net_asset_value_micros"] for r in (plain, rows)]
        assert worth[1] == pytest.approx(worth[0], rel=1e-3)


@pytest.mark.row("HB-13", "HB-2")
def test_the_probe_and_the_forecast_use_the_health_of_the_loan() -> None:
    rows = indebted(lending([CALM] * 10 + [CALM + 250] * 10), 0.75).records.to_pylist()
    answer = [next(p for p in row["probe_results"] if p["probe"] == "position_health") for row in rows[1:]]
    weakest = [min(p["health_factor"] for p in row["observation"]["positions"]) for row in rows[1:]]
    assert [p["value"] for p in answer] == weakest
    assert {p["severity"] for p in answer} == {"high"}
    assert weakest[0] == loan_of(rows[1])["health_factor"]
    lines = [next(p for p in row["predictions"] if p["quantity"] == "health") for row in rows[2:]]
    assert [p["actual"] for p in lines] == weakest[1:]


def crash(ratio: float, after: int = CRASHED, collateral: str = "WETH", **fields: Any) -> list[Any]:
    """Records of a golem whose collateral falls in one bar, and stays there."""
    return indebted(lending([CALM] * 10 + [after] * 30, **fields), ratio, collateral).records.to_pylist()


@pytest.mark.row("KAT-1")
def test_a_loan_below_health_1_is_liquidated_and_loses_the_bonus() -> None:
    rows = crash(0.75)
    assert ("liquidated", "executed") in {act[1:3] for act in done(rows)}
    row = next(row for row in rows if row["actions"] and row["actions"][0]["action_type"] == "liquidated")
    act = row["actions"][0]
    lost = round(act["value_micros"] * RULES.weth_bonus / (1.0 + RULES.weth_bonus))
    assert act["permit_id"] is None
    assert (act["tool_name"], act["gas_cost_micros"]) == ("aave_v3_liquidation", 0)
    assert row["outcome"]["verified"]
    assert row["outcome"]["cause_variable"] == "price_move"
    assert row["outcome"]["pnl_impact_micros"] <= -lost
    assert loan_of(row)["impermanent_loss_micros"] == pytest.approx(lost, abs=1)
    assert row["episodes_written"]
    before = rows[rows.index(row) - 1]
    assert row["observation"]["net_asset_value_micros"] < before["observation"]["net_asset_value_micros"] - lost


@pytest.mark.row("KAT-1")
def test_a_debt_above_its_collateral_is_written_off_and_not_borrowed_again() -> None:
    market = lending([CALM] * 10 + [CALM + 5_000] * 250)
    rows = indebted(market, 0.75, thought_at=120).records.to_pylist()
    assert [act[1:3] for act in done(rows)] == [("borrow", "executed"), ("liquidated", "executed")]
    place = next(i for i, row in enumerate(rows) if any(act[1] == "liquidated" for act in done([row])))
    assert [act["action_type"] for act in rows[0]["actions"]] == ["borrow", "add_liquidity"]
    triples = [(act["action_type"], act["status"], act["block_reason"]) for act in rows[place]["actions"]]
    assert triples[1:] == [("remove_liquidity", "deferred", "its loan is being liquidated")]
    assert [call["action_type"] for call in rows[place]["deliberation"]["tool_calls"]] == ["remove_liquidity"]
    assert not any(loan_of(row) for row in rows[place:])
    assert all(row["observation"]["net_asset_value_micros"] > 0 for row in rows)
    entered = [row["tick"] for row in rows for a in row["actions"] if a["action_type"] == "add_liquidity"]
    assert len(entered) == 2, "the golem leaves the market and enters again without a loan"


def test_a_debt_in_the_base_asset_is_liquidated_by_a_rise() -> None:
    assert "liquidated" not in {act[1] for act in done(crash(0.75, CRASHED, "USDC"))}
    assert "liquidated" in {act[1] for act in done(crash(0.75, CALM - 1_400, "USDC"))}


@pytest.mark.row("HB-27")
def test_the_health_guard_repays_up_to_its_target_out_of_the_position() -> None:
    rows = crash(0.75, FALLEN)
    acts = [act for act in done(rows) if act[1] == "repay"]
    assert [act[2] for act in acts] == ["executed"]
    place = next(i for i, row in enumerate(rows) if row["tick"] == acts[0][0])
    before, after = rows[place], rows[place + 1]
    assert loan_of(before)["health_factor"] < RULES.health_guard
    assert loan_of(after)["health_factor"] == pytest.approx(RULES.health_target, abs=0.01)
    assert before["actions"][-1]["permit_id"].endswith("-loan")
    assert before["deliberation"]["tool_calls"][-1]["tool"] == "aave_v3_repay"
    called = [call["action_type"] for call in before["deliberation"]["tool_calls"]]
    assert called == [act["action_type"] for act in before["actions"]]
    assert before["cost"]["gas_micros"] == sum(a["gas_cost_micros"] for a in before["actions"])
    worth = [row["observation"]["net_asset_value_micros"] for row in (before, after)]
    assert worth[0] + before["outcome"]["pnl_impact_micros"] <= worth[1] <= worth[0]


@pytest.mark.row("HB-15", "HB-27")
@pytest.mark.parametrize(
    ("market", "ratio", "status", "reason"),
    [
        ({}, 0.8, "blocked", "policy cage: debt of 800000 ppm of the collateral is above the limit of 750000 ppm"),
        (
            {"rate": 0.4},
            0.5,
            "blocked",
            "policy cage: a yearly borrow rate of 400000 ppm is above the limit of 250000 ppm",
        ),
        (
            {"gas_gwei": 3_000.0},
            0.5,
            "deferred",
            "policy cage: gas of 1014000 micro-dollars is above the position's limit of 100000 micro-dollars",
        ),
        ({"protocol": "sushiswap"}, 0.5, "blocked", "policy cage: this protocol may not be touched"),
    ],
)
def test_a_forbidden_loan_is_not_taken_and_the_record_names_the_reason(
    market: dict[str, Any], ratio: float, status: str, reason: str
) -> None:
    rows = indebted(lending([CALM] * 3, **market), ratio).records.to_pylist()
    assert done(rows)[0] == (1, "borrow", status, reason)
    assert not any(loan_of(row) for row in rows)


@pytest.mark.row("HB-15")
def test_a_repayment_that_costs_more_gas_than_a_liquidation_is_deferred() -> None:
    gas = [30.0] * 10 + [20_000.0] * 30
    acts = done(crash(0.75, FALLEN, gas_gwei=gas))
    reason = "gas gate: gas of 6240000 micro-dollars is above what a liquidation would take, 375000 micro-dollars"
    assert ("repay", "deferred", reason) in {act[1:] for act in acts}
    assert ("repay", "executed") not in {act[1:3] for act in acts}


def test_a_golem_without_a_loan_has_equal_records_in_a_market_with_reserves_but_for_attention_to_rates() -> None:
    ticks = [CALM, CALM + 200, CALM - 100] * 20
    lent, plain = (live(m, lineages=range(3), founding=RICH).records for m in (lending(ticks), drawn_market(ticks)))
    of_items = ["attention_changes", "residual_digest"]
    for name in of_items:
        without_rates = [
            [
                [part for part in parts or [] if not part["item"].endswith("_rate")]
                for parts in records[name].to_pylist()
            ]
            for records in (lent, plain)
        ]
        assert without_rates[0] == without_rates[1]
        assert any(without_rates[1]), "the market without reserves has items too"
    assert lent.drop_columns(of_items).equals(plain.drop_columns(of_items))


def test_records_of_golems_with_loans_are_valid_and_independent() -> None:
    market = lending([CALM] * 10 + [FALLEN] * 20 + [CRASHED] * 30, paid=1e-6)
    both = indebted(market, 0.75, golems=3)
    assert violations(both.records, DecisionCycleRecord) == []
    alone = live(market, lineages=[1], founding=replace(RICH, loan=loan(0.75)))
    (name,) = alone.births
    assert both.of(name).equals(alone.records)


def test_the_recorded_market_of_dreams_contains_the_position_and_no_loan() -> None:
    records = indebted(lending([CALM] * 6), 0.6).records
    walk = recorded_market(records, np.zeros(records.num_rows, np.int64), Policy())
    assert walk.open.tolist() == [False, *[True] * (records.num_rows - 1)]
    assert (walk.liquidity[1:] > 0).all()


def test_a_loan_in_a_market_without_reserves_is_refused() -> None:
    with pytest.raises(ConfigError, match="no reserves"):
        indebted(drawn_market([CALM] * 3), 0.5)


def test_invalid_reserves_are_refused_and_a_slice_of_a_market_cuts_them() -> None:
    market = lending([CALM] * 5, paid=0.01)
    part = market.slice(2, 4).reserves
    assert part is not None
    assert market.reserves is not None
    np.testing.assert_array_equal(part.borrow_index, market.reserves.borrow_index[:, 2:4])
    assert market.content_hash != drawn_market([CALM] * 5).content_hash != lending([CALM] * 5).content_hash
    index = np.ones((2, 3))
    with pytest.raises(TraceError, match="bar 1"):
        Reserves(index, np.array([[1.0, 1.0, 1.0], [1.0, 0.5, 1.0]]), index)
    with pytest.raises(TraceError, match="at_us has 5"):
        drawn_market([CALM] * 5, reserves=reserves(4))
