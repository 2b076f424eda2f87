"""Promote: turn confirmed insights into heuristics or warnings, and demote contradicted ones. Pure.

An insight about an action that pays becomes a heuristic; one about an action that harms becomes a warning. It is also
anti-knowledge if the upper end of its interval is harm. A rule that this cycle contradicted becomes an insight again
once its confidence is below `demote_confidence`. Anti-knowledge is demoted only below `prune_confidence`: its floor
stops decay, so only votes take it there, and then it counts as falsified and the opposite can be learned.
Source: MEM (validated heuristics; warnings), canon 8, 16.
"""

from __future__ import annotations

import numpy as np

from bardo_pipeline.curator.state.cycle_batch import CycleBatch
from bardo_pipeline.curator.state.decision_log import DEMOTED, PROMOTED
from bardo_pipeline.curator.state.grimoire_state import HEURISTIC, INSIGHT, WARNING, GrimoireState
from bardo_pipeline.grimoire.confidence import CLASS_FACT, ppm
from bardo_pipeline.policy import Policy


def promote(state: GrimoireState, wave: CycleBatch, policy: Policy) -> None:
    """Demote the contradicted rules, then promote active insights with enough validations and confidence."""
    _demote(state, wave, policy)
    rows = wave.living(state)
    rules = policy.curator
    ripe = (state["kind"][rows] == INSIGHT) & (state["decay_class"][rows] != CLASS_FACT)
    ripe &= (state["validations"][rows] >= rules.promote_validations) & (state["sign"][rows] != 0)
    rows = rows[ripe]
    now = state.confidence_at(rows, wave.closing(state, rows), policy.decay)
    sure = now >= ppm(rules.promote_confidence)
    rows, now = rows[sure], now[sure]
    harm = state["sign"][rows] < 0
    state["kind"][rows] = np.where(harm, WARNING, HEURISTIC)
    state["is_anti_knowledge"][rows] = harm & (state["effect_high_ppm"][rows] <= -rules.anti_effect_ppm)
    np.add.at(wave.promoted, wave.place(state, rows), 1)
    np.add.at(wave.proposed, wave.place(state, rows[~harm]), 1)
    wave.note(state, PROMOTED, rows, now)


def _demote(state: GrimoireState, wave: CycleBatch, policy: Policy) -> None:
    """Turn rules that lost a vote in this cycle and fell below their limit back into insights."""
    kind = state["kind"][wave.doubted]
    rows = wave.doubted[(kind == HEURISTIC) | (kind == WARNING)]
    now = state.confidence_at(rows, wave.closing(state, rows), policy.decay)
    rules, anti = policy.curator, state["is_anti_knowledge"][rows] == 1
    fallen = now < np.where(anti, ppm(rules.prune_confidence), ppm(rules.demote_confidence))
    rows, now = rows[fallen], now[fallen]
    state["kind"][rows] = INSIGHT
    state["is_anti_knowledge"][rows] = 0
    state["validations"][rows] = 0
    wave.note(state, DEMOTED, rows, now)
