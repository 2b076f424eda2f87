"""Overrides: apply the orders of owners about entries at the close of the cycle in which they were given. Pure.

Pins and corrections are applied before the cycle's evidence, which may still vote. Retractions are applied last, so
they override the cycle's evidence and its other orders. Source: X-8.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bardo_pipeline.arrays import Int64Array, ObjectArray
from bardo_pipeline.curator.passes.weigh import OWN_EVIDENCE, clear_own_evidence
from bardo_pipeline.curator.playbook import entry_ids
from bardo_pipeline.curator.state.cycle_batch import CycleBatch
from bardo_pipeline.curator.state.decision_log import CORRECTED, PINNED, UNPINNED
from bardo_pipeline.curator.state.decision_log import RETRACTED as RETRACTED_OPERATION
from bardo_pipeline.curator.state.grimoire_state import ACTIVE, HEURISTIC, INSIGHT, RETRACTED, WARNING, GrimoireState
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
    for batch in batches_by_row(wave.order_rows[held]):
        rows, orders = wave.order_rows[held][batch], [wave.orders[held[i]] for i in batch]
        at = wave.closing(state, rows)
        before = np.where(state["status"][rows] == ACTIVE, state.confidence_at(rows, at, policy.decay), 0)
        state["status"][rows] = RETRACTED
        state["pinned_ppm"][rows] = 0
        state["decay_class"][rows] = [state.structures.rows[s].decay_class for s in state["structure"][rows]]
        clear_own_evidence(state, rows)
        wave.note(state, RETRACTED_OPERATION, rows, before, orders=orders)


def batches_by_row(rows: Int64Array) -> list[Int64Array]:
    """Split the positions of `rows` into batches without a repeated row: the first of every row, the second, ..."""
    order = np.argsort(rows, kind="stable")
    rank = rank_within(rows[order])
    return [np.sort(order[rank == k]) for k in range(int(rank.max(initial=-1)) + 1)]


def _pin(state: GrimoireState, wave: CycleBatch, rows: Int64Array, orders: Sequence[Order], policy: Policy) -> None:
    """Pin entries at the confidence that they had when their owners gave the orders."""
    now = state.confidence_at(rows, wave.closing(state, rows), policy.decay)
    ordered_us = np.array([round(order.at.timestamp() * 1_000_000) for order in orders], np.int64)
    state["pinned_ppm"][rows] = np.maximum(state.confidence_at(rows, ordered_us, policy.decay), 1)
    wave.note(state, PINNED, rows, now, orders=orders)


def _unpin(state: GrimoireState, wave: CycleBatch, rows: Int64Array, orders: Sequence[Order], policy: Policy) -> None:
    """Unpin entries; their confidence decays from this cycle's close on."""
    now = _anchor(state, wave, rows, policy)
    state["pinned_ppm"][rows] = 0
    wave.note(state, UNPINNED, rows, now, orders=orders)


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
    wave.note(state, CORRECTED, rows, now, orders=orders)


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
