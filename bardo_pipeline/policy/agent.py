"""How a golem lives: what it senses, feels, thinks, pays for and does."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from bardo_pipeline.policy.base import Count, Frozen, Positive, Unit


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
    attention_prior_weight: Positive = Field(
        50.0,
        description="thoughts that count as having led to something before any did, by situation (ours; as many as the "
        "canon's prior of the fitness)",
    )
    attention_memory: Unit = Field(
        0.995,
        description="how much earlier thoughts in a situation still count after another there: half of them after 138, "
        "more than a life has in most, so that a lineage remembers beyond one (ours; HB S5 discounts by 0.99 a tick)",
    )
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
