"""The daily cost of thinking, by ticks, shares of tiers and prices of calls. Pure. Source: HB S3, canon 38.

The mart `fct_tier_costs` has the same model in SQL, over recorded ticks.
"""

from __future__ import annotations

from collections.abc import Mapping


def daily_cost_micros(ticks_per_day: float, shares: Mapping[str, float], call_micros: Mapping[str, float]) -> float:
    """Return the micro-dollars that a golem spends on models in a day.

    Parameters
    ----------
    ticks_per_day : ticks of a day, of all tiers
    shares : share of the ticks by tier, in [0, 1]; tiers without a call may be left out
    call_micros : mean price of a call by tier, in micro-dollars
    """
    return sum(ticks_per_day * share * call_micros[tier] for tier, share in shares.items())
