"""Scores texts for a question: by themselves, with their neighbours and with their session. Pure.

A text's own score is the sum of its scaled BM25 score and its scaled cosine. The score adds the own scores of the texts
before and behind it, and the BM25 score of its session. All statistics come from the texts in scope, so texts of other
owners do not show in a score. Source: TOOLS (memory_search); ADR 0080.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bardo_pipeline.arrays import Float32Array, Float64Array, Int64Array
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.postings import Occurrences, occurrences
from bardo_pipeline.retrieval.text_index import NONE, View
from bardo_pipeline.retrieval.words import stems

Floats = NDArray[np.floating[Any]]


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
    own_words, of_session = _word_scores(views, number_of, question, policy)
    cosine = np.concatenate([_cosines(view, vector) for view in views])
    own = rules.words * _scaled(own_words) + (1.0 - rules.words) * _scaled(cosine)
    score = own + rules.neighbour * (_shifted(own, views, "before") + _shifted(own, views, "after"))
    score += rules.session * _scaled(of_session)
    return score / (1.0 + 2.0 * rules.neighbour + rules.session)


def _cosines(view: View, vector: Float32Array) -> Float64Array:
    cosine = view.vectors[: view.size] @ vector
    return np.maximum(np.round(cosine, 5), 0.0).astype(np.float64)


def _scaled(scores: Float64Array) -> Float64Array:
    greatest = float(scores.max(initial=0.0))
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


def _word_scores(
    views: Sequence[View], number_of: dict[str, int], question: str, policy: Policy
) -> tuple[Float64Array, Float64Array]:
    """Return the BM25 score of each text, and that of its session."""
    rules, k1, b = policy.search, policy.retrieval.words_saturation, policy.retrieval.words_length
    starts = np.cumsum([0, *(view.size for view in views)])
    length = np.concatenate([view.length[: view.size] for view in views]).astype(np.float64)
    session, session_count = _sessions(views)
    session_length = np.bincount(session, weights=length, minlength=session_count + 1)
    norm = k1 * (1.0 - b + b * length / max(float(length.mean()), 1.0))
    session_norm = k1 * (1.0 - b + b * session_length / max(float(session_length[:session_count].mean()), 1.0)
                         if session_count else session_length)  # fmt: skip
    speakers = frozenset[int]().union(*(view.speakers for view in views))
    own, of_session = np.zeros(len(length)), np.zeros(session_count + 1)
    _, words, _ = stems([question])
    for word in (number_of[w] for w in words if w in number_of):
        found = _found(views, starts, word)
        if not len(found.texts):
            continue
        names_speaker = word in speakers
        holders = int(np.count_nonzero(found.beside)) if names_speaker else len(found.texts)
        rarity = np.log1p((len(length) - holders + 0.5) / (holders + 0.5))
        in_text = found.in_text * (rules.addressed if names_speaker else 1.0)
        count = in_text + found.beside * (rules.speaker if names_speaker else rules.beside)
        own[found.texts] += rarity * count * (k1 + 1.0) / (count + norm[found.texts])
        by_session = np.bincount(session[found.texts], weights=count, minlength=session_count + 1)
        of_session += rarity * by_session * (k1 + 1.0) / (by_session + session_norm)
    of_session[session_count] = 0.0
    return own, of_session[session]


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
