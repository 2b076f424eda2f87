"""Phage: every hundred ticks it is tried to falsify the weakest entries of which the closing cycle has news: all of the
golem's own evidence is set against what they claim, and they pay if it says the opposite. Pure.

A cycle's vote is about that cycle; this is about the claim. Inherited knowledge that does not hold here dies of it.

Source: canon ("phage pass"), MEM-6.
"""

from __future__ import annotations

import numpy as np

from bardo_pipeline.curator.passes.distil import vote
from bardo_pipeline.curator.state.cycle_batch import Wave
from bardo_pipeline.curator.state.decision_log import CONTRADICTED
from bardo_pipeline.curator.state.grimoire_state import ACTIVE, GrimoireState
from bardo_pipeline.grimoire.confidence import CLASS_FACT, ppm
from bardo_pipeline.policy import Policy


def phage(state: GrimoireState, wave: Wave, policy: Policy) -> None:
    """Try the weakest entries of every golem at a hundredth tick by all that it has lived through itself."""
    trying = wave.golem[wave.cycle % policy.curator.phage_cycles == 0]
    if not len(trying):
        return
    due = np.zeros(len(state.golems), bool)
    due[trying] = True
    refuted = _refuted(state, wave.rows[wave.count > 0], policy)
    if not due[state["golem"][refuted]].any():
        return
    rows = wave.living(state)
    rows = rows[due[state["golem"][rows]] & (state["decay_class"][rows] != CLASS_FACT) & (state["sign"][rows] != 0)]
    now = state.confidence_at(rows, wave.closing(state, rows), policy.decay)
    order = np.lexsort((state.structures.stable()[state["structure"][rows]], now, state["golem"][rows]))
    rows, now = rows[order], now[order]
    golem = state["golem"][rows]
    starts = np.flatnonzero(np.r_[True, golem[1:] != golem[:-1]])
    rank = np.arange(len(rows)) - np.repeat(starts, np.diff(np.r_[starts, len(rows)]))
    hit = (rank < policy.curator.phage_count) & np.isin(rows, refuted)
    rows, now = rows[hit], now[hit]
    at = np.searchsorted(wave.rows, rows)
    vote(state, rows, now - ppm(policy.curator.downvote), wave.closing(state, rows), "contradictions")
    wave.note(state, CONTRADICTED, rows, now, wave.causes[at])


def _refuted(state: GrimoireState, rows: np.ndarray, policy: Policy) -> np.ndarray:
    """Those living rules among these rows of which all own evidence says the opposite."""
    rows = rows[(state["status"][rows] == ACTIVE) & (state["decay_class"][rows] != CLASS_FACT)]
    count, total = state["own_count"][rows], state["own_sum"][rows]
    opposite = (np.sign(total) == -state["sign"][rows]) & (total != 0)
    least = policy.curator.effect_min_ppm * count
    return rows[opposite & (count >= policy.curator.cluster_min) & (np.abs(total) >= least)]
