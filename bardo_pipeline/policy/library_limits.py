"""Policy of an owner's library: admission of entries, and proof by many golems (INH S14)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from bardo_pipeline.policy.base import Count, Frozen, Positive, PositiveCount, Unit


class LibraryPolicy(Frozen):
    """The five ways into a library, battle-tested entries, seed kits (INH S14, canon 7, 10, 11, 17)."""

    deposit_confidence: Unit = Field(0.6, description="lowest confidence of insights and heuristics at death (INH S14)")
    link_confidence: Unit = Field(0.5, description="lowest confidence of causal links at death (INH S14)")
    link_evidence: Count = Field(3, description="fewest evidence items of causal links at death (INH S14)")
    pull_seconds: Positive = Field(
        25.0, description="seconds after the testament in which the owner may pull more (INH S14)"
    )
    export_confidence: Unit = Field(
        0.5, description="lowest confidence of entries exported from a living golem (INH S14)"
    )
    overflow_siblings: PositiveCount = Field(3, description="siblings that validated an entry (INH S14)")
    purchase_confidence: Unit = Field(0.3, description="confidence of bought entries (INH S14, canon 3)")
    battle_tested_golems: PositiveCount = Field(5, description="golems that validated an entry (INH S14)")
    battle_tested_factor: Annotated[float, Field(ge=1.0, le=2.0)] = Field(
        1.1, description="confidence multiplier, applied once (INH S14, canon 11)"
    )
    battle_tested_confidence_max: Unit = Field(0.95, description="upper bound of the multiplied confidence (canon 11)")
    default_lineages: PositiveCount = Field(
        5, description="equipped independent lineages that confirmed an entry (INH S14)"
    )
    kit_golems: PositiveCount = Field(3, description="golems that independently made alike entries (INH S14)")
    kit_days: Positive = Field(7.0, description="days within which they made them (INH S14)")
    kit_validators: Count = Field(2, description="golems that confirmed the entry later (INH S14)")
