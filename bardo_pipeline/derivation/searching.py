"""Searching: entries and episodes by words and by meaning, whoever holds them.

Entries are compared one by one, in memory; episodes are found by their index. Source: TOOLS (memory_search), MEM-10.
"""

from __future__ import annotations

from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.asking import check_question, text_vectors
from bardo_pipeline.derivation.memory import refresh_index, similar_episodes
from bardo_pipeline.derivation.stores import Stores
from bardo_pipeline.errors import QueryError
from bardo_pipeline.grimoire.columns import micros
from bardo_pipeline.grimoire.confidence import DAY_US, retention
from bardo_pipeline.retrieval.search import FOUND_SCHEMA, Filters, first_of_each_text, ranked, search_entries

STORES = ("entries", "episodes", "both")
_CANDIDATES = 200  # episodes that the index gives, among which decay decides: four times the most that are shown


def search(
    stores: Stores,
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

    store: entries, episodes or both. golem_id: only what this one holds. filters: of entries; chain and pair hold for
    episodes, too, and with any other filter there are none. now: when vectors made here are recorded.
    Raises QueryError for an empty or too long question, a limit out of range, a store or golem that there is not.
    """
    rules = stores.policy.retrieval
    asked, count = check_question(question, rules.question_bytes_max), rules.search_results if limit is None else limit
    if not 1 <= count <= rules.search_results_max:
        raise QueryError(f"a search gives 1 to {rules.search_results_max} results, not {count}")
    if store not in STORES:
        raise QueryError(f"there is no store {store!r}: {', '.join(STORES)}")
    if golem_id is not None and golem_id not in stores.life("GolemBorn")["golem_id"].to_pylist():
        raise QueryError(f'golem {golem_id}: nobody of this name was born: `bardo sql "from dim_golem"` lists all')
    filters = filters or Filters()
    parts = [FOUND_SCHEMA.empty_table()]
    if store != "episodes":
        parts.append(_entries(stores, asked, golem_id, filters, decay, now))
    if store == "episodes" or (store == "both" and _bare(filters)):
        parts.append(_episodes(stores, asked, golem_id, filters, decay))
    return first_of_each_text(pa.concat_tables(parts)).slice(0, count)


def _bare(filters: Filters) -> bool:
    """Whether nothing is asked that an episode cannot have."""
    plain = Filters(chain=filters.chain, pair=filters.pair)
    return filters == plain


def latest(stores: Stores) -> int:
    """The newest event time that a closed cycle has, in UTC microseconds; 0 before the first."""
    closed = stores.projections.growing("cycles").read(["closed_at"])["closed_at"]
    return int(pc.max(closed.cast(pa.int64())).as_py() or 0)


def _entries(
    stores: Stores, question: str, golem_id: str | None, filters: Filters, decay: bool, now: datetime
) -> pa.Table:
    grimoire = stores.projections.renewed("grimoire")
    entries = grimoire.read(None if golem_id is None else grimoire.buckets([golem_id]))
    if golem_id is not None:
        entries = entries.filter(pc.equal(entries["golem_id"], golem_id))
    if filters.status is not None:
        entries = entries.filter(pc.equal(entries["status"], filters.status))
    if not entries.num_rows:
        return FOUND_SCHEMA.empty_table()
    vectors, text_of = text_vectors(stores, entries["text"], now)
    (vector,) = stores.embedder.embed([question])
    return search_entries(
        entries,
        vectors,
        text_of,
        question,
        vector,
        at_us=latest(stores),
        filters=filters,
        decay=decay,
        policy=stores.policy,
    )


def _episodes(stores: Stores, question: str, golem_id: str | None, filters: Filters, decay: bool) -> pa.Table:
    """Episodes that the index finds, those of little importance the lower the older they are (Ebbinghaus)."""
    table = stores.projections.growing("episodes")
    if not table.digest().rows:
        return FOUND_SCHEMA.empty_table()
    refresh_index(stores)
    found = similar_episodes(stores, question, None if golem_id is None else [golem_id], _CANDIDATES)
    columns = ["episode_id", "golem_id", "at", "importance_tier", "chain", "pair", "tier"]
    known = table.read(columns, golems=found["golem_id"].unique().to_pylist())
    place = pc.index_in(found["episode_id"], value_set=known["episode_id"].combine_chunks())
    rows = known.take(place)
    kept = np.ones(rows.num_rows, bool)
    for name in ("chain", "pair"):
        if (asked := getattr(filters, name)) is not None:
            kept &= pc.equal(rows[name], asked).to_numpy()
    rows, found = rows.filter(pa.array(kept)), found.filter(pa.array(kept))
    tiers = pc.cast(rows["importance_tier"], pa.string()).to_pylist()
    strength = np.array([getattr(stores.policy.decay, f"{tier}_days") for tier in tiers], np.float64)
    age = np.maximum(latest(stores) - micros(rows, "at"), 0) / DAY_US
    retained = retention(age, strength) if decay else np.ones(len(age))
    named = {"store": "episodes", "id": rows["episode_id"], "golem_id": rows["golem_id"], "kind": rows["tier"]}
    return ranked(named | {"text": found["text"]}, found["score"].to_numpy().astype(np.float64), retained)
