"""The rows of the highest scores, against a full sort."""

from __future__ import annotations

import numpy as np
import pytest

from bardo_pipeline.retrieval.hybrid_search import highest


@pytest.mark.parametrize("size", [1, 7, 400, 5_000])
@pytest.mark.parametrize("count", [1, 8, 200])
@pytest.mark.parametrize("shape", ["distinct", "ties", "rising", "mostly zero", "equal when rounded"])
def test_the_highest_rows_are_those_of_a_full_sort_with_all_ties(size: int, count: int, shape: str) -> None:
    rng = np.random.default_rng(size + count)
    scores = rng.random(size)
    if shape == "ties":
        scores = np.round(scores, 1)
    elif shape == "rising":
        scores = np.sort(scores)
    elif shape == "mostly zero":
        scores[rng.random(size) < 0.97] = 0.0
    elif shape == "equal when rounded":
        scores = np.round(scores, 1) + 4e-10 * rng.choice([-1, 0, 1], size)
    rounded = np.round(scores, 9)
    bar = np.sort(rounded)[::-1][min(count, size) - 1]
    rows, found = highest(scores, count)
    assert rows.tolist() == np.flatnonzero((rounded >= bar) & (rounded > 0.0)).tolist()
    assert found.tolist() == rounded[rows].tolist()
