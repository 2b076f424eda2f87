"""Confirmations: how deep a block must lie before what it holds counts, given how often the chain takes blocks back.

Pure. Source: HB S10: two confirmations; more than 1 reorg per 100 blocks over a window of 1,000 blocks raises it to 5.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bardo_pipeline.policy import ReorgPolicy

Blocks = NDArray[np.int64]


class Depth(NamedTuple):
    """How many confirmations are asked for, and how many reorgs of the window ask for them."""

    confirmations: int
    reorgs: int


def depth_at(head: int, reorged: Blocks, policy: ReorgPolicy) -> Depth:
    """The depth that is asked for when the chain stands at a block.

    head: the newest block. reorged: the block at which each reorg began, any order, one element a reorg. The window is
    the `window_blocks` newest blocks, head included; a chain that is younger than that has the same window.
    """
    blocks = np.asarray(reorged, np.int64)
    count = int(((blocks > head - policy.window_blocks) & (blocks <= head)).sum())
    frequent = count * 100 > policy.reorgs_per_100_blocks_max * policy.window_blocks
    return Depth(policy.confirmations_deep if frequent else policy.confirmations, count)
