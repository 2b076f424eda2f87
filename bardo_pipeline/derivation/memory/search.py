"""Searches entries and episodes of all golems by words and vectors.

Entries are compared in memory, episodes through their index. Source: TOOLS (memory_search), MEM-10.
"""

from __future__ import annotations

from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.dreams.derive_lessons import known_entries
from bardo_pipeline.derivation.incremental.record_queries import require_born
from bardo_pipeline.derivation.memory.ask import check_derived, text_vectors
from bardo_pipeline.derivation.memory.derive_episodes import refresh_index, similar_episodes
from bardo_pipeline.errors import QueryError
from bardo_pipeline.grimoire.confidence import DAY_US, retention
from bardo_pipeline.grimoire.entry_columns import micros
from bardo_pipeline.retrieval.embedder_interface import check_question, text_hash
from bardo_pipeline.retrieval.hybrid_search import SEARCH_SCHEMA, Filters, first_of_each_text, ranked, search_entries

STORES = ("entries", "episodes", "both")
OF_EPISODES = ("chain", "pair", "regime")
"""Filters that apply to episodes."""

_CANDIDATES = 200  # texts requested from the index for ranking with decay: 4 times the maximum of results
_LIMIT_GROWTH = 8  # factor of that number when too few candidates pass the filters


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
) -> pa.Table:
    """Return the best matching texts (SEARCH_SCHEMA) as of the newest derived event time.

    Raises QueryError for an empty or too long question, a limit out of range, an unknown store or golem, a filter that
    episodes lack with store "episodes", and an embedder without derived tables.

    Parameters
    ----------
    now : datetime, recording time of new vectors
    store : "entries", "episodes" or "both"
    golem_id : restrict the search to this golem
    filters : filters outside OF_EPISODES exclude all episodes, except the minimum confidence, which they ignore
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
    entry_filters = _entry_filters(filters)
    if entry_filters and store == "episodes":
        raise QueryError(f"an episode has no {entry_filters[0]}: only entries are found by it")
    parts = [SEARCH_SCHEMA.empty_table()]
    if store != "episodes":
        parts.append(_entries(context, text, golem_id, filters, decay, now))
    if store != "entries" and not entry_filters:
        parts.append(_episodes(context, text, golem_id, filters, decay, count))
    return first_of_each_text(pa.concat_tables(parts)).slice(0, count)


def _entry_filters(filters: Filters) -> list[str]:
    """Names of the set filters that episodes lack."""
    asked = [name for name in ("kind", "category", "domain", "tool") if getattr(filters, name) is not None]
    return asked + (["status"] if filters.status not in ("active", None) else [])


def newest_event_time_us(context: DerivationContext) -> int:
    """Return the newest closing time of a cycle in UTC microseconds, 0 before the first."""
    closed = context.projections.growing("cycles").read(["closed_at"])["closed_at"]
    return int(pc.max(closed.cast(pa.int64())).as_py() or 0)


def _entries(
    context: DerivationContext, question: str, golem_id: str | None, filters: Filters, decay: bool, now: datetime
) -> pa.Table:
    entries = known_entries(context, None if golem_id is None else [golem_id])
    if filters.status is not None:
        entries = entries.filter(pc.equal(entries["status"], filters.status))
    if not entries.num_rows:
        return SEARCH_SCHEMA.empty_table()
    vectors, text_of = text_vectors(context, entries["text"], now)
    (vector,) = context.embedder.embed([question])
    return search_entries(
        entries,
        vectors,
        text_of,
        question,
        vector,
        at_us=newest_event_time_us(context),
        filters=filters,
        decay=decay,
        policy=context.policy,
    )


def _episodes(
    context: DerivationContext, question: str, golem_id: str | None, filters: Filters, decay: bool, count: int
) -> pa.Table:
    """Rank the episodes of the texts found by the index by relevance and retention (Ebbinghaus)."""
    table = context.projections.growing("episodes")
    if not table.row_count:
        return SEARCH_SCHEMA.empty_table()
    refresh_index(context)
    golem_ids, candidate_limit = None if golem_id is None else [golem_id], _CANDIDATES
    while True:  # filters apply after the index search
        matches = similar_episodes(context, question, golem_ids, candidate_limit)
        rows = _passing_episodes(context, matches, golem_ids, filters)
        if matches.num_rows < candidate_limit or len(rows["text"].unique()) >= count:
            break
        candidate_limit *= _LIMIT_GROWTH
    match_of_row = pc.index_in(rows["text_hash"], value_set=_hashes(matches))
    relevance = matches["score"].to_numpy().astype(np.float64)[match_of_row.to_numpy()]
    tiers = rows["importance_tier"].to_pylist()
    strength = np.array([getattr(context.policy.decay, f"{tier}_days") for tier in tiers], np.float64)
    age = np.maximum(newest_event_time_us(context) - micros(rows, "at"), 0) / DAY_US
    retained = retention(age, strength) if decay else np.ones(len(age))
    columns = {"store": "episodes", "id": rows["episode_id"], "golem_id": rows["golem_id"], "kind": rows["tier"]}
    return ranked(columns | {"text": rows["text"]}, relevance, retained)


def _passing_episodes(
    context: DerivationContext, near: pa.Table, golem_ids: list[str] | None, filters: Filters
) -> pa.Table:
    """All episodes of these golems (None: all) with one of the matched texts that pass the filters."""
    columns = ["episode_id", "golem_id", "tick", "at", "importance_tier", "tier", "text", "text_hash", *OF_EPISODES]
    episodes = context.projections.growing("episodes")
    rows = episodes.read(columns, golems=golem_ids, only=pc.field("text_hash").isin(_hashes(near)))
    is_kept = ~context.left_out().records(rows["golem_id"], rows["tick"].to_numpy())
    for name in OF_EPISODES:
        if (value := getattr(filters, name)) is not None:
            is_kept &= pc.equal(rows[name], value).to_numpy()
    return rows.filter(pa.array(is_kept))


def _hashes(hits: pa.Table) -> pa.Array:
    return pa.array([text_hash(text) for text in hits["text"].to_pylist()], pa.string())
