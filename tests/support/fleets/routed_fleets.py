"""Golems with the learned gate and the router of chain events, in a market that lends."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from bardo_pipeline.market.market import Market, Reserves
from bardo_pipeline.policy import TriagePolicy
from tests.support.fleets.gated_fleets import GATED
from tests.support.fleets.loan_markets import RICH, loan
from tests.support.fleets.memory_fleets import Lived, live, lively_market

ROUTED = GATED.model_copy(
    update={"triage": TriagePolicy(mode="routed", event_window=20, large_value_micros=600_000_000, borderline=0.15)}
)


@cache
def market() -> Market:
    """A lively market whose lender's rates move at every third bar or so."""
    drawn, chance = lively_market(1_100), np.random.default_rng(4)
    moves = np.where(chance.random((2, drawn.bars)) < 0.3, chance.normal(0.0, 0.001, (2, drawn.bars)), 0.0)
    rates = np.maximum(0.03 + moves.cumsum(axis=1), 0.001)
    return replace(drawn, reserves=Reserves(np.ones_like(rates), np.ones_like(rates), rates))


@cache
def routed() -> Lived:
    """Golems with the learned gate and the router; two may borrow."""
    return live(market(), lineages=range(3), founding=replace(RICH, loan=loan(0.5)), policy=ROUTED)


@cache
def lives() -> dict[str, dict[int, dict[str, Any]]]:
    """The records of each golem by tick."""
    rows: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for row in routed().rows:
        rows[row["golem_id"]][row["tick"]] = row
    return rows
