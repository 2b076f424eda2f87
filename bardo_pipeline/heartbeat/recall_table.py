"""Recall tables: the entries of each golem as columns, prepared once a cycle for the retrievals of its ticks. Pure.

`recollection` scores the entries in a tick. A situation is a cell (regime, anomaly band, gas band); each golem and cell
has the warning that blocks acting there, whatever is retrieved. Entries with a decayed confidence below MEM's 0.5 are
not retrieved. Source: MEM (four factors, minConfidence), MEM-11, canon 21-24, "immune memory".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bardo_pipeline.arrays import BoolArray, Float64Array, Int64Array
from bardo_pipeline.curator.state.grimoire_state import ACTIVE, WARNING, GrimoireState, entry_ids
from bardo_pipeline.events.record.arrow_columns import contiguous
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.confidence import DAY_US, FOREVER_US, confidence_at, ppm
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS, BASELINE_METRICS, CAME_OVER, PROVENANCES
from bardo_pipeline.grimoire.entry_columns import int_column, micros, to_bools
from bardo_pipeline.grimoire.gas_bands import COVERS, GAS_SPANS
from bardo_pipeline.heartbeat.causal_forecast import Foresight, foresight_of, nothing_foreseen
from bardo_pipeline.heartbeat.entry_names import EntryNames
from bardo_pipeline.heartbeat.fleet import CELLS
from bardo_pipeline.katabasis.belief_credits import BeliefCredits
from bardo_pipeline.katabasis.priors import PRIOR_KINDS, modifiers
from bardo_pipeline.policy import CuratorPolicy, Policy
from bardo_pipeline.retrieval.credit_totals import CreditTotals, Uses
from bardo_pipeline.retrieval.scoring import covered_share, importance, recency_half_life, validation_ratio

CELL_REGIME, CELL_ANOMALY, CELL_GAS = (
    a.reshape(-1) for a in np.meshgrid(np.arange(5), np.arange(5), np.arange(3), indexing="ij")
)

ENTRIES, SCARS, PROPOSITIONS, LESSONS = range(4)
"""Shelves of a recall: entries of the grimoire, scars, propositions, lessons of dreams."""


def cells(
    regime: Int64Array | int, score: Float64Array, gas_ratio: Float64Array | float, rules: CuratorPolicy
) -> Int64Array:
    """Return the situation of each anomaly score: regime, anomaly band and gas band in one number below CELLS."""
    band = np.searchsorted(rules.anomaly_edges, score, side="right")
    return (regime * 5 + band) * 3 + np.searchsorted(rules.gas_edges, gas_ratio, side="right")


@dataclass(frozen=True)
class Recall:
    """Entries of all golems as columns [entries], the entries of one golem adjacent.

    names: the run's entry ids. start, count: place and number of each golem's entries. code: each entry's code in
    names. importance: at the moment of the tables, credits of earlier retrievals included. last_us: last validation or
    access. believed: whether the entry may be retrieved. regime, anomaly, gas: codes of its structure, -1 without one.
    recentring: whether its structure is about re-centring. shelf: ENTRIES or a shelf of priors, for which kind is
    -1. coverage: known share of the levels, by protocol [golems]. block: warning by cell [cells, golems], -1 for
    none.
    """

    names: EntryNames
    start: Int64Array
    count: Int64Array
    code: Int64Array
    kind: Int64Array
    sign: Int64Array
    confidence: Int64Array
    importance: Float64Array
    half_life_us: Float64Array
    last_us: Int64Array
    pad: Float64Array
    believed: BoolArray
    regime: Int64Array
    anomaly: Int64Array
    gas: Int64Array
    recentring: BoolArray
    shelf: Int64Array
    coverage: dict[str, Float64Array]
    block: Int64Array
    foresight: Foresight


def nothing_known(size: int, names: EntryNames, foresight: Foresight | None = None) -> Recall:
    """Return the recall of golems without entries. foresight: none by default."""
    none, zeros = np.zeros(1, np.int64), np.zeros(size, np.int64)  # place -1 stands for no entry and must exist
    return Recall(
        names, start=zeros, count=zeros, code=none, kind=none, sign=none, confidence=none, importance=np.zeros(1),
        half_life_us=np.ones(1), last_us=none, pad=np.zeros((3, 1)), believed=np.zeros(1, bool), regime=none,
        anomaly=none, gas=none, recentring=np.zeros(1, bool), shelf=none, coverage={}, block=np.full((CELLS, size), -1),
        foresight=nothing_foreseen(size) if foresight is None else foresight,
    )  # fmt: skip


def recall_of(
    state: GrimoireState, golem_ids: list[str], at_us: int, names: EntryNames, policy: Policy,
    credits: CreditTotals | None = None,
) -> Recall:  # fmt: skip
    """Build the recall tables of these golems at `at_us`. credits: of earlier retrievals; None: none."""
    size = len(golem_ids)
    place = np.full(len(state.golems), -1)
    for i, golem_id in enumerate(golem_ids):
        if golem_id in state._golem_codes:
            place[state._golem_codes[golem_id]] = i
    foresight = foresight_of(state, golem_ids, at_us, policy)
    rows = np.zeros(0, np.int64)
    if state.rows:
        rows = np.flatnonzero((state["status"] == ACTIVE) & (place[state["golem"]] >= 0))
        rows = rows[state.structures.is_recalled()[state["structure"][rows]]]
    if not len(rows):
        return nothing_known(size, names, foresight)
    golem = place[state["golem"][rows]]
    rows = rows[np.lexsort((state.structures.stable()[state["structure"][rows]], golem))]
    golem, structure = place[state["golem"][rows]], state["structure"][rows]
    confidence, ids = state.confidence_at(rows, at_us, policy.decay), entry_ids(state, rows)
    uses = (credits or CreditTotals()).uses([golem_ids[i] for i in golem.tolist()], ids)
    count = np.maximum(state["own_count"][rows], 1)
    pad = np.stack([state[f"{n}_sum_milli"][rows] / count / 1000.0 for n in ("pleasure", "arousal", "dominance")])
    regime, anomaly, gas, moves = (bands[structure].astype(np.int64) for bands in state.structures.bands())
    counts = np.bincount(golem, minlength=size)
    return Recall(
        names, start=np.cumsum(counts) - counts, count=counts, code=names.codes(ids), kind=state["kind"][rows],
        sign=state["sign"][rows], confidence=confidence, importance=_importance(state, rows, confidence, uses, policy),
        half_life_us=recency_half_life(state.half_life(rows, policy.decay), policy.retrieval),
        last_us=np.maximum(state["validated_us"][rows], uses.last_us), pad=pad,
        believed=_believed(state, rows, confidence, policy), regime=regime, anomaly=anomaly, gas=gas,
        recentring=moves == 1, shelf=np.full(len(rows), ENTRIES), foresight=foresight,
        coverage=_coverage(state, structure, golem, confidence, size, policy),
        block=_blocks(state, rows, golem, confidence, size, policy),
    )  # fmt: skip


def with_priors(
    recall: Recall,
    priors: pa.Table,
    golem_ids: list[str],
    at_us: int,
    names: EntryNames,
    policy: Policy,
    credits: BeliefCredits | None = None,
) -> Recall:
    """Add the priors (PRIOR_SCHEMA) that these golems hold to their columns, at `at_us`.

    credits: decisions that a belief of Lethe helped or misled count as its validations and contradictions
    """
    places = contiguous(pc.index_in(priors["golem_id"], value_set=pa.array(golem_ids, pa.string())))
    priors, owner = priors.filter(places.is_valid()), places.drop_null().to_numpy().astype(np.int64)
    if not priors.num_rows:
        return recall
    stained, confirmed = to_bools(priors["is_bloodstain"]), micros(priors, "confirmed_at")
    half_life_us = priors["half_life_days"].to_numpy() * DAY_US
    half = np.rint(np.minimum(half_life_us, float(FOREVER_US >> 3))).astype(np.int64)
    floor = np.where(stained, ppm(policy.decay.bloodstain_floor), 0)
    decayed = confidence_at(int_column(priors, "confidence_ppm"), confirmed, at_us, half, floor)
    tested = (credits or BeliefCredits()).ratios(priors["golem_id"].to_pylist(), priors["prior_id"].to_pylist())
    worth = importance(decayed, tested, stained, policy.retrieval)
    words = {"regime": REGIMES, "anomaly": ANOMALY_BANDS, "gas": GAS_SPANS, "shelf": ("", *PRIOR_KINDS)}
    columns = {"regime": "regime", "anomaly": "anomaly_band", "gas": "gas_band", "shelf": "kind"}
    parts: dict[str, NDArray[Any]] = {
        "code": names.codes(priors["prior_id"].to_pylist()), "kind": np.full(len(owner), -1),
        "sign": int_column(priors, "sign"), "confidence": decayed,
        "importance": worth * modifiers(priors["origin"], policy.retrieval), "half_life_us": half_life_us,
        "last_us": confirmed, "pad": np.stack([priors[n].to_numpy() for n in ("pleasure", "arousal", "dominance")]),
        "believed": confirmed <= at_us, "recentring": to_bools(pc.equal(priors["action_type"], "rebalance")),
        **{
            name: pc.index_in(priors[columns[name]], value_set=pa.array(known)).to_numpy().astype(np.int64)
            for name, known in words.items()
        },
    }  # fmt: skip
    owners = np.r_[np.repeat(np.arange(len(golem_ids)), recall.count), owner]
    order = np.argsort(owners, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    known_count = int(recall.count.sum())
    merged: dict[str, Any] = {
        name: np.concatenate([getattr(recall, name)[..., :known_count], part], axis=-1)[..., order]
        for name, part in parts.items()
    }
    counts = np.bincount(owners, minlength=len(golem_ids))
    block = np.where(recall.block >= 0, place[recall.block], -1)
    return replace(recall, start=np.cumsum(counts) - counts, count=counts, block=block, **merged)


def likeness(
    recall: Recall, entry: Int64Array, regime: Int64Array, anomaly: Int64Array, gas: Int64Array, policy: Policy
) -> Float64Array:
    """Return the likeness of entries to situations (regime, anomaly band, gas band), in [0, 1]; constant for levels."""
    rules = policy.retrieval
    near = 1.0 - np.abs(recall.anomaly[entry] - anomaly) / 4.0
    same, covered = recall.regime[entry] == regime, COVERS[recall.gas[entry], gas]
    like: Float64Array = rules.like_regime * same + rules.like_anomaly * near + rules.like_gas * covered
    return np.where(recall.anomaly[entry] >= 0, like, rules.like_baseline)


def _importance(
    state: GrimoireState, rows: Int64Array, confidence: Int64Array, uses: Uses, policy: Policy
) -> Float64Array:
    """Return confidence x validation ratio (canon 15), boosted for bloodstains.

    Decisions that a retrieved entry helped or misled count as its validations and contradictions (MEM-11).
    """
    confirmed, refuted = state["validations"][rows] + uses.useful, state["contradictions"][rows] + uses.misled
    stained = state["is_bloodstain"][rows] == 1
    return importance(confidence, validation_ratio(confirmed, refuted), stained, policy.retrieval)


def _believed(state: GrimoireState, rows: Int64Array, confidence: Int64Array, policy: Policy) -> BoolArray:
    """Whether each entry's confidence reaches the minimum for recall.

    For entries received during life, the publisher's confidence counts, because they are admitted below it (canon 23).
    """
    came = state["provenance"][rows] >= PROVENANCES.index(CAME_OVER[0])
    published = np.where(came, state["confidence_origin_ppm"][rows], confidence)
    return published >= ppm(policy.retrieval.confidence_min)


def _coverage(
    state: GrimoireState, structure: Int64Array, golem: Int64Array, confidence: Int64Array, size: int, policy: Policy
) -> dict[str, Float64Array]:
    """Return the share of baseline metrics that each golem knows with sufficient confidence, by protocol."""
    known: dict[str, BoolArray] = {}
    sure = confidence >= ppm(policy.retrieval.skip_confidence_min)
    for code in np.unique(structure).tolist():
        about = state.structures.rows[code]
        if about.metric is not None:
            levels = known.setdefault(about.protocol, np.zeros((len(BASELINE_METRICS), size), bool))
            levels[BASELINE_METRICS.index(about.metric), golem[(structure == code) & sure]] = True
    return {protocol: covered_share(levels.sum(axis=0)) for protocol, levels in known.items()}


def _blocks(
    state: GrimoireState, rows: Int64Array, golem: Int64Array, confidence: Int64Array, size: int, policy: Policy
) -> Int64Array:
    """Select the surest warning against re-centring in exactly each cell, [cells, golems]; -1 for none."""
    regime, anomaly, gas, moves = (bands[state["structure"][rows]] for bands in state.structures.bands())
    bars = (state["kind"][rows] == WARNING) & moves & (confidence >= ppm(policy.playbook.block_confidence_min))
    at = np.flatnonzero(bars & (regime >= 0) & (anomaly >= 0))
    exact = (regime[at, None] == CELL_REGIME) & (anomaly[at, None] == CELL_ANOMALY)
    entry, cell = np.nonzero(exact & COVERS[gas[at, None].astype(np.int64), CELL_GAS])
    entry = at[entry]
    order = np.lexsort((-entry, confidence[entry]))
    out = np.full((CELLS, size), -1, np.int64)
    out[cell[order], golem[entry[order]]] = entry[order]
    return out
