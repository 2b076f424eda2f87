"""Attention: a golem learns where thinking came to nothing, and thinks there less often. Pure, over columns.

A situation is a regime and how far off its range the price is. Of the thoughts there, some led to an act and the others
to none; drawn towards none of them in vain, that share is the chance that a surprise is let pass. Every thought makes
those before it in the same situation count a little less. So the chance never reaches one, and what has changed is
found out. It is part of what a golem leaves to its heir (inheritance/learning_state.py tells it from the records).
Source: HB S5 (strategy confidence: no compute on settled questions; learned gating; discount 0.99), HB-9 (was the tier
right: did thought find something to do that suppression would have missed), HB-10 (learning state travels).
"""

from __future__ import annotations

import numpy as np

from bardo_pipeline.heartbeat.fleet import Fleet
from bardo_pipeline.heartbeat.observe import Sight
from bardo_pipeline.inheritance.learning_state import BANDS
from bardo_pipeline.mortality.random_streams import STREAM_ATTENTION, uniform
from bardo_pipeline.policy import Policy


def places(regime: int, score: np.ndarray, policy: Policy) -> np.ndarray:
    """The situation of each golem: regime x 5 + anomaly band, [golems]."""
    band: np.ndarray = np.searchsorted(policy.curator.anomaly_edges, score, side="right")
    return regime * BANDS + band


def passed(fleet: Fleet, regime: int, sight: Sight, policy: Policy) -> np.ndarray:
    """Who would let a surprise pass here, [golems]: as often as thinking here came to nothing.

    Nobody does who holds no position, or whose position fell so far that it may have to be left.
    """
    here, golem = places(regime, sight.score, policy), np.arange(fleet.size)
    chance = fleet.vain[here, golem] / (fleet.thoughts[here, golem] + policy.gate.attention_prior_weight)
    calm = sight.open & (sight.drawdown < policy.probes.nav_high)
    out: np.ndarray = calm & (uniform(fleet.seed, fleet.tick, STREAM_ATTENTION) < chance)
    return out


def note(fleet: Fleet, regime: int, sight: Sight, golem: np.ndarray, acted: np.ndarray, policy: Policy) -> None:
    """Count the thoughts of these golems, and those that came to nothing. golem: positions; acted: bool, of each."""
    here, kept = places(regime, sight.score[golem], policy), policy.gate.attention_memory
    fleet.thoughts[here, golem] = kept * fleet.thoughts[here, golem] + 1.0
    fleet.vain[here, golem] = kept * fleet.vain[here, golem] + ~acted
