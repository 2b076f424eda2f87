"""Re-centring: what putting a position around the price takes, and its trial against holding. Pure, over columns.

Whoever decided about it, and whoever the gate kept from deciding, is judged by the same two branches. Source: HB S3
(step 8), HB adaptive clock (predictions for inaction on suppressed ticks), HB-24; KAT (deferred check).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bardo_pipeline.heartbeat.fleet import RECALL, Fleet
from bardo_pipeline.heartbeat.observe import Sight
from bardo_pipeline.heartbeat.paired_trial import open_trials
from bardo_pipeline.market.tick_series import Tape
from bardo_pipeline.market.uniswap_v3 import (
    liquidity_for,
    range_around,
    slippage_ppm,
    sqrt_price,
    token1_share,
)
from bardo_pipeline.policy import Policy

MEDIAN_LUCK = 0.5
"""The luck that a simulation expects of an execution: half of all go better."""


@dataclass
class Recentring:
    """A new range around the price for each of some golems, [golems].

    value: what would be put into it, in micro-dollars: the position, or idle money. share: of it that is in token1 now.
    swap, expected_slip: micro-dollars to be swapped on the way, and what of it that is expected to cost, in ppm.
    """

    golem: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    root_lower: np.ndarray
    root_upper: np.ndarray
    value: np.ndarray
    share: np.ndarray
    swap: np.ndarray
    expected_slip: np.ndarray

    def take(self, some: np.ndarray) -> Recentring:
        """Those of some golems. some: positions in the plan, or bool [golems]."""
        return Recentring(*(column[some] for column in vars(self).values()))


def recentring(fleet: Fleet, tape: Tape, t: int, sight: Sight, golem: np.ndarray) -> Recentring:
    """What re-centring would take for these golems (positions)."""
    root, held = tape.root[t], sight.open[golem]
    lower, upper = range_around(tape.pool_tick[t], fleet.half_width[golem])
    root_lower, root_upper = sqrt_price(lower), sqrt_price(upper)
    value = np.where(held, sight.value[golem], fleet.idle[golem].astype(np.float64))
    share = np.where(held, token1_share(fleet.root_lower[golem], fleet.root_upper[golem], root), 0.0)
    swap = value * np.abs(token1_share(root_lower, root_upper, root) - share)
    slip = slips(tape, t, swap, MEDIAN_LUCK)
    return Recentring(golem, lower, upper, root_lower, root_upper, value, share, swap, slip)


def slips(tape: Tape, t: int, swap: np.ndarray, luck: np.ndarray | float) -> np.ndarray:
    """What swaps of so many micro-dollars lose on the way, in ppm; nothing where nothing is swapped."""
    span = tape.price_high[t] / tape.price_low[t] - 1.0
    slip = slippage_ppm(swap, tape.liquidity[t], tape.root[t], tape.market.fee_ppm, span, luck)
    out: np.ndarray = np.where(swap > 0, slip, 0)
    return out


def gas_micros(tape: Tape, t: int, units: np.ndarray | int) -> np.ndarray:
    """What so many units of gas cost at this tick."""
    return np.rint(units * (tape.gas_gwei[t] * 1e-9 * tape.market.native_usd_micros))


def try_recentring(
    fleet: Fleet, tape: Tape, t: int, sight: Sight, plan: Recentring, acted: np.ndarray, slip: np.ndarray,
    recalled: np.ndarray | None, policy: Policy,
) -> None:  # fmt: skip
    """Put re-centring on trial against holding for the golems of a plan, as far as they have room.

    acted: who did it. slip: ppm of the swap that acting costs. recalled: codes of the entries that each had before it,
    [RECALL, golems], -1 without one; None: nobody thought about it.
    """
    who, count = plan.golem, len(plan.golem)
    kept = plan.value - plan.swap * slip * 1e-6
    act = {
        "liquidity": liquidity_for(kept, plan.root_lower, plan.root_upper, tape.root[t]),
        "lower": plan.lower.astype(np.float64),
        "upper": plan.upper.astype(np.float64),
        "root_lower": plan.root_lower,
        "root_upper": plan.root_upper,
        "idle": np.full(count, -gas_micros(tape, t, policy.cost.rebalance_gas_units)),
    }
    hold = {n: getattr(fleet, n)[who].astype(np.float64) for n in act if n != "idle"} | {"idle": np.zeros(count)}
    open_trials(
        fleet, who, acted=acted, thought=recalled is not None, regime=int(tape.regime[t]), score=sight.score[who],
        gas_ratio=float(tape.gas_hour_ratio[t]), value=plan.value, act=act, hold=hold,
        recalled=np.full((RECALL, count), -1) if recalled is None else recalled, policy=policy,
    )  # fmt: skip


def try_inaction(fleet: Fleet, tape: Tape, t: int, sight: Sight, tier: np.ndarray, policy: Policy) -> None:
    """Put holding still on trial for whom the gate let not think, where a thinker would be judged for it.

    One of a golem at a time, and none beside a decision's: so nobody has more than one in `check_ticks`.
    """
    still = fleet.alive & (tier != 1) & (tier != 2) & sight.open & (sight.score >= policy.playbook.trial_score_min)
    who = np.flatnonzero(still & (fleet.trial_due < 0).all(axis=0))
    if len(who):
        plan = recentring(fleet, tape, t, sight, who)
        try_recentring(fleet, tape, t, sight, plan, np.zeros(len(who), bool), plan.expected_slip, None, policy)
