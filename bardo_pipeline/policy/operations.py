"""Policy of operations: log, writer, maintenance, health checks, embeddings, grading, model calls, memory tools."""

from __future__ import annotations

from bardo_pipeline.policy.base import Count, Frozen, Operational, Positive, PositiveCount, Unit, setting


class LogPolicy(Frozen):
    """The event log."""

    bucket_count: int = setting(16, "hash buckets of the log, fixed at its creation (architecture)", ge=1, le=4096)
    reopen_commits: PositiveCount = setting(100, "commits after which a table handle is reopened (facts)")


class WriterPolicy(Operational):
    """The live writer: sizes of journal segments and of commits."""

    batch_records: PositiveCount = setting(25, "records that seal a segment (HB S17)")
    flush_seconds: Positive = setting(30.0, "age that seals a segment (HB S17: 30,000 ms)")
    segment_bytes_max: int = setting(16 * 2**20, "size that seals a segment while the drainer is busy (ours)", ge=4096)
    journal_bytes_max: int = setting(
        256 * 2**20, "undrained bytes per writer; beyond it appends wait or fail (ours)", ge=4096
    )
    drain_records_max: PositiveCount = setting(50_000, "most records of one commit (ours)")
    drain_bytes_max: int = setting(64 * 2**20, "most journal bytes of one commit (ours)", ge=4096)
    record_bytes_max: int = setting(4 * 2**20, "a longer record is refused before it is parsed (ours)", ge=1024)
    clock_ahead_seconds_max: Positive = setting(
        300.0, "largest distance of observed_at ahead of the recording clock (ours: five minutes)"
    )
    spool_block_bytes: int = setting(24 * 2**20, "bytes of a spool file per commit (ours)", ge=4096)


class ReorgPolicy(Operational):
    """Confirmations: the depth from which a block counts (HB S10)."""

    confirmations: Count = setting(2, "blocks until an action counts as confirmed (HB S10)")
    confirmations_deep: Count = setting(5, "blocks while reorgs are frequent (HB S10)")
    window_blocks: PositiveCount = setting(1_000, "window in which reorgs are counted (HB S10)")
    reorgs_per_100_blocks_max: Positive = setting(
        1.0, "reorgs per 100 blocks above which the deeper confirmation applies (HB S10)"
    )


class CarePolicy(Operational):
    """Maintenance: file tiers, retention of commits, derivations and drafts."""

    lookback_ticks: Count = setting(500, "ticks below a golem's head that stay warm (HB S6)")
    rewrite_rows_max: PositiveCount = setting(50_000, "most rows of one rewrite, which sorts in memory (ours)")
    rewrite_bytes_max: int = setting(32 * 2**20, "most file bytes of one rewrite (ours)", ge=1024)
    warm_zstd_level: int = setting(1, "compression of warm files: 6 us a record (measured)", ge=1, le=22)
    cold_zstd_level: int = setting(
        9, "compression of cold files: 30 us a record; 15 takes 240 for 1 % less, 17 takes 610 (measured)", ge=1, le=22
    )
    grace_seconds: Positive = setting(
        3_600.0, "age at which an unreferenced file is deleted; protects running readers (ours)"
    )
    life_files_max: PositiveCount = setting(
        64, "appended files of life events beyond which they are merged; opening one costs 10 ms (measured)"
    )
    log_commits_kept: PositiveCount = setting(
        1_000, "commits of the log that stay as JSON, for fast incremental reads (ours)"
    )
    projection_commits_kept: PositiveCount = setting(100, "commits of a projection that stay as JSON (ours)")
    index_versions_max: PositiveCount = setting(
        20, "versions of an episode index; beyond it those past the grace period are deleted (ours)"
    )
    superseded_days: Positive = setting(30.0, "days that an inactive derivation is kept after its last write (ours)")
    derivations_beside_max: PositiveCount = setting(8, "most derivations beside the active one (ours)")
    leftover_seconds: Positive = setting(
        86_400.0, "age at which an abandoned draft is deleted; a build takes less (ours)"
    )
    dagster_runs_max: PositiveCount = setting(1_000, "finished Dagster runs kept with their events and logs (ours)")


class HealthPolicy(Operational):
    """Health checks: a measure beyond its limit is a fault (X-11)."""

    silence_seconds_max: Positive = setting(
        600.0, "seconds since the last record of a living golem: five of the longest intervals (ours)"
    )
    waiting_seconds_max: Positive = setting(
        1_800.0, "seconds that a closed cycle waits for derivation: three turns of the schedule (ours)"
    )
    journal_share_max: Unit = setting(0.5, "undrained share of a writer's journal_bytes_max (ours)")
    undrained_flushes_max: Positive = setting(
        4.0, "age of undrained records, in flush_seconds: the drainer missed three turns (ours)"
    )
    spool_seconds_max: Positive = setting(300.0, "age of a file in the spool, also of one that is never taken (ours)")
    quarantine_share_max: Unit = setting(0.01, "share of a day's records in quarantine (ours)")
    refused_bundles_max: Count = setting(0, "bundles refused within a day (ours)")


class EmbeddingPolicy(Operational):
    """Embedding integrity: how far a model may drift from the vectors on record (MEM, "Embedding integrity")."""

    drift_days: Positive = setting(7.0, "days between two checks (MEM: weekly)")
    distance_warning: Unit = setting(0.02, "cosine distance from the recorded vector that warns (MEM)")
    distance_critical: Unit = setting(0.05, "cosine distance that is critical (MEM)")
    neighbour_count: PositiveCount = setting(5, "nearest texts compared (MEM)")
    neighbours_warning: Unit = setting(
        0.85, "share of unchanged nearest texts below which the check warns (MEM, canon 57)"
    )
    neighbours_critical: Unit = setting(0.60, "share below which the check is critical (MEM, canon 57)")
    norm_variance_warning: Positive = setting(
        2.0, "change of the variance of vector lengths, as a factor, that warns (ours)"
    )
    norm_variance_critical: Positive = setting(4.0, "factor that is critical (ours; MEM: a sudden increase)")
    batch_texts: PositiveCount = setting(256, "texts per commit, so the most that an interruption loses (ours)")


class GrowthPolicy(Operational):
    """Scaling thresholds: approximate search, partitioned reads, disk pressure (MEM, "Scaling Thresholds")."""

    approximate_vectors_min: int = setting(
        100_000, "vectors from which search uses an approximate index (MEM: 100K episodes)", ge=256
    )
    recall_min: Unit = setting(0.95, "recall of an approximate index below which search stays exact (ours)")
    recall_count: PositiveCount = setting(10, "nearest texts by which recall is measured (ours)")
    recall_questions: PositiveCount = setting(50, "queries of a recall measurement (ours)")
    relearn_growth: float = setting(
        1.5, "growth of the vector count, as a factor, at which an index is rebuilt (ours)", gt=1.0
    )
    partition_rows: int = setting(
        10_000, "entries of a bucket from which single-golem reads are partitioned (MEM: 10K)", ge=64
    )
    home_bytes_max: PositiveCount = setting(
        500_000_000, "size of a home without models above which the disk is under pressure (MEM: 500MB)"
    )
    free_bytes_min: Count = setting(1_000_000_000, "free disk space below which the disk is under pressure (ours)")
    pressed_superseded_days: Positive = setting(1.0, "days that an inactive derivation is kept under pressure (ours)")


class FabricPolicy(Operational):
    """The event fabric: replay for late subscribers, warnings, polling."""

    replay_events: Count = setting(10_000, "newest events that a late subscriber gets (HB, Event Fabric)")
    queue_warning_depth: Count = setting(2, "waiting ticks from which the queue warns (HB S12)")
    accuracy_ticks: PositiveCount = setting(
        50, "ticks between two AccuracyUpdated events: a curator cycle (ours; HB says periodic)"
    )
    poll_seconds: Positive = setting(0.25, "poll interval of an idle log (ours)")


class WorthPolicy(Operational):
    """Grading of a memory: measures and their bounds (X-5)."""

    precision_min: Unit = setting(0.9, "precision of active rules and links on the graded market")
    recall_min: Unit = setting(0.8, "recall of planted truths above one sigma")
    junk_max: Unit = setting(0.05, "share of active entries without a supporting outcome")
    fading_half_lives: Positive = setting(2.0, "half-lives in which an expired truth falls below retrieval")
    retrieval_confidence: Unit = setting(0.5, "the retrieval threshold (MEM, minConfidence)")
    decoy_confidence_max: Unit = setting(0.6, "confidence of a decoy as a causal link")
    brier_max: Unit = setting(0.21, "Brier score of foretold confidences; a coin has 0.25 (ours)")
    discovery_rate_max: Unit = setting(0.05, "share of tests that find something in a market without truths (ours)")
    strong_sigma: Positive = setting(1.0, "size of an effect that must be learned")
    windows_min: PositiveCount = setting(3, "fewest windows in which a rule can be learned (TOOLS, smallest cluster)")
    learnable: Positive = setting(
        7.85, "windows x (effect in sigmas) squared at which a 5 % test has a power of 0.8 (ours)"
    )
    yardstick_markets: int = setting(8, "independent markets of a yardstick (ours)", ge=2)
    yardstick_golems: PositiveCount = setting(18, "golems per market (ours)")
    yardstick_z: Positive = setting(1.96, "standard errors from zero at which an effect is significant (ours)")
    yardstick_days_min: int = setting(5, "fewest days with a situation for it to be judged (ours)", ge=2)
    rule_trust: float = setting(
        0.8, "a rule of confidence c predicts (1 + 0.8 c) / 2 of its decisions (ours)", gt=0.0, lt=1.0
    )
    window_minutes: PositiveCount = setting(
        30, "decisions within one such window count once (ours; a trial's 30 ticks)"
    )
    heirs_gain_min: Unit = setting(0.2, "relative gain of the median lifetime of heirs over orphans")
    entries_worth_min: Unit = setting(
        0.05, "share of the budget by which heirs with entries alone end above orphans, at the median (ours)"
    )
    entries_gain_min: Unit = setting(0.1, "relative gain of their median lifetime over orphans (ours)")
    clones_worth_min: Unit = setting(
        0.01, "gain of worth of heirs over clones at a common age, at the median, as a share (ours)"
    )
    bootstrap_draws: int = setting(2_000, "bootstrap resamples of the markets per interval (ours)", ge=100)
    questions_in_first: PositiveCount = setting(5, "results among which the answer must be (HB S3)")


class GatewayPolicy(Operational):
    """Calls of a language model: timeouts, retries, budgets, prompts. Answers are events, so not hashed."""

    request_seconds_max: Positive = setting(60.0, "timeout of one answer, including the provider's retries (ours)")
    retries_max: Count = setting(2, "retries of a failed request (ours)")
    corrections_max: Count = setting(1, "corrections requested for a malformed answer (ours)")
    output_tokens_max: int = setting(2_000, "tokens of one answer (ours)", ge=64)
    day_micros_max: Count = setting(2_000_000, "budget of all golems per UTC day: $2 (ours)")
    golem_day_micros_max: Count = setting(250_000, "budget of one golem per UTC day: HB S3's most expensive call")
    daily_budget_micros: Count = setting(10_000_000, "total budget of one golem per UTC day: $10 (HB S17)")
    memory_share_max: Unit = setting(0.05, "share of it for memory services, including model calls (MEM, INH-20)")
    input_micros_per_token: Positive = setting(
        5.0, "micro-dollars if the provider's price is unknown: Opus-class (HB S3)"
    )
    output_micros_per_token: Positive = setting(25.0, "micro-dollars if the price is unknown")
    bytes_per_token: Positive = setting(
        2.0, "lower estimate, so an upper bound of a prompt's price: English has 4, digits 2 (ours)"
    )
    phrases_testaments: bool = setting(False, "whether the proposal job also phrases testaments (ours)")
    phrased_sentences_max: int = setting(
        32, "most phrased sentences of a testament: about one page (ours)", ge=1, le=256
    )
    prompt_rules_max: PositiveCount = setting(24, "rules and candidates in a prompt (ours)")
    prompt_ticks_max: PositiveCount = setting(16, "newest evidence ticks per rule in a prompt (ours)")


class ToolsPolicy(Operational):
    """The memory tools: comparison of predictions, failure patterns, archives. Their results are not stored tables."""

    deviation_max: Positive = setting(0.2, "relative prediction error above which a reflection is asked for (TOOLS)")
    prediction_floor_micros: PositiveCount = setting(
        10_000, "smallest prediction by which an error is divided: one cent (ours)"
    )
    interval_level: Unit = setting(0.8, "level of an interval that states none (HB: 80 % intervals)")
    drift_samples_min: PositiveCount = setting(4, "fewest outcomes of a trend (ours)")
    drift_z: Positive = setting(1.645, "standard errors of a rank correlation from which errors have a trend (ours)")
    overconfidence_samples_min: PositiveCount = setting(5, "fewest outcomes that show overconfidence (ours)")
    overconfidence_z: Positive = setting(
        1.645, "standard errors below the stated level from which intervals are too narrow (ours)"
    )
    consolidation_hours: Positive = setting(4.0, "hours between two automatic consolidations of a golem (TOOLS)")
    archive_bytes_max: PositiveCount = setting(2**23, "largest archive that is read, in 256 MB (ours)")
