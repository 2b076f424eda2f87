"""Proposals: apply what a model proposed, in the first cycle that closes after the proposal was recorded. Pure.

- An addition stages a candidate; distillation judges it in this cycle by its usual test, even without new evidence.
- A vote counts if the cited ticks are newer than the rule's last vote and point the same way, and all of the golem's
  own evidence does too. An upvote also needs that evidence to pass distillation's test.
- A note is recorded.
Source: MEM-4; TOOLS (ExpeL operations).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bardo_pipeline.arrays import BoolArray, Int64Array
from bardo_pipeline.curator.passes.distil import vote_both_ways
from bardo_pipeline.curator.passes.owner_overrides import batches_by_row, rows_of_orders
from bardo_pipeline.curator.passes.weigh import own_effect
from bardo_pipeline.curator.state.cycle_batch import CycleBatch
from bardo_pipeline.curator.state.decision_log import CONTRADICTED, NOTED, REINFORCED, STAGED, OutcomeNote
from bardo_pipeline.curator.state.grimoire_state import ACTIVE, GrimoireState
from bardo_pipeline.curator.state.proposal_agenda import CitedProposal
from bardo_pipeline.policy import Policy

VOTES = {"UPVOTE": 1, "DOWNVOTE": -1}

SENTENCES = {
    "ADD": "own evidence decides; {source} proposed it: {reason}",
    REINFORCED: "own evidence agrees; {source} proposed the upvote: {reason}",
    CONTRADICTED: "own evidence disagrees; {source} proposed the downvote: {reason}",
    STAGED: "own evidence does not bear out the vote; {source} proposed it: {reason}",
    NOTED: "{source} notes: {note}",
}


def stage_additions(state: GrimoireState, wave: CycleBatch, policy: Policy) -> None:
    """Stage the proposed additions as candidates, so that distillation judges them."""
    additions = [motion for motion in wave.motions if motion.structure >= 0]
    golem = np.array([state.golem_code(motion.proposal.golem_id) for motion in additions], np.int64)
    rows = state.find(golem, np.array([motion.structure for motion in additions], np.int64))
    wave.add_rows(np.unique(rows[(state["own_count"][rows] > 0) & ~np.isin(rows, wave.rows)]))
    active = state["status"][rows] == ACTIVE
    before = np.where(active, state.confidence_at(rows, wave.closing(state, rows), policy.decay), 0)
    for batch in batches_by_row(rows):
        sentences = [_considered("ADD", additions[i]) for i in batch]
        spans = np.array([_span(additions[i], additions[i].structure) for i in batch], np.int64)
        wave.note(state, STAGED, rows[batch], before[batch], spans, orders=sentences)


def apply_proposed_votes(state: GrimoireState, wave: CycleBatch, policy: Policy) -> None:
    """Apply the proposed votes that the evidence supports, and record the notes."""
    proposed = [motion for motion in wave.motions if motion.structure < 0]
    all_rows = rows_of_orders(state, [motion.proposal for motion in proposed])
    held = np.flatnonzero(all_rows >= 0)
    for batch in batches_by_row(all_rows[held]):
        rows, motions = all_rows[held[batch]], [proposed[i] for i in held[batch]]
        at = wave.closing(state, rows)
        before = state.confidence_at(rows, at, policy.decay)
        direction = np.array([VOTES.get(motion.proposal.operation, 0) for motion in motions], np.int64)
        supported = _is_supported(state, rows, motions, direction, policy)
        up, down, notes = supported & (direction > 0), supported & (direction < 0), direction == 0
        vote_both_ways(state, rows, before, at, up, down, policy)
        wave.doubted = np.union1d(wave.doubted, rows[down])
        spans = np.array([_span(m, s) for m, s in zip(motions, state["structure"][rows], strict=True)], np.int64)
        outcomes = (REINFORCED, up), (CONTRADICTED, down), (STAGED, ~supported & ~notes), (NOTED, notes)
        for operation, chosen in outcomes:
            sentences = [_considered(operation, motions[i]) for i in np.flatnonzero(chosen)]
            wave.note(state, operation, rows[chosen], before[chosen], spans[chosen], orders=sentences)


def _is_supported(
    state: GrimoireState, rows: Int64Array, motions: Sequence[CitedProposal], direction: Int64Array, policy: Policy
) -> BoolArray:
    """Return which votes the evidence supports. direction: 1 for an upvote, -1 for a downvote, 0 for a note."""
    side = direction * state["sign"][rows]
    count, total = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    for i, (motion, row) in enumerate(zip(motions, rows, strict=True)):
        first, stop = motion.about(int(state["structure"][row]))
        fresh = motion.effect[first:stop][motion.at_us[first:stop] > state["anchor_us"][row]]
        count[i], total[i] = len(fresh), fresh.sum()
    large = (count > 0) & (np.abs(total) >= policy.curator.effect_min_ppm * count)
    *_, sure = own_effect(state, rows, policy)
    own_side = np.where(direction > 0, sure, np.sign(state["own_sum"][rows]))
    return large & (side != 0) & (np.sign(total) == side) & (own_side == side)


def _span(motion: CitedProposal, structure: int) -> tuple[int, int]:
    """Return the span of causes that a motion cites about a structure."""
    first, stop = motion.about(int(structure))
    return motion.first + first, motion.first + stop


def _considered(outcome: int | str, motion: CitedProposal) -> OutcomeNote:
    proposal = motion.proposal
    sentence = SENTENCES[outcome].format(source=proposal.source, reason=proposal.reason, note=proposal.note)
    return OutcomeNote(proposal.event_id, sentence)
