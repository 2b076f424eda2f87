"""Policy of dying: prices of the death protocol, and the silence that counts as death."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from bardo_pipeline.policy.base import Count, Frozen, Positive, PositiveCount


class DyingPolicy(Frozen):
    """Prices of the death protocol (MEM, "The death moment") and the silence limit. Deaths are events, so not hashed.

    A price grows with the amount of work from its `_min` to its `_max`. The death reserve pays all of them.
    """

    reflection_micros_min: Count = Field(100_000, description="death reflection, Opus: $0.10 (MEM)")
    reflection_micros_max: Count = Field(250_000, description="upper bound: $0.25 (MEM)")
    compression_micros_min: Count = Field(10_000, description="compression of the testament, Haiku: $0.01 (MEM)")
    compression_micros_max: Count = Field(30_000, description="upper bound: $0.03 (MEM)")
    upload_micros_min: Count = Field(10_000, description="upload of the bundle: $0.01 (MEM)")
    upload_micros_max: Count = Field(20_000, description="upper bound: $0.02 (MEM)")
    indexing_micros_min: Count = Field(10_000, description="indexing of the pushed entries: $0.01 (MEM)")
    indexing_micros_max: Count = Field(50_000, description="upper bound: $0.05 (MEM)")
    cheapest_push_count: PositiveCount = Field(
        5, description="insights that the cheapest death pushes (MEM: a handful)"
    )
    notice_seconds_max: Positive = Field(10.0, description="timeout of a webhook call (ours)")
    silence_hours: Positive = Field(
        24.0, description="hours without a tick after which an observer declares a death (ours)"
    )
    silence_clock: Literal["market", "wall"] = Field(
        "market", description="measured by the newest event of the golem's market, or by the wall clock (ours)"
    )

    @model_validator(mode="after")
    def _bounds_ascend(self) -> Self:
        for name in ("reflection", "compression", "upload", "indexing"):
            low, high = getattr(self, f"{name}_micros_min"), getattr(self, f"{name}_micros_max")
            if low > high:
                raise ValueError(f"{name}: the lowest price, {low}, exceeds the highest, {high}")
        return self
