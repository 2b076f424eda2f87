"""Phage: every hundred ticks the weakest entries are set against the newest evidence, and pay if it speaks against
them. Pure.

Source: canon ("phage pass"), MEM-6.
"""

from __future__ import annotations

import numpy as np

from bardo_pipeline.curator.decisions import CONTRADICTED
from bardo_pipeline.curator.distil import vote
from bardo_pipeline.curator.state import GrimoireState
from bardo_pipeline.curator.wave import Wave
from bardo_pipeline.grimoire.confidence import CLASS_FACT, ppm
from bardo_pipeline.policy import Policy


def phage(state: GrimoireState, wave: Wave, policy: Policy) -> None:
    """Try the weakest entries of golems at a hundredth tick; then their recent evidence starts anew."""
    due = wave.cycle % policy.curator.phage_cycles == 0
    here = np.zeros(len(state.golems), bool)
    here[wave.golem[due]] = True
    rows = wave.living(state)
    rows = rows[here[state["golem"][rows]] & (state["decay_class"][rows] != CLASS_FACT) & (state["sign"][rows] != 0)]
    if len(rows):
        at = wave.closing(state, rows)
        now = state.confidence_at(rows, at, policy.decay)
        order = np.lexsort((state.structures.stable()[state["structure"][rows]], now, state["golem"][rows]))
        rows, now, at = rows[order], now[order], at[order]
        golem = state["golem"][rows]
        starts = np.flatnonzero(np.r_[True, golem[1:] != golem[:-1]])
        rank = np.arange(len(rows)) - np.repeat(starts, np.diff(np.r_[starts, len(rows)]))
        recent = state["recent_count"][rows]
        against = np.sign(state["recent_sum"][rows]) == -state["sign"][rows]
        strong = np.abs(state["recent_sum"][rows]) >= policy.curator.effect_min_ppm * np.maximum(recent, 1)
        hit = (rank < policy.curator.phage_count) & (recent > 0) & against & strong
        vote(state, rows[hit], now[hit] - ppm(policy.curator.downvote), at[hit], "contradictions")
        wave.note(state, CONTRADICTED, rows[hit], now[hit])
    fresh = here[state["golem"]]
    state["recent_count"][fresh] = 0
    state["recent_sum"][fresh] = 0
