"""Recall tables: the best entries of each golem by situation, prepared once a cycle for lookup in a tick. Pure.

A situation is a cell (regime, anomaly band, gas band). Each golem and cell has its best entries, and the warning that
blocks acting there. Entries with a decayed confidence below MEM's 0.5 are excluded. Source: MEM (four factors,
minConfidence), HB S3 (top five), canon 21-24, "immune memory".
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bardo_pipeline.arrays import BoolArray, Float64Array, Int64Array
from bardo_pipeline.curator.state.grimoire_state import ACTIVE, WARNING, GrimoireState, entry_ids
from bardo_pipeline.grimoire.confidence import ppm
from bardo_pipeline.grimoire.entries import CAME_OVER, PROVENANCES
from bardo_pipeline.grimoire.gas_bands import COVERS
from bardo_pipeline.heartbeat.causal_forecast import Foresight, foresight_of, nothing_foreseen
from bardo_pipeline.heartbeat.entry_names import EntryNames
from bardo_pipeline.heartbeat.fleet import CELLS, RECALL
from bardo_pipeline.policy import CuratorPolicy, Policy
from bardo_pipeline.retrieval.scoring import importance, recency, recency_half_life, validation_ratio

CELL_REGIME, CELL_ANOMALY, CELL_GAS = (
    a.reshape(-1) for a in np.meshgrid(np.arange(5), np.arange(5), np.arange(3), indexing="ij")
)


def cells(
    regime: Int64Array | int, score: Float64Array, gas_ratio: Float64Array | float, rules: CuratorPolicy
) -> Int64Array:
    """Return the situation of each anomaly score: regime, anomaly band and gas band in one number below CELLS."""
    band = np.searchsorted(rules.anomaly_edges, score, side="right")
    return (regime * 5 + band) * 3 + np.searchsorted(rules.gas_edges, gas_ratio, side="right")


@dataclass(frozen=True)
class Recall:
    """Entry columns [entries] of all golems, and tables over (rank, cell, golem) of positions in them, -1 for none.

    names: the run's entry ids. code: each entry's code in names.
    """

    names: EntryNames
    code: Int64Array
    kind: Int64Array
    sign: Int64Array
    confidence: Int64Array
    importance: Float64Array
    half_life_us: Float64Array
    validated_us: Int64Array
    pad: Float64Array
    top: Int64Array
    likeness: Float64Array
    block: Int64Array
    foresight: Foresight

    def factors(self, entry: Int64Array, at_us: int) -> tuple[Float64Array, Float64Array]:
        """Return (recency, importance) of these entries at `at_us`; -1 is allowed."""
        return recency(at_us, self.validated_us[entry], self.half_life_us[entry]), self.importance[entry]


def nothing_known(size: int, names: EntryNames) -> Recall:
    """Return the recall of golems without entries."""
    none = np.zeros(1, np.int64)
    return Recall(
        names, code=none, kind=none, sign=none, confidence=none, importance=np.zeros(1), half_life_us=np.ones(1),
        validated_us=none, pad=np.zeros((3, 1)), top=np.full((RECALL, CELLS, size), -1),
        likeness=np.zeros((RECALL, CELLS, size)), block=np.full((CELLS, size), -1), foresight=nothing_foreseen(size),
    )  # fmt: skip


def recall_of(state: GrimoireState, golem_ids: list[str], at_us: int, names: EntryNames, policy: Policy) -> Recall:
    """Build the recall tables of these golems at `at_us`."""
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
        return replace(nothing_known(size, names), foresight=foresight)
    golem = place[state["golem"][rows]]
    rows = rows[np.lexsort((state.structures.stable()[state["structure"][rows]], golem))]
    golem, structure = place[state["golem"][rows]], state["structure"][rows]
    likeness = _likeness(state, structure, policy)
    confidence = state.confidence_at(rows, at_us, policy.decay)
    worth = _importance(state, rows, confidence, policy)
    weights = policy.retrieval
    score = np.rint((weights.semantic * likeness + weights.importance * worth[:, None]) * 1e6).astype(np.int64)
    top = _best(golem, score, _believed(state, rows, confidence, policy), size)
    top_likeness = np.where(top >= 0, likeness[top, np.arange(CELLS)[:, None]], 0.0)
    half_life = recency_half_life(state.half_life(rows, policy.decay), policy.retrieval)
    count = np.maximum(state["own_count"][rows], 1)
    pad = np.stack([state[f"{n}_sum_milli"][rows] / count / 1000.0 for n in ("pleasure", "arousal", "dominance")])
    return Recall(
        names, code=names.codes(entry_ids(state, rows)), kind=state["kind"][rows], sign=state["sign"][rows],
        confidence=confidence, importance=worth, half_life_us=half_life, validated_us=state["validated_us"][rows],
        pad=pad, top=top, likeness=top_likeness, foresight=foresight,
        block=_blocks(state, rows, golem, confidence, likeness, size, policy),
    )  # fmt: skip


def _likeness(state: GrimoireState, structure: Int64Array, policy: Policy) -> Float64Array:
    """Return the likeness of each entry to each cell, [entries, cells] in [0, 1]; constant for baselines."""
    regime, anomaly, gas, _ = state.structures.bands()
    r, a, g = (x[structure][:, None].astype(np.int64) for x in (regime, anomaly, gas))
    rules, near = policy.retrieval, 1.0 - np.abs(a - CELL_ANOMALY) / 4.0
    covered = COVERS[g, CELL_GAS]
    likeness = rules.like_regime * (r == CELL_REGIME) + rules.like_anomaly * near + rules.like_gas * covered
    return np.where(r >= 0, likeness, rules.like_baseline)


def _importance(state: GrimoireState, rows: Int64Array, confidence: Int64Array, policy: Policy) -> Float64Array:
    """Return confidence x validation ratio (canon 15), boosted for bloodstains."""
    ratio = validation_ratio(state["validations"][rows], state["contradictions"][rows])
    return importance(confidence, ratio, state["is_bloodstain"][rows] == 1, policy.retrieval)


def _believed(state: GrimoireState, rows: Int64Array, confidence: Int64Array, policy: Policy) -> BoolArray:
    """Whether each entry's confidence reaches the minimum for recall.

    For entries received during life, the publisher's confidence counts, because they are admitted below it (canon 23).
    """
    came = state["provenance"][rows] >= PROVENANCES.index(CAME_OVER[0])
    published = np.where(came, state["confidence_origin_ppm"][rows], confidence)
    reaches_minimum: BoolArray = published >= ppm(policy.retrieval.confidence_min)
    return reaches_minimum


def _best(golem: Int64Array, score: Int64Array, eligible: BoolArray, size: int) -> Int64Array:
    """Select the RECALL best eligible entries by golem and cell [rank, cell, golem], ties by age; -1 fills."""
    counts = np.bincount(golem, minlength=size)
    starts = np.cumsum(counts) - counts
    count_max = int(counts.max())
    key = np.full((size, count_max, CELLS), -1, np.int64)
    position = np.arange(len(golem)) - starts[golem]
    key[golem[eligible], position[eligible]] = (score * 65_536 + (65_535 - position)[:, None])[eligible]
    keep = min(RECALL, count_max)
    chosen = (
        np.argpartition(-key, keep - 1, axis=1)[:, :keep]
        if count_max > keep
        else np.repeat(np.arange(count_max)[None, :, None], size, 0).repeat(CELLS, 2)
    )
    picked = np.take_along_axis(key, chosen, axis=1)
    order = np.argsort(-picked, axis=1, kind="stable")
    chosen, picked = np.take_along_axis(chosen, order, 1), np.take_along_axis(picked, order, 1)
    out = np.full((RECALL, CELLS, size), -1, np.int64)
    out[:keep] = np.where(picked >= 0, chosen + starts[:, None, None], -1).transpose(1, 2, 0)
    return out


def _blocks(
    state: GrimoireState, rows: Int64Array, golem: Int64Array, confidence: Int64Array, likeness: Float64Array,
    size: int, policy: Policy,
) -> Int64Array:  # fmt: skip
    """Select the surest warning against re-centring in exactly each cell, [cells, golems]; -1 for none."""
    moves = state.structures.bands()[3][state["structure"][rows]]
    bars = (state["kind"][rows] == WARNING) & moves & (confidence >= ppm(policy.playbook.block_confidence_min))
    entry, cell = np.nonzero(bars[:, None] & (likeness >= 1.0 - 1e-9))
    order = np.lexsort((-entry, confidence[entry]))
    out = np.full((CELLS, size), -1, np.int64)
    out[cell[order], golem[entry[order]]] = entry[order]
    return out
