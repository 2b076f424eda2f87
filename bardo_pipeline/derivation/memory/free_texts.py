"""Stores texts of runtimes and finds them again at once, without a cycle that closes.

The log holds the texts; an index in memory, one for each home and embedder of the process, is extended by the texts
that were recorded since the last question. A text is found by words as soon as it is recorded, and by meaning as soon
as it has a vector: `store_texts` embeds, a question embeds a limited number of texts that still wait, and
`embed_waiting` embeds all. Source: TOOLS (memory_store_episode, memory_search); canon 17; ADR 0080.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from threading import RLock
from typing import Any, NamedTuple

import numpy as np

from bardo_pipeline.arrays import BoolArray, Float32Array, Float64Array
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.record_queries import require_born
from bardo_pipeline.derivation.memory.embed_texts import embed_new
from bardo_pipeline.errors import EmbeddingPaused, QueryError
from bardo_pipeline.events.experience.stored_text import SORTS, StoredText
from bardo_pipeline.events.life.events import life_event
from bardo_pipeline.events.record.model import Part
from bardo_pipeline.grimoire.confidence import DAY_US, retention
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.embedder_interface import check_question
from bardo_pipeline.retrieval.text_docs import doc_of, micros_of
from bardo_pipeline.retrieval.text_index import FACETS, NONE, TextIndex, View
from bardo_pipeline.retrieval.text_scoring import relevance
from bardo_pipeline.storage.log.owner_log import golems_in_view

_INDEXES_MAX = 8
_QUESTIONS_MAX = 4_096
_LOOK_UP_FROM = 64  # from this number of texts on, their vectors are looked for in the log before they are embedded


@dataclass(frozen=True)
class Stored:
    """Result of storing a text.

    retained_until: when its retention falls below the policy's minimum. dimension: of its vector, 0 while it waits for
    one. upvote_of: id of the earlier text that it confirms. count_before, count_after: texts of the golem.
    """

    text_id: str
    importance: str
    retained_until: datetime
    dimension: int
    upvote_of: str | None
    count_before: int
    count_after: int


@dataclass(frozen=True)
class TextHit:
    """A text found.

    relevance: before age and confidence, in [0, 1]. retained: Ebbinghaus retention of an episode or reflection,
    confidence of an insight. score: relevance with the bounded penalty. stored: the fields of the event.
    """

    rank: int
    text_id: str
    golem_id: str
    sort: str
    text: str
    observed_at: datetime
    relevance: float
    retained: float
    score: float
    upvotes: int
    stored: Mapping[str, Any]


@dataclass(frozen=True)
class TextsFound:
    """Result of a search. searched: texts by sort that passed the filters. waiting: texts in scope without a vector."""

    hits: tuple[TextHit, ...]
    searched: Mapping[str, int]
    waiting: int
    life_version: int


@dataclass
class _Texts:
    """The index of a home and an embedder in this process."""

    index: TextIndex
    version: int = -1
    checked_at: datetime | None = None
    mutex: RLock = field(default_factory=RLock)
    questions: OrderedDict[str, Float32Array] = field(default_factory=OrderedDict)


_indexes: OrderedDict[tuple[str, str, str], _Texts] = OrderedDict()
_indexes_mutex = RLock()


def store_texts(
    context: DerivationContext,
    golem_id: str,
    texts: Sequence[StoredText],
    *,
    at: datetime,
    now: datetime,
    embed: bool = True,
    beside: Sequence[Part] = (),
) -> list[Stored]:
    """Record texts of a golem in one commit, index them, and return the result of each.

    A text with the same content and moment as a recorded one is recorded once.

    Parameters
    ----------
    at : moment of the first text; each further text of the call is a microsecond later, which keeps their order
    now : time of recording
    embed : compute the vectors now; otherwise a later question or `embed_waiting` does
    beside : facts of the golem that are recorded in the same commit

    Raises
    ------
    QueryError : no golem of this name was born
    """
    require_born(context, golem_id)
    events = [life_event(golem_id, at + timedelta(microseconds=place), text) for place, text in enumerate(texts)]
    held = _texts_of(context)
    with held.mutex:
        _refresh(context, held)
        before = _count(held, golem_id)
        context.log.record([*events, *(life_event(golem_id, at, fact) for fact in beside)], now)
        _refresh(context, held)
        if embed:
            _embed(context, held, [golem_id], now, None)
        (view,) = held.index.views([golem_id])
        row_of = held.index.rows(golem_id)
        results = []
        for event, text in zip(events, texts, strict=True):
            row = row_of[event.event_id]
            first, has_vector = int(view.stands_for[row]), bool(view.vectors[row].any())
            results.append(
                Stored(
                    event.event_id,
                    text.importance,
                    event.observed_at + _lasts(text.importance, context.policy),
                    view.vectors.shape[1] if has_vector else 0,
                    None if first == NONE else view.docs[first].doc_id,
                    before,
                    view.size,
                )
            )
        return results


def _lasts(importance: str, policy: Policy) -> timedelta:
    """Return the time after which retention falls below the minimum of the policy."""
    strength = getattr(policy.decay, f"{importance}_days")
    return timedelta(days=float(-np.log(policy.decay.episode_retention_min) * strength))


def search_texts(
    context: DerivationContext,
    question: str,
    *,
    now: datetime,
    golem_ids: Collection[str] | None = None,
    sorts: Collection[str] = SORTS,
    facets: Mapping[str, str] | None = None,
    confidence_min: float = 0.0,
    limit: int | None = None,
    decay: bool = True,
) -> TextsFound:
    """Return the texts that match a question best.

    Age counts from the last tick or text of each golem, whichever is later.

    Parameters
    ----------
    now : time of recording of new vectors
    golem_ids : search only texts of these golems; by default of all that the context shows
    facets : values that the texts must have, by names of FACETS
    confidence_min : lowest confidence of an insight
    decay : whether age and confidence lower the score

    Raises
    ------
    QueryError : an empty or too long question, an unknown golem, sort or facet, a limit out of range
    """
    rules = context.policy.retrieval
    text, count = check_question(question, rules.question_bytes_max), rules.search_results if limit is None else limit
    if not 1 <= count <= rules.search_results_max:
        raise QueryError(f"a search gives 1 to {rules.search_results_max} results, not {count}")
    if unknown := sorted({*(facets or {})} - {*FACETS}) or sorted({*sorts} - {*SORTS}):
        raise QueryError(f"a text has no {unknown[0]!r}: there are {', '.join((*FACETS, *SORTS))}")
    for golem_id in golem_ids or ():
        require_born(context, golem_id)
    golems = golems_in_view(context.log, golem_ids)
    held = _texts_of(context)
    with held.mutex:
        _refresh(context, held)
        keys = held.index.keys() if golems is None else golems
        _embed(context, held, keys, now, context.policy.search.embedded_at_once)
        views, waiting, version = held.index.views(keys), len(held.index.waiting(keys)), held.version
        vector = _vector_of(context, held, text)
    if not views:
        return TextsFound((), dict.fromkeys(SORTS, 0), 0, version)
    code_of = held.index.code_of
    relevant = relevance(views, held.index.number_of, text, vector, context.policy)
    kept = np.concatenate([_kept(view, sorts, facets or {}, code_of) for view in views])
    is_of = {sort: np.concatenate([_has(view, "sort", [sort], code_of) for view in views]) for sort in SORTS}
    retained = _retained(views, is_of["insight"], _last_ticks(context) if decay else {}, context.policy)
    if confidence_min > 0.0:
        kept &= ~is_of["insight"] | (retained >= confidence_min)
    penalty = context.policy.search.decay_penalty if decay else 0.0
    score = np.round(relevant * (1.0 - penalty * (1.0 - retained)), 9)
    hits = _best(views, np.where(kept, score, -1.0), count)
    found = tuple(_hit(views, row, rank, relevant, retained, score) for rank, row in enumerate(hits, 1))
    searched = {sort: int(np.count_nonzero(kept & is_of[sort])) for sort in SORTS}
    return TextsFound(found, searched, waiting, version)


def embed_waiting(context: DerivationContext, *, now: datetime, limit: int | None = None) -> int:
    """Embed texts that wait for a vector, the newest first; return the number that still waits.

    Raises EmbeddingPaused if the model has drifted.
    """
    held = _texts_of(context)
    with held.mutex:
        _refresh(context, held)
        _embed(context, held, held.index.keys(), now, limit, quiet=False)
        return len(held.index.waiting(held.index.keys()))


def text_count(context: DerivationContext, golem_id: str) -> int:
    """Return the number of stored texts of a golem."""
    held = _texts_of(context)
    with held.mutex:
        _refresh(context, held)
        return _count(held, golem_id)


class HeldText(NamedTuple):
    """A stored text. upvote_of: id of the earlier text that it confirms. stored: the fields of the event."""

    text_id: str
    at: datetime
    upvote_of: str | None
    stored: Mapping[str, Any]


def texts_of_golem(context: DerivationContext, golem_id: str, sorts: Collection[str] = SORTS) -> list[HeldText]:
    """Return the stored texts of a golem, of these sorts, in the order of their moments."""
    held = _texts_of(context)
    with held.mutex:
        _refresh(context, held)
        views = held.index.views([golem_id])
    return [
        HeldText(
            doc.doc_id,
            datetime.fromtimestamp(0, UTC) + timedelta(microseconds=doc.at_us),
            None if first == NONE else view.docs[first].doc_id,
            doc.payload,
        )
        for view in views
        for doc, first in zip(view.docs[: view.size], view.stands_for[: view.size].tolist(), strict=True)
        if doc.sort in sorts
    ]


# the index of this process


def _texts_of(context: DerivationContext) -> _Texts:
    # A copy of a home has the same table id, so the folder tells them apart.
    key = (str(context.home.root), context.log.table_id, context.embedder.identity.key)
    with _indexes_mutex:
        held = _indexes.get(key)
        if held is None:
            dimension = context.embedder.identity.dimension
            held = _indexes[key] = _Texts(TextIndex(dimension, context.policy.search.similarity))
            while len(_indexes) > _INDEXES_MAX:
                _indexes.popitem(last=False)
        _indexes.move_to_end(key)
        return held


def _refresh(context: DerivationContext, held: _Texts) -> None:
    """Add the texts that were recorded since the last call, of all golems."""
    log = context.whole.log
    if log.life_version == held.version:
        return
    held.version, rows = log.texts(None if held.version < 0 else held.version)
    by_golem: dict[str, list[Any]] = {}
    for row in rows.to_pylist():
        by_golem.setdefault(row["golem_id"], []).append(doc_of(row, context.policy))
    for golem_id, docs in by_golem.items():
        held.index.add(golem_id, docs)


def _embed(
    context: DerivationContext,
    held: _Texts,
    keys: Collection[str],
    now: datetime,
    limit: int | None,
    *,
    quiet: bool = True,
) -> None:
    """Give vectors to waiting texts of these shards: from the log, and up to `limit` by the model."""
    waiting = held.index.waiting(keys)
    if len(waiting) >= _LOOK_UP_FROM or held.checked_at is None:
        known = context.log.vectors(context.embedder.identity.key, list(waiting)) if waiting else None
        if known is not None and known.num_rows:
            column = known["vector"].combine_chunks()
            matrix = column.flatten().to_numpy(zero_copy_only=False).astype(np.float32).reshape(known.num_rows, -1)
            held.index.hold(keys, known["text_hash"].to_pylist(), matrix)
            waiting = held.index.waiting(keys)
    held.checked_at = now
    first = 0 if limit is None else max(len(waiting) - limit, 0)
    newest = list(waiting.items())[first:]
    if not newest:
        return
    try:
        hashes, vectors = embed_new(context, dict(newest), now)
    except EmbeddingPaused:
        if quiet:  # the texts are found by words meanwhile
            return
        raise
    held.index.hold(keys, hashes, vectors)


def _vector_of(context: DerivationContext, held: _Texts, question: str) -> Float32Array:
    if question in held.questions:
        held.questions.move_to_end(question)
        return held.questions[question]
    (vector,) = context.embedder.embed([question])
    held.questions[question] = vector
    if len(held.questions) > _QUESTIONS_MAX:
        held.questions.popitem(last=False)
    return vector


def _count(held: _Texts, golem_id: str) -> int:
    return sum(view.size for view in held.index.views([golem_id]))


# ranking


def _last_ticks(context: DerivationContext) -> dict[str, int]:
    """Return the close of the last cycle of each golem in UTC microseconds."""
    rows = context.projections.growing("cycles").newest("closed_at", ["closed_at"])
    return {row["golem_id"]: micros_of(row["closed_at"]) for row in rows.to_pylist()}


def _has(view: View, name: str, values: Collection[str], code_of: Mapping[str | None, int]) -> BoolArray:
    """Return which texts have one of these values of a facet."""
    column = view.codes[: view.size, FACETS.index(name)]
    return np.isin(column, [code_of[value] for value in values if value in code_of])


def _kept(
    view: View, sorts: Collection[str], facets: Mapping[str, str], code_of: Mapping[str | None, int]
) -> BoolArray:
    """Return which texts stand for themselves and pass the filters."""
    kept: BoolArray = view.stands_for[: view.size] == NONE
    if {*sorts} != {*SORTS}:
        kept = kept & _has(view, "sort", sorts, code_of)
    for name, value in facets.items():
        kept = kept & _has(view, name, [value], code_of)
    return kept


def _retained(
    views: Sequence[View], is_insight: BoolArray, last_ticks: Mapping[str, int], policy: Policy
) -> Float64Array:
    """Return the retention of each text, and the confidence of insights (canon 1: 0.6, upvotes add 0.1).

    Age counts from the last tick of the golem, in UTC microseconds, or from its last text.
    """
    at_us = np.concatenate([view.at_us[: view.size] for view in views])
    newest = [max(last_ticks.get(view.key, 0), int(view.at_us[view.size - 1])) for view in views]
    age = (np.repeat(newest, [view.size for view in views]) - at_us).clip(0) / DAY_US
    strength = np.concatenate([view.strength[: view.size] for view in views]).astype(np.float64)
    upvotes = np.concatenate([view.upvotes[: view.size] for view in views])
    confidence = np.minimum(policy.curator.confidence_insight + policy.curator.upvote * upvotes, 1.0)
    return np.where(is_insight, confidence, retention(age, strength))


def _best(views: Sequence[View], score: Float64Array, count: int) -> list[int]:
    """Return the rows of the highest scores above 0, best first; ties by newness."""
    count = min(count, len(score))
    bar = np.partition(score, len(score) - count)[len(score) - count]
    rows = np.flatnonzero((score >= bar) & (score > 0.0))
    at_us = np.concatenate([view.at_us[: view.size] for view in views])[rows]
    return rows[np.lexsort((rows, -at_us, -score[rows]))][:count].tolist()


def _hit(
    views: Sequence[View], row: int, rank: int, relevant: Float64Array, retained: Float64Array, score: Float64Array
) -> TextHit:
    place = row
    for view in views:
        if place < view.size:
            break
        place -= view.size
    doc = view.docs[place]
    return TextHit(
        rank=rank,
        text_id=doc.doc_id,
        golem_id=view.key,
        sort=doc.sort,
        text=doc.payload["text"],
        observed_at=datetime.fromtimestamp(0, UTC) + timedelta(microseconds=doc.at_us),
        relevance=float(relevant[row]),
        retained=float(retained[row]),
        score=float(score[row]),
        upvotes=int(view.upvotes[place]),
        stored=doc.payload,
    )
