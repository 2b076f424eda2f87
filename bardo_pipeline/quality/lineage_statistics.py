"""Gains of a condition over another in lifetime, return and end worth, with intervals. Pure.

The two golems of a pair differ only in the knowledge that they begin with. Golems of one market are not independent,
so intervals come from a cluster bootstrap that resamples whole markets. Source: X-5; docs/adr/0029.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bardo_pipeline.arrays import Float64Array, Int64Array
from bardo_pipeline.policy import WorthPolicy
from bardo_pipeline.quality.memory_targets import Bound

LIFETIME, WORTH, END_WORTH = "ticks", "return", "end_worth"
MEASURES = LIFETIME, WORTH, END_WORTH

CASH = "cash"
"""Baseline: the owner founds no golem and keeps the budget. No costs of living are paid, so the share stays 1."""

CASH_SHARE = 1.0


class LifeResults(NamedTuple):
    """Results of the golems under a condition, ordered by pair.

    Parameters
    ----------
    market : number of the market
    ticks : ticks lived
    returns : gain of worth at the pair's common age; 0.1 is 10 %
    ends : worth at the end of life as a share of the budget
    causes : cause of death
    """

    market: Int64Array
    ticks: Int64Array
    returns: Float64Array
    ends: Float64Array
    causes: tuple[str, ...]


class Gain(NamedTuple):
    """Gain of one condition over a base condition: median over pairs, its 95 % interval, mean, shares of wins and ties.

    Parameters
    ----------
    measure : "ticks" (ratio less 1: 0.2 is 20 % longer), "return" or "end_worth" (differences)
    """

    condition: str
    base: str
    measure: str
    median: float
    low: float
    high: float
    mean: float
    wins: float
    ties: float


def gains(results: Mapping[str, LifeResults], condition: str, seed: int, policy: WorthPolicy) -> tuple[Gain, ...]:
    """Return the gains of one condition over every other; `seed` is that of the bootstrap."""
    return tuple(
        gain(results[condition], results[base], (condition, base), measure, seed, policy)
        for measure in MEASURES
        for base in results
        if base != condition
    )


def gain(
    results: LifeResults, base: LifeResults, names: tuple[str, str], measure: str, seed: int, policy: WorthPolicy
) -> Gain:
    """Compare pairs: ratios of lifetimes less 1, or differences of returns or of end worth."""
    ahead = {
        LIFETIME: results.ticks / np.maximum(base.ticks, 1) - 1.0,
        WORTH: results.returns - base.returns,
        END_WORTH: results.ends - base.ends,
    }[measure]
    return _gain(ahead, results.market, (*names, measure), seed, policy)


def gain_over_cash(results: LifeResults, condition: str, seed: int, policy: WorthPolicy) -> Gain:
    """Compare the end worth of each golem with its budget kept in cash."""
    return _gain(results.ends - CASH_SHARE, results.market, (condition, CASH, END_WORTH), seed, policy)


def _gain(ahead: Float64Array, market: Int64Array, names: tuple[str, str, str], seed: int, policy: WorthPolicy) -> Gain:
    low, high = interval(ahead, market, seed, policy.bootstrap_draws)
    wins, ties = float(np.mean(ahead > 0)), float(np.mean(ahead == 0))
    return Gain(*names, float(np.median(ahead)), low, high, float(np.mean(ahead)), wins, ties)


def interval(values: Float64Array, market: Int64Array, seed: int, draws: int) -> tuple[float, float]:
    """Return the 95 % interval of the median by a bootstrap over markets; values and market have one element a pair.

    With a single market it is the range over its pairs.
    """
    _, place = np.unique(market, return_inverse=True)
    groups = np.split(values[np.argsort(place, kind="stable")], np.cumsum(np.bincount(place))[:-1])
    if len(groups) == 1:
        return float(values.min()), float(values.max())
    luck = np.random.default_rng(seed).integers(0, len(groups), (draws, len(groups)))
    medians = [float(np.median(np.concatenate([groups[g] for g in row]))) for row in luck.tolist()]
    low, high = np.percentile(medians, (2.5, 97.5))
    return float(low), float(high)


def lineage_bounds(gain_rows: Sequence[Gain], policy: WorthPolicy) -> tuple[Bound, ...]:
    """Return the bounds on the gains of heirs over orphans and clones, and of entries alone over orphans if measured.

    Heirs beat clones if one measure is significantly better and the other is not significantly worse. Longer lives may
    not be bought with the owner's worth: heirs may not end significantly below orphans.
    """
    gain_over = {(g.base, g.measure): g for g in gain_rows if g.condition == "heirs"}
    orphans = gain_over["orphans", LIFETIME]
    results = [
        Bound.of(
            "heirs outlive orphans", orphans.median, "at least", policy.heirs_gain_min,
            f"median gain of life; {_between(orphans)}",
        ),
        Bound.of("surely", orphans.low, "above", 0.0, "low end of its 95 % interval"),
    ]  # fmt: skip
    clones = gain_over["clones", LIFETIME], gain_over["clones", WORTH]
    ahead = [g for g in clones if g.low > 0]
    behind = [g for g in clones if g.high < 0]
    best = max(clones, key=lambda g: g.low)
    detail = "; ".join(f"{g.measure}: {g.median:+.1%}, {_between(g)}" for g in clones)
    results.append(Bound("heirs beat clones", best.low, "above", 0.0, bool(ahead) and not behind, detail))
    return (*results, *_worth_bounds(gain_rows, policy))


def _worth_bounds(gain_rows: Sequence[Gain], policy: WorthPolicy) -> Iterator[Bound]:
    """Yield the bounds on worth, and on entries alone, whose gains are among the rows."""
    by_name = {(g.condition, g.base, g.measure): g for g in gain_rows}
    for condition, base, measure, name, limit in (
        ("heirs", "clones", WORTH, "heirs earn more than clones", policy.clones_worth_min),
        ("entries_only", "orphans", END_WORTH, "entries alone end richer than orphans", policy.entries_worth_min),
        ("entries_only", "orphans", LIFETIME, "entries alone outlive orphans", policy.entries_gain_min),
    ):
        gain = by_name.get((condition, base, measure))
        if gain is not None:
            yield Bound.of(name, gain.median, "at least", limit, f"median gain of {measure}; {_between(gain)}")
            if measure == END_WORTH:
                yield Bound.of("surely richer", gain.low, "above", 0.0, "low end of its 95 % interval")
    sold = by_name.get(("heirs", "orphans", END_WORTH))
    if sold is not None:
        detail = f"median {sold.median:+.1%} of the budget; high end of its 95 % interval"
        yield Bound.of("heirs sell no worth for life", sold.high, "at least", 0.0, detail)


def _between(difference: Gain) -> str:
    return f"95 % between {difference.low:+.1%} and {difference.high:+.1%}"
