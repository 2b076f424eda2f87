"""Promote: an insight that was confirmed often enough becomes a rule to act on, or a warning; and back again. Pure.

Acting that pays becomes a heuristic; acting that harms becomes a warning, and anti-knowledge where even the kind end of
its interval is harm. A rule that this cycle contradicted and that is not sure enough any more is an insight again, to
be confirmed anew; anti-knowledge, which no age takes below its floor, only once votes have taken it to where others are
pruned: it is falsified, and the opposite can be learned. Source: MEM (validated heuristics; warnings), canon 8, 16.
"""

from __future__ import annotations

import numpy as np

from bardo_pipeline.curator.state.cycle_batch import Wave
from bardo_pipeline.curator.state.decision_log import DEMOTED, PROMOTED
from bardo_pipeline.curator.state.grimoire_state import HEURISTIC, INSIGHT, WARNING, GrimoireState
from bardo_pipeline.grimoire.confidence import CLASS_FACT, ppm
from bardo_pipeline.policy import Policy


def promote(state: GrimoireState, wave: Wave, policy: Policy) -> None:
    """Promote what is ripe among the wave's living insights, demote what was contradicted once too often."""
    _demote(state, wave, policy)
    rows = wave.living(state)
    rules = policy.curator
    ripe = (state["kind"][rows] == INSIGHT) & (state["decay_class"][rows] != CLASS_FACT)
    ripe &= (state["validations"][rows] >= rules.promote_validations) & (state["sign"][rows] != 0)
    rows = rows[ripe]
    if not len(rows):
        return
    now = state.confidence_at(rows, wave.closing(state, rows), policy.decay)
    sure = now >= ppm(rules.promote_confidence)
    rows, now = rows[sure], now[sure]
    if not len(rows):
        return
    harm = state["sign"][rows] < 0
    state["kind"][rows] = np.where(harm, WARNING, HEURISTIC)
    state["is_anti_knowledge"][rows] = harm & (state["effect_high_ppm"][rows] <= -rules.anti_effect_ppm)
    np.add.at(wave.promoted, wave.place(state, rows), 1)
    np.add.at(wave.proposed, wave.place(state, rows[~harm]), 1)
    wave.note(state, PROMOTED, rows, now)


def _demote(state: GrimoireState, wave: Wave, policy: Policy) -> None:
    kind = state["kind"][wave.doubted]
    rows = wave.doubted[(kind == HEURISTIC) | (kind == WARNING)]
    if not len(rows):
        return
    now = state.confidence_at(rows, wave.closing(state, rows), policy.decay)
    rules, anti = policy.curator, state["is_anti_knowledge"][rows] == 1
    fallen = now < np.where(anti, ppm(rules.prune_confidence), ppm(rules.demote_confidence))
    rows, now = rows[fallen], now[fallen]
    state["kind"][rows] = INSIGHT
    state["is_anti_knowledge"][rows] = 0
    state["validations"][rows] = 0
    wave.note(state, DEMOTED, rows, now)
