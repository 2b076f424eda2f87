"""Truths: what a market is known to hold, because it was planted there. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PlantedTruth:
    """A regularity that a synthetic market holds on purpose, so that learning can be graded against it.

    cause, effect: names of what is observed; lag_bars: minutes from cause to effect (for a decay, its half-life), >= 0.
    regime: "calm", "trending_up", "trending_down", "volatile", or "any".
    sign: +1 where the effect moves with the cause, -1 where it moves against it.
    span_bars: for how many minutes about the lag the effect can be seen. size, sigma: the effect's mean, and the spread
    of a single look at what it moves without it, in one unit. kind: "causal", "entailed" (it follows from causal ones:
    right where it is known, and not asked for), or "decoy" (the two go together, and neither moves the other).
    restates: the causal truth that an entailed one tells in another variable: who knows this knows that.
    rule_sign: what it makes of acting in its regime (+1: it pays, -1: it loses beside holding), 0: no matter of it.
    valid_until_bar: the first bar at which it no longer holds; None: it lasts. valid_from_bar: the first at which it
    does; None: from the beginning.
    """

    name: str
    statement: str
    cause: str
    effect: str
    lag_bars: int
    regime: str
    sign: int
    span_bars: int = 0
    size: float = 0.0
    sigma: float = 1.0
    kind: str = "causal"
    restates: str | None = None
    rule_sign: int = 0
    valid_until_bar: int | None = None
    valid_from_bar: int | None = None

    @property
    def strength(self) -> float:
        """The effect in sigmas of a single look, >= 0."""
        return abs(self.size) / self.sigma
