"""Retrieve: the few entries that matter in a situation, each with its score factor by factor. Pure.

A pass in single precision over all entries bounds what each can score (`bounds`); those that can be among the first are
scored exactly, so that a score depends on nothing but the entry, the question and the situation.
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

from bardo_pipeline.errors import QueryError
from bardo_pipeline.events.record.arrow_columns import one
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.confidence import PPM, confidence_at, ppm
from bardo_pipeline.grimoire.entries import BASELINE_METRICS, MOMENT
from bardo_pipeline.grimoire.entry_columns import bool_column, floor_of, half_life_of, int_column, micros, moments
from bardo_pipeline.mortality.affect import pad_congruence
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.score_bounds import Bounds, Measures
from bardo_pipeline.retrieval.scoring import (
    FACTORS,
    LAYER_OF_PROVENANCE,
    LAYERS,
    Floats,
    Whole,
    importance,
    layer_discounts,
    recency,
    recency_half_life,
    validation_ratio,
    weights_of,
)
from bardo_pipeline.retrieval.situation import Decision, Situation, decide, is_contrarian, wakefulness

_MOODS = ("pleasure_sum_milli", "arousal_sum_milli", "dominance_sum_milli")
_SHOWN = ("golem_id", "entry_id", "kind", "category", "domain", "regime", "text")
_CHUNK = 4_096  # texts compared in double precision at a time
_KEPT = (*_SHOWN, "validation_ratio", "layer", "discount", "modifier", "is_bloodstain", "last_used_at")
_FEW = 256  # rows that are scored exactly without a closer look at who can be among the first

HIT_SCHEMA = pa.schema(
    [
        pa.field("rank", pa.int64(), nullable=False),
        *[pa.field(n, pa.string(), nullable=n == "regime") for n in _SHOWN],
        pa.field("score_ppm", pa.int64(), nullable=False),
        *[pa.field(n, pa.float64(), nullable=False) for n in FACTORS],
        *[pa.field(f"{n}_ppm", pa.int64(), nullable=False) for n in FACTORS],
        pa.field("wakefulness", pa.float64(), nullable=False),
        pa.field("confidence_ppm", pa.int64(), nullable=False),
        pa.field("validation_ratio", pa.float64(), nullable=False),
        pa.field("layer", pa.string(), nullable=False),
        pa.field("discount", pa.float64(), nullable=False),
        pa.field("modifier", pa.float64(), nullable=False),
        pa.field("is_bloodstain", pa.bool_(), nullable=False),
        pa.field("last_used_at", MOMENT, nullable=False),
    ]
)
"""One row per entry found, best first, equals by entry and golem. The four factors as they are (semantic, recency and
affect in [0, 1]), and as `*_ppm` what each adds to the score: wakefulness x weight x factor. Their sum is score_ppm.
Importance is confidence x discount x validation_ratio x 1.2 (bloodstains) x modifier, confidence_ppm being that of the
moment of asking. last_used_at: the last access or validation, from which recency counts."""


@dataclass(frozen=True)
class AsOf:
    """What an answer rests on: the golem's last closed cycle, its last tick and that tick's moment, the log's version.

    head_tick: the newest tick on record, which no closed cycle may have yet.
    """

    cycle: int
    tick: int
    at: datetime | None
    head_tick: int
    log_version: int


@dataclass(frozen=True)
class Answer:
    """What was found (HIT_SCHEMA), or why nothing was sought; how many entries were awake, how many slept."""

    decision: Decision
    contrarian: bool
    hits: pa.Table
    awake: int
    asleep: int
    as_of: AsOf | None = None


@dataclass(frozen=True)
class Uses:
    """What became of earlier retrievals of each entry, int64 [entries]: decisions that it helped, decisions that it
    misled, and the last access in UTC microseconds (0: never)."""

    useful: Whole
    misled: Whole
    last_us: Whole

    @classmethod
    def none(cls, count: int) -> Uses:
        """Nothing was ever retrieved."""
        return cls(*(np.zeros(count, np.int64) for _ in range(3)))


@dataclass(frozen=True)
class _Exact:
    """Scores of some entries, [rows]: factors [4, rows], what each adds in ppm [4, rows], and what they came of."""

    rows: Whole
    factors: NDArray[np.float64]
    parts: Whole
    awake: NDArray[np.float64]
    confidence: Whole

    @property
    def score(self) -> Whole:
        """Sum of the parts, in ppm."""
        return self.parts.sum(axis=0)


class Grimoire:
    """What may be retrieved: entries as columns, and the vectors of their texts.

    entries: ENTRY_SCHEMA, all of them active; the order does not matter. vectors: float32 [texts, dimension], unit
    rows. text_of: int64 [entries], the row of each entry's text. uses: see Uses. layer: codes of LAYERS [entries], for
    entries that came from elsewhere; by provenance if None. modifier: KAT's factors on importance [entries], 1 if None.
    Raises QueryError where these do not fit together.
    """

    def __init__(
        self,
        entries: pa.Table,
        vectors: NDArray[np.float32],
        text_of: Whole,
        policy: Policy,
        *,
        uses: Uses | None = None,
        layer: Whole | None = None,
        modifier: Floats | None = None,
        as_of: AsOf | None = None,
    ) -> None:
        count = entries.num_rows
        _check(entries, vectors, text_of)
        order = _order(entries)
        self.policy, self.as_of, self.vectors = policy, as_of, np.ascontiguousarray(vectors, np.float32)
        self.entries = entries.take(pa.array(order)).combine_chunks() if count else entries
        self._text = np.asarray(text_of, np.int64)[order]
        uses = Uses.none(count) if uses is None else uses
        self._measure(Uses(*(np.asarray(a, np.int64)[order] for a in (uses.useful, uses.misled, uses.last_us))))
        codes = _layers(self.entries) if layer is None else np.asarray(layer, np.int64)[order]
        self.layer, self.discount = codes, layer_discounts(policy.retrieval)[codes]
        self.modifier = np.ones(count) if modifier is None else np.asarray(modifier, np.float64)[order]
        sure = importance(PPM * self.discount, self._ratio, self._bloodstain, policy.retrieval) * self.modifier
        measures = Measures(
            self._confidence, self._floor, self._anchor, self._half, self._last, self._recency_half, sure, self._pad,
            self._regime,
        )  # fmt: skip
        self._bounds = Bounds(self.vectors, self._text, measures, policy.retrieval)
        self._kept = self._shown()

    def _measure(self, uses: Uses) -> None:
        """Columns of which every score is made, in double precision."""
        entries, decay = self.entries, self.policy.decay
        self._confidence, self._anchor = int_column(entries, "confidence_ppm"), micros(entries, "anchor_at")
        self._half, self._floor = half_life_of(entries, decay), floor_of(entries, decay)
        self._bloodstain = bool_column(entries, "is_bloodstain")
        self._last = np.maximum(micros(entries, "validated_at"), uses.last_us)
        self._recency_half = recency_half_life(self._half, self.policy.retrieval)
        held, failed = (
            int_column(entries, "validations") + uses.useful,
            int_column(entries, "contradictions") + uses.misled,
        )
        self._ratio = validation_ratio(held, failed)
        count = np.maximum(int_column(entries, "own_count"), 1)
        self._pad = np.stack([int_column(entries, n) / count / 1000.0 for n in _MOODS])
        codes = pc.index_in(one(entries.column("regime")), value_set=pa.array(REGIMES))
        self._regime = pc.fill_null(codes, len(REGIMES)).to_numpy(zero_copy_only=False).astype(np.int8)
        self._of_regime = np.bincount(self._regime, minlength=len(REGIMES) + 1)
        self._levels = _levels(entries)

    def _shown(self) -> pa.RecordBatch:
        """What a hit shows of its entry whatever is asked, to be taken in one go."""
        columns = [
            *(one(self.entries.column(name)) for name in _SHOWN), pa.array(self._ratio),
            pa.array(LAYERS).take(pa.array(self.layer)), pa.array(self.discount), pa.array(self.modifier),
            pa.array(self._bloodstain), moments(self._last),
        ]  # fmt: skip
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema([HIT_SCHEMA.field(name) for name in _KEPT]))

    def __len__(self) -> int:
        return self.entries.num_rows

    def retrieve(self, question: NDArray[np.float32], situation: Situation, k: int, *, may_skip: bool = True) -> Answer:
        """The k entries that matter most in a situation, or why none was sought.

        question: float32 [dimension], the vector of what is asked. may_skip: whether the golem may decide to do
        without (`decide`). Raises QueryError for a vector of another dimension or without a direction, and for k < 1.
        """
        asked = self._asked(question, k)
        rules = self.policy.retrieval
        awake = wakefulness(situation, rules)
        held = int(self._of_regime[awake > 0.0].sum())
        coverage = self._coverage(situation) if situation.surprise is not None else 0.0
        decision = decide(situation, held=held, coverage=coverage, policy=rules)
        contrarian = is_contrarian(situation, rules)
        if (decision.skipped and may_skip) or not held:
            return Answer(decision, contrarian, HIT_SCHEMA.empty_table(), held, len(self) - held, self.as_of)
        mood = np.array(situation.mood) * (-1.0 if contrarian else 1.0)
        rows = self._contenders(asked, situation.at_us, mood, awake, min(k, held))
        scored = self._exact(rows, asked, situation.at_us, mood, awake)
        best = np.lexsort((rows, -scored.score))[:k]
        return Answer(decision, contrarian, self._hits(scored, best), held, len(self) - held, self.as_of)

    def _asked(self, question: NDArray[np.float32], k: int) -> NDArray[np.float32]:
        if k < 1:
            raise QueryError(f"at least one entry must be wanted, not {k}")
        asked = np.asarray(question, np.float32)
        if asked.shape != (self.vectors.shape[1],):
            raise QueryError(f"a question has {self.vectors.shape[1]} numbers here, not {list(asked.shape)}")
        size = float(np.sqrt((asked.astype(np.float64) ** 2).sum()))
        if not np.isfinite(size) or size == 0.0:
            raise QueryError("a vector of zeros, or with NaN or an infinity in it, asks for nothing")
        return (asked / np.float32(size)).astype(np.float32)

    def _contenders(self, asked: NDArray[np.float32], at_us: int, mood: Floats, awake: Floats, k: int) -> Whole:
        """Rows that can be among the first k; where bounds tell too few apart, by the k that they put first."""
        rows, most = self._bounds.reaching(asked, at_us, mood, awake, k)
        if len(rows) <= max(_FEW, 2 * k):
            return rows
        seeds = rows[np.argpartition(most, len(most) - k)[len(most) - k :]]
        bar = self._exact(seeds, asked, at_us, mood, awake).score.min() / PPM - self._bounds.slack(at_us)
        able: Whole = rows[most >= bar]
        return able

    def _exact(self, rows: Whole, asked: NDArray[np.float32], at_us: int, mood: Floats, awake: Floats) -> _Exact:
        """The four factors of these rows and what each adds, in double precision and then in whole ppm."""
        rules = self.policy.retrieval
        confidence = confidence_at(
            self._confidence[rows], self._anchor[rows], at_us, self._half[rows], self._floor[rows]
        )
        counted = confidence * self.discount[rows]
        worth = importance(counted, self._ratio[rows], self._bloodstain[rows], rules) * self.modifier[rows]
        felt = pad_congruence(self._pad[:, rows], np.asarray(mood, np.float64)[:, None])
        factors = np.stack(
            [
                self._likeness(rows, asked),
                recency(at_us, self._last[rows], self._recency_half[rows]),
                worth,
                felt,
            ]
        )
        wake = awake[self._regime[rows]]
        parts = np.rint(factors * weights_of(rules)[:, None] * wake * PPM).astype(np.int64)
        return _Exact(rows, factors, parts, wake, confidence)

    def _likeness(self, rows: Whole, asked: NDArray[np.float32]) -> NDArray[np.float64]:
        """Cosine with the question, negatives counting 0: each distinct text once, a row at a time in its own sum."""
        texts, place = np.unique(self._text[rows], return_inverse=True)
        exact, out = asked.astype(np.float64), np.empty(len(texts))
        for first in range(0, len(texts), _CHUNK):
            some = texts[first : first + _CHUNK]
            out[first : first + len(some)] = (self.vectors[some].astype(np.float64) * exact).sum(axis=1)
        return np.clip(out, 0.0, 1.0)[place]

    def _coverage(self, situation: Situation) -> float:
        """Share of the levels of the protocol at hand that is known well enough (KAT: semantic coverage)."""
        rows, protocol, metric = self._levels
        here = np.ones(len(rows), bool) if situation.protocol is None else protocol == situation.protocol
        rows, metric = rows[here], metric[here]
        confidence = confidence_at(
            self._confidence[rows], self._anchor[rows], situation.at_us, self._half[rows], self._floor[rows]
        )
        known = metric[confidence >= ppm(self.policy.retrieval.skip_confidence_min)]
        return len(set(known.tolist()) & set(BASELINE_METRICS)) / len(BASELINE_METRICS)

    def _hits(self, scored: _Exact, best: Whole) -> pa.Table:
        rows, score = scored.rows[best], scored.score[best]
        factors, parts = scored.factors[:, best], scored.parts[:, best]
        columns = dict(zip(_KEPT, self._kept.take(pa.array(rows)).columns, strict=True))
        said = [
            ("rank", np.arange(1, len(rows) + 1)), ("score_ppm", score), ("wakefulness", scored.awake[best]),
            ("confidence_ppm", scored.confidence[best]), *zip(FACTORS, factors, strict=True),
            *((f"{name}_ppm", part) for name, part in zip(FACTORS, parts, strict=True)),
        ]  # fmt: skip
        columns |= {name: pa.array(values) for name, values in said}
        return pa.Table.from_arrays([columns[name] for name in HIT_SCHEMA.names], schema=HIT_SCHEMA)


def _check(entries: pa.Table, vectors: NDArray[np.float32], text_of: Whole) -> None:
    if vectors.ndim != 2 or len(text_of) != entries.num_rows:
        raise QueryError(f"{entries.num_rows} entries need a text each, and texts a vector each")
    if len(text_of) and (int(np.min(text_of)) < 0 or int(np.max(text_of)) >= len(vectors)):
        raise QueryError("an entry's text has no vector: embed it first")


def _order(entries: pa.Table) -> Whole:
    """By entry, then golem: what decides between equals."""
    if not entries.num_rows:
        return np.zeros(0, np.int64)
    keys = [("entry_id", "ascending"), ("golem_id", "ascending")]
    order: Whole = pc.sort_indices(entries.select(["entry_id", "golem_id"]), sort_keys=keys).to_numpy()
    return order.astype(np.int64)


def _layers(entries: pa.Table) -> Whole:
    """Layer of each entry by its provenance."""
    names = list(LAYER_OF_PROVENANCE)
    codes = pc.index_in(one(entries.column("provenance")), value_set=pa.array(names))
    if codes.null_count:
        strange = entries["provenance"].filter(codes.is_null())[0].as_py()
        raise QueryError(f"no layer is known for the provenance {strange!r}")
    layers: Whole = np.array(list(LAYER_OF_PROVENANCE.values()), np.int64)[codes.to_numpy()]
    return layers


def _levels(entries: pa.Table) -> tuple[Whole, NDArray[Any], NDArray[Any]]:
    """Rows of baselines, with the protocol and metric of each."""
    metric = one(entries.column("metric"))
    rows: Whole = np.flatnonzero(metric.is_valid().to_numpy(zero_copy_only=False))
    taken = pa.array(rows)
    protocol = one(entries.column("protocol")).take(taken).to_numpy(zero_copy_only=False)
    return rows, protocol, metric.take(taken).to_numpy(zero_copy_only=False)
