"""Policy of knowledge that leaves a golem: to its clade, to the vote, to heirs, living recipients and the library."""

from __future__ import annotations

from typing import Literal

from bardo_pipeline.policy.base import Count, Frozen, Operational, Positive, PositiveCount, Unit, setting


class BridgePolicy(Frozen):
    """Quality gates for entries that a golem shares (MEM, "Bridge quality gates")."""

    admission_min: Unit = setting(0.55, "mean of the admission gate's five parts must exceed this (MEM)")
    insight_confidence: Unit = setting(0.6, "lowest confidence of shared insights (MEM)")
    legacy_hayflick: Unit = setting(0.85, "age over lifespan above which golems push more (canon 12, MEM)")
    legacy_confidence: Unit = setting(0.4, "lowest confidence of shared insights above that age (canon 12)")
    heuristic_confidence: Unit = setting(0.7, "lowest confidence of shared heuristics (MEM)")
    warning_novelty_min: Unit = setting(
        0.15, "lowest novelty of shared warnings: 1 - KAT's likeness of 0.85 (KAT, use is ours)"
    )


class KatabasisPolicy(Frozen):
    """Votes and consensus (KAT, canon 48)."""

    vote_confidence_min: Unit = setting(0.70, "lowest confidence of a routine vote (KAT)")
    critical_confidence_min: Unit = setting(0.65, "lowest confidence of a vote on a confirmed critical warning (KAT)")
    critical_loss: Unit = setting(0.003, "share lost from which a warning is critical (as `loss_min`)")
    death_vote_weight: Positive = setting(2.5, "weight of a vote cast at death (KAT)")
    quorum_votes: PositiveCount = setting(3, "votes that make a quorum (KAT)")
    death_floor: Unit = setting(0.65, "vote floor where the quorum depends on a death vote (KAT, canon 48)")
    death_floor_confidence_min: Unit = setting(0.5, "canon 48")
    contradiction_variance: Unit = setting(
        0.15, "weighted population variance from which votes contradict (KAT, canon 48)"
    )
    drawdown_max: Unit = setting(0.02, "share lost beyond which an action fails at once (KAT)")
    loss_min: Unit = setting(0.003, "share lost from which a lasting loss is a failure (KAT, canon 47)")
    scar_confidence: Unit = setting(0.7, "confidence of a cause without a rule for or against it (canon 1)")
    scar_confidence_min: Unit = setting(0.65, "lowest confidence in the causal link (KAT)")
    scar_explained_min: Unit = setting(0.5, "share of a loss that the named cause must explain (ours)")
    scar_half_life_days: Positive = setting(30.0, "scars are tactical (KAT, canon 4)")
    low_vol_ratio: Positive = setting(0.5, "a range is LowVol below this ratio of sigma to its average (canon 32)")


class InheritancePolicy(Frozen):
    """Selection of inherited entries, and attenuation of their confidence (INH S7, canon 2, 40, 41)."""

    budget: PositiveCount = setting(2048, "entries inherited at a death (INH S7.1)")
    priority_share: Unit = setting(0.25, "share of the budget for priority entries (INH S7.1)")
    diversity_share: Unit = setting(0.5, "share of the budget for diversity (INH S7.1)")
    weismann: Literal["attenuate", "reset"] = setting("attenuate", "x 0.85 per inheritance, or flat 0.4 (canon 2)")
    attenuation: Unit = setting(0.85, "confidence multiplier per inheritance (INH S7.2)")
    reset_confidence: Unit = setting(0.4, "inherited confidence under `reset` (INH S2)")
    baldwin_generation: Count = setting(3, "INH S7.5")
    baldwin_confidence: Unit = setting(0.7, "INH S7.5")
    episode_count: Count = setting(64, "episodes in a bundle (canon 41)")
    testament_items: int = setting(8, "items per category of a testament (ours)", ge=1, le=64)
    testament_bytes_max: int = setting(5120, "size of a testament's page: about 5 KB (MEM)", ge=2048)


class ReceptionPolicy(Frozen):
    """Knowledge that a living golem receives (INH S5.2, S7.6)."""

    import_confidence: Unit = setting(0.4, "confidence of entries imported by tool or archive (TOOLS, canon 2)")
    replicant_confidence: Unit = setting(0.3, "confidence of entries reported by a replicant (INH S7.6, canon 3)")
    entries_max: PositiveCount = setting(100, "entries of one delivery (INH S5.3: 100 per hour and source)")
    shadow_validations: PositiveCount = setting(
        3, "confirming cycles before a received entry is admitted (TOOLS: clusters of at least 3)"
    )
    size_factor: Positive = setting(
        10.0, "a stated effect above this multiple of the largest own effect is anomalous (ours)"
    )
    size_entries_min: Count = setting(5, "entries of a source from which its effect sizes are judged (ours)")


class CladePolicy(Operational):
    """Limits of the exchange between siblings, in entries within an hour of a golem's own time (INH S5.3), and the pace
    of public posts and of backups. Not hashed.

    All that a golem receives is recorded, so a rebuild does not read them.
    """

    hour_out: PositiveCount = setting(100, "entries that a golem shares, warnings apart (INH S5.3)")
    hour_in: PositiveCount = setting(200, "entries that a golem receives, parcels of warnings apart (INH S5.3)")
    hour_source: PositiveCount = setting(100, "entries that a golem receives of one sibling (INH S5.3)")
    refused_min: PositiveCount = setting(3, "refused entries of one sibling from which it may be throttled (ours)")
    refused_share_max: Unit = setting(0.5, "share of its judged entries that may be refused (ours)")
    kept_days: PositiveCount = setting(7, "age of a parcel or note that a golem still receives (INH S6.3)")
    threat_half_life_hours: Positive = setting(24.0, "half-life of a threat (canon 49)")
    threat_floor: Unit = setting(0.05, "intensity below which a threat has faded (as the floor of bloodstains)")
    shift_threat: Unit = setting(
        0.5, "threat of a sibling's market that turned volatile: below the probe's high limit (ours)"
    )
    lethe_window_minutes: Positive = setting(60.0, "window of time in which waiting posts leave together (ours)")
    lethe_release_share: Unit = setting(0.25, "share of the waiting votes that a window releases (ours)")
    pheromone_release_share: Unit = setting(0.5, "share of the waiting pheromones that a window releases (ours)")
    lethe_tickets: int = setting(16, "signatures of a request, real and unused ones (ours)", ge=1, le=64)
    lethe_kept_days: int = setting(30, "days that a relay keeps a post: propositions are tactical (KAT)", ge=1, le=366)
    query_micros: Count = setting(500, "micro-dollars of a query to public or sibling knowledge (ours)")
    write_day_micros: Count = setting(25, "micro-dollars of a day for which the layers keep a written entry (ours)")
    query_confidence: Unit = setting(0.25, "highest confidence in what a query finds among siblings (MEM, canon 3)")
    lethe_confidence: Unit = setting(0.2, "highest confidence in what a query finds in Lethe (MEM, canon 3)")
    archive_confidence: Unit = setting(0.3, "highest confidence in what a query finds of dead golems (MEM, canon 3)")
    lethe_top: PositiveCount = setting(3, "propositions for the regime that a golem holds as priors (KAT)")
    backup_ticks: PositiveCount = setting(200, "ticks of a golem after which its clade is backed up (INH S6.5)")


class DivergencePolicy(Frozen):
    """Minimum that a generation must add to its inheritance (INH S8.1, canon 43)."""

    divergence_min: Unit = setting(0.15, "share of heuristics that differ, by confidence (INH S8.1, canon 43)")
    novel_min: Count = setting(5, "entries that were not inherited (INH S8.1)")
    invalidated_min: Count = setting(3, "inherited entries invalidated with reasoning (INH S8.1)")
    gaps_min: Count = setting(1, "sentences that name open questions (INH S8.1: explicit gaps)")
    question_ratio_min: Unit = setting(0.10, "share of sentences that are questions (INH S8.1)")


class SuccessionPolicy(Operational):
    """Retries of automatic succession (INH S13). Not hashed."""

    retry_seconds: tuple[Positive, ...] = setting(
        (30.0, 120.0, 480.0), "delays after the first, second, third failure of provisioning (INH S13)"
    )
    retry_later_seconds: Positive = setting(3_600.0, "delay after every later failure (INH S13)")


class StewardPolicy(Operational):
    """Limits beyond which a steward is warned about an admissible bundle (P-5). Not hashed."""

    sample_min: int = setting(8, "entries from which shares are judged (ours)", ge=2)
    confidence_mean_min: Unit = setting(0.15, "lowest mean confidence of the inherited entries at death (ours)")
    confidence_mean_max: Unit = setting(0.85, "highest mean confidence (INH S7.2: only floors exceed it)")
    unsure_share_max: Unit = setting(0.5, "share of entries below the pruning confidence (ours)")
    lasting_share_max: Unit = setting(0.5, "share of entries that never decay (ours)")
    stale_days: PositiveCount = setting(30, "days without validation: two slow half-lives (ours)")
    stale_share_max: Unit = setting(0.5, "share of stale entries (ours)")
    domains_min: Count = setting(2, "fewest domains of a bundle (ours)")
    confidence_drift_max: Unit = setting(0.6, "largest gap between the distributions of two generations (ours)")
    domain_drift_max: Unit = setting(0.5, "share of entries that moved to other domains (ours)")
    size_factor_max: float = setting(
        4.0, "largest size ratio of a bundle to its predecessor, either way (ours)", ge=1.0, allow_inf_nan=False
    )


class LibraryPolicy(Frozen):
    """The five ways into a library, battle-tested entries, seed kits (INH S14, canon 7, 10, 11, 17)."""

    deposit_confidence: Unit = setting(0.6, "lowest confidence of insights and heuristics at death (INH S14)")
    link_confidence: Unit = setting(0.5, "lowest confidence of causal links at death (INH S14)")
    link_evidence: Count = setting(3, "fewest evidence items of causal links at death (INH S14)")
    pull_seconds: Positive = setting(25.0, "seconds after the testament in which the owner may pull more (INH S14)")
    export_confidence: Unit = setting(0.5, "lowest confidence of entries exported from a living golem (INH S14)")
    overflow_siblings: PositiveCount = setting(3, "siblings that validated an entry (INH S14)")
    purchase_confidence: Unit = setting(0.3, "confidence of bought entries (INH S14, canon 3)")
    battle_tested_golems: PositiveCount = setting(5, "golems that validated an entry (INH S14)")
    battle_tested_factor: float = setting(
        1.1, "confidence multiplier, applied once (INH S14, canon 11)", ge=1.0, le=2.0
    )
    battle_tested_confidence_max: Unit = setting(0.95, "upper bound of the multiplied confidence (canon 11)")
    default_lineages: PositiveCount = setting(5, "equipped independent lineages that confirmed an entry (INH S14)")
    kit_golems: PositiveCount = setting(3, "golems that independently made alike entries (INH S14)")
    kit_days: Positive = setting(7.0, "days within which they made them (INH S14)")
    kit_validators: Count = setting(2, "golems that confirmed the entry later (INH S14)")
