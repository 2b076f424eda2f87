"""Memory: episodes with their vectors, from what is new.

Vectors are events, keyed by text and embedder: a text is embedded once in the life of a home, and a rebuild never asks
the model again. Source: architecture ("What is an event", "The episodes table (Delta) holds text and vector").
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.episodes import EPISODE_COLUMNS, EPISODE_SCHEMA, episodes_of
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.cycle_reader import CycleBatch
from bardo_pipeline.derivation.incremental.incremental_projection import CycleProjection, Retraction
from bardo_pipeline.derivation.memory.embed_texts import must_match, recorded_vectors
from bardo_pipeline.events.life.retractions import LeftOut
from bardo_pipeline.grimoire.entries import MOMENT
from bardo_pipeline.retrieval.embedder_interface import check_question
from bardo_pipeline.storage.delta.table_digest import Written
from bardo_pipeline.storage.index.episode_index import EpisodeIndex

_ASKED_GROWTH = 8  # alike episodes are many: so many times more are asked for when too few are left


class _Episodes(CycleProjection):
    name, columns, in_portions = "episodes", EPISODE_COLUMNS, True

    def __init__(self, now: datetime) -> None:
        self._now = now

    def rows(self, context: DerivationContext, batch: CycleBatch, left_out: LeftOut) -> pa.Table:
        must_match(context)
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


def derive_episodes(context: DerivationContext, *, now: datetime) -> list[Written]:
    """Append the episodes of newly closed cycles, and retract those of retracted records.

    now: when vectors made here are recorded.
    """
    return _Episodes(now).update(context)


def _with_vectors(context: DerivationContext, plain: pa.Table, now: datetime) -> pa.Table:
    """Add the three fields of the text's vector, embedding only texts that this home has never embedded."""
    encoded = plain["text"].combine_chunks().dictionary_encode()
    hashes, known = recorded_vectors(context, encoded.dictionary.to_pylist(), now)
    place = pc.index_in(pa.array(hashes, pa.string()), value_set=known["text_hash"].combine_chunks())
    by_text = known["vector"].combine_chunks().take(place)
    columns = {
        "text_hash": pa.array(hashes, pa.string()).take(encoded.indices),
        "embedder": pa.repeat(pa.scalar(context.embedder.identity.key), plain.num_rows),
        "vector": by_text.take(encoded.indices).cast(EPISODE_SCHEMA.field("vector").type),
    }
    return pa.table(
        {n: columns.get(n, plain[n] if n in plain.column_names else None) for n in EPISODE_SCHEMA.names},
        schema=EPISODE_SCHEMA,
    )


def refresh_index(context: DerivationContext) -> int:
    """Bring the index of episodes up to the episodes table. Returns by how many rows it grew. One process at a time."""
    with context.home.lock(f"index-{context.projections.root.name}"):
        return episode_index(context).refresh(context.projections.growing("episodes"))


def similar_episodes(
    context: DerivationContext,
    text: str,
    golem_ids: Iterable[str] | None = None,
    limit: int = 5,
    *,
    at: datetime | None = None,
    distinct: bool = True,
) -> pa.Table:
    """The episodes most like a text, by meaning and by words (MATCH_SCHEMA), as of the index's last refresh.

    golem_ids: only episodes of these. at: without those that may go before this moment. distinct: of alike episodes,
    which share a text, only the first. Raises QueryError for an empty or too long text, StoreError without an index.
    """
    text = check_question(text, context.policy.retrieval.question_bytes_max)
    (vector,) = context.embedder.embed([text])
    index, only, asked = episode_index(context), None if golem_ids is None else set(golem_ids), limit
    left = context.left_out()
    while True:  # what is left out is only known of what was found
        found = index.search(vector, text=text, golem_ids=only, limit=asked)
        kept = found.filter(pa.array(~left.records(found["golem_id"], found["tick"].to_numpy())))
        kept = kept if at is None else _not_gone(context, kept, at)
        kept = _first_of_each(kept, "text") if distinct else kept
        if kept.num_rows >= limit or found.num_rows < asked:
            return kept.slice(0, limit)
        asked *= _ASKED_GROWTH


def _not_gone(context: DerivationContext, found: pa.Table, at: datetime) -> pa.Table:
    """Without the episodes that may go before a moment."""
    known = context.projections.growing("episodes").read(
        ["episode_id", "may_go_at"], golems=found["golem_id"].unique().to_pylist()
    )
    gone = known.filter(pc.less(known["may_go_at"], pa.scalar(at, MOMENT)))["episode_id"].combine_chunks()
    return found.filter(pc.invert(pc.is_in(found["episode_id"], value_set=gone)))


def _first_of_each(rows: pa.Table, column: str) -> pa.Table:
    """The first row of each value, in their order."""
    _, first = np.unique(rows[column].to_numpy(zero_copy_only=False).astype(object), return_index=True)
    return rows.take(pa.array(np.sort(first), pa.int64()))


def episode_index(context: DerivationContext) -> EpisodeIndex:
    """The index of these projections' episodes: of the derivation in force, or of tables made beside it."""
    identity = context.embedder.identity
    folder = context.home.index / "episodes" / context.projections.root.name
    return EpisodeIndex(folder, identity.key, identity.dimension, context.policy.growth)
