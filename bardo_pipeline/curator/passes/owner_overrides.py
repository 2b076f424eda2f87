"""Overrides: what owners say of entries takes effect when the cycle closes in which they said it. Pure, set-based.

Pins and corrections come before the cycle's evidence, which may still vote; retractions come last, so that nothing of
the cycle counts for what was retracted in it, and nothing else said in the cycle holds. Source: X-8.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bardo_pipeline.curator.playbook import entry_ids
from bardo_pipeline.curator.state.cycle_batch import Wave
from bardo_pipeline.curator.state.decision_log import CORRECTED, PINNED, UNPINNED
from bardo_pipeline.curator.state.decision_log import RETRACTED as RETRACTED_OPERATION
from bardo_pipeline.curator.state.grimoire_state import ACTIVE, HEURISTIC, INSIGHT, RETRACTED, WARNING, GrimoireState
from bardo_pipeline.events.life.override_events import Order
from bardo_pipeline.events.life.proposal_events import Proposal
from bardo_pipeline.grimoire.confidence import CLASS_FACT, PPM, ppm
from bardo_pipeline.grimoire.entries import DECAY_CLASSES
from bardo_pipeline.policy import Policy

FORGOTTEN = ("own_count", "own_sum", "own_sumsq", "pleasure_sum_milli", "arousal_sum_milli", "dominance_sum_milli")
"""What was gathered so far, and does not count again after a retraction or a reversed verdict."""


def answering(state: GrimoireState, orders: Sequence[Order | Proposal]) -> np.ndarray:
    """The state row that each order is about, -1 for an entry that its golem does not hold now. int64 [orders]."""
    rows: dict[tuple[str, str], int] = {}
    for golem_id in sorted({order.golem_id for order in orders}):
        held = np.flatnonzero((state["golem"] == state.golem_code(golem_id)) & (state["status"] == ACTIVE))
        rows |= {(golem_id, entry): row for entry, row in zip(entry_ids(state, held), held.tolist(), strict=True)}
    return np.array([rows.get((order.golem_id, order.entry_id or ""), -1) for order in orders], np.int64)


def heed(state: GrimoireState, wave: Wave, policy: Policy) -> None:
    """Pin, unpin and correct what owners said of the wave's golems, in the order in which they said it."""
    if not wave.orders:
        return
    wave.order_rows = answering(state, wave.orders)
    told = [i for i, row in enumerate(wave.order_rows) if row >= 0 and wave.orders[i].kind != "EntryRetracted"]
    for turn in turns(wave.order_rows[told]):
        for kind, effect in (("EntryPinned", _pin), ("EntryUnpinned", _unpin), ("EntryCorrected", _correct)):
            chosen = [told[i] for i in turn if wave.orders[told[i]].kind == kind]
            if chosen:
                effect(state, wave, wave.order_rows[chosen], [wave.orders[i] for i in chosen], policy)


def retract(state: GrimoireState, wave: Wave, policy: Policy) -> None:
    """Take out of the grimoire what owners retracted; its pin, its decay class and its evidence go with it."""
    if not wave.orders:
        return
    told = [i for i, row in enumerate(wave.order_rows) if row >= 0 and wave.orders[i].kind == "EntryRetracted"]
    for turn in turns(wave.order_rows[told]):
        rows, orders = wave.order_rows[told][turn], [wave.orders[told[i]] for i in turn]
        at = wave.closing(state, rows)
        before = np.where(state["status"][rows] == ACTIVE, state.confidence_at(rows, at, policy.decay), 0)
        state["status"][rows] = RETRACTED
        state["pinned_ppm"][rows] = 0
        state["decay_class"][rows] = [state.structures.rows[s].decay_class for s in state["structure"][rows]]
        for name in FORGOTTEN:
            state[name][rows] = 0
        wave.note(state, RETRACTED_OPERATION, rows, before, orders=orders)


def turns(rows: np.ndarray) -> list[np.ndarray]:
    """Positions of the orders that may be taken together: the first of every row, then the second, ..."""
    if not len(rows):
        return []
    order = np.argsort(rows, kind="stable")
    starts = np.flatnonzero(np.r_[True, rows[order][1:] != rows[order][:-1]])
    turn = np.arange(len(rows)) - np.repeat(starts, np.diff(np.r_[starts, len(rows)]))
    return [np.sort(order[turn == k]) for k in range(int(turn.max(initial=-1)) + 1)]


def _pin(state: GrimoireState, wave: Wave, rows: np.ndarray, orders: Sequence[Order], policy: Policy) -> None:
    """Hold what the entry was trusted when its owner spoke."""
    now = state.confidence_at(rows, wave.closing(state, rows), policy.decay)
    spoken = np.array([_micros(order) for order in orders], np.int64)
    state["pinned_ppm"][rows] = np.maximum(state.confidence_at(rows, spoken, policy.decay), 1)
    wave.note(state, PINNED, rows, now, orders=orders)


def _unpin(state: GrimoireState, wave: Wave, rows: np.ndarray, orders: Sequence[Order], policy: Policy) -> None:
    """Let it fade from here on, not as if it had faded all the while."""
    now = _anchor(state, wave, rows, policy)
    state["pinned_ppm"][rows] = 0
    wave.note(state, UNPINNED, rows, now, orders=orders)


def _correct(state: GrimoireState, wave: Wave, rows: np.ndarray, orders: Sequence[Order], policy: Policy) -> None:
    """Put the owner's word in the place of what was known."""
    now = _anchor(state, wave, rows, policy)
    fact = state["decay_class"][rows] == CLASS_FACT
    given = np.array([-1 if o.confidence is None else ppm(o.confidence) for o in orders], np.int64)
    trusted, pinned = rows[given >= 0], state["pinned_ppm"][rows] > 0
    state["confidence_ppm"][trusted] = given[given >= 0]
    held = (given >= 0) & pinned
    state["pinned_ppm"][rows[held]] = np.maximum(given[held], 1)
    paced = np.array([o.decay_class is not None for o in orders]) & ~fact
    classes = [
        DECAY_CLASSES.index(o.decay_class) for o, one in zip(orders, paced, strict=True) if one and o.decay_class
    ]
    state["decay_class"][rows[paced]] = classes
    verdict = np.array([o.verdict or "" for o in orders], dtype=object)
    judged = (verdict != "") & ~fact & (state["sign"][rows] != 0) & (state["kind"][rows] <= WARNING)
    _judge(state, rows[judged], verdict[judged])
    wave.note(state, CORRECTED, rows, now, orders=orders)


def _judge(state: GrimoireState, rows: np.ndarray, verdict: np.ndarray) -> None:
    """Give these entries another verdict. Where it turns, what was gathered for the old one does not count any more."""
    sign, never = np.where(verdict == "pays", 1, -1), verdict == "anti_knowledge"
    turned = rows[sign != state["sign"][rows]]
    for name in (*FORGOTTEN, "effect_mean_ppm", "effect_low_ppm", "effect_high_ppm", "evidence_count"):
        state[name][turned] = 0
    state["validations"][turned] = 0
    state["contradictions"][turned] = 0
    state["sign"][rows] = sign
    acted_on = np.where(sign > 0, HEURISTIC, WARNING)
    kind = np.where(state["kind"][rows] == INSIGHT, INSIGHT, acted_on)
    state["kind"][rows] = np.where(never, WARNING, kind)
    state["is_anti_knowledge"][rows] = never


def _anchor(state: GrimoireState, wave: Wave, rows: np.ndarray, policy: Policy) -> np.ndarray:
    """Restate the confidence of these rows as of the cycle's close, which is returned; it fades from there."""
    at = wave.closing(state, rows)
    now = state.confidence_at(rows, at, policy.decay)
    state["confidence_ppm"][rows] = np.clip(now, 0, PPM)
    state["anchor_us"][rows] = at
    return now


def _micros(order: Order) -> int:
    return round(order.at.timestamp() * 1_000_000)
