"""Retrieves the k best entries for a question and a situation, with the factors of each score. Pure.

`score_bounds` computes an upper bound for every entry; the entries that can be among the first k are scored exactly. A
score therefore depends on the entry, the question and the situation alone.
Source: MEM (four-factor retrieval), KAT, HB S3, canon 15, 21-24.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bardo_pipeline.arrays import Float32Array, Float64Array, Int64Array
from bardo_pipeline.errors import QueryError
from bardo_pipeline.events.record.arrow_columns import all_required, contiguous, required
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.confidence import PPM, confidence_at, ppm
from bardo_pipeline.grimoire.entries import BASELINE_METRICS, MOMENT
from bardo_pipeline.grimoire.entry_columns import bool_column, floor_of, half_life_of, int_column, micros, moments
from bardo_pipeline.mortality.affect import pad_congruence
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval import scoring
from bardo_pipeline.retrieval.credit_totals import Uses
from bardo_pipeline.retrieval.score_bounds import Bounds, Measures
from bardo_pipeline.retrieval.scoring import Floats
from bardo_pipeline.retrieval.situation import Decision, Situation, decide, is_contrarian, wakefulness

_MOODS = ("pleasure_sum_milli", "arousal_sum_milli", "dominance_sum_milli")
_SHOWN = ("golem_id", "entry_id", "kind", "category", "domain", "regime", "text")
_CHUNK = 4_096  # texts compared in double precision at a time
_KEPT = (*_SHOWN, "validation_ratio", "layer", "discount", "modifier", "is_bloodstain", "last_used_at")
_FEW = 256  # up to this many candidates are all scored exactly

HIT_SCHEMA = pa.schema(
    [
        required("rank", pa.int64()),
        *[pa.field(n, pa.string(), nullable=n == "regime") for n in _SHOWN],
        required("score_ppm", pa.int64()),
        *all_required(pa.float64(), *scoring.FACTORS),
        *all_required(pa.int64(), *(f"{n}_ppm" for n in scoring.FACTORS)),
        required("wakefulness", pa.float64()),
        required("confidence_ppm", pa.int64()),
        required("validation_ratio", pa.float64()),
        required("layer", pa.string()),
        *all_required(pa.float64(), "discount", "modifier"),
        required("is_bloodstain", pa.bool_()),
        required("last_used_at", MOMENT),
    ]
)
"""One row per retrieved entry, best first; ties by entry and golem. semantic, recency and affect are in [0, 1].
Each `*_ppm` column is wakefulness x weight x factor; score_ppm is their sum. importance = confidence x discount x
validation_ratio x 1.2 (bloodstains) x modifier. confidence_ppm: decayed to the time of the question. last_used_at: the
last access or validation, from which recency counts."""


@dataclass(frozen=True)
class AsOf:
    """State on which an answer is based: last closed cycle, its last tick, that tick's time, the log's version.

    head_tick: the newest recorded tick, whose cycle may still be open.
    """

    cycle: int
    tick: int
    at: datetime | None
    head_tick: int
    log_version: int


@dataclass(frozen=True)
class Answer:
    """Retrieved entries (HIT_SCHEMA), the decision to retrieve or skip, and counts of active and dormant entries."""

    decision: Decision
    contrarian: bool
    hits: pa.Table
    awake: int
    asleep: int
    as_of: AsOf | None = None


@dataclass(frozen=True)
class _Exact:
    """Exact scores of some rows: factors [4, rows], their contributions in ppm (`parts`, [4, rows]), and the inputs."""

    rows: Int64Array
    factors: Float64Array
    parts: Int64Array
    awake: Float64Array
    confidence: Int64Array

    @property
    def score(self) -> Int64Array:
        """Return the sum of the parts in ppm."""
        return self.parts.sum(axis=0)


class Grimoire:
    """Searchable active entries with the vectors of their texts.

    Parameters
    ----------
    entries : pa.Table, ENTRY_SCHEMA, active entries in any order
    vectors : [texts, dimension], unit rows
    text_of : row of `vectors` of each entry's text
    layer : codes of LAYERS per entry; from the provenance if None
    modifier : KAT's factor on importance per entry; 1 if None

    Raises
    ------
    QueryError if the lengths do not match or a text has no vector
    """

    def __init__(
        self,
        entries: pa.Table,
        vectors: Float32Array,
        text_of: Int64Array,
        policy: Policy,
        *,
        uses: Uses | None = None,
        layer: Int64Array | None = None,
        modifier: Floats | None = None,
        as_of: AsOf | None = None,
    ) -> None:
        count = entries.num_rows
        _check(entries, vectors, text_of)
        # The ids break ties between equal scores.
        order = pc.sort_indices(entries, sort_keys=[("entry_id", "ascending"), ("golem_id", "ascending")]).to_numpy()
        self.policy, self.as_of, self.vectors = policy, as_of, np.ascontiguousarray(vectors, np.float32)
        self.entries = entries.take(pa.array(order)).combine_chunks() if count else entries
        self._text = np.asarray(text_of, np.int64)[order]
        uses = Uses(*np.zeros((3, count), np.int64)) if uses is None else uses
        self._measure(Uses(*(np.asarray(a, np.int64)[order] for a in (uses.useful, uses.misled, uses.last_us))))
        codes = _layers(self.entries) if layer is None else np.asarray(layer, np.int64)[order]
        self.layer, self.discount = codes, scoring.layer_discounts(policy.retrieval)[codes]
        self.modifier = np.ones(count) if modifier is None else np.asarray(modifier, np.float64)[order]
        worth = scoring.importance(PPM * self.discount, self._ratio, self._bloodstain, policy.retrieval) * self.modifier
        measures = Measures(
            self._confidence, self._floor, self._anchor, self._half, self._last, self._recency_half, worth, self._pad,
            self._regime,
        )  # fmt: skip
        self._bounds = Bounds(self.vectors, self._text, measures, policy.retrieval)
        self._kept = self._shown()

    def _measure(self, uses: Uses) -> None:
        """Compute the inputs of all scores in double precision."""
        entries, decay = self.entries, self.policy.decay
        self._confidence, self._anchor = int_column(entries, "confidence_ppm"), micros(entries, "anchor_at")
        self._half, self._floor = half_life_of(entries, decay), floor_of(entries, decay)
        self._bloodstain = bool_column(entries, "is_bloodstain")
        self._last = np.maximum(micros(entries, "validated_at"), uses.last_us)
        self._recency_half = scoring.recency_half_life(self._half, self.policy.retrieval)
        confirmed = int_column(entries, "validations") + uses.useful
        refuted = int_column(entries, "contradictions") + uses.misled
        self._ratio = scoring.validation_ratio(confirmed, refuted)
        count = np.maximum(int_column(entries, "own_count"), 1)
        self._pad = np.stack([int_column(entries, n) / count / 1000.0 for n in _MOODS])
        codes = pc.index_in(contiguous(entries.column("regime")), value_set=pa.array(REGIMES))
        self._regime = pc.fill_null(codes, len(REGIMES)).to_numpy(zero_copy_only=False).astype(np.int8)
        self._of_regime = np.bincount(self._regime, minlength=len(REGIMES) + 1)
        self._levels = _levels(entries)

    def _shown(self) -> pa.RecordBatch:
        """Return the columns of HIT_SCHEMA that do not depend on the question, as one batch."""
        columns = [
            *(contiguous(self.entries.column(name)) for name in _SHOWN), pa.array(self._ratio),
            pa.array(scoring.LAYERS).take(pa.array(self.layer)), pa.array(self.discount), pa.array(self.modifier),
            pa.array(self._bloodstain), moments(self._last),
        ]  # fmt: skip
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema([HIT_SCHEMA.field(name) for name in _KEPT]))

    def __len__(self) -> int:
        return self.entries.num_rows

    def retrieve(self, question: Float32Array, situation: Situation, k: int, *, may_skip: bool = True) -> Answer:
        """Return the k entries with the highest scores in a situation, or the decision to skip retrieval.

        Parameters
        ----------
        question : Float32Array, vector of the question
        may_skip : bool, whether `decide` may skip the retrieval

        Raises
        ------
        QueryError for a vector of another dimension, of zeros or not finite, and for k < 1
        """
        unit_question = self._unit_question(question, k)
        rules = self.policy.retrieval
        awake = wakefulness(situation, rules)
        held = int(self._of_regime[awake > 0.0].sum())
        coverage = self._coverage(situation) if situation.surprise is not None else 0.0
        decision = decide(situation, held=held, coverage=coverage, policy=rules)
        contrarian = is_contrarian(situation, rules)
        if (decision.skipped and may_skip) or not held:
            return Answer(decision, contrarian, HIT_SCHEMA.empty_table(), held, len(self) - held, self.as_of)
        mood = np.array(situation.mood) * (-1.0 if contrarian else 1.0)
        rows = self._candidates(unit_question, situation.at_us, mood, awake, min(k, held))
        scored = self._exact(rows, unit_question, situation.at_us, mood, awake)
        best = np.lexsort((rows, -scored.score))[:k]
        return Answer(decision, contrarian, self._hits(scored, best), held, len(self) - held, self.as_of)

    def _unit_question(self, question: Float32Array, k: int) -> Float32Array:
        if k < 1:
            raise QueryError(f"k must be at least 1, not {k}")
        vector = np.asarray(question, np.float32)
        if vector.shape != (self.vectors.shape[1],):
            raise QueryError(f"a question has {self.vectors.shape[1]} numbers here, not {list(vector.shape)}")
        size = float(np.sqrt((vector.astype(np.float64) ** 2).sum()))
        if not np.isfinite(size) or size == 0.0:
            raise QueryError("the vector of a question must be finite and not zero")
        return (vector / np.float32(size)).astype(np.float32)

    def _candidates(self, question: Float32Array, at_us: int, mood: Floats, awake: Floats, k: int) -> Int64Array:
        """Return rows that can be among the first k. Many candidates are narrowed by the exact scores of the best k."""
        rows, bounds = self._bounds.candidates(question, at_us, mood, awake, k)
        if len(rows) <= max(_FEW, 2 * k):
            return rows
        seeds = rows[np.argpartition(bounds, len(bounds) - k)[len(bounds) - k :]]
        bar = self._exact(seeds, question, at_us, mood, awake).score.min() / PPM - self._bounds.slack(at_us)
        candidates: Int64Array = rows[bounds >= bar]
        return candidates

    def _exact(self, rows: Int64Array, question: Float32Array, at_us: int, mood: Floats, awake: Floats) -> _Exact:
        """Return the four factors of these rows in double precision, and their contributions in whole ppm."""
        rules = self.policy.retrieval
        confidence = confidence_at(
            self._confidence[rows], self._anchor[rows], at_us, self._half[rows], self._floor[rows]
        )
        counted = confidence * self.discount[rows]
        worth = scoring.importance(counted, self._ratio[rows], self._bloodstain[rows], rules) * self.modifier[rows]
        affect = pad_congruence(self._pad[:, rows], np.asarray(mood, np.float64)[:, None])
        fresh = scoring.recency(at_us, self._last[rows], self._recency_half[rows])
        factors = np.stack([self._likeness(rows, question), fresh, worth, affect])
        wake = awake[self._regime[rows]]
        return _Exact(rows, factors, scoring.contributions(factors, wake, rules), wake, confidence)

    def _likeness(self, rows: Int64Array, question: Float32Array) -> Float64Array:
        """Return the cosine with the question, negatives as 0; row-wise sums, so batching does not change a result."""
        texts, text_index = np.unique(self._text[rows], return_inverse=True)
        exact, cosine = question.astype(np.float64), np.empty(len(texts))
        for first in range(0, len(texts), _CHUNK):
            chunk = texts[first : first + _CHUNK]
            cosine[first : first + len(chunk)] = (self.vectors[chunk].astype(np.float64) * exact).sum(axis=1)
        return np.clip(cosine, 0.0, 1.0)[text_index]

    def _coverage(self, situation: Situation) -> float:
        """Return the share of baseline metrics of the protocol with sufficient confidence (KAT: semantic coverage)."""
        rows, protocol, metric = self._levels
        here = np.ones(len(rows), bool) if situation.protocol is None else protocol == situation.protocol
        rows, metric = rows[here], metric[here]
        confidence = confidence_at(
            self._confidence[rows], self._anchor[rows], situation.at_us, self._half[rows], self._floor[rows]
        )
        covered = metric[confidence >= ppm(self.policy.retrieval.skip_confidence_min)]
        return float(scoring.covered_share(len(set(covered.tolist()) & set(BASELINE_METRICS))))

    def _hits(self, scored: _Exact, best: Int64Array) -> pa.Table:
        columns: dict[str, Any] = dict(zip(_KEPT, self._kept.take(pa.array(scored.rows[best])).columns, strict=True))
        columns |= {"rank": np.arange(1, len(best) + 1), "score_ppm": scored.score[best]}
        columns |= {"wakefulness": scored.awake[best], "confidence_ppm": scored.confidence[best]}
        columns |= dict(zip(scoring.FACTORS, scored.factors[:, best], strict=True))
        columns |= {f"{name}_ppm": part[best] for name, part in zip(scoring.FACTORS, scored.parts, strict=True)}
        arrays = [pa.array(columns[field.name], field.type) for field in HIT_SCHEMA]
        return pa.Table.from_arrays(arrays, schema=HIT_SCHEMA)


def _check(entries: pa.Table, vectors: Float32Array, text_of: Int64Array) -> None:
    if vectors.ndim != 2 or len(text_of) != entries.num_rows:
        raise QueryError(f"{entries.num_rows} entries need a text each, and texts a vector each")
    if len(text_of) and (int(np.min(text_of)) < 0 or int(np.max(text_of)) >= len(vectors)):
        raise QueryError("an entry's text has no vector: embed it first")


def _layers(entries: pa.Table) -> Int64Array:
    """Return the layer code of each entry by its provenance."""
    names = list(scoring.LAYER_OF_PROVENANCE)
    codes = pc.index_in(contiguous(entries.column("provenance")), value_set=pa.array(names))
    if codes.null_count:
        unknown = entries["provenance"].filter(codes.is_null())[0].as_py()
        raise QueryError(f"no layer is known for the provenance {unknown!r}")
    layers: Int64Array = np.array(list(scoring.LAYER_OF_PROVENANCE.values()), np.int64)[codes.to_numpy()]
    return layers


def _levels(entries: pa.Table) -> tuple[Int64Array, NDArray[Any], NDArray[Any]]:
    """Return the rows of baselines, with the protocol and metric of each."""
    metric = contiguous(entries.column("metric"))
    rows: Int64Array = np.flatnonzero(metric.is_valid().to_numpy(zero_copy_only=False))
    taken = pa.array(rows)
    protocol = contiguous(entries.column("protocol")).take(taken).to_numpy(zero_copy_only=False)
    return rows, protocol, metric.take(taken).to_numpy(zero_copy_only=False)
