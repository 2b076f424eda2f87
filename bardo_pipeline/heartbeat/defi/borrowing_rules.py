"""Borrowing and deleveraging of deliberating golems, under the policy cage and the health guard. Pure, over columns.

A golem that may borrow does so before its first position, so that the position includes the borrowed money. Learned
rules of the playbook let it borrow again, borrow nothing, or repay its loan with the collateral. Below the
guard's health it withdraws a part of its position and repays, unless the gas costs more than a liquidation would. Gas
gate, simulation at T2 and slippage on inclusion apply as to any action. Source: canon ("five-layer risk engine":
exposure cap, health guard; "PolicyCage": leverage), HB S3, S10.
"""

from __future__ import annotations

import numpy as np

from bardo_pipeline.arrays import Float64Array, Int8Array, Int64Array
from bardo_pipeline.curator.choice_rules import BORROWS, REPAYS, STAY_OUT, TRAIT, UNLEVERED
from bardo_pipeline.heartbeat import refusals
from bardo_pipeline.heartbeat.defi.aave_loans import (
    BORROW,
    NOTHING,
    REPAY,
    LoanActs,
    loan_term,
    revalue,
    share_values,
    swapped_of_loan,
)
from bardo_pipeline.heartbeat.defi.rebalance import MEDIAN_LUCK, gas_micros, slips
from bardo_pipeline.heartbeat.defi.risk_engine import Stake, risk_stops
from bardo_pipeline.heartbeat.fleet import Fleet
from bardo_pipeline.heartbeat.gas_gate import gas_stops, pay_gas
from bardo_pipeline.heartbeat.refusals import BLOCKED, DEFERRED, EXECUTED, REVERTED, Stop
from bardo_pipeline.heartbeat.safety.permits import accuracy_stop, issue
from bardo_pipeline.market.market import ASSETS
from bardo_pipeline.market.tick_series import Tape
from bardo_pipeline.market.uniswap_v3 import token1_share, worth
from bardo_pipeline.mortality.random_streams import STREAM_LOAN, uniform
from bardo_pipeline.policy import Policy

QUOTE, BASE = ASSETS.index("USDC"), ASSETS.index("WETH")


def borrow(fleet: Fleet, tape: Tape, t: int, tier: Int8Array, acts: LoanActs | None, policy: Policy) -> None:
    """Let deliberating golems that may borrow and have no position supply a part of their idle money and borrow.

    Without a learned rule they do so once. With a rule for borrowing they borrow whenever they have no loan and may
    enter, and with a rule against it they never borrow.
    """
    if acts is None:
        return
    rules, thinks, regime = policy.lending, (tier == 1) | (tier == 2), int(tape.regime[t])
    free = (fleet.loan_ratio > 0.0) & (fleet.collateral_shares <= 0.0) & (fleet.liquidity <= 0.0) & (fleet.idle > 0)
    learned, first = fleet.loan_choice[regime], fleet.loan_tick == 0
    free &= thinks & (acts.action == NOTHING)
    enters = fleet.presence[regime] < STAY_OUT  # a trial of borrowing puts the money into a range
    withheld, called = free & first & (learned >= UNLEVERED), free & enters & (learned == BORROWS)
    acts.rule = np.where(withheld | called, fleet.loan_rule[regime] + 1, acts.rule)
    acting = np.flatnonzero(free & ((first & (learned == TRAIT)) | called))
    if not len(acting):
        return
    asset, ratio = fleet.collateral_asset[acting], fleet.loan_ratio[acting]
    supplied = np.floor(fleet.idle[acting] * rules.collateral_share)
    owed = supplied * ratio
    swap = swapped_of_loan(asset, supplied, owed)
    gas = np.full(len(acting), gas_micros(tape, t, rules.borrow_gas_units)).astype(np.int64)
    assert tape.reserves is not None, "a golem that acts on a loan is in a market with reserves"
    ratio_max = np.minimum(loan_term("loan_to_value", asset, rules), rules.ratio_max)
    rate, rate_max = tape.reserves.borrow_rate[1 - asset, t], np.full(len(acting), rules.rate_max)
    value_limit = np.floor(policy.cage.gas_share_max * supplied).astype(np.int64)
    stops: tuple[Stop, ...] = (
        (ratio > ratio_max, BLOCKED, refusals.DEBT_RATIO, _ppm(ratio), _ppm(ratio_max)),
        (rate > rate_max, BLOCKED, refusals.BORROW_RATE, _ppm(rate), _ppm(rate_max)),
        (gas > value_limit, DEFERRED, refusals.VALUE_SHARE, gas, value_limit),
        *((mask, DEFERRED, why, gas, limit) for mask, why, limit in gas_stops(fleet, acting, gas, policy)),
    )
    _send(fleet, tape, t, acting, acts, BORROW, swap, supplied, gas, stops, tier, policy, owed)
    done = acts.executed[acting]
    golem, (supply_share, debt_share) = acting[done], share_values(tape, t, asset[done])
    paid = (swap * acts.slip_ppm[acting] * 1e-6)[done]
    bought = supplied[done] - np.where(asset[done] == BASE, paid, 0.0)
    fleet.collateral_shares[golem] = bought / supply_share
    fleet.debt_shares[golem] = owed[done] / debt_share
    received = owed[done] - np.where(asset[done] == QUOTE, paid, 0.0)
    fleet.idle[golem] += np.floor(received - supplied[done]).astype(np.int64)
    fleet.loan_tick[golem] = fleet.tick[golem]
    revalue(fleet, tape, t, policy)


def repay(fleet: Fleet, tape: Tape, t: int, tier: Int8Array, acts: LoanActs | None, policy: Policy) -> None:
    """Let deliberating golems whose playbook repays close their loan: repay it with its collateral, keep the rest."""
    if acts is None:
        return
    rules, thinks, regime = policy.lending, (tier == 1) | (tier == 2), int(tape.regime[t])
    owes = (fleet.debt_shares > 0.0) & (fleet.loan_choice[regime] == REPAYS)
    acting = np.flatnonzero(thinks & owes & (acts.action == NOTHING))
    if not len(acting):
        return
    acts.rule[acting] = fleet.loan_rule[regime, acting] + 1
    asset = fleet.collateral_asset[acting]
    supply_share, debt_share = share_values(tape, t, asset)
    collateral, debt = fleet.collateral_shares[acting] * supply_share, fleet.debt_shares[acting] * debt_share
    swap = swapped_of_loan(asset, collateral, debt)
    gas = np.full(len(acting), gas_micros(tape, t, rules.repay_gas_units)).astype(np.int64)
    value_limit = np.floor(policy.cage.gas_share_max * debt).astype(np.int64)
    stops: tuple[Stop, ...] = (
        (gas > value_limit, DEFERRED, refusals.VALUE_SHARE, gas, value_limit),
        *((mask, DEFERRED, why, gas, limit) for mask, why, limit in gas_stops(fleet, acting, gas, policy)),
    )
    _send(fleet, tape, t, acting, acts, REPAY, swap, debt, gas, stops, tier, policy)
    done = acts.executed[acting]
    golem = acting[done]
    freed = (collateral - debt - swap * acts.slip_ppm[acting] * 1e-6)[done]
    fleet.idle[golem] += np.maximum(np.floor(freed), 0.0).astype(np.int64)
    fleet.collateral_shares[golem], fleet.debt_shares[golem] = 0.0, 0.0
    revalue(fleet, tape, t, policy)


def guard_health(fleet: Fleet, tape: Tape, t: int, tier: Int8Array, acts: LoanActs | None, policy: Policy) -> None:
    """Let deliberating golems below the guard's health repay up to its target. Their money limits the repayment."""
    if acts is None:
        return
    rules, thinks = policy.lending, (tier == 1) | (tier == 2)
    acting = np.flatnonzero(thinks & (fleet.loan_health < rules.health_guard) & (acts.action == NOTHING))
    if not len(acting):
        return
    asset, root = fleet.collateral_asset[acting], tape.root[t]
    supply_share, debt_share = share_values(tape, t, asset)
    collateral, debt = fleet.collateral_shares[acting] * supply_share, fleet.debt_shares[acting] * debt_share
    held = np.where(
        fleet.liquidity[acting] > 0.0,
        worth(fleet.liquidity[acting], fleet.root_lower[acting], fleet.root_upper[acting], root), 0.0,
    )  # fmt: skip
    wanted = debt - collateral * loan_term("threshold", asset, rules) / rules.health_target
    cash = np.minimum(np.floor(wanted), fleet.idle[acting])
    taken = np.minimum(wanted - cash, held)
    base = taken * token1_share(fleet.root_lower[acting], fleet.root_upper[acting], root)
    swap = np.where(asset == BASE, base, taken - base + cash)
    gas = np.full(len(acting), gas_micros(tape, t, rules.repay_gas_units)).astype(np.int64)
    bonus = np.floor(debt * rules.close_factor * loan_term("bonus", asset, rules)).astype(np.int64)
    stops: tuple[Stop, ...] = (
        (gas > bonus, DEFERRED, refusals.GAS_OVER_BONUS, gas, bonus),
        *((mask, DEFERRED, why, gas, limit) for mask, why, limit in gas_stops(fleet, acting, gas, policy)),
    )
    _send(fleet, tape, t, acting, acts, REPAY, swap, cash + taken, gas, stops, tier, policy)
    done = acts.executed[acting]
    golem = acting[done]
    kept = 1.0 - (taken / np.where(held > 0.0, held, 1.0))[done]
    for column in (fleet.liquidity, fleet.hold0, fleet.hold1):
        column[golem] *= kept
    fleet.idle[golem] -= cash[done].astype(np.int64)
    repaid = (cash + taken - swap * acts.slip_ppm[acting] * 1e-6)[done]
    fleet.debt_shares[golem] = np.maximum(fleet.debt_shares[golem] - repaid / debt_share[done], 0.0)
    revalue(fleet, tape, t, policy)


def _send(
    fleet: Fleet, tape: Tape, t: int, acting: Int64Array, acts: LoanActs, action: int, swap: Float64Array,
    value: Float64Array, gas: Int64Array, stops: tuple[Stop, ...], tier: Int8Array, policy: Policy,
    owed: Float64Array | None = None,
) -> None:  # fmt: skip
    """Simulate (T2), validate and send by permit, with the slippage on inclusion; write the result into `acts`.

    swap, value: micro-dollars swapped, and moved in total. stops: further conditions, besides protocol, slippage, risk
    engine and accuracy gate. owed: new debt; None for a repayment, which takes no risk.
    """
    limit, deep = round(policy.cage.slippage_max * 1e6), tier[acting] == 2
    expected = slips(tape, t, swap, MEDIAN_LUCK)
    slip = slips(tape, t, swap, uniform(fleet.seed[acting], fleet.tick[acting], STREAM_LOAN))
    foreign = np.full(len(acting), tape.market.protocol not in policy.cage.protocols)
    nothing, limits = np.zeros(len(acting), np.int64), np.full(len(acting), limit)
    risky = np.full(len(acting), owed is not None)
    cost, none = gas + swap * expected * 1e-6, np.zeros(len(acting))
    stake = Stake(risky, deep, cost, value, none if owed is None else owed, exit_swap=none)
    simulated = (deep & (expected > limit), BLOCKED, refusals.SIMULATION, expected, limits)
    status, why, why_size, why_limit = np.zeros((4, len(acting)), np.int64)
    protocol: Stop = (foreign, BLOCKED, refusals.PROTOCOL, nothing, nothing)
    for mask, state, reason, size, most in (
        protocol, simulated, *stops, *risk_stops(fleet, tape, t, acting, fleet.nav[acting], stake, policy),
        accuracy_stop(fleet, acting, risky, policy), (slip > limit, REVERTED, refusals.SLIPPAGE, slip, limits),
    ):  # fmt: skip
        hit = mask & (why == refusals.NO_REFUSAL)
        status[hit], why[hit], why_size[hit], why_limit[hit] = state, reason, size[hit], most[hit]
    wanted = np.full(len(acting), action)
    permits = issue(fleet, tape, t, acting, wanted, status, deep, policy)
    allowed = permits.use(fleet, tape, t, wanted)
    stopped = ((status == EXECUTED) | (status == REVERTED)) & ~allowed
    status[stopped], why[stopped] = DEFERRED, refusals.NO_PERMIT
    acts.permitted[acting], acts.simulated[acting] = allowed, permits.simulated & allowed
    acts.accuracy[acting] = permits.accuracy
    acts.market_state[acting], acts.expires_us[acting] = permits.market_state, permits.expires_us
    acts.action[acting], acts.status[acting], acts.why[acting] = action, status, why
    acts.why_size[acting], acts.why_limit[acting] = why_size, why_limit
    executed, sent = why == refusals.NO_REFUSAL, (why == refusals.NO_REFUSAL) | (why == refusals.SLIPPAGE)
    acts.gas[acting] = np.where(sent, gas, 0)
    pay_gas(fleet, acting, acts.gas[acting], int(tape.at_us[t]))
    acts.slip_ppm[acting], acts.expected_slip_ppm[acting] = np.where(executed, slip, 0), expected
    acts.value[acting] = np.rint(value).astype(np.int64)
    acts.loss[acting] = np.where(executed, np.rint(swap).astype(np.int64) * slip // 1_000_000, 0)


def _ppm(share: Float64Array) -> Int64Array:
    return np.rint(share * 1e6).astype(np.int64)
