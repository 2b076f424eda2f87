"""Bands of the daily budget: they lower tiers before any request to a model is built. Pure, over columns.

A day's spending is the recorded cost of a golem's ticks of that UTC day of event time, inference and gas. A resumed run
lives its recorded ticks again, so it goes on with what they spent. Nothing overrides a band: forced ticks are lowered
too. Source: HB S12, canon 37.
"""

from __future__ import annotations

import numpy as np

from bardo_pipeline.arrays import Int8Array, Int64Array
from bardo_pipeline.events.record.model import TIERS
from bardo_pipeline.heartbeat.fleet import Fleet
from bardo_pipeline.policy import Policy

ALL_TIERS, NO_LARGE_MODEL, NO_MODEL, NO_QUERY = range(4)
BANDS = ("all_tiers", "no_large_model", "no_model", "no_query")
"""Names of the bands; a record states spending from the second band on."""

T0, T1, T2 = (TIERS.index(name) for name in ("T0", "T1", "T2"))
DAY_US = 86_400_000_000


def begin_day(fleet: Fleet, at_us: int) -> None:
    """Forget the spending of an earlier UTC day."""
    begins = fleet.spent_day != at_us // DAY_US
    fleet.day_spent[begins], fleet.spent_day[begins] = 0, at_us // DAY_US


def band_of(spent: Int64Array, policy: Policy) -> Int64Array:
    """Return the band of a day's spending in micro-dollars; a limit belongs to the band above it."""
    cap, rules = policy.gateway.daily_budget_micros, policy.spending
    band = np.zeros(len(spent), np.int64)
    for limit in (round(rules.large_model_share * cap), round(rules.model_share * cap), cap):
        band += spent >= limit
    return band


def lowered(tier: Int8Array, band: Int64Array) -> Int8Array:
    """Return the tiers that the bands allow: T2 falls to T1, and without a model T1 and T2 fall to T0."""
    if not band.any():
        return tier
    thinks = (tier == T1) | (tier == T2)
    allowed = np.where((tier == T2) & (band == NO_LARGE_MODEL), T1, tier)
    return np.where(thinks & (band >= NO_MODEL), T0, allowed).astype(np.int8)


def spend(fleet: Fleet, cost: Int64Array) -> None:
    """Add the cost of this tick, in micro-dollars, to the day's spending."""
    fleet.day_spent += cost
