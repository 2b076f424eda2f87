"""Bind: rules that are learned together become a strategy fragment: sizing, entry, exit, re-centring. Pure.

A fragment names at least two of these parts for one regime, or for all. A part of a regime is the regime's own rule,
else the one over all regimes; a fragment of a regime has at least one rule of its own. A fragment is as sure as its
weakest part and states the effect of that part. It is made or confirmed in a cycle that brought evidence for a part;
without all of its parts it decays as any entry. Golems act by the parts.
Source: MEM-7, INH S7.3 (a partial strategy component: entry conditions, exit conditions, sizing rules); docs/adr/0071.
"""

from __future__ import annotations

import numpy as np

from bardo_pipeline.arrays import BoolArray, Int64Array
from bardo_pipeline.curator.passes.weigh import OWN_EVIDENCE
from bardo_pipeline.curator.state import grimoire_state as grimoire
from bardo_pipeline.curator.state.decision_log import CREATED, REINFORCED, CycleBatch
from bardo_pipeline.curator.state.grimoire_state import GrimoireState, lines_of
from bardo_pipeline.curator.state.structures import ROLES, Structure, Structures
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.grimoire.entry_columns import index_of
from bardo_pipeline.policy import Policy

SIZING, RECENTRING = ROLES.index("sizing"), ROLES.index("re-centring")
_ANY = len(REGIMES)
_STATED = ("effect_mean_ppm", "effect_low_ppm", "effect_high_ppm", "evidence_count", "validations", *OWN_EVIDENCE)


def bind_fragments(state: GrimoireState, wave: CycleBatch, policy: Policy) -> None:
    """Make and confirm the fragments of golems whose parts got evidence in this wave."""
    role = state.structures.roles()
    fresh = wave.rows[(wave.count > 0) & (role[state["structure"][wave.rows]] >= 0)]
    fresh = fresh[_is_rule(state, fresh)]
    if not len(fresh):
        return
    rows = wave.living(state)
    rows = rows[(role[state["structure"][rows]] >= 0) & _is_rule(state, rows)]
    has_fresh, is_fresh = np.zeros(len(state.golems), bool), np.zeros(state.rows + 1, bool)
    has_fresh[state["golem"][fresh]], is_fresh[fresh] = True, True  # the last row stands for no part
    parts = _parts(state, rows[has_fresh[state["golem"][rows]]])
    is_bound = ((parts >= 0).sum(axis=2) >= 2) & _has_own_rule(state, parts) & is_fresh[parts].any(axis=2)
    golem, regime = np.nonzero(is_bound)
    if len(golem):
        _write(state, wave, parts[golem, regime], regime, policy)


def _is_rule(state: GrimoireState, rows: Int64Array) -> BoolArray:
    kind = state["kind"][rows]
    is_rule = (kind == grimoire.HEURISTIC) | (kind == grimoire.WARNING)
    return np.asarray((state["status"][rows] == grimoire.ACTIVE) & is_rule)


def _parts(state: GrimoireState, rows: Int64Array) -> Int64Array:
    """Return the row of each part, -1 for none, [golems, regimes and all, roles].

    Of several rules for a role, the part is the one with the best effect; for re-centring, the one with the highest
    confidence. A half-width is a part only if it beats the standard one.
    """
    structure = state["structure"][rows]
    role, regime = state.structures.roles()[structure], state.structures.bands()[0][structure]
    sizes = (role != SIZING) | (state["sign"][rows] > 0)
    rows, role, regime = rows[sizes], role[sizes], np.where(regime < 0, _ANY, regime)[sizes]
    _, golem = np.unique(state["golem"][rows], return_inverse=True)
    size = np.where(role == RECENTRING, state["confidence_ppm"][rows], state["effect_mean_ppm"][rows])
    order = np.lexsort((state.structures.stable()[state["structure"][rows]], size))
    parts = np.full((int(golem.max(initial=-1)) + 1, _ANY + 1, len(ROLES)), -1, np.int64)
    parts[golem[order], regime[order], role[order]] = rows[order]  # the last assignment to a place stays
    return np.where(parts >= 0, parts, parts[:, _ANY:])


def _has_own_rule(state: GrimoireState, parts: Int64Array) -> BoolArray:
    """Return whether a part of each place is about exactly its regime, [golems, regimes and all]."""
    regime = np.append(state.structures.bands()[0], -1)[np.append(state["structure"], -1)[parts]]
    about = np.where(regime < 0, _ANY, regime) == np.arange(_ANY + 1)[:, None]
    own: BoolArray = (about & (parts >= 0)).any(axis=2)
    return own


def _write(state: GrimoireState, wave: CycleBatch, parts: Int64Array, regime: Int64Array, policy: Policy) -> None:
    """Create or confirm one fragment per row of parts [fragments, roles]."""
    signed = np.where(parts >= 0, 2 * state["structure"][parts] + (state["sign"][parts] > 0), -1)
    named = zip(*signed.T.tolist(), regime.tolist(), strict=True)
    code = np.array([_code(state.structures, fragment) for fragment in named])
    golem = state["golem"][parts.max(axis=1)]
    kept = state.keys()[np.maximum(parts, 0)]
    wave.ensure(state, golem, code)
    parts = np.where(parts >= 0, np.searchsorted(state.keys(), kept), -1)
    rows = state.find(golem, code)
    open_to_it = (state["status"][rows] != grimoire.RETRACTED) & (state["pinned_ppm"][rows] == 0)
    rows, parts = rows[open_to_it], parts[open_to_it]
    at = wave.closing(state, rows)
    flat = np.maximum(parts, 0)
    held = np.column_stack([flat, rows])
    trust = state.confidence_at(held.reshape(-1), np.repeat(at, held.shape[1]), policy.decay).reshape(held.shape)
    active = state["status"][rows] == grimoire.ACTIVE
    before, trust = np.where(active, trust[:, -1], 0), np.where(parts >= 0, trust[:, :-1], PPM + 1)
    weakest, sure = flat[np.arange(len(rows)), trust.argmin(axis=1)], trust.min(axis=1)
    state.block[lines_of(_STATED), rows] = state.columns(_STATED, weakest)
    for name, value in (("confidence_ppm", sure), ("anchor_us", at), ("validated_us", at), ("sign", 1)):
        state[name][rows] = value
    made = rows[~active]
    for name, value in (
        ("status", grimoire.ACTIVE), ("kind", grimoire.STRATEGY_FRAGMENT), ("origin", state["golem"][made]),
        ("created_cycle", wave.cycle[wave.place(state, made)]), ("created_us", at[~active]),
        ("confidence_origin_ppm", sure[~active]), ("generation", 0), ("provenance", 0), ("is_anti_knowledge", 0),
        ("is_bloodstain", 0), ("contradictions", 0),
    ):  # fmt: skip
        state[name][made] = value
    causes = np.append(wave.causes, [[0, 0]], axis=0)
    spans = causes[np.where(parts >= 0, index_of(wave.rows, flat), len(wave.causes))]
    joined = wave.log.join(spans.reshape(-1, 2), np.arange(len(rows)) * parts.shape[1])
    for operation, chosen in ((CREATED, ~active), (REINFORCED, active)):
        wave.note(state, operation, rows[chosen], before[chosen], joined[chosen])


def _code(structures: Structures, fragment: tuple[int, ...]) -> int:
    """Return the code of the fragment's structure; its action type names the acts of its parts and their verdicts.

    fragment: of each part, twice its structure's code, plus 1 if its verdict is positive, -1 for no part; the regime.
    """
    code = structures.fragments.get(fragment)
    if code is None:
        *signed, regime = fragment
        about = [(structures.rows[part >> 1], part & 1) for part in signed if part >= 0]
        acts = "+".join(f"{'' if pays else 'no_'}{structure.action_type}" for structure, pays in about)
        place = about[0][0][1:4]
        name = None if regime == _ANY else REGIMES[regime]
        code = structures.fragments[fragment] = structures.code(Structure("strategy", *place, None, acts, name))
    return code
