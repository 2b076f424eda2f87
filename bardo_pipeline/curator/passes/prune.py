"""Prune: entries that no longer earn their place leave the grimoire. Pure.

Nothing with a floor is ever pruned: bloodstains stay, and anti-knowledge until votes have falsified it. What is pruned
can be learned again.
Source: MEM (Curator), KAT, canon 7-9.
"""

from __future__ import annotations

import numpy as np

from bardo_pipeline.curator.state.cycle_batch import Wave
from bardo_pipeline.curator.state.decision_log import PRUNED as PRUNED_OPERATION
from bardo_pipeline.curator.state.grimoire_state import PRUNED, GrimoireState
from bardo_pipeline.grimoire.confidence import ppm
from bardo_pipeline.policy import Policy


def prune(state: GrimoireState, wave: Wave, policy: Policy) -> None:
    """Remove the wave's living entries whose confidence fell below the limit; their own evidence starts anew."""
    rows = wave.living(state)
    if not len(rows):
        return
    now = state.confidence_at(rows, wave.closing(state, rows), policy.decay)
    faded = now < ppm(policy.curator.prune_confidence)
    if not faded.any():
        return
    doomed = faded & (state.floor(rows, policy.decay) == 0)
    rows, now = rows[doomed], now[doomed]
    state["status"][rows] = PRUNED
    for name in ("own_count", "own_sum", "own_sumsq", "pleasure_sum_milli", "arousal_sum_milli", "dominance_sum_milli"):
        state[name][rows] = 0
    np.add.at(wave.pruned, wave.place(state, rows) if len(rows) else rows, 1)
    wave.note(state, PRUNED_OPERATION, rows, now)
