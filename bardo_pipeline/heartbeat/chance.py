"""Chance: uniform numbers from a golem's seed, tick and stream; nobody's luck depends on another's. Pure."""

from __future__ import annotations

import hashlib

import numpy as np

from bardo_pipeline.events.digest import mix64

STREAM_EXECUTION, STREAM_LIFESPAN, STREAM_THRESHOLD, STREAM_WIDTH, STREAM_FORECAST = range(5)


def seed_of(name: str) -> np.uint64:
    """A 64-bit seed from a name."""
    return np.uint64(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big"))


def uniform(seed: np.ndarray, tick: np.ndarray, stream: int) -> np.ndarray:
    """Numbers in [0, 1), one for each (seed, tick), independent between streams. float64."""
    with np.errstate(over="ignore"):
        word = mix64(mix64(seed ^ (tick.astype(np.uint64) * np.uint64(0xD1342543DE82EF95))) + np.uint64(stream))
    return (word >> np.uint64(11)).astype(np.float64) * 2.0**-53
