"""Borrowing and deleveraging of deliberating golems, under the policy cage and the health guard. Pure, over columns.

A golem that may borrow does so before its first position, so that the position includes the borrowed money. Below the
guard's health it withdraws a part of its position and repays, unless the gas costs more than a liquidation would. Gas
gate, simulation at T2 and slippage on inclusion apply as to any action. Source: canon ("five-layer risk engine":
exposure cap, health guard; "PolicyCage": leverage), HB S3, S10.
"""

from __future__ import annotations

import numpy as np

from bardo_pipeline.arrays import BoolArray, Float64Array, Int8Array, Int64Array
from bardo_pipeline.heartbeat import decide
from bardo_pipeline.heartbeat.decide import BLOCKED, DEFERRED, REVERTED, WHY
from bardo_pipeline.heartbeat.defi.aave_loans import BORROW, NOTHING, REPAY, LoanActs, loan_term, revalue, share_values
from bardo_pipeline.heartbeat.defi.rebalance import MEDIAN_LUCK, gas_micros, slips
from bardo_pipeline.heartbeat.fleet import Fleet
from bardo_pipeline.market.market import ASSETS
from bardo_pipeline.market.tick_series import Tape
from bardo_pipeline.market.uniswap_v3 import token1_share, worth
from bardo_pipeline.mortality.random_streams import STREAM_LOAN, uniform
from bardo_pipeline.policy import Policy

WHY_RATIO, WHY_RATE, WHY_DEAR = range(len(WHY), len(WHY) + 3)
LOAN_WHY = (
    *WHY,
    "policy cage: debt above its share of the collateral",
    "policy cage: the borrow rate above the limit",
    "gas gate: gas above what a liquidation would take",
)
QUOTE, BASE = ASSETS.index("USDC"), ASSETS.index("WETH")

Stop = tuple[BoolArray, int, int]
"""(golems it stops, status, reason)."""


def borrow(fleet: Fleet, tape: Tape, t: int, tier: Int8Array, acts: LoanActs | None, policy: Policy) -> None:
    """Let deliberating golems that may borrow and have no position supply a part of their idle money and borrow."""
    if acts is None:
        return
    rules, thinks = policy.lending, (tier == 1) | (tier == 2)
    new = (fleet.loan_ratio > 0.0) & (fleet.loan_tick == 0) & (fleet.liquidity <= 0.0) & (fleet.idle > 0)
    acting = np.flatnonzero(thinks & new & (acts.action == NOTHING))
    if not len(acting):
        return
    asset, ratio = fleet.collateral_asset[acting], fleet.loan_ratio[acting]
    supplied = np.floor(fleet.idle[acting] * rules.collateral_share)
    owed = supplied * ratio
    swap = np.where(asset == BASE, supplied, owed)  # one side is not the idle money's token
    gas = gas_micros(tape, t, rules.borrow_gas_units)
    assert tape.reserves is not None, "a golem that acts on a loan is in a market with reserves"
    beyond = ratio > np.minimum(loan_term("loan_to_value", asset, rules), rules.ratio_max)
    stops: tuple[Stop, ...] = (
        (beyond, BLOCKED, WHY_RATIO),
        (tape.reserves.borrow_rate[1 - asset, t] > rules.rate_max, BLOCKED, WHY_RATE),
        (gas > policy.cage.gas_share_max * supplied, DEFERRED, decide.WHY_GAS_VALUE),
        (gas > policy.cage.gas_credit_share_max * fleet.credits[acting], DEFERRED, decide.WHY_GAS_CREDIT),
    )
    _send(fleet, tape, t, acting, acts, BORROW, swap, supplied, gas, stops, tier, policy)
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
    gas = gas_micros(tape, t, rules.repay_gas_units)
    stops: tuple[Stop, ...] = (
        (gas > debt * rules.close_factor * loan_term("bonus", asset, rules), DEFERRED, WHY_DEAR),
        (gas > policy.cage.gas_credit_share_max * fleet.credits[acting], DEFERRED, decide.WHY_GAS_CREDIT),
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
    value: Float64Array, gas: Float64Array, stops: tuple[Stop, ...], tier: Int8Array, policy: Policy,
) -> None:  # fmt: skip
    """Simulate (T2), validate and apply the slippage on inclusion; write the result into `acts`.

    swap, value: micro-dollars swapped, and moved in total. stops: further conditions, besides protocol and slippage.
    """
    limit = round(policy.cage.slippage_max * 1e6)
    expected = slips(tape, t, swap, MEDIAN_LUCK)
    slip = slips(tape, t, swap, uniform(fleet.seed[acting], fleet.tick[acting], STREAM_LOAN))
    foreign = np.full(len(acting), tape.market.protocol not in policy.cage.protocols)
    simulated = ((tier[acting] == 2) & (expected > limit), BLOCKED, decide.WHY_SIMULATED)
    status, why = np.zeros(len(acting), np.int64), np.full(len(acting), decide.WHY_NONE)
    for mask, state, reason in (
        (foreign, BLOCKED, decide.WHY_PROTOCOL), simulated, *stops, (slip > limit, REVERTED, decide.WHY_SLIPPED),
    ):  # fmt: skip
        hit = mask & (why == decide.WHY_NONE)
        status[hit], why[hit] = state, reason
    acts.action[acting], acts.status[acting], acts.why[acting] = action, status, why
    executed, sent = why == decide.WHY_NONE, (why == decide.WHY_NONE) | (why == decide.WHY_SLIPPED)
    acts.gas[acting] = np.where(sent, gas, 0)
    acts.slip_ppm[acting], acts.expected_slip_ppm[acting] = np.where(executed, slip, 0), expected
    acts.value[acting] = np.rint(value).astype(np.int64)
    acts.loss[acting] = np.where(executed, np.rint(swap).astype(np.int64) * slip // 1_000_000, 0)
