"""Scores texts for a question: by themselves, with their neighbours and with their session. Pure.

A text's own score is the sum of its scaled BM25 score and its scaled cosine. The score adds the own scores of the texts
before and behind it, the BM25 score of its session, and a share for a speaker whom the question names. The speaker does
not count through neighbours, because speakers alternate, and not in vectors, where a name hides what is told. A short
text has less weight, because it mostly reacts to another. A text that has no neighbours by nature, such as an entry,
counts as if both had half of its own score. All statistics come from the texts in scope, so texts of other
owners do not show in a score. A text that an edit replaced counts nowhere.
Source: TOOLS (memory_search); ADR 0080, 0095.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Self

import numpy as np

from bardo_pipeline.arrays import Float32Array, Float64Array, Int64Array
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.exact_vectors import SHARED_FROM, STEPS, cosine_steps, products
from bardo_pipeline.retrieval.postings import Int32Array, Occurrences, occurrences
from bardo_pipeline.retrieval.text_index import FOREVER, LONE, NONE, View
from bardo_pipeline.retrieval.words import stems

_FAINT = 0.01  # weight of a cosine below the mean, which orders texts without any other score
_NO_TEXTS = np.zeros(0)
_KEPT_SCORES = 24  # scores of words that a scope keeps for each of its texts, at most 12 bytes each
_FREQUENT = 4  # a word in more than one of four texts is added to all of them, which is faster than by place


class Scope(NamedTuple):
    """The texts that a question compares, one view behind the other, with all values that depend on no question.

    starts: first text of each view, and the count of all. norm, session_norm: terms of BM25 for each text and session.
    session: number of each text's session, session_count without one. before, after: neighbour of each text, the count
    of all texts without one. lone: texts that have no neighbours by nature. withdrawn: texts that an edit replaced.
    weight: of each text, by its length. word_scores: cache of WordScore by number of the word, the most recently used
    last.
    """

    views: tuple[View, ...]
    starts: Int64Array
    norm: Float64Array
    session: Int64Array
    session_count: int
    session_norm: Float64Array
    speakers: frozenset[int]
    before: Int64Array
    after: Int64Array
    lone: Int64Array
    withdrawn: Int64Array
    weight: Float64Array
    word_scores: dict[int, WordScore]

    @property
    def size(self) -> int:
        """Number of texts."""
        return int(self.starts[-1])

    @classmethod
    def of(cls, views: Sequence[View], policy: Policy) -> Self:
        """Make the scope of these views; without a view it has no text."""
        rules, k1, b = policy.search, policy.retrieval.words_saturation, policy.retrieval.words_length
        length = np.concatenate([_NO_TEXTS, *(view.length[: view.size] for view in views)])
        until_us = np.concatenate([np.zeros(0, np.int64), *(view.until_us[: view.size] for view in views)])
        withdrawn = np.flatnonzero(until_us != FOREVER)
        session, session_count = _sessions(views)
        length[withdrawn], session[withdrawn] = 0.0, session_count
        session_length = np.bincount(session, weights=length, minlength=session_count + 1).astype(np.float64)
        sessions = np.flatnonzero(np.bincount(session, minlength=session_count + 1)[:session_count])
        session_mean = float(session_length[sessions].mean()) if len(sessions) else 1.0
        before, after = (_neighbours(views, len(length), side) for side in ("before", "after"))
        for row in withdrawn.tolist():  # the texts on both sides become neighbours
            first, second = before[row], after[row]
            after[first : first + 1], before[second : second + 1] = second, first
        mean = float(length.sum()) / max(len(length) - len(withdrawn), 1)
        return cls(
            views=tuple(views),
            starts=np.cumsum([0, *(view.size for view in views)]),
            norm=k1 * (1.0 - b + b * length / max(mean, 1.0)),
            session=session,
            session_count=session_count,
            session_norm=k1 * (1.0 - b + b * session_length / max(session_mean, 1.0)),
            speakers=frozenset[int]().union(*(view.speakers for view in views)),
            before=before,
            after=after,
            lone=np.flatnonzero(np.concatenate([_NO_TEXTS, *(view.before[: view.size] == LONE for view in views)])),
            withdrawn=withdrawn,
            weight=np.maximum((length + 1.0) / (length + 1.0 + rules.brief), rules.brief_least),
            word_scores={},
        )

    def unnamed(self, question: str, number_of: dict[str, int]) -> str:
        """Return a question to embed: without the speakers that it names, unless it has no other word."""
        words = stems([question])[1]
        named = {word for word in words if number_of.get(word) in self.speakers}
        parts = question.split() if 0 < len(named) < len(words) else []
        return " ".join(part for part in parts if named.isdisjoint(stems([part])[1])) or question

    def products(self, questions: Float32Array) -> Float32Array:
        """Return the product of each question with each text [questions, texts]; see `exact_vectors`."""
        parts = [products(view.vectors[: view.size], questions) for view in self.views]
        return parts[0] if len(parts) == 1 else np.concatenate([np.zeros((len(questions), 0), np.float32), *parts], 1)


def relevance(
    scope: Scope, number_of: dict[str, int], question: str, product: Float32Array, policy: Policy
) -> Float64Array:
    """Return the relevance of all texts of a scope in [0, 1].

    Parameters
    ----------
    number_of : numbers of the known words
    product : of the vector of the question, as `Scope.unnamed` returns it, with each text
    """
    return _combined(scope, _word_scores(scope, number_of, question, policy), product, policy)


def relevances(
    scope: Scope, number_of: dict[str, int], questions: Sequence[str], product: Float32Array, policy: Policy
) -> list[Float64Array]:
    """Return the `relevance` of each question; two threads share the questions if the scope is large.

    Parameters
    ----------
    product : of each question [questions, texts]
    """
    words = [_word_scores(scope, number_of, question, policy) for question in questions]
    if scope.size < SHARED_FROM:
        return [_combined(scope, of_words, row, policy) for of_words, row in zip(words, product, strict=True)]
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(lambda of_words, row: _combined(scope, of_words, row, policy), words, product))


def _combined(scope: Scope, words: _WordScores, product: Float32Array, policy: Policy) -> Float64Array:
    """Return the relevance of all texts for a question. words: its scores, which are overwritten."""
    rules = policy.search
    total = 1.0 + rules.before + rules.behind + rules.session + rules.speaker + _FAINT
    steps = cosine_steps(product, scope.views[0].vectors.shape[1])
    own = _scaled(words.own, words.ideal * rules.words_matched, rules.words)
    own[:-1] += _scaled(_excess(steps, scope.withdrawn), rules.likeness * STEPS, 1.0 - rules.words)
    score = own.take(scope.before)
    score *= rules.before
    beside = own.take(scope.after)
    beside *= rules.behind
    score += beside
    score += own[:-1]
    score[scope.lone] += 0.5 * (rules.before + rules.behind) * own[scope.lone]
    if scope.session_count:
        score += _scaled(words.of_session, 0.0, rules.session).take(scope.session, out=beside, mode="clip")
    if words.by_named:
        score[np.unique(np.concatenate(words.by_named))] += rules.speaker
    score *= scope.weight
    faint = np.maximum(steps, 0.0, out=steps)
    faint *= _FAINT / STEPS
    score += faint
    score /= total
    return score


def _excess(steps: Float64Array, withdrawn: Int64Array) -> Float64Array:
    """Return by how much each cosine exceeds the mean, else 0; a withdrawn text has no cosine.

    Any two texts have some likeness, which would add up over neighbours. Cosines are whole numbers of steps, so their
    sum is exact.
    """
    steps[withdrawn] = 0.0
    excess: Float64Array = steps - float(steps.sum()) / max(len(steps) - len(withdrawn), 1)
    excess[withdrawn] = 0.0
    return np.maximum(excess, 0.0, out=excess)


def _scaled(scores: Float64Array, least: float, share: float) -> Float64Array:
    """Scale scores so that the greatest of them, or `least` if it is greater, becomes `share`, and return them."""
    greatest = max(float(scores.max(initial=0.0)), least)
    return np.multiply(scores, share / greatest, out=scores) if greatest > 0.0 else scores


def _neighbours(views: Sequence[View], count: int, side: str) -> Int64Array:
    """Return the place of the neighbour of each text, `count` without one."""
    start, parts = 0, []
    for view in views:
        place = getattr(view, side)[: view.size].astype(np.int64)
        has_neighbour = (place >= 0) & (place < view.size)
        parts.append(np.where(has_neighbour, place + start, count))
        start += view.size
    return np.concatenate([np.zeros(0, np.int64), *parts])


class _WordScores(NamedTuple):
    """Scores by words. own: BM25 of each text, then 0 for a missing neighbour. of_session: BM25 of each session.

    by_named: texts of each named speaker. ideal: score of a text with each word of the question, known or not, once.
    """

    own: Float64Array
    of_session: Float64Array
    by_named: list[Int64Array]
    ideal: float


class WordScore(NamedTuple):
    """Additions of one word of a question to the scores in a scope.

    texts: the texts with the word, or all texts for a frequent word. own: its addition to each of them, [texts].
    of_session: its addition to each session, the last element for texts without one. named: the texts that state the
    word as their speaker. ideal: the score of a text in which the word occurs once, 0 for a name. size: number of
    elements.
    """

    texts: Int32Array | slice
    own: Float64Array
    of_session: Float64Array
    named: Int64Array
    ideal: float
    size: int


def _word_scores(scope: Scope, number_of: dict[str, int], question: str, policy: Policy) -> _WordScores:
    own, of_session = np.zeros(scope.size + 1), np.zeros(scope.session_count + 1)
    texts, by_named, ideal = own[:-1], list[Int64Array](), 0.0
    for word in stems([question])[1]:
        score = _word_score(scope, number_of.get(word, NONE), policy)
        texts[score.texts] += score.own
        of_session += score.of_session
        by_named += [score.named] if len(score.named) else []
        ideal += score.ideal
    of_session[scope.session_count] = 0.0
    return _WordScores(own, of_session, by_named, float(ideal))


def _word_score(scope: Scope, word: int, policy: Policy) -> WordScore:
    """Return what a word adds to the scores, kept for the next questions to the scope."""
    kept = scope.word_scores
    if (score := kept.pop(word, None)) is None:
        score = _new_word_score(scope, word, policy)
        size = score.size + sum(other.size for other in kept.values())
        while kept and size > _KEPT_SCORES * (scope.size + 1):
            size -= kept.pop(next(iter(kept))).size
    kept[word] = score
    return score


def _new_word_score(scope: Scope, word: int, policy: Policy) -> WordScore:
    """Return what a word adds to the scores."""
    rules, k1, matches = policy.search, policy.retrieval.words_saturation, _occurrences_of(scope, word)
    rarity = np.log1p((scope.size - len(scope.withdrawn) - len(matches.texts) + 0.5) / (len(matches.texts) + 0.5))
    named, ideal = np.zeros(0, np.int64), 0.0
    if word in scope.speakers:
        named = matches.texts[matches.beside > 0.0].astype(np.int64)
        count = matches.in_text * rules.addressed
    else:
        ideal = float(rarity)
        count = matches.in_text + matches.beside * rules.beside
    own = rarity * count * (k1 + 1.0) / (count + scope.norm[matches.texts])
    of_session = np.zeros(scope.session_count + 1)
    if scope.session_count:
        session = scope.session[matches.texts]
        by_session = np.bincount(session, weights=count, minlength=scope.session_count + 1)
        of_session = rarity * by_session * (k1 + 1.0) / (by_session + scope.session_norm)
    if len(own) * _FREQUENT <= scope.size:
        return WordScore(matches.texts, own, of_session, named, ideal, len(own) + len(of_session))
    everywhere = np.zeros(scope.size)
    everywhere[matches.texts] = own
    return WordScore(slice(None), everywhere, of_session, named, ideal, scope.size + len(of_session))


def _sessions(views: Sequence[View]) -> tuple[Int64Array, int]:
    """Return the number of each text's session over all views (their count without one), and the count of sessions."""
    count, parts = sum(view.session_count for view in views), []
    start = 0
    for view in views:
        session = view.session[: view.size].astype(np.int64)
        parts.append(np.where(session == NONE, count, session + start))
        start += view.session_count
    return np.concatenate([np.zeros(0, np.int64), *parts]), count


def _occurrences_of(scope: Scope, word: int) -> Occurrences:
    """Return the occurrences of a word in all views; a text is given by its place in the scope."""
    parts = [occurrences(view.runs, word) for view in scope.views]
    if len(parts) == 1 and not len(scope.withdrawn):
        return parts[0]
    texts = np.concatenate([part.texts + start for part, start in zip(parts, scope.starts[:-1], strict=True)])
    stays = ~np.isin(texts, scope.withdrawn) if len(scope.withdrawn) else slice(None)
    counts = (np.concatenate([getattr(part, name) for part in parts])[stays] for name in ("in_text", "beside"))
    return Occurrences(texts[stays].astype(np.int32), *counts)
