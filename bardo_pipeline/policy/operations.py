"""Policy of operations: log, writer, maintenance, health checks, embeddings, grading, model calls."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from bardo_pipeline.policy.base import Count, Frozen, Positive, PositiveCount, Unit


class LogPolicy(Frozen):
    """The event log."""

    bucket_count: Annotated[int, Field(ge=1, le=4096)] = Field(
        16, description="hash buckets of the log, fixed at its creation (architecture)"
    )
    reopen_commits: PositiveCount = Field(100, description="commits after which a table handle is reopened (facts)")


class WriterPolicy(Frozen):
    """The live writer: sizes of journal segments and of commits."""

    batch_records: PositiveCount = Field(25, description="records that seal a segment (HB S17)")
    flush_seconds: Positive = Field(30.0, description="age that seals a segment (HB S17: 30,000 ms)")
    segment_bytes_max: Annotated[int, Field(ge=4096)] = Field(
        16 * 2**20, description="size that seals a segment while the drainer is busy (ours)"
    )
    journal_bytes_max: Annotated[int, Field(ge=4096)] = Field(
        256 * 2**20, description="undrained bytes per writer; beyond it appends wait or fail (ours)"
    )
    drain_records_max: PositiveCount = Field(50_000, description="most records of one commit (ours)")
    drain_bytes_max: Annotated[int, Field(ge=4096)] = Field(
        64 * 2**20, description="most journal bytes of one commit (ours)"
    )
    record_bytes_max: Annotated[int, Field(ge=1024)] = Field(
        4 * 2**20, description="a longer record is refused before it is parsed (ours)"
    )
    spool_block_bytes: Annotated[int, Field(ge=4096)] = Field(
        24 * 2**20, description="bytes of a spool file per commit (ours)"
    )


class ReorgPolicy(Frozen):
    """Confirmations: the depth from which a block counts (HB S10)."""

    confirmations: Count = Field(2, description="blocks until an action counts as confirmed (HB S10)")
    confirmations_deep: Count = Field(5, description="blocks while reorgs are frequent (HB S10)")
    window_blocks: PositiveCount = Field(1_000, description="window in which reorgs are counted (HB S10)")
    reorgs_per_100_blocks_max: Positive = Field(
        1.0, description="reorgs per 100 blocks above which the deeper confirmation applies (HB S10)"
    )


class CarePolicy(Frozen):
    """Maintenance: file tiers, retention of commits, derivations and drafts."""

    lookback_ticks: Count = Field(500, description="ticks below a golem's head that stay warm (HB S6)")
    rewrite_rows_max: PositiveCount = Field(
        50_000, description="most rows of one rewrite, which sorts in memory (ours)"
    )
    rewrite_bytes_max: Annotated[int, Field(ge=1024)] = Field(
        32 * 2**20, description="most file bytes of one rewrite (ours)"
    )
    warm_zstd_level: Annotated[int, Field(ge=1, le=22)] = Field(
        1, description="compression of warm files: 6 us a record (measured)"
    )
    cold_zstd_level: Annotated[int, Field(ge=1, le=22)] = Field(
        9, description="compression of cold files: 30 us a record; 15 takes 240 for 1 % less, 17 takes 610 (measured)"
    )
    grace_seconds: Positive = Field(
        3_600.0, description="age at which an unreferenced file is deleted; protects running readers (ours)"
    )
    log_commits_kept: PositiveCount = Field(
        1_000, description="commits of the log that stay as JSON, for fast incremental reads (ours)"
    )
    projection_commits_kept: PositiveCount = Field(100, description="commits of a projection that stay as JSON (ours)")
    index_versions_max: PositiveCount = Field(
        20, description="versions of an episode index; beyond it those past the grace period are deleted (ours)"
    )
    superseded_days: Positive = Field(
        30.0, description="days that an inactive derivation is kept after its last write (ours)"
    )
    derivations_beside_max: PositiveCount = Field(8, description="most derivations beside the active one (ours)")
    leftover_seconds: Positive = Field(
        86_400.0, description="age at which an abandoned draft is deleted; a build takes less (ours)"
    )
    dagster_runs_max: PositiveCount = Field(
        1_000, description="finished Dagster runs kept with their events and logs (ours)"
    )


class HealthPolicy(Frozen):
    """Health checks: a measure beyond its limit is a fault (X-11)."""

    silence_seconds_max: Positive = Field(
        600.0, description="seconds since the last record of a living golem: five of the longest intervals (ours)"
    )
    waiting_seconds_max: Positive = Field(
        1_800.0, description="seconds that a closed cycle waits for derivation: three turns of the schedule (ours)"
    )
    journal_share_max: Unit = Field(0.5, description="undrained share of a writer's journal_bytes_max (ours)")
    undrained_flushes_max: Positive = Field(
        4.0, description="age of undrained records, in flush_seconds: the drainer missed three turns (ours)"
    )
    spool_seconds_max: Positive = Field(300.0, description="age of a file in the spool (ours)")
    quarantine_share_max: Unit = Field(0.01, description="share of a day's records in quarantine (ours)")
    refused_bundles_max: Count = Field(0, description="bundles refused within a day (ours)")


class EmbeddingPolicy(Frozen):
    """Embedding integrity: how far a model may drift from the vectors on record (MEM, "Embedding integrity")."""

    drift_days: Positive = Field(7.0, description="days between two checks (MEM: weekly)")
    distance_warning: Unit = Field(0.02, description="cosine distance from the recorded vector that warns (MEM)")
    distance_critical: Unit = Field(0.05, description="cosine distance that is critical (MEM)")
    neighbour_count: PositiveCount = Field(5, description="nearest texts compared (MEM)")
    neighbours_warning: Unit = Field(
        0.85, description="share of unchanged nearest texts below which the check warns (MEM, canon 57)"
    )
    neighbours_critical: Unit = Field(0.60, description="share below which the check is critical (MEM, canon 57)")
    norm_variance_warning: Positive = Field(
        2.0, description="change of the variance of vector lengths, as a factor, that warns (ours)"
    )
    norm_variance_critical: Positive = Field(4.0, description="factor that is critical (ours; MEM: a sudden increase)")
    batch_texts: PositiveCount = Field(
        256, description="texts per commit, so the most that an interruption loses (ours)"
    )


class GrowthPolicy(Frozen):
    """Scaling thresholds: approximate search, partitioned reads, disk pressure (MEM, "Scaling Thresholds")."""

    approximate_vectors_min: Annotated[int, Field(ge=256)] = Field(
        100_000, description="vectors from which search uses an approximate index (MEM: 100K episodes)"
    )
    recall_min: Unit = Field(0.95, description="recall of an approximate index below which search stays exact (ours)")
    recall_count: PositiveCount = Field(10, description="nearest texts by which recall is measured (ours)")
    recall_questions: PositiveCount = Field(50, description="queries of a recall measurement (ours)")
    relearn_growth: Annotated[float, Field(gt=1.0)] = Field(
        1.5, description="growth of the vector count, as a factor, at which an index is rebuilt (ours)"
    )
    partition_rows: Annotated[int, Field(ge=64)] = Field(
        10_000, description="entries of a bucket from which single-golem reads are partitioned (MEM: 10K)"
    )
    home_bytes_max: PositiveCount = Field(
        500_000_000, description="size of a home without models above which the disk is under pressure (MEM: 500MB)"
    )
    free_bytes_min: Count = Field(
        1_000_000_000, description="free disk space below which the disk is under pressure (ours)"
    )
    pressed_superseded_days: Positive = Field(
        1.0, description="days that an inactive derivation is kept under pressure (ours)"
    )


class FabricPolicy(Frozen):
    """The event fabric: replay for late subscribers, warnings, polling."""

    replay_events: Count = Field(10_000, description="newest events that a late subscriber gets (HB, Event Fabric)")
    queue_warning_depth: Count = Field(2, description="waiting ticks from which the queue warns (HB S12)")
    accuracy_ticks: PositiveCount = Field(
        50, description="ticks between two AccuracyUpdated events: a curator cycle (ours; HB says periodic)"
    )
    poll_seconds: Positive = Field(0.25, description="poll interval of an idle log (ours)")


class WorthPolicy(Frozen):
    """Grading of a memory: measures and their bounds (X-5)."""

    precision_min: Unit = Field(0.9, description="precision of active rules and links on the graded market")
    recall_min: Unit = Field(0.8, description="recall of planted truths above one sigma")
    junk_max: Unit = Field(0.05, description="share of active entries without a supporting outcome")
    fading_half_lives: Positive = Field(2.0, description="half-lives in which an expired truth falls below retrieval")
    retrieval_confidence: Unit = Field(0.5, description="the retrieval threshold (MEM, minConfidence)")
    decoy_confidence_max: Unit = Field(0.6, description="confidence of a decoy as a causal link")
    discovery_rate_max: Unit = Field(
        0.05, description="share of tests that find something in a market without truths (ours)"
    )
    strong_sigma: Positive = Field(1.0, description="size of an effect that must be learned")
    windows_min: PositiveCount = Field(
        3, description="fewest windows in which a rule can be learned (TOOLS, smallest cluster)"
    )
    learnable: Positive = Field(
        7.85, description="windows x (effect in sigmas) squared at which a 5 % test has a power of 0.8 (ours)"
    )
    yardstick_markets: Annotated[int, Field(ge=2)] = Field(8, description="independent markets of a yardstick (ours)")
    yardstick_golems: PositiveCount = Field(18, description="golems per market (ours)")
    yardstick_z: Positive = Field(
        1.96, description="standard errors from zero at which an effect is significant (ours)"
    )
    yardstick_days_min: Annotated[int, Field(ge=2)] = Field(
        5, description="fewest days with a situation for it to be judged (ours)"
    )
    rule_trust: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(
        0.8, description="a rule of confidence c predicts (1 + 0.8 c) / 2 of its decisions (ours)"
    )
    window_minutes: PositiveCount = Field(
        30, description="decisions within one such window count once (ours; a trial's 30 ticks)"
    )
    heirs_gain_min: Unit = Field(0.2, description="relative gain of the median lifetime of heirs over orphans")
    bootstrap_draws: Annotated[int, Field(ge=100)] = Field(
        2_000, description="bootstrap resamples of the markets per interval (ours)"
    )
    questions_in_first: PositiveCount = Field(5, description="results among which the answer must be (HB S3)")


class GatewayPolicy(Frozen):
    """Calls of a language model: timeouts, retries, budgets, prompts. Answers are events, so not hashed."""

    request_seconds_max: Positive = Field(
        60.0, description="timeout of one answer, including the provider's retries (ours)"
    )
    retries_max: Count = Field(2, description="retries of a failed request (ours)")
    corrections_max: Count = Field(1, description="corrections requested for a malformed answer (ours)")
    output_tokens_max: Annotated[int, Field(ge=64)] = Field(2_000, description="tokens of one answer (ours)")
    day_micros_max: Count = Field(2_000_000, description="budget of all golems per UTC day: $2 (ours)")
    golem_day_micros_max: Count = Field(
        250_000, description="budget of one golem per UTC day: HB S3's most expensive call"
    )
    daily_budget_micros: Count = Field(10_000_000, description="total budget of one golem per UTC day: $10 (HB S17)")
    memory_share_max: Unit = Field(
        0.05, description="share of it for memory services, including model calls (MEM, INH-20)"
    )
    input_micros_per_token: Positive = Field(
        5.0, description="micro-dollars if the provider's price is unknown: Opus-class (HB S3)"
    )
    output_micros_per_token: Positive = Field(25.0, description="micro-dollars if the price is unknown")
    bytes_per_token: Positive = Field(
        2.0, description="lower estimate, so an upper bound of a prompt's price: English has 4, digits 2 (ours)"
    )
    phrases_testaments: bool = Field(False, description="whether the proposal job also phrases testaments (ours)")
    phrased_sentences_max: Annotated[int, Field(ge=1, le=256)] = Field(
        32, description="most phrased sentences of a testament: about one page (ours)"
    )
    prompt_rules_max: PositiveCount = Field(24, description="rules and candidates in a prompt (ours)")
    prompt_ticks_max: PositiveCount = Field(16, description="newest evidence ticks per rule in a prompt (ours)")
