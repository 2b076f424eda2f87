"""Stores texts of runtimes and finds them again at once, without a cycle that closes.

A text is found by words as soon as it is recorded, and by meaning as soon as it has a vector: `store_texts` embeds, a
question embeds a limited number of texts that still wait.
Source: TOOLS (memory_store_episode, memory_search); canon 17; ADR 0080.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from bardo_pipeline.arrays import BoolArray, Float64Array
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.record_queries import require_born
from bardo_pipeline.derivation.memory.shared_texts import embed_stored, last_ticks, shared_texts
from bardo_pipeline.errors import QueryError, StoreError
from bardo_pipeline.events.experience.stored_text import SORTS, StoredText
from bardo_pipeline.events.life.events import LifeEvent, life_event
from bardo_pipeline.events.record.model import Part
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.embedder_interface import check_question
from bardo_pipeline.retrieval.hybrid_search import highest_of_each
from bardo_pipeline.retrieval.insight_votes import KnownInsight
from bardo_pipeline.retrieval.text_index import FACETS, NONE, View
from bardo_pipeline.retrieval.text_ranking import has_facet, held_twice, kept_texts, retained_of
from bardo_pipeline.retrieval.text_scoring import Scope, relevance
from bardo_pipeline.storage.log.owner_log import golems_in_view


@dataclass(frozen=True)
class Stored:
    """Result of storing a text.

    retained_until: when its retention falls below the policy's minimum. dimension: of its vector, 0 while it waits for
    one. upvote_of: id of the earlier text that it confirms. is_new: whether this call recorded it. count_before,
    count_after: texts of the golem without and with those of this call.
    """

    text_id: str
    importance: str
    retained_until: datetime
    dimension: int
    upvote_of: str | None
    is_new: bool
    count_before: int
    count_after: int


@dataclass(frozen=True)
class TextHit:
    """A text found.

    origin_golem_id: the ancestor who stored it, or the golem itself. relevance: before age and confidence, in [0, 1].
    retained: Ebbinghaus retention of an episode or reflection, confidence of an insight. score: relevance with the
    bounded penalty. stored: the fields of the event.
    """

    rank: int
    text_id: str
    golem_id: str
    origin_golem_id: str
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


class CallTexts(NamedTuple):
    """Texts that one call stores for a golem, and facts of the golem that are recorded in the same commit.

    at: moment of the first text; each further text is a microsecond later, which keeps their order.
    """

    golem_id: str
    texts: Sequence[StoredText]
    at: datetime
    beside: Sequence[Part] = ()


def store_texts(
    context: DerivationContext,
    golem_id: str,
    texts: Sequence[StoredText],
    *,
    at: datetime,
    now: datetime,
    embed: bool = True,
    waits: bool = True,
    beside: Sequence[Part] = (),
) -> list[Stored]:
    """Record texts of a golem in one commit, index them, and return the result of each. See `store_calls`."""
    return store_calls(context, [CallTexts(golem_id, texts, at, beside)], now=now, embed=embed, waits=waits)[0]


def store_calls(
    context: DerivationContext, calls: Sequence[CallTexts], *, now: datetime, embed: bool = True, waits: bool = True
) -> list[list[Stored]]:
    """Record the texts of several calls in one commit, index them, and return the results of each call.

    Threads of this process that store at the same time share a commit and a call of the model. A text with the same
    content and moment as a recorded one is recorded once.

    Parameters
    ----------
    now : time of recording
    embed : compute the vectors now; otherwise a later question or `embed_stored` does
    waits : wait while another thread embeds; otherwise the vectors are left to a later store or question

    Raises
    ------
    QueryError : no golem of this name was born, or it is dead
    StoreError : the log does not hold a text after its commit
    """
    for golem_id in (golem_ids := sorted({call.golem_id for call in calls})):
        require_born(context, golem_id)
        if (tick := context.log.death_of(golem_id)) is not None:
            raise QueryError(f"golem {golem_id} died at tick {tick}: its memory is closed: store the text for its heir")
    events = [_events(call) for call in calls]
    new, before = _new_ids(context, calls, events, now)
    beside = [life_event(call.golem_id, call.at, fact) for call in calls for fact in call.beside]
    context.log.record([*chain.from_iterable(events), *beside], now)
    if embed:
        embed_stored(context, now, golem_ids, waits=waits)
    with shared_texts(context, now) as held:
        row_of = {golem_id: held.index.rows(golem_id) for golem_id in golem_ids}
        views = {view.key: view for view in held.index.views(golem_ids)}
        for call, ids in zip(calls, new, strict=True):
            if missing := sorted(event_id for event_id in ids if event_id not in row_of[call.golem_id]):
                raise StoreError(
                    f"text {missing[0]} of golem {call.golem_id}: the log does not hold it: run `bardo verify`"
                )
        return [
            [
                _stored(views[call.golem_id], row_of[call.golem_id][event.event_id], event, text, context.policy,
                        event.event_id in ids, count, len(ids))
                for event, text in zip(of_call, call.texts, strict=True)
            ]
            for call, of_call, ids, count in zip(calls, events, new, before, strict=True)
        ]  # fmt: skip


def _events(call: CallTexts) -> list[LifeEvent]:
    return [
        life_event(call.golem_id, call.at + timedelta(microseconds=place), text)
        for place, text in enumerate(call.texts)
    ]


def _new_ids(
    context: DerivationContext, calls: Sequence[CallTexts], events: Sequence[Sequence[LifeEvent]], now: datetime
) -> tuple[list[set[str]], list[int]]:
    """Return the ids that each call adds, and the number of the golem's texts before it, by the calls in order."""
    new, before = list[set[str]](), list[int]()
    added: dict[str, set[str]] = defaultdict(set)
    with shared_texts(context, now) as held:
        for call, of_call in zip(calls, events, strict=True):
            known, earlier = held.index.rows(call.golem_id), added[call.golem_id]
            before.append(len(known) + len(earlier))
            ids = {event.event_id for event in of_call} - earlier
            new.append({event_id for event_id in ids if event_id not in known})
            earlier |= new[-1]
    return new, before


def _stored(
    view: View, row: int, event: LifeEvent, text: StoredText, policy: Policy, is_new: bool, before: int, added: int
) -> Stored:
    """Return the result of one text. before, added: texts of the golem before the call, and by it."""
    first = int(view.stands_for[row])
    return Stored(
        text_id=event.event_id,
        importance=text.importance,
        retained_until=event.observed_at + _lasts(text.importance, policy),
        dimension=0 if view.is_waiting[row] else view.vectors.shape[1],
        upvote_of=None if first == NONE else view.docs[first].doc_id,
        is_new=is_new,
        count_before=before,
        count_after=before + added,
    )


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
    with shared_texts(context, now) as held:
        keys = tuple(sorted(held.golem_ids() if golems is None else golems))
        held.embed(context, keys, now)
        held.vote(context, keys)
        scope, waiting, version = held.scope_of(keys, context.policy), held.index.waiting_count(keys), held.version
        vectors = held.vectors_of(context, [scope.unnamed(text, held.index.number_of)])
    views = scope.views
    if not views:
        return TextsFound((), dict.fromkeys(SORTS, 0), 0, version)
    code_of = held.index.code_of
    relevant = relevance(scope, held.index.number_of, text, scope.products(vectors)[0], context.policy)
    kept = np.concatenate([kept_texts(view, sorts, facets or {}, code_of) for view in views])
    kept &= ~np.concatenate([held_twice(view, {other.key for other in views}) for view in views])
    is_of = {sort: np.concatenate([has_facet(view, "sort", [sort], code_of) for view in views]) for sort in SORTS}
    retained = retained_of(views, is_of["insight"], last_ticks(context), context.policy)
    if confidence_min > 0.0:
        kept &= ~is_of["insight"] | (retained >= confidence_min)
    penalty = context.policy.search.decay_penalty if decay else 0.0
    score = np.round(relevant * (1.0 - penalty * (1.0 - retained)), 9)
    hits = _best(views, np.where(kept, score, -1.0), is_of["insight"], count)
    hit_rows = tuple(_hit(scope, row, rank, relevant, retained, score) for rank, row in enumerate(hits, 1))
    searched = {sort: int(np.count_nonzero(kept & is_of[sort])) for sort in SORTS}
    return TextsFound(hit_rows, searched, waiting, version)


def known_insights(context: DerivationContext, golem_id: str, *, now: datetime) -> dict[str, KnownInsight]:
    """Return the insights of a golem's own words by id, each a fold of the events about it."""
    with shared_texts(context, now) as held:
        return held.insights(context, golem_id)


class HeldText(NamedTuple):
    """A stored text of a golem, or one that it inherited.

    origin_golem_id: the ancestor who stored it, or the golem itself. stored: the fields of the event.
    """

    text_id: str
    at: datetime
    origin_golem_id: str
    stored: Mapping[str, Any]


def texts_of_golem(
    context: DerivationContext,
    golem_id: str,
    sorts: Collection[str] = SORTS,
    *,
    now: datetime,
    ids: Collection[str] | None = None,
) -> list[HeldText]:
    """Return the stored and inherited texts of a golem, of these sorts, in the order of their moments.

    Parameters
    ----------
    now : time of recording of new vectors
    ids : only texts with these ids
    """
    with shared_texts(context, now) as held:
        views = held.index.views([golem_id])
        row_of = held.index.rows(golem_id) if views and ids is not None else {}
    if not views:
        return []
    view = views[0]
    wanted = None if ids is None else sorted(row_of[i] for i in ids if i in row_of and row_of[i] < view.size)
    return [
        _held(view, row) for row in (range(view.size) if wanted is None else wanted) if view.docs[row].sort in sorts
    ]


def _held(view: View, row: int) -> HeldText:
    doc = view.docs[row]
    return HeldText(doc.doc_id, doc.at, doc.origin or view.key, doc.stored)


def searched_count(context: DerivationContext, golem_id: str, *, now: datetime) -> tuple[int, int]:
    """Return the numbers of episodes and of insights that a search of a golem compares, derived ones included."""
    with shared_texts(context, now) as held:
        derived = held.derived(context)
        rows = [derived.episodes[golem_id].num_rows if golem_id in derived.episodes else 0, 0]
        if golem_id in derived.entries:
            rows[1] = derived.entries[golem_id]["status"].to_pylist().count("active")
        code_of = held.index.code_of
        for view in held.index.views([golem_id]):
            of_insights = int(np.count_nonzero(has_facet(view, "sort", ["insight"], code_of)))
            rows = [rows[0] + view.size - of_insights, rows[1] + len(held.insights(context, golem_id))]
    return rows[0], rows[1]


def _best(views: Sequence[View], score: Float64Array, is_insight: BoolArray, count: int) -> list[int]:
    """Return the best row of each text, highest scores above 0 first; ties by newness.

    An episode and an insight of the same words are two texts.
    """
    text = 2 * np.concatenate([view.codes[: view.size, -1].astype(np.int64) for view in views]) + is_insight
    at_us = np.concatenate([view.at_us[: view.size] for view in views])
    rows, scores = highest_of_each(score, text, count)
    rows = rows[np.lexsort((rows, -at_us[rows], -scores))]
    return rows[np.sort(np.unique(text[rows], return_index=True)[1])][:count].tolist()


def _hit(
    scope: Scope, row: int, rank: int, relevant: Float64Array, retained: Float64Array, score: Float64Array
) -> TextHit:
    number = int(scope.starts.searchsorted(row, side="right")) - 1
    view, place = scope.views[number], row - int(scope.starts[number])
    doc = view.docs[place]
    return TextHit(
        rank=rank,
        text_id=doc.doc_id,
        golem_id=view.key,
        origin_golem_id=doc.origin or view.key,
        sort=doc.sort,
        text=doc.stored_text,
        observed_at=doc.at,
        relevance=float(relevant[row]),
        retained=float(retained[row]),
        score=float(score[row]),
        upvotes=int(view.upvotes[place]),
        stored=doc.stored,
    )
