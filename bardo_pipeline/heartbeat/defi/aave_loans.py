"""Lending: loans beside the pool's positions, how they grow, their worth, who is liquidated. Pure, over columns.

A golem supplies one of the pool's tokens and owes the other. Both grow by the recorded indexes; health is collateral x
liquidation threshold / debt at the bar's price. Below 1, the protocol repays a part of the debt out of the collateral
and pays whoever does it a bonus: nobody is asked. Source: Aave v3; HB S9 (health factor), canon ("health guard").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bardo_pipeline.heartbeat.decide import EXECUTED
from bardo_pipeline.heartbeat.fleet import Fleet
from bardo_pipeline.market.aave_reserves import ASSETS
from bardo_pipeline.market.tick_series import Tape
from bardo_pipeline.policy import Policy
from bardo_pipeline.policy.loans import LendingPolicy

NOTHING, BORROW, REPAY, LIQUIDATED = range(4)
LOAN_ACTIONS = (None, "borrow", "repay", "liquidated")


@dataclass
class LoanActs:
    """What became of loans this tick, [golems], at most one thing each; money in micro-dollars.

    action: NOTHING, BORROW, REPAY or LIQUIDATED, which the protocol does. status, why: as of any action. value: what it
    moved. loss: what it cost beside gas: slippage, or the bonus.
    """

    action: np.ndarray
    status: np.ndarray
    why: np.ndarray
    gas: np.ndarray
    slip_ppm: np.ndarray
    expected_slip_ppm: np.ndarray
    value: np.ndarray
    loss: np.ndarray

    @classmethod
    def none(cls, golems: int) -> LoanActs:
        """Nothing happened yet."""
        return cls(*(np.zeros(golems, np.int64) for _ in range(8)))

    @property
    def executed(self) -> np.ndarray:
        """Whose loan was changed: bool [golems]."""
        done: np.ndarray = (self.action != NOTHING) & (self.status == EXECUTED)
        return done


@dataclass(frozen=True)
class Terms:
    """What the protocol asks of each golem's loan, [golems], by its collateral."""

    loan_to_value: np.ndarray
    threshold: np.ndarray
    bonus: np.ndarray

    @classmethod
    def of(cls, asset: np.ndarray, rules: LendingPolicy) -> Terms:
        """The terms for collateral in these tokens (positions in ASSETS)."""
        told = {name.lower(): name for name in ASSETS}
        columns = (
            np.array([getattr(rules, f"{asset}_{term}") for asset in told])
            for term in ("loan_to_value", "threshold", "bonus")
        )
        return cls(*(column[asset] for column in columns))


@dataclass(frozen=True)
class Shares:
    """What a share of each golem's two reserves is worth now, [golems], in micro-dollars."""

    supplied: np.ndarray
    owed: np.ndarray

    @classmethod
    def at(cls, tape: Tape, t: int, asset: np.ndarray) -> Shares:
        """At a tick of the tape. asset: of the collateral; the debt is in the other."""
        assert tape.reserves is not None, "only a market with reserves lends"
        unit = np.array([1.0, tape.price[t]])
        supplied, owed = tape.reserves.supply_index[:, t] * unit, tape.reserves.borrow_index[:, t] * unit
        return cls(supplied[asset], owed[1 - asset])


def health_of(collateral: np.ndarray, debt: np.ndarray, threshold: np.ndarray, rules: LendingPolicy) -> np.ndarray:
    """Health of loans: collateral x threshold / debt, both in the same money; NaN where nothing is supplied.

    At most `health_free`, which is what collateral that owes nothing has.
    """
    owing = debt > 0.0
    plain = np.where(owing, collateral * threshold / np.where(owing, debt, 1.0), rules.health_free)
    return np.where((collateral > 0.0) | owing, np.minimum(plain, rules.health_free), np.nan)


@dataclass(frozen=True)
class Seized:
    """What liquidations repaid and took, [golems], in the money of the loans, 0 where nobody was; whose collateral it
    emptied, bool: what they still owe is the protocol's loss."""

    repaid: np.ndarray
    taken: np.ndarray
    emptied: np.ndarray


def liquidation(
    collateral: np.ndarray, debt: np.ndarray, health: np.ndarray, bonus: np.ndarray, rules: LendingPolicy
) -> Seized:
    """Who is liquidated and by how much: the close factor of the debt, all of it where health is very low.

    What is taken is worth what was repaid and the bonus on it, and no more than the collateral.
    """
    share = np.where(health <= rules.full_close_health, 1.0, rules.close_factor)
    due, most = debt * share, collateral / (1.0 + bonus)
    repaid = np.where(health < 1.0, np.minimum(due, most), 0.0)
    return Seized(repaid, repaid * (1.0 + bonus), (health < 1.0) & (due >= most))


def grow(fleet: Fleet, tape: Tape, t: int, policy: Policy) -> LoanActs | None:
    """Let loans come to this tick: interest, price, liquidation where health is below 1. None: nobody can borrow."""
    if tape.reserves is None:
        return None
    acts = LoanActs.none(fleet.size)
    owing = fleet.collateral_shares > 0.0
    if not owing.any():
        return acts
    _pay_interest(fleet, tape, t)
    terms, share = Terms.of(fleet.collateral_asset, policy.lending), Shares.at(tape, t, fleet.collateral_asset)
    collateral, debt = fleet.collateral_shares * share.supplied, fleet.debt_shares * share.owed
    health = health_of(collateral, debt, terms.threshold, policy.lending)
    seized = liquidation(collateral, debt, np.where(owing, health, np.nan), terms.bonus, policy.lending)
    left = ~seized.emptied
    fleet.collateral_shares = np.maximum(fleet.collateral_shares - seized.taken / share.supplied, 0.0) * left
    fleet.debt_shares = np.maximum(fleet.debt_shares - seized.repaid / share.owed, 0.0) * left
    lost = seized.taken - seized.repaid
    fleet.loan_cost += lost
    acts.action = np.where(seized.repaid > 0.0, LIQUIDATED, NOTHING)
    acts.value, acts.loss = np.rint(seized.taken).astype(np.int64), np.rint(lost).astype(np.int64)
    revalue(fleet, tape, t, policy)
    return acts


def _pay_interest(fleet: Fleet, tape: Tape, t: int) -> None:
    """Count what debt grew by more than collateral since the tick before, at this tick's price."""
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
    """What loans are worth, net, and how healthy they are at this tick's price.

    Worth no less than nothing: a debt beyond its collateral is the protocol's loss, nobody can be made to pay it.
    """
    share = Shares.at(tape, t, fleet.collateral_asset)
    collateral, debt = fleet.collateral_shares * share.supplied, fleet.debt_shares * share.owed
    threshold = Terms.of(fleet.collateral_asset, policy.lending).threshold
    fleet.loan_value = np.maximum(collateral - debt, 0.0)
    fleet.loan_health = health_of(collateral, debt, threshold, policy.lending)
