"""Distance of a market's latest returns from a reference window, in the order of ticks. Pure.

Source: HB S5 (topology signal); canon ("Wasserstein distance of the window's returns from a reference").
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from bardo_pipeline.arrays import Float64Array

_TICKS_AT_ONCE = 4_096


def returns_distance(returns: Float64Array, window: int, reference: int) -> Float64Array:
    """Return the 1-Wasserstein distance of the last `window` returns from the `reference` returns before them.

    The distance is in mean absolute deviations of the reference from its median, so it has no unit.

    Parameters
    ----------
    returns : [ticks]
    reference : a multiple of `window`

    Returns
    -------
    [ticks], 0 or more; NaN without enough earlier ticks, and after a reference of equal returns
    """
    assert reference % window == 0, f"{reference} is no multiple of {window}"
    out, length = np.full(len(returns), np.nan), window + reference
    for first in range(0, len(returns) - length + 1, _TICKS_AT_ONCE):
        rows = sliding_window_view(returns[first : first + _TICKS_AT_ONCE + length - 1], length)
        before = np.sort(rows[:, :reference], axis=1)
        latest = np.repeat(np.sort(rows[:, reference:], axis=1), reference // window, axis=1)
        spread = np.abs(before - np.median(before, axis=1, keepdims=True)).mean(axis=1)
        distance = np.abs(before - latest).mean(axis=1)
        out[first + length - 1 : first + length - 1 + len(rows)] = np.where(
            spread > 1e-12, distance / np.where(spread > 1e-12, spread, 1.0), np.nan
        )
    return out
