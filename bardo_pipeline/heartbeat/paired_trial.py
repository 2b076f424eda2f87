"""Paired trials: an action and its alternative (holding) continue side by side and are compared after 30 ticks. Pure.

Both branches start from the same position, then hold, earn fees and follow the market. Their difference, including
costs, is the measured effect of acting. Source: KAT (deferred check after 30 ticks), HB S3 step 8, canon 47.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bardo_pipeline.arrays import BoolArray, Float64Array, Int64Array
from bardo_pipeline.heartbeat.fleet import Fleet
from bardo_pipeline.market.tick_series import Tape
from bardo_pipeline.market.uniswap_v3 import fees_micros, share_in_range, worth
from bardo_pipeline.policy import Policy

ACT, HOLD = 0, 1
LIMIT_PPM = 10**6


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
        inside = share_in_range(
            fleet.branch_lower, fleet.branch_upper, tape.pool_tick_low[t], tape.pool_tick_high[t], tape.pool_tick[t]
        )
        gained = fees_micros(
            fleet.branch_liquidity, tape.liquidity[t], tape.volume_micros[t], tape.market.fee_ppm, inside
        )
        fleet.branch_fees += np.where(running, gained, 0.0)
    due = running & (fleet.trial_due == fleet.tick)
    if not due.any():
        return None
    branch = worth(fleet.branch_liquidity, fleet.branch_root_lower, fleet.branch_root_upper, tape.root[t])
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


def open_trials(
    fleet: Fleet,
    golem: Int64Array,
    *,
    acted: BoolArray,
    thought: bool,
    regime: int,
    score: Float64Array,
    gas_ratio: float,
    value: Float64Array,
    act: dict[str, Float64Array],
    hold: dict[str, Float64Array],
    recalled: Int64Array,
    policy: Policy,
) -> None:
    """Open trials of these golems' decisions, as far as slots are free.

    An act takes any free slot. A decision to hold needs that no other decision of the golem is on trial, and inaction
    on a suppressed tick needs that no trial is open: so trials of one kind do not overlap.

    Parameters
    ----------
    act, hold : liquidity, lower, upper, root_lower, root_upper, idle of each branch
    thought : whether the golems deliberated
    """
    free = fleet.trial_due[:, golem] < 0
    alone = free | ~fleet.trial_thought[:, golem] if thought else free
    room = free.any(axis=0) & (acted | alone.all(axis=0))
    golem, pick = golem[room], np.flatnonzero(room)
    slot = np.argmax(free[:, room], axis=0)
    fleet.trial_due[slot, golem] = fleet.tick[golem] + policy.prediction.check_ticks
    fleet.trial_tick[slot, golem] = fleet.tick[golem]
    fleet.trial_chosen[slot, golem] = acted[pick]
    fleet.trial_thought[slot, golem] = thought
    fleet.trial_regime[slot, golem] = regime
    fleet.trial_score[slot, golem] = score[pick]
    fleet.trial_gas[slot, golem] = gas_ratio
    fleet.trial_value[slot, golem] = value[pick]
    fleet.trial_recalled[:, slot, golem] = recalled[:, pick]
    for branch, parts in ((ACT, act), (HOLD, hold)):
        for name in ("liquidity", "lower", "upper", "root_lower", "root_upper", "idle"):
            getattr(fleet, f"branch_{name}")[branch, slot, golem] = parts[name][pick]
        fleet.branch_fees[branch, slot, golem] = 0.0
