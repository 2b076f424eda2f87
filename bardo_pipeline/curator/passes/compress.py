"""Compress: fold rules that differ only in their gas band and agree into one wider rule. Pure.

The folded rules are the parts of the wider rule. They are no longer active. Each part still collects the evidence of
its own gas band, and `carry_up_evidence` also gives that evidence to the wider rule; a market window that several
parts met counts once. The wider rule starts with the evidence of its best supported part, so no evidence counts
twice. When the evidence of two parts differs, the wider rule is split: its parts become active again with its
confidence. Pruning or retracting a wider rule prunes or retracts its parts.
Source: MEM (Curator: validate, prune, compress, cross-reference), canon 17 ("another regime separates").
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bardo_pipeline.arrays import BoolArray, Int64Array
from bardo_pipeline.curator.passes.distil import create
from bardo_pipeline.curator.passes.weigh import OWN_EVIDENCE, clear_own_evidence, interval, own_effect
from bardo_pipeline.curator.state import decision_log as decisions
from bardo_pipeline.curator.state.decision_log import CycleBatch
from bardo_pipeline.curator.state.grimoire_state import ACTIVE, COLUMNS, FOLDED, PRUNED, RETRACTED, GrimoireState
from bardo_pipeline.events.life.override_events import Order
from bardo_pipeline.grimoire.confidence import ppm
from bardo_pipeline.grimoire.entry_columns import index_of
from bardo_pipeline.grimoire.gas_bands import COVERS, GAS_SPANS, SINGLE
from bardo_pipeline.policy import Policy

CHEAP, NORMAL, DEAR, NOT_DEAR, NOT_CHEAP, ANY = range(len(GAS_SPANS))

FOLDS = ((CHEAP, NORMAL, NOT_DEAR), (NORMAL, DEAR, NOT_CHEAP), (NOT_DEAR, DEAR, ANY), (CHEAP, NOT_CHEAP, ANY))
"""(span, neighbouring span, their union). A scene folds once per cycle, by the first row that applies."""

_FIRST, _SECOND, _UNION = ([spans[i] for spans in FOLDS] for i in range(3))

_BAND_PAIRS = [0, 1, 0], [1, 2, 2]

SAME = ("origin", "kind", "sign", "provenance", "decay_class", "is_anti_knowledge", "is_bloodstain", "generation")
"""Columns in which two rules must be equal to be folded."""

CLAIM = tuple(n for n in COLUMNS if n not in ("golem", "structure", "status", *OWN_EVIDENCE))
"""Columns of a rule's claim and its confidence: all but keys, status and own evidence."""

EFFECT = ("effect_mean_ppm", "effect_low_ppm", "effect_high_ppm")


def carry_up_evidence(state: GrimoireState, wave: CycleBatch, policy: Policy) -> None:
    """Add the cycle's evidence about folded rules to the wider rules that replaced them."""
    _, span = state.structures.scenes()
    if not (span >= SINGLE).any():
        return
    _clear_corrected_parts(state, wave)
    row_span = span[state["structure"][wave.rows]]
    parts = np.flatnonzero((row_span >= 0) & (row_span < SINGLE) & (state["status"][wave.rows] != ACTIVE))
    wider = _wider_rules(state, wave.rows[parts])
    parts, wider = parts[wider >= 0], wider[wider >= 0]
    if not len(parts):
        return
    state["status"][wave.rows[parts]] = FOLDED
    order = np.argsort(wider, kind="stable")
    parts, wider = parts[order], wider[order]
    first = np.flatnonzero(np.r_[True, wider[1:] != wider[:-1]])
    largest, count = np.maximum.reduceat(wave.count[parts], first), np.add.reduceat(wave.count[parts], first)
    sums = np.column_stack([wave.total, wave.squares, wave.mood])[parts]
    # Parts may share windows, so the witnesses are only as many as the largest part has; each counts with the mean.
    scaled = (2 * largest[:, None] * np.add.reduceat(sums, first) + count[:, None]) // (2 * count[:, None])
    causes = wave.log.join(wave.causes[parts], first)
    total, squares, mood = scaled[:, 0], scaled[:, 1], scaled[:, 2:]
    wave.add_rows(wider[first], count=largest, total=total, squares=squares, mood=mood, causes=causes)


def compress(state: GrimoireState, wave: CycleBatch, policy: Policy) -> None:
    """Split wider rules whose parts differ, then fold the active rules that agree."""
    _, span = state.structures.scenes()
    if (span >= SINGLE).any():
        _retract_parts(state, wave)
        rows = wave.living(state)
        wide = rows[span[state["structure"][rows]] >= SINGLE]
        parts = _parts(state, wide)
        _prune_orphans(state, wave, parts)
        _split_differing(state, wave, wide, parts, policy)
    _fold(state, wave, policy)


# Wider rules and their parts


def _wider_rules(state: GrimoireState, rows: Int64Array) -> Int64Array:
    """Return the narrowest active wider rule that covers each row's gas band, -1 for none."""
    scene, span = state.structures.scenes()
    structure, place = state["structure"], (state["golem"] << 32) | scene[state["structure"]]
    wide = np.flatnonzero((span[structure] >= SINGLE) & (state["status"] == ACTIVE))
    rule, band = np.nonzero(COVERS[span[structure[wide]]])
    key = place[wide[rule]] * SINGLE + band
    order = np.lexsort((span[structure[wide[rule]]], key))
    at = index_of(key[order], place[rows] * SINGLE + span[structure[rows]])  # the first of equal keys is the narrowest
    return np.append(wide[rule[order]], -1)[at]


def _parts(state: GrimoireState, wide: Int64Array) -> Int64Array:
    """Return the folded row of each wider rule and gas band, -1 for none. [rules, bands]."""
    scene, span = state.structures.scenes()
    structure = state["structure"][wide]
    code = np.where(COVERS[span[structure]], state.structures.kin()[scene[structure], :SINGLE], -1)
    at = index_of(state.keys(), (state["golem"][wide, None] << 32) | np.maximum(code, 0))
    return np.where((code >= 0) & (at >= 0) & (state["status"][at] == FOLDED), at, -1)


# Effects of orders and pruning on parts


def _clear_corrected_parts(state: GrimoireState, wave: CycleBatch) -> None:
    """Clear the evidence of the parts of wider rules whose verdict an owner reversed in this cycle."""
    for order, parts, row in _ordered_parts(state, wave, "EntryCorrected"):
        if state["own_count"][row] == 0:
            corrected = parts[state["own_count"][parts] > 0]
            clear_own_evidence(state, corrected)
            wave.note(state, decisions.CORRECTED, corrected, orders=[order] * len(corrected))


def _retract_parts(state: GrimoireState, wave: CycleBatch) -> None:
    for order, parts, row in _ordered_parts(state, wave, "EntryRetracted"):
        if state["status"][row] == RETRACTED:
            state["status"][parts] = RETRACTED
            clear_own_evidence(state, parts)
            wave.note(state, decisions.RETRACTED, parts, orders=[order] * len(parts))


def _prune_orphans(state: GrimoireState, wave: CycleBatch, parts: Int64Array) -> None:
    """Prune folded rows whose wider rule is no longer active. parts: rows of all active wider rules' parts."""
    orphan = state["status"] == FOLDED
    orphan[parts[parts >= 0]] = False
    rows = np.flatnonzero(orphan)
    rows = rows[wave.has(state)[state["golem"][rows]]]
    state["status"][rows] = PRUNED
    clear_own_evidence(state, rows)
    wave.note(state, decisions.PRUNED, rows)


def _ordered_parts(state: GrimoireState, wave: CycleBatch, kind: str) -> Iterator[tuple[Order, Int64Array, int]]:
    """Yield (order, folded rows, row) for the orders of a kind about wider rules."""
    _, span = state.structures.scenes()
    for order, row in zip(wave.orders, wave.order_rows.tolist(), strict=True):
        if row >= 0 and order.kind == kind and span[state["structure"][row]] >= SINGLE:
            parts = _parts(state, np.array([row]))[0]
            yield order, parts[parts >= 0], row


# Splitting


def _split_differing(
    state: GrimoireState, wave: CycleBatch, wide: Int64Array, parts: Int64Array, policy: Policy
) -> None:
    """Split wider rules if the intervals of two parts do not overlap or a part's evidence contradicts the rule."""
    if not len(wide):
        return
    own = state.columns(("own_count", "own_sum", "own_sumsq"), parts.reshape(-1)).reshape(3, *parts.shape)
    count, total, squares = np.where(parts >= 0, own, 0)
    enough = count >= policy.curator.cluster_min
    _, low, high = interval(np.maximum(count, 1), total, squares, policy)
    large = np.abs(total) >= policy.curator.effect_min_ppm * count
    differs = (enough & (np.sign(total) == -state["sign"][wide, None]) & large).any(axis=1)
    left, right = _BAND_PAIRS
    disjoint = (low[:, left] > high[:, right]) | (low[:, right] > high[:, left])
    differs |= (enough[:, left] & enough[:, right] & disjoint).any(axis=1)
    if differs.any():
        _split(state, wave, wide[differs], policy)


def _split(state: GrimoireState, wave: CycleBatch, wide: Int64Array, policy: Policy) -> None:
    """Replace wider rules by their parts, which take over the claim, or the opposite one if own evidence is sure."""
    _, span = state.structures.scenes()
    golem, structure = state["golem"][wide], state["structure"][wide]
    rule, band = np.nonzero(COVERS[span[structure]])
    for code in np.unique(structure).tolist():
        for single in np.flatnonzero(COVERS[span[code]]).tolist():
            state.structures.spanning(code, single)
    scene, _ = state.structures.scenes()
    code = state.structures.kin()[scene[structure[rule]], band]
    wave.ensure(state, golem[rule], code)
    wide, parts = state.find(golem, structure), state.find(golem[rule], code)
    inactive = state["status"][parts] != ACTIVE
    parts, wider = parts[inactive], wide[rule[inactive]]
    before = state.confidence_at(wide, wave.closing(state, wide), policy.decay)
    mean, low, high, sign = own_effect(state, parts, policy)
    reversed_sign, sure = sign == -state["sign"][wider], sign != 0
    for name in CLAIM:
        state[name][parts] = state[name][wider]
    for name, values in zip(EFFECT, (mean, low, high), strict=True):
        state[name][parts[sure]] = values[sure]
    state["evidence_count"][parts[sure]] = state["own_count"][parts[sure]]
    state["status"][parts] = ACTIVE
    state["status"][wide] = PRUNED
    state["pinned_ppm"][wide] = 0
    clear_own_evidence(state, wide)
    causes = _causes(wave, wider)
    wave.note(state, decisions.PARTED, wide, before, _causes(wave, wide))
    wave.note(state, decisions.PARTED, parts[~reversed_sign], causes=causes[~reversed_sign])
    created = parts[reversed_sign]
    state["origin"][created], state["pinned_ppm"][created] = state["golem"][created], 0
    create(state, created, sign[reversed_sign], wave, confidence=ppm(policy.curator.confidence_insight))
    wave.note(state, decisions.CREATED, created, causes=causes[reversed_sign])


# Folding


def _fold(state: GrimoireState, wave: CycleBatch, policy: Policy) -> None:
    """Fold neighbouring rules that agree, if the cycle brought evidence for at least one of them."""
    scene, span = state.structures.scenes()
    met = wave.rows[(wave.count > 0) & (span[state["structure"][wave.rows]] >= 0)]
    if not len(met):
        return
    rows = wave.living(state)
    structure = state["structure"][rows]
    rules = (span[structure] >= 0) & (state["pinned_ppm"][rows] == 0)
    rows, structure = rows[rules], structure[rules]
    place, group = np.unique((state["golem"][rows] << 32) | scene[structure], return_inverse=True)
    grid = np.full((len(place), len(GAS_SPANS)), -1)
    grid[group, span[structure]] = rows
    fresh = np.zeros(state.rows + 1, bool)  # the last element stands for row -1
    fresh[met] = True
    left, right, union = grid[:, _FIRST], grid[:, _SECOND], grid[:, _UNION]
    at, fold = np.nonzero((left >= 0) & (right >= 0) & (union < 0) & (fresh[left] | fresh[right]))
    if not len(at):
        return
    agree = _agree(state, left[at, fold], right[at, fold], policy)
    if not agree.any():
        return
    at, fold = at[agree], fold[agree]
    order = np.lexsort((at, fold))
    at, fold = at[order], fold[order]
    _, first = np.unique(at, return_index=True)
    taken = np.sort(first)  # one fold per scene: the first in FOLDS
    at, fold = at[taken], fold[taken]
    _widen(state, wave, left[at, fold], right[at, fold], np.array(_UNION)[fold], policy)


def _agree(state: GrimoireState, left: Int64Array, right: Int64Array, policy: Policy) -> BoolArray:
    """Return which pairs agree: equal in SAME, both sure by own evidence, each mean in the other's interval."""
    agree: BoolArray = (state.columns(SAME, left) == state.columns(SAME, right)).all(axis=0)
    for rows in (left, right):
        agree &= state["own_count"][rows] >= policy.curator.fold_witnesses
    if not agree.any():
        return agree
    effects = [own_effect(state, rows, policy) for rows in (left, right)]
    for rows, (mean, _, _, sign), (_, low, high, _) in zip((left, right), effects, effects[::-1], strict=True):
        agree &= (sign != 0) & (sign == state["sign"][rows]) & (low <= mean) & (mean <= high)
    return agree


def _widen(
    state: GrimoireState, wave: CycleBatch, left: Int64Array, right: Int64Array, union: Int64Array, policy: Policy
) -> None:
    """Create the wider rule of each pair from its better supported rule, and fold the pair. union: gas spans."""
    best = np.where(state["own_count"][right] > state["own_count"][left], right, left)
    source = state.snapshot(best)
    golem, structure = source["golem"], source["structure"]
    kinds, kind = np.unique(np.stack([structure, union], axis=1), axis=0, return_inverse=True)
    code = np.array([state.structures.spanning(*pair) for pair in kinds.tolist()])[kind.reshape(-1)]
    folded = state.keys()[np.stack([left, right], axis=1).reshape(-1)]
    wave.ensure(state, golem, code)
    rows, parts = state.find(golem, code), np.searchsorted(state.keys(), folded)
    before = state.confidence_at(parts, wave.closing(state, parts), policy.decay)
    for name in (*CLAIM, *OWN_EVIDENCE):
        state[name][rows] = source[name]
    state["status"][rows] = ACTIVE
    _, span = state.structures.scenes()
    wide = span[state["structure"][parts]] >= SINGLE
    state["status"][parts] = np.where(wide, PRUNED, FOLDED)
    clear_own_evidence(state, parts[wide])
    causes = wave.log.join(_causes(wave, parts), np.arange(len(rows)) * 2)
    wave.note(state, decisions.GENERALIZED, rows, causes=causes)
    wave.note(state, decisions.FOLDED, parts, before, np.repeat(causes, 2, axis=0))


def _causes(wave: CycleBatch, rows: Int64Array) -> Int64Array:
    """Return the cause span of each row in this cycle, empty without evidence. [rows, 2]."""
    return np.append(wave.causes, [[0, 0]], axis=0)[index_of(wave.rows, rows)]
