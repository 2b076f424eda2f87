"""Truths that were planted in a synthetic market. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PlantedTruth:
    """A regularity planted in a synthetic market, against which learning is graded.

    Parameters
    ----------
    cause, effect : names of observed variables
    lag_bars : minutes from cause to effect (for a decay, its half-life), >= 0
    regime : "calm", "trending_up", "trending_down", "volatile" or "any"
    sign : +1 if the effect moves with the cause, -1 if against it
    span_bars : minutes around the lag in which the effect is visible
    size, sigma : mean of the effect and standard deviation of one observation without it, in one unit
    kind : "causal"; "entailed" (follows from causal ones; right if known, not required); "decoy" (a correlation only)
    restates : name of the causal truth that an entailed one expresses in another variable
    rule_sign : +1 if the truth makes acting pay in its regime, -1 if it makes acting lose, 0 without influence
    valid_until_bar, valid_from_bar : first bar without and with the truth; None: no such bar
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
        """Effect in standard deviations of one observation, >= 0."""
        return abs(self.size) / self.sigma
