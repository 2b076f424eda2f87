"""Evidence: findings are sorted by their keys."""

from __future__ import annotations

import numpy as np
import pytest

from bardo_pipeline.curator.state.evidence import order_of


@pytest.mark.parametrize(
    "scale", [1, 2**31, -1], ids=["keys that fit into one number", "keys that are too large", "negative keys"]
)
def test_findings_are_sorted_by_all_keys_and_equal_ones_stay_in_order(scale: int) -> None:
    random = np.random.default_rng(5)
    keys = [random.integers(0, 6, 500) * scale for _ in range(3)]
    assert order_of(*keys).tolist() == sorted(range(500), key=lambda i: (*(key[i] for key in keys), i))
