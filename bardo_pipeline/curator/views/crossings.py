"""Links among the entries of a grimoire, and the bridge: which entries may pass to other golems. Pure.

Links, as in a Zettelkasten, are self-joins of tables:
- agrees, differs: two rules about the same action whose situations differ in one respect.
- leads_to: the effect of a causal link is the cause of another.
- told_by: a folded rule and the wider rule that replaced it.

An entry needs own evidence of its golem to cross, and passes one gate:
- Insights and causal links pass the admission gate, the mean of five parts.
- Heuristics must have been acted on and confirmed by outcomes.
- Warnings only have to be new, because a false alarm costs less than a missed one.
- Confirmed dream entries cross from a confidence of 0.5.
A golem past 85 % of its lifespan passes insights from a confidence of 0.4 instead of 0.6. Episodes, position sizes and
outcomes never cross.
Source: MEM (cross-reference; "the Zettelkasten link structure"; "The bridge: what crosses between loops", "Bridge
quality gates"), canon 12, 17 ("another regime separates"), canon ("admission gate").
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bardo_pipeline.arrays import BoolArray, Int64Array
from bardo_pipeline.events.record.arrow_columns import all_required, contiguous, present, required
from bardo_pipeline.grimoire.confidence import PPM, ppm
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS, MOMENT
from bardo_pipeline.grimoire.entry_columns import equals_word, int_column, micros, sorted_by, to_bools
from bardo_pipeline.grimoire.gas_bands import COVERS, GAS_SPANS, SINGLE
from bardo_pipeline.policy import BridgePolicy, Policy

PARTS = ("specificity", "actionability", "novelty", "verifiability", "consistency")
"""The five parts of the admission gate (MEM)."""

CROSSING_SCHEMA = pa.schema(
    [
        *all_required(pa.string(), "golem_id", "entry_id", "kind"),
        required("at", MOMENT),
        *all_required(pa.int64(), *(f"{part}_ppm" for part in PARTS), "admission_ppm"),
        required("gate", pa.string()),
        required("crosses", pa.bool_()),
        required("reason", pa.string()),
    ]
)
"""One row per active entry that its golem has evidence of; key (golem_id, entry_id).

at: time of the entry's last vote, as of which it is judged. *_ppm: the five parts of the admission gate and their mean,
in parts per million. gate: the gate that applies (one of _GATES). reason: why it crosses, or the first fault."""

_GATES = ("admission", "outcomes", "novelty", "validation")
_ADMISSION, _OUTCOMES, _NOVELTY, _VALIDATION = range(len(_GATES))

_FAULTS = (
    "confidence is below what a dream needs",
    "others of the golem say as much",
    "confidence is below what a heuristic needs",
    "not acted on since it was made",
    "outcomes did not bear it out",
    "confidence is below what an insight needs",
    "its five parts do not add up to admission",
)
"""Faults of an entry; the first one that applies is its reason."""

_SCENE = ("tool", "action_type", "anomaly_band", "gas_band", "regime")
_CHAIN = ("cause", "effect", "lag_ticks", "regime")
_JUDGED_BY = [
    "golem_id", "entry_id", "kind", "source", *_SCENE, *(name for name in _CHAIN if name not in _SCENE),
    "confidence_ppm", "validations", "contradictions", "effect_mean_ppm", "effect_low_ppm", "effect_high_ppm",
    "own_count", "anchor_at", "created_at", "validated_at",
]  # fmt: skip
"""Columns of an entry that the decision reads."""

_REASONS = pa.array([*_FAULTS, *(f"passes by {gate}" for gate in _GATES)])


def dreams_that_cross(entries: pa.Table, policy: Policy) -> pa.ChunkedArray:
    """Return which entries (ENTRY_SCHEMA) the clade may see: all but dream entries below `clade_confidence`."""
    unsure = pc.less(entries["confidence_ppm"], ppm(policy.dreams.clade_confidence))
    return pc.invert(pc.and_(pc.equal(entries["source"], "dream"), unsure))


def is_elder(age: Int64Array, lifespan: Int64Array, policy: BridgePolicy) -> BoolArray:
    """Return which golems are past 85 % of their lifespan. age, lifespan: ticks."""
    return np.asarray(age) > policy.legacy_hayflick * np.asarray(lifespan)


def crossings_of(
    entries: pa.Table, policy: Policy, elders: Collection[str] = (), links: pa.Table | None = None
) -> pa.Table:
    """Judge which of these entries (ENTRY_SCHEMA) cross, as CROSSING_SCHEMA sorted by key.

    Parameters
    ----------
    elders : golems for which `is_elder` holds; their insights cross at a lower confidence
    links : pa.Table, LINK_SCHEMA, links among the entries; computed if None
    """
    links = links_of(entries) if links is None else links
    is_own = pc.and_(pc.equal(entries["status"], "active"), pc.greater(entries["own_count"], 0))
    judged = entries.select(_JUDGED_BY).filter(is_own)
    parts = _parts(judged, _agreeing(judged, links), policy.curator.cluster_min)
    admission = np.sum(list(parts.values()), axis=0) // len(parts)
    special = ("source", "dream"), ("kind", "heuristic"), ("kind", "warning")
    conditions = [equals_word(judged, name, word) for name, word in special]
    gate = np.select(conditions, [_VALIDATION, _OUTCOMES, _NOVELTY], _ADMISSION)
    faults = _faults(judged, gate, parts["novelty"], admission, elders, policy)
    crosses = ~faults.any(axis=0)
    reason = np.where(crosses, len(_FAULTS) + gate, faults.argmax(axis=0))
    columns = {
        **{name: judged[name] for name in ("golem_id", "entry_id", "kind")},
        "at": judged["anchor_at"],
        **{f"{part}_ppm": parts[part] for part in PARTS},
        "admission_ppm": admission,
        "gate": pa.array(_GATES).take(pa.array(gate)),
        "crosses": crosses,
        "reason": _REASONS.take(pa.array(reason)),
    }
    return sorted_by(pa.table(columns, CROSSING_SCHEMA), ("golem_id", "entry_id"))


def _agreeing(entries: pa.Table, links: pa.Table) -> Int64Array:
    """Return how many other entries of its golem agree with each entry."""
    agree = links.filter(pc.equal(links["relation"], "agrees"))
    ends = [pc.binary_join_element_wise(agree["golem_id"], agree[end], "\x1f") for end in ("entry_id", "other_id")]
    counts = pa.chunked_array([chunk for end in ends for chunk in end.chunks], pa.string()).value_counts()
    keys = pc.binary_join_element_wise(entries["golem_id"], entries["entry_id"], "\x1f")
    count = pc.take(counts.field("counts"), pc.index_in(keys, value_set=counts.field("values")))
    return np.asarray(pc.fill_null(count, 0))


def _parts(entries: pa.Table, agreeing: Int64Array, witnesses: int) -> dict[str, Int64Array]:
    """Return the PARTS of each entry in ppm. agreeing: number of entries that agree with each."""
    is_rule = np.any([equals_word(entries, "source", source) for source in _RULES], axis=0)
    is_level = equals_word(entries, "source", "baseline")
    size = np.abs(int_column(entries, "effect_mean_ppm"))
    doubt = (int_column(entries, "effect_high_ppm") - int_column(entries, "effect_low_ppm")) // 2
    clear = _share(size, np.maximum(size + doubt, 1))
    exact = PPM - _share(doubt, np.maximum(size, 1))
    scene = _named(entries, _SCENE)
    scene = (scene - equals_word(entries, "regime", "unknown")) * PPM // 5
    cause = _named(entries, _CHAIN) * PPM // 4
    own, validations, contradictions = (int_column(entries, n) for n in ("own_count", "validations", "contradictions"))
    return {
        "specificity": np.where(is_rule, scene, np.where(is_level, exact, cause)),
        "actionability": np.where(is_rule, clear, np.where(is_level, 0, clear // 2)),
        "novelty": PPM // (1 + agreeing),
        "verifiability": _share(own, own + witnesses),
        "consistency": _share(validations + 1, validations + contradictions + 1),
    }


def _named(entries: pa.Table, names: Collection[str]) -> Int64Array:
    """Return how many of these columns are present in each row."""
    return np.sum([present(contiguous(entries[name])) for name in names], axis=0)


def _share(part: Int64Array, of: Int64Array) -> Int64Array:
    """Return part / of in ppm, rounded down, at most 1e6; exact for all int64."""
    if part.max(initial=0) <= _PART_MAX:
        return np.minimum(part * PPM // of, PPM)
    return np.minimum(part.astype(object) * PPM // of, PPM).astype(np.int64)


_RULES = "pattern", "dream", "choice", "strategy", "report"
"""Sources whose entries say what to do."""

_PART_MAX = (2**63 - 1) // PPM
"""Above this, part * PPM overflows int64."""


def _faults(
    entries: pa.Table,
    gate: Int64Array,
    novelty: Int64Array,
    admission: Int64Array,
    elders: Collection[str],
    policy: Policy,
) -> BoolArray:
    """Return which of _FAULTS each entry has at its gate. [_FAULTS, rows]."""
    rules, trust = policy.bridge, int_column(entries, "confidence_ppm")
    old = to_bools(contiguous(pc.is_in(entries["golem_id"], value_set=pa.array(sorted(elders), pa.string()))))
    young = ppm(rules.insight_confidence)
    insight = np.where(old, min(ppm(rules.legacy_confidence), young), young)
    return np.stack(
        [
            (gate == _VALIDATION) & (trust < ppm(policy.dreams.clade_confidence)),
            (gate == _NOVELTY) & (novelty < ppm(rules.warning_novelty_min)),
            (gate == _OUTCOMES) & (trust < ppm(rules.heuristic_confidence)),
            (gate == _OUTCOMES) & (micros(entries, "validated_at") <= micros(entries, "created_at")),
            (gate == _OUTCOMES) & (int_column(entries, "validations") <= int_column(entries, "contradictions")),
            (gate == _ADMISSION) & (trust < insight),
            (gate == _ADMISSION) & (admission <= ppm(rules.admission_min)),
        ]
    )


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
_AGREES, _DIFFERS, _LEADS_TO, _STATED_BY = range(len(_RELATIONS))
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
        "strength_ppm": np.where(relation == _STATED_BY, trust[right], np.minimum(trust[left], trust[right])),
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
    return _Pairs.where(_STANDS_FOR[gas[right], gas[left]], left, right, _STATED_BY, _RESPECTS.index("gas"))


def _joined(
    left: pa.Table, right: pa.Table, left_keys: list[str], right_keys: list[str]
) -> tuple[Int64Array, Int64Array]:
    """Return the row numbers of all pairs of rows with equal keys; null equals nothing."""
    pairs = left.select([*left_keys, "row"]).join(
        right.select([*right_keys, "row"]), left_keys, right_keys, "inner", right_suffix="_right", use_threads=False
    )
    return pairs["row"].to_numpy(), pairs["row_right"].to_numpy()
