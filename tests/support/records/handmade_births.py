"""Births without a run, for tests that need life events only."""

from __future__ import annotations

from bardo_pipeline.events.life.events import Born, LifeEvent, Traits, life_event
from bardo_pipeline.policy import Policy
from tests.conftest import NOW


def birth_of(golem_id: str, run: str | None = None) -> LifeEvent:
    """Return the birth of a golem of an owner, in a run if one is named."""
    return life_event(
        golem_id,
        NOW,
        Born(
            owner_id="owner",
            generation=0,
            lineage_id=golem_id if run is None else f"{run}/{golem_id}",
            predecessor_id=None,
            bundle_hash=None,
            credits_micros=1,
            reserve_micros=1,
            capital_micros=1,
            lifespan_ticks=9,
            market="none",
            market_hash="none",
            policy_hash=Policy().hash,
            derivation_id="none",
            traits=Traits(rebalance_threshold=0.7, range_half_width_ticks=160, forecast_memory=0.95),
        ),
    )
