"""How a home is kept, watched and graded: the log, its writer, maintenance, and what no projection depends on."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from bardo_pipeline.policy.base import Count, Frozen, Positive, Unit


class LogPolicy(Frozen):
    """The event log."""

    bucket_count: Annotated[int, Field(ge=1, le=4096)] = Field(
        16, description="hash buckets, fixed when the log is made (architecture)"
    )
    reopen_commits: Annotated[int, Field(ge=1)] = Field(
        100, description="commits after which a table handle is reopened (facts)"
    )


class WriterPolicy(Frozen):
    """The live writer: how records wait in the journal, and when they go to the log."""

    batch_records: Annotated[int, Field(ge=1)] = Field(25, description="records that seal a segment (HB S17)")
    flush_seconds: Positive = Field(30.0, description="age that seals a segment (HB S17: 30,000 ms)")
    segment_bytes_max: Annotated[int, Field(ge=4096)] = Field(
        16 * 2**20, description="size that seals a segment while the drainer is busy (ours)"
    )
    journal_bytes_max: Annotated[int, Field(ge=4096)] = Field(
        256 * 2**20, description="acknowledged and not drained yet, per writer; beyond it appends wait or fail (ours)"
    )
    drain_records_max: Annotated[int, Field(ge=1)] = Field(50_000, description="records a commit takes at most (ours)")
    drain_bytes_max: Annotated[int, Field(ge=4096)] = Field(
        64 * 2**20, description="bytes of the journal a commit takes at most (ours)"
    )
    record_bytes_max: Annotated[int, Field(ge=1024)] = Field(
        4 * 2**20, description="a longer record is refused before it is parsed (ours)"
    )
    spool_block_bytes: Annotated[int, Field(ge=4096)] = Field(
        24 * 2**20, description="bytes of a spool file that a commit takes (ours)"
    )


class ReorgPolicy(Frozen):
    """How deep a block must lie before it counts (HB S10)."""

    confirmations: Count = Field(2, description="blocks until an action counts as confirmed (HB S10)")
    confirmations_deep: Count = Field(5, description="blocks while reorgs are frequent (HB S10)")
    window_blocks: Annotated[int, Field(ge=1)] = Field(1_000, description="window in which reorgs are counted (HB S10)")
    reorgs_per_100_blocks_max: Positive = Field(1.0, description="beyond it the depth is raised (HB S10)")


class CarePolicy(Frozen):
    """Maintenance: what is kept warm, cold, and how much of what only accelerates."""

    lookback_ticks: Count = Field(500, description="ticks below a golem's head that stay warm (HB S6)")
    rewrite_rows_max: Annotated[int, Field(ge=1)] = Field(
        50_000, description="rows that one rewrite takes at most: they are sorted in memory (ours)"
    )
    rewrite_bytes_max: Annotated[int, Field(ge=1024)] = Field(
        32 * 2**20, description="bytes of files that one rewrite takes at most (ours)"
    )
    warm_zstd_level: Annotated[int, Field(ge=1, le=22)] = Field(
        1, description="compression of warm files: 6 us a record (measured)"
    )
    cold_zstd_level: Annotated[int, Field(ge=1, le=22)] = Field(
        9, description="compression of cold files: 30 us a record; 15 takes 240 for 1 % less, 17 takes 610 (measured)"
    )
    grace_seconds: Positive = Field(
        3_600.0, description="what no commit names any more stays so long for its readers (ours)"
    )
    log_commits_kept: Annotated[int, Field(ge=1)] = Field(
        1_000, description="commits of the log that stay as JSON, so that what is new is found fastest (ours)"
    )
    projection_commits_kept: Annotated[int, Field(ge=1)] = Field(
        100, description="commits of a projection that stay as JSON (ours)"
    )
    index_versions_max: Annotated[int, Field(ge=1)] = Field(
        20, description="versions of an index of episodes; with more, those past the grace go (ours)"
    )
    superseded_days: Positive = Field(
        30.0, description="that a derivation, not in force, stays after it was last written to (ours)"
    )
    derivations_beside_max: Annotated[int, Field(ge=1)] = Field(
        8, description="derivations beside the one in force; for another, one must be dropped (ours)"
    )
    leftover_seconds: Positive = Field(
        86_400.0, description="that drafts stay that were abandoned: no build takes a day (ours)"
    )
    dagster_runs_max: Annotated[int, Field(ge=1)] = Field(
        1_000, description="finished runs that Dagster remembers, with their events and logs (ours)"
    )


class HealthPolicy(Frozen):
    """What an operator is told of: measures beyond these are faults (X-11)."""

    silence_seconds_max: Positive = Field(
        600.0, description="since the last record while a golem lives: five of the longest intervals (ours)"
    )
    waiting_seconds_max: Positive = Field(
        1_800.0, description="that a closed cycle waits to be derived: three turns of the schedule (ours)"
    )
    journal_share_max: Unit = Field(0.5, description="of a writer's journal_bytes_max that is not drained (ours)")
    undrained_flushes_max: Positive = Field(
        4.0, description="age of what is not drained, in flush_seconds: the drainer missed three turns (ours)"
    )
    spool_seconds_max: Positive = Field(300.0, description="that a file waits in the spool (ours)")
    quarantine_share_max: Unit = Field(0.01, description="of a day's records that may end in quarantine (ours)")
    refused_bundles_max: Count = Field(0, description="bundles refused within a day (ours)")


class EmbeddingPolicy(Frozen):
    """Embedding integrity: how far a model may drift from the vectors on record (MEM, "Embedding integrity")."""

    drift_days: Positive = Field(7.0, description="between two checks (MEM: weekly)")
    distance_warning: Unit = Field(0.02, description="largest cosine distance from the vector on record, from (MEM)")
    distance_critical: Unit = Field(0.05, description="and beyond (MEM)")
    neighbour_count: Annotated[int, Field(ge=1)] = Field(5, description="nearest texts that should stay so (MEM)")
    neighbours_warning: Unit = Field(0.85, description="share of them that stayed, below (MEM, canon 57)")
    neighbours_critical: Unit = Field(0.60, description="and below (MEM, canon 57)")
    norm_variance_warning: Positive = Field(
        2.0, description="variance of the vectors' lengths over the first one, or under it by as much, from (ours)"
    )
    norm_variance_critical: Positive = Field(4.0, description="and beyond (ours; MEM: a sudden increase)")
    batch_texts: Annotated[int, Field(ge=1)] = Field(
        256, description="texts embedded between two commits: what an interruption loses at most (ours)"
    )


class GrowthPolicy(Frozen):
    """What changes when a home grows (MEM, "Scaling Thresholds"): how fast it answers, and what is kept at hand."""

    approximate_vectors_min: Annotated[int, Field(ge=256)] = Field(
        100_000, description="vectors from which a search goes through an approximate index (MEM: 100K episodes)"
    )
    recall_min: Unit = Field(0.95, description="of an approximate index, below which searches stay exact (ours)")
    recall_count: Annotated[int, Field(ge=1)] = Field(10, description="nearest texts that recall is measured by (ours)")
    recall_questions: Annotated[int, Field(ge=1)] = Field(50, description="questions of a measurement (ours)")
    relearn_growth: Annotated[float, Field(gt=1.0)] = Field(
        1.5, description="times as many vectors as were learned from, from which an index is learned anew (ours)"
    )
    partition_rows: Annotated[int, Field(ge=64)] = Field(
        10_000, description="entries of a bucket from which a reader of one golem reads a part of them (MEM: 10K)"
    )
    home_bytes_max: Annotated[int, Field(ge=1)] = Field(
        500_000_000, description="of a home without its models: beyond it the disk is under pressure (MEM: 500MB)"
    )
    free_bytes_min: Count = Field(1_000_000_000, description="free on its disk: below it, too (ours)")
    pressed_superseded_days: Positive = Field(
        1.0, description="that a superseded derivation stays under pressure (ours)"
    )


class FabricPolicy(Frozen):
    """The event fabric: what is told, and to whom comes late."""

    replay_events: Count = Field(10_000, description="newest events that a late subscriber gets (HB, Event Fabric)")
    queue_warning_depth: Count = Field(2, description="waiting ticks from which on the queue warns (HB S12)")
    accuracy_ticks: Annotated[int, Field(ge=1)] = Field(
        50, description="ticks between two AccuracyUpdated, a curator cycle (ours; HB says periodic)"
    )
    poll_seconds: Positive = Field(0.25, description="between two looks at the log while nothing comes (ours)")


class WorthPolicy(Frozen):
    """How a memory is graded, and the bounds that it has to keep (X-5)."""

    precision_min: Unit = Field(0.9, description="of living rules and links, on the graded market (issue 4)")
    recall_min: Unit = Field(0.8, description="of planted truths above one sigma (issue 4)")
    junk_max: Unit = Field(0.05, description="share of living entries that no outcome supports (issue 4)")
    fading_half_lives: Positive = Field(2.0, description="in which an expired truth is below retrieval (issue 4)")
    retrieval_confidence: Unit = Field(0.5, description="the retrieval threshold (MEM, minConfidence)")
    decoy_confidence_max: Unit = Field(0.6, description="of a decoy as a causal link (issue 4)")
    discovery_rate_max: Unit = Field(
        0.05, description="of what was tested where there is nothing to find, what may be found (ours)"
    )
    strong_sigma: Positive = Field(1.0, description="an effect that has to be learned (issue 4)")
    windows_min: Annotated[int, Field(ge=1)] = Field(
        3, description="windows without which nobody can know a rule, however strong it is (TOOLS, smallest cluster)"
    )
    learnable: Positive = Field(
        7.85, description="windows x (effect in sigmas) squared at which a test at 5 % sees it 4 times in 5 (ours)"
    )
    yardstick_markets: Annotated[int, Field(ge=2)] = Field(8, description="independent markets of a yardstick (ours)")
    yardstick_golems: Annotated[int, Field(ge=1)] = Field(18, description="golems that live through each (ours)")
    yardstick_z: Positive = Field(1.96, description="standard errors from zero at which an effect is sure (ours)")
    yardstick_days_min: Annotated[int, Field(ge=2)] = Field(
        5, description="days on which a situation must have come up to be judged at all (ours)"
    )
    rule_trust: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(
        0.8, description="a rule of confidence c foretells (1 + 0.8 c) / 2 of its decisions: never all (ours)"
    )
    window_minutes: Annotated[int, Field(ge=1)] = Field(
        30, description="decisions of one such window count once (ours; a trial's 30 ticks)"
    )
    heirs_gain_min: Unit = Field(
        0.2, description="by how much of their lives heirs outlive orphans in the median (issue 5)"
    )
    bootstrap_draws: Annotated[int, Field(ge=100)] = Field(
        2_000, description="times that markets are drawn again for an interval (ours)"
    )
    questions_in_first: Annotated[int, Field(ge=1)] = Field(5, description="places in which the answer must be (HB S3)")


class GatewayPolicy(Frozen):
    """Asking a language model: how long, how often, for how much. Answers are events: no projection depends on it."""

    request_seconds_max: Positive = Field(60.0, description="for one answer, the provider's retries included (ours)")
    retries_max: Count = Field(2, description="of a request that failed on the way (ours)")
    corrections_max: Count = Field(1, description="times that a malformed answer is sent back (ours)")
    output_tokens_max: Annotated[int, Field(ge=64)] = Field(2_000, description="of one answer (ours)")
    day_micros_max: Count = Field(2_000_000, description="a UTC day of recording, all golems: $2 (ours)")
    golem_day_micros_max: Count = Field(250_000, description="the same for one golem: HB S3's dearest call")
    daily_budget_micros: Count = Field(10_000_000, description="what a golem may spend a day at most: $10 (HB S17)")
    memory_share_max: Unit = Field(0.05, description="of it for memory services, which asking is (MEM, INH-20)")
    input_micros_per_token: Positive = Field(
        5.0, description="micro-dollars where the provider's price is not known: Opus-class (HB S3)"
    )
    output_micros_per_token: Positive = Field(25.0, description="micro-dollars, the same")
    bytes_per_token: Positive = Field(
        2.0, description="of a prompt, for the most that it may cost: English has 4, digits 2 (ours)"
    )
    phrases_testaments: bool = Field(False, description="whether the proposal job has testaments phrased, too (ours)")
    phrased_sentences_max: Annotated[int, Field(ge=1, le=256)] = Field(
        32, description="sentences of a testament that are phrased: about what its page shows (ours)"
    )
    prompt_rules_max: Annotated[int, Field(ge=1)] = Field(24, description="rules and candidates that are shown (ours)")
    prompt_ticks_max: Annotated[int, Field(ge=1)] = Field(16, description="newest ticks of evidence of each (ours)")
