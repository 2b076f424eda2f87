"""Confirmation depth: two blocks, five if more than one block in a hundred is reorged."""

from __future__ import annotations

import numpy as np
import pytest

from bardo_pipeline.derivation.strikes_and_reorgs import confirmation_depth
from bardo_pipeline.policy import ReorgPolicy

POLICY = ReorgPolicy()


def blocks(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


@pytest.mark.row("EV-8")
@pytest.mark.parametrize(
    ("reorged", "confirmations", "counted"),
    [
        (range(0), 2, 0),
        (range(5_000, 5_009), 2, 9),
        (range(5_000, 5_010), 2, 10),
        (range(5_000, 5_011), 5, 11),
        (range(5_000, 5_200), 5, 200),
    ],
    ids=["never", "nine of a thousand", "ten of a thousand", "eleven of a thousand", "often"],
)
def test_more_than_one_reorg_in_a_hundred_blocks_raises_the_depth(
    reorged: range, confirmations: int, counted: int
) -> None:
    assert confirmation_depth(5_500, blocks(*reorged), POLICY) == (confirmations, counted)


@pytest.mark.row("EV-8")
def test_only_the_newest_thousand_blocks_count() -> None:
    often = blocks(*range(4_001, 4_012))
    assert confirmation_depth(5_000, often, POLICY) == (5, 11)
    assert confirmation_depth(5_001, often, POLICY) == (2, 10), "block 4,001 is a thousand blocks old"
    assert confirmation_depth(4_010, often, POLICY) == (2, 10), "block 4,011 is yet to come"
    assert confirmation_depth(9_000, often, POLICY) == (2, 0)


@pytest.mark.row("EV-8")
def test_a_chain_shorter_than_the_window_has_the_same_limit() -> None:
    assert confirmation_depth(20, blocks(*range(10)), POLICY) == (2, 10)
    assert confirmation_depth(20, blocks(*range(11)), POLICY) == (5, 11)


@pytest.mark.row("EV-8")
def test_window_rate_and_depths_come_from_the_policy() -> None:
    rules = ReorgPolicy(confirmations=1, confirmations_deep=9, window_blocks=100, reorgs_per_100_blocks_max=3.0)
    assert confirmation_depth(500, blocks(401, 450, 500), rules) == (1, 3)
    assert confirmation_depth(500, blocks(401, 402, 450, 500), rules) == (9, 4)
    assert confirmation_depth(500, blocks(400, 402, 450, 500), rules) == (1, 3)
