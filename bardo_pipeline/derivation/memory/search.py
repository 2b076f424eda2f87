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

from bardo_pipeline.arrays import Float64Array
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.record_queries import require_born
from bardo_pipeline.derivation.memory.ask import check_derived
from bardo_pipeline.derivation.memory.derived_texts import DerivedTexts, asked_of, entry_rows, episode_rows
from bardo_pipeline.derivation.memory.shared_texts import (
    SharedTexts,
    held_selections,
    held_state,
    last_ticks,
    shared_texts,
)
from bardo_pipeline.errors import QueryError
from bardo_pipeline.retrieval.embedder_interface import check_question
from bardo_pipeline.retrieval.hybrid_search import SEARCH_SCHEMA, Candidates, Filters, Rows, SearchRow
from bardo_pipeline.retrieval.text_ranking import text_rows
from bardo_pipeline.retrieval.text_scoring import Scope, relevance, relevances
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
) -> list[SearchRow]:
    """Return the best matching texts as of each golem's last tick or text.

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
    selection = _Selection(context.owner, store, golem_id, filters or Filters(), decay, frozenset(without))
    rules = context.policy.retrieval
    text, count = check_question(question, rules.question_bytes_max), rules.search_results if limit is None else limit
    _check(context, store, golem_id, selection.filters, count)
    with shared_texts(context, now) as texts:
        scope, candidates = _opened_selection(context, texts, selection, now)
        numbers, relevant = texts.index.number_of, texts.compared.get((id(scope), text))
        if scope.size and relevant is None:
            vectors = texts.vectors_of(context, [scope.unnamed(text, numbers)])
    if not scope.size:
        return []
    if relevant is None:
        relevant = relevance(scope, numbers, text, scope.products(vectors)[0], context.policy)
    return candidates.best(relevant, count)


def search_table(rows: Sequence[SearchRow]) -> pa.Table:
    """Return the rows of a search as a table (SEARCH_SCHEMA)."""
    return pa.Table.from_pylist([row._asdict() for row in rows], schema=SEARCH_SCHEMA)


class QuestionGroup(NamedTuple):
    """Questions, as `check_question` returns them, of searches with the same golem, store and filters."""

    questions: Sequence[str]
    store: str
    golem_id: str | None
    filters: Filters


@contextmanager
def compared_in_advance(
    context: DerivationContext, groups: Sequence[QuestionGroup], *, now: datetime
) -> Iterator[None]:
    """Compare questions with the texts in their scope together, for the searches inside the block.

    A search takes the result of its question if it compares the same texts, and else compares alone, with the same
    result. The searches read the texts that are recorded or derived when the block begins.
    """
    with shared_texts(context, now) as texts:
        texts.derived(context)  # the block reads no newer one
        scopes, unnamed = list[Scope](), list[list[str]]()
        for group in groups:
            selection = _Selection(context.owner, group.store, group.golem_id, group.filters)
            scopes.append(texts.scope_of(_keys(context, texts, selection, now), context.policy))
            unnamed.append([scopes[-1].unnamed(question, texts.index.number_of) for question in group.questions])
        texts.vectors_of(context, [question for questions in unnamed for question in questions])
        vectors = [texts.vectors_of(context, questions) for questions in unnamed]
    compared, numbers = dict[tuple[int, str], Float64Array](), texts.index.number_of
    for group, scope, of_group in zip(groups, scopes, vectors, strict=True):
        relevant = relevances(scope, numbers, group.questions, scope.products(of_group), context.policy)
        compared |= {(id(scope), question): row for question, row in zip(group.questions, relevant, strict=True)}
    texts.compared |= compared
    try:
        with held_state(texts), context.held_life():
            yield
    finally:
        for key in compared:
            texts.compared.pop(key, None)


@dataclass(frozen=True)
class _Selection:
    """The parameters of `search` that determine its rows; searches that share them choose from the same rows."""

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


def _keys(context: DerivationContext, texts: SharedTexts, selection: _Selection, now: datetime) -> tuple[str, ...]:
    """Return the shards that a search compares, after giving vectors to texts in them."""
    derived = texts.derived(context)
    golems, of_records = selection.golems(context, texts, derived), not _set_filters(selection.filters, _NOT_OF_RECORDS)
    wanted = selection.wanted | {"episodes": selection.wanted["episodes"] and of_records}
    keys = [derived.key(name, g) for name, is_wanted in wanted.items() if is_wanted for g in golems] + golems
    texts.embed(context, keys, now)
    return tuple(keys)


def _opened_selection(
    context: DerivationContext, texts: SharedTexts, selection: _Selection, now: datetime
) -> tuple[Scope, Candidates]:
    """Return the texts that a search compares, and the rows from which it chooses; kept until one of them changes."""
    held = held_selections(texts)
    if held is not None and selection in held:
        return held[selection]
    opened = _selected(context, texts, selection, now)
    if held is not None:
        held[selection] = opened
    return opened


def _selected(
    context: DerivationContext, texts: SharedTexts, selection: _Selection, now: datetime
) -> tuple[Scope, Candidates]:
    keys = _keys(context, texts, selection, now)
    cycles, votes = context.projections.growing("cycles"), context.whole.life("InsightManaged").num_rows
    state = (votes, texts.derived(context).edition, cycles.table.version, cycles.turn, context.left_out())
    kept = texts.kept_candidates(selection, (keys, texts.index.editions(keys), *state))
    if kept is not None:
        return kept
    texts.vote(context, selection.golems(context, texts, texts.derived(context)))
    scope = texts.scope_of(keys, context.policy)
    penalty = context.policy.search.decay_penalty if selection.decay else 0.0
    candidates = Candidates(_rows(context, texts, selection, scope), penalty)
    texts.keep_candidates(selection, (keys, texts.index.editions(keys), *state), scope, candidates)
    return scope, candidates


def _rows(context: DerivationContext, texts: SharedTexts, selection: _Selection, scope: Scope) -> list[Rows]:
    """Return the rows of the stores whose texts are in scope."""
    derived, ticks, start, parts = texts.derived(context), last_ticks(context), 0, list[Rows]()
    views = {view.key: view for view in scope.views}
    of_episodes = asked_of(context, selection.filters)
    for key, view in views.items():
        golem = key.rsplit("\x1f", 1)[-1]
        at_us = ticks.get(golem, 0)
        if key == derived.key("entries", golem):
            entries = derived.entries[golem]
            parts.append(entry_rows(view, start, golem, entries, at_us, selection.filters, context.policy))
        elif key == derived.key("episodes", golem):
            parts.append(episode_rows(view, start, golem, derived.episodes[golem], at_us, of_episodes))
        else:
            rows = text_rows(view, start, at_us, selection.filters, views, texts.index.code_of, context.policy)
            row_of = texts.index.rows(golem)
            left_out = [row_of[text_id] for text_id in selection.without if text_id in row_of]
            for part in rows.values():
                part.passed[left_out] = False
            parts += [part for name, part in rows.items() if selection.wanted[name]]
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
