"""Events of a chain that concern a pool and its lender, by tick: swaps, and loans of each asset. Pure.

A trace has minute bars, so an event of a tick stands for all swaps between two ticks, or for all loans and repayments
that moved a reserve's rate. The trace records no gas and no creation of single transactions. Source: HB online learning
(triage of chain events); docs/adr/0111.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bardo_pipeline.arrays import BoolArray, Float64Array, Int64Array
from bardo_pipeline.market.market import ASSETS, Reserves

EVENT_KINDS = ("swap", *(f"loan_{asset.lower()}" for asset in ASSETS))
"""Kinds of events, rows of the columns."""

SWAP = 0


@dataclass(frozen=True)
class ChainEvents:
    """Events by kind and tick, [EVENT_KINDS, ticks].

    present: whether something happened since the last tick. value_micros: swapped value, 0 for loans. surprise_nats:
    half the squared deviation of the size's logarithm from earlier events of the kind. excess: change of a rate over
    the mean change of earlier events; NaN for swaps. share: of the last ticks that had such an event. Both, and
    surprise, are NaN without enough earlier ones.
    """

    present: BoolArray
    value_micros: Int64Array
    surprise_nats: Float64Array
    excess: Float64Array
    share: Float64Array


def chain_events(volume_micros: Int64Array, reserves: Reserves | None, window: int) -> ChainEvents:
    """Return the events of a market's ticks.

    Parameters
    ----------
    volume_micros : swapped since the tick before, [ticks]
    reserves : by tick; None without a lender
    window : events of a kind, or ticks, that an event is compared with
    """
    ticks = len(volume_micros)
    size = np.zeros((len(EVENT_KINDS), ticks))
    size[SWAP] = volume_micros
    if reserves is not None:
        size[SWAP + 1 :, 1:] = np.abs(np.diff(reserves.borrow_rate, axis=1))
    present = size > 0.0
    surprise, excess = np.full((2, *size.shape), np.nan)
    for kind, happens in enumerate(present):
        logs = np.log(size[kind, happens])
        mean, square = _before(logs, window), _before(logs * logs, window)
        surprise[kind, happens] = 0.5 * np.square(logs - mean) / np.maximum(square - mean * mean, 1e-6)
        if kind != SWAP:
            excess[kind, happens] = size[kind, happens] / _before(size[kind, happens], window)
    share = np.stack([_before(row.astype(np.float64), window) for row in present])
    value = np.zeros(size.shape, np.int64)
    value[SWAP] = volume_micros
    return ChainEvents(present, value, surprise, excess, share)


def _before(values: Float64Array, window: int) -> Float64Array:
    """Return the mean of the `window` values before each one; NaN where there are fewer."""
    out = np.full(len(values), np.nan)
    if len(values) > window:
        sums = np.r_[0.0, np.cumsum(values)]
        out[window:] = (sums[window:-1] - sums[: -window - 1]) / window
    return out
