"""Risk engine: five layers over acts that take a risk, besides the policy cage and the gas gate. Pure, over columns.

Layers: Kelly cap, exposure cap, drawdown guard, liquidity guard, health guard. Acts that reduce a risk pass: leaving,
collecting, repaying. At T2 the act is also simulated on the golem's own model of the market before it is sent.
Source: HB S3 (steps 5 and 6), canon ("five-layer risk engine").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bardo_pipeline.arrays import BoolArray, Float64Array, Int64Array
from bardo_pipeline.heartbeat import refusals
from bardo_pipeline.heartbeat.defi.aave_loans import share_values
from bardo_pipeline.heartbeat.defi.rebalance import MEDIAN_LUCK, slips
from bardo_pipeline.heartbeat.fleet import Fleet
from bardo_pipeline.heartbeat.refusals import BLOCKED, DEFERRED, Stop, ppm_of
from bardo_pipeline.market.tick_series import Tape
from bardo_pipeline.policy import Policy


@dataclass
class Stake:
    """Risk of decided acts, [decisions]; money in micro-dollars.

    risky: acts that take a risk. deep: decided at T2. cost: gas and expected slippage, lost for sure. value: what the
    act moves. borrowed: new debt. exit_swap: what leaving the new position at once would swap.
    """

    risky: BoolArray
    deep: BoolArray
    cost: Float64Array
    value: Float64Array
    borrowed: Float64Array
    exit_swap: Float64Array


def kelly_limit(right: Float64Array, nav: Float64Array, policy: Policy) -> Int64Array:
    """Return what an act may cost by Kelly's criterion for an even bet, f = 2 p - 1, at a share of it.

    right: p, the share of the golem's judged decisions that were right, in [0, 1]. A floor lets golems without an edge
    act, because otherwise they would never have one to show.
    """
    rules = policy.risk
    share = np.maximum(rules.kelly_floor, rules.kelly_share * (2.0 * right - 1.0))
    return np.floor(share * nav).astype(np.int64)


def debt_of(fleet: Fleet, tape: Tape, t: int, golem: Int64Array) -> Float64Array:
    """Return the debt of these golems in micro-dollars; 0 in a market without reserves."""
    if tape.reserves is None:
        return np.zeros(len(golem))
    return fleet.debt_shares[golem] * share_values(tape, t, fleet.collateral_asset[golem])[1]


def risk_stops(
    fleet: Fleet, tape: Tape, t: int, golem: Int64Array, nav: Float64Array, stake: Stake, policy: Policy
) -> tuple[Stop, ...]:
    """Return what the simulation and the five layers stop, [decisions], in this order.

    nav: net asset value before the act, in micro-dollars.
    """
    rules, risky, count = policy.risk, stake.risky, len(golem)
    worth = np.maximum(nav, 1.0)
    cost = np.ceil(stake.cost).astype(np.int64)
    lost = np.ceil(stake.cost / np.maximum(stake.value, 1.0) * 1e6).astype(np.int64)
    kelly = kelly_limit(fleet.confidence[golem], nav, policy)
    exposure = np.ceil((1.0 + (debt_of(fleet, tape, t, golem) + stake.borrowed) / worth) * 1e6).astype(np.int64)
    drawdown = np.ceil((1.0 - nav / np.maximum(fleet.high_water[golem], 1.0)) * 1e6).astype(np.int64)
    leaving = slips(tape, t, stake.exit_swap, MEDIAN_LUCK)
    burden = np.nan_to_num(np.ceil(1e6 / np.maximum(fleet.loan_health[golem], 1e-6)), nan=0.0).astype(np.int64)
    layers = (
        (stake.deep, lost, ppm_of(rules.simulated_loss_max), refusals.SIMULATED_LOSS, BLOCKED),
        (risky, exposure, ppm_of(rules.exposure_max), refusals.EXPOSURE, BLOCKED),
        (risky, drawdown, ppm_of(rules.drawdown_max), refusals.DRAWDOWN, BLOCKED),
        (risky, leaving, ppm_of(rules.exit_slippage_max), refusals.EXIT_SLIPPAGE, BLOCKED),
        (risky, burden, round(1e6 / rules.loan_health_min), refusals.LOAN_HEALTH, DEFERRED),
    )
    stops = [
        (applies & (size > limit), status, why, size, np.full(count, limit))
        for applies, size, limit, why, status in layers
    ]
    return (*stops[:1], (risky & (cost > kelly), BLOCKED, refusals.KELLY, cost, kelly), *stops[1:])
