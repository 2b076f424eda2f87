"""The learned gate: a composite of expert signals against sampled thresholds. Pure, over columns.

Source: HB S5 ("Combined gating pipeline"); HB online learning (exploration of discards); docs/adr/0109.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bardo_pipeline.arrays import BoolArray, Float64Array, Int8Array
from bardo_pipeline.events.record.model import TIERS
from bardo_pipeline.heartbeat.fleet import Fleet
from bardo_pipeline.heartbeat.gating.boundaries import sampled, thresholds
from bardo_pipeline.heartbeat.gating.expert_weights import combined, expert_weights, learning_rate
from bardo_pipeline.market.tick_series import Tape
from bardo_pipeline.policy import Policy

T0, T1, T2, SUPPRESS = (TIERS.index(name) for name in ("T0", "T1", "T2", "suppress"))

_TIER_BY_EXCEEDED = np.array([SUPPRESS, T0, T1, T2], np.int8)
"""Tier by the number of exceeded thresholds."""

GATED = ("signals", "weights", "composite", "boundaries", "thresholds", "decided", "explored")
"""Figures that a record holds."""


@dataclass
class Weighing:
    """Figures of the learned gate at a tick, [golems].

    signals, weights: [experts, golems]. composite: NaN if all experts sleep. boundaries: the three alpha, then
    the three beta. thresholds: of T2, T1 and T0. decided: the learned gate chose the tier. discarded: the tier
    before exploration. explored: a discarded tick that deliberates.
    """

    signals: Float64Array
    weights: Float64Array
    composite: Float64Array
    boundaries: Float64Array
    thresholds: Float64Array
    decided: BoolArray
    discarded: Int8Array
    explored: BoolArray


def weigh(fleet: Fleet, tape: Tape, t: int, signals: Float64Array, unforced: BoolArray, policy: Policy) -> Weighing:
    """Weigh the signals, and choose the tier of golems whose tick nothing forced.

    The fixed gate decides the first ticks of a golem that inherited no gate, ticks with a pending follow-up, and ticks
    at which all experts sleep. All golems of a market explore at the same ticks, so that the other ticks need no
    deliberation at all.
    """
    rules = policy.gating
    composite = combined(fleet.expert_weights, signals)
    _draw(fleet, t, policy)
    limits = thresholds(fleet.drawn[t % rules.delta_ticks], fleet.pad[1], fleet.pad[2], rules)
    grown = fleet.is_taught | (fleet.tick > policy.gate.attention_after_ticks)
    decided = fleet.alive & unforced & grown & (fleet.follow_ups == 0) & ~np.isnan(composite)
    tier = _TIER_BY_EXCEEDED[(composite > limits).sum(axis=0)]
    explored = decided & (tape.exploration_luck[t] < rules.explore_share)
    if explored.any():
        explored &= (tier != T1) & (tier != T2)
    boundaries = fleet.boundaries.reshape(6, -1)
    return Weighing(signals, fleet.expert_weights, composite, boundaries, limits, decided, tier, explored)


def inherit_gate(
    fleet: Fleet, i: int, state: tuple[Sequence[float], Sequence[Sequence[float]]] | None, policy: Policy
) -> None:
    """Start golem i with its predecessor's gate, which decides from its first unforced tick.

    state: logarithms of the weights, and alpha and beta of each boundary (inheritance/learning_state.py); None: none.
    """
    if state is not None:
        log_weights, boundaries = state
        eta = learning_rate(len(log_weights), fleet.expert_rounds[i : i + 1], policy.gating)
        fleet.expert_losses[:, i] = -np.array(log_weights) / eta
        one = fleet.expert_losses[:, i : i + 1], fleet.expert_rounds[i : i + 1]
        fleet.expert_weights[:, i : i + 1] = expert_weights(*one, policy.gating)
        fleet.boundaries[..., i], fleet.is_taught[i] = np.array(boundaries).T, True


def _draw(fleet: Fleet, t: int, policy: Policy) -> None:
    """Sample the boundaries of golems that begin a delta, for all its ticks at once."""
    span = policy.gating.delta_ticks
    begins = fleet.alive & ((fleet.tick - 1) % span == 0)
    if begins.any():
        golem, later = np.flatnonzero(begins), np.arange(span)
        drawn = sampled(fleet.seed[golem], fleet.tick[golem] + later[:, None], fleet.boundaries[..., golem])
        descending = np.sort(drawn, axis=1)[:, ::-1]
        fleet.drawn[((t + later) % span)[:, None], :, golem] = descending.swapaxes(1, 2)
