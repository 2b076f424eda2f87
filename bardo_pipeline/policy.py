"""Every number of the specification, in one frozen object, each with its source.

Short names of sources: MEM, INH, TOOLS, HB, KAT are the five documents; "canon N" is a row of the canon; "ours" is a
number that no document gives. Two policies with the same content have the same hash; a projection carries that hash.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Unit = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
Count = Annotated[int, Field(ge=0)]


class Frozen(BaseModel):
    """A part of the policy: immutable, and strict about unknown names."""

    model_config = ConfigDict(frozen=True, extra="forbid")


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


class ProbePolicy(Frozen):
    """Two thresholds a probe (HB S9)."""

    price_delta_low: Positive = Field(0.005, description="price move since the last tick, share (HB S9, S17: 50 bps)")
    price_delta_high: Positive = Field(0.02, description="HB S9, S17: 200 bps")
    tvl_low: Positive = Field(0.01, description="liquidity change in one tick, share (HB S9)")
    tvl_high: Positive = Field(0.05, description="HB S9")
    health_low: Positive = Field(1.5, description="health factor below (HB S9, S17)")
    health_high: Positive = Field(1.2, description="HB S9, S17")
    gas_low: Positive = Field(2.0, description="gas price over its one-hour average, ratio (HB S9)")
    gas_high: Positive = Field(5.0, description="HB S9")
    credit_low: Unit = Field(0.20, description="credit partition below (HB S9)")
    credit_high: Unit = Field(0.10, description="HB S9")
    rsi_low: Positive = Field(
        20.0, description="distance of RSI(14) from 50: divergence from the mean (ours; HB S9 names the signal)"
    )
    rsi_high: Positive = Field(30.0, description="RSI(14) beyond 20 or 80: extreme (ours)")
    rsi_periods: Annotated[int, Field(ge=2)] = Field(14, description="periods of RSI (Wilder)")
    macd_fast_periods: Annotated[int, Field(ge=1)] = Field(12, description="periods of MACD's fast average (Appel)")
    macd_slow_periods: Annotated[int, Field(ge=2)] = Field(26, description="periods of MACD's slow average (Appel)")
    macd_signal_periods: Annotated[int, Field(ge=1)] = Field(9, description="periods of MACD's signal line (Appel)")
    macd_points: Positive = Field(
        50_000.0, description="RSI points a MACD histogram of the whole price is worth: 0.04 % is 20 points (ours)"
    )
    gas_hour_bars: Annotated[int, Field(ge=1)] = Field(
        60, description="minute bars of the gas price's average (HB S9: 1 hour)"
    )
    nav_low: Unit = Field(
        0.05, description="net asset value below its high-water mark: warning (ours; HB S9 names the signal)"
    )
    nav_high: Unit = Field(0.10, description="net asset value below its high-water mark: halt (ours)")
    threat_high: Unit = Field(0.7, description="pheromone threat intensity (HB S9); any threat is low")
    sigma_low: Positive = Field(1.0, description="homeostatic deviation in standard deviations (HB S9)")
    sigma_high: Positive = Field(2.0, description="HB S9")
    homeostatic_memory: Unit = Field(0.98, description="decay a tick of the homeostatic means and variances (ours)")
    homeostatic_ticks_min: Count = Field(30, description="ticks before homeostatic deviations are judged (ours)")
    drift_low: Positive = Field(0.10, description="world model error (HB S9, S17)")
    drift_high: Positive = Field(0.25, description="HB S9, S17")


class RegimePolicy(Frozen):
    """Regimes and the intervals that follow from them (HB S9, canon 32)."""

    sma_periods: Annotated[int, Field(ge=2)] = Field(20, description="periods of the moving average (HB S9)")
    trend_sigma: Positive = Field(1.0, description="price beyond SMA by this many sigma is a trend (HB S9)")
    range_sigma: Positive = Field(0.5, description="price within SMA by this many sigma is a range (HB S9)")
    range_ticks: Annotated[int, Field(ge=1)] = Field(6, description="for more than this many ticks (HB S9)")
    volatile_ratio: Positive = Field(2.0, description="sigma of returns over its 30-day average (HB S9)")
    quiet_ratio: Positive = Field(0.5, description="LowVol: sigma under half its average (canon 32)")
    average_days: Positive = Field(30.0, description="days of the long average; what there is, if less (HB S9)")
    base_interval_seconds: Annotated[int, Field(ge=1)] = Field(
        60, description="theta interval (HB adaptive clock: 30-120 s)"
    )
    interval_seconds_min: Annotated[int, Field(ge=1)] = Field(30, description="HB adaptive clock")
    interval_seconds_max: Annotated[int, Field(ge=1)] = Field(120, description="HB adaptive clock")
    fast_multiplier: Positive = Field(0.5, description="trending down, volatile: twice as fast (HB S9)")
    slow_multiplier: Positive = Field(2.0, description="range-bound: half as fast, so twice the interval (canon 32)")


class GatePolicy(Frozen):
    """Prediction error, threshold, tiers (HB S3-S5)."""

    price_weight: Positive = Field(0.3, description="HB S4")
    regime_weight: Positive = Field(0.4, description="HB S4")
    health_weight: Positive = Field(0.2, description="HB S4")
    health_delta_min: Positive = Field(0.1, description="health changes up to this do not count (HB S4)")
    health_delta_max: Positive = Field(0.5, description="HB S4")
    threat_weight: Positive = Field(0.15, description="HB S4")
    intervention_weight: Positive = Field(0.1, description="a pending intervention (HB S4)")
    intervention_max: Count = Field(3, description="HB S4")
    anomaly_weight: Positive = Field(0.05, description="an anomaly (HB S4)")
    anomaly_max: Count = Field(5, description="HB S4")
    base_threshold: Positive = Field(0.3, description="HB S5, S17")
    confidence_gain: Unit = Field(0.5, description="HB S5")
    mortality_gain: Unit = Field(0.3, description="HB S5")
    arousal_gain: Unit = Field(0.2, description="HB S5")
    threshold_min: Unit = Field(0.05, description="HB S5")
    threshold_max: Unit = Field(0.8, description="HB S5")
    deliberate_ratio: Positive = Field(2.0, description="T2 from this many thresholds (HB S5)")
    transition_margin: Unit = Field(
        0.01, description="a phase boundary this near below is imminent (ours; HB S5 names the rule)"
    )


class CostPolicy(Frozen):
    """What thinking and acting cost (HB S3; canon 38: what was recorded counts)."""

    t1_input_micros_per_token: Positive = Field(
        1.0, description="micro-dollars, Haiku-class (HB S3: $0.001-0.003 a call)"
    )
    t1_output_micros_per_token: Positive = Field(5.0, description="micro-dollars")
    t2_input_micros_per_token: Positive = Field(5.0, description="micro-dollars, Opus-class (HB S3: $0.01-0.25 a call)")
    t2_output_micros_per_token: Positive = Field(25.0, description="micro-dollars")
    t1_context_tokens: Count = Field(700, description="observation, positions and instruction at T1 (CTX-6)")
    t2_context_tokens: Count = Field(4500, description="the full workspace without entries at T2 (CTX-6)")
    entry_tokens: Count = Field(60, description="tokens of one retrieved entry (ours)")
    position_tokens: Count = Field(60, description="tokens of one open position (ours)")
    t1_output_tokens: Count = Field(180, description="tokens of an answer at T1")
    t2_output_tokens: Count = Field(900, description="tokens of an answer at T2")
    rebalance_gas_units: Count = Field(620_000, description="decrease, collect, swap, mint on Uniswap v3")
    enter_gas_units: Count = Field(480_000, description="swap and mint")
    collect_gas_units: Count = Field(160_000, description="collect the fees of a position")
    exit_gas_units: Count = Field(320_000, description="decrease, collect, swap")


class CagePolicy(Frozen):
    """PolicyCage: hard limits that no deliberation overrides."""

    protocols: tuple[str, ...] = Field(("uniswap_v3",), description="protocols that may be touched")
    pool_share_max: Unit = Field(0.05, description="share of a pool's active liquidity")
    slippage_max: Unit = Field(0.01, description="share of the swapped value; over it is a failure (KAT)")
    gas_share_max: Unit = Field(0.005, description="gas of one action as a share of the position's value (ours)")
    gas_credit_share_max: Unit = Field(0.25, description="gas of one action as a share of available credits (HB S10)")


class AffectPolicy(Frozen):
    """PAD appraisal (MEM; HB S6)."""

    memory: Unit = Field(0.85, description="how much of the last mood stays a tick (ours)")
    pleasure_gain: Positive = Field(40.0, description="net value change as a share, to pleasure (ours)")
    arousal_gain: Positive = Field(0.8, description="prediction error above half the threshold, to arousal (ours)")
    arousal_pivot: Unit = Field(
        0.5, description="share of the threshold at which arousal neither rises nor falls (ours)"
    )
    dominance_gain: Positive = Field(0.3, description="predictions held less the prior, to dominance (ours)")


class AnomalyPolicy(Frozen):
    """The anomaly score of a position: how far the price is from its centre, and how stirred the market is."""

    away_gain: Positive = Field(0.7, description="the price a half-width from the centre of the range (ours)")
    stir_gain: Unit = Field(0.1, description="sigma of returns at twice its average or over (ours)")


class PredictionPolicy(Frozen):
    """The golem's own predictions, made before it observes (canon, "oracle")."""

    interval_z: Positive = Field(1.2816, description="half-width in sigmas: 80 % for a normal residual")
    sigma_floor_price: Positive = Field(1e-5, description="smallest sigma of a log return")
    sigma_floor_gas: Positive = Field(0.02, description="smallest sigma of a log gas ratio")
    sigma_floor_health: Positive = Field(0.01, description="smallest sigma of a health change")
    first_variance_price: Positive = Field(1e-6, description="variance of a log return at birth (ours)")
    first_variance_gas: Positive = Field(0.01, description="variance of a log gas ratio at birth (ours)")
    first_variance_health: Positive = Field(0.01, description="variance of a health change at birth (ours)")
    fitness_window: Annotated[int, Field(ge=1)] = Field(500, description="resolved predictions that count (canon)")
    fitness_prior: Unit = Field(0.7, description="canon")
    fitness_prior_weight: Positive = Field(50.0, description="canon")
    senescence: Unit = Field(0.35, description="fitness below reads 0: epistemic death (MEM)")
    check_ticks: Annotated[int, Field(ge=1)] = Field(30, description="ticks after which a decision is judged (KAT)")
    first_confidence: Unit = Field(0.5, description="share of decisions that turned out right, at birth (ours)")
    confidence_memory: Unit = Field(0.9, description="how much of that share stays when a decision is judged (ours)")


class MortalityPolicy(Frozen):
    """Vitality, phases, reserve (MEM, canon)."""

    thriving: Unit = Field(0.7, description="above: thriving (canon 33)")
    stable: Unit = Field(0.5, description="from: stable")
    conservation: Unit = Field(0.3, description="from: conservation")
    declining: Unit = Field(0.1, description="from: declining; below: terminal")
    reserve_min_micros: Count = Field(300_000, description="death reserve: $0.30 (MEM)")
    reserve_share: Unit = Field(0.02, description="or this share of the first balance (MEM)")
    age_exponent: Positive = Field(4.0, description="stochastic vitality = 1 - (age / lifespan)^4 (canon)")


class DecayPolicy(Frozen):
    """How confidence fades (INH S7.4, canon 4-9)."""

    regime_conditional_days: Positive = Field(14.0, description="half-life (INH S7.4)")
    tactical_days: Positive = Field(7.0, description="half-life (INH S7.4)")
    ephemeral_days: Positive = Field(1.0, description="half-life: 24 hours (INH S7.4)")
    anti_knowledge_floor: Unit = Field(0.3, description="MEM, canon 8")
    bloodstain_floor: Unit = Field(0.05, description="KAT, canon 7")
    bloodstain_multiplier: Positive = Field(3.0, description="half-life x 3 (KAT, canon 7)")
    fact_e_fold_days: Positive = Field(
        7.0, description="days in place of blocks, scaled by max(1, ln(episodes)) (canon 6)"
    )
    routine_days: Positive = Field(7.0, description="Ebbinghaus S (TOOLS)")
    notable_days: Positive = Field(30.0, description="TOOLS")
    critical_days: Positive = Field(90.0, description="TOOLS")
    emergency_days: Positive = Field(180.0, description="TOOLS")
    episode_retention_min: Unit = Field(0.05, description="episodes below may go (TOOLS)")


class CuratorPolicy(Frozen):
    """The curator's passes (MEM, TOOLS, canon)."""

    cycle_ticks: Annotated[int, Field(ge=1)] = Field(50, description="ticks a cycle (MEM)")
    phage_cycles: Annotated[int, Field(ge=1)] = Field(2, description="every 100 ticks (canon, phage pass)")
    cluster_min: Annotated[int, Field(ge=2)] = Field(3, description="smallest cluster (TOOLS)")
    witness_ticks: Annotated[int, Field(ge=1)] = Field(
        50, description="a market window: what it brings for a rule counts once; a part of a cycle or all of it (ours)"
    )
    false_alarm: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.05, description="chance that a rule without effect is ever believed, however often one looks (ours)"
    )
    sharpest_witnesses: Positive = Field(
        10.0, description="witnesses at which the interval that holds at every look is sharpest (ours)"
    )
    interval_z: Positive = Field(1.96, description="half-width of a baseline's interval in standard errors")
    variance_prior: Positive = Field(3.0, description="pseudo-observations of the prior spread of effects (ours)")
    effect_sigma_prior_ppm: Positive = Field(
        2_500.0, description="prior spread of an effect, parts per million of the position (ours)"
    )
    effect_min_ppm: Positive = Field(50.0, description="smallest mean effect worth a rule, ppm (ours)")
    confidence_insight: Unit = Field(0.6, description="distilled insights (canon 1)")
    confidence_fact: Unit = Field(0.7, description="consolidated facts (canon 1)")
    upvote: Unit = Field(0.1, description="cap 1.0 (TOOLS)")
    downvote: Unit = Field(0.15, description="floor 0.0 (TOOLS)")
    promote_confidence: Unit = Field(
        0.65, description="an insight of 0.6 reaches it by one upvote, unless it faded for days before (ours)"
    )
    promote_validations: Annotated[int, Field(ge=1)] = Field(
        1, description="cycles that confirmed it since it was made (ours)"
    )
    demote_confidence: Unit = Field(
        0.5, description="a rule that is contradicted and falls below is an insight again (ours)"
    )
    anti_effect_ppm: Positive = Field(
        200.0, description="harm, at the kind end of its interval, from which a warning is anti-knowledge (ours)"
    )
    prune_confidence: Unit = Field(
        0.1, description="below, without a floor, an entry goes (MEM: eviction threshold; ours in value)"
    )
    baseline_min: Annotated[int, Field(ge=2)] = Field(3, description="episodes a baseline needs (MEM)")
    replay_episodes: Annotated[int, Field(ge=1)] = Field(20, description="episodes replayed after a cycle (ours)")
    replay_new_share: Unit = Field(0.7, description="of them from the closing cycle, the rest from before (MEM: 70/30)")
    replay_utility_min: Annotated[float, Field(gt=0, le=1)] = Field(
        0.01, description="least gain x need, so that no episode is without a chance (ours)"
    )
    phage_count: Annotated[int, Field(ge=1)] = Field(
        5, description="weakest entries that a phage pass tries to falsify (ours)"
    )
    anomaly_edges: tuple[float, ...] = Field(
        (0.5, 0.7, 0.8, 0.9), description="edges of the anomaly bands (ours; 0.7 and 0.9 are KAT's)"
    )
    gas_edges: tuple[float, ...] = Field(
        (0.75, 2.0), description="edges of the gas bands, ratio to the hour (2 is HB S9)"
    )

    @model_validator(mode="after")
    def _windows_fill_a_cycle(self) -> Self:
        if self.cycle_ticks % self.witness_ticks:
            raise ValueError(f"witness_ticks {self.witness_ticks} does not divide cycle_ticks {self.cycle_ticks}")
        return self


class CausalPolicy(Frozen):
    """The causal graph: what counts as a cause, how surely (HB S4; issue 4; canon 1, 16)."""

    test_cycles: Annotated[int, Field(ge=1)] = Field(20, description="every 1,000 ticks (ours)")
    ticks_min: Annotated[int, Field(ge=100)] = Field(1_000, description="ticks before anything is tested (ours)")
    false_discovery: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(
        0.05, description="share of found links that may be chance, whatever depends on what (Benjamini-Yekutieli)"
    )
    links_max: Annotated[int, Field(ge=1, le=16)] = Field(4, description="causes of one effect at most (ours)")
    effect_min: Positive = Field(0.05, description="smallest share of the effect's spread a step moves (ours)")
    confidence_found: Unit = Field(
        0.5, description="a link that fresh evidence supports, but does not confirm: below a fact (ours)"
    )
    confirm_sigma: Positive = Field(
        3.0, description="how far from chance evidence later than the finding must be to confirm it (ours)"
    )
    confirm_witnesses: Annotated[int, Field(ge=1)] = Field(
        2, description="stretches of 1,000 ticks that must support it, less those against it (ours)"
    )
    witness_sigma: Positive = Field(1.0, description="from here such a stretch is a witness, either way (ours)")
    missed_sigma: Positive = Field(
        3.0, description="where the stated effect would have shown by so much and did not, it is contradicted (ours)"
    )
    predict_confidence: Unit = Field(0.6, description="a link from here on moves the golem's predictions (issue 4)")
    probe_shift: Positive = Field(0.5, description="spreads by which the price must be expected to move (ours)")
    probe_sigma: Positive = Field(
        3.0, description="spreads that it must miss by, the other way, to break a link (ours)"
    )
    return_cap_ppm: Positive = Field(
        1_000.0, description="a tick's return beyond says no more of its usual spread (ours)"
    )
    gas_cap_ppm: Positive = Field(200_000.0, description="the same of a change of gas (ours)")
    liquidity_cap_ppm: Positive = Field(200_000.0, description="the same of a change of liquidity (ours)")
    return_floor_ppm: Positive = Field(50.0, description="smallest spread of a tick's return (ours)")
    gas_floor_ppm: Positive = Field(10_000.0, description="smallest spread of a tick's change of gas (ours)")
    liquidity_floor_ppm: Positive = Field(10_000.0, description="smallest spread of its change of liquidity (ours)")
    clip_sigma: Annotated[int, Field(ge=2, le=8)] = Field(
        2, description="changes beyond count as this many spreads, so that none decides alone (ours)"
    )
    fall_ppm: Positive = Field(2_500.0, description="a tick's fall from which it is sharp (ours)")
    fall_sigma: Positive = Field(3.0, description="and in spreads (ours)")
    events_min: Count = Field(3, description="sharp falls before they can be a cause: the smallest cluster (TOOLS)")
    found_sigma: Positive = Field(
        1.5, description="how far from chance fresh evidence must be for a link to be made (ours)"
    )
    info_min: Positive = Field(
        0.5, description="squared steps of a cause below which a stretch says nothing of it: half an event (ours)"
    )


class PlaybookPolicy(Frozen):
    """What a golem does before it has learned anything."""

    rebalance_threshold: Unit = Field(
        0.7, description="anomaly score from which it re-centres (KAT's bootstrap default)"
    )
    range_half_width_ticks: Annotated[int, Field(ge=10)] = Field(
        160, description="half-width of a new range (about 1.6 %; ours)"
    )
    heuristic_confidence_min: Unit = Field(0.5, description="heuristics below do not move the playbook (ours)")
    proof_validations: Count = Field(
        2, description="cycles that bore out a golem's own heuristic before its staged revision is in force (ours)"
    )
    trial_score_min: Unit = Field(
        0.5, description="anomaly score from which holding is judged against re-centring (ours)"
    )
    collect_fees_micros: Count = Field(
        500_000, description="fees owed from which they are collected while thinking anyway (ours)"
    )
    reentry_ticks: Count = Field(60, description="ticks out of the market after leaving it (ours)")
    block_confidence_min: Unit = Field(0.5, description="warnings below do not block (ours)")
    sure_distance: Positive = Field(
        0.3, description="distance of the score from the threshold at which a decision is plain (ours)"
    )
    sureness_away: Unit = Field(0.5, description="sureness of a golem that holds no position (ours)")
    certainty_past: Unit = Field(
        0.5, description="weight of past success in a decision's confidence; the rest is its plainness (ours)"
    )


class TraitPolicy(Frozen):
    """What a lineage's founder draws: variation for selection to work on."""

    threshold_step: Unit = Field(0.1, description="the rebalance threshold is lower, equal or higher by this (ours)")
    width_scales: tuple[Positive, ...] = Field(
        (0.6, 1.0, 1.6), min_length=1, description="half-widths of ranges, as shares of the playbook's (ours)"
    )
    forecast_memory_min: Unit = Field(0.90, description="lowest share of a forecast's variance that stays (ours)")
    forecast_memory_span: Unit = Field(0.08, description="and how far above it may be drawn (ours)")


class RetrievalPolicy(Frozen):
    """The four factors (MEM, canon 21-24)."""

    semantic: Unit = Field(0.40, description="MEM, KAT")
    recency: Unit = Field(0.20, description="MEM, KAT")
    importance: Unit = Field(0.25, description="MEM, KAT")
    affect: Unit = Field(0.15, description="MEM, KAT")
    like_regime: Unit = Field(0.5, description="part of the regime in how alike two situations are (ours)")
    like_anomaly: Unit = Field(0.3, description="part of the anomaly band, less by its distance (ours)")
    like_gas: Unit = Field(0.2, description="part of the gas band; the three sum to 1 (ours)")
    like_baseline: Unit = Field(0.3, description="likeness of a baseline to any situation (ours)")
    bloodstain_boost: Positive = Field(1.2, description="on the importance factor (KAT)")
    structural_recency_days: Positive = Field(14.0, description="recency half-life of structural entries (canon 21)")
    layer_clade: Unit = Field(
        0.80, description="on the confidence of an entry of the same owner's fleet (MEM, canon 22)"
    )
    layer_marketplace: Unit = Field(0.60, description="of a purchased entry (MEM, canon 22)")
    layer_lethe: Unit = Field(0.50, description="of an anonymous entry (MEM, canon 22)")
    contrarian_ticks: Annotated[int, Field(ge=1)] = Field(
        100, description="every so many ticks the opposite of the mood is sought (HB S3)"
    )
    dormant_transition_ticks: Annotated[int, Field(ge=1)] = Field(
        50, description="ticks in which what was learned in the regime just left falls asleep (INH S2; ours in value)"
    )
    dormant_unclear: Unit = Field(
        0.5, description="how awake other regimes' entries are while the regime is unclear (INH S2; ours in value)"
    )
    skip_arousal_max: Unit = Field(
        0.5, description="arousal from which retrieval is never skipped (KAT; ours in value)"
    )
    skip_surprise_max: Unit = Field(0.3, description="surprise from which it is never skipped (KAT; HB S5's base)")
    skip_coverage_min: Unit = Field(
        0.75, description="share of a protocol's levels that is known where it may be skipped (KAT; ours in value)"
    )
    skip_confidence_min: Unit = Field(0.5, description="confidence from which a level counts as known (MEM)")
    question_bytes_max: Annotated[int, Field(ge=1)] = Field(16_384, description="a longer question is refused (ours)")
    fusion_k: Annotated[int, Field(ge=1)] = Field(
        60, description="k of reciprocal rank fusion (ours; TOOLS names none)"
    )
    words_saturation: Positive = Field(1.2, description="k1 of BM25: how soon a repeated word adds no more (usual)")
    words_length: Unit = Field(0.75, description="b of BM25: how much a long text counts less (usual)")
    results: Annotated[int, Field(ge=1)] = Field(5, description="entries put before the golem (HB S3: top five)")
    search_results: Annotated[int, Field(ge=1)] = Field(10, description="results of a search (TOOLS)")
    search_results_max: Annotated[int, Field(ge=1)] = Field(50, description="and at most (TOOLS)")


class EpisodePolicy(Frozen):
    """What is an episode, and what it weighs (canon 13, 14)."""

    importance_balance_share: Positive = Field(
        0.02, description="abs(PnL) over 2 % of the balance, capped at 1 (canon 14)"
    )
    notable: Unit = Field(0.5, description="importance from (canon 14)")
    critical: Unit = Field(0.7, description="importance from")
    emergency: Unit = Field(0.9, description="importance from")


class DreamPolicy(Frozen):
    """Dreams: when, what is replayed, what is imagined, and what becomes of it (KAT, TOOLS, MEM)."""

    every_hours: Positive = Field(4.0, description="event time between two dreams, while idle (TOOLS)")
    idle_ticks: Annotated[int, Field(ge=1)] = Field(
        10, description="ticks without thought or action after which a golem is idle (ours; TOOLS: no active session)"
    )
    lookback_ticks: Annotated[int, Field(ge=1)] = Field(
        500, description="ticks back from which episodes are replayed (HB S6: what stays warm)"
    )
    budget: Annotated[int, Field(ge=1)] = Field(
        100, description="replays and imagined branches of a dream (TOOLS: episodes of a consolidation)"
    )
    counterfactual_share: Unit = Field(0.4, description="of the budget (KAT)")
    arousal_weight: Unit = Field(0.4, description="NREM salience (KAT)")
    valence_weight: Unit = Field(0.3, description="NREM salience, of abs(valence) (KAT)")
    recency_weight: Unit = Field(0.2, description="NREM salience, of exp(-age / recency_ticks) (KAT)")
    novelty_weight: Unit = Field(0.1, description="NREM salience, of 1 - likeness to what is known (KAT)")
    recency_ticks: Positive = Field(100.0, description="KAT")
    depotentiation: Unit = Field(0.12, description="arousal that REM takes from what was replayed (KAT)")
    arousal_floor: Unit = Field(0.10, description="REM takes nothing below (KAT, canon 50)")
    witnesses_min: Annotated[int, Field(ge=2)] = Field(
        3, description="witnesses of a cluster, imagined or live (TOOLS: smallest cluster)"
    )
    interval_z: Positive = Field(
        2.576,
        description="half-width of an effect's interval in standard errors: 99 %, as each dream looks anew (ours)",
    )
    variance_prior: Positive = Field(3.0, description="pseudo-observations of the prior spread (ours)")
    effect_sigma_prior_ppm: Positive = Field(
        800.0, description="prior spread of what one change is worth, ppm of the position (ours)"
    )
    effect_min_ppm: Positive = Field(50.0, description="smallest mean effect worth a hypothesis, ppm (ours)")
    staged_confidence_min: Unit = Field(0.2, description="of a hypothesis, not sure at all (KAT)")
    staged_confidence_max: Unit = Field(0.3, description="it stays below until it is admitted (KAT, canon 50)")
    admitted_confidence: Unit = Field(0.3, description="of a hypothesis that live outcomes confirmed (MEM, canon 50)")
    clade_confidence: Unit = Field(0.5, description="offered to the clade from here on, once validated (MEM)")
    confirm_days: Positive = Field(7.0, description="live outcomes so long after staging may confirm (MEM)")
    expire_days: Positive = Field(14.0, description="unconfirmed, it is gone (MEM)")
    half_life_multiplier: Positive = Field(2.0, description="of what was dreamt and confirmed (canon 5)")
    width_scales: tuple[Positive, Positive] = Field(
        (0.6, 1.6), description="narrower and wider ranges, as shares of the golem's own (ours, as its traits)"
    )
    wait_ticks: Annotated[int, Field(ge=1)] = Field(10, description="longest wait for cheaper gas (ours)")
    reproduced_ppm: Count = Field(
        5, description="a re-simulation further than this from the recorded verdict does not count (ours)"
    )


class BridgePolicy(Frozen):
    """What crosses from a golem's own mind to others (MEM, "Bridge quality gates")."""

    admission_min: Unit = Field(0.55, description="mean of the admission gate's five parts, to be exceeded (MEM)")
    insight_confidence: Unit = Field(0.6, description="of insights that cross (MEM)")
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
    window_minutes: Annotated[int, Field(ge=1)] = Field(
        30, description="decisions of one such window count once (ours; a trial's 30 ticks)"
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
    input_micros_per_token: Positive = Field(
        5.0, description="micro-dollars where the provider's price is not known: Opus-class (HB S3)"
    )
    output_micros_per_token: Positive = Field(25.0, description="micro-dollars, the same")
    bytes_per_token: Positive = Field(
        2.0, description="of a prompt, for the most that it may cost: English has 4, digits 2 (ours)"
    )
    prompt_rules_max: Annotated[int, Field(ge=1)] = Field(24, description="rules and candidates that are shown (ours)")
    prompt_ticks_max: Annotated[int, Field(ge=1)] = Field(16, description="newest ticks of evidence of each (ours)")


OPERATIONAL = ("writer", "care", "health", "reorg", "fabric", "embedding", "growth", "worth", "gateway")
"""Parts of the policy that are outside its hash: no projection depends on them."""


class Policy(Frozen):
    """All of it. `Policy()` is the specification."""

    log: LogPolicy = LogPolicy()
    writer: WriterPolicy = WriterPolicy()
    care: CarePolicy = CarePolicy()
    health: HealthPolicy = HealthPolicy()
    reorg: ReorgPolicy = ReorgPolicy()
    fabric: FabricPolicy = FabricPolicy()
    embedding: EmbeddingPolicy = EmbeddingPolicy()
    growth: GrowthPolicy = GrowthPolicy()
    probes: ProbePolicy = ProbePolicy()
    regime: RegimePolicy = RegimePolicy()
    gate: GatePolicy = GatePolicy()
    cost: CostPolicy = CostPolicy()
    cage: CagePolicy = CagePolicy()
    affect: AffectPolicy = AffectPolicy()
    anomaly: AnomalyPolicy = AnomalyPolicy()
    prediction: PredictionPolicy = PredictionPolicy()
    mortality: MortalityPolicy = MortalityPolicy()
    decay: DecayPolicy = DecayPolicy()
    curator: CuratorPolicy = CuratorPolicy()
    causal: CausalPolicy = CausalPolicy()
    playbook: PlaybookPolicy = PlaybookPolicy()
    traits: TraitPolicy = TraitPolicy()
    retrieval: RetrievalPolicy = RetrievalPolicy()
    episode: EpisodePolicy = EpisodePolicy()
    dreams: DreamPolicy = DreamPolicy()
    bridge: BridgePolicy = BridgePolicy()
    katabasis: KatabasisPolicy = KatabasisPolicy()
    inheritance: InheritancePolicy = InheritancePolicy()
    worth: WorthPolicy = WorthPolicy()
    gateway: GatewayPolicy = GatewayPolicy()

    @property
    def content(self) -> str:
        """The canonical JSON of all that decides content.

        How records are written and looked after decides nothing that is derived (OPERATIONAL).
        """
        return self.model_dump_json(exclude=set(OPERATIONAL))

    @property
    def hash(self) -> str:
        """SHA-256 of its content, 16 hex characters."""
        return hashlib.sha256(self.content.encode()).hexdigest()[:16]
