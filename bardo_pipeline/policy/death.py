"""What dying costs, and when silence is a death."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from bardo_pipeline.policy.base import Count, Frozen, Positive


class DyingPolicy(Frozen):
    """Thanatopsis and its prices (MEM, "The death moment"); silence. Deaths are events: no projection depends on it.

    A price lies between its bounds, by how much there is to do. All of them are paid from the death reserve.
    """

    reflection_micros_min: Count = Field(100_000, description="death reflection, Opus: $0.10 (MEM)")
    reflection_micros_max: Count = Field(250_000, description="to $0.25 (MEM)")
    compression_micros_min: Count = Field(10_000, description="compression of the testament, Haiku: $0.01 (MEM)")
    compression_micros_max: Count = Field(30_000, description="to $0.03 (MEM)")
    upload_micros_min: Count = Field(10_000, description="upload of the bundle: $0.01 (MEM)")
    upload_micros_max: Count = Field(20_000, description="to $0.02 (MEM)")
    indexing_micros_min: Count = Field(10_000, description="indexing of what is pushed: $0.01 (MEM)")
    indexing_micros_max: Count = Field(50_000, description="to $0.05 (MEM)")
    cheapest_push_count: Annotated[int, Field(ge=1)] = Field(
        5, description="insights that the cheapest death pushes: a handful (MEM)"
    )
    notice_seconds_max: Positive = Field(10.0, description="for a webhook to take a notice (ours)")
    silence_hours: Positive = Field(24.0, description="without a tick, after which an observer declares a death (ours)")
    silence_clock: Literal["market", "wall"] = Field(
        "market", description="by the newest event of the golem's market, or by the wall clock since its last (ours)"
    )

    @model_validator(mode="after")
    def _bounds_ascend(self) -> Self:
        for name in ("reflection", "compression", "upload", "indexing"):
            low, high = getattr(self, f"{name}_micros_min"), getattr(self, f"{name}_micros_max")
            if low > high:
                raise ValueError(f"{name}: the lowest price, {low}, exceeds the highest, {high}")
        return self
