"""Derives episodes with their vectors incrementally, and searches similar episodes.

Vectors are events keyed by text and embedder, so a text is embedded once and a rebuild needs no model.
Source: architecture ("What is an event", "The episodes table (Delta) holds text and vector").
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.episodes import EPISODE_COLUMNS, EPISODE_SCHEMA, episodes_of
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.cycle_reader import CycleBatch
from bardo_pipeline.derivation.incremental.incremental_projection import CycleProjection, Retraction
from bardo_pipeline.derivation.incremental.record_queries import (
    closed_records,
    closed_through,
    cycle_of,
    golem_batches,
    require_born,
)
from bardo_pipeline.derivation.memory.embed_texts import check_embedder_matches, recorded_vectors
from bardo_pipeline.errors import DerivationDueError, QueryError
from bardo_pipeline.events.life.retractions import LeftOut
from bardo_pipeline.retrieval.embedder_interface import check_question
from bardo_pipeline.storage.delta.table_digest import Written
from bardo_pipeline.storage.index.episode_index import EpisodeIndex
from bardo_pipeline.storage.log.owner_log import golems_in_view

_LIMIT_GROWTH = 8  # factor of the search limit when too few matches remain, because many episodes share a text


class _Episodes(CycleProjection):
    name, columns, in_batches = "episodes", EPISODE_COLUMNS, True

    def __init__(self, now: datetime, golems: Collection[str] | None) -> None:
        self._now, self._golems = now, golems

    def derive(self, context: DerivationContext, left_out: LeftOut) -> list[Written]:
        """Append the episodes of newly closed cycles; a later update skips the cycles that are on record by golem."""
        if self._golems is None:
            return super().derive(context, left_out)
        table, closed, written = context.projections.growing(self.name), closed_through(context), list[Written]()
        for batch in golem_batches(context, sorted(self._golems)):
            past = {g: table.done(g) or 0 for g in batch}
            upto = {g: closed[g] for g in batch if closed.get(g, 0) > past[g]}
            if upto:
                first = {g: past[g] + 1 for g in upto}
                records = closed_records(context, EPISODE_COLUMNS, first, upto, left_out)
                cycle = cycle_of(records["tick"].to_numpy(), context.policy.curator.cycle_ticks)
                rows = self.rows(context, CycleBatch(records, cycle, upto, -1, records.slice(0, 0)), left_out)
                written.append(table.append(rows, upto))
        return written

    def rows(self, context: DerivationContext, batch: CycleBatch, left_out: LeftOut) -> pa.Table:
        check_embedder_matches(context)
        return _with_vectors(context, episodes_of(batch.records, batch.cycle, context.policy), self._now)

    def retract(self, context: DerivationContext, retraction: Retraction) -> list[Written]:
        """Retract the episodes of retracted records; no other episode depends on them."""
        causes = tuple(cause for cause in retraction.causes if cause.tick_from)
        if not causes:
            return []
        first, last = min(cause.tick_from for cause in causes), max(cause.tick_to for cause in causes)
        near = (pc.field("tick") >= first) & (pc.field("tick") <= last)
        episodes = context.projections.growing("episodes")
        rows = episodes.read(golems={cause.golem_id for cause in causes}, only=near, hidden=True)
        retracted = retraction.left_out.records(rows["golem_id"], rows["tick"].to_numpy())
        by_ticks = replace(retraction, causes=causes)
        return [by_ticks.correct(episodes, rows.filter(pa.array(retracted)), EPISODE_SCHEMA.empty_table())]


def derive_episodes(
    context: DerivationContext, *, now: datetime, golems: Collection[str] | None = None
) -> list[Written]:
    """Append the episodes of newly closed cycles, retract those of retracted records, record new vectors at `now`.

    golems: append only the episodes of these golems, and leave the others to the next update.
    """
    return _Episodes(now, golems).update(context)


def _with_vectors(context: DerivationContext, episodes: pa.Table, now: datetime) -> pa.Table:
    """Add text_hash, embedder and vector; texts without a recorded vector are embedded."""
    encoded = episodes["text"].combine_chunks().dictionary_encode()
    hashes, vectors = recorded_vectors(context, encoded.dictionary.to_pylist(), now)
    rows_of_texts = pc.index_in(pa.array(hashes, pa.string()), value_set=vectors["text_hash"].combine_chunks())
    by_text = vectors["vector"].combine_chunks().take(rows_of_texts)
    columns = {
        "text_hash": pa.array(hashes, pa.string()).take(encoded.indices),
        "embedder": pa.repeat(pa.scalar(context.embedder.identity.key), episodes.num_rows),
        "vector": by_text.take(encoded.indices).cast(EPISODE_SCHEMA.field("vector").type),
    }
    return pa.table(
        {n: columns.get(n, episodes[n] if n in episodes.column_names else None) for n in EPISODE_SCHEMA.names},
        schema=EPISODE_SCHEMA,
    )


def refresh_index(context: DerivationContext) -> int:
    """Add new episodes to the vector index, under a lock. Return the number of added rows."""
    context = context.whole
    with context.home.lock(f"index-{context.projections.root.name}"):
        return episode_index(context).refresh(context.projections.growing("episodes"))


def similar_episodes(
    context: DerivationContext, text: str, golem_ids: Iterable[str] | None = None, limit: int = 5
) -> pa.Table:
    """Return the episodes most similar to a text (MATCH_SCHEMA), by vectors and words, as of the last index refresh.

    Of episodes with the same text, the best is returned. Raises QueryError for an empty or too long text, StoreError
    without an index. golem_ids: restrict the search to these golems.
    """
    text = check_question(text, context.policy.retrieval.question_bytes_max)
    (vector,) = context.embedder.embed([text])
    index, golems, search_limit = episode_index(context), golems_in_view(context.log, golem_ids), limit
    left_out = context.left_out()
    while True:  # the index contains retracted and deletable episodes, so they are filtered after the search
        matches = index.search(vector, text=text, golem_ids=golems, limit=search_limit)
        kept = matches.filter(pa.array(~left_out.records(matches["golem_id"], matches["tick"].to_numpy())))
        kept = _first_of_each(kept, "text")
        if kept.num_rows >= limit or matches.num_rows < search_limit:
            return kept.slice(0, limit)
        search_limit *= _LIMIT_GROWTH


def similar_with_times(
    context: DerivationContext, text: str, golem_id: str | None = None, limit: int = 5, *, derives: bool = True
) -> list[dict[str, Any]]:
    """Return the episodes most similar to a text, each with its time `at`, after a refresh of the index.

    Raises as `similar_episodes`, and QueryError without episodes.

    Parameters
    ----------
    derives : whether to refresh; without it, DerivationDueError is raised if the index lacks an episode
    """
    if golem_id is not None:
        require_born(context, golem_id)
    episodes = context.projections.growing("episodes")
    if not episodes.row_count:
        is_due = any(closed > (episodes.done(golem) or 0) for golem, closed in closed_through(context).items())
        raise QueryError(
            f"there are no episodes of {context.embedder_name} yet: `bardo derive` derives those of closed cycles"
            if is_due
            else "no record of a closed cycle is an episode: `bardo search TEXT --store episodes` searches the texts "
            "that runtimes stored"
        )
    if derives:
        refresh_index(context)
    elif not episode_index(context).is_current(episodes.table):
        raise DerivationDueError("the index of episodes lacks the newest ones: `bardo derive` adds them")
    matches = similar_episodes(context, text, None if golem_id is None else [golem_id], limit)
    moments = episodes.read(["episode_id", "at"], golems=matches["golem_id"].unique().to_pylist())
    index = pc.index_in(matches["episode_id"], value_set=moments["episode_id"].combine_chunks())
    return matches.select(["episode_id", "text", "score"]).add_column(1, "at", moments["at"].take(index)).to_pylist()


def _first_of_each(rows: pa.Table, column: str) -> pa.Table:
    """The first row of each value, in the order of the rows."""
    _, first = np.unique(rows[column].to_numpy(zero_copy_only=False).astype(object), return_index=True)
    return rows.take(pa.array(np.sort(first), pa.int64()))


def episode_index(context: DerivationContext) -> EpisodeIndex:
    """Return the vector index of these projections' episodes."""
    identity = context.embedder.identity
    folder = context.home.index / "episodes" / context.projections.root.name
    return EpisodeIndex(folder, identity.key, identity.dimension, context.policy.growth)
