"""Random numbers by seed, tick and stream; each golem's numbers are independent of other golems. Pure."""

from __future__ import annotations

import hashlib

import numpy as np

from bardo_pipeline.arrays import Float64Array, Int64Array, UInt64Array
from bardo_pipeline.events.record.row_digest import mix64

(
    STREAM_EXECUTION, STREAM_LIFESPAN, STREAM_THRESHOLD, STREAM_WIDTH, STREAM_FORECAST, STREAM_ATTENTION, STREAM_LOAN,
) = range(7)  # fmt: skip
STREAM_REPLAY = 16
STREAM_EXPLORE = 17
STREAM_SHADOW = 32
"""First stream of the router's baseline; each kind of event has two."""
STREAM_ARMS = 4_096
"""First stream of the router's arms; each has DRAWS streams."""
STREAM_BOUNDARY = 1_024
"""First stream of the boundaries of the learned gate; each has DRAWS streams."""
DRAWS = 64


def seed_of(name: str) -> np.uint64:
    """Return the first 64 bits of a name's SHA-256."""
    return np.uint64(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big"))


def uniform(seed: UInt64Array, tick: Int64Array | UInt64Array, stream: int | Int64Array) -> Float64Array:
    """Return one number in [0, 1) per (seed, tick), independent between streams; the three broadcast."""
    return uniform_of(words(seed, tick), stream)


def words(seed: UInt64Array, tick: Int64Array | UInt64Array) -> UInt64Array:
    """Return a word per (seed, tick), from which `uniform_of` draws the numbers of many streams."""
    with np.errstate(over="ignore"):
        return mix64(seed ^ (tick.astype(np.uint64) * np.uint64(0xD1342543DE82EF95)))


def uniform_of(word: UInt64Array, stream: int | Int64Array) -> Float64Array:
    """Return the number in [0, 1) of a stream for each word."""
    with np.errstate(over="ignore"):
        mixed = mix64(word + np.uint64(stream))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def weighted_sample(
    group: Int64Array, seed: UInt64Array, name: Int64Array | UInt64Array, weight: Float64Array, size: int, stream: int
) -> Int64Array:
    """Draw up to `size` candidates per group by weight, without replacement.

    Source: Efraimidis and Spirakis 2006.

    Parameters
    ----------
    group, weight : [candidates]
    seed : seed of the candidate's group
    name : number that identifies the candidate within its group

    Returns
    -------
    positions of the drawn candidates, sorted by group, then by order of the draw
    """
    luck = 1.0 - uniform(seed, name, stream)
    order = np.lexsort((name, -np.log(luck) / np.maximum(weight, 1e-12), group))
    return order[rank_within(group[order]) < size]


def rank_within(group: Int64Array) -> Int64Array:
    """Return each element's position, from 0, in its run of equal values."""
    is_first = np.ones(len(group), bool)
    np.not_equal(group[1:], group[:-1], out=is_first[1:])
    return np.arange(len(group)) - np.flatnonzero(is_first)[np.cumsum(is_first) - 1]
