"""Links: how the entries of a grimoire bear on each other, as in a Zettelkasten. Pure, self-joins over columns.

Two rules about the same act in situations that differ in one respect agree across it, or differ, and then that respect
decides; a causal link leads to another where its effect is the other's cause; a folded rule is told by the one that
stands for it. Source: MEM (cross-reference; "the Zettelkasten link structure"), canon 17 ("another regime separates").
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bardo_pipeline.arrays import BoolArray, Int64Array
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS
from bardo_pipeline.grimoire.entry_columns import equals_word, int_column
from bardo_pipeline.grimoire.gas_bands import COVERS, GAS_SPANS, SINGLE
from bardo_pipeline.grimoire.integer_joins import Pairs, codes, matched, places

LINK_SCHEMA = pa.schema(
    [
        pa.field("golem_id", pa.string(), nullable=False),
        pa.field("entry_id", pa.string(), nullable=False),
        pa.field("other_id", pa.string(), nullable=False),
        pa.field("relation", pa.string(), nullable=False),
        pa.field("across", pa.string(), nullable=False),
        pa.field("strength_ppm", pa.int64(), nullable=False),
    ]
)
"""One row per pair of active entries of a golem that bear on each other, and per folded entry and the active one that
stands for it; key (golem_id, entry_id, other_id).

relation: agrees, differs, leads_to or told_by. across: in what their situations differ (regime, gas, anomaly:
neighbouring bands), or "cause" for a chain of causes. A chain has a direction, and what is told by another stands
before it; other pairs stand once, the smaller id first. strength_ppm: the lesser of the two confidences at their
anchors (of what stands for another: its own), in parts per million."""

_RELATIONS = ("agrees", "differs", "leads_to", "told_by")
_AGREES, _DIFFERS, _LEADS_TO, _TOLD_BY = range(len(_RELATIONS))
_RESPECTS = ("anomaly", "regime", "gas", "cause")
_ANOMALY, _REGIME, _GAS, _CAUSE = range(len(_RESPECTS))

_STANDS_FOR = np.zeros((len(GAS_SPANS), len(GAS_SPANS)), bool)
_STANDS_FOR[SINGLE:, :SINGLE] = COVERS[SINGLE:]
"""Whether a gas band (row), a wider one, takes in another (column), a single one."""


class _Entries(NamedTuple):
    """Entries as numbers, each [rows], -1 where there is nothing.

    order: their places by golem and id. told: active ones that speak for or against something. market: columns that say
    of whom and where; act: of whom, where and what is done.
    """

    order: NDArray[np.intp]
    is_rule: BoolArray
    active: BoolArray
    folded: BoolArray
    told: BoolArray
    sign: Int64Array
    market: list[Int64Array]
    act: list[Int64Array]
    regime: Int64Array
    anomaly: Int64Array
    gas: Int64Array
    cause: Int64Array
    effect: Int64Array


class _Found(NamedTuple):
    """Pairs of entries that bear on each other, and the codes of how and across what. Each [pairs]."""

    one: NDArray[np.intp]
    other: NDArray[np.intp]
    relation: Int64Array
    across: Int64Array

    @classmethod
    def of(cls, pairs: Pairs, kept: BoolArray, relation: Int64Array | int, across: int) -> _Found:
        """Those of the pairs that are kept. relation: by pair, or of all."""
        count = np.count_nonzero(kept)
        how = np.broadcast_to(relation, len(kept))[kept]
        return cls(pairs.left[kept], pairs.right[kept], how, np.full(count, across))


def links_of(entries: pa.Table) -> pa.Table:
    """The links among entries (ENTRY_SCHEMA), each golem's among its own: LINK_SCHEMA, in the order of its key."""
    known, trust = _as_numbers(entries), int_column(entries, "confidence_ppm")
    found = _Found(*map(np.concatenate, zip(*_rules(known), _chains(known), _folds(known), strict=True)))
    order = np.lexsort((known.order[found.other], known.order[found.one]))
    one, other, relation, across = (column[order] for column in found)
    columns = {
        "golem_id": entries["golem_id"].take(pa.array(one)),
        "entry_id": entries["entry_id"].take(pa.array(one)),
        "other_id": entries["entry_id"].take(pa.array(other)),
        "relation": pa.array(_RELATIONS).take(pa.array(relation)),
        "across": pa.array(_RESPECTS).take(pa.array(across)),
        "strength_ppm": np.where(relation == _TOLD_BY, trust[other], np.minimum(trust[one], trust[other])),
    }
    return pa.table(columns, LINK_SCHEMA)


def _as_numbers(entries: pa.Table) -> _Entries:
    order = np.empty(entries.num_rows, np.intp)
    by_key = pc.sort_indices(entries, [("golem_id", "ascending"), ("entry_id", "ascending")])
    order[by_key.to_numpy()] = np.arange(entries.num_rows)
    active = equals_word(entries, "status", "active")
    sign, causes = int_column(entries, "sign"), pc.unique(entries["cause"])
    market = [codes(entries[name]) for name in ("golem_id", "chain", "protocol", "pair")]
    return _Entries(
        order=order,
        is_rule=equals_word(entries, "source", "pattern"),
        active=active,
        folded=equals_word(entries, "status", "folded"),
        told=active & (sign != 0),
        sign=sign,
        market=market,
        act=[*market, codes(entries["tool"]), codes(entries["action_type"])],
        regime=codes(entries["regime"]),
        anomaly=places(entries["anomaly_band"], pa.array(ANOMALY_BANDS)),
        gas=places(entries["gas_band"], pa.array(GAS_SPANS)),
        cause=places(entries["cause"], causes),
        effect=places(entries["effect"], causes),
    )


def _rules(known: _Entries) -> Iterator[_Found]:
    """Rules about the same act in situations that differ in one respect: an anomaly by one band, the others at all."""
    rules = np.flatnonzero(known.told & known.is_rule)
    act = [column[rules] for column in known.act]
    respects = {_ANOMALY: known.anomaly[rules], _REGIME: known.regime[rules], _GAS: known.gas[rules]}
    for across, respect in respects.items():
        same = _of(respect >= 0, [*act, *(other for which, other in respects.items() if which != across)])
        left, right = matched(same, same)
        apart = np.abs(respect[left] - respect[right])
        differ = apart == 1 if across == _ANOMALY else apart > 0
        pairs = Pairs(rules[left], rules[right])
        relation = np.where(known.sign[pairs.left] == known.sign[pairs.right], _AGREES, _DIFFERS)
        yield _Found.of(pairs, differ & (known.order[pairs.left] < known.order[pairs.right]), relation, across)


def _chains(known: _Entries) -> _Found:
    """What brings about the cause of something else."""
    pairs = matched(_of(known.told, [*known.market, known.effect]), _of(known.told, [*known.market, known.cause]))
    return _Found.of(pairs, pairs.left != pairs.right, _LEADS_TO, _CAUSE)


def _folds(known: _Entries) -> _Found:
    """Folded rules, told by a rule in force about a wider gas band."""
    scene = [*known.act, known.regime, known.anomaly]
    banded = known.gas >= 0
    pairs = matched(_of(known.folded & banded, scene), _of(known.active & known.is_rule & banded, scene))
    return _Found.of(pairs, _STANDS_FOR[known.gas[pairs.right], known.gas[pairs.left]], _TOLD_BY, _GAS)


def _of(rows: BoolArray, columns: list[Int64Array]) -> list[Int64Array]:
    """The columns, of these rows alone: the others are like nothing."""
    return [np.where(rows, columns[0], -1), *columns[1:]]
