"""Policy of a golem's safety in real time: spending, permits and risk, the decision cache, attention items.

All parts are operational: what they decide is recorded, and no derived table depends on them.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from bardo_pipeline.policy.base import Count, Operational, Positive, PositiveCount, Unit, setting


class SpendingPolicy(Operational):
    """Bands of the daily budget, as shares of `gateway.daily_budget_micros` (HB S12, canon 37)."""

    large_model_share: Unit = setting(0.7, "share of the daily budget from which T2 falls to T1 (HB S12, canon 37)")
    model_share: Unit = setting(0.9, "share from which no model is asked; from 1 nothing is queried (HB S12, canon 37)")

    @model_validator(mode="after")
    def _bands_ascend(self) -> Self:
        if self.large_model_share > self.model_share:
            raise ValueError(f"large_model_share, {self.large_model_share}, exceeds model_share, {self.model_share}")
        return self


class RiskPolicy(Operational):
    """The accuracy gate, permits, and the five layers of the risk engine (HB S3, adaptive clock; canon)."""

    permit_seconds: PositiveCount = setting(60, "validity of a permit: one base interval (ours)")
    accuracy_min: Unit = setting(
        0.4, "share of held predictions below which no act that takes a risk gets a permit; death is at 0.35 (ours)"
    )
    simulated_loss_max: Unit = setting(0.02, "largest simulated cost of an act at T2, as a share of its value (ours)")
    kelly_share: Unit = setting(0.5, "share of Kelly's fraction that an act may cost: half Kelly (ours)")
    kelly_floor: Unit = setting(0.005, "share of the net asset value that an act without an edge may cost (ours)")
    exposure_max: Positive = setting(2.5, "largest assets, net value and debt, over the net value (ours)")
    drawdown_max: Unit = setting(0.15, "drawdown from which no act takes a risk (ours; the circuit breaker is at 0.1)")
    exit_slippage_max: Unit = setting(0.02, "largest slippage of leaving a new position at once (ours)")
    loan_health_min: Positive = setting(1.02, "health of a loan below which no act takes a risk (ours)")


class CachePolicy(Operational):
    """The decision cache (HB S11, canon 36)."""

    mode: Literal["off", "on"] = setting("off", "whether consistent decisions are answered without a model (ADR 114)")
    outcomes_min: PositiveCount = setting(3, "consistent outcomes from which the cache answers (HB S11)")
    ttl_minutes: float = setting(30.0, "validity after the last outcome, event time (canon 36)", ge=15.0, le=45.0)
    drift_max: Unit = setting(0.2, "relative change of a condition that invalidates a decision (HB S11)")


class WatchPolicy(Operational):
    """Attention to items of the environment (HB, adaptive clock; canon: active, watched, dormant)."""

    violation_sigma: Positive = setting(3.0, "standard deviations of a change that is a violation (ours)")
    memory: Unit = setting(0.98, "share of an item's variance kept per residual (ours)")
    first_sigma: Positive = setting(0.01, "standard deviation of an item's change before any residual (ours)")
    quiet_deltas: Count = setting(1, "deltas without a violation before attention falls by one step (ours)")
