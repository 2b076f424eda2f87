"""Policy of a golem's life: probes, regimes, the gate, costs, limits, affect, predictions, death, playbook, loans."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from bardo_pipeline.policy.base import Count, Frozen, Operational, Positive, PositiveCount, Unit, setting


class ProbePolicy(Frozen):
    """Low and high severity thresholds of each probe (HB S9)."""

    price_delta_low: Positive = setting(0.005, "price move since the last tick, share (HB S9, S17: 50 bps)")
    price_delta_high: Positive = setting(0.02, "HB S9, S17: 200 bps")
    tvl_low: Positive = setting(0.01, "liquidity change in one tick, share (HB S9)")
    tvl_high: Positive = setting(0.05, "HB S9")
    health_low: Positive = setting(1.5, "health factor below this (HB S9, S17)")
    health_high: Positive = setting(1.2, "HB S9, S17")
    gas_low: Positive = setting(2.0, "gas price over its one-hour average, ratio (HB S9)")
    gas_high: Positive = setting(5.0, "HB S9")
    credit_low: Unit = setting(0.20, "credit partition below this (HB S9)")
    credit_high: Unit = setting(0.10, "HB S9")
    rsi_low: Positive = setting(20.0, "distance of RSI(14) from 50 (ours; HB S9 names the signal)")
    rsi_high: Positive = setting(30.0, "RSI(14) beyond 20 or 80: extreme (ours)")
    rsi_periods: int = setting(14, "periods of RSI (Wilder)", ge=2)
    macd_fast_periods: PositiveCount = setting(12, "periods of MACD's fast average (Appel)")
    macd_slow_periods: int = setting(26, "periods of MACD's slow average (Appel)", ge=2)
    macd_signal_periods: PositiveCount = setting(9, "periods of MACD's signal line (Appel)")
    macd_points: Positive = setting(
        50_000.0, "RSI points of a MACD histogram equal to the price: 0.04 % is 20 points (ours)"
    )
    gas_hour_bars: PositiveCount = setting(60, "minute bars of the average gas price (HB S9: 1 hour)")
    nav_low: Unit = setting(0.05, "drawdown of net asset value that warns (ours; HB S9 names the signal)")
    nav_high: Unit = setting(0.10, "drawdown of net asset value that halts (ours)")
    threat_high: Unit = setting(0.7, "pheromone threat intensity (HB S9); any threat is low")
    sigma_low: Positive = setting(1.0, "homeostatic deviation in standard deviations (HB S9)")
    sigma_high: Positive = setting(2.0, "HB S9")
    homeostatic_memory: Unit = setting(0.98, "decay a tick of the homeostatic means and variances (ours)")
    homeostatic_ticks_min: Count = setting(30, "ticks before homeostatic deviations count (ours)")
    drift_low: Positive = setting(0.10, "world model error (HB S9, S17)")
    drift_high: Positive = setting(0.25, "HB S9, S17")


class RegimePolicy(Frozen):
    """Market regimes and the tick intervals they cause (HB S9, canon 32)."""

    sma_periods: int = setting(20, "periods of the moving average (HB S9)", ge=2)
    trend_sigma: Positive = setting(1.0, "price beyond SMA by this many sigma is a trend (HB S9)")
    range_sigma: Positive = setting(0.5, "price within SMA by this many sigma is a range (HB S9)")
    range_ticks: PositiveCount = setting(6, "ticks within range_sigma before a range is declared (HB S9)")
    volatile_ratio: Positive = setting(2.0, "sigma of returns over its 30-day average (HB S9)")
    quiet_ratio: Positive = setting(0.5, "LowVol below this ratio of sigma to its average (canon 32)")
    average_days: Positive = setting(30.0, "days of the long average, or all recorded days if fewer (HB S9)")
    base_interval_seconds: PositiveCount = setting(60, "theta interval (HB adaptive clock: 30-120 s)")
    interval_seconds_min: PositiveCount = setting(30, "HB adaptive clock")
    interval_seconds_max: PositiveCount = setting(120, "HB adaptive clock")
    fast_multiplier: Positive = setting(0.5, "interval multiplier while trending down or volatile (HB S9)")
    slow_multiplier: Positive = setting(2.0, "interval multiplier while range-bound (canon 32)")


class ClockPolicy(Operational):
    """Clocks, queue and reads of a heartbeat in real time (HB adaptive clock, S12)."""

    gamma_seconds_max: PositiveCount = setting(15, "interval of perception without a violation (HB adaptive clock)")
    gamma_seconds_min: PositiveCount = setting(5, "shortest interval of perception (HB adaptive clock)")
    violation_gain: Positive = setting(0.3, "gamma = gamma_seconds_max / (1 + gain x violations) (HB adaptive clock)")
    pending_ticks_max: PositiveCount = setting(3, "ticks that wait; one more drops the oldest (HB S12)")
    reads_per_minute_max: PositiveCount = setting(
        24, "reads of the environment a minute; beyond, gamma gets the newest cached one (HB: about 24 calls)"
    )
    throttled_share: Unit = setting(
        0.7, "share of the daily budget from which both clocks take their longest interval (HB S17, canon 37)"
    )
    follow_memory: Unit = setting(0.9, "P(b after a) = follow_memory x P + 0.1 when b follows a (HB S8)")
    absent_decay: Unit = setting(0.99, "decay of P(c after a) when another call follows a (HB S8)")
    follow_chance_min: Unit = setting(0.01, "probability at which a pair of calls is forgotten (HB S8)")
    prefetch_chance_min: Unit = setting(0.7, "least probability of a read that is prefetched (HB S8)")
    prefetch_max: PositiveCount = setting(3, "reads that are prefetched with one call (HB S8)")


class GatePolicy(Frozen):
    """The deliberation gate: weights of prediction error, threshold, tiers (HB S3-S5)."""

    price_weight: Positive = setting(0.3, "HB S4")
    regime_weight: Positive = setting(0.4, "HB S4")
    health_weight: Positive = setting(0.2, "HB S4")
    health_delta_min: Positive = setting(0.1, "smallest health change that counts (HB S4)")
    health_delta_max: Positive = setting(0.5, "HB S4")
    threat_weight: Positive = setting(0.15, "HB S4")
    intervention_weight: Positive = setting(0.1, "weight of one pending intervention (HB S4)")
    intervention_max: Count = setting(3, "HB S4")
    anomaly_weight: Positive = setting(0.05, "weight of one anomaly (HB S4)")
    anomaly_max: Count = setting(5, "HB S4")
    base_threshold: Positive = setting(0.3, "HB S5, S17")
    confidence_gain: Unit = setting(0.5, "HB S5")
    mortality_gain: Unit = setting(0.3, "HB S5")
    arousal_gain: Unit = setting(0.2, "HB S5")
    threshold_min: Unit = setting(0.05, "HB S5")
    threshold_max: Unit = setting(0.8, "HB S5")
    deliberate_ratio: Positive = setting(2.0, "T2 from this multiple of the threshold (HB S5)")
    mode: Literal["fixed", "attention", "learned"] = setting(
        "attention", "the fixed threshold, alone or with attention, or the learned gate after it (HB S5; ADR 109)"
    )
    attention_after_ticks: Count = setting(100, "ticks of the fixed gate before attention acts (HB S5: about 100)")
    attention_prior_weight: Positive = setting(
        50.0, "prior count of useful deliberations per situation, as the prior of fitness (ours)"
    )
    attention_memory: Unit = setting(
        0.995, "discount of earlier deliberations per new one there; half-life 138, beyond one life (ours)"
    )
    transition_margin: Unit = setting(
        0.01, "a phase boundary this close below vitality is imminent (ours; HB S5 names the rule)"
    )


class GatingPolicy(Frozen):
    """The learned gate: scales of its signals, weights of experts, boundaries, feedback (HB S5, online learning)."""

    oracle_half: Positive = setting(1.0, "price residual, in half-widths of its interval, with a signal of 0.5 (ours)")
    surprise_half_nats: Positive = setting(4.0, "KL divergence with a signal of 0.5 (ours)")
    topology_half: Positive = setting(
        2.0, "distance of returns, in mean deviations of the reference, with a signal of 0.5 (ours)"
    )
    topology_ticks: PositiveCount = setting(30, "returns of the window that the topology signal compares (ours)")
    reference_windows: PositiveCount = setting(8, "length of the reference before it, in windows (ours)")
    combiner: Literal["discounted", "exponential"] = setting(
        "discounted", "discounted Hedge, or exponential weights with eta = sqrt(ln N / t) (HB S5, online learning)"
    )
    discount: Unit = setting(0.99, "power of a weight per judged tick; half-life 69 (HB S5)")
    eta: Positive = setting(0.5, "learning rate of the discounted Hedge (ours)")
    weight_ratio_min: Positive = setting(
        0.1, "lightest weight after a delta, as a share of the heaviest (ours)", le=1.0
    )
    negative_weight: Unit = setting(0.004, "weight of a loss of a tick without importance; they are many (ours)")
    boundary_priors: tuple[tuple[Positive, Positive], ...] = setting(
        ((8.0, 2.0), (5.0, 5.0), (2.0, 8.0)), "alpha and beta of the boundaries of T2, T1 and T0 (HB S5, canon 29)",
        min_length=3, max_length=3,
    )  # fmt: skip
    arousal_shift: Unit = setting(0.2, "share by which full arousal lowers a boundary (HB S5)")
    dominance_shift: Unit = setting(0.1, "rise of a threshold at full dominance (HB S5)")
    threshold_min: Unit = setting(0.05, "lowest threshold (HB S5)")
    threshold_max: Unit = setting(0.95, "highest threshold (HB S5)")
    boundary_memory: Unit = setting(0.98, "share of a boundary's evidence beyond its prior kept per delta (ours)")
    explore_share: Unit = setting(0.03, "share of discarded ticks that deliberate all the same (HB: 0.01-0.05)")
    delta_ticks: PositiveCount = setting(50, "ticks between two judgements of past tiers (HB: delta)")
    window_ticks: PositiveCount = setting(5, "ticks after a tick that show whether it was quiet (ours; HB: next theta)")
    event_error_min: Unit = setting(0.6, "surprise in the window that is an event: more than a regime change (ours)")
    event_loss_min: Unit = setting(0.03, "fall of the net asset value in the window that is an event (ours)")
    effect_min_ppm: PositiveCount = setting(1, "effect of acting after which inaction was a miss (ours)")


class TriagePolicy(Frozen):
    """The router of chain events beside the learned gate (HB online learning, canon 29 and 31)."""

    mode: Literal["off", "routed"] = setting(
        "off", "whether the learned gate routes events; an escalated one wakes its tick (HB; ADR 111)"
    )
    event_window: PositiveCount = setting(240, "earlier events that an event is compared with (ours)")
    recent_ticks: PositiveCount = setting(50, "ticks for which a counterparty of an own act is recent (ours)")
    large_value_micros: PositiveCount = setting(100_000_000_000, "value of a large event (ours; HB gives no number)")
    arms: tuple[tuple[Unit, Unit, Unit], ...] = setting(
        ((0.8, 0.5, 0.2), (0.7, 0.4, 0.15), (0.85, 0.55, 0.25), (0.75, 0.45, 0.2), (0.9, 0.6, 0.3)),
        "thresholds above which an event escalates, is emitted, or is counted, by arm (HB Thompson sampling)",
        min_length=5, max_length=5,
    )  # fmt: skip
    arm_priors: tuple[Positive, ...] = setting(
        (2.0, 1.0, 1.0, 1.0, 1.0), "alpha and beta of each arm at birth (HB Thompson sampling)",
        min_length=5, max_length=5,
    )  # fmt: skip
    arousal_edges: tuple[Unit, Unit] = setting((0.3, 0.7), "arousal between the regimes of the arms (HB)")
    arm_memory: Unit = setting(0.98, "share of an arm's evidence beyond 1 kept per delta (HB's decay; number ours)")
    ucb_alpha: Positive = setting(1.0, "width of LinUCB's confidence bound (ours; HB gives no number)")
    borderline: Unit = setting(0.1, "distance from an arm's highest threshold within which LinUCB decides (HB)")
    epsilon_first: Unit = setting(0.2, "share of random routes of the baseline at birth (HB)")
    epsilon_min: Unit = setting(0.01, "least share of random routes of the baseline (HB)")
    epsilon_decay: Unit = setting(0.999, "factor of that share per judged event (HB)")


class CostPolicy(Frozen):
    """Prices of thinking and acting (HB S3); recorded costs take precedence (canon 38)."""

    t1_input_micros_per_token: Positive = setting(1.0, "micro-dollars, Haiku-class (HB S3: $0.001-0.003 a call)")
    t1_output_micros_per_token: Positive = setting(5.0, "micro-dollars")
    t2_input_micros_per_token: Positive = setting(5.0, "micro-dollars, Opus-class (HB S3: $0.01-0.25 a call)")
    t2_output_micros_per_token: Positive = setting(25.0, "micro-dollars")
    t1_context_tokens: Count = setting(700, "observation, positions and instruction at T1 (CTX-6)")
    t2_context_tokens: Count = setting(4500, "the full workspace without entries at T2 (CTX-6)")
    entry_tokens: Count = setting(60, "tokens of one retrieved entry (ours)")
    position_tokens: Count = setting(60, "tokens of one open position (ours)")
    t1_output_tokens: Count = setting(180, "tokens of an answer at T1")
    t2_output_tokens: Count = setting(900, "tokens of an answer at T2")
    rebalance_gas_units: Count = setting(620_000, "decrease, collect, swap, mint on Uniswap v3")
    enter_gas_units: Count = setting(480_000, "swap and mint")
    collect_gas_units: Count = setting(160_000, "collect the fees of a position")
    exit_gas_units: Count = setting(320_000, "decrease, collect, swap")


class CagePolicy(Frozen):
    """PolicyCage: hard limits on every action."""

    protocols: tuple[str, ...] = setting(("uniswap_v3",), "permitted protocols")
    pool_share_max: Unit = setting(0.05, "largest share of a pool's active liquidity")
    slippage_max: Unit = setting(0.01, "largest slippage as a share of the swapped value (KAT)")
    gas_share_max: Unit = setting(0.005, "gas of one action as a share of the position's value (ours)")


class CreditPolicy(Frozen):
    """Credit partitions and the gas gate over them (HB S9, S10, S15)."""

    gas_share: Unit = setting(
        0.4, "share of the credits in the gas partition, the rest is for inference (ours; 29 to 40 % is spent on gas)"
    )
    hourly_multiple: Positive = setting(2.0, "gas of one action over the partition's average hourly cost (HB S10)")
    hourly_half_life_hours: Positive = setting(24.0, "half-life of a partition's payments in its average (ours)")
    hourly_prior_weight: Positive = setting(
        1.0, "hours that the average counts before any payment, each with one usual act at the hour's mean gas (ours)"
    )


class AffectPolicy(Frozen):
    """PAD appraisal (MEM; HB S6)."""

    memory: Unit = setting(0.85, "share of the mood kept per tick (ours)")
    pleasure_gain: Positive = setting(40.0, "pleasure per unit of relative net value change (ours)")
    arousal_gain: Positive = setting(0.8, "arousal per prediction error above the pivot (ours)")
    arousal_pivot: Unit = setting(0.5, "share of the threshold at which arousal stays constant (ours)")
    dominance_gain: Positive = setting(0.3, "dominance per share of correct predictions above the prior (ours)")


class AnomalyPolicy(Frozen):
    """The anomaly score of a position: distance of the price from its centre, plus volatility."""

    away_gain: Positive = setting(0.7, "score of a price one half-width from the centre of the range (ours)")
    stir_gain: Unit = setting(0.1, "score of a sigma of returns at twice its average or more (ours)")


class PredictionPolicy(Frozen):
    """The golem's own predictions, made before it observes (canon, "oracle")."""

    interval_z: Positive = setting(1.2816, "half-width in sigmas: 80 % for a normal residual")
    sigma_floor_price: Positive = setting(1e-5, "smallest sigma of a log return")
    sigma_floor_gas: Positive = setting(0.02, "smallest sigma of a log gas ratio")
    sigma_floor_health: Positive = setting(0.01, "smallest sigma of a health change")
    first_variance_price: Positive = setting(1e-6, "variance of a log return at birth (ours)")
    first_variance_gas: Positive = setting(0.01, "variance of a log gas ratio at birth (ours)")
    first_variance_health: Positive = setting(0.01, "variance of a health change at birth (ours)")
    fitness_window: PositiveCount = setting(500, "resolved predictions that count (canon)")
    fitness_prior: Unit = setting(0.7, "canon")
    fitness_prior_weight: Positive = setting(50.0, "canon")
    senescence: Unit = setting(0.35, "fitness below this counts as 0: epistemic death (MEM)")
    check_ticks: PositiveCount = setting(30, "ticks after which a decision is judged (KAT)")
    first_confidence: Unit = setting(0.5, "prior share of correct decisions at birth (ours)")
    confidence_memory: Unit = setting(0.9, "weight of the previous share when a decision is judged (ours)")


class MortalityPolicy(Frozen):
    """Vitality phases by lower bound, and the death reserve (MEM, canon)."""

    thriving: Unit = setting(0.7, "vitality above this: thriving (canon 33)")
    stable: Unit = setting(0.5, "vitality from this: stable")
    conservation: Unit = setting(0.3, "vitality from this: conservation")
    declining: Unit = setting(0.1, "vitality from this: declining; below: terminal")
    reserve_min_micros: Count = setting(300_000, "smallest death reserve: $0.30 (MEM)")
    reserve_share: Unit = setting(0.02, "death reserve as a share of the first balance (MEM)")
    age_exponent: Positive = setting(4.0, "stochastic vitality = 1 - (age / lifespan)^4 (canon)")


class PlaybookPolicy(Frozen):
    """The playbook of a golem that has learned nothing yet, and the bounds of its revisions."""

    rebalance_threshold: Unit = setting(0.7, "anomaly score from which a golem re-centres (KAT's bootstrap default)")
    range_half_width_ticks: int = setting(160, "half-width of a new range (about 1.6 %; ours)", ge=10)
    width_ladder_ticks: tuple[int, ...] = setting(
        (64, 160, 400, 1_000), "half-widths on trial; each 2.5 times the last, from 0.6 to 10 % (ours)", min_length=1
    )
    heuristic_confidence_min: Unit = setting(0.5, "lowest confidence of a heuristic that moves the playbook (ours)")
    proof_validations: Count = setting(2, "confirming cycles before a golem's staged revision takes effect (ours)")
    trial_score_min: Unit = setting(0.5, "anomaly score from which holding is compared with re-centring (ours)")
    collect_fees_micros: Count = setting(500_000, "owed fees from which a deliberating golem collects them (ours)")
    reentry_ticks: Count = setting(60, "ticks a golem stays out of the market after leaving (ours)")
    block_confidence_min: Unit = setting(0.5, "lowest confidence of a warning that blocks (ours)")
    sure_distance: Positive = setting(
        0.3, "distance of the score from the threshold at which a decision is fully sure (ours)"
    )
    sureness_away: Unit = setting(0.5, "sureness of a golem that holds no position (ours)")
    certainty_past: Unit = setting(
        0.5, "weight of past success in a decision's confidence; the rest is its sureness (ours)"
    )


class TraitPolicy(Frozen):
    """Traits drawn by the founder of a lineage: variation for selection."""

    threshold_step: Unit = setting(0.1, "step by which the rebalance threshold is lower, equal or higher (ours)")
    width_scales: tuple[Positive, ...] = setting(
        (0.6, 1.0, 1.6), "half-widths of ranges, as shares of the playbook's (ours)", min_length=1
    )
    forecast_memory_min: Unit = setting(0.90, "lowest share of a forecast's variance kept per tick (ours)")
    forecast_memory_span: Unit = setting(0.08, "range above forecast_memory_min (ours)")


class DyingPolicy(Operational):
    """Prices of the death protocol (MEM, "The death moment") and the silence limit. Deaths are events, so not hashed.

    A price grows with the amount of work from its `_min` to its `_max`. The death reserve pays all of them.
    """

    reflection_micros_min: Count = setting(100_000, "death reflection, Opus: $0.10 (MEM)")
    reflection_micros_max: Count = setting(250_000, "upper bound: $0.25 (MEM)")
    compression_micros_min: Count = setting(10_000, "compression of the testament, Haiku: $0.01 (MEM)")
    compression_micros_max: Count = setting(30_000, "upper bound: $0.03 (MEM)")
    upload_micros_min: Count = setting(10_000, "upload of the bundle: $0.01 (MEM)")
    upload_micros_max: Count = setting(20_000, "upper bound: $0.02 (MEM)")
    indexing_micros_min: Count = setting(10_000, "indexing of the pushed entries: $0.01 (MEM)")
    indexing_micros_max: Count = setting(50_000, "upper bound: $0.05 (MEM)")
    cheapest_push_count: PositiveCount = setting(5, "insights that the cheapest death pushes (MEM: a handful)")
    notice_seconds_max: Positive = setting(10.0, "timeout of a webhook call (ours)")
    silence_hours: Positive = setting(
        24.0, "hours without a tick after which an observer declares a death (ours)", le=876_600
    )
    silence_grace_minutes: Count = setting(
        60, "minutes after its birth or last record was recorded in which a golem is not silent (ours)"
    )
    silence_clock: Literal["market", "wall"] = setting(
        "market", "measured by the newest event of the golem's market, or by the wall clock (ours)"
    )

    @model_validator(mode="after")
    def _bounds_ascend(self) -> Self:
        for name in ("reflection", "compression", "upload", "indexing"):
            low, high = getattr(self, f"{name}_micros_min"), getattr(self, f"{name}_micros_max")
            if low > high:
                raise ValueError(f"{name}: the lowest price, {low}, exceeds the highest, {high}")
        return self


_AAVE = "Aave v3 on Polygon, proto_polygon_v3 in 2023"


class LendingPolicy(Operational):
    """Terms of a loan (Aave v3, of the recorded days) and the golem's own limits."""

    usdc_loan_to_value: Unit = setting(0.825, f"most that may be borrowed against USDC ({_AAVE})")
    usdc_threshold: Unit = setting(0.85, f"liquidation threshold of USDC ({_AAVE})")
    usdc_bonus: Unit = setting(0.04, f"liquidation bonus of USDC ({_AAVE})")
    weth_loan_to_value: Unit = setting(0.80, f"most that may be borrowed against WETH ({_AAVE})")
    weth_threshold: Unit = setting(0.825, f"liquidation threshold of WETH ({_AAVE})")
    weth_bonus: Unit = setting(0.05, f"liquidation bonus of WETH ({_AAVE})")
    close_factor: Unit = setting(0.5, "share of the debt that one liquidation repays (Aave v3)")
    full_close_health: Positive = setting(0.95, "health below which a liquidation repays all of it (Aave v3)")
    collateral_share: Unit = setting(0.5, "share of the idle capital that becomes collateral (ours)")
    ratio_max: Unit = setting(0.75, "PolicyCage: largest ratio of debt to collateral (ours)")
    rate_max: Positive = setting(0.25, "PolicyCage: highest interest rate per year (ours)")
    health_guard: Positive = setting(1.05, "health below which a deliberating golem repays (ours)")
    health_target: Positive = setting(1.25, "health after such a repayment (ours)")
    health_free: Positive = setting(10.0, "cap of the reported health, for loans with little debt (ours)")
    borrow_gas_units: Count = setting(520_000, "swap, supply and borrow (ours)")
    repay_gas_units: Count = setting(480_000, "decrease, collect, swap and repay (ours)")
