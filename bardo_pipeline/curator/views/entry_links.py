"""Links between entries of a golem's grimoire, as in a Zettelkasten: self-joins of tables. Pure.

- agrees, differs: two rules about the same action whose situations differ in one respect.
- leads_to: the effect of a causal link is the cause of another.
- told_by: a folded rule and the wider rule that replaced it.
Source: MEM (cross-reference; "the Zettelkasten link structure"), canon 17 ("another regime separates").
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bardo_pipeline.arrays import BoolArray, Int64Array
from bardo_pipeline.events.record.arrow_columns import all_required, contiguous, required
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS
from bardo_pipeline.grimoire.entry_columns import equals_word, int_column, to_bools
from bardo_pipeline.grimoire.gas_bands import COVERS, GAS_SPANS, SINGLE

LINK_SCHEMA = pa.schema(
    [
        *all_required(pa.string(), "golem_id", "entry_id", "other_id", "relation", "across"),
        required("strength_ppm", pa.int64()),
    ]
)
"""One row per linked pair of active entries, or of a folded entry and its wider rule.

Key: (golem_id, entry_id, other_id).

relation: agrees, differs, leads_to or told_by. across: the respect in which the situations differ (regime, gas,
anomaly), or "cause" for leads_to. entry_id is the cause of leads_to, the folded entry of told_by, otherwise the smaller
id. strength_ppm: the smaller confidence at the anchors, for told_by the wider rule's, in parts per million."""

_RELATIONS = ("agrees", "differs", "leads_to", "told_by")
_AGREES, _DIFFERS, _LEADS_TO, _TOLD_BY = range(len(_RELATIONS))
_RESPECTS = ("anomaly", "regime", "gas", "cause")

_STANDS_FOR = np.zeros((len(GAS_SPANS), len(GAS_SPANS)), bool)
_STANDS_FOR[SINGLE:, :SINGLE] = COVERS[SINGLE:]
"""Whether a wider gas span (row) covers a single gas band (column)."""

_MARKET = ("golem_id", "chain", "protocol", "pair")
_ACT = (*_MARKET, "tool", "action_type")


class _Pairs(NamedTuple):
    """Linked pairs of entries: row numbers of both, and codes of relation and respect. Each [pairs]."""

    left: NDArray[np.intp]
    right: NDArray[np.intp]
    relation: Int64Array
    across: Int64Array

    @classmethod
    def where(
        cls, kept: BoolArray, left: Int64Array, right: Int64Array, relation: Int64Array | int, across: int
    ) -> _Pairs:
        """Return the kept pairs with one relation and respect."""
        codes = np.broadcast_to(relation, len(kept))[kept]
        return cls(left[kept], right[kept], codes, np.full(len(codes), across))


def links_of(entries: pa.Table) -> pa.Table:
    """Return the links among entries (ENTRY_SCHEMA) of the same golem: LINK_SCHEMA, in the order of its key."""
    rank = np.empty(entries.num_rows, np.intp)
    by_key = pc.sort_indices(entries, [("golem_id", "ascending"), ("entry_id", "ascending")])
    rank[by_key.to_numpy()] = np.arange(entries.num_rows)
    sign, trust = int_column(entries, "sign"), int_column(entries, "confidence_ppm")
    active, is_rule = equals_word(entries, "status", "active"), equals_word(entries, "source", "pattern")
    columns = {
        **{name: entries[name] for name in (*_ACT, "regime", "cause", "effect")},
        "anomaly": pc.index_in(entries["anomaly_band"], value_set=pa.array(ANOMALY_BANDS)),
        "gas": pc.index_in(entries["gas_band"], value_set=pa.array(GAS_SPANS)),
        "row": np.arange(entries.num_rows),
    }
    rows, signed = pa.table(columns), active & (sign != 0)
    parts = (
        *_rule_pairs(rows, signed & is_rule, sign, rank),
        _cause_chains(rows.filter(pa.array(signed))),
        _folded_rules(rows, equals_word(entries, "status", "folded"), active & is_rule),
    )
    pairs = _Pairs(*map(np.concatenate, zip(*parts, strict=True)))
    order = np.lexsort((rank[pairs.right], rank[pairs.left]))
    left, right, relation, across = (column[order] for column in pairs)
    links = {
        "golem_id": entries["golem_id"].take(pa.array(left)),
        "entry_id": entries["entry_id"].take(pa.array(left)),
        "other_id": entries["entry_id"].take(pa.array(right)),
        "relation": pa.array(_RELATIONS).take(pa.array(relation)),
        "across": pa.array(_RESPECTS).take(pa.array(across)),
        "strength_ppm": np.where(relation == _TOLD_BY, trust[right], np.minimum(trust[left], trust[right])),
    }
    return pa.table(links, LINK_SCHEMA)


def _rule_pairs(entries: pa.Table, is_rule: BoolArray, sign: Int64Array, rank: Int64Array) -> Iterator[_Pairs]:
    """Pair rules about the same act whose situations differ in one respect; anomaly bands must be neighbours."""
    rules = entries.filter(pa.array(is_rule))
    for respect in ("anomaly", "regime", "gas"):
        same = [*_ACT, *(name for name in ("anomaly", "regime", "gas") if name != respect)]
        left, right = _joined(rules, rules, same, same)
        before, after = (entries[respect].take(pa.array(row)) for row in (left, right))
        is_pair = pc.not_equal(before, after)
        if respect == "anomaly":
            is_pair = pc.equal(pc.abs(pc.subtract(before, after)), 1)
        kept = to_bools(contiguous(pc.fill_null(is_pair, False))) & (rank[left] < rank[right])
        relation = np.where(sign[left] == sign[right], _AGREES, _DIFFERS)
        yield _Pairs.where(kept, left, right, relation, _RESPECTS.index(respect))


def _cause_chains(entries: pa.Table) -> _Pairs:
    """Pair an entry with each entry of the same market whose cause is its effect."""
    left, right = _joined(entries, entries, [*_MARKET, "effect"], [*_MARKET, "cause"])
    return _Pairs.where(left != right, left, right, _LEADS_TO, _RESPECTS.index("cause"))


def _folded_rules(entries: pa.Table, is_folded: BoolArray, replacement: BoolArray) -> _Pairs:
    """Pair folded rules with the standing rule about a wider gas band that replaced them."""
    scene, banded = [*_ACT, "regime", "anomaly"], to_bools(contiguous(pc.is_valid(entries["gas"])))
    gas = np.asarray(pc.fill_null(entries["gas"], 0))
    old, new = (entries.filter(pa.array(rows & banded)) for rows in (is_folded, replacement))
    left, right = _joined(old, new, scene, scene)
    return _Pairs.where(_STANDS_FOR[gas[right], gas[left]], left, right, _TOLD_BY, _RESPECTS.index("gas"))


def _joined(
    left: pa.Table, right: pa.Table, left_keys: list[str], right_keys: list[str]
) -> tuple[Int64Array, Int64Array]:
    """Return the row numbers of all pairs of rows with equal keys; null equals nothing."""
    pairs = left.select([*left_keys, "row"]).join(
        right.select([*right_keys, "row"]), left_keys, right_keys, "inner", right_suffix="_right", use_threads=False
    )
    return pairs["row"].to_numpy(), pairs["row_right"].to_numpy()
