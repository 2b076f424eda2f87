"""Shadow loans of the trials of choices: what a loan earns and costs over a window. Pure, over columns.

A shadow pays interest and is liquidated as the loan of a golem is (aave_loans.py), and repays nothing itself. The drift
of the tokens is left out, as in the trials of positions. Source: HB S3 (step 8), HB-24; docs/adr/0091.
"""

from __future__ import annotations

import numpy as np

from bardo_pipeline.arrays import Float64Array, Int64Array
from bardo_pipeline.heartbeat.defi.aave_loans import health_of, liquidation, loan_term, share_values
from bardo_pipeline.market.tick_series import Tape
from bardo_pipeline.policy import Policy


def gains_of_loans(
    tape: Tape, start: int, stop: int, asset: Int64Array, supplied: Float64Array, owed: Float64Array, policy: Policy
) -> Float64Array:
    """Return interest earned less interest paid and liquidation bonuses of loans over a window, in micro-dollars.

    asset, supplied, owed: collateral, its shares and those of the debt, [loans]. The debt is in the other asset.
    """
    assert tape.reserves is not None, "only a market with reserves lends"
    terms, ticks = policy.lending, np.arange(start, stop + 1)
    unit = np.stack([np.ones(len(ticks)), tape.price[ticks]])
    supply, borrow = (index[:, ticks] * unit for index in (tape.reserves.supply_index, tape.reserves.borrow_index))
    earned, paid = (
        np.cumsum(np.diff(index[:, ticks], prepend=index[:, start, None], axis=1) * unit, axis=1)
        for index in (tape.reserves.supply_index, tape.reserves.borrow_index)
    )
    threshold, bonus = loan_term("threshold", asset, terms)[:, None], loan_term("bonus", asset, terms)
    gain, at = np.zeros(len(asset)), 0
    while at < len(ticks) - 1:
        rest = slice(at + 1, None)
        values = supplied[:, None] * supply[asset, rest], owed[:, None] * borrow[1 - asset, rest]
        health = health_of(*values, threshold, terms)
        falls = np.flatnonzero((health < 1.0).any(axis=0))
        last = at + 1 + int(falls[0]) if len(falls) else len(ticks) - 1
        gain += supplied * (earned[asset, last] - earned[asset, at])
        gain -= owed * (paid[1 - asset, last] - paid[1 - asset, at])
        collateral, debt = (value[:, last - at - 1] for value in values)
        repaid, taken, emptied = liquidation(collateral, debt, health[:, last - at - 1], bonus, terms)
        gain -= taken - repaid
        supplied = np.maximum(supplied - taken / supply[asset, last], 0.0) * ~emptied
        owed = np.maximum(owed - repaid / borrow[1 - asset, last], 0.0) * ~emptied
        at = last
    return gain


def gains_of_new_loans(
    tape: Tape, start: int, stop: int, asset: Int64Array, ratio: Float64Array, policy: Policy
) -> Float64Array:
    """Return the gain of a new loan as a share of its collateral, [golems]. ratio: debt over collateral."""
    kinds, of_golem = np.unique(np.stack([asset, ratio]), axis=1, return_inverse=True)
    assets, ratios = kinds[0].astype(np.int64), kinds[1]
    supply_share, debt_share = share_values(tape, start, assets)
    made = gains_of_loans(tape, start, stop, assets, 1.0 / supply_share, ratios / debt_share, policy)
    return made[of_golem.reshape(-1)]
