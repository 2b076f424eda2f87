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
from bardo_pipeline.mortality.random_streams import STREAM_EXPLORE, uniform
from bardo_pipeline.policy import Policy

T0, T1, T2, SUPPRESS = (TIERS.index(name) for name in ("T0", "T1", "T2", "suppress"))

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


def weigh(fleet: Fleet, signals: Float64Array, unforced: BoolArray, policy: Policy) -> Weighing:
    """Weigh the signals, and choose the tier of golems whose tick nothing forced.

    The fixed gate decides the first ticks of a golem that inherited no gate, ticks with a pending follow-up, and ticks
    at which all experts sleep.
    """
    rules = policy.gating
    weights = expert_weights(fleet.expert_losses, fleet.expert_rounds, rules)
    composite = combined(weights, signals)
    _draw(fleet, policy)
    drawn = fleet.drawn[(fleet.tick - 1) % rules.delta_ticks, :, np.arange(fleet.size)].T
    limits = thresholds(drawn, fleet.pad[1], fleet.pad[2], rules)
    grown = fleet.is_taught | (fleet.tick > policy.gate.attention_after_ticks)
    decided = fleet.alive & unforced & grown & (fleet.follow_ups == 0) & ~np.isnan(composite)
    above = composite > limits
    tier = np.select([above[0], above[1], above[2]], [T2, T1, T0], SUPPRESS).astype(np.int8)
    is_discarded = decided & ((tier == T0) | (tier == SUPPRESS))
    explored = is_discarded & (uniform(fleet.seed, fleet.tick, STREAM_EXPLORE) < rules.explore_share)
    return Weighing(
        signals, weights, composite, fleet.boundaries.reshape(6, -1).copy(), limits, decided, tier, explored
    )


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
        fleet.boundaries[..., i], fleet.is_taught[i] = np.array(boundaries).T, True


def _draw(fleet: Fleet, policy: Policy) -> None:
    """Sample the boundaries of golems that begin a delta, for all its ticks at once."""
    span = policy.gating.delta_ticks
    golem = np.flatnonzero(fleet.alive & ((fleet.tick - 1) % span == 0))
    if len(golem):
        ticks = fleet.tick[golem] + np.arange(span)[:, None]
        fleet.drawn[..., golem] = sampled(fleet.seed[golem], ticks, fleet.boundaries[..., golem])
