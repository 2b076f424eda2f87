"""Proposals: what a model proposed passes the curator's own gate, when the cycle closes after it was recorded. Pure.

An addition is a candidate that distillation looks at in this cycle, whether or not it has news, by the same test as any
other. A vote counts where ticks are cited that judged this very rule since it was last voted on, where they point that
way, and where all of the golem's own evidence does too: for an upvote surely, by distillation's test. A note is written
down. Nothing else comes of a proposal.
Source: MEM-4; TOOLS (ExpeL operations).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bardo_pipeline.curator.passes.distil import vote
from bardo_pipeline.curator.passes.owner_overrides import answering, turns
from bardo_pipeline.curator.passes.weigh import standing
from bardo_pipeline.curator.state.cycle_batch import Wave
from bardo_pipeline.curator.state.decision_log import CONTRADICTED, NOTED, REINFORCED, STAGED, Considered
from bardo_pipeline.curator.state.grimoire_state import ACTIVE, GrimoireState
from bardo_pipeline.curator.state.proposal_agenda import Motion
from bardo_pipeline.grimoire.confidence import ppm
from bardo_pipeline.policy import Policy

VOTES = {"UPVOTE": 1, "DOWNVOTE": -1}

SENTENCES = {
    "ADD": "own evidence decides; {source} proposed it: {reason}",
    REINFORCED: "own evidence agrees; {source} proposed the upvote: {reason}",
    CONTRADICTED: "own evidence disagrees; {source} proposed the downvote: {reason}",
    STAGED: "own evidence does not bear out the vote; {source} proposed it: {reason}",
    NOTED: "{source} notes: {note}",
}


def stage(state: GrimoireState, wave: Wave, policy: Policy) -> None:
    """Put what is to be added before distillation."""
    added = [motion for motion in wave.motions if motion.structure >= 0]
    if not added:
        return
    golem = np.array([state.golem_code(motion.proposal.golem_id) for motion in added], np.int64)
    rows = state.find(golem, np.array([motion.structure for motion in added], np.int64))
    fresh = np.unique(rows[(state["own_count"][rows] > 0) & ~np.isin(rows, wave.rows)])
    wave.look_at(fresh)
    active = state["status"][rows] == ACTIVE
    before = np.where(active, state.confidence_at(rows, wave.closing(state, rows), policy.decay), 0)
    for turn in turns(rows):
        said = [_considered("ADD", added[i]) for i in turn]
        spans = np.array([_span(added[i], added[i].structure) for i in turn], np.int64)
        wave.note(state, STAGED, rows[turn], before[turn], spans, orders=said)


def consider(state: GrimoireState, wave: Wave, policy: Policy) -> None:
    """Take the votes that hold, and the notes."""
    said = [motion for motion in wave.motions if motion.structure < 0]
    if not said:
        return
    rows = answering(state, [motion.proposal for motion in said])
    told = np.flatnonzero(rows >= 0)
    for turn in turns(rows[told]):
        mine = told[turn]
        here, motions = rows[mine], [said[i] for i in mine]
        at = wave.closing(state, here)
        before = state.confidence_at(here, at, policy.decay)
        wanted = np.array([VOTES.get(motion.proposal.operation, 0) for motion in motions], np.int64)
        held = _held(state, here, motions, wanted, policy)
        up, down, notes = held & (wanted > 0), held & (wanted < 0), wanted == 0
        vote(state, here[up], before[up] + ppm(policy.curator.upvote), at[up], "validations")
        vote(state, here[down], before[down] - ppm(policy.curator.downvote), at[down], "contradictions")
        wave.doubted = np.union1d(wave.doubted, here[down])
        spans = np.array([_span(m, s) for m, s in zip(motions, state["structure"][here], strict=True)], np.int64)
        voted = (REINFORCED, up), (CONTRADICTED, down), (STAGED, ~held & ~notes), (NOTED, notes)
        for operation, chosen in voted:
            words = [_considered(operation, motions[i]) for i in np.flatnonzero(chosen)]
            wave.note(state, operation, here[chosen], before[chosen], spans[chosen], orders=words)


def _held(
    state: GrimoireState, rows: np.ndarray, motions: Sequence[Motion], wanted: np.ndarray, policy: Policy
) -> np.ndarray:
    """Which votes hold. wanted: 1 for an upvote, -1 for a downvote, 0 for none."""
    direction = wanted * state["sign"][rows]
    count, total = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    for i, (motion, row) in enumerate(zip(motions, rows, strict=True)):
        first, stop = motion.about(int(state["structure"][row]))
        news = motion.effect[first:stop][motion.at_us[first:stop] > state["anchor_us"][row]]
        count[i], total[i] = len(news), news.sum()
    told = (count > 0) & (np.abs(total) >= policy.curator.effect_min_ppm * count)
    *_, sure = standing(state, rows, policy)
    whole = np.where(wanted > 0, sure, np.sign(state["own_sum"][rows]))
    return told & (direction != 0) & (np.sign(total) == direction) & (whole == direction)


def _span(motion: Motion, structure: int) -> tuple[int, int]:
    """Where what it cites about a structure stands among the causes."""
    first, stop = motion.about(int(structure))
    return motion.first + first, motion.first + stop


def _considered(outcome: int | str, motion: Motion) -> Considered:
    said = motion.proposal
    sentence = SENTENCES[outcome].format(source=said.source, reason=said.reason, note=said.note)
    return Considered(said.event_id, sentence)
