"""Computes an upper bound of every entry's score in single precision, to select the entries to score exactly. Pure.

Reading all vectors from memory dominates the cost of a question. The bounds therefore read the first half of each
vector from a contiguous copy; by Cauchy-Schwarz the second half adds at most the product of the norms. The second half
and the affect are read only for entries whose bound is high enough. Bounds are never shown.
Source: MEM (four-factor retrieval), canon 15, 21-24.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bardo_pipeline.arrays import Float32Array, Int64Array
from bardo_pipeline.grimoire.confidence import DAY_US, FOREVER_US, PPM
from bardo_pipeline.mortality.affect import CONGRUENCE_UNFELT
from bardo_pipeline.policy import RetrievalPolicy
from bardo_pipeline.retrieval.scoring import Floats

_HOUR_US = 3_600_000_000
_SLACK = 5e-5
_GROUP = 128  # block size of the block maxima from which `_kth_bound` estimates the k-th greatest bound
_SEEDS = 64  # rows beyond k whose bounds are tightened first, to find the threshold


@dataclass(frozen=True)
class Measures:
    """Inputs of a score per entry. confidence, floor: ppm. anchor, last: UTC microseconds. half, recency_half:
    microseconds. worth: importance at full confidence. pad: mean mood, [3, entries]. regime: code."""

    confidence: Int64Array
    floor: Int64Array
    anchor: Int64Array
    half: Int64Array
    last: Int64Array
    recency_half: Floats
    worth: Floats
    pad: Floats
    regime: NDArray[np.integer]


@dataclass(frozen=True)
class _QueryTerms:
    """Terms of one question. likeness: dot products of the first halves, [texts]. tail: second half of the question.
    lasting: recency plus importance, [entries]. feeling: unit mood, None without mood. waking: weight of each entry's
    regime, None if all are 1."""

    likeness: Float32Array
    tail: Float32Array
    lasting: Float32Array
    feeling: list[float] | None
    waking: Float32Array | None


class Bounds:
    """Upper bounds of all entries' scores for any question. vectors: [texts, dimension]; text_of: row per entry."""

    def __init__(self, vectors: Float32Array, text_of: Int64Array, of: Measures, policy: RetrievalPolicy) -> None:
        single = np.float32
        self._rules, self._text, head = policy, text_of, vectors.shape[1] - vectors.shape[1] // 2
        self._heads, self._tails = np.ascontiguousarray(vectors[:, :head]), vectors[:, head:]
        self._rest = math.sqrt(float(np.einsum("ij,ij->i", self._tails, self._tails).max(initial=0.0)))
        self._one_text_per_entry = bool(np.array_equal(text_of, np.arange(len(vectors))))
        self._since = int(max(of.last.max(initial=0), of.anchor.max(initial=0)))
        self._last = ((of.last - self._since) / DAY_US).astype(single)
        self._anchor = ((of.anchor - self._since) / DAY_US).astype(single)
        self._recency = (-DAY_US / of.recency_half).astype(single)
        self._fading = np.where(of.half >= FOREVER_US, 0.0, -DAY_US / of.half).astype(single)
        worth = policy.importance * of.worth / PPM
        self._worth = (worth * of.confidence).astype(single)
        self._floor = (worth * np.minimum(of.floor, of.confidence)).astype(single)
        length = np.sqrt((of.pad**2).sum(axis=0))
        felt = length > 0.0
        unfelt = np.where(felt, 0.0, policy.affect * CONGRUENCE_UNFELT)
        feelings = [*(policy.affect * of.pad / np.where(felt, length, 1.0)), unfelt]
        self._feelings = np.ascontiguousarray(np.stack(feelings, axis=1), single)
        self._regime = of.regime.astype(np.intp)
        self._of_regime = np.bincount(self._regime)
        self._steepest = float(max(-self._recency.min(initial=0), -self._fading.min(initial=0)))
        self._lasting_max = policy.recency + float(self._worth.max(initial=0))
        self._held: tuple[int, Float32Array] = (-1, self._floor)

    def candidates(
        self, question: Float32Array, at_us: int, mood: Floats, awake: Floats, k: int
    ) -> tuple[Int64Array, Float32Array]:
        """Return the rows that can be among the first k, dormant rows excluded, with their bounds.

        k: at most the number of active entries.
        """
        # The cached values are those of the start of the hour; recency and importance have decayed by at most this.
        decay = self._lasting_max * (1.0 - 2.0 ** (-(at_us % _HOUR_US) / DAY_US * self._steepest))
        gap = self.slack(at_us) + decay
        terms = self._query_terms(question, at_us, mood, awake)
        bounds = self._loose_bounds(terms)
        seeds = np.flatnonzero(bounds >= _kth_bound(bounds, k + _SEEDS))
        bar = max(_kth_bound(self._tight_bounds(terms, seeds, self._affect(terms, seeds)), k) - gap, 0.0)
        rows = np.flatnonzero(bounds >= bar - self._rules.affect - _SLACK)
        affect = self._affect(terms, rows)
        is_candidate = bounds[rows] + affect >= bar
        rows = rows[is_candidate]
        tight = self._tight_bounds(terms, rows, affect[is_candidate])
        is_candidate = tight >= max(_kth_bound(tight, k) - gap, bar)
        return rows[is_candidate], tight[is_candidate]

    def slack(self, at_us: int) -> float:
        """Return a generous limit on the error of a score in single precision."""
        return _SLACK + 1e-6 * abs(at_us - self._since) / DAY_US * self._steepest

    def _query_terms(self, question: Float32Array, at_us: int, mood: Floats, awake: Floats) -> _QueryTerms:
        question, head = question * np.float32(self._rules.semantic), self._heads.shape[1]
        any_dormant = self._of_regime[awake[: len(self._of_regime)] < 1.0].any()
        length = math.sqrt(sum(part * part for part in mood.tolist()))
        return _QueryTerms(
            self._heads @ question[:head],
            question[head:],
            self._lasting(at_us),
            [part / length for part in mood.tolist()] if length else None,
            awake.astype(np.float32)[self._regime] if any_dormant else None,
        )

    def _loose_bounds(self, terms: _QueryTerms) -> Float32Array:
        """Return the bounds of all entries without affect, -1 for dormant entries."""
        rest = np.float32(math.sqrt(float((terms.tail * terms.tail).sum())) * self._rest * (1.0 + _SLACK))
        likeness = terms.likeness if self._one_text_per_entry else terms.likeness[self._text]
        return self._with_lasting(likeness + rest, terms.lasting, terms.waking)

    def _tight_bounds(self, terms: _QueryTerms, rows: Int64Array, affect: Float32Array) -> Float32Array:
        """Return the bounds of some rows with the second half of their vectors and affect."""
        text = rows if self._one_text_per_entry else self._text[rows]
        if len(rows) > len(terms.likeness) // 8:
            rest = (self._tails @ terms.tail)[text]
        else:  # for few rows einsum is faster than a BLAS product, because BLAS distributes it over threads
            rest = np.einsum("ij,j->i", self._tails[text], terms.tail)
        waking = None if terms.waking is None else terms.waking[rows]
        bounds = self._with_lasting(terms.likeness[text] + rest, terms.lasting[rows], waking)
        bounds += affect
        return bounds

    @staticmethod
    def _with_lasting(bounds: Float32Array, lasting: Float32Array, waking: Float32Array | None) -> Float32Array:
        """Raise negative likeness to 0, add recency and importance, weigh by regime. Changes `bounds` in place."""
        np.maximum(bounds, 0.0, out=bounds)
        bounds += lasting
        if waking is not None:
            bounds *= waking
            bounds[waking <= 0.0] = -1.0
        return bounds

    def _affect(self, terms: _QueryTerms, rows: Int64Array) -> Float32Array:
        """Return the contribution of affect to these rows."""
        if terms.feeling is None:
            affect = np.full(len(rows), self._rules.affect * CONGRUENCE_UNFELT, np.float32)
        else:
            pleasure, arousal, dominance, unfelt = self._feelings[rows].T
            affect = pleasure * terms.feeling[0] + arousal * terms.feeling[1] + dominance * terms.feeling[2]
            np.maximum(affect, 0.0, out=affect)
            affect += unfelt
        return affect if terms.waking is None else affect * terms.waking[rows]

    def _lasting(self, at_us: int) -> Float32Array:
        """Return the maximum of recency plus importance in the hour of `at_us`: their values at its start.

        Both only decay, so the cached values of one pass hold for an hour of event time.
        """
        hour = at_us - at_us % _HOUR_US
        if self._held[0] != hour:
            days, weight = np.float32((hour - self._since) / DAY_US), np.float32(self._rules.recency)
            lasting = _decay_factor(days, self._anchor, self._fading)
            lasting *= self._worth
            np.maximum(lasting, self._floor, out=lasting)
            fresh = _decay_factor(days, self._last, self._recency)
            fresh *= weight
            lasting += fresh
            self._held = hour, lasting
        return self._held[1]


def _decay_factor(days: np.float32, since: Float32Array, rate: Float32Array) -> Float32Array:
    """Return 2^(rate x age), 1 for future times. since: days. rate: halvings a day, negative."""
    factor: Float32Array = days - since
    np.maximum(factor, 0.0, out=factor)
    factor *= rate
    np.exp2(factor, out=factor)
    return factor


def _kth_bound(bounds: Float32Array, k: int) -> float:
    """Return a value at or slightly below the k-th greatest bound; 0 for fewer than k bounds."""
    blocks = len(bounds) // _GROUP
    if blocks >= 4 * k:
        tops = bounds[: blocks * _GROUP].reshape(blocks, _GROUP).max(axis=1)
        return float(np.partition(tops, blocks - k)[blocks - k])
    return float(np.partition(bounds, len(bounds) - k)[len(bounds) - k]) if len(bounds) >= k else 0.0
