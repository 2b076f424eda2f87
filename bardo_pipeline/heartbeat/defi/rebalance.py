"""Re-centring: its requirements and its paired trial versus holding. Pure, over columns.

Deliberating golems and golems suppressed by the gate are judged by the same two branches. Source: HB S3 (step 8), HB
adaptive clock (predictions for inaction on suppressed ticks), HB-24; KAT (deferred check).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bardo_pipeline.arrays import BoolArray, Float64Array, Int8Array, Int64Array
from bardo_pipeline.heartbeat.fleet import RECALL, Fleet
from bardo_pipeline.heartbeat.observe import Sight
from bardo_pipeline.heartbeat.paired_trial import open_trials
from bardo_pipeline.market.tick_series import Tape
from bardo_pipeline.market.uniswap_v3 import liquidity_for, range_around, slippage_ppm, sqrt_price, token1_share
from bardo_pipeline.policy import Policy

MEDIAN_LUCK = 0.5
"""Luck of the median execution, which simulations assume."""


@dataclass
class Recentring:
    """New ranges around the price, [golems].

    value: micro-dollars to put into the range: the position, or idle money. share: share of value now in token1.
    swap: micro-dollars to swap. expected_slip: expected slippage of the swap in ppm.
    """

    golem: Int64Array
    lower: Float64Array
    upper: Float64Array
    root_lower: Float64Array
    root_upper: Float64Array
    value: Float64Array
    share: Float64Array
    swap: Float64Array
    expected_slip: Int64Array

    def take(self, selection: Int64Array | BoolArray) -> Recentring:
        """Select golems by positions in the plan or by mask."""
        return Recentring(*(column[selection] for column in vars(self).values()))


def recentring(fleet: Fleet, tape: Tape, t: int, sight: Sight, golem: Int64Array) -> Recentring:
    """Compute the re-centring of these golems (positions)."""
    root, held = tape.root[t], sight.open[golem]
    lower, upper = range_around(tape.pool_tick[t], fleet.half_width[golem])
    root_lower, root_upper = sqrt_price(lower), sqrt_price(upper)
    value = np.where(held, sight.value[golem], fleet.idle[golem].astype(np.float64))
    share = np.where(held, token1_share(fleet.root_lower[golem], fleet.root_upper[golem], root), 0.0)
    swap = value * np.abs(token1_share(root_lower, root_upper, root) - share)
    slip = slips(tape, t, swap, MEDIAN_LUCK)
    return Recentring(golem, lower, upper, root_lower, root_upper, value, share, swap, slip)


def slips(tape: Tape, t: int, swap: Float64Array, luck: Float64Array | float) -> Int64Array:
    """Return the slippage of swaps in ppm; 0 without a swap."""
    span = tape.price_high[t] / tape.price_low[t] - 1.0
    slip = slippage_ppm(swap, tape.liquidity[t], tape.root[t], tape.market.fee_ppm, span, luck)
    out: Int64Array = np.where(swap > 0, slip, 0)
    return out


def gas_micros(tape: Tape, t: int, units: Int64Array | int) -> Float64Array:
    """Return the price of gas units at this tick, in micro-dollars."""
    return np.rint(units * (tape.gas_gwei[t] * 1e-9 * tape.market.native_usd_micros))


def try_recentring(
    fleet: Fleet, tape: Tape, t: int, sight: Sight, plan: Recentring, acted: BoolArray, slip: Int64Array,
    recalled: Int64Array | None, policy: Policy,
) -> None:  # fmt: skip
    """Open trials of re-centring versus holding for the golems of a plan, as far as slots are free.

    Parameters
    ----------
    acted : golems that re-centred
    slip : ppm of the swap that acting costs
    recalled : codes of the entries in the deliberation [RECALL, golems], -1 for none; None: no golem deliberated
    """
    golem, count = plan.golem, len(plan.golem)
    kept = plan.value - plan.swap * slip * 1e-6
    act = {
        "liquidity": liquidity_for(kept, plan.root_lower, plan.root_upper, tape.root[t]),
        "lower": plan.lower.astype(np.float64),
        "upper": plan.upper.astype(np.float64),
        "root_lower": plan.root_lower,
        "root_upper": plan.root_upper,
        "idle": np.full(count, -gas_micros(tape, t, policy.cost.rebalance_gas_units)),
    }
    hold = {n: getattr(fleet, n)[golem].astype(np.float64) for n in act if n != "idle"} | {"idle": np.zeros(count)}
    open_trials(
        fleet, golem, acted=acted, thought=recalled is not None, regime=int(tape.regime[t]), score=sight.score[golem],
        gas_ratio=float(tape.gas_hour_ratio[t]), value=plan.value, act=act, hold=hold,
        recalled=np.full((RECALL, count), -1) if recalled is None else recalled, policy=policy,
    )  # fmt: skip


def try_inaction(fleet: Fleet, tape: Tape, t: int, sight: Sight, tier: Int8Array, policy: Policy) -> None:
    """Open trials of inaction for suppressed golems, at the anomaly scores at which decisions are judged.

    A golem needs to have no open trial, so it has at most one such trial in `check_ticks`.
    """
    still = fleet.alive & (tier != 1) & (tier != 2) & sight.open & (sight.score >= policy.playbook.trial_score_min)
    golem = np.flatnonzero(still & (fleet.trial_due < 0).all(axis=0))
    if len(golem):
        plan = recentring(fleet, tape, t, sight, golem)
        try_recentring(fleet, tape, t, sight, plan, np.zeros(len(golem), bool), plan.expected_slip, None, policy)
