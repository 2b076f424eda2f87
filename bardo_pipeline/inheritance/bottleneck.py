"""Selects at most 2,048 entries per golem that cross a death, and names the rule that selected each. Pure, set-based.

All golems that died in a batch are computed together; entries are ranked within their golem.
Source: INH S7.1, canon 40.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import BoolArray, Int64Array
from bardo_pipeline.events.record.arrow_columns import all_required, contiguous, required
from bardo_pipeline.grimoire.confidence import ppm
from bardo_pipeline.grimoire.entries import CATEGORIES, ENTRY_SCHEMA
from bardo_pipeline.grimoire.entry_columns import bool_column, confidence_of, int_column, micros, to_bools
from bardo_pipeline.policy import InheritancePolicy, Policy

RULES = ("anti_knowledge", "bloodstain", "baldwin", "diversity", "fill")
"""Selection rules, in the order in which they are applied."""

SELECTED_SCHEMA = pa.schema(
    [
        *ENTRY_SCHEMA,
        required("selected_by", pa.string()),
        *all_required(pa.int64(), "rank", "quality_ppm", "confidence_death_ppm"),
    ]
)
"""One row per golem and selected entry: the unchanged entry, its selection rule (RULES), its rank from 1 within the
golem, its quality and its confidence at death in ppm."""

_ANTI, _BLOOD, _BALDWIN, _DIVERSITY, _FILL = range(5)


def bottleneck(entries: pa.Table, deaths: pa.Table, policy: Policy) -> pa.Table:
    """Select the entries that cross. Returns SELECTED_SCHEMA sorted by golem and rank.

    Candidates are the active entries of golems in `deaths`. The budget is spent in this order:

    - anti-knowledge, then bloodstains, up to the whole budget;
    - Baldwin entries (generation >= 3, confidence >= 0.7 at death), while less than a quarter of the budget is used;
    - half of the budget by category in turns: the best of each category, then the second best of each, ...;
    - the rest by quality.

    quality = confidence at death x (validations + 1) / (validations + contradictions + 2), rounded down: HB's
    "confidence x validation ratio" with Laplace's rule of succession, so an untested entry counts half.
    Order within a rule: quality, last validated, entry id.

    Parameters
    ----------
    entries : pa.Table, ENTRY_SCHEMA after `leave_bloodstains`
    deaths : pa.Table, columns golem_id and at
    """
    rules = policy.inheritance
    candidates = _without_hopeless(_candidates(entries, deaths, policy), rules)
    candidates = candidates.take(_by_merit(candidates, entries))
    rows, rule, rank = _chosen(candidates, rules)
    picked = candidates.take(rows)
    selected = entries.take(pa.array(picked.row)).select(ENTRY_SCHEMA.names)
    for name, values in (
        ("selected_by", pa.array(RULES).take(pa.array(rule))),
        ("rank", pa.array(rank)),
        ("quality_ppm", pa.array(picked.quality)),
        ("confidence_death_ppm", pa.array(picked.confidence)),
    ):
        selected = selected.append_column(name, values)
    return selected.cast(SELECTED_SCHEMA)


@dataclass(frozen=True)
class _Candidates:
    """Columns over candidates. row: in the table of entries. golem: index in the sorted ids. rule: index of the
    priority rule (RULES), _DIVERSITY without one. confidence: at death, ppm."""

    row: Int64Array
    golem: Int64Array
    category: Int64Array
    rule: Int64Array
    quality: Int64Array
    confidence: Int64Array
    validated: Int64Array

    def take(self, at: Int64Array | BoolArray) -> _Candidates:
        return _Candidates(*(column[at] for column in vars(self).values()))


def _candidates(entries: pa.Table, deaths: pa.Table, policy: Policy) -> _Candidates:
    order = pc.sort_indices(deaths["golem_id"])
    names, moments = contiguous(deaths["golem_id"].take(order)), micros(deaths, "at")[order.to_numpy()]
    golem = pc.index_in(entries["golem_id"], value_set=names)
    is_candidate = to_bools(contiguous(pc.and_(pc.is_valid(golem), pc.equal(entries["status"], "active"))))
    row, golems = np.flatnonzero(is_candidate), golem.fill_null(-1).to_numpy().astype(np.int64)
    active = entries if len(row) == entries.num_rows else entries.filter(pa.array(is_candidate))
    golems = golems[row]
    confidence = confidence_of(active, moments[golems], policy.decay)
    validations, contradictions = int_column(active, "validations"), int_column(active, "contradictions")
    rules = policy.inheritance
    proven = (int_column(active, "generation") >= rules.baldwin_generation) & (
        confidence >= ppm(rules.baldwin_confidence)
    )
    rule = np.where(proven, _BALDWIN, _DIVERSITY)
    rule[bool_column(active, "is_bloodstain")] = _BLOOD
    rule[bool_column(active, "is_anti_knowledge")] = _ANTI
    return _Candidates(
        row=row,
        golem=golems,
        category=_category(active),
        rule=rule,
        quality=confidence * (validations + 1) // (validations + contradictions + 2),
        confidence=confidence,
        validated=micros(active, "validated_at"),
    )


def _category(entries: pa.Table) -> Int64Array:
    """Return an integer code per category; unlisted categories get codes too."""
    names = [*CATEGORIES, *sorted(set(pc.unique(entries["category"]).to_pylist()) - CATEGORIES.keys())]
    return pc.index_in(entries["category"], value_set=pa.array(names)).to_numpy().astype(np.int64)


def _without_hopeless(candidates: _Candidates, rules: InheritancePolicy) -> _Candidates:
    """Drop candidates that cannot be selected, so that sorting stays cheap for millions of entries.

    Keeps the best 3 x budget of each category and the best `budget` of each priority rule, ties included.
    """
    if len(candidates.row) < 16 * rules.budget:
        return candidates
    kept = _best(
        candidates.golem * (candidates.category.max() + 1) + candidates.category, candidates.quality, 3 * rules.budget
    )
    first = np.flatnonzero(candidates.rule < _DIVERSITY)
    kept[first] |= _best(
        candidates.golem[first] * _DIVERSITY + candidates.rule[first], candidates.quality[first], rules.budget
    )
    return candidates if kept.all() else candidates.take(kept)


def _best(group: Int64Array, quality: Int64Array, count: int) -> BoolArray:
    """Return which rows are among the best `count` of their group, ties with the last one included."""
    sizes = np.bincount(group) if len(group) else np.zeros(0, np.int64)
    if not len(group) or sizes.max() <= count:
        return np.ones(len(group), bool)
    key = np.sort((group << 21) - quality)
    ends = np.cumsum(sizes)
    last = np.minimum(ends - sizes + count, ends) - 1
    least = np.where(sizes > 0, (np.arange(len(sizes)) << 21) - key[np.maximum(last, 0)], 0)
    return quality >= least[group]


def _by_merit(candidates: _Candidates, entries: pa.Table) -> Int64Array:
    """Return the order by golem, quality, last validated and entry id, best first."""
    key = (candidates.golem << 21) - candidates.quality
    order = np.argsort(key)
    ordered = key[order]
    is_tied = np.zeros(len(order), bool)
    is_tied[1:] = ordered[1:] == ordered[:-1]
    is_tied[:-1] |= is_tied[1:]
    ties = np.flatnonzero(is_tied)
    if len(ties):
        tied = order[ties]
        ids = contiguous(entries["entry_id"].take(pa.array(candidates.row[tied])))
        table = pa.table({"key": key[tied], "validated": candidates.validated[tied], "id": ids})
        keys = [("key", "ascending"), ("validated", "descending"), ("id", "ascending")]
        order[ties] = tied[pc.sort_indices(table, sort_keys=keys).to_numpy()]
    return order


def _chosen(candidates: _Candidates, rules: InheritancePolicy) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Spend the budget of each golem. Return (candidate indices, rules, ranks from 1) by golem and rank.

    The candidates are in the order of merit.
    """
    quarter, half = int(rules.budget * rules.priority_share), int(rules.budget * rules.diversity_share)
    golems = int(candidates.golem[-1]) + 1 if len(candidates.row) else 0
    first = _priority(candidates, golems, rules.budget, quarter)
    taken = np.bincount(candidates.golem[first], minlength=golems)
    unselected = np.flatnonzero(~first)
    room = np.minimum(half, rules.budget - taken)
    in_turns, turn = _in_turns(candidates.golem[unselected], candidates.category[unselected], room)
    rest = np.flatnonzero(~in_turns)
    left = np.maximum(rules.budget - taken - half, 0)
    owner = candidates.golem[unselected][rest]
    filled = rest[_nth(owner) < left[owner]]

    put_first = np.flatnonzero(first)
    rows = np.concatenate([put_first, unselected[in_turns], unselected[filled]])
    rule = np.concatenate(
        [candidates.rule[put_first], np.full(int(in_turns.sum()), _DIVERSITY), np.full(len(filled), _FILL)]
    )
    late = np.concatenate([np.zeros(len(put_first), np.int64), turn[in_turns], np.zeros(len(filled), np.int64)])
    order = np.lexsort((rows, late, rule, candidates.golem[rows]))
    rows = rows[order]
    return rows, rule[order], _nth(candidates.golem[rows]) + 1


def _priority(candidates: _Candidates, golems: int, budget: int, quarter: int) -> BoolArray:
    """Return the priority candidates: anti-knowledge and bloodstains up to the budget, Baldwin up to the quarter."""
    chosen, before = np.zeros(len(candidates.row), bool), np.zeros(golems, np.int64)
    for rule in (_ANTI, _BLOOD, _BALDWIN):
        rows = np.flatnonzero(candidates.rule == rule)
        owner = candidates.golem[rows]
        chosen[rows] = before[owner] + _nth(owner) < (quarter if rule == _BALDWIN else budget)
        before += np.bincount(owner, minlength=golems)
    return chosen


def _in_turns(golem: Int64Array, category: Int64Array, room: Int64Array) -> tuple[BoolArray, Int64Array]:
    """Return which rows are selected by category in turns, and each row's turn from 0. Rows are in the order of merit.

    A turn that fits into `room` is selected whole; of the first turn that does not fit, the best rows are selected.
    """
    if not len(golem):
        return np.zeros(0, bool), np.zeros(0, np.int64)
    turn = _nth(golem * (category.max() + 1) + category)
    longest = int(turn.max()) + 1
    through = np.bincount(golem * longest + turn, minlength=len(room) * longest).reshape(len(room), longest).cumsum(1)
    full = (through <= room[:, None]).sum(1)
    spare = room - np.where(full > 0, through[np.arange(len(room)), np.maximum(full - 1, 0)], 0)
    chosen = turn < full[golem]
    at_last = np.flatnonzero(turn == full[golem])
    owner = golem[at_last]
    chosen[at_last] = _nth(owner) < spare[owner]
    return chosen, turn


def _nth(group: Int64Array) -> Int64Array:
    """Return each row's position within its group, from 0."""
    narrow = group.astype(np.uint16) if len(group) and group.max() < 2**16 else group
    order = np.argsort(narrow, kind="stable")
    sizes = np.bincount(group) if len(group) else np.zeros(0, np.int64)
    starts = np.cumsum(sizes) - sizes
    nth = np.empty(len(group), np.int64)
    nth[order] = np.arange(len(group)) - starts[group[order]]
    return nth
