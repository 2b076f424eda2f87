"""Consolidate: levels of metrics become baseline facts, and are reinforced by more of the same. Pure.

Source: MEM (facts from clusters of at least 3 episodes, confidence 0.7, reinforced and not duplicated), canon 6, 16.
"""

from __future__ import annotations

import numpy as np

from bardo_pipeline.curator.decisions import CREATED, REINFORCED, STAGED
from bardo_pipeline.curator.distil import create, vote
from bardo_pipeline.curator.state import ACTIVE, GrimoireState
from bardo_pipeline.curator.wave import Wave
from bardo_pipeline.grimoire.confidence import CLASS_FACT, ppm
from bardo_pipeline.policy import Policy


def consolidate(state: GrimoireState, wave: Wave, policy: Policy) -> None:
    """Create or reinforce the baselines that got evidence in this wave."""
    mine = np.flatnonzero(state["decay_class"][wave.rows] == CLASS_FACT)
    rows, causes, count = wave.rows[mine], wave.causes[mine], wave.count[mine]
    if not len(rows):
        return
    least = policy.curator.baseline_min
    active = state["status"][rows] == ACTIVE
    born = ~active & (state["own_count"][rows] >= least)
    again = active & (count >= least)
    at = wave.closing(state, rows)
    before = np.where(active, state.confidence_at(rows, at, policy.decay), 0)

    told = born | again
    own = state["own_count"][rows[told]]
    mean = state["own_sum"][rows[told]] / own
    half = policy.curator.interval_z * np.sqrt(
        np.maximum(state["own_sumsq"][rows[told]] / own - mean * mean, 0.0) / own
    )
    for name, values in (("effect_mean_ppm", mean), ("effect_low_ppm", mean - half), ("effect_high_ppm", mean + half)):
        state[name][rows[told]] = np.rint(values).astype(np.int64)
    state["evidence_count"][rows[told]] = own
    create(state, rows[born], np.zeros(int(born.sum()), np.int64), wave, confidence=ppm(policy.curator.confidence_fact))
    vote(state, rows[again], before[again] + ppm(policy.curator.upvote), at[again], "validations")
    for operation, chosen in ((STAGED, ~(born | again)), (CREATED, born), (REINFORCED, again)):
        wave.note(state, operation, rows[chosen], before[chosen], causes[chosen])
