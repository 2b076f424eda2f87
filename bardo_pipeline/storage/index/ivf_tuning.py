"""Approximate: an index over many vectors that looks at a part of them, and how much it misses.

Below the policy's number of vectors each is compared. Above it they lie in lists of near ones (IVF, whole vectors), and
a search looks through the nearest lists. How many that must be is measured on the vectors themselves, against comparing
each: the fewest lists that find the policy's share. Where no number does, searches stay exact.
Source: MEM (">100K episodes"); facts (IVF_FLAT at 100 k: built in 4.6 s, 2.6 ms a search, 112 ms without).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bardo_pipeline.policy import GrowthPolicy

if TYPE_CHECKING:
    from lancedb.table import Table

PPM = 1_000_000
_COLUMN = "vector"
_HEX = 16


@dataclass(frozen=True)
class Approximate:
    """How a search goes, as it was measured last.

    lists: how many there are; looked_at: how many of them a search looks through, 0 where it compares all vectors
    because no number of lists found enough. recall_ppm: share of the `nearest` that it finds, of so many questions.
    vectors: how many there were when the lists were learned.
    """

    lists: int
    looked_at: int
    recall_ppm: int
    nearest: int
    questions: int
    vectors: int


def learned(table: Table, before: Approximate | None, policy: GrowthPolicy) -> Approximate | None:
    """The index over a table's vectors, made or made anew where that is due. None below the policy's number.

    table: with columns text_hash and vector (float32 [dimension]). before: how it stood. New vectors join their lists
    when the table is folded; when there are many more than the lists were learned from, lists are learned anew.
    """
    count = table.count_rows()
    if count < policy.approximate_vectors_min:
        return None
    if before is not None and _is_there(table) and count < before.vectors * policy.relearn_growth:
        return before
    from lancedb.index import IvfFlat

    lists = round(count**0.5)
    table.create_index(_COLUMN, config=IvfFlat(distance_type="cosine", num_partitions=lists))
    asked = _questions(table, count, policy.recall_questions)
    truth = [_near(table, one, policy.recall_count, None) for one in asked]
    recall = 0
    for looked_at in _tries(lists):
        found = [_near(table, one, policy.recall_count, looked_at) for one in asked]
        recall = _recall(truth, found)
        if recall >= policy.recall_min * PPM:
            return Approximate(lists, looked_at, recall, policy.recall_count, len(asked), count)
    return Approximate(lists, 0, recall, policy.recall_count, len(asked), count)


def _is_there(table: Table) -> bool:
    return any(index.columns == [_COLUMN] for index in table.list_indices())


def _tries(lists: int) -> Iterator[int]:
    """How many lists to look through: 8, 16, 32, ..., at most half of them, for then comparing all is as cheap."""
    looked_at = 8
    while looked_at <= max(8, lists // 2):
        yield looked_at
        looked_at *= 2


def _questions(table: Table, count: int, wanted: int) -> list[NDArray[np.float32]]:
    """Questions that lie between two texts each, so that none is its own answer; the same for the same texts."""
    share = min(1.0, 2.0 * wanted / count)
    bound = f"{min(int(share * 16**_HEX), 16**_HEX - 1):0{_HEX}x}"
    asked: Any = table.search().where(f"text_hash < '{bound}'")
    rows = asked.select(["text_hash", _COLUMN]).limit(count).to_arrow().sort_by("text_hash").slice(0, 2 * wanted)
    matrix = rows[_COLUMN].combine_chunks().flatten().to_numpy().reshape(rows.num_rows, -1)
    half = rows.num_rows // 2
    return list((matrix[:half] + matrix[half : 2 * half]).astype(np.float32))


def _near(table: Table, vector: NDArray[np.float32], count: int, looked_at: int | None) -> set[str]:
    asked: Any = table.search(vector, vector_column_name=_COLUMN, query_type="vector")
    asked = asked.distance_type("cosine")
    asked = asked.bypass_vector_index() if looked_at is None else asked.nprobes(looked_at)
    return set(asked.select(["text_hash", "_distance"]).limit(count).to_arrow()["text_hash"].to_pylist())


def _recall(truth: list[set[str]], found: list[set[str]]) -> int:
    """Ppm of what was to be found that was."""
    wanted = sum(map(len, truth))
    return sum(len(one & other) for one, other in zip(truth, found, strict=True)) * PPM // wanted if wanted else PPM
