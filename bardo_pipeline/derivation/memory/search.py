"""Searches entries, episodes and stored texts of all golems by words and vectors.

All texts in scope are scored together, so that their scores compare. Source: TOOLS (memory_search), MEM-10; ADR 0080.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.record_queries import require_born
from bardo_pipeline.derivation.memory.ask import check_derived
from bardo_pipeline.derivation.memory.derived_texts import DerivedTexts, asked_of, entry_rows, episode_rows
from bardo_pipeline.derivation.memory.shared_texts import Compared, SharedTexts, last_ticks, one_state, shared_texts
from bardo_pipeline.errors import QueryError
from bardo_pipeline.retrieval.embedder_interface import check_question
from bardo_pipeline.retrieval.hybrid_search import SEARCH_SCHEMA, Filters, Found, Pool, Rows
from bardo_pipeline.retrieval.text_ranking import text_rows
from bardo_pipeline.retrieval.text_scoring import Scope, relevance
from bardo_pipeline.storage.log.owner_log import golems_in_view

STORES = ("entries", "episodes", "both")


def search(
    context: DerivationContext,
    question: str,
    *,
    now: datetime,
    store: str = "both",
    golem_id: str | None = None,
    filters: Filters | None = None,
    limit: int | None = None,
    decay: bool = True,
    without: Collection[str] = (),
) -> pa.Table:
    """Return the best matching texts (SEARCH_SCHEMA) as of each golem's last tick or text.

    Stored insights are among the entries, other stored texts among the episodes. Raises QueryError for an empty or too
    long question, a limit out of range, an unknown store or golem, a filter that no episode has with store "episodes",
    and an embedder without derived tables.

    Parameters
    ----------
    now : datetime, recording time of new vectors
    store : "entries", "episodes" or "both"
    golem_id : restrict the search to this golem
    filters : filters outside OF_EPISODES exclude the episodes of records, except the minimum confidence, which all
        episodes ignore
    decay : whether age and confidence lower the score
    without : ids of stored texts that are left out
    """
    rows = search_rows(
        context, question, now=now, store=store, golem_id=golem_id, filters=filters, limit=limit, decay=decay,
        without=without,
    )  # fmt: skip
    return pa.Table.from_pylist([row._asdict() for row in rows], schema=SEARCH_SCHEMA)


def search_rows(
    context: DerivationContext,
    question: str,
    *,
    now: datetime,
    store: str = "both",
    golem_id: str | None = None,
    filters: Filters | None = None,
    limit: int | None = None,
    decay: bool = True,
    without: Collection[str] = (),
) -> list[Found]:
    """Return the same as `search`, row by row."""
    asked = _Asked(context.owner, store, golem_id, filters or Filters(), decay, frozenset(without))
    rules = context.policy.retrieval
    text, count = check_question(question, rules.question_bytes_max), rules.search_results if limit is None else limit
    _check(context, store, golem_id, asked.filters, count)
    with shared_texts(context, now) as texts:
        scope, pool = _opened(context, texts, asked, now)
        numbers, vectors = texts.index.number_of, texts.vectors_of(context, [text])
        product = texts.product_of(scope, text)
    if not scope.size:
        return []
    if product is None:
        (product,) = scope.products(vectors)
    return pool.best(relevance(scope, numbers, text, product, context.policy), count)


class Together(NamedTuple):
    """Questions, as `check_question` returns them, of searches with the same golem, store and filters."""

    questions: Sequence[str]
    store: str
    golem_id: str | None
    filters: Filters


@contextmanager
def compared_in_advance(context: DerivationContext, searches: Sequence[Together], *, now: datetime) -> Iterator[None]:
    """Compare questions with the texts in their scope in one matrix product, for the searches inside the block.

    A search takes the result of its question if it compares the same texts, and else compares alone, with the same
    result. The searches read the texts that are recorded when the block begins.
    """
    with shared_texts(context, now) as texts:
        texts.derived(context)
        texts.vectors_of(context, [question for search_of in searches for question in search_of.questions])
        opened = [
            (texts.scope_of(_keys(context, texts, asked, now), context.policy), search_of.questions)
            for search_of in searches
            for asked in [_Asked(context.owner, search_of.store, search_of.golem_id, search_of.filters)]
        ]
        vectors = [texts.vectors_of(context, questions) for _, questions in opened]
    compared = [
        Compared(scope, dict(zip(questions, scope.products(asked), strict=True)))
        for (scope, questions), asked in zip(opened, vectors, strict=True)
    ]
    texts.compared.extend(compared)
    try:
        with one_state(texts):
            yield
    finally:
        for result in compared:
            texts.compared.remove(result)


@dataclass(frozen=True)
class _Asked:
    """The parameters that searches which choose from the same rows have in common. See `search`."""

    owner: str | None
    store: str
    golem_id: str | None
    filters: Filters
    decay: bool = True
    without: frozenset[str] = frozenset()

    @property
    def wanted(self) -> dict[str, bool]:
        """Which stores are searched."""
        return {"entries": self.store != "episodes", "episodes": self.store != "entries"}

    def golems(self, context: DerivationContext, texts: SharedTexts, derived: DerivedTexts) -> list[str]:
        """Return the golems in scope."""
        golems = golems_in_view(context.log, None if self.golem_id is None else [self.golem_id])
        known = {*derived.entries, *derived.episodes, *texts.golem_ids()} if golems is None else golems
        return sorted(known)


def _keys(context: DerivationContext, texts: SharedTexts, asked: _Asked, now: datetime) -> tuple[str, ...]:
    """Return the shards that a search compares, after giving vectors to texts in them."""
    derived = texts.derived(context)
    golems, of_records = asked.golems(context, texts, derived), not _set_filters(asked.filters, _NOT_OF_RECORDS)
    wanted = asked.wanted | {"episodes": asked.wanted["episodes"] and of_records}
    keys = [derived.key(name, g) for name, is_wanted in wanted.items() if is_wanted for g in golems] + golems
    texts.embed(context, keys, now)
    return tuple(keys)


def _opened(context: DerivationContext, texts: SharedTexts, asked: _Asked, now: datetime) -> tuple[Scope, Pool]:
    """Return the texts that a search compares, and the rows from which it chooses; kept until one of them changes."""
    keys = _keys(context, texts, asked, now)
    cycles, votes = context.projections.growing("cycles"), context.whole.life("InsightManaged").num_rows
    state = (votes, texts.derived(context).edition, cycles.table.version, cycles.turn, context.left_out())
    kept = texts.kept_pool(asked, (keys, texts.index.editions(keys), *state))
    if kept is not None:
        return kept
    texts.vote(context, asked.golems(context, texts, texts.derived(context)))
    scope = texts.scope_of(keys, context.policy)
    pool = Pool(_rows(context, texts, asked, scope), context.policy.search.decay_penalty if asked.decay else 0.0)
    texts.keep_pool(asked, (keys, texts.index.editions(keys), *state), scope, pool)
    return scope, pool


def _rows(context: DerivationContext, texts: SharedTexts, asked: _Asked, scope: Scope) -> list[Rows]:
    """Return the rows of the stores whose texts are in scope."""
    derived, ticks, start, parts = texts.derived(context), last_ticks(context), 0, list[Rows]()
    views = {view.key: view for view in scope.views}
    of_episodes = asked_of(context, asked.filters)
    for key, view in views.items():
        golem = key.rsplit("\x1f", 1)[-1]
        at_us = ticks.get(golem, 0)
        if key == derived.key("entries", golem):
            entries = derived.entries[golem]
            parts.append(entry_rows(view, start, golem, entries, at_us, asked.filters, context.policy))
        elif key == derived.key("episodes", golem):
            parts.append(episode_rows(view, start, golem, derived.episodes[golem], at_us, of_episodes))
        else:
            rows = text_rows(view, start, at_us, asked.filters, views, texts.index.code_of, context.policy)
            row_of = texts.index.rows(golem)
            left_out = [row_of[text_id] for text_id in asked.without if text_id in row_of]
            for part in rows.values():
                part.passed[left_out] = False
            parts += [part for name, part in rows.items() if asked.wanted[name]]
        start += view.size
    return parts


def _check(context: DerivationContext, store: str, golem_id: str | None, filters: Filters, count: int) -> None:
    """Raise QueryError for a search that cannot have results. count: results that are wanted."""
    most = context.policy.retrieval.search_results_max
    if not 1 <= count <= most:
        raise QueryError(f"a search gives 1 to {most} results, not {count}")
    if store not in STORES:
        raise QueryError(f"there is no store {store!r}: {', '.join(STORES)}")
    if golem_id is not None:
        require_born(context, golem_id)
    check_derived(context)
    if store == "episodes" and (lacking := _set_filters(filters, _OF_ENTRIES)):
        raise QueryError(f"an episode has no {lacking[0]}: only entries are found by it")


_OF_ENTRIES = ("kind", "domain", "status")
_NOT_OF_RECORDS = (*_OF_ENTRIES, "category", "tool")
"""Filters that no episode has, and those that episodes of records lack: stored ones have a category and a tool."""


def _set_filters(filters: Filters, names: Sequence[str]) -> list[str]:
    """Return which of these filters exclude something."""
    return [name for name in names if getattr(filters, name) not in (None, "active")]


def newest_event_time_us(context: DerivationContext) -> int:
    """Return the newest closing time of a cycle in UTC microseconds, 0 before the first."""
    closed = context.projections.growing("cycles").read(["closed_at"])["closed_at"]
    return int(pc.max(closed.cast(pa.int64())).as_py() or 0)
