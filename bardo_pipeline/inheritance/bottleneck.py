"""The genomic bottleneck: at most 2,048 entries cross a death, and every place has its reason. Pure, set-based.

All golems that died in a batch are taken together; each is ranked among its own. Source: INH S7.1, canon 40.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bardo_pipeline.grimoire.confidence import ppm
from bardo_pipeline.grimoire.entries import CATEGORIES, ENTRY_SCHEMA
from bardo_pipeline.grimoire.entry_columns import bool_column, confidence_of, contiguous, int_column, micros, to_bools
from bardo_pipeline.policy import InheritancePolicy, Policy

RULES = ("anti_knowledge", "bloodstain", "baldwin", "diversity", "fill")
"""Why an entry was chosen, in the order in which places are given."""

SELECTED_SCHEMA = pa.schema(
    [
        *ENTRY_SCHEMA,
        pa.field("selected_by", pa.string(), nullable=False),
        pa.field("rank", pa.int64(), nullable=False),
        pa.field("quality_ppm", pa.int64(), nullable=False),
        pa.field("confidence_death_ppm", pa.int64(), nullable=False),
    ]
)
"""One row per (golem, selected entry): the entry untouched, the rule that chose it (RULES), its rank from 1 within its
golem, its quality and its confidence at death in ppm."""

_ANTI, _BLOOD, _BALDWIN, _DIVERSITY, _FILL = range(5)

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def bottleneck(entries: pa.Table, deaths: pa.Table, policy: Policy) -> pa.Table:
    """Choose what crosses. Returns SELECTED_SCHEMA sorted by golem and rank.

    entries: ENTRY_SCHEMA with bloodstains left (`leave_bloodstains`); only active entries of golems in `deaths`
    (golem_id, at) are candidates. Places are given in this order:

    - anti-knowledge, then bloodstains, as many as there are, up to the budget;
    - Baldwin entries (generation >= 3, confidence >= 0.7 at death) while the first quarter has room;
    - half of the budget by category, in turns: the best of each category left, then the second best of each, ...;
    - the rest, by quality, in every place that is left.

    quality = confidence at death x (validations + 1) / (validations + contradictions + 2), rounded down: HB's
    "confidence x validation ratio" with Laplace's rule of succession, so that what nothing tested counts half.
    Ties: quality, last validated, entry id.
    """
    rules = policy.inheritance
    candidates = _contenders(_candidates(entries, deaths, policy), rules)
    candidates = candidates.take(_by_merit(candidates, entries))
    chosen = _chosen(candidates, rules)
    picked = candidates.take(chosen.rows)
    selected = entries.take(pa.array(picked.row)).select(ENTRY_SCHEMA.names)
    for name, values in (
        ("selected_by", pa.array(RULES).take(pa.array(chosen.rule))),
        ("rank", pa.array(chosen.rank)),
        ("quality_ppm", pa.array(picked.quality)),
        ("confidence_death_ppm", pa.array(picked.confidence)),
    ):
        selected = selected.append_column(name, values)
    return selected.cast(SELECTED_SCHEMA)


@dataclass(frozen=True)
class _Candidates:
    """Columns over candidates: row in the table of entries, golem (in the order of ids), category, the rule that would
    put them first (3 for none), quality, confidence at death, last validated."""

    row: Ints
    golem: Ints
    category: Ints
    rule: Ints
    quality: Ints
    confidence: Ints
    validated: Ints

    def take(self, at: NDArray[np.integer] | Bools) -> _Candidates:
        return _Candidates(*(column[at] for column in vars(self).values()))


@dataclass(frozen=True)
class _Choice:
    """What crosses, by golem and rank: places among the candidates, rule, rank from 1."""

    rows: Ints
    rule: Ints
    rank: Ints


def _candidates(entries: pa.Table, deaths: pa.Table, policy: Policy) -> _Candidates:
    """Active entries of the dead."""
    order = pc.sort_indices(deaths["golem_id"])
    names, moments = contiguous(deaths["golem_id"].take(order)), micros(deaths, "at")[order.to_numpy()]
    golem = pc.index_in(entries["golem_id"], value_set=names)
    standing = to_bools(contiguous(pc.and_(pc.is_valid(golem), pc.equal(entries["status"], "active"))))
    row, golems = np.flatnonzero(standing), golem.fill_null(-1).to_numpy().astype(np.int64)
    known = entries if len(row) == entries.num_rows else entries.filter(pa.array(standing))
    golems = golems[row]
    confidence = confidence_of(known, moments[golems], policy.decay)
    validations, contradictions = int_column(known, "validations"), int_column(known, "contradictions")
    rules = policy.inheritance
    proven = (int_column(known, "generation") >= rules.baldwin_generation) & (
        confidence >= ppm(rules.baldwin_confidence)
    )
    rule = np.where(proven, _BALDWIN, _DIVERSITY)
    rule[bool_column(known, "is_bloodstain")] = _BLOOD
    rule[bool_column(known, "is_anti_knowledge")] = _ANTI
    return _Candidates(
        row=row,
        golem=golems,
        category=_category(known),
        rule=rule,
        quality=confidence * (validations + 1) // (validations + contradictions + 2),
        confidence=confidence,
        validated=micros(known, "validated_at"),
    )


def _category(entries: pa.Table) -> Ints:
    """A number a category; one that no document names has one, too."""
    names = [*CATEGORIES, *sorted(set(pc.unique(entries["category"]).to_pylist()) - CATEGORIES.keys())]
    codes: Ints = pc.index_in(entries["category"], value_set=pa.array(names)).to_numpy().astype(np.int64)
    return codes


def _contenders(some: _Candidates, rules: InheritancePolicy) -> _Candidates:
    """Without those that cannot be chosen: a million entries are not put in order for two thousand places.

    Whoever is chosen by quality is among the best of its category, even if everything that a golem can leave, and as
    many again, came before it; whoever is put first is among the best under its rule. Ties stay.
    """
    if len(some.row) < 16 * rules.budget:
        return some
    kept = _best(some.golem * (some.category.max() + 1) + some.category, some.quality, 3 * rules.budget)
    first = np.flatnonzero(some.rule < _DIVERSITY)
    kept[first] |= _best(some.golem[first] * _DIVERSITY + some.rule[first], some.quality[first], rules.budget)
    return some if kept.all() else some.take(kept)


def _best(group: Ints, quality: Ints, count: int) -> Bools:
    """Which rows are among the best `count` of their group, those as good as the last of them included."""
    sizes = np.bincount(group) if len(group) else np.zeros(0, np.int64)
    if not len(group) or sizes.max() <= count:
        return np.ones(len(group), bool)
    key = np.sort((group << 21) - quality)
    ends = np.cumsum(sizes)
    last = np.minimum(ends - sizes + count, ends) - 1
    least = np.where(sizes > 0, (np.arange(len(sizes)) << 21) - key[np.maximum(last, 0)], 0)
    best: Bools = quality >= least[group]
    return best


def _by_merit(some: _Candidates, entries: pa.Table) -> Ints:
    """The order of golem, quality, last validated and entry id, best first."""
    key = (some.golem << 21) - some.quality
    order = np.argsort(key)
    ordered = key[order]
    alike = np.zeros(len(order), bool)
    alike[1:] = ordered[1:] == ordered[:-1]
    alike[:-1] |= alike[1:]
    ties = np.flatnonzero(alike)
    if len(ties):
        tied = order[ties]
        ids = contiguous(entries["entry_id"].take(pa.array(some.row[tied])))
        table = pa.table({"key": key[tied], "validated": some.validated[tied], "id": ids})
        keys = [("key", "ascending"), ("validated", "descending"), ("id", "ascending")]
        order[ties] = tied[pc.sort_indices(table, sort_keys=keys).to_numpy()]
    return order


def _chosen(some: _Candidates, rules: InheritancePolicy) -> _Choice:
    """Give the places. some: in the order of merit."""
    quarter, half = int(rules.budget * rules.priority_share), int(rules.budget * rules.diversity_share)
    golems = int(some.golem[-1]) + 1 if len(some.row) else 0
    first = _priority(some, golems, rules.budget, quarter)
    taken = np.bincount(some.golem[first], minlength=golems)
    others = np.flatnonzero(~first)
    room = np.minimum(half, rules.budget - taken)
    in_turns, turn = _in_turns(some.golem[others], some.category[others], room)
    rest = np.flatnonzero(~in_turns)
    left = np.maximum(rules.budget - taken - half, 0)
    owner = some.golem[others][rest]
    filled = rest[_nth(owner) < left[owner]]

    put_first = np.flatnonzero(first)
    rows = np.concatenate([put_first, others[in_turns], others[filled]])
    rule = np.concatenate([some.rule[put_first], np.full(int(in_turns.sum()), _DIVERSITY), np.full(len(filled), _FILL)])
    late = np.concatenate([np.zeros(len(put_first), np.int64), turn[in_turns], np.zeros(len(filled), np.int64)])
    order = np.lexsort((rows, late, rule, some.golem[rows]))
    rows = rows[order]
    return _Choice(rows, rule[order], _nth(some.golem[rows]) + 1)


def _priority(some: _Candidates, golems: int, budget: int, quarter: int) -> Bools:
    """Who is put first: anti-knowledge and bloodstains up to the budget, then Baldwin entries up to the quarter."""
    chosen, before = np.zeros(len(some.row), bool), np.zeros(golems, np.int64)
    for rule in (_ANTI, _BLOOD, _BALDWIN):
        mine = np.flatnonzero(some.rule == rule)
        owner = some.golem[mine]
        limit = budget if rule < _BALDWIN else np.maximum(before, quarter)[owner]
        place = before[owner] + _nth(owner)
        chosen[mine] = (place < limit) & (place < budget)
        before += np.bincount(owner, minlength=golems)
    return chosen


def _in_turns(golem: Ints, category: Ints, room: Ints) -> tuple[Bools, Ints]:
    """Who is chosen by category in turns, and in which turn (from 0); rows in the order of merit.

    All of a turn are chosen while the turn has room; of the first that has not, the best.
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


def _nth(group: Ints) -> Ints:
    """The how manieth of its group each row is, from 0."""
    narrow = group.astype(np.uint16) if len(group) and group.max() < 2**16 else group
    order = np.argsort(narrow, kind="stable")
    sizes = np.bincount(group) if len(group) else np.zeros(0, np.int64)
    starts = np.cumsum(sizes) - sizes
    nth = np.empty(len(group), np.int64)
    nth[order] = np.arange(len(group)) - starts[group[order]]
    return nth
