"""Learned attention: golems deliberate less often in situations where deliberation led to no action. Pure, over
columns.

A situation is a regime and an anomaly band. The probability of ignoring a surprise is the share of vain thoughts there,
shrunk towards zero. Older thoughts count less, so the probability stays below one and changes are noticed. Heirs
inherit the counts (inheritance/learning_state.py recomputes them from records).
Source: HB S5 (strategy confidence: no compute on settled questions; learned gating; discount 0.99), HB-9 (was the tier
right: did thought find something to do that suppression would have missed), HB-10 (learning state travels).
"""

from __future__ import annotations

import numpy as np

from bardo_pipeline.arrays import BoolArray, Float64Array, Int64Array
from bardo_pipeline.heartbeat.fleet import Fleet
from bardo_pipeline.heartbeat.observe import Sight
from bardo_pipeline.inheritance.learning_state import BANDS
from bardo_pipeline.mortality.random_streams import STREAM_ATTENTION, uniform
from bardo_pipeline.policy import Policy


def places(regime: int, score: Float64Array, policy: Policy) -> Int64Array:
    """Return each golem's situation: regime x 5 + anomaly band."""
    band: Int64Array = np.searchsorted(policy.curator.anomaly_edges, score, side="right")
    return regime * BANDS + band


def passed(fleet: Fleet, regime: int, sight: Sight, policy: Policy) -> BoolArray:
    """Draw which golems ignore a surprise, with the share of vain thoughts in their situation as probability.

    Golems without a position, and those with a high drawdown, ignore none.
    """
    situation, golem = places(regime, sight.score, policy), np.arange(fleet.size)
    chance = fleet.vain[situation, golem] / (fleet.thoughts[situation, golem] + policy.gate.attention_prior_weight)
    calm = sight.open & (sight.drawdown < policy.probes.nav_high)
    ignores: BoolArray = calm & (uniform(fleet.seed, fleet.tick, STREAM_ATTENTION) < chance)
    return ignores


def note(fleet: Fleet, regime: int, sight: Sight, golem: Int64Array, acted: BoolArray, policy: Policy) -> None:
    """Count the thoughts of these golems (positions), and those without an action as vain."""
    situation, memory = places(regime, sight.score[golem], policy), policy.gate.attention_memory
    fleet.thoughts[situation, golem] = memory * fleet.thoughts[situation, golem] + 1.0
    fleet.vain[situation, golem] = memory * fleet.vain[situation, golem] + ~acted
