"""Scores texts for a question: by themselves, with their neighbours and with their session. Pure.

A text's own score is the sum of its scaled BM25 score and its scaled cosine. The score adds the own scores of the texts
before and behind it, the BM25 score of its session, and a share for a speaker whom the question names. The speaker does
not count through neighbours, because speakers alternate. A text that has no neighbours by nature, such as an entry,
counts as if both had half of its own score. All statistics come from the texts in scope, so texts of other
owners do not show in a score. Source: TOOLS (memory_search); ADR 0080.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bardo_pipeline.arrays import Float32Array, Float64Array, Int64Array
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.postings import Occurrences, occurrences
from bardo_pipeline.retrieval.text_index import LONE, NONE, View
from bardo_pipeline.retrieval.words import stems

_FAINT = 0.01  # weight of a cosine below the excess, which orders texts without any other score


def relevance(
    views: Sequence[View], number_of: dict[str, int], question: str, vector: Float32Array, policy: Policy
) -> Float64Array:
    """Return the relevance of all texts of the views, one behind the other, in [0, 1].

    Parameters
    ----------
    number_of : numbers of the known words
    vector : unit vector of the question
    """
    rules = policy.search
    words = _word_scores(views, number_of, question, policy)
    cosine = np.concatenate([np.einsum("ij,j->i", view.vectors[: view.size], vector) for view in views])
    own = rules.words * _scaled(words.own, words.ideal * rules.words_matched)
    own += (1.0 - rules.words) * _scaled(_excess(cosine.astype(np.float64)))
    faint = _FAINT * np.maximum(np.round(cosine.astype(np.float64), 5), 0.0)
    score = own + rules.neighbour * (_shifted(own, views, "before") + _shifted(own, views, "after"))
    is_lone = np.concatenate([view.before[: view.size] == LONE for view in views])
    score[is_lone] += rules.neighbour * own[is_lone]
    score += rules.session * _scaled(words.of_session) + rules.speaker * words.by_named
    return (score + faint) / (1.0 + 2.0 * rules.neighbour + rules.session + rules.speaker + _FAINT)


def _excess(cosine: Float64Array) -> Float64Array:
    """Return by how much each cosine exceeds the mean by more than a standard deviation, else 0.

    Any two texts have some likeness, which would add up over neighbours. The sum of a row does not depend on the other
    rows, unlike that of BLAS.
    """
    exact = np.round(cosine, 5)
    return np.round(np.maximum(exact - (exact.mean() + exact.std()), 0.0), 5)


def _scaled(scores: Float64Array, least: float = 0.0) -> Float64Array:
    """Return scores divided by the greatest of them, or by `least` if it is greater."""
    greatest = max(float(scores.max(initial=0.0)), least)
    return scores / greatest if greatest > 0.0 else scores


def _shifted(own: Float64Array, views: Sequence[View], side: str) -> Float64Array:
    """Return the own score of the neighbour of each text, 0 without one."""
    padded, start, parts = np.append(own, 0.0), 0, []
    for view in views:
        place = getattr(view, side)[: view.size].astype(np.int64)
        has_neighbour = (place >= 0) & (place < view.size)
        parts.append(np.where(has_neighbour, place + start, len(own)))
        start += view.size
    shifted: Float64Array = padded[np.concatenate(parts)]
    return shifted


class _WordScores(NamedTuple):
    """Scores by words: BM25 of each text and of its session, 1 for a text of a named speaker, and the score of a text
    in which each word of the question, known or not, occurs once."""

    own: Float64Array
    of_session: Float64Array
    by_named: Float64Array
    ideal: float


def _word_scores(views: Sequence[View], number_of: dict[str, int], question: str, policy: Policy) -> _WordScores:
    rules, k1, b = policy.search, policy.retrieval.words_saturation, policy.retrieval.words_length
    starts = np.cumsum([0, *(view.size for view in views)])
    length = np.concatenate([view.length[: view.size] for view in views]).astype(np.float64)
    session, session_count = _sessions(views)
    session_length = np.bincount(session, weights=length, minlength=session_count + 1)
    session_mean = float(session_length[:session_count].mean()) if session_count else 1.0
    norm = k1 * (1.0 - b + b * length / max(float(length.mean()), 1.0))
    session_norm = k1 * (1.0 - b + b * session_length / max(session_mean, 1.0))
    speakers = frozenset[int]().union(*(view.speakers for view in views))
    own, of_session, by_named, ideal = np.zeros(len(length)), np.zeros(session_count + 1), np.zeros(len(length)), 0.0
    for word in stems([question])[1]:
        matches = _found(views, starts, number_of.get(word, NONE))
        rarity = np.log1p((len(length) - len(matches.texts) + 0.5) / (len(matches.texts) + 0.5))
        if number_of.get(word) in speakers:
            by_named[matches.texts[matches.beside > 0.0]] = 1.0
            count = matches.in_text * rules.addressed
        else:
            ideal += rarity
            count = matches.in_text + matches.beside * rules.beside
        own[matches.texts] += rarity * count * (k1 + 1.0) / (count + norm[matches.texts])
        by_session = np.bincount(session[matches.texts], weights=count, minlength=session_count + 1)
        of_session += rarity * by_session * (k1 + 1.0) / (by_session + session_norm)
    of_session[session_count] = 0.0
    return _WordScores(own, of_session[session], by_named, float(ideal))


def _sessions(views: Sequence[View]) -> tuple[Int64Array, int]:
    """Return the number of each text's session over all views, and the count of sessions, the number of no session."""
    count, parts = sum(view.session_count for view in views), []
    start = 0
    for view in views:
        session = view.session[: view.size].astype(np.int64)
        parts.append(np.where(session == NONE, count, session + start))
        start += view.session_count
    return np.concatenate(parts), count


def _found(views: Sequence[View], starts: Int64Array, word: int) -> Occurrences:
    """Return the occurrences of a word in all views; a text is its place in all of them."""
    parts = [occurrences(view.runs, word) for view in views]
    if len(parts) == 1:
        return parts[0]
    texts = np.concatenate([part.texts + start for part, start in zip(parts, starts[:-1], strict=True)])
    return Occurrences(
        texts.astype(np.int32), np.concatenate([p.in_text for p in parts]), np.concatenate([p.beside for p in parts])
    )
