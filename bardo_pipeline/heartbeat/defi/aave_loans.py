"""Aave loans: interest, value, health and liquidation. Pure, over columns.

A golem supplies one of the pool's tokens and borrows the other. Both grow by the recorded indexes. Health is
collateral x liquidation threshold / debt at the bar's price. Below 1 the protocol repays a part of the debt out of the
collateral and pays the liquidator a bonus. Source: Aave v3; HB S9 (health factor), canon ("health guard").
"""

from dataclasses import dataclass, fields
from typing import Self

import numpy as np

from bardo_pipeline.arrays import BoolArray, Float64Array, Int64Array, UInt64Array
from bardo_pipeline.heartbeat.fleet import Fleet
from bardo_pipeline.heartbeat.refusals import EXECUTED
from bardo_pipeline.market.market import ASSETS
from bardo_pipeline.market.tick_series import Tape
from bardo_pipeline.policy import LendingPolicy, Policy

NOTHING, BORROW, REPAY, LIQUIDATED = range(4)
LOAN_ACTIONS = (None, "borrow", "repay", "liquidated")


@dataclass
class LoanActs:
    """Loan actions of this tick, [golems], at most one each; money in micro-dollars.

    action: NOTHING, BORROW, REPAY or LIQUIDATED (by the protocol). why: the refusal, with its two numbers.
    value: moved amount. loss: slippage or liquidation bonus. rule: one more than the code of the learned rule that
    took, repaid or withheld the loan, 0 for none. permitted, market_state, expires_us, accuracy, simulated: of the
    permit by which the action was sent.
    """

    action: Int64Array
    status: Int64Array
    why: Int64Array
    why_size: Int64Array
    why_limit: Int64Array
    gas: Int64Array
    slip_ppm: Int64Array
    expected_slip_ppm: Int64Array
    value: Int64Array
    loss: Int64Array
    rule: Int64Array
    permitted: BoolArray
    market_state: UInt64Array
    expires_us: Int64Array
    accuracy: Float64Array
    simulated: BoolArray

    @classmethod
    def none(cls, golems: int) -> Self:
        """Return no actions."""
        kinds = {"permitted": bool, "simulated": bool, "market_state": np.uint64, "accuracy": np.float64}
        return cls(*(np.zeros(golems, kinds.get(field.name, np.int64)) for field in fields(cls)))

    @property
    def executed(self) -> BoolArray:
        """Whether each loan was changed by its golem or the protocol."""
        return (self.action != NOTHING) & (self.status == EXECUTED)


def loan_term(name: str, asset: Int64Array, rules: LendingPolicy) -> Float64Array:
    """Look up a loan term (loan_to_value, threshold or bonus) by collateral (positions in ASSETS)."""
    terms = np.array([getattr(rules, f"{token.lower()}_{name}") for token in ASSETS])
    return terms[asset]


def swapped_of_loan(asset: Int64Array, supplied: Float64Array | float, owed: Float64Array) -> Float64Array:
    """Return the value to swap when a loan is taken, or repaid out of its collateral: its side in WETH.

    asset: the collateral, [loans]. supplied, owed: collateral and debt in the same money.
    """
    return np.where(asset == ASSETS.index("WETH"), supplied, owed)


def share_values(tape: Tape, t: int, asset: Int64Array) -> tuple[Float64Array, Float64Array]:
    """Return the micro-dollars of one supplied and of one owed share at a tick, [golems].

    asset: the collateral; the debt is in the other asset.
    """
    assert tape.reserves is not None, "only a market with reserves lends"
    unit = np.array([1.0, tape.price[t]])
    supplied, owed = tape.reserves.supply_index[:, t] * unit, tape.reserves.borrow_index[:, t] * unit
    return supplied[asset], owed[1 - asset]


def health_of(
    collateral: Float64Array, debt: Float64Array, threshold: Float64Array, rules: LendingPolicy
) -> Float64Array:
    """Return collateral x threshold / debt, both in the same money; NaN without collateral and debt.

    The maximum is `health_free`, which is also the health of collateral without debt.
    """
    has_debt = debt > 0.0
    health = np.where(has_debt, collateral * threshold / np.where(has_debt, debt, 1.0), rules.health_free)
    return np.where((collateral > 0.0) | has_debt, np.minimum(health, rules.health_free), np.nan)


def liquidation(
    collateral: Float64Array, debt: Float64Array, health: Float64Array, bonus: Float64Array, rules: LendingPolicy
) -> tuple[Float64Array, Float64Array, BoolArray]:
    """Liquidate loans with health below 1: the close factor of the debt, all of it at very low health.

    The taken collateral is worth the repaid debt plus the bonus, at most the whole collateral.

    Returns
    -------
    amounts repaid and taken, 0 without a liquidation; mask of the golems whose whole collateral was taken: the protocol
    bears their remaining debt
    """
    share = np.where(health <= rules.full_close_health, 1.0, rules.close_factor)
    debt_due, repaid_max = debt * share, collateral / (1.0 + bonus)
    repaid = np.where(health < 1.0, np.minimum(debt_due, repaid_max), 0.0)
    return repaid, repaid * (1.0 + bonus), (health < 1.0) & (debt_due >= repaid_max)


def grow(fleet: Fleet, tape: Tape, t: int, policy: Policy) -> LoanActs | None:
    """Update loans to this tick: interest, price, liquidation below health 1. None in a market without reserves."""
    if tape.reserves is None:
        return None
    acts = LoanActs.none(fleet.size)
    has_debt = fleet.collateral_shares > 0.0
    if not has_debt.any():
        return acts
    _pay_interest(fleet, tape, t)
    asset, rules = fleet.collateral_asset, policy.lending
    supplied, owed = share_values(tape, t, asset)
    collateral, debt = fleet.collateral_shares * supplied, fleet.debt_shares * owed
    health = np.where(has_debt, health_of(collateral, debt, loan_term("threshold", asset, rules), rules), np.nan)
    repaid, taken, emptied = liquidation(collateral, debt, health, loan_term("bonus", asset, rules), rules)
    fleet.collateral_shares = np.maximum(fleet.collateral_shares - taken / supplied, 0.0) * ~emptied
    fleet.debt_shares = np.maximum(fleet.debt_shares - repaid / owed, 0.0) * ~emptied
    fleet.loan_cost += taken - repaid
    acts.action = np.where(repaid > 0.0, LIQUIDATED, NOTHING)
    acts.value, acts.loss = np.rint(taken).astype(np.int64), np.rint(taken - repaid).astype(np.int64)
    revalue(fleet, tape, t, policy)
    return acts


def _pay_interest(fleet: Fleet, tape: Tape, t: int) -> None:
    """Add interest since the last tick to loan_cost: the debt's minus the collateral's, at this tick's price."""
    if t == 0:
        return
    assert tape.reserves is not None, "only a market with reserves lends"
    unit = np.array([1.0, tape.price[t]])
    earned, paid = (
        (index[:, t] - index[:, t - 1]) * unit for index in (tape.reserves.supply_index, tape.reserves.borrow_index)
    )
    asset = fleet.collateral_asset
    fleet.loan_cost += fleet.debt_shares * paid[1 - asset] - fleet.collateral_shares * earned[asset]


def revalue(fleet: Fleet, tape: Tape, t: int, policy: Policy) -> None:
    """Update net value and health of loans at this tick's price.

    The value is at least 0, because a debt beyond its collateral is the protocol's loss.
    """
    supplied, owed = share_values(tape, t, fleet.collateral_asset)
    collateral, debt = fleet.collateral_shares * supplied, fleet.debt_shares * owed
    threshold = loan_term("threshold", fleet.collateral_asset, policy.lending)
    fleet.loan_value = np.maximum(collateral - debt, 0.0)
    fleet.loan_health = health_of(collateral, debt, threshold, policy.lending)
