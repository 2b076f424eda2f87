"""Golems with the learned gate, whose boundaries let every kind of tick through."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from typing import Any

from bardo_pipeline.policy import GatePolicy, GatingPolicy, Policy
from tests.support.fleets.memory_fleets import FOUNDING, Lived, live, lively_market

GATED = Policy(
    gate=GatePolicy(mode="learned"),
    gating=GatingPolicy(
        boundary_priors=((3.0, 3.0), (2.0, 4.0), (1.0, 5.0)), boundary_memory=0.8, explore_share=0.05,
        event_error_min=0.4, event_loss_min=0.004, effect_min_ppm=100,
    ),
)  # fmt: skip


@cache
def learned() -> Lived:
    """Golems with the learned gate, whose boundaries let every kind of tick through."""
    return live(lively_market(1_100), lineages=range(4), founding=FOUNDING, policy=GATED)


@cache
def lives() -> dict[str, dict[int, dict[str, Any]]]:
    """The records of each golem by tick."""
    rows: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for row in learned().rows:
        rows[row["golem_id"]][row["tick"]] = row
    return rows
