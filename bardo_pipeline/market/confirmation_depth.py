"""Confirmation depth of blocks, by the frequency of reorgs of the chain. Pure.

Source: HB S10: two confirmations; more than 1 reorg per 100 blocks over a window of 1,000 blocks raises it to 5.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.policy import ReorgPolicy


class Depth(NamedTuple):
    """Required confirmations, and the number of reorgs in the window."""

    confirmations: int
    reorgs: int


def depth_at(head: int, reorged: Int64Array, policy: ReorgPolicy) -> Depth:
    """Return the required depth at this head. The window has the `window_blocks` newest blocks, head included.

    Parameters
    ----------
    head : newest block
    reorged : first block of each reorg, in any order
    """
    blocks = np.asarray(reorged, np.int64)
    count = int(((blocks > head - policy.window_blocks) & (blocks <= head)).sum())
    frequent = count * 100 > policy.reorgs_per_100_blocks_max * policy.window_blocks
    return Depth(policy.confirmations_deep if frequent else policy.confirmations, count)
