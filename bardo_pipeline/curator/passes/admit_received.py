"""Quarantine: what came from elsewhere speaks in the shadow, and is admitted by own outcomes alone. Pure.

An entry in quarantine is a candidate with a claim: nothing acts on it, nothing is asked of it, nobody inherits it. What
it would have decided is judged by what the golem's decisions in its situation came to: each cycle's own evidence votes
as it does on what is known. Borne out often enough, or surely, it is admitted; spoken against until it is worth no
place, or surely, it is refused. Levels and causal links are measured by the golem itself: that makes them its own.
Source: INH S5.2 (quarantine, shadow execution), S7.6.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.passes.distil import vote
from bardo_pipeline.curator.passes.weigh import standing
from bardo_pipeline.curator.playbook import entry_ids
from bardo_pipeline.curator.state.cycle_batch import Wave
from bardo_pipeline.curator.state.decision_log import (
    ADMITTED,
    BORNE_OUT,
    NOTED,
    QUARANTINED,
    REASONS,
    REFUSED,
    SPOKEN_AGAINST,
    STAGED,
    Considered,
)
from bardo_pipeline.curator.state.decision_log import PRUNED as PRUNED_OPERATION
from bardo_pipeline.curator.state.grimoire_state import (
    ACTIVE,
    CANDIDATE,
    FOLDED,
    PRUNED,
    GrimoireState,
    entry_columns,
    is_quarantined,
    rows_of,
)
from bardo_pipeline.curator.state.received_entries import verdicts
from bardo_pipeline.events.life.received_knowledge import Arrival
from bardo_pipeline.grimoire.confidence import CLASS_FACT, ppm
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA
from bardo_pipeline.grimoire.gas_bands import split_by_band
from bardo_pipeline.policy import Policy


def shadow(state: GrimoireState, wave: Wave, policy: Policy) -> None:
    """Let the wave's own evidence vote on what is in quarantine; admit, refuse, or let go what faded meanwhile."""
    _fade(state, wave, policy)
    mine = np.flatnonzero(is_quarantined(state, wave.rows) & (state["decay_class"][wave.rows] != CLASS_FACT))
    rows, causes = wave.rows[mine], wave.causes[mine]
    if not len(rows):
        return
    rules, at, claim = policy.curator, wave.closing(state, rows), state["sign"][rows]
    before = state.confidence_at(rows, at, policy.decay)
    told = np.abs(wave.total[mine]) >= rules.effect_min_ppm * wave.count[mine]
    news = np.where(told, np.sign(wave.total[mine]), 0)
    agrees, opposes = (news != 0) & (news == claim), (news != 0) & (news == -claim)
    vote(state, rows[agrees], before[agrees] + ppm(rules.upvote), at[agrees], "validations")
    vote(state, rows[opposes], before[opposes] - ppm(rules.downvote), at[opposes], "contradictions")
    *_, sure = standing(state, rows, policy)
    up, down = state["validations"][rows], state["contradictions"][rows]
    often = (up >= policy.reception.shadow_validations) & (up > down)
    admitted = agrees & (sure != -claim) & (often | (sure == claim))
    spent = state["confidence_ppm"][rows] < ppm(rules.prune_confidence)
    refused = opposes & ((sure == -claim) | spent)
    state["status"][rows[admitted]] = ACTIVE
    state["status"][rows[refused]] = PRUNED
    silent = ~(agrees | opposes)
    for operation, chosen in (
        (STAGED, silent), (BORNE_OUT, agrees), (SPOKEN_AGAINST, opposes), (ADMITTED, admitted), (REFUSED, refused),
    ):  # fmt: skip
        wave.note(state, operation, rows[chosen], before[chosen], causes[chosen])


def _fade(state: GrimoireState, wave: Wave, policy: Policy) -> None:
    """Let go of what faded in quarantine before any outcome bore it out; what has a floor waits on."""
    rows = np.flatnonzero(is_quarantined(state) & wave.has(state)[state["golem"]])
    if not len(rows):
        return
    now = state.confidence_at(rows, wave.closing(state, rows), policy.decay)
    gone = (now < ppm(policy.curator.prune_confidence)) & (state.floor(rows, policy.decay) == 0)
    gone &= ~np.isin(rows, wave.rows[wave.count > 0])
    state["status"][rows[gone]] = PRUNED
    wave.note(state, PRUNED_OPERATION, rows[gone], now[gone])


def receive(state: GrimoireState, wave: Wave, policy: Policy) -> None:
    """Let into quarantine what came to the wave's golems in this cycle, and note why the rest stays out.

    It is the last pass: nothing that this cycle brought counts for what came with it.
    """
    for delivery in wave.deliveries:
        code = state.golem_code(delivery.arrival.golem_id)
        at_us = int(wave.at_us[np.searchsorted(wave.golem, code)])
        held = np.flatnonzero(state["golem"] == code)
        table = pa.table(entry_columns(state, state.snapshot(held), policy.curator, policy.decay), schema=ENTRY_SCHEMA)
        arrival, entries = delivery
        judged = verdicts(entries, table, at_us, arrival.source, policy, unproven=arrival.unproven)
        _let_in(state, wave, code, at_us, arrival, entries, judged)
        _note_rest(state, wave, code, arrival, entries, judged, policy)


def _let_in(
    state: GrimoireState, wave: Wave, code: int, at_us: int, arrival: Arrival, entries: pa.Table, judged: pa.Table
) -> None:
    """Accepted entries become candidates with a claim; a rule that spans several gas bands one about each."""
    accepted = judged.filter(pc.equal(judged["verdict"], "accepted"))
    if not accepted.num_rows:
        return
    place = pc.index_in(accepted["entry_id"], value_set=entries["entry_id"].combine_chunks())
    chosen = entries.take(place).drop_columns(["confidence_ppm"])
    chosen = split_by_band(chosen.append_column("confidence_ppm", accepted["confidence_ppm"]))
    made = rows_of(state, _as_entries(chosen, arrival))
    _, first = np.unique(made["structure"], return_index=True)  # of two about one band, the more surprising
    keys = np.full(len(first), code), made["structure"][first]
    wave.ensure(state, *keys)
    rows = state.find(*keys)
    free = ~np.isin(state["status"][rows], (ACTIVE, FOLDED)) & ~is_quarantined(state, rows)
    rows, first = rows[free], first[free]
    for name in _CLAIMED:
        state[name][rows] = made[name][first]
    cycle = int(wave.cycle[np.searchsorted(wave.golem, code)])
    for name, value in (("status", CANDIDATE), ("created_cycle", cycle), ("anchor_us", at_us)):
        state[name][rows] = value
    for name in ("validations", "contradictions", "pinned_ppm"):
        state[name][rows] = 0
    words = [_considered(arrival, REASONS[QUARANTINED], arrival.content_hash)] * len(rows)
    wave.note(state, QUARANTINED, rows, np.zeros(len(rows), np.int64), orders=words)


_CLAIMED = (
    "origin", "kind", "provenance", "decay_class", "is_anti_knowledge", "is_bloodstain", "sign", "confidence_ppm",
    "confidence_origin_ppm", "generation", "effect_mean_ppm", "effect_low_ppm", "effect_high_ppm", "evidence_count",
    "created_us", "validated_us",
)  # fmt: skip
"""What an entry brings. The golem's own evidence about its situation, if it has any, stays."""


def _as_entries(chosen: pa.Table, arrival: Arrival) -> pa.Table:
    """Entries of a bundle as rows of the golem's grimoire (ENTRY_SCHEMA)."""
    count = chosen.num_rows
    columns = {name: chosen[name] for name in ENTRY_SCHEMA.names if name in chosen.column_names}
    said = {"golem_id": arrival.golem_id, "status": "candidate", "provenance": arrival.source}
    columns |= {name: pa.array([word] * count, pa.string()) for name, word in said.items()}
    missing = [f for f in ENTRY_SCHEMA if f.name not in columns]
    columns |= {f.name: pa.nulls(count, f.type) if f.nullable else pa.array([0] * count, f.type) for f in missing}
    return pa.table({name: columns[name] for name in ENTRY_SCHEMA.names}).cast(ENTRY_SCHEMA)


def _note_rest(
    state: GrimoireState,
    wave: Wave,
    code: int,
    arrival: Arrival,
    entries: pa.Table,
    judged: pa.Table,
    policy: Policy,
) -> None:
    """Note beside what the golem holds why an entry stays out; beside nothing where it holds nothing of the kind."""
    held = np.flatnonzero(state["golem"] == code)
    at = dict(zip(entry_ids(state, held), held.tolist(), strict=True))
    texts = dict(zip(entries["entry_id"].to_pylist(), entries["text"].to_pylist(), strict=True))
    out = judged.filter(pc.and_(pc.is_valid(judged["held_id"]), pc.not_equal(judged["verdict"], "accepted")))
    told = [(at[r["held_id"]], r) for r in out.to_pylist() if r["held_id"] in at]
    rows = np.array([row for row, _ in told], np.int64)
    before = state.confidence_at(rows, wave.closing(state, rows), policy.decay)
    for place, (_, said) in enumerate(told):  # one note each: they stand in the order of their turns
        words = f"{said['verdict']}: {texts[said['entry_id']]} ({said['entry_id']}), {said['reason']}"
        one = slice(place, place + 1)
        wave.note(state, NOTED, rows[one], before[one], orders=[_considered(arrival, words)])


def _considered(arrival: Arrival, words: str, bundle: str | None = None) -> Considered:
    asked = f", sent to find out: {arrival.hypothesis}" if arrival.hypothesis else ""
    return Considered(arrival.event_id, f"{words}; {arrival.source} from {arrival.from_golem_id}{asked}", bundle)
