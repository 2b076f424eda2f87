"""What an owner's library takes in, and when it calls something proven (INH S14)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from bardo_pipeline.policy.base import Count, Frozen, Positive, Unit


class LibraryPolicy(Frozen):
    """The five ways into a library, seed kits, and what many golems bore out (INH S14, canon 7, 10, 11, 17)."""

    deposit_confidence: Unit = Field(0.6, description="of insights and heuristics at death (INH S14)")
    link_confidence: Unit = Field(0.5, description="of causal links at death (INH S14)")
    link_evidence: Count = Field(3, description="evidence of causal links at death (INH S14)")
    pull_seconds: Positive = Field(25.0, description="after the testament, for the owner to pull more (INH S14)")
    export_confidence: Unit = Field(0.5, description="of what a living golem's owner exports (INH S14)")
    overflow_siblings: Annotated[int, Field(ge=1)] = Field(3, description="that validated an entry (INH S14)")
    purchase_confidence: Unit = Field(0.3, description="of what was bought (INH S14, canon 3)")
    battle_tested_golems: Annotated[int, Field(ge=1)] = Field(5, description="that validated an entry (INH S14)")
    battle_tested_factor: Annotated[float, Field(ge=1.0, le=2.0)] = Field(1.1, description="once (INH S14, canon 11)")
    battle_tested_confidence_max: Unit = Field(0.95, description="what the factor lifts to at most (canon 11)")
    default_lineages: Annotated[int, Field(ge=1)] = Field(
        5, description="independent lineages that were equipped and bore it out (INH S14)"
    )
    kit_golems: Annotated[int, Field(ge=1)] = Field(3, description="that made alike entries by themselves (INH S14)")
    kit_days: Positive = Field(7.0, description="within which they did (INH S14)")
    kit_validators: Count = Field(2, description="golems that bore it out after that (INH S14)")
