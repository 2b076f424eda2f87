"""Prune: remove entries whose confidence decayed below the policy's limit. Pure.

Entries with a confidence floor are never pruned: bloodstains, and anti-knowledge until votes falsify it. A pruned
entry can be learned again.
Source: MEM (Curator), KAT, canon 7-9.
"""

from __future__ import annotations

import numpy as np

from bardo_pipeline.curator.passes.weigh import clear_own_evidence
from bardo_pipeline.curator.state.cycle_batch import CycleBatch
from bardo_pipeline.curator.state.decision_log import PRUNED as PRUNED_OPERATION
from bardo_pipeline.curator.state.grimoire_state import PRUNED, GrimoireState
from bardo_pipeline.grimoire.confidence import ppm
from bardo_pipeline.policy import Policy


def prune(state: GrimoireState, wave: CycleBatch, policy: Policy) -> None:
    """Prune active entries below the confidence limit and clear their own evidence."""
    rows = wave.living(state)
    now = state.confidence_at(rows, wave.closing(state, rows), policy.decay)
    pruned = (now < ppm(policy.curator.prune_confidence)) & (state.floor(rows, policy.decay) == 0)
    rows, now = rows[pruned], now[pruned]
    state["status"][rows] = PRUNED
    clear_own_evidence(state, rows)
    np.add.at(wave.pruned, wave.place(state, rows), 1)
    wave.note(state, PRUNED_OPERATION, rows, now)
