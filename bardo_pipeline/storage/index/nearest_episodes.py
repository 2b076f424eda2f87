"""Search for the episodes nearest to a vector, or to a vector and words, in a total order without random ties.

A search ranks texts, which many episodes share, and then takes the episodes of the best texts. With very many vectors
the search is approximate (ivf_tuning.py). Source: facts ("LanceDB"); MEM-10.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Float32Array
from bardo_pipeline.events.record.arrow_columns import all_required, required
from bardo_pipeline.storage.index.lance_tables import among

if TYPE_CHECKING:
    from lancedb.table import Table

MATCH_SCHEMA = pa.schema(
    [
        *all_required(pa.string(), "episode_id", "golem_id"),
        required("tick", pa.int64()),
        required("text", pa.string()),
        *all_required(pa.float32(), "distance", "score"),
    ]
)
"""One row per match, best first. distance: cosine distance in [0, 2]. score: higher is better; the cosine similarity
for a search by vector, the sum of reciprocal ranks for a search by vector and words."""

_FUSED_COUNT = 100  # candidates of each ranking to fuse, or twice the limit if that is more


@dataclass(frozen=True)
class Texts:
    """The searchable texts: a Lance table, an SQL condition, and an upper bound of the row count.

    looked_at: number of IVF lists that a search reads; 0 for exact search.
    """

    table: Table
    where: str
    count: int
    looked_at: int = 0

    def near(self, vector: Float32Array, limit: int, where: str | None = None) -> pa.Table:
        """Return the nearest texts: text_hash, _rowid, distance, score; best first. `where` implies exact search."""
        condition, looked_at = (self.where, self.looked_at) if where is None else (where, 0)

        def search(count: int) -> pa.Table:
            query: Any = self.table.search(vector, vector_column_name="vector", query_type="vector")
            query = query.distance_type("cosine").where(condition).with_row_id(True)
            query = query.nprobes(looked_at) if looked_at else query.bypass_vector_index()
            return query.select(["text_hash", "_distance"]).limit(count).to_arrow()

        nearest = _best(search, limit, self.count, "_distance", "ascending").rename_columns({"_distance": "distance"})
        return nearest.append_column("score", pc.subtract(pa.scalar(1, pa.float32()), nearest["distance"]))

    def by_words(self, text: str, limit: int) -> pa.Table:
        """Return the best texts by BM25: text_hash, _rowid, _score; best first."""
        from lancedb.query import MatchQuery

        match: Any = MatchQuery  # its type hints lack the defaults of its options

        def search(count: int) -> pa.Table:
            query: Any = self.table.search(match(text, "text"), query_type="fts")
            return query.where(self.where).with_row_id(True).select(["text_hash", "_score"]).limit(count).to_arrow()

        return _best(search, limit, self.count, "_score", "descending")

    def fused(self, vector: Float32Array, text: str, limit: int) -> pa.Table:
        """Fuse both rankings by reciprocal rank: text_hash, distance, score; best first."""
        from lancedb.rerankers import RRFReranker

        depth = max(_FUSED_COUNT, 2 * limit)
        near = self.near(vector, depth)
        if not near.num_rows:
            return near
        rankings = [table.select(["text_hash", "_rowid"]) for table in (near, self.by_words(text, depth))]
        fused = RRFReranker().rerank_hybrid(text, *rankings).rename_columns({"_relevance_score": "score"})
        # A text that is only in the word ranking needs its distance as well.
        fused_texts = f"{self.where} AND {among('text_hash', fused['text_hash'].to_pylist())}"
        distance = self.near(vector, fused.num_rows, fused_texts)
        place = pc.index_in(fused["text_hash"], value_set=distance["text_hash"].combine_chunks())
        ranked = fused.append_column("distance", distance["distance"].take(place))
        return ranked.sort_by([("score", "descending"), ("distance", "ascending"), ("text_hash", "ascending")])


def _best(search: Callable[[int], pa.Table], limit: int, count: int, column: str, order: str) -> pa.Table:
    """Return the first rows by a column, then by text; if the last row ties with the next, fetch all rows first."""
    rows = search(limit + 1)
    if rows.num_rows > limit and rows[column][limit - 1] == rows[column][limit]:
        rows = search(count)
    return rows.sort_by([(column, order), ("text_hash", "ascending")]).slice(0, limit)


def episodes_of(table: Table, ranked: pa.Table, where: str, limit: int) -> pa.Table:
    """Return the first episodes of the ranked texts; those of one text in order of golem and tick.

    One query takes the episodes of 1 text, the next those of 2, then 4, ..., because one text may have 100,000.
    """
    from lancedb.query import ColumnOrdering

    order = [ColumnOrdering(column_name=n) for n in ("golem_id", "tick", "episode_id")]
    parts, count, at, size = [MATCH_SCHEMA.empty_table()], 0, 0, 1
    while count < limit and at < ranked.num_rows:
        texts = ranked.slice(at, size)
        query: Any = table.search().where(f"{where} AND {among('text_hash', texts['text_hash'].to_pylist())}")
        query = query.order_by(order).limit(limit - count if size == 1 else table.count_rows())
        rows = query.select(["episode_id", "golem_id", "tick", "text", "text_hash"]).to_arrow()
        rank = pc.index_in(rows["text_hash"], value_set=texts["text_hash"].combine_chunks())
        for name in ("distance", "score"):
            rows = rows.append_column(name, texts[name].take(rank).cast(pa.float32()))
        # The sort is stable, so the episodes of one text keep their order.
        first = pc.sort_indices(rank).slice(0, limit - count)
        parts.append(rows.take(first).select(MATCH_SCHEMA.names).cast(MATCH_SCHEMA))
        count, at, size = count + len(first), at + size, size * 2
    return pa.concat_tables(parts).combine_chunks()
