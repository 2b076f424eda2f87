"""Chance: uniform numbers from a golem's seed, tick and stream; nobody's luck depends on another's. Pure."""

from __future__ import annotations

import hashlib

import numpy as np

from bardo_pipeline.events.record.row_digest import mix64

(
    STREAM_EXECUTION, STREAM_LIFESPAN, STREAM_THRESHOLD, STREAM_WIDTH, STREAM_FORECAST, STREAM_ATTENTION, STREAM_LOAN,
) = range(7)  # fmt: skip


def seed_of(name: str) -> np.uint64:
    """A 64-bit seed from a name."""
    return np.uint64(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big"))


def uniform(seed: np.ndarray, tick: np.ndarray, stream: int) -> np.ndarray:
    """Numbers in [0, 1), one for each (seed, tick), independent between streams. float64."""
    with np.errstate(over="ignore"):
        word = mix64(mix64(seed ^ (tick.astype(np.uint64) * np.uint64(0xD1342543DE82EF95))) + np.uint64(stream))
    return (word >> np.uint64(11)).astype(np.float64) * 2.0**-53


def drawn(
    group: np.ndarray, seed: np.ndarray, name: np.ndarray, weight: np.ndarray, places: int, stream: int
) -> np.ndarray:
    """Draw for each group as many as it has places for, by weight, without putting back: positions, sorted by group.

    group, seed, name, weight: [candidates]; seed: of the group, name: a number of the candidate's own. Each has a
    chance as long as its weight is above 0, so that nothing starves; the draw depends on nothing else. Those drawn
    first stand first in their group. Source: Efraimidis and Spirakis 2006.
    """
    luck = 1.0 - uniform(seed, name, stream)
    order = np.lexsort((name, -np.log(luck) / np.maximum(weight, 1e-12), group))
    return order[rank_within(group[order]) < places]


def rank_within(group: np.ndarray) -> np.ndarray:
    """Return each element's position, from 0, in its run of equal values."""
    start = np.flatnonzero(np.r_[True, group[1:] != group[:-1]][: len(group)])
    return np.arange(len(group)) - np.repeat(start, np.diff(np.r_[start, len(group)]))
