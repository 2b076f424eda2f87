"""Distil: clusters of judged decisions become insights, and meet what is known already. Pure.

A cluster with enough witnesses, whose interval leaves zero out, is a rule (ADD). Once it is one, each cycle's own
evidence votes on it: the same way is an upvote, the other way a downvote, so that what no longer holds loses faster
than luck can keep it up. What its whole evidence says by now is stated anew (EDIT where that reads otherwise).
Source: TOOLS (ExpeL operations), canon 17.
"""

from __future__ import annotations

import numpy as np

from bardo_pipeline.curator.passes.weigh import standing
from bardo_pipeline.curator.state.cycle_batch import Wave
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


def distil(state: GrimoireState, wave: Wave, policy: Policy) -> None:
    """Judge every pattern that got evidence in this wave; what reads otherwise then is edited, voted on or not."""
    mine = np.flatnonzero((state["decay_class"][wave.rows] != CLASS_FACT) & ~is_quarantined(state, wave.rows))
    rows, causes = wave.rows[mine], wave.causes[mine]
    if not len(rows):
        return
    mean, low, high, sign = standing(state, rows, policy)
    sure = sign != 0
    active, says = state["status"][rows] == ACTIVE, state["sign"][rows]
    told = np.abs(wave.total[mine]) >= policy.curator.effect_min_ppm * wave.count[mine]
    news = np.where(told, np.sign(wave.total[mine]), 0)
    agrees, opposes = (active & (says != 0) & (news == side * says) & (news != 0) for side in (1, -1))
    born = ~active & sure & (state["status"][rows] != FOLDED)
    at = wave.closing(state, rows)
    before = np.where(active, state.confidence_at(rows, at, policy.decay), 0)

    restated = born | (active & sure & (sign == says))
    edited = active & restated & (size_bands(state["effect_mean_ppm"][rows]) != size_bands(mean))
    for name, values in (("effect_mean_ppm", mean), ("effect_low_ppm", low), ("effect_high_ppm", high)):
        state[name][rows[restated]] = values[restated]
    state["evidence_count"][rows[restated]] = state["own_count"][rows[restated]]
    create(state, rows[born], sign[born], wave, confidence=ppm(policy.curator.confidence_insight))
    vote(state, rows[agrees], before[agrees] + ppm(policy.curator.upvote), at[agrees], "validations")
    vote(state, rows[opposes], before[opposes] - ppm(policy.curator.downvote), at[opposes], "contradictions")
    wave.doubted = rows[opposes]

    waits = ~(born | agrees | opposes)
    voted = ((STAGED, waits & ~edited), (CREATED, born), (REINFORCED, agrees), (CONTRADICTED, opposes))
    for operation, chosen in (*voted, (EDITED, edited)):
        wave.note(state, operation, rows[chosen], before[chosen], causes[chosen])


def create(state: GrimoireState, rows: np.ndarray, sign: np.ndarray, wave: Wave, *, confidence: int) -> None:
    """These candidates (or forgotten entries) become insights of the golem's own."""
    if not len(rows):
        return
    place = wave.place(state, rows)
    at = wave.at_us[place]
    for name, value in (
        ("status", ACTIVE),
        ("kind", INSIGHT),
        ("sign", sign),
        ("confidence_ppm", confidence),
        ("confidence_origin_ppm", confidence),
        ("validations", 0),
        ("contradictions", 0),
        ("generation", 0),
        ("provenance", 0),
        ("origin", state["golem"][rows]),
        ("is_anti_knowledge", 0),
        ("is_bloodstain", 0),
        ("created_cycle", wave.cycle[place]),
        ("anchor_us", at),
        ("created_us", at),
        ("validated_us", at),
    ):
        state[name][rows] = value


def vote(state: GrimoireState, rows: np.ndarray, confidence: np.ndarray, at: np.ndarray, counter: str) -> None:
    """Anchor the confidence anew after a vote, within [0, 1]; only an upvote validates."""
    if not len(rows):
        return
    state["confidence_ppm"][rows] = np.clip(confidence, 0, PPM)
    state["anchor_us"][rows] = at
    state[counter][rows] += 1
    if counter == "validations":
        state["validated_us"][rows] = at
