"""Distil: turn clusters of judged decisions into insights, and vote on existing rules. Pure.

A pattern with enough witnesses whose interval excludes zero becomes a rule (ADD). From then on each cycle's own
evidence votes on it: the same direction is an upvote, the opposite a downvote, so that a rule that stops holding loses
confidence. The stated effect follows all evidence so far; a change of its size band is an EDIT.
Source: TOOLS (ExpeL operations), canon 17.
"""

from __future__ import annotations

import numpy as np

from bardo_pipeline.arrays import BoolArray, Int64Array
from bardo_pipeline.curator.passes.weigh import own_effect
from bardo_pipeline.curator.state.cycle_batch import CycleBatch
from bardo_pipeline.curator.state.decision_log import CONTRADICTED, CREATED, EDITED, REINFORCED, STAGED
from bardo_pipeline.curator.state.grimoire_state import (
    ACTIVE,
    FOLDED,
    INSIGHT,
    GrimoireState,
    is_quarantined,
    size_bands,
)
from bardo_pipeline.grimoire.confidence import CLASS_FACT, PPM, ppm
from bardo_pipeline.policy import Policy


def distil(state: GrimoireState, wave: CycleBatch, policy: Policy) -> None:
    """Create, vote on and restate the patterns that got evidence in this wave."""
    chosen = np.flatnonzero((state["decay_class"][wave.rows] != CLASS_FACT) & ~is_quarantined(state, wave.rows))
    rows, causes = wave.rows[chosen], wave.causes[chosen]
    mean, low, high, sign = own_effect(state, rows, policy)
    sure = sign != 0
    active, claim = state["status"][rows] == ACTIVE, state["sign"][rows]
    direction = cycle_direction(wave, chosen, policy)
    agrees, opposes = (active & (direction != 0) & (direction == side * claim) for side in (1, -1))
    created = ~active & sure & (state["status"][rows] != FOLDED)
    at = wave.closing(state, rows)
    before = np.where(active, state.confidence_at(rows, at, policy.decay), 0)

    restated = created | (active & sure & (sign == claim))
    edited = active & restated & (size_bands(state["effect_mean_ppm"][rows]) != size_bands(mean))
    for name, values in (("effect_mean_ppm", mean), ("effect_low_ppm", low), ("effect_high_ppm", high)):
        state[name][rows[restated]] = values[restated]
    state["evidence_count"][rows[restated]] = state["own_count"][rows[restated]]
    create(state, rows[created], sign[created], wave, confidence=ppm(policy.curator.confidence_insight))
    vote_both_ways(state, rows, before, at, agrees, opposes, policy)
    wave.doubted = rows[opposes]

    staged = ~(created | agrees | opposes | edited)
    for operation, noted in (
        (STAGED, staged), (CREATED, created), (REINFORCED, agrees), (CONTRADICTED, opposes), (EDITED, edited),
    ):  # fmt: skip
        wave.note(state, operation, rows[noted], before[noted], causes[noted])


def cycle_direction(wave: CycleBatch, chosen: Int64Array, policy: Policy) -> Int64Array:
    """Return the sign of each chosen row's effect in this cycle, 0 if its mean is below `effect_min_ppm`."""
    large = np.abs(wave.total[chosen]) >= policy.curator.effect_min_ppm * wave.count[chosen]
    return np.where(large, np.sign(wave.total[chosen]), 0)


def create(state: GrimoireState, rows: Int64Array, sign: Int64Array, wave: CycleBatch, *, confidence: int) -> None:
    """Turn candidates or removed entries into active insights of the golem's own. confidence: ppm."""
    place = wave.place(state, rows)
    at = wave.at_us[place]
    for name, value in (
        ("status", ACTIVE),
        ("kind", INSIGHT),
        ("sign", sign),
        ("confidence_ppm", confidence),
        ("confidence_origin_ppm", confidence),
        ("origin", state["golem"][rows]),
        ("created_cycle", wave.cycle[place]),
        ("anchor_us", at),
        ("created_us", at),
        ("validated_us", at),
    ):
        state[name][rows] = value
    for name in ("validations", "contradictions", "generation", "provenance", "is_anti_knowledge", "is_bloodstain"):
        state[name][rows] = 0


def vote(state: GrimoireState, rows: Int64Array, confidence: Int64Array, at: Int64Array, counter: str) -> None:
    """Set the confidence (ppm, clipped to [0, 1e6]) as of `at` and count the vote in the column `counter`."""
    state["confidence_ppm"][rows] = np.clip(confidence, 0, PPM)
    state["anchor_us"][rows] = at
    state[counter][rows] += 1
    if counter == "validations":
        state["validated_us"][rows] = at


def vote_both_ways(
    state: GrimoireState,
    rows: Int64Array,
    before: Int64Array,
    at: Int64Array,
    agrees: BoolArray,
    opposes: BoolArray,
    policy: Policy,
) -> None:
    """Upvote and downvote the marked rows, starting from their confidence before the vote in ppm."""
    up, down = ppm(policy.curator.upvote), ppm(policy.curator.downvote)
    vote(state, rows[agrees], before[agrees] + up, at[agrees], "validations")
    vote(state, rows[opposes], before[opposes] - down, at[opposes], "contradictions")
