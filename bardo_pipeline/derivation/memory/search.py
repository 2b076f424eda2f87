"""Searching: entries and episodes by words and by meaning, whoever holds them.

Entries are compared one by one, in memory; episodes are found by their index. Source: TOOLS (memory_search), MEM-10.
"""

from __future__ import annotations

from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.dreams.derive_lessons import known_entries
from bardo_pipeline.derivation.memory.ask import must_be_derived, text_vectors
from bardo_pipeline.derivation.memory.derive_episodes import refresh_index, similar_episodes
from bardo_pipeline.errors import QueryError
from bardo_pipeline.grimoire.confidence import DAY_US, retention
from bardo_pipeline.grimoire.entry_columns import micros
from bardo_pipeline.retrieval.embedder_interface import check_question, text_hash
from bardo_pipeline.retrieval.hybrid_search import FOUND_SCHEMA, Filters, first_of_each_text, ranked, search_entries

STORES = ("entries", "episodes", "both")
OF_EPISODES = ("chain", "pair", "regime")
"""The filters that an episode can pass."""

_CANDIDATES = 200  # texts that the index gives, among which decay decides: four times the most that are shown
_ASKED_GROWTH = 8  # so many times more are asked for where too few of them pass the filters


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
    """The texts that answer best to some words (FOUND_SCHEMA), as of the newest event time that is derived.

    store: entries, episodes or both. golem_id: only what this one holds. filters: of entries; those OF_EPISODES are of
    episodes, too, the least confidence is not, and with any other no episode is sought. now: when vectors made here are
    recorded. Raises QueryError for an empty or too long question, a limit out of range, a store or golem that there is
    not, episodes with a filter that they have not, and an embedder by which nothing was derived.
    """
    rules = context.policy.retrieval
    asked, count = check_question(question, rules.question_bytes_max), rules.search_results if limit is None else limit
    if not 1 <= count <= rules.search_results_max:
        raise QueryError(f"a search gives 1 to {rules.search_results_max} results, not {count}")
    if store not in STORES:
        raise QueryError(f"there is no store {store!r}: {', '.join(STORES)}")
    if golem_id is not None and golem_id not in context.life("GolemBorn")["golem_id"].to_pylist():
        raise QueryError(f'golem {golem_id}: no golem of this name was born: `bardo sql "from dim_golem"` lists all')
    must_be_derived(context)
    filters = filters or Filters()
    alone = _of_entries_alone(filters)
    if alone and store == "episodes":
        raise QueryError(f"an episode has no {alone[0]}: only entries are found by it")
    parts = [FOUND_SCHEMA.empty_table()]
    if store != "episodes":
        parts.append(_entries(context, asked, golem_id, filters, decay, now))
    if store != "entries" and not alone:
        parts.append(_episodes(context, asked, golem_id, filters, decay, count))
    return first_of_each_text(pa.concat_tables(parts)).slice(0, count)


def _of_entries_alone(filters: Filters) -> list[str]:
    """What is asked that an episode cannot have."""
    asked = [name for name in ("kind", "category", "domain", "tool") if getattr(filters, name) is not None]
    return asked + (["status"] if filters.status not in ("active", None) else [])


def latest(context: DerivationContext) -> int:
    """The newest event time that a closed cycle has, in UTC microseconds; 0 before the first."""
    closed = context.projections.growing("cycles").read(["closed_at"])["closed_at"]
    return int(pc.max(closed.cast(pa.int64())).as_py() or 0)


def _entries(
    context: DerivationContext, question: str, golem_id: str | None, filters: Filters, decay: bool, now: datetime
) -> pa.Table:
    entries = known_entries(context, None if golem_id is None else [golem_id])
    if filters.status is not None:
        entries = entries.filter(pc.equal(entries["status"], filters.status))
    if not entries.num_rows:
        return FOUND_SCHEMA.empty_table()
    vectors, text_of = text_vectors(context, entries["text"], now)
    (vector,) = context.embedder.embed([question])
    return search_entries(
        entries,
        vectors,
        text_of,
        question,
        vector,
        at_us=latest(context),
        filters=filters,
        decay=decay,
        policy=context.policy,
    )


def _episodes(
    context: DerivationContext, question: str, golem_id: str | None, filters: Filters, decay: bool, count: int
) -> pa.Table:
    """Episodes that the index finds, those of little importance the lower the older they are (Ebbinghaus).

    It gives texts; all episodes of them that pass are weighed, and the best of each text is found.
    """
    table = context.projections.growing("episodes")
    if not table.digest().rows:
        return FOUND_SCHEMA.empty_table()
    refresh_index(context)
    only, asked = None if golem_id is None else [golem_id], _CANDIDATES
    while True:  # which of its episodes pass is only known of what was found
        near = similar_episodes(context, question, only, asked)
        rows = _passing(context, near, only, filters)
        if near.num_rows < asked or len(rows["text"].unique()) >= count:
            break
        asked *= _ASKED_GROWTH
    place = pc.index_in(rows["text_hash"], value_set=_hashes(near))
    relevance = near["score"].to_numpy().astype(np.float64)[place.to_numpy()]
    tiers = rows["importance_tier"].to_pylist()
    strength = np.array([getattr(context.policy.decay, f"{tier}_days") for tier in tiers], np.float64)
    age = np.maximum(latest(context) - micros(rows, "at"), 0) / DAY_US
    retained = retention(age, strength) if decay else np.ones(len(age))
    named = {"store": "episodes", "id": rows["episode_id"], "golem_id": rows["golem_id"], "kind": rows["tier"]}
    return ranked(named | {"text": rows["text"]}, relevance, retained)


def _passing(context: DerivationContext, near: pa.Table, golem_ids: list[str] | None, filters: Filters) -> pa.Table:
    """All episodes, of these golems or of any, that have one of the texts found and pass the filters."""
    columns = ["episode_id", "golem_id", "tick", "at", "importance_tier", "tier", "text", "text_hash", *OF_EPISODES]
    episodes = context.projections.growing("episodes")
    rows = episodes.read(columns, golems=golem_ids, only=pc.field("text_hash").isin(_hashes(near)))
    kept = ~context.left_out().records(rows["golem_id"], rows["tick"].to_numpy())
    for name in OF_EPISODES:
        if (asked := getattr(filters, name)) is not None:
            kept &= pc.equal(rows[name], asked).to_numpy()
    return rows.filter(pa.array(kept))


def _hashes(found: pa.Table) -> pa.Array:
    return pa.array([text_hash(text) for text in found["text"].to_pylist()], pa.string())
