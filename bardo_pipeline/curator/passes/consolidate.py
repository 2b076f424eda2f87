"""Consolidate: turn levels of metrics into baseline facts; later cycles reinforce or contradict them. Pure.

A baseline states the mean of its episodes and one spread (their usual distance from the mean). A cycle votes for a
baseline if its own level is within `level_sigma` spreads of the mean stated so far, else against it. A standard error
would be too narrow, because consecutive ticks are correlated.
Source: MEM (Baseline: mean and stddev, from at least 3 episodes, confidence 0.7, reinforced and not duplicated), canon
6, 16.
"""

from __future__ import annotations

import numpy as np

from bardo_pipeline.arrays import BoolArray, Float64Array, Int64Array
from bardo_pipeline.curator.passes.distil import create, vote_both_ways
from bardo_pipeline.curator.state.cycle_batch import CycleBatch
from bardo_pipeline.curator.state.decision_log import CONTRADICTED, CREATED, REINFORCED, STAGED
from bardo_pipeline.curator.state.grimoire_state import ACTIVE, GrimoireState
from bardo_pipeline.grimoire.confidence import CLASS_FACT, ppm
from bardo_pipeline.policy import Policy


def consolidate(state: GrimoireState, wave: CycleBatch, policy: Policy) -> None:
    """Create baselines that have enough evidence and vote on the active ones."""
    facts = np.flatnonzero(state["decay_class"][wave.rows] == CLASS_FACT)
    rows, causes, count = wave.rows[facts], wave.causes[facts], wave.count[facts]
    count_min = policy.curator.baseline_min
    active = state["status"][rows] == ACTIVE
    created = ~active & (state["own_count"][rows] >= count_min)
    voted = active & (count >= count_min)
    at = wave.closing(state, rows)
    before = np.where(active, state.confidence_at(rows, at, policy.decay), 0)
    usual = _is_usual(state, rows, wave.total[facts] / np.maximum(count, 1), policy)
    agrees, opposes = voted & usual, voted & ~usual

    _restate(state, rows[created | voted], policy)
    no_signs = np.zeros(int(created.sum()), np.int64)
    create(state, rows[created], no_signs, wave, confidence=ppm(policy.curator.confidence_fact))
    vote_both_ways(state, rows, before, at, agrees, opposes, policy)
    for operation, chosen in (
        (STAGED, ~(created | voted)), (CREATED, created), (REINFORCED, agrees), (CONTRADICTED, opposes),
    ):  # fmt: skip
        wave.note(state, operation, rows[chosen], before[chosen], causes[chosen])


def _is_usual(state: GrimoireState, rows: Int64Array, level: Float64Array, policy: Policy) -> BoolArray:
    """Return whether each level is within `level_sigma` spreads of the mean that its baseline states."""
    spread = (state["effect_high_ppm"][rows] - state["effect_low_ppm"][rows]) / 2.0
    return np.asarray(np.abs(level - state["effect_mean_ppm"][rows]) <= policy.curator.level_sigma * spread)


def _restate(state: GrimoireState, rows: Int64Array, policy: Policy) -> None:
    """Set mean and spread from all evidence; the spread is shrunk towards a prior, because near ticks are alike."""
    rules, own = policy.curator, state["own_count"][rows]
    mean = state["own_sum"][rows] / np.maximum(own, 1)
    squares = np.maximum(state["own_sumsq"][rows] - state["own_sum"][rows] * mean, 0.0)
    prior = rules.variance_prior * (rules.level_spread_prior * mean) ** 2
    spread = np.sqrt((prior + squares) / (rules.variance_prior + np.maximum(own - 1, 0)))
    for name, values in (("mean", mean), ("low", mean - spread), ("high", mean + spread)):
        state[f"effect_{name}_ppm"][rows] = np.rint(values).astype(np.int64)
    state["evidence_count"][rows] = own
