"""Overrides and proposals: apply the orders of owners and what models proposed to entries. Pure.

An order is applied when the cycle closes in which it was given. Pins and corrections are applied before the cycle's
evidence, which may still vote. Retractions are applied last, so they override evidence and other orders.

A proposal is applied in the first cycle that closes after it was recorded.
- An addition stages a candidate; distillation judges it in this cycle by its usual test, even without new evidence.
- A vote counts if the cited ticks are newer than the rule's last vote and point the same way, and all of the golem's
  own evidence does too. An upvote also needs that evidence to pass distillation's test.
- A note is recorded.
Source: X-8, MEM-4, TOOLS (ExpeL operations).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bardo_pipeline.arrays import BoolArray, Int64Array, ObjectArray
from bardo_pipeline.clock import micros_of
from bardo_pipeline.curator.passes.distil import vote_both_ways
from bardo_pipeline.curator.passes.weigh import OWN_EVIDENCE, clear_own_evidence, own_effect
from bardo_pipeline.curator.state import decision_log as decisions
from bardo_pipeline.curator.state.decision_log import CycleBatch
from bardo_pipeline.curator.state.grimoire_state import (
    ACTIVE,
    HEURISTIC,
    INSIGHT,
    RETRACTED,
    WARNING,
    GrimoireState,
    entry_ids,
)
from bardo_pipeline.curator.state.proposal_agenda import CitedProposal
from bardo_pipeline.events.life.override_events import Order
from bardo_pipeline.events.life.proposal_events import Proposal
from bardo_pipeline.grimoire.confidence import CLASS_FACT, PPM, ppm
from bardo_pipeline.grimoire.entries import DECAY_CLASSES
from bardo_pipeline.mortality.random_streams import rank_within
from bardo_pipeline.policy import Policy


def rows_of_orders(state: GrimoireState, orders: Sequence[Order | Proposal]) -> Int64Array:
    """Return the state row of each order's entry, -1 if its golem holds no such active entry."""
    rows: dict[tuple[str, str], int] = {}
    for golem_id in sorted({order.golem_id for order in orders}):
        held = np.flatnonzero((state["golem"] == state.golem_code(golem_id)) & (state["status"] == ACTIVE))
        rows |= {(golem_id, entry): row for entry, row in zip(entry_ids(state, held), held.tolist(), strict=True)}
    return np.array([rows.get((order.golem_id, order.entry_id or ""), -1) for order in orders], np.int64)


def apply_overrides(state: GrimoireState, wave: CycleBatch, policy: Policy) -> None:
    """Apply pins, unpins and corrections to the wave's golems, in the order in which owners gave them."""
    if not wave.orders:
        return
    wave.order_rows = rows_of_orders(state, wave.orders)
    held = [i for i, row in enumerate(wave.order_rows) if row >= 0 and wave.orders[i].kind != "EntryRetracted"]
    for batch in batches_by_row(wave.order_rows[held]):
        for kind, effect in (("EntryPinned", _pin), ("EntryUnpinned", _unpin), ("EntryCorrected", _correct)):
            chosen = [held[i] for i in batch if wave.orders[held[i]].kind == kind]
            if chosen:
                effect(state, wave, wave.order_rows[chosen], [wave.orders[i] for i in chosen], policy)


def apply_retractions(state: GrimoireState, wave: CycleBatch, policy: Policy) -> None:
    """Retract entries on their owners' orders and reset their pin, decay class and own evidence."""
    held = [i for i, row in enumerate(wave.order_rows) if row >= 0 and wave.orders[i].kind == "EntryRetracted"]
    if not held:
        return
    for batch in batches_by_row(wave.order_rows[held]):
        rows, orders = wave.order_rows[held][batch], [wave.orders[held[i]] for i in batch]
        at = wave.closing(state, rows)
        before = np.where(state["status"][rows] == ACTIVE, state.confidence_at(rows, at, policy.decay), 0)
        state["status"][rows] = RETRACTED
        state["pinned_ppm"][rows] = 0
        state["decay_class"][rows] = [state.structures.rows[s].decay_class for s in state["structure"][rows]]
        clear_own_evidence(state, rows)
        wave.note(state, decisions.RETRACTED, rows, before, orders=orders)


def batches_by_row(rows: Int64Array) -> list[Int64Array]:
    """Split the positions of `rows` into batches without a repeated row: the first of every row, the second, ..."""
    order = np.argsort(rows, kind="stable")
    rank = rank_within(rows[order])
    return [np.sort(order[rank == k]) for k in range(int(rank.max(initial=-1)) + 1)]


def _pin(state: GrimoireState, wave: CycleBatch, rows: Int64Array, orders: Sequence[Order], policy: Policy) -> None:
    """Pin entries at the confidence that they had when their owners gave the orders."""
    now = state.confidence_at(rows, wave.closing(state, rows), policy.decay)
    ordered_us = np.array([micros_of(order.at) for order in orders], np.int64)
    state["pinned_ppm"][rows] = np.maximum(state.confidence_at(rows, ordered_us, policy.decay), 1)
    wave.note(state, decisions.PINNED, rows, now, orders=orders)


def _unpin(state: GrimoireState, wave: CycleBatch, rows: Int64Array, orders: Sequence[Order], policy: Policy) -> None:
    now = _anchor(state, wave, rows, policy)
    state["pinned_ppm"][rows] = 0
    wave.note(state, decisions.UNPINNED, rows, now, orders=orders)


def _correct(state: GrimoireState, wave: CycleBatch, rows: Int64Array, orders: Sequence[Order], policy: Policy) -> None:
    """Replace confidence, decay class and verdict of entries by those that their owners ordered."""
    now = _anchor(state, wave, rows, policy)
    fact = state["decay_class"][rows] == CLASS_FACT
    given = np.array([-1 if o.confidence is None else ppm(o.confidence) for o in orders], np.int64)
    state["confidence_ppm"][rows[given >= 0]] = given[given >= 0]
    pinned = (given >= 0) & (state["pinned_ppm"][rows] > 0)
    state["pinned_ppm"][rows[pinned]] = np.maximum(given[pinned], 1)
    classes = np.array([DECAY_CLASSES.index(o.decay_class) if o.decay_class else -1 for o in orders], np.int64)
    reclassed = (classes >= 0) & ~fact
    state["decay_class"][rows[reclassed]] = classes[reclassed]
    verdict = np.array([o.verdict or "" for o in orders], dtype=object)
    judged = (verdict != "") & ~fact & (state["sign"][rows] != 0) & (state["kind"][rows] <= WARNING)
    _judge(state, rows[judged], verdict[judged])
    wave.note(state, decisions.CORRECTED, rows, now, orders=orders)


def _judge(state: GrimoireState, rows: Int64Array, verdict: ObjectArray) -> None:
    """Set the verdicts of entries; where the sign changes, clear the evidence for the old verdict."""
    sign, never = np.where(verdict == "pays", 1, -1), verdict == "anti_knowledge"
    turned = rows[sign != state["sign"][rows]]
    effects = ("effect_mean_ppm", "effect_low_ppm", "effect_high_ppm", "evidence_count")
    for name in (*OWN_EVIDENCE, *effects, "validations", "contradictions"):
        state[name][turned] = 0
    state["sign"][rows] = sign
    acted_on = np.where(sign > 0, HEURISTIC, WARNING)
    kind = np.where(state["kind"][rows] == INSIGHT, INSIGHT, acted_on)
    state["kind"][rows] = np.where(never, WARNING, kind)
    state["is_anti_knowledge"][rows] = never


def _anchor(state: GrimoireState, wave: CycleBatch, rows: Int64Array, policy: Policy) -> Int64Array:
    """Restate the confidence of these rows in ppm as of the cycle's close, and return it."""
    at = wave.closing(state, rows)
    now = state.confidence_at(rows, at, policy.decay)
    state["confidence_ppm"][rows] = np.clip(now, 0, PPM)
    state["anchor_us"][rows] = at
    return now


VOTES = {"UPVOTE": 1, "DOWNVOTE": -1}

SENTENCES = {
    "ADD": "own evidence decides; {source} proposed it: {reason}",
    decisions.REINFORCED: "own evidence agrees; {source} proposed the upvote: {reason}",
    decisions.CONTRADICTED: "own evidence disagrees; {source} proposed the downvote: {reason}",
    decisions.STAGED: "own evidence does not bear out the vote; {source} proposed it: {reason}",
    decisions.NOTED: "{source} notes: {note}",
}


def stage_additions(state: GrimoireState, wave: CycleBatch, policy: Policy) -> None:
    """Stage the proposed additions as candidates, so that distillation judges them."""
    additions = [motion for motion in wave.motions if motion.structure >= 0]
    if not additions:
        return
    golem = np.array([state.golem_code(motion.proposal.golem_id) for motion in additions], np.int64)
    rows = state.find(golem, np.array([motion.structure for motion in additions], np.int64))
    wave.add_rows(np.unique(rows[(state["own_count"][rows] > 0) & ~np.isin(rows, wave.rows)]))
    active = state["status"][rows] == ACTIVE
    before = np.where(active, state.confidence_at(rows, wave.closing(state, rows), policy.decay), 0)
    for batch in batches_by_row(rows):
        sentences = [_considered("ADD", additions[i]) for i in batch]
        spans = np.array([_span(additions[i], additions[i].structure) for i in batch], np.int64)
        wave.note(state, decisions.STAGED, rows[batch], before[batch], spans, orders=sentences)


def apply_proposed_votes(state: GrimoireState, wave: CycleBatch, policy: Policy) -> None:
    """Apply the proposed votes that the evidence supports, and record the notes."""
    proposed = [motion for motion in wave.motions if motion.structure < 0]
    if not proposed:
        return
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
        outcomes = (
            (decisions.REINFORCED, up),
            (decisions.CONTRADICTED, down),
            (decisions.STAGED, ~supported & ~notes),
            (decisions.NOTED, notes),
        )
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


def _considered(outcome: int | str, motion: CitedProposal) -> decisions.OutcomeNote:
    proposal = motion.proposal
    sentence = SENTENCES[outcome].format(source=proposal.source, reason=proposal.reason, note=proposal.note)
    return decisions.OutcomeNote(proposal.event_id, sentence)
