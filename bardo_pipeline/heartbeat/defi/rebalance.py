"""Re-centring: its requirements and its paired trial versus holding. Pure, over columns.

The two branches of a trial start from the same position, then hold, earn fees and follow the market for 30 ticks. Their
difference, including costs, is the measured effect of acting. Deliberating golems and golems suppressed by the gate are
judged alike. Source: HB S3 (step 8), HB adaptive clock (predictions for inaction on suppressed ticks), HB-24, canon 47;
KAT (deferred check after 30 ticks).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bardo_pipeline.arrays import BoolArray, Float64Array, Int8Array, Int64Array
from bardo_pipeline.heartbeat.fleet import Fleet
from bardo_pipeline.heartbeat.observe import Sight
from bardo_pipeline.market import uniswap_v3
from bardo_pipeline.market.tick_series import Tape
from bardo_pipeline.policy import Policy

MEDIAN_LUCK = 0.5
"""Luck of the median execution, which simulations assume."""

ACT, HOLD = 0, 1
"""The branches of a trial."""

LIMIT_PPM = 10**6


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
    lower, upper = uniswap_v3.range_around(tape.pool_tick[t], fleet.half_width_in(int(tape.regime[t]))[golem])
    root_lower, root_upper = uniswap_v3.sqrt_price(lower), uniswap_v3.sqrt_price(upper)
    value = np.where(held, sight.value[golem], fleet.idle[golem].astype(np.float64))
    share = np.where(held, uniswap_v3.token1_share(fleet.root_lower[golem], fleet.root_upper[golem], root), 0.0)
    swap = value * np.abs(uniswap_v3.token1_share(root_lower, root_upper, root) - share)
    slip = slips(tape, t, swap, MEDIAN_LUCK)
    return Recentring(golem, lower, upper, root_lower, root_upper, value, share, swap, slip)


def slips(tape: Tape, t: int, swap: Float64Array, luck: Float64Array | float) -> Int64Array:
    """Return the slippage of swaps in ppm; 0 without a swap."""
    span = tape.price_high[t] / tape.price_low[t] - 1.0
    slip = uniswap_v3.slippage_ppm(swap, tape.liquidity[t], tape.root[t], tape.market.fee_ppm, span, luck)
    return np.where(swap > 0, slip, 0)


def gas_micros(tape: Tape, t: int, units: Int64Array | int) -> Float64Array:
    """Return the price of gas units at this tick, in micro-dollars."""
    return np.rint(units * (tape.gas_gwei[t] * 1e-9 * tape.market.native_usd_micros))


def try_recentring(
    fleet: Fleet, tape: Tape, t: int, sight: Sight, plan: Recentring, acted: BoolArray, slip: Int64Array,
    recalled: Int64Array | None, policy: Policy,
) -> None:  # fmt: skip
    """Open trials of re-centring versus holding for the golems of a plan, as far as slots are free.

    An act takes any free slot. A decision to hold needs that no other decision of the golem is on trial, and inaction
    on a suppressed tick needs that no trial is open: so trials of one kind do not overlap.

    Parameters
    ----------
    acted : golems that re-centred
    slip : ppm of the swap that acting costs
    recalled : codes of the entries in the deliberation [RECALL, golems], -1 for none; None: no golem deliberated
    """
    thought = recalled is not None
    free = fleet.trial_due[:, plan.golem] < 0
    alone = free | ~fleet.trial_thought[:, plan.golem] if thought else free
    room = free.any(axis=0) & (acted | alone.all(axis=0))
    slot, plan = np.argmax(free[:, room], axis=0), plan.take(room)
    golem = plan.golem
    fleet.trial_due[slot, golem] = fleet.tick[golem] + policy.prediction.check_ticks
    fleet.trial_tick[slot, golem] = fleet.tick[golem]
    fleet.trial_chosen[slot, golem] = acted[room]
    fleet.trial_thought[slot, golem] = thought
    fleet.trial_regime[slot, golem] = tape.regime[t]
    fleet.trial_score[slot, golem] = sight.score[golem]
    fleet.trial_gas[slot, golem] = tape.gas_hour_ratio[t]
    fleet.trial_value[slot, golem] = plan.value
    fleet.trial_recalled[:, slot, golem] = -1 if recalled is None else recalled[:, room]
    for name in ("lower", "upper", "root_lower", "root_upper"):
        branch = getattr(fleet, f"branch_{name}")
        branch[ACT, slot, golem], branch[HOLD, slot, golem] = getattr(plan, name), getattr(fleet, name)[golem]
    kept = plan.value - plan.swap * slip[room] * 1e-6
    fleet.branch_liquidity[ACT, slot, golem] = uniswap_v3.liquidity_for(
        kept, plan.root_lower, plan.root_upper, tape.root[t]
    )
    fleet.branch_liquidity[HOLD, slot, golem] = fleet.liquidity[golem]
    fleet.branch_idle[ACT, slot, golem] = -gas_micros(tape, t, policy.cost.rebalance_gas_units)
    fleet.branch_idle[HOLD, slot, golem] = 0.0
    fleet.branch_fees[:, slot, golem] = 0.0


def try_inaction(fleet: Fleet, tape: Tape, t: int, sight: Sight, tier: Int8Array, policy: Policy) -> None:
    """Open trials of inaction for suppressed golems, at the anomaly scores at which decisions are judged.

    A golem needs to have no open trial, so it has at most one such trial in `check_ticks`.
    """
    still = fleet.alive & (tier != 1) & (tier != 2) & sight.open & (sight.score >= policy.playbook.trial_score_min)
    golem = still.nonzero()[0]
    golem = golem[(fleet.trial_due[:, golem] < 0).all(axis=0)]
    if len(golem):
        plan = recentring(fleet, tape, t, sight, golem)
        try_recentring(fleet, tape, t, sight, plan, np.zeros(len(golem), bool), plan.expected_slip, None, policy)


@dataclass
class Verdicts:
    """Trials closed this tick, [slots, golems]; valid where `due`."""

    due: BoolArray
    decision_tick: Int64Array
    chosen_act: BoolArray
    regime: Int64Array
    score: Float64Array
    gas_ratio: Float64Array
    value: Float64Array
    effect_ppm: Int64Array
    recalled: Int64Array


def judge(fleet: Fleet, tape: Tape, t: int, policy: Policy) -> Verdicts | None:
    """Accrue the branches' fees, close due trials and update confidence; None without due trials."""
    running = fleet.trial_due >= 0
    if running.any():
        inside = uniswap_v3.share_in_range(
            fleet.branch_lower, fleet.branch_upper, tape.pool_tick_low[t], tape.pool_tick_high[t], tape.pool_tick[t]
        )
        gained = uniswap_v3.fees_micros(
            fleet.branch_liquidity, tape.liquidity[t], tape.volume_micros[t], tape.market.fee_ppm, inside
        )
        fleet.branch_fees += np.where(running, gained, 0.0)
    due = running & (fleet.trial_due == fleet.tick)
    if not due.any():
        return None
    branch = uniswap_v3.worth(fleet.branch_liquidity, fleet.branch_root_lower, fleet.branch_root_upper, tape.root[t])
    branch = branch + fleet.branch_fees + fleet.branch_idle
    raw = (branch[ACT] - branch[HOLD]) / np.maximum(fleet.trial_value, 1.0) * 1e6
    effect = np.where(due, np.clip(np.rint(raw), -LIMIT_PPM, LIMIT_PPM), 0.0).astype(np.int64)
    memory = policy.prediction.confidence_memory
    for slot in range(due.shape[0]):
        right = (effect[slot] > 0) == fleet.trial_chosen[slot]
        fleet.confidence = np.where(
            due[slot] & fleet.trial_thought[slot], memory * fleet.confidence + (1.0 - memory) * right, fleet.confidence
        )
    tick, chosen, regime, score, gas, value, recalled = (
        getattr(fleet, f"trial_{n}").copy() for n in ("tick", "chosen", "regime", "score", "gas", "value", "recalled")
    )
    verdicts = Verdicts(due, tick, chosen, regime, score, gas, value, effect, recalled)
    fleet.trial_due[due] = -1
    return verdicts
