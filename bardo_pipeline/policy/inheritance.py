"""What goes from one mind to others: to the clade, to the vote, and to whoever is born next."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from bardo_pipeline.policy.base import Count, Frozen, Positive, Unit


class BridgePolicy(Frozen):
    """What crosses from a golem's own mind to others (MEM, "Bridge quality gates")."""

    admission_min: Unit = Field(0.55, description="mean of the admission gate's five parts, to be exceeded (MEM)")
    insight_confidence: Unit = Field(0.6, description="of insights that cross (MEM)")
    legacy_hayflick: Unit = Field(0.85, description="age over lifespan above which golems push more (canon 12, MEM)")
    legacy_confidence: Unit = Field(0.4, description="of insights that cross from then on, instead of 0.6 (canon 12)")
    heuristic_confidence: Unit = Field(0.7, description="of heuristics that cross (MEM)")
    warning_novelty_min: Unit = Field(0.15, description="of warnings: one less KAT's 0.85 for alike (KAT, ours in use)")


class KatabasisPolicy(Frozen):
    """Votes and consensus (KAT, canon 48)."""

    vote_confidence_min: Unit = Field(0.70, description="routine sweep (KAT)")
    death_vote_weight: Positive = Field(2.5, description="KAT")
    quorum_votes: Annotated[int, Field(ge=1)] = Field(3, description="KAT")
    death_floor: Unit = Field(0.65, description="where the quorum rests on a death vote (KAT, canon 48)")
    death_floor_confidence_min: Unit = Field(0.5, description="canon 48")
    contradiction_variance: Unit = Field(0.15, description="weighted population variance (KAT, canon 48)")
    drawdown_max: Unit = Field(0.02, description="a loss beyond it is a failure at once (KAT)")
    loss_min: Unit = Field(0.003, description="from here on a loss is a failure if it lasts (KAT, canon 47)")
    scar_confidence: Unit = Field(0.7, description="of a cause that no rule speaks for or against (canon 1)")
    scar_confidence_min: Unit = Field(0.65, description="in the causal link (KAT)")
    scar_explained_min: Unit = Field(0.5, description="share of a loss that what is named must explain (ours)")
    scar_half_life_days: Positive = Field(30.0, description="scars are tactical (KAT, canon 4)")
    low_vol_ratio: Positive = Field(0.5, description="sigma over its average under which a range is LowVol (canon 32)")


class InheritancePolicy(Frozen):
    """The bottleneck and the barrier (INH S7, canon 2, 40, 41)."""

    budget: Annotated[int, Field(ge=1)] = Field(2048, description="entries that cross a death (INH S7.1)")
    priority_share: Unit = Field(0.25, description="INH S7.1")
    diversity_share: Unit = Field(0.5, description="INH S7.1")
    weismann: Literal["attenuate", "reset"] = Field("attenuate", description="x 0.85 a crossing, or flat 0.4 (canon 2)")
    attenuation: Unit = Field(0.85, description="INH S7.2")
    reset_confidence: Unit = Field(0.4, description="INH S2")
    baldwin_generation: Count = Field(3, description="INH S7.5")
    baldwin_confidence: Unit = Field(0.7, description="INH S7.5")
    episode_count: Count = Field(64, description="episodes in a bundle (canon 41)")
    testament_items: Annotated[int, Field(ge=1, le=64)] = Field(8, description="items a category keeps (ours)")
    testament_bytes_max: Annotated[int, Field(ge=2048)] = Field(5120, description="about 5 KB (MEM)")


class ReceptionPolicy(Frozen):
    """What becomes of knowledge that comes to a golem in the midst of its life (INH S5.2, S7.6)."""

    import_confidence: Unit = Field(0.4, description="of what is imported, by tool or archive (TOOLS, canon 2)")
    replicant_confidence: Unit = Field(0.3, description="of what a replicant reports (INH S7.6, canon 3)")
    entries_max: Annotated[int, Field(ge=1)] = Field(
        100, description="of one delivery (INH S5.3: 100 an hour a source)"
    )
    shadow_validations: Annotated[int, Field(ge=1)] = Field(
        3, description="cycles whose outcomes bore it out, before it is admitted (TOOLS: clusters of at least 3)"
    )
    size_factor: Positive = Field(
        10.0, description="times the largest effect held: stated beyond it is anomalous (ours)"
    )
    size_entries_min: Count = Field(5, description="entries of a source that make a distribution of sizes (ours)")


class DivergencePolicy(Frozen):
    """What a generation must add to what it was given (INH S8.1, canon 43)."""

    divergence_min: Unit = Field(
        0.15, description="share of heuristics that differ, by confidence (INH S8.1, canon 43)"
    )
    novel_min: Count = Field(5, description="entries that were not inherited (INH S8.1)")
    invalidated_min: Count = Field(3, description="inherited entries invalidated with reasoning (INH S8.1)")
    gaps_min: Count = Field(1, description="sentences that name what is open (INH S8.1: explicit gaps)")
    question_ratio_min: Unit = Field(0.10, description="share of what is said that are questions (INH S8.1)")


class SuccessionPolicy(Frozen):
    """Automatic succession: when what failed is tried again (INH S13). No projection depends on it."""

    retry_seconds: tuple[Positive, ...] = Field(
        (30.0, 120.0, 480.0), description="after the first, second, third failure of provisioning (INH S13)"
    )
    retry_later_seconds: Positive = Field(3_600.0, description="and after every later one (INH S13)")


class StewardPolicy(Frozen):
    """When a steward is warned of a bundle that may be inherited nevertheless (P-5). No projection depends on it."""

    sample_min: Annotated[int, Field(ge=2)] = Field(8, description="entries from which on shares mean something (ours)")
    confidence_mean_min: Unit = Field(0.15, description="mean confidence of what crosses, at death (ours)")
    confidence_mean_max: Unit = Field(0.85, description="INH S7.2: nothing but floors crosses with more")
    unsure_share_max: Unit = Field(0.5, description="of entries below the confidence at which they are pruned (ours)")
    lasting_share_max: Unit = Field(0.5, description="of entries that never fade (ours)")
    stale_days: Annotated[int, Field(ge=1)] = Field(30, description="without validation: two slow half-lives (ours)")
    stale_share_max: Unit = Field(0.5, description="of entries that went so long without (ours)")
    domains_min: Count = Field(2, description="domains that a bundle is about (ours)")
    confidence_drift_max: Unit = Field(
        0.6, description="largest gap between the distributions of two generations (ours)"
    )
    domain_drift_max: Unit = Field(0.5, description="share of entries that moved to other domains (ours)")
    size_factor_max: Annotated[float, Field(ge=1.0, allow_inf_nan=False)] = Field(
        4.0, description="by which a bundle may outgrow, or fall short of, its predecessor's (ours)"
    )
