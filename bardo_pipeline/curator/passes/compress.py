"""Compress: rules that differ in gas alone and tell the same are folded into a wider one, which stands for them. Pure.

A folded rule leaves the living set. What its situation brings goes on being kept for it, and votes on the rule that
stands for it (`lead`): once, if several of its parts meet the same market window. The wider rule begins with what the
best supported of its parts has, so nothing that supports it counts twice. As soon as its parts differ they are rules of
their own again, as sure as it was; what forgets or retracts it, forgets or retracts them.
Source: MEM (Curator: validate, prune, compress, cross-reference), canon 17 ("another regime separates").
"""

from __future__ import annotations

import numpy as np

from bardo_pipeline.curator.passes.distil import create
from bardo_pipeline.curator.passes.owner_overrides import FORGOTTEN
from bardo_pipeline.curator.passes.weigh import interval, standing
from bardo_pipeline.curator.state.cycle_batch import Wave
from bardo_pipeline.curator.state.decision_log import CORRECTED, CREATED, GENERALIZED, PARTED
from bardo_pipeline.curator.state.decision_log import FOLDED as FOLDED_OPERATION
from bardo_pipeline.curator.state.decision_log import PRUNED as PRUNED_OPERATION
from bardo_pipeline.curator.state.decision_log import RETRACTED as RETRACTED_OPERATION
from bardo_pipeline.curator.state.grimoire_state import ACTIVE, COLUMNS, FOLDED, PRUNED, RETRACTED, GrimoireState
from bardo_pipeline.grimoire.confidence import ppm
from bardo_pipeline.grimoire.gas_bands import COVERS, GAS_SPANS, SINGLE
from bardo_pipeline.policy import Policy

CHEAP, NORMAL, DEAR, NOT_DEAR, NOT_CHEAP, ANY = range(len(GAS_SPANS))

FOLDS = ((CHEAP, NORMAL, NOT_DEAR), (NORMAL, DEAR, NOT_CHEAP), (NOT_DEAR, DEAR, ANY), (CHEAP, NOT_CHEAP, ANY))
"""Spans that are neighbours, and the one that both make; the first that fits is taken, one in a cycle."""

_ONE, _OTHER, _BOTH = ([spans[i] for spans in FOLDS] for i in range(3))

_PAIRS = [0, 1, 0], [1, 2, 2]

SAME = ("origin", "kind", "sign", "provenance", "decay_class", "is_anti_knowledge", "is_bloodstain", "generation")
"""What two rules must have in common."""

CLAIM = tuple(n for n in COLUMNS if n not in ("golem", "structure", "status", *FORGOTTEN))
"""What a rule says and how surely: all but its own evidence."""

EFFECT = ("effect_mean_ppm", "effect_low_ppm", "effect_high_ppm")


def lead(state: GrimoireState, wave: Wave, policy: Policy) -> None:
    """Bring what this cycle says of folded rules to the rules that stand for them."""
    _, span = state.structures.scenes()
    if not (span >= SINGLE).any():
        return
    _unlearn(state, wave)
    about = span[state["structure"][wave.rows]]
    told = np.flatnonzero((about >= 0) & (about < SINGLE) & (state["status"][wave.rows] != ACTIVE))
    above = _above(state, wave.rows[told])
    told, above = told[above >= 0], above[above >= 0]
    if not len(told):
        return
    state["status"][wave.rows[told]] = FOLDED
    order = np.argsort(above, kind="stable")
    told, above = told[order], above[order]
    first = np.flatnonzero(np.r_[True, above[1:] != above[:-1]])
    most, count = np.maximum.reduceat(wave.count[told], first), np.add.reduceat(wave.count[told], first)
    sums = np.column_stack([wave.total, wave.squares, wave.mood])[told]
    # parts that met the same window are one witness; as many count as there are for sure, each with the mean of all
    once = (2 * most[:, None] * np.add.reduceat(sums, first) + count[:, None]) // (2 * count[:, None])
    causes = wave.log.join(wave.causes[told], first)
    wave.bring(above[first], most, once[:, 0], once[:, 1], once[:, 2:], causes)


def compress(state: GrimoireState, wave: Wave, policy: Policy) -> None:
    """Part what differs by now, then fold what agrees, among the living rules of the wave's golems."""
    _, span = state.structures.scenes()
    if (span >= SINGLE).any():
        _retract_parts(state, wave)
        rows = wave.living(state)
        wide = rows[span[state["structure"][rows]] >= SINGLE]
        parts = _members(state, wide)
        _forsake(state, wave, parts)
        _part(state, wave, wide, parts, policy)
    _fold(state, wave, policy)


# who stands for whom


def _above(state: GrimoireState, rows: np.ndarray) -> np.ndarray:
    """The living rule that spans the gas band of each of these rows, -1 for none. int64 [rows]."""
    scene, span = state.structures.scenes()
    about, place = state["structure"], (state["golem"] << 32) | scene[state["structure"]]
    wide = np.flatnonzero((span[about] >= SINGLE) & (state["status"] == ACTIVE))
    who, band = np.nonzero(COVERS[span[about[wide]]])
    key = place[wide[who]] * SINGLE + band
    if not len(key):
        return np.full(len(rows), -1)
    order = np.lexsort((span[about[wide[who]]], key))
    known, wanted = key[order], place[rows] * SINGLE + span[about[rows]]
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)  # the first of each key: the narrowest
    return np.where(known[at] == wanted, wide[who[order[at]]], -1)


def _members(state: GrimoireState, wide: np.ndarray) -> np.ndarray:
    """The folded rows that each of these rules stands for, -1 where there is none. int64 [rules, bands]."""
    scene, span = state.structures.scenes()
    about = state["structure"][wide]
    code = np.where(COVERS[span[about]], state.structures.kin()[scene[about], :SINGLE], -1)
    keys, wanted = state.keys(), (state["golem"][wide, None] << 32) | np.maximum(code, 0)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where((code >= 0) & (keys[at] == wanted) & (state["status"][at] == FOLDED), at, -1)


# what becomes of the parts


def _unlearn(state: GrimoireState, wave: Wave) -> None:
    """Where an owner turned a wider rule's verdict, what its parts gathered for the old one does not count either."""
    for order, row in zip(wave.orders, wave.order_rows.tolist(), strict=True):
        if row >= 0 and order.kind == "EntryCorrected" and state["own_count"][row] == 0:
            parts = _parts_of(state, row)
            parts = parts[state["own_count"][parts] > 0]
            _forget(state, parts)
            wave.note(state, CORRECTED, parts, np.zeros(len(parts), np.int64), orders=[order] * len(parts))


def _retract_parts(state: GrimoireState, wave: Wave) -> None:
    """What an owner retracted stood for its parts: they are retracted with it."""
    for order, row in zip(wave.orders, wave.order_rows.tolist(), strict=True):
        if row >= 0 and order.kind == "EntryRetracted" and state["status"][row] == RETRACTED:
            parts = _parts_of(state, row)
            state["status"][parts] = RETRACTED
            _forget(state, parts)
            wave.note(state, RETRACTED_OPERATION, parts, np.zeros(len(parts), np.int64), orders=[order] * len(parts))


def _forsake(state: GrimoireState, wave: Wave, parts: np.ndarray) -> None:
    """Folded rows for which no living rule stands any more are forgotten. parts: the rows of all that stand."""
    alone = state["status"] == FOLDED
    alone[parts[parts >= 0]] = False
    rows = np.flatnonzero(alone)
    rows = rows[wave.has(state)[state["golem"][rows]]] if len(rows) else rows
    state["status"][rows] = PRUNED
    _forget(state, rows)
    wave.note(state, PRUNED_OPERATION, rows, np.zeros(len(rows), np.int64))


def _parts_of(state: GrimoireState, row: int) -> np.ndarray:
    """The folded rows that one rule stands for; none for a rule of one band, or for what is no rule."""
    _, span = state.structures.scenes()
    if span[state["structure"][row]] < SINGLE:
        return np.zeros(0, np.int64)
    members = _members(state, np.array([row]))[0]
    return members[members >= 0]


def _forget(state: GrimoireState, rows: np.ndarray) -> None:
    if len(rows):
        for name in FORGOTTEN:
            state[name][rows] = 0


# parting


def _part(state: GrimoireState, wave: Wave, wide: np.ndarray, parts: np.ndarray, policy: Policy) -> None:
    """Let go of rules of which two parts' intervals lie apart, or a part's own evidence says the opposite."""
    if not len(wide):
        return
    own = state.columns(("own_count", "own_sum", "own_sumsq"), parts.reshape(-1)).reshape(3, *parts.shape)
    count, total, squares = np.where(parts >= 0, own, 0)
    met = count >= policy.curator.cluster_min
    _, low, high = interval(np.maximum(count, 1), total, squares, policy)
    apart = (met & (np.sign(total) == -state["sign"][wide, None])
             & (np.abs(total) >= policy.curator.effect_min_ppm * count)).any(axis=1)  # fmt: skip
    one, other = _PAIRS
    beyond = (low[:, one] > high[:, other]) | (low[:, other] > high[:, one])
    apart |= (met[:, one] & met[:, other] & beyond).any(axis=1)
    if apart.any():
        _let_go(state, wave, wide[apart], policy)


def _let_go(state: GrimoireState, wave: Wave, wide: np.ndarray, policy: Policy) -> None:
    """The parts of these rules stand for themselves again: with its claim, or with the opposite where that is sure."""
    _, span = state.structures.scenes()
    golem, about = state["golem"][wide], state["structure"][wide]
    who, band = np.nonzero(COVERS[span[about]])
    for code in np.unique(about).tolist():
        for one in np.flatnonzero(COVERS[span[code]]).tolist():
            state.structures.spanning(code, one)
    scene, _ = state.structures.scenes()
    code = state.structures.kin()[scene[about[who]], band]
    wave.ensure(state, golem[who], code)
    wide, parts = state.find(golem, about), state.find(golem[who], code)
    told = state["status"][parts] != ACTIVE
    parts, above = parts[told], wide[who[told]]
    before = state.confidence_at(wide, wave.closing(state, wide), policy.decay)
    mean, low, high, sign = standing(state, parts, policy)
    turned, sure = sign == -state["sign"][above], sign != 0
    for name in CLAIM:
        state[name][parts] = state[name][above]
    for name, values in zip(EFFECT, (mean, low, high), strict=True):
        state[name][parts[sure]] = values[sure]
    state["evidence_count"][parts[sure]] = state["own_count"][parts[sure]]
    state["status"][parts] = ACTIVE
    state["status"][wide] = PRUNED
    state["pinned_ppm"][wide] = 0
    _forget(state, wide)
    causes = _causes(wave, above)
    wave.note(state, PARTED, wide, before, _causes(wave, wide))
    wave.note(state, PARTED, parts[~turned], np.zeros(int((~turned).sum()), np.int64), causes[~turned])
    mine = parts[turned]
    state["origin"][mine], state["pinned_ppm"][mine] = state["golem"][mine], 0
    create(state, mine, sign[turned], wave, confidence=ppm(policy.curator.confidence_insight))
    wave.note(state, CREATED, mine, np.zeros(len(mine), np.int64), causes[turned])


# folding


def _fold(state: GrimoireState, wave: Wave, policy: Policy) -> None:
    """Let one rule stand for two neighbours that agree, where the cycle has news of either."""
    scene, span = state.structures.scenes()
    rows = wave.living(state)
    about = state["structure"][rows]
    rules = (span[about] >= 0) & (state["pinned_ppm"][rows] == 0)
    rows, about = rows[rules], about[rules]
    place, group = np.unique((state["golem"][rows] << 32) | scene[about], return_inverse=True)
    grid = np.full((len(place), len(GAS_SPANS)), -1)
    grid[group, span[about]] = rows
    news = np.zeros(state.rows + 1, bool)  # the last for no row
    news[wave.rows[wave.count > 0]] = True
    one, other, both = grid[:, _ONE], grid[:, _OTHER], grid[:, _BOTH]
    at, fold = np.nonzero((one >= 0) & (other >= 0) & (both < 0) & (news[one] | news[other]))
    if not len(at):
        return
    agree = _agree(state, one[at, fold], other[at, fold], policy)
    if not agree.any():
        return
    at, fold = at[agree], fold[agree]
    order = np.lexsort((at, fold))
    at, fold = at[order], fold[order]
    _, first = np.unique(at, return_index=True)
    taken = np.sort(first)  # of one scene the first that fits
    at, fold = at[taken], fold[taken]
    found = np.stack([one[at, fold], other[at, fold], np.array(_BOTH)[fold]], axis=1)
    _stand_for(state, wave, found, policy)


def _agree(state: GrimoireState, one: np.ndarray, other: np.ndarray, policy: Policy) -> np.ndarray:
    """Which pairs tell the same: each sure by its own evidence, its mean in the other's interval, all else alike."""
    alike = (state.columns(SAME, one) == state.columns(SAME, other)).all(axis=0)
    for rows in (one, other):
        alike &= state["own_count"][rows] >= policy.curator.fold_witnesses
    if not alike.any():
        return alike
    told = [standing(state, rows, policy) for rows in (one, other)]
    for rows, (mean, _, _, sign), (_, low, high, _) in zip((one, other), told, told[::-1], strict=True):
        alike &= (sign != 0) & (sign == state["sign"][rows]) & (low <= mean) & (mean <= high)
    return alike


def _stand_for(state: GrimoireState, wave: Wave, found: np.ndarray, policy: Policy) -> None:
    """Make the wider rule of each pair, with all that the better supported of the two has; the pair is folded.

    found: int64 [pairs, 3], the rows of a pair and the gas span of what stands for it.
    """
    one, other, both = found.T
    best = np.where(state["own_count"][other] > state["own_count"][one], other, one)
    made = state.snapshot(best)
    golem, about = made["golem"], made["structure"]
    kinds, which = np.unique(np.stack([about, both], axis=1), axis=0, return_inverse=True)
    code = np.array([state.structures.spanning(*kind) for kind in kinds.tolist()])[which.reshape(-1)]
    folded = state.keys()[np.stack([one, other], axis=1).reshape(-1)]
    wave.ensure(state, golem, code)
    rows, parts = state.find(golem, code), np.searchsorted(state.keys(), folded)
    before = state.confidence_at(parts, wave.closing(state, parts), policy.decay)
    for name in (*CLAIM, *FORGOTTEN):
        state[name][rows] = made[name]
    state["status"][rows] = ACTIVE
    _, span = state.structures.scenes()
    wide = span[state["structure"][parts]] >= SINGLE
    state["status"][parts] = np.where(wide, PRUNED, FOLDED)
    _forget(state, parts[wide])
    causes = wave.log.join(_causes(wave, parts), np.arange(len(rows)) * 2)
    wave.note(state, GENERALIZED, rows, np.zeros(len(rows), np.int64), causes)
    wave.note(state, FOLDED_OPERATION, parts, before, np.repeat(causes, 2, axis=0))


def _causes(wave: Wave, rows: np.ndarray) -> np.ndarray:
    """Spans of the cycle's causes of these rows, empty where it brought nothing. int64 [rows, 2]."""
    at = np.minimum(np.searchsorted(wave.rows, rows), max(len(wave.rows) - 1, 0))
    if not len(wave.rows):
        return np.zeros((len(rows), 2), np.int64)
    return np.where((wave.rows[at] == rows)[:, None], wave.causes[at], 0)
