"""Permits: execution demands one for each action, issued for one market state and tick, and valid once. Pure.

The accuracy gate issues them. It denies acts that take a risk to golems whose predictions fail; acts that reduce a risk
are permitted. Any driver of the heartbeat executes by `Permits.use`, whatever happened between decision and
execution. Source: HB S3 (step 7), HB adaptive clock (theta, phase 7: the accuracy gate).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from bardo_pipeline.arrays import BoolArray, Float64Array, Int64Array
from bardo_pipeline.heartbeat.fleet import Fleet
from bardo_pipeline.heartbeat.refusals import ACCURACY, BLOCKED, EXECUTED, REVERTED, Stop, ppm_of
from bardo_pipeline.market.tick_series import Tape
from bardo_pipeline.mortality.vitality import predictive_fitness
from bardo_pipeline.policy import Policy

_STATE_COLUMNS = ("price", "pool_tick", "liquidity", "gas_gwei", "regime")


def market_state(tape: Tape, t: int) -> np.uint64:
    """Return the hash of the market at a tick: price, liquidity, gas and regime."""
    figures = [float(getattr(tape, name)[t]) for name in _STATE_COLUMNS]
    return np.uint64(int.from_bytes(hashlib.blake2b(np.array(figures).tobytes(), digest_size=8).digest(), "big"))


@dataclass
class Permits:
    """Permits of decided actions, [decisions]; a place that is not granted permits nothing.

    action: code of the one permitted action. tick: the tick of the golem that decided it. market_state, expires_us: of
    the decision, the same for all. accuracy: share of held predictions. simulated: whether the act was simulated.
    """

    granted: BoolArray
    golem: Int64Array
    action: Int64Array
    tick: Int64Array
    market_state: np.uint64
    expires_us: int
    accuracy: Float64Array
    simulated: BoolArray

    def use(self, fleet: Fleet, tape: Tape, t: int, action: Int64Array) -> BoolArray:
        """Return which actions may be executed at this moment, and void all permits: each counts once.

        action: what is about to be executed, [decisions]. A permit does not allow another action, another tick of its
        golem, another state of the market, or a moment from its expiry on.
        """
        if not self.granted.any():
            return self.granted
        now = market_state(tape, t) == self.market_state and int(tape.at_us[t]) < self.expires_us
        allowed = self.granted & (self.action == action) & (self.tick == fleet.tick[self.golem]) & now
        self.granted = np.zeros(len(self.granted), bool)
        return allowed


def issue(
    fleet: Fleet, tape: Tape, t: int, golem: Int64Array, action: Int64Array, status: Int64Array, simulated: BoolArray,
    policy: Policy,
) -> Permits:  # fmt: skip
    """Issue permits for the actions that nothing refused: these would be sent.

    golem, action, status, simulated: of the decisions; action 0 is to hold.
    """
    return Permits(
        granted=(action != 0) & ((status == EXECUTED) | (status == REVERTED)),
        golem=golem,
        action=action.copy(),
        tick=fleet.tick[golem].copy(),
        market_state=market_state(tape, t),
        expires_us=int(tape.at_us[t]) + policy.risk.permit_seconds * 1_000_000,
        accuracy=accuracy_of(fleet, golem, policy),
        simulated=simulated.copy(),
    )


def accuracy_of(fleet: Fleet, golem: Int64Array, policy: Policy) -> Float64Array:
    """Return the share of the latest predictions of these golems that held."""
    return predictive_fitness(fleet.held_count[golem], fleet.resolved_count[golem], policy)


def accuracy_stop(fleet: Fleet, golem: Int64Array, risky: BoolArray, policy: Policy) -> Stop:
    """Return what the accuracy gate stops: acts that take a risk, of golems with too many missed predictions."""
    missed = np.rint((1.0 - accuracy_of(fleet, golem, policy)) * 1e6).astype(np.int64)
    limit = 1_000_000 - ppm_of(policy.risk.accuracy_min)
    return risky & (missed > limit), BLOCKED, ACCURACY, missed, np.full(len(golem), limit)
