"""Nearest: the episodes of an index nearest to a vector, or to a vector and words, with no tie left to chance.

A search weighs texts, which many episodes share, and then takes the episodes of the best.
Where vectors are very many, it looks at a part of them (ivf_tuning.py). Source: facts ("LanceDB"); MEM-10.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bardo_pipeline.storage.index.lance_tables import among

if TYPE_CHECKING:
    from lancedb.table import Table

MATCH_SCHEMA = pa.schema(
    [
        pa.field("episode_id", pa.string(), nullable=False),
        pa.field("golem_id", pa.string(), nullable=False),
        pa.field("tick", pa.int64(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("distance", pa.float32(), nullable=False),
        pa.field("score", pa.float32(), nullable=False),
    ]
)
"""One row per episode found, best first. distance: cosine, in [0, 2]. score: more is better: the cosine of a search by
vector, the sum of reciprocal ranks of a search by vector and words."""

_FUSED_COUNT = 100  # candidates of each kind that are fused, or twice as many as are wanted


@dataclass(frozen=True)
class Texts:
    """The texts that a search may find: a Lance table, a condition, how many there are at most.

    looked_at: through how many lists of an approximate index a search looks; 0 to compare each text.
    """

    table: Table
    where: str
    count: int
    looked_at: int = 0

    def near(self, vector: NDArray[np.float32], limit: int, where: str | None = None) -> pa.Table:
        """The nearest texts: text_hash, _rowid, distance, score; best first. where: of these, compared one by one."""
        condition, looked_at = (self.where, self.looked_at) if where is None else (where, 0)

        def ask(count: int) -> pa.Table:
            asked: Any = self.table.search(vector, vector_column_name="vector", query_type="vector")
            asked = asked.distance_type("cosine").where(condition).with_row_id(True)
            asked = asked.nprobes(looked_at) if looked_at else asked.bypass_vector_index()
            return asked.select(["text_hash", "_distance"]).limit(count).to_arrow()

        found = _best(ask, limit, self.count, "_distance", "ascending").rename_columns({"_distance": "distance"})
        return found.append_column("score", pc.subtract(pa.scalar(1, pa.float32()), found["distance"]))

    def worded(self, text: str, limit: int) -> pa.Table:
        """The texts with the rarest words in common: text_hash, _rowid, _score; best first."""
        from lancedb.query import MatchQuery

        match: Any = MatchQuery  # typed as if none of its options had a default

        def ask(count: int) -> pa.Table:
            asked: Any = self.table.search(match(text, "text"), query_type="fts")
            return asked.where(self.where).with_row_id(True).select(["text_hash", "_score"]).limit(count).to_arrow()

        return _best(ask, limit, self.count, "_score", "descending")

    def fused(self, vector: NDArray[np.float32], text: str, limit: int) -> pa.Table:
        """Both rankings as one, by reciprocal rank: text_hash, distance, score; best first."""
        from lancedb.rerankers import RRFReranker

        depth = max(_FUSED_COUNT, 2 * limit)
        near = self.near(vector, depth)
        if not near.num_rows:
            return near
        found = [table.select(["text_hash", "_rowid"]) for table in (near, self.worded(text, depth))]
        fused = RRFReranker().rerank_hybrid(text, *found).rename_columns({"_relevance_score": "score"})
        # A text that only its words have found has its distance, too.
        these = f"{self.where} AND {among('text_hash', fused['text_hash'].to_pylist())}"
        distance = self.near(vector, fused.num_rows, these)
        place = pc.index_in(fused["text_hash"], value_set=distance["text_hash"].combine_chunks())
        ranked = fused.append_column("distance", distance["distance"].take(place))
        return ranked.sort_by([("score", "descending"), ("distance", "ascending"), ("text_hash", "ascending")])


def _best(ask: Callable[[int], pa.Table], limit: int, count: int, column: str, order: str) -> pa.Table:
    """The first rows by a column, equals by text: where the last ties with the next, all are asked for."""
    found = ask(limit + 1)
    if found.num_rows > limit and found[column][limit - 1] == found[column][limit]:
        found = ask(count)
    return found.sort_by([(column, order), ("text_hash", "ascending")]).slice(0, limit)


def episodes_of(table: Table, ranked: pa.Table, where: str, limit: int) -> pa.Table:
    """The first episodes of the ranked texts; those of one text by golem and tick.

    First of one text, which may have a hundred thousand, then of two more, four more, until there are enough.
    """
    from lancedb.query import ColumnOrdering

    order = [ColumnOrdering(column_name=n) for n in ("golem_id", "tick", "episode_id")]
    parts, held, at, size = [MATCH_SCHEMA.empty_table()], 0, 0, 1
    while held < limit and at < ranked.num_rows:
        some = ranked.slice(at, size)
        asked: Any = table.search().where(f"{where} AND {among('text_hash', some['text_hash'].to_pylist())}")
        asked = asked.order_by(order).limit(limit - held if size == 1 else table.count_rows())
        found = asked.select(["episode_id", "golem_id", "tick", "text", "text_hash"]).to_arrow()
        place = pc.index_in(found["text_hash"], value_set=some["text_hash"].combine_chunks())
        for name in ("distance", "score"):
            found = found.append_column(name, some[name].take(place).cast(pa.float32()))
        # A stable sort: those of one text stay in their order.
        first = pc.sort_indices(place).slice(0, limit - held)
        parts.append(found.take(first).select(MATCH_SCHEMA.names).cast(MATCH_SCHEMA))
        held, at, size = held + len(first), at + size, size * 2
    return pa.concat_tables(parts).combine_chunks()
