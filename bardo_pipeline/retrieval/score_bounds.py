"""Bounds: what each entry can score at most, in single precision and a few light passes. Pure.

Most of a question's cost is to fetch all vectors from memory. Only the first half of each is, copied side by side: what
the rest can add is at most the product of its length and the question's (Cauchy and Schwarz), and is fetched where that
could matter; and so is what was felt. Bounds choose who is scored exactly and are never shown.
Source: MEM (four-factor retrieval), canon 15, 21-24.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bardo_pipeline.grimoire.confidence import DAY_US, FOREVER_US, PPM
from bardo_pipeline.mortality.affect import CONGRUENCE_UNFELT
from bardo_pipeline.policy import RetrievalPolicy
from bardo_pipeline.retrieval.scoring import Floats, Whole

Single = NDArray[np.float32]

_HOUR_US = 3_600_000_000
_SLACK = 5e-5
_GROUP = 128  # bounds of which only the greatest is looked at to find one that k of them reach
_SEEDS = 64  # rows beyond the first few that are looked at closely to learn what must be reached


@dataclass(frozen=True)
class Measures:
    """What a score is made of, [entries]: confidence and floor in ppm, moments in UTC microseconds, half-lives in
    microseconds. worth: importance at full confidence. pad: mean mood, [3, entries]. regime: its code."""

    confidence: Whole
    floor: Whole
    anchor: Whole
    half: Whole
    last: Whole
    recency_half: Floats
    worth: Floats
    pad: Floats
    regime: NDArray[np.integer]


@dataclass(frozen=True)
class _Put:
    """A question as it is put to every entry: likeness of the first parts, [texts]; its own rest; what recency and
    importance add, [entries]; the direction of the mood, None for none; how awake each entry is, None where all are."""

    likeness: Single
    tail: Single
    lasting: Single
    feeling: list[float] | None
    waking: Single | None


class Bounds:
    """Bounds of all entries for any question. vectors: float32 [texts, dimension]; text_of: the row of each entry."""

    def __init__(self, vectors: Single, text_of: Whole, of: Measures, policy: RetrievalPolicy) -> None:
        single = np.float32
        self._rules, self._text, head = policy, text_of, vectors.shape[1] - vectors.shape[1] // 2
        self._heads, self._tails = np.ascontiguousarray(vectors[:, :head]), vectors[:, head:]
        self._rest = math.sqrt(float(np.einsum("ij,ij->i", self._tails, self._tails).max(initial=0.0)))
        self._plain = bool(np.array_equal(text_of, np.arange(len(vectors))))
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
        self._most_lasting = policy.recency + float(self._worth.max(initial=0))
        self._held: tuple[int, Single] = (-1, self._floor)

    def reaching(self, asked: Single, at_us: int, mood: Floats, awake: Floats, k: int) -> tuple[Whole, Single]:
        """Rows that can be among the first k, and what each can score at most; dormant rows are never among them.

        k: at most as many as are awake.
        """
        gap = self.slack(at_us) + self._lost_since(at_us - at_us % _HOUR_US, at_us)
        put = self._put(asked, at_us, mood, awake)
        most = self._most(put)
        seeds = np.flatnonzero(most >= _surpassed(most, k + _SEEDS))
        bar = max(_surpassed(self._closer(put, seeds, self._felt(put, seeds)), k) - gap, 0.0)
        rows = np.flatnonzero(most >= bar - self._rules.affect - _SLACK)
        felt = self._felt(put, rows)
        able = most[rows] + felt >= bar
        rows = rows[able]
        closer = self._closer(put, rows, felt[able])
        able = closer >= max(_surpassed(closer, k) - gap, bar)
        return rows[able], closer[able]

    def slack(self, at_us: int) -> float:
        """What single precision may err in a score, several times over."""
        return _SLACK + 1e-6 * abs(at_us - self._since) / DAY_US * self._steepest

    def _lost_since(self, hour_us: int, at_us: int) -> float:
        """The most that recency and importance can have lost since a moment: how far a bound may be above a score."""
        return self._most_lasting * (1.0 - 2.0 ** (-(at_us - hour_us) / DAY_US * self._steepest))

    def _put(self, asked: Single, at_us: int, mood: Floats, awake: Floats) -> _Put:
        question, head = asked * np.float32(self._rules.semantic), self._heads.shape[1]
        drowsy = self._of_regime[awake[: len(self._of_regime)] < 1.0].any()
        length = math.sqrt(sum(part * part for part in mood.tolist()))
        return _Put(
            self._heads @ question[:head],
            question[head:],
            self._lasting(at_us),
            [part / length for part in mood.tolist()] if length else None,
            awake.astype(np.float32)[self._regime] if drowsy else None,
        )

    def _most(self, put: _Put) -> Single:
        """Bounds of all entries without affect, -1 for who sleeps."""
        rest = np.float32(math.sqrt(float((put.tail * put.tail).sum())) * self._rest * (1.0 + _SLACK))
        most: Single = put.likeness + rest if self._plain else put.likeness[self._text] + rest
        np.maximum(most, 0.0, out=most)
        most += put.lasting
        if put.waking is not None:
            most *= put.waking
            most[put.waking <= 0.0] = -1.0
        return most

    def _closer(self, put: _Put, rows: Whole, felt: Single) -> Single:
        """Bounds of some rows with the rest of their vectors and what was felt, -1 for who sleeps."""
        text = rows if self._plain else self._text[rows]
        if len(rows) > len(put.likeness) // 8:
            rest = (self._tails @ put.tail)[text]
        else:  # so few that a product would cost BLAS more to share out than to do
            rest = np.einsum("ij,j->i", self._tails[text], put.tail)
        most: Single = put.likeness[text] + rest
        np.maximum(most, 0.0, out=most)
        most += put.lasting[rows]
        if put.waking is not None:
            most *= put.waking[rows]
            most[put.waking[rows] <= 0.0] = -1.0
        most += felt
        return most

    def _felt(self, put: _Put, rows: Whole) -> Single:
        """What affect adds to these rows."""
        if put.feeling is None:
            felt = np.full(len(rows), self._rules.affect * CONGRUENCE_UNFELT, np.float32)
        else:
            pleasure, arousal, dominance, unfelt = self._feelings[rows].T
            felt = pleasure * put.feeling[0] + arousal * put.feeling[1] + dominance * put.feeling[2]
            np.maximum(felt, 0.0, out=felt)
            felt += unfelt
        return felt if put.waking is None else felt * put.waking[rows]

    def _lasting(self, at_us: int) -> Single:
        """The most that recency and importance can add at a moment: what they did at the beginning of its hour.

        Both only fall with time, so one pass an hour of event time serves every question in it.
        """
        hour = at_us - at_us % _HOUR_US
        if self._held[0] != hour:
            days, weight = np.float32((hour - self._since) / DAY_US), np.float32(self._rules.recency)
            lasting = _left(days, self._anchor, self._fading)
            lasting *= self._worth
            np.maximum(lasting, self._floor, out=lasting)
            fresh = _left(days, self._last, self._recency)
            fresh *= weight
            lasting += fresh
            self._held = hour, lasting
        return self._held[1]


def _left(days: np.float32, since: Single, rate: Single) -> Single:
    """2^(rate x age), 1 for what is still to come. since, rate: days and halvings a day (negative)."""
    left: Single = days - since
    np.maximum(left, 0.0, out=left)
    left *= rate
    np.exp2(left, out=left)
    return left


def _surpassed(most: Single, k: int) -> float:
    """A value that at least k of these reach, close to the k-th greatest; 0 where there are fewer."""
    blocks = len(most) // _GROUP
    if blocks >= 4 * k:
        tops = most[: blocks * _GROUP].reshape(blocks, _GROUP).max(axis=1)
        return float(np.partition(tops, blocks - k)[blocks - k])
    return float(np.partition(most, len(most) - k)[len(most) - k]) if len(most) >= k else 0.0
