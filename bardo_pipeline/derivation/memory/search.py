"""Searches entries, episodes and stored texts of all golems by words and vectors.

All texts in scope are scored together, so that their scores compare. Source: TOOLS (memory_search), MEM-10; ADR 0080.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.record_queries import require_born
from bardo_pipeline.derivation.memory.ask import check_derived
from bardo_pipeline.derivation.memory.derived_texts import asked_of, entry_rows, episode_rows
from bardo_pipeline.derivation.memory.shared_texts import last_ticks, shared_texts
from bardo_pipeline.errors import QueryError
from bardo_pipeline.retrieval.embedder_interface import check_question
from bardo_pipeline.retrieval.hybrid_search import SEARCH_SCHEMA, Filters, Rows, best_rows
from bardo_pipeline.retrieval.text_ranking import text_rows
from bardo_pipeline.retrieval.text_scoring import relevance
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
    rules = context.policy.retrieval
    text, count = check_question(question, rules.question_bytes_max), rules.search_results if limit is None else limit
    if not 1 <= count <= rules.search_results_max:
        raise QueryError(f"a search gives 1 to {rules.search_results_max} results, not {count}")
    if store not in STORES:
        raise QueryError(f"there is no store {store!r}: {', '.join(STORES)}")
    if golem_id is not None:
        require_born(context, golem_id)
    check_derived(context)
    filters = filters or Filters()
    if store == "episodes" and (lacking := _set_filters(filters, _OF_ENTRIES)):
        raise QueryError(f"an episode has no {lacking[0]}: only entries are found by it")
    wanted = {"entries": store != "episodes", "episodes": store != "entries"}
    derived_wanted = wanted | {"episodes": store != "entries" and not _set_filters(filters, _NOT_OF_RECORDS)}
    golems = golems_in_view(context.log, None if golem_id is None else [golem_id])
    with shared_texts(context, now) as texts:
        derived = texts.derived(context)
        known = sorted({*derived.entries, *derived.episodes, *texts.golem_ids()})
        scope = [g for g in known if golems is None or g in golems]
        keys = [derived.key(name, g) for name, is_wanted in derived_wanted.items() if is_wanted for g in scope] + scope
        texts.embed(context, keys, now)
        texts.vote(context, scope)
        left_out = {g: [row for i in without if (row := texts.index.rows(g).get(i)) is not None] for g in scope}
        views = {view.key: view for view in texts.index.views(keys)}
        entries, episodes = dict(derived.entries), dict(derived.episodes)
        vector, numbers, code_of = texts.vector_of(context, text), texts.index.number_of, texts.index.code_of
    if not views:
        return SEARCH_SCHEMA.empty_table()
    relevant = relevance(list(views.values()), numbers, text, vector, context.policy)
    ticks, asked, parts, start = last_ticks(context), asked_of(context, filters), list[Rows](), 0
    for key, view in views.items():
        golem = key.rsplit("\x1f", 1)[-1]
        at_us = ticks.get(golem, 0)
        if key == derived.key("entries", golem):
            parts.append(entry_rows(view, start, golem, entries[golem], at_us, filters, context.policy))
        elif key == derived.key("episodes", golem):
            parts.append(episode_rows(view, start, golem, episodes[golem], at_us, asked))
        else:
            rows = text_rows(view, start, at_us, filters, views, code_of, context.policy)
            for part in rows.values():
                part.passed[left_out[golem]] = False
            parts += [part for name, part in rows.items() if wanted[name]]
        start += view.size
    penalty = context.policy.search.decay_penalty if decay else 0.0
    return best_rows(parts, relevant, penalty, count)


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
