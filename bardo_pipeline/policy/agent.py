"""Policy of a living golem: probes, regimes, the gate, costs, limits, affect, predictions, mortality, playbook."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from bardo_pipeline.policy.base import Count, Frozen, Positive, PositiveCount, Unit


class ProbePolicy(Frozen):
    """Low and high severity thresholds of each probe (HB S9)."""

    price_delta_low: Positive = Field(0.005, description="price move since the last tick, share (HB S9, S17: 50 bps)")
    price_delta_high: Positive = Field(0.02, description="HB S9, S17: 200 bps")
    tvl_low: Positive = Field(0.01, description="liquidity change in one tick, share (HB S9)")
    tvl_high: Positive = Field(0.05, description="HB S9")
    health_low: Positive = Field(1.5, description="health factor below this (HB S9, S17)")
    health_high: Positive = Field(1.2, description="HB S9, S17")
    gas_low: Positive = Field(2.0, description="gas price over its one-hour average, ratio (HB S9)")
    gas_high: Positive = Field(5.0, description="HB S9")
    credit_low: Unit = Field(0.20, description="credit partition below this (HB S9)")
    credit_high: Unit = Field(0.10, description="HB S9")
    rsi_low: Positive = Field(20.0, description="distance of RSI(14) from 50 (ours; HB S9 names the signal)")
    rsi_high: Positive = Field(30.0, description="RSI(14) beyond 20 or 80: extreme (ours)")
    rsi_periods: Annotated[int, Field(ge=2)] = Field(14, description="periods of RSI (Wilder)")
    macd_fast_periods: PositiveCount = Field(12, description="periods of MACD's fast average (Appel)")
    macd_slow_periods: Annotated[int, Field(ge=2)] = Field(26, description="periods of MACD's slow average (Appel)")
    macd_signal_periods: PositiveCount = Field(9, description="periods of MACD's signal line (Appel)")
    macd_points: Positive = Field(
        50_000.0, description="RSI points of a MACD histogram equal to the price: 0.04 % is 20 points (ours)"
    )
    gas_hour_bars: PositiveCount = Field(60, description="minute bars of the average gas price (HB S9: 1 hour)")
    nav_low: Unit = Field(0.05, description="drawdown of net asset value that warns (ours; HB S9 names the signal)")
    nav_high: Unit = Field(0.10, description="drawdown of net asset value that halts (ours)")
    threat_high: Unit = Field(0.7, description="pheromone threat intensity (HB S9); any threat is low")
    sigma_low: Positive = Field(1.0, description="homeostatic deviation in standard deviations (HB S9)")
    sigma_high: Positive = Field(2.0, description="HB S9")
    homeostatic_memory: Unit = Field(0.98, description="decay a tick of the homeostatic means and variances (ours)")
    homeostatic_ticks_min: Count = Field(30, description="ticks before homeostatic deviations count (ours)")
    drift_low: Positive = Field(0.10, description="world model error (HB S9, S17)")
    drift_high: Positive = Field(0.25, description="HB S9, S17")


class RegimePolicy(Frozen):
    """Market regimes and the tick intervals they cause (HB S9, canon 32)."""

    sma_periods: Annotated[int, Field(ge=2)] = Field(20, description="periods of the moving average (HB S9)")
    trend_sigma: Positive = Field(1.0, description="price beyond SMA by this many sigma is a trend (HB S9)")
    range_sigma: Positive = Field(0.5, description="price within SMA by this many sigma is a range (HB S9)")
    range_ticks: PositiveCount = Field(6, description="ticks within range_sigma before a range is declared (HB S9)")
    volatile_ratio: Positive = Field(2.0, description="sigma of returns over its 30-day average (HB S9)")
    quiet_ratio: Positive = Field(0.5, description="LowVol below this ratio of sigma to its average (canon 32)")
    average_days: Positive = Field(30.0, description="days of the long average, or all recorded days if fewer (HB S9)")
    base_interval_seconds: PositiveCount = Field(60, description="theta interval (HB adaptive clock: 30-120 s)")
    interval_seconds_min: PositiveCount = Field(30, description="HB adaptive clock")
    interval_seconds_max: PositiveCount = Field(120, description="HB adaptive clock")
    fast_multiplier: Positive = Field(0.5, description="interval multiplier while trending down or volatile (HB S9)")
    slow_multiplier: Positive = Field(2.0, description="interval multiplier while range-bound (canon 32)")


class GatePolicy(Frozen):
    """The deliberation gate: weights of prediction error, threshold, tiers (HB S3-S5)."""

    price_weight: Positive = Field(0.3, description="HB S4")
    regime_weight: Positive = Field(0.4, description="HB S4")
    health_weight: Positive = Field(0.2, description="HB S4")
    health_delta_min: Positive = Field(0.1, description="smallest health change that counts (HB S4)")
    health_delta_max: Positive = Field(0.5, description="HB S4")
    threat_weight: Positive = Field(0.15, description="HB S4")
    intervention_weight: Positive = Field(0.1, description="weight of one pending intervention (HB S4)")
    intervention_max: Count = Field(3, description="HB S4")
    anomaly_weight: Positive = Field(0.05, description="weight of one anomaly (HB S4)")
    anomaly_max: Count = Field(5, description="HB S4")
    base_threshold: Positive = Field(0.3, description="HB S5, S17")
    confidence_gain: Unit = Field(0.5, description="HB S5")
    mortality_gain: Unit = Field(0.3, description="HB S5")
    arousal_gain: Unit = Field(0.2, description="HB S5")
    threshold_min: Unit = Field(0.05, description="HB S5")
    threshold_max: Unit = Field(0.8, description="HB S5")
    deliberate_ratio: Positive = Field(2.0, description="T2 from this multiple of the threshold (HB S5)")
    attention_prior_weight: Positive = Field(
        50.0, description="prior count of useful deliberations per situation, as the prior of fitness (ours)"
    )
    attention_memory: Unit = Field(
        0.995, description="discount of earlier deliberations per new one there; half-life 138, beyond one life (ours)"
    )
    transition_margin: Unit = Field(
        0.01, description="a phase boundary this close below vitality is imminent (ours; HB S5 names the rule)"
    )


class CostPolicy(Frozen):
    """Prices of thinking and acting (HB S3); recorded costs take precedence (canon 38)."""

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
    """PolicyCage: hard limits on every action."""

    protocols: tuple[str, ...] = Field(("uniswap_v3",), description="permitted protocols")
    pool_share_max: Unit = Field(0.05, description="largest share of a pool's active liquidity")
    slippage_max: Unit = Field(0.01, description="largest slippage as a share of the swapped value (KAT)")
    gas_share_max: Unit = Field(0.005, description="gas of one action as a share of the position's value (ours)")
    gas_credit_share_max: Unit = Field(0.25, description="gas of one action as a share of available credits (HB S10)")


class AffectPolicy(Frozen):
    """PAD appraisal (MEM; HB S6)."""

    memory: Unit = Field(0.85, description="share of the mood kept per tick (ours)")
    pleasure_gain: Positive = Field(40.0, description="pleasure per unit of relative net value change (ours)")
    arousal_gain: Positive = Field(0.8, description="arousal per prediction error above the pivot (ours)")
    arousal_pivot: Unit = Field(0.5, description="share of the threshold at which arousal stays constant (ours)")
    dominance_gain: Positive = Field(
        0.3, description="dominance per share of correct predictions above the prior (ours)"
    )


class AnomalyPolicy(Frozen):
    """The anomaly score of a position: distance of the price from its centre, plus volatility."""

    away_gain: Positive = Field(0.7, description="score of a price one half-width from the centre of the range (ours)")
    stir_gain: Unit = Field(0.1, description="score of a sigma of returns at twice its average or more (ours)")


class PredictionPolicy(Frozen):
    """The golem's own predictions, made before it observes (canon, "oracle")."""

    interval_z: Positive = Field(1.2816, description="half-width in sigmas: 80 % for a normal residual")
    sigma_floor_price: Positive = Field(1e-5, description="smallest sigma of a log return")
    sigma_floor_gas: Positive = Field(0.02, description="smallest sigma of a log gas ratio")
    sigma_floor_health: Positive = Field(0.01, description="smallest sigma of a health change")
    first_variance_price: Positive = Field(1e-6, description="variance of a log return at birth (ours)")
    first_variance_gas: Positive = Field(0.01, description="variance of a log gas ratio at birth (ours)")
    first_variance_health: Positive = Field(0.01, description="variance of a health change at birth (ours)")
    fitness_window: PositiveCount = Field(500, description="resolved predictions that count (canon)")
    fitness_prior: Unit = Field(0.7, description="canon")
    fitness_prior_weight: Positive = Field(50.0, description="canon")
    senescence: Unit = Field(0.35, description="fitness below this counts as 0: epistemic death (MEM)")
    check_ticks: PositiveCount = Field(30, description="ticks after which a decision is judged (KAT)")
    first_confidence: Unit = Field(0.5, description="prior share of correct decisions at birth (ours)")
    confidence_memory: Unit = Field(0.9, description="weight of the previous share when a decision is judged (ours)")


class MortalityPolicy(Frozen):
    """Vitality phases by lower bound, and the death reserve (MEM, canon)."""

    thriving: Unit = Field(0.7, description="vitality above this: thriving (canon 33)")
    stable: Unit = Field(0.5, description="vitality from this: stable")
    conservation: Unit = Field(0.3, description="vitality from this: conservation")
    declining: Unit = Field(0.1, description="vitality from this: declining; below: terminal")
    reserve_min_micros: Count = Field(300_000, description="smallest death reserve: $0.30 (MEM)")
    reserve_share: Unit = Field(0.02, description="death reserve as a share of the first balance (MEM)")
    age_exponent: Positive = Field(4.0, description="stochastic vitality = 1 - (age / lifespan)^4 (canon)")


class PlaybookPolicy(Frozen):
    """The playbook of a golem that has learned nothing yet, and the bounds of its revisions."""

    rebalance_threshold: Unit = Field(
        0.7, description="anomaly score from which a golem re-centres (KAT's bootstrap default)"
    )
    range_half_width_ticks: Annotated[int, Field(ge=10)] = Field(
        160, description="half-width of a new range (about 1.6 %; ours)"
    )
    heuristic_confidence_min: Unit = Field(
        0.5, description="lowest confidence of a heuristic that moves the playbook (ours)"
    )
    proof_validations: Count = Field(
        2, description="confirming cycles before a golem's staged revision takes effect (ours)"
    )
    trial_score_min: Unit = Field(
        0.5, description="anomaly score from which holding is compared with re-centring (ours)"
    )
    collect_fees_micros: Count = Field(
        500_000, description="owed fees from which a deliberating golem collects them (ours)"
    )
    reentry_ticks: Count = Field(60, description="ticks a golem stays out of the market after leaving (ours)")
    block_confidence_min: Unit = Field(0.5, description="lowest confidence of a warning that blocks (ours)")
    sure_distance: Positive = Field(
        0.3, description="distance of the score from the threshold at which a decision is fully sure (ours)"
    )
    sureness_away: Unit = Field(0.5, description="sureness of a golem that holds no position (ours)")
    certainty_past: Unit = Field(
        0.5, description="weight of past success in a decision's confidence; the rest is its sureness (ours)"
    )


class TraitPolicy(Frozen):
    """Traits drawn by the founder of a lineage: variation for selection."""

    threshold_step: Unit = Field(
        0.1, description="step by which the rebalance threshold is lower, equal or higher (ours)"
    )
    width_scales: tuple[Positive, ...] = Field(
        (0.6, 1.0, 1.6), min_length=1, description="half-widths of ranges, as shares of the playbook's (ours)"
    )
    forecast_memory_min: Unit = Field(0.90, description="lowest share of a forecast's variance kept per tick (ours)")
    forecast_memory_span: Unit = Field(0.08, description="range above forecast_memory_min (ours)")
