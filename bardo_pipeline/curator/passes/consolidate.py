"""Consolidate: levels of metrics become baseline facts, reinforced by more of the same, contradicted by other. Pure.

A baseline states the mean of its episodes and how far they usually lie from it, one spread. A cycle whose own level
lies within a few spreads of what was stated until then is more of the same; one that lies beyond says that this is not
usual any more. Ticks that follow each other are alike, so a standard error of that mean would promise too much.
Source: MEM (Baseline: mean and stddev, from at least 3 episodes, confidence 0.7, reinforced and not duplicated), canon
6, 16.
"""

from __future__ import annotations

import numpy as np

from bardo_pipeline.curator.passes.distil import create, vote
from bardo_pipeline.curator.state.cycle_batch import Wave
from bardo_pipeline.curator.state.decision_log import CONTRADICTED, CREATED, REINFORCED, STAGED
from bardo_pipeline.curator.state.grimoire_state import ACTIVE, GrimoireState
from bardo_pipeline.grimoire.confidence import CLASS_FACT, ppm
from bardo_pipeline.policy import Policy


def consolidate(state: GrimoireState, wave: Wave, policy: Policy) -> None:
    """Create the baselines that got enough evidence by this wave; it votes on those that stand."""
    mine = np.flatnonzero(state["decay_class"][wave.rows] == CLASS_FACT)
    rows, causes, count = wave.rows[mine], wave.causes[mine], wave.count[mine]
    if not len(rows):
        return
    rules, least = policy.curator, policy.curator.baseline_min
    active = state["status"][rows] == ACTIVE
    born = ~active & (state["own_count"][rows] >= least)
    again = active & (count >= least)
    at = wave.closing(state, rows)
    before = np.where(active, state.confidence_at(rows, at, policy.decay), 0)
    usual = _is_usual(state, rows, wave.total[mine] / np.maximum(count, 1), policy)
    agrees, opposes = again & usual, again & ~usual

    _state(state, rows[born | again], policy)
    create(state, rows[born], np.zeros(int(born.sum()), np.int64), wave, confidence=ppm(rules.confidence_fact))
    vote(state, rows[agrees], before[agrees] + ppm(rules.upvote), at[agrees], "validations")
    vote(state, rows[opposes], before[opposes] - ppm(rules.downvote), at[opposes], "contradictions")
    voted = ((STAGED, ~(born | again)), (CREATED, born), (REINFORCED, agrees), (CONTRADICTED, opposes))
    for operation, chosen in voted:
        wave.note(state, operation, rows[chosen], before[chosen], causes[chosen])


def _is_usual(state: GrimoireState, rows: np.ndarray, level: np.ndarray, policy: Policy) -> np.ndarray:
    """Whether a level is what each of these baselines states, before it is stated anew."""
    spread = (state["effect_high_ppm"][rows] - state["effect_low_ppm"][rows]) / 2.0
    return np.abs(level - state["effect_mean_ppm"][rows]) <= policy.curator.level_sigma * spread


def _state(state: GrimoireState, rows: np.ndarray, policy: Policy) -> None:
    """State mean and spread of all episodes so far; the spread is shrunk, as a few ticks of an hour are all alike."""
    rules, own = policy.curator, state["own_count"][rows]
    mean = state["own_sum"][rows] / np.maximum(own, 1)
    apart = np.maximum(state["own_sumsq"][rows] - state["own_sum"][rows] * mean, 0.0)
    prior = rules.variance_prior * (rules.level_spread_prior * mean) ** 2
    spread = np.sqrt((prior + apart) / (rules.variance_prior + np.maximum(own - 1, 0)))
    for name, values in (("mean", mean), ("low", mean - spread), ("high", mean + spread)):
        state[f"effect_{name}_ppm"][rows] = np.rint(values).astype(np.int64)
    state["evidence_count"][rows] = own
