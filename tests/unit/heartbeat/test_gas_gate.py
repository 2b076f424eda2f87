"""The gas gate over the gas partition, its average hourly cost, and the payments of both partitions."""

from __future__ import annotations

import numpy as np
import pytest

from bardo_pipeline.heartbeat.decide import LEAVE, REBALANCE
from bardo_pipeline.heartbeat.gas_gate import age_payments, gas_stops, note_payment, pay_gas
from bardo_pipeline.heartbeat.refusals import DEFERRED, EXECUTED, GAS_AVAILABLE, GAS_HOURLY, VALUE_SHARE
from bardo_pipeline.market.tick_series import tape_of
from bardo_pipeline.mortality.credit_partitions import GAS, INFERENCE, hourly_cost, pay_inference, split
from bardo_pipeline.policy import Policy
from tests.support.fleets.memory_fleets import drawn_market
from tests.support.fleets.shared_fleets import cage
from tests.unit.heartbeat.test_choose import CENTRE, entered, fleet_of, think

POLICY = Policy()
HOUR_US = 3_600_000_000


@pytest.mark.row("HB-30")
def test_credits_are_split_by_the_gas_share_without_a_remainder() -> None:
    credits = np.array([0, 1, 1_000_003, 1_225_000, 2**50])
    parts = split(credits, POLICY)
    assert (parts.sum(axis=0) == credits).all()
    assert parts[GAS].tolist() == [0, 0, 400_001, 490_000, 2**50 * 4 // 10]


@pytest.mark.row("HB-30")
@pytest.mark.parametrize(
    ("balance", "bill", "left", "paid"),
    [
        ((600, 400), 100, (500, 400), 100),
        ((600, 400), 600, (0, 400), 600),
        ((600, 400), 700, (180, 120), 700),
        ((600, 400), 1_000, (0, 0), 1_000),
        ((600, 400), 2_000, (0, 0), 1_000),
        ((600, 400), 0, (600, 400), 0),
    ],
)
def test_inference_is_paid_from_its_partition_and_then_both_are_split_anew(
    balance: tuple[int, int], bill: int, left: tuple[int, int], paid: int
) -> None:
    after, amount = pay_inference(np.array(balance)[:, None], np.array([bill]), POLICY)
    assert (tuple(after[:, 0].tolist()), amount.tolist()) == (left, [paid])


@pytest.mark.row("HB-15", "HB-30")
def test_gas_is_deferred_above_the_available_balance_and_above_twice_the_hourly_cost() -> None:
    fleet = fleet_of(4)
    fleet.partitions[GAS] = [1_000, 999, 50_000, 50_000]
    fleet.hourly[GAS] = [50_000, 50_000, 500, 499]
    (dry, first, available), (dear, second, limit) = gas_stops(fleet, np.arange(4), np.full(4, 1_000), POLICY)
    assert (first, second) == (GAS_AVAILABLE, GAS_HOURLY)
    assert dry.tolist() == [False, True, False, False]
    assert dear.tolist() == [False, False, False, True]
    assert (available == fleet.partitions[GAS]).all()
    assert limit.tolist() == [100_000, 100_000, 1_000, 998]


@pytest.mark.row("HB-30")
def test_the_hourly_cost_is_that_of_hours_with_a_payment_and_begins_with_one_usual_act() -> None:
    market = drawn_market([CENTRE] * 3_000, gas_gwei=30.0)
    tape, fleet = tape_of(market, POLICY), fleet_of(2)
    age_payments(fleet, tape, 0, POLICY)
    usual = POLICY.cost.rebalance_gas_units * 30.0 * 1e-9 * market.native_usd_micros
    assert fleet.hourly[GAS].tolist() == [round(usual)] * 2
    thought = POLICY.cost.t1_context_tokens * POLICY.cost.t1_input_micros_per_token
    thought += POLICY.cost.t1_output_tokens * POLICY.cost.t1_output_micros_per_token
    assert fleet.hourly[INFERENCE].tolist() == [thought] * 2
    both, at = np.array([0]), int(tape.at_us[0])
    for _ in range(3):
        note_payment(fleet, GAS, both, np.array([40_000]), at)
    assert fleet.paid_hours[GAS].tolist() == [1.0, 0.0], "payments of one hour are one hour"
    note_payment(fleet, GAS, both, np.array([40_000]), at + HOUR_US)
    note_payment(fleet, GAS, both, np.array([0]), at + 2 * HOUR_US)
    assert fleet.paid_hours[GAS].tolist() == [2.0, 0.0], "an hour without a payment does not count"
    assert hourly_cost(fleet.paid, fleet.paid_hours, np.full((2, 1), usual), POLICY)[GAS].tolist() == [
        round((160_000 + usual) / 3), round(usual),
    ]  # fmt: skip


@pytest.mark.row("HB-30")
def test_earlier_payments_lose_half_their_weight_in_a_day() -> None:
    tape, fleet = tape_of(drawn_market([CENTRE] * 1_442), POLICY), fleet_of(1)
    fleet.paid[GAS], fleet.paid_hours[GAS] = 800_000.0, 4.0
    start = int(tape.at_us[0])
    t = 0
    while int(tape.at_us[t]) - start < 24 * HOUR_US:
        t += 1
        age_payments(fleet, tape, t, POLICY)
    kept = 0.5 ** ((int(tape.at_us[t]) - start) / (24 * HOUR_US))
    assert kept == pytest.approx(0.5, abs=1e-3)
    assert fleet.paid[GAS, 0] == pytest.approx(800_000.0 * kept)
    assert fleet.paid_hours[GAS, 0] == pytest.approx(4.0 * kept)


@pytest.mark.row("HB-30")
def test_gas_reduces_its_partition_at_once() -> None:
    fleet = fleet_of(2)
    before = fleet.partitions.copy()
    pay_gas(fleet, np.array([1]), np.array([700]), 0)
    assert (before - fleet.partitions).tolist() == [[0, 0], [0, 700]]
    assert fleet.credits.tolist() == fleet.partitions.sum(axis=0).tolist()


@pytest.mark.row("HB-15")
@pytest.mark.parametrize(
    ("gas_gwei", "balance", "why"), [(300.0, None, GAS_HOURLY), (30.0, 6_000, GAS_AVAILABLE), (30.0, None, None)]
)
@pytest.mark.parametrize("action", [LEAVE, REBALANCE])
def test_no_action_passes_the_gas_gate_not_even_leaving(
    action: int, gas_gwei: float, balance: int | None, why: int | None
) -> None:
    fleet, tape = entered(2, gas_gwei=[30.0, gas_gwei, gas_gwei, gas_gwei])
    if balance is not None:
        fleet.partitions[GAS] = balance
    if action == LEAVE:
        fleet.high_water[:] *= 2.0
    else:
        fleet.rebalance_threshold[:] = 0.0
    choice, _ = think(fleet, tape, 1, cage(gas_share_max=1.0))
    assert choice.action.tolist() == [action] * 2
    assert choice.status.tolist() == [EXECUTED if why is None else DEFERRED] * 2
    assert choice.why.tolist() == [why or 0] * 2
    if why is not None:
        assert (choice.why_size > choice.why_limit).all()
        assert (choice.gas_micros == 0).all()


@pytest.mark.row("HB-15")
@pytest.mark.parametrize("action", [LEAVE, REBALANCE])
def test_no_action_passes_the_gas_limit_of_the_cage(action: int) -> None:
    fleet, tape = entered(1)
    if action == LEAVE:
        fleet.high_water[:] *= 2.0
    else:
        fleet.rebalance_threshold[:] = 0.0
    choice, sight = think(fleet, tape, 1, cage(gas_share_max=1e-5))
    assert choice.action.tolist() == [action]
    assert (choice.status.tolist(), choice.why.tolist()) == ([DEFERRED], [VALUE_SHARE])
    assert choice.why_limit.tolist() == [int(1e-5 * sight.value[0])]


@pytest.mark.row("HB-24")
def test_a_refused_recentring_is_on_trial_as_a_decision_to_hold() -> None:
    fleet, tape = entered(2)
    fleet.rebalance_threshold[:] = 0.0
    fleet.partitions[GAS, 0] = 0
    choice, sight = think(fleet, tape, 1, cage(gas_share_max=1.0))
    assert choice.status.tolist() == [DEFERRED, EXECUTED]
    assert fleet.trial_due[0].tolist() == [2 + POLICY.prediction.check_ticks] * 2
    assert fleet.trial_chosen[0].tolist() == [False, True]
    assert fleet.trial_score[0].tolist() == sight.score.tolist()
