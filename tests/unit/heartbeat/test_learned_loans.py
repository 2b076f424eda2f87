"""Learned rules about loans: what a golem borrows and repays by its playbook, and what its record states."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bardo_pipeline.events.record.model import DecisionCycleRecord
from bardo_pipeline.events.record.validate import violations
from bardo_pipeline.policy import Policy
from bardo_pipeline.quality.reason_checks import contradictions
from tests.support.fleets.loan_markets import CENTRE, RICH, done, lending, loan, loan_of
from tests.support.fleets.memory_fleets import live
from tests.support.knowledge.handmade_grimoires import entry, grimoire
from tests.unit.curator.test_choice_rules import advice

POLICY = Policy()
RULES = POLICY.lending
CALM = CENTRE


def lived(*rules: dict[str, Any], collateral: str = "WETH", ticks: list[int] | None = None, thought_at: int = 0) -> Any:
    """Run a golem that may borrow and inherits these rules, or one about re-centring alone."""
    inherited = grimoire(*rules) if rules else grimoire(entry("g-before", "uniswap_rebalance"))
    steers = {("*", thought_at): ("high", "look at it again")} if thought_at else {}
    made = live(
        lending(ticks or [CALM] * 20), founding=replace(RICH, loan=loan(0.6, collateral)), inherited=inherited,
        steers=steers,
    )  # fmt: skip
    assert violations(made.records, DecisionCycleRecord) == []
    assert contradictions(made.records) == []
    return made.records.to_pylist()


def reason(row: dict[str, Any]) -> str:
    """The reason of a deliberation."""
    text: str = row["deliberation"]["reasoning_summary"]
    return text


@pytest.mark.row("HB-24", "HB-4")
def test_a_golem_with_a_rule_against_borrowing_takes_no_loan_and_names_the_rule() -> None:
    rule = advice("borrow", horizon="4_hours", effect_ppm=-900)
    rows, plain = lived(rule), lived()
    assert done(plain) == [(1, "borrow", "executed", None)]
    assert done(rows) == []
    assert not any(loan_of(row) for row in rows)
    assert f"; the playbook takes no loan in this regime, rule {rule['entry_id']}" in reason(rows[0])
    assert rows[0]["deliberation"]["decision"] == "add_liquidity"
    assert "the playbook" not in reason(plain[0])


@pytest.mark.row("HB-24", "HB-4")
@pytest.mark.parametrize("collateral", ["WETH", "USDC"])
def test_a_golem_with_a_rule_for_repaying_closes_its_loan_with_the_collateral(collateral: str) -> None:
    assert done(lived(advice("repay", horizon="24_hours"), collateral=collateral)) == [], "it would repay at once"
    quiet = advice("repay", horizon="24_hours", regime="volatile", evidence_count=900)
    ticks = [CALM] * 60 + [CALM + 60 * (-1) ** i for i in range(60)]
    rows = lived(quiet, collateral=collateral, ticks=ticks, thought_at=100)
    acts = done(rows)
    assert [act[1:3] for act in acts] == [("borrow", "executed"), ("repay", "executed")]
    place = next(i for i, row in enumerate(rows) if row["tick"] == acts[1][0])
    before, after = rows[place], rows[place + 1]
    assert before["regime"] == "volatile"
    assert f"; the playbook repays in this regime, rule {quiet['entry_id']}; loan: repay" in reason(before)
    assert loan_of(before) is not None
    assert loan_of(after) is None
    act = before["actions"][-1]
    threshold = RULES.weth_threshold if collateral == "WETH" else RULES.usdc_threshold
    debt = loan_of(before)["value_micros"] / (loan_of(before)["health_factor"] / threshold - 1.0)
    assert act["value_micros"] == pytest.approx(debt, rel=1e-6)
    freed = after["observation"]["idle_micros"] - before["observation"]["idle_micros"]
    swapped = loan_of(before)["value_micros"] + debt if collateral == "WETH" else debt
    lost = swapped * act["slippage_ppm"] * 1e-6
    assert freed == pytest.approx(loan_of(before)["value_micros"] - lost, abs=3)
    assert -before["outcome"]["pnl_impact_micros"] == pytest.approx(act["gas_cost_micros"] + lost, abs=3)
    pools = [next(p for p in r["observation"]["positions"] if p["liquidity"] > 0) for r in (before, after)]
    assert pools[0]["liquidity"] == pools[1]["liquidity"]
    tried = [(t, row["tick"]) for row in rows for t in row["trials"] or () if t["choice"] == "loan"]
    through = [t["taken"] for t, tick in tried if t["decision_tick"] < acts[1][0] < tick]
    assert through, "a window is open while the loan is repaid"
    assert set(through) == {"levered"}


@pytest.mark.row("HB-24")
def test_a_golem_with_a_rule_for_borrowing_borrows_again_after_a_liquidation() -> None:
    ticks = [CALM] * 10 + [CALM + 5_000] * 250
    rule = advice("borrow", horizon="4_hours")
    rows, plain = (lived(*rules, ticks=ticks, thought_at=120) for rules in ((rule,), ()))
    assert [act[1:3] for act in done(plain)] == [("borrow", "executed"), ("liquidated", "executed")]
    acts = done(rows)
    assert [act[1:3] for act in acts][:3] == [
        ("borrow", "executed"), ("liquidated", "executed"), ("borrow", "executed"),
    ]  # fmt: skip
    again = next(row for row in rows if row["tick"] == acts[2][0])
    assert f"; a loan is allowed; the playbook borrows in this regime, rule {rule['entry_id']}" in reason(again)
    assert again["actions"][0]["action_type"] == "borrow"


@pytest.mark.row("HB-24")
def test_a_golem_that_stays_out_of_a_regime_does_not_borrow_there_by_rule() -> None:
    rules = advice("borrow", horizon="4_hours"), advice("enter", effect_ppm=-900)
    assert done(lived(*rules)) == []
    assert done(lived(rules[0])) == [(1, "borrow", "executed", None)]


@pytest.mark.row("HB-24")
def test_a_repayment_by_rule_that_costs_too_much_gas_is_deferred() -> None:
    quiet = advice("repay", horizon="24_hours", regime="volatile", evidence_count=900)
    ticks = [CALM] * 60 + [CALM + 60 * (-1) ** i for i in range(60)]
    made = live(
        lending(ticks, gas_gwei=[30.0] * 60 + [3_000.0] * 60), founding=replace(RICH, loan=loan(0.6)),
        inherited=grimoire(quiet), steers={("*", 100): ("high", "look at it again")},
    )  # fmt: skip
    acts = done(made.rows)
    assert {act[1:3] for act in acts[1:]} == {("repay", "deferred")}
    assert "policy cage: gas of" in str(acts[1][3])
    assert contradictions(made.records) == []


@pytest.mark.full
@pytest.mark.row("HB-24", "MEM-8")
def test_a_golem_whose_debt_costs_more_than_repaying_it_learns_to_repay_within_its_life() -> None:
    """The debt grows by 1.9 % in 4 hours: each window is a trial, and the rule that they teach closes the loan."""
    steps = np.random.default_rng(5).integers(-6, 7, 4_000)
    market = lending((CALM + np.cumsum(steps)).tolist(), paid=8e-5)
    made = live(market, founding=replace(RICH, loan=loan(0.5)))
    rows = made.rows
    acts = done(rows)
    assert [act[1:3] for act in acts] == [("borrow", "executed"), ("repay", "executed")]
    place = next(i for i, row in enumerate(rows) if row["tick"] == acts[1][0])
    tried = [
        trial["effect_ppm"]
        for row in rows[:place] for trial in row["trials"] or ()
        if (trial["alternative"], trial["horizon"]) == ("repay", "4_hours")
    ]  # fmt: skip
    assert len(tried) >= POLICY.curator.cluster_min
    assert min(tried) > POLICY.curator.effect_min_ppm
    assert "; the playbook repays in this regime, rule " in reason(rows[place])
    assert not any(loan_of(row) for row in rows[place + 1 :])
    assert contradictions(made.records) == []
