"""Quarantine: hold received entries as candidates and admit or refuse them by the golem's own outcomes. Pure.

A quarantined entry is a candidate with a claim. No decision uses it, no query returns it and no heir inherits it. The
outcomes of the golem's own decisions in the entry's situation vote on it, as they do on active rules. The entry is
admitted after enough upvotes or if own evidence is sure for it, and refused if own evidence is sure against it or
its confidence falls below the prune limit. Baselines and causal links become the golem's own when it measures them.
Source: INH S5.2 (quarantine, shadow execution), S7.6.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.curator.passes.distil import cycle_direction, vote_both_ways
from bardo_pipeline.curator.passes.weigh import own_effect
from bardo_pipeline.curator.state import decision_log as decisions
from bardo_pipeline.curator.state import grimoire_state as grimoire
from bardo_pipeline.curator.state.decision_log import CycleBatch
from bardo_pipeline.curator.state.grimoire_state import GrimoireState, entry_columns, entry_ids, is_quarantined, rows_of
from bardo_pipeline.curator.state.received_entries import verdicts
from bardo_pipeline.events.life.received_knowledge import Arrival
from bardo_pipeline.grimoire.confidence import CLASS_FACT, ppm
from bardo_pipeline.grimoire.entries import CLADE_SIBLING, ENTRY_SCHEMA
from bardo_pipeline.grimoire.entry_columns import filled_entries
from bardo_pipeline.grimoire.gas_bands import split_by_band
from bardo_pipeline.policy import Policy


def vote_on_quarantined(state: GrimoireState, wave: CycleBatch, policy: Policy) -> None:
    """Vote on quarantined entries by the wave's own evidence; admit, refuse or prune them."""
    waiting = np.flatnonzero(is_quarantined(state))
    if not len(waiting):
        return
    _prune_faded(state, wave, waiting, policy)
    chosen = np.flatnonzero(is_quarantined(state, wave.rows) & (state["decay_class"][wave.rows] != CLASS_FACT))
    rows, causes = wave.rows[chosen], wave.causes[chosen]
    rules, at, claim = policy.curator, wave.closing(state, rows), state["sign"][rows]
    before = state.confidence_at(rows, at, policy.decay)
    direction = cycle_direction(wave, chosen, policy)
    agrees, opposes = (direction != 0) & (direction == claim), (direction != 0) & (direction == -claim)
    vote_both_ways(state, rows, before, at, agrees, opposes, policy)
    *_, sure = own_effect(state, rows, policy)
    up, down = state["validations"][rows], state["contradictions"][rows]
    often = (up >= policy.reception.shadow_validations) & (up > down)
    admitted = agrees & (sure != -claim) & (often | (sure == claim))
    too_low = state["confidence_ppm"][rows] < ppm(rules.prune_confidence)
    refused = opposes & ((sure == -claim) | too_low)
    state["status"][rows[admitted]] = grimoire.ACTIVE
    state["status"][rows[refused]] = grimoire.PRUNED
    silent = ~(agrees | opposes)
    for operation, noted in (
        (decisions.STAGED, silent),
        (decisions.BORNE_OUT, agrees),
        (decisions.SPOKEN_AGAINST, opposes),
        (decisions.ADMITTED, admitted),
        (decisions.REFUSED, refused),
    ):
        wave.note(state, operation, rows[noted], before[noted], causes[noted])


def _prune_faded(state: GrimoireState, wave: CycleBatch, rows: Int64Array, policy: Policy) -> None:
    """Prune those of the quarantined rows without floor or evidence in this cycle that decayed below the limit."""
    rows = rows[wave.has(state)[state["golem"][rows]]]
    now = state.confidence_at(rows, wave.closing(state, rows), policy.decay)
    faded = (now < ppm(policy.curator.prune_confidence)) & (state.floor(rows, policy.decay) == 0)
    faded &= ~np.isin(rows, wave.rows[wave.count > 0])
    state["status"][rows[faded]] = grimoire.PRUNED
    wave.note(state, decisions.PRUNED, rows[faded], now[faded])


def quarantine_received(state: GrimoireState, wave: CycleBatch, policy: Policy) -> None:
    """Quarantine the accepted entries of this cycle's deliveries, and note why the others are rejected.

    This is the last pass, so the cycle's own evidence does not vote on entries received in the same cycle.
    """
    for delivery in wave.deliveries:
        code = state.golem_code(delivery.arrival.golem_id)
        at_us = int(wave.at_us[np.searchsorted(wave.golem, code)])
        held = np.flatnonzero(state["golem"] == code)
        table = pa.table(entry_columns(state, state.snapshot(held), policy.curator, policy.decay), schema=ENTRY_SCHEMA)
        arrival, entries = delivery
        judged = verdicts(entries, table, at_us, arrival.source, policy, unproven=arrival.unproven)
        _quarantine(state, wave, code, at_us, arrival, entries, judged)
        _note_rejected(state, wave, code, arrival, entries, judged, policy)


def _quarantine(
    state: GrimoireState, wave: CycleBatch, code: int, at_us: int, arrival: Arrival, entries: pa.Table, judged: pa.Table
) -> None:
    """Turn accepted entries into candidates with a claim; split a rule over several gas bands into one per band."""
    accepted = judged.filter(pc.equal(judged["verdict"], "accepted"))
    if not accepted.num_rows:
        return
    place = pc.index_in(accepted["entry_id"], value_set=entries["entry_id"].combine_chunks())
    chosen = entries.take(place).drop_columns(["confidence_ppm"])
    chosen = split_by_band(chosen.append_column("confidence_ppm", accepted["confidence_ppm"]))
    received = rows_of(state, _as_entries(chosen, arrival))
    _, first = np.unique(received["structure"], return_index=True)  # keeps the most surprising entry of a band
    keys = np.full(len(first), code), received["structure"][first]
    wave.ensure(state, *keys)
    rows = state.find(*keys)
    free = ~np.isin(state["status"][rows], (grimoire.ACTIVE, grimoire.FOLDED)) & ~is_quarantined(state, rows)
    rows, first = rows[free], first[free]
    for name in _CLAIM_COLUMNS:
        state[name][rows] = received[name][first]
    cycle = int(wave.cycle[np.searchsorted(wave.golem, code)])
    for name, value in (("status", grimoire.CANDIDATE), ("created_cycle", cycle), ("anchor_us", at_us)):
        state[name][rows] = value
    for name in ("validations", "contradictions", "pinned_ppm"):
        state[name][rows] = 0
    reasons = [_considered(arrival, decisions.REASONS[decisions.QUARANTINED], arrival.content_hash)] * len(rows)
    wave.note(state, decisions.QUARANTINED, rows, orders=reasons)


_CLAIM_COLUMNS = (
    "origin", "kind", "provenance", "decay_class", "is_anti_knowledge", "is_bloodstain", "sign", "confidence_ppm",
    "confidence_origin_ppm", "generation", "effect_mean_ppm", "effect_low_ppm", "effect_high_ppm", "evidence_count",
    "level_p10", "level_p90", "created_us", "validated_us",
)  # fmt: skip
"""Columns taken from a received entry; the golem keeps its own evidence about the situation."""


def _as_entries(chosen: pa.Table, arrival: Arrival) -> pa.Table:
    """Convert entries of a bundle to rows of the golem's grimoire (ENTRY_SCHEMA)."""
    provenance = {"purchase": "import", "clade": CLADE_SIBLING}.get(arrival.source, arrival.source)
    return filled_entries(chosen, golem_id=arrival.golem_id, status="candidate", provenance=provenance)


def _note_rejected(
    state: GrimoireState,
    wave: CycleBatch,
    code: int,
    arrival: Arrival,
    entries: pa.Table,
    judged: pa.Table,
    policy: Policy,
) -> None:
    """Note on the golem's related entry, if there is one, why a received entry was rejected."""
    held = np.flatnonzero(state["golem"] == code)
    row_of_id = dict(zip(entry_ids(state, held), held.tolist(), strict=True))
    texts = dict(zip(entries["entry_id"].to_pylist(), entries["text"].to_pylist(), strict=True))
    rejected = judged.filter(pc.and_(pc.is_valid(judged["held_id"]), pc.not_equal(judged["verdict"], "accepted")))
    verdict_rows = [r for r in rejected.to_pylist() if r["held_id"] in row_of_id]
    rows = np.array([row_of_id[r["held_id"]] for r in verdict_rows], np.int64)
    before = state.confidence_at(rows, wave.closing(state, rows), policy.decay)
    for i, verdict in enumerate(verdict_rows):  # separate calls keep the order of priority
        reason = f"{verdict['verdict']}: {texts[verdict['entry_id']]} ({verdict['entry_id']}), {verdict['reason']}"
        wave.note(state, decisions.NOTED, rows[i : i + 1], before[i : i + 1], orders=[_considered(arrival, reason)])


def _considered(arrival: Arrival, reason: str, bundle: str | None = None) -> decisions.OutcomeNote:
    hypothesis = f", sent to find out: {arrival.hypothesis}" if arrival.hypothesis else ""
    return decisions.OutcomeNote(
        arrival.event_id, f"{reason}; {arrival.source} from {arrival.from_golem_id}{hypothesis}", bundle
    )
