"""Promote, demote and prune entries by their confidence. Pure.

An insight about an action that pays becomes a heuristic; one about an action that harms becomes a warning. It is also
anti-knowledge if the upper end of its interval is harm. A rule that this cycle contradicted becomes an insight again
once its confidence is below `demote_confidence`. Anti-knowledge is demoted only below `prune_confidence`: its floor
stops decay, so only votes take it there, and then it counts as falsified and the opposite can be learned.

Entries with a confidence floor are never pruned: bloodstains, and anti-knowledge until votes falsify it. A pruned
entry can be learned again.
Source: MEM (Curator; validated heuristics; warnings), KAT, canon 7-9, 16.
"""

from __future__ import annotations

import numpy as np

from bardo_pipeline.curator.passes.weigh import clear_own_evidence
from bardo_pipeline.curator.state.decision_log import DEMOTED, PROMOTED, CycleBatch
from bardo_pipeline.curator.state.decision_log import PRUNED as PRUNED_OPERATION
from bardo_pipeline.curator.state.grimoire_state import HEURISTIC, INSIGHT, PRUNED, WARNING, GrimoireState
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
    if not len(rows):
        return
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
