"""Lineage: how much longer and how much better those lived who inherited, with intervals. Pure.

Golems are compared in pairs that differ in what they began with alone. Golems of one market share its luck, so
intervals come from drawing whole markets again, with replacement (a cluster bootstrap). Source: X-5,
issue 5 ("Proof of worth").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bardo_pipeline.policy import WorthPolicy
from bardo_pipeline.quality.memory_targets import Bound

Floats = NDArray[np.float64]

LIFETIME, WORTH = "ticks", "return"


class Lived(NamedTuple):
    """How golems lived under one condition, pair by pair in one order, all [golems]: the market each lived in, its
    ticks, its worth at the end over that at the start less one, and its cause of death."""

    market: NDArray[np.int64]
    ticks: NDArray[np.int64]
    returns: Floats
    causes: tuple[str, ...]


class Gain(NamedTuple):
    """What those of one condition have before those of another: the median over pairs, and its interval.

    of: "ticks" (a share: 0.2 is a fifth longer) or "return" (a difference of shares). mean: over pairs. wins, ties:
    shares of pairs.
    """

    one: str
    other: str
    of: str
    median: float
    low: float
    high: float
    mean: float
    wins: float
    ties: float


def gains(lived: Mapping[str, Lived], one: str, seed: int, policy: WorthPolicy) -> tuple[Gain, ...]:
    """Lifetimes and returns of one condition beside those of every other. seed: of the bootstrap's draws."""
    return tuple(
        gain(lived[one], lived[other], (one, other), of, seed, policy)
        for of in (LIFETIME, WORTH)
        for other in lived
        if other != one
    )


def gain(one: Lived, other: Lived, names: tuple[str, str], of: str, seed: int, policy: WorthPolicy) -> Gain:
    """One comparison: for lifetimes the median of the pairs' ratios less one, for returns that of their differences."""
    ahead = one.ticks / np.maximum(other.ticks, 1) - 1.0 if of == LIFETIME else one.returns - other.returns
    low, high = interval(ahead, one.market, seed, policy.bootstrap_draws)
    wins, ties = float(np.mean(ahead > 0)), float(np.mean(ahead == 0))
    return Gain(*names, of, float(np.median(ahead)), low, high, float(np.mean(ahead)), wins, ties)


def interval(values: Floats, market: NDArray[np.int64], seed: int, draws: int) -> tuple[float, float]:
    """The 95 % interval of a median, whole markets drawn again. values, market: [pairs]. Same seed, same interval.

    One market drawn again is itself, which shows nothing: of one, it is the range over its pairs.
    """
    _, place = np.unique(market, return_inverse=True)
    groups = np.split(values[np.argsort(place, kind="stable")], np.cumsum(np.bincount(place))[:-1])
    if len(groups) == 1:
        return float(values.min()), float(values.max())
    luck = np.random.default_rng(seed).integers(0, len(groups), (draws, len(groups)))
    medians = [float(np.median(np.concatenate([groups[g] for g in row]))) for row in luck.tolist()]
    low, high = np.percentile(medians, (2.5, 97.5))
    return float(low), float(high)


def lineage_bounds(found: Sequence[Gain], policy: WorthPolicy) -> tuple[Bound, ...]:
    """What inheritance has to be worth: heirs outlive orphans by so much, surely, and clones of what has changed.

    found: gains of heirs. Whoever beats clones lives longer or comes out richer, surely, and is not surely worse in the
    other.
    """
    told = {(g.other, g.of): g for g in found}
    orphans = told["orphans", LIFETIME]
    out = [
        Bound(
            "heirs outlive orphans", orphans.median, "at least", policy.heirs_gain_min,
            orphans.median >= policy.heirs_gain_min, f"median gain of life; {_between(orphans)}",
        ),
        Bound("surely", orphans.low, "above", 0.0, orphans.low > 0, "low end of its 95 % interval"),
    ]  # fmt: skip
    clones = told["clones", LIFETIME], told["clones", WORTH]
    ahead = [g for g in clones if g.low > 0]
    behind = [g for g in clones if g.high < 0]
    best = max(clones, key=lambda g: g.low)
    said = "; ".join(f"{g.of}: {g.median:+.1%}, {_between(g)}" for g in clones)
    out.append(Bound("heirs beat clones", best.low, "above", 0.0, bool(ahead) and not behind, said))
    return tuple(out)


def _between(found: Gain) -> str:
    return f"95 % between {found.low:+.1%} and {found.high:+.1%}"
