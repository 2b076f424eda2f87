"""Policy of knowledge that leaves a golem: to its clade, to the vote, to its heirs, to living recipients."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from bardo_pipeline.policy.base import Count, Frozen, Positive, PositiveCount, Unit


class BridgePolicy(Frozen):
    """Quality gates for entries that a golem shares (MEM, "Bridge quality gates")."""

    admission_min: Unit = Field(0.55, description="mean of the admission gate's five parts must exceed this (MEM)")
    insight_confidence: Unit = Field(0.6, description="lowest confidence of shared insights (MEM)")
    legacy_hayflick: Unit = Field(0.85, description="age over lifespan above which golems push more (canon 12, MEM)")
    legacy_confidence: Unit = Field(0.4, description="lowest confidence of shared insights above that age (canon 12)")
    heuristic_confidence: Unit = Field(0.7, description="lowest confidence of shared heuristics (MEM)")
    warning_novelty_min: Unit = Field(
        0.15, description="lowest novelty of shared warnings: 1 - KAT's likeness of 0.85 (KAT, use is ours)"
    )


class KatabasisPolicy(Frozen):
    """Votes and consensus (KAT, canon 48)."""

    vote_confidence_min: Unit = Field(0.70, description="lowest confidence of a routine vote (KAT)")
    death_vote_weight: Positive = Field(2.5, description="weight of a vote cast at death (KAT)")
    quorum_votes: PositiveCount = Field(3, description="votes that make a quorum (KAT)")
    death_floor: Unit = Field(0.65, description="vote floor where the quorum depends on a death vote (KAT, canon 48)")
    death_floor_confidence_min: Unit = Field(0.5, description="canon 48")
    contradiction_variance: Unit = Field(
        0.15, description="weighted population variance from which votes contradict (KAT, canon 48)"
    )
    drawdown_max: Unit = Field(0.02, description="share lost beyond which an action fails at once (KAT)")
    loss_min: Unit = Field(0.003, description="share lost from which a lasting loss is a failure (KAT, canon 47)")
    scar_confidence: Unit = Field(0.7, description="confidence of a cause without a rule for or against it (canon 1)")
    scar_confidence_min: Unit = Field(0.65, description="lowest confidence in the causal link (KAT)")
    scar_explained_min: Unit = Field(0.5, description="share of a loss that the named cause must explain (ours)")
    scar_half_life_days: Positive = Field(30.0, description="scars are tactical (KAT, canon 4)")
    low_vol_ratio: Positive = Field(
        0.5, description="a range is LowVol below this ratio of sigma to its average (canon 32)"
    )


class InheritancePolicy(Frozen):
    """Selection of inherited entries, and attenuation of their confidence (INH S7, canon 2, 40, 41)."""

    budget: PositiveCount = Field(2048, description="entries inherited at a death (INH S7.1)")
    priority_share: Unit = Field(0.25, description="share of the budget for priority entries (INH S7.1)")
    diversity_share: Unit = Field(0.5, description="share of the budget for diversity (INH S7.1)")
    weismann: Literal["attenuate", "reset"] = Field(
        "attenuate", description="x 0.85 per inheritance, or flat 0.4 (canon 2)"
    )
    attenuation: Unit = Field(0.85, description="confidence multiplier per inheritance (INH S7.2)")
    reset_confidence: Unit = Field(0.4, description="inherited confidence under `reset` (INH S2)")
    baldwin_generation: Count = Field(3, description="INH S7.5")
    baldwin_confidence: Unit = Field(0.7, description="INH S7.5")
    episode_count: Count = Field(64, description="episodes in a bundle (canon 41)")
    testament_items: Annotated[int, Field(ge=1, le=64)] = Field(
        8, description="items per category of a testament (ours)"
    )
    testament_bytes_max: Annotated[int, Field(ge=2048)] = Field(
        5120, description="size of a testament's page: about 5 KB (MEM)"
    )


class ReceptionPolicy(Frozen):
    """Knowledge that a living golem receives (INH S5.2, S7.6)."""

    import_confidence: Unit = Field(
        0.4, description="confidence of entries imported by tool or archive (TOOLS, canon 2)"
    )
    replicant_confidence: Unit = Field(
        0.3, description="confidence of entries reported by a replicant (INH S7.6, canon 3)"
    )
    entries_max: PositiveCount = Field(100, description="entries of one delivery (INH S5.3: 100 per hour and source)")
    shadow_validations: PositiveCount = Field(
        3, description="confirming cycles before a received entry is admitted (TOOLS: clusters of at least 3)"
    )
    size_factor: Positive = Field(
        10.0, description="a stated effect above this multiple of the largest own effect is anomalous (ours)"
    )
    size_entries_min: Count = Field(5, description="entries of a source from which its effect sizes are judged (ours)")


class DivergencePolicy(Frozen):
    """Minimum that a generation must add to its inheritance (INH S8.1, canon 43)."""

    divergence_min: Unit = Field(
        0.15, description="share of heuristics that differ, by confidence (INH S8.1, canon 43)"
    )
    novel_min: Count = Field(5, description="entries that were not inherited (INH S8.1)")
    invalidated_min: Count = Field(3, description="inherited entries invalidated with reasoning (INH S8.1)")
    gaps_min: Count = Field(1, description="sentences that name open questions (INH S8.1: explicit gaps)")
    question_ratio_min: Unit = Field(0.10, description="share of sentences that are questions (INH S8.1)")


class SuccessionPolicy(Frozen):
    """Retries of automatic succession (INH S13). Not hashed."""

    retry_seconds: tuple[Positive, ...] = Field(
        (30.0, 120.0, 480.0), description="delays after the first, second, third failure of provisioning (INH S13)"
    )
    retry_later_seconds: Positive = Field(3_600.0, description="delay after every later failure (INH S13)")


class StewardPolicy(Frozen):
    """Limits beyond which a steward is warned about an admissible bundle (P-5). Not hashed."""

    sample_min: Annotated[int, Field(ge=2)] = Field(8, description="entries from which shares are judged (ours)")
    confidence_mean_min: Unit = Field(
        0.15, description="lowest mean confidence of the inherited entries at death (ours)"
    )
    confidence_mean_max: Unit = Field(0.85, description="highest mean confidence (INH S7.2: only floors exceed it)")
    unsure_share_max: Unit = Field(0.5, description="share of entries below the pruning confidence (ours)")
    lasting_share_max: Unit = Field(0.5, description="share of entries that never decay (ours)")
    stale_days: PositiveCount = Field(30, description="days without validation: two slow half-lives (ours)")
    stale_share_max: Unit = Field(0.5, description="share of stale entries (ours)")
    domains_min: Count = Field(2, description="fewest domains of a bundle (ours)")
    confidence_drift_max: Unit = Field(
        0.6, description="largest gap between the distributions of two generations (ours)"
    )
    domain_drift_max: Unit = Field(0.5, description="share of entries that moved to other domains (ours)")
    size_factor_max: Annotated[float, Field(ge=1.0, allow_inf_nan=False)] = Field(
        4.0, description="largest size ratio of a bundle to its predecessor, either way (ours)"
    )
