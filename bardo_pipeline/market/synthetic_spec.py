"""Specifications of synthetic markets, and the truths and decoys that follow from them. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from bardo_pipeline.errors import ConfigError
from bardo_pipeline.quality.true_effects import PlantedTruth


@dataclass(frozen=True)
class Turn:
    """The turn of a market, after which some truths no longer hold.

    Parameters
    ----------
    bar : first bar after the turn
    excursion_kept : permanent share of an excursion, 0 before the turn; at 2 it continues to twice its size
    flight : whether liquidity still flees large moves
    """

    bar: int
    excursion_kept: float = 0.0
    flight: bool = True

    def __post_init__(self) -> None:
        if self.bar < 0:
            raise ConfigError(f"a market turns at a bar from 0 up, not at {self.bar}")


@dataclass(frozen=True)
class SyntheticSpec:
    """Parameters of a synthetic market; shares are of the price (0.01 = 1 %), spans are in minute bars.

    price_start: USDC per WETH. native_usd_micros: price of the gas token in micro-dollars (65 cents, as on Polygon: an
    action of 620,000 gas costs about two cents at 45 gwei, in a spike 5 to 30 times that).

    Regimes: calm_share, volatile_share: probability of the next spell; the others are trends, whose direction depends
    on the price level (level_pull). spell_bars_min, spell_bars_mean: length of a spell (shifted exponential). *_sigma:
    permanent noise per bar. calm_half_life_bars: half-life of deviations in calm spells. trend_drift: drift per bar,
    times uniform(0.7, 1.3) per spell; fees balance the loss beside holding in calm spells, not in trends and crashes
    (docs/domain/markets.md).

    Excursions, in volatile spells only: one every excursion_gap_bars_mean, of size excursion_min to excursion_max in
    either direction, rising over excursion_rise_bars, with half-life excursion_half_life_bars; excursion_sigma: noise
    that reverts likewise.

    Crashes: the first after crash_first_bars (from, to), then every crash_gap_bars (from, to); crash_depth (from, to)
    over crash_bars; the share crash_recovery (from, to) recovers with crash_recovery_half_life_bars.

    Gas: gas_gwei_base, gas_daily_amplitude (share, peak at 15 UTC), gas_noise_sd (of the log) with
    gas_noise_half_life_bars. A crash multiplies it by gas_spike_factor (from, to) for gas_spike_bars (from, to),
    starting gas_lag_bars after the crash's first bar, and decays over gas_spike_fall_bars. Own spikes: every
    gas_own_gap_bars_mean, by gas_own_factor for gas_own_bars.

    Pool: fee_ppm; the pool follows the outer market only outside the fee band. Volume is the amount that moves the
    price through the liquidity, plus independent trades: in trade_share of the bars, with median trade_usd_median and
    log standard deviation trade_log_sd, times trade_volatile_factor in volatile spells and trade_peak_factor in 14-16
    UTC. liquidity_by_regime: raw L, in the order of REGIMES; it changes in liquidity_step_share of the bars, with noise
    liquidity_log_sd; a crash removes liquidity_crash_share of it.

    Not in the default market: liquidity_daily_amplitude (share, peak at 15 UTC like gas); liquidity_flight: decrease of
    log liquidity per log move of the price, flight_lag_bars later, recovering with flight_half_life_bars. turn: bar
    after which some truths no longer hold.
    """

    price_start: float = 1_800.0
    native_usd_micros: int = 650_000
    fee_ppm: int = 500
    calm_share: float = 0.38
    volatile_share: float = 0.27
    level_pull: float = 8.0
    spell_bars_min: int = 90
    spell_bars_mean: int = 260
    calm_sigma: float = 0.000_3
    calm_half_life_bars: float = 60.0
    trend_sigma: float = 0.000_35
    trend_drift: float = 0.000_05
    volatile_sigma: float = 0.000_25
    excursion_gap_bars_mean: float = 50.0
    excursion_min: float = 0.01
    excursion_max: float = 0.03
    excursion_rise_bars: int = 3
    excursion_half_life_bars: float = 20.0
    excursion_sigma: float = 0.000_5
    crash_first_bars: tuple[int, int] = (480, 1_800)
    crash_gap_bars: tuple[int, int] = (1_440, 2_880)
    crash_depth: tuple[float, float] = (0.05, 0.10)
    crash_bars: int = 15
    crash_recovery: tuple[float, float] = (0.4, 0.6)
    crash_recovery_half_life_bars: float = 60.0
    gas_gwei_base: float = 45.0
    gas_daily_amplitude: float = 0.25
    gas_noise_sd: float = 0.25
    gas_noise_half_life_bars: float = 20.0
    gas_lag_bars: int = 3
    gas_spike_factor: tuple[float, float] = (5.0, 30.0)
    gas_spike_bars: tuple[int, int] = (10, 30)
    gas_spike_fall_bars: int = 10
    gas_own_gap_bars_mean: float = 1_000.0
    gas_own_factor: tuple[float, float] = (2.0, 8.0)
    gas_own_bars: tuple[int, int] = (3, 12)
    trade_share: float = 0.65
    trade_usd_median: float = 150.0
    trade_log_sd: float = 1.6
    trade_volatile_factor: float = 4.0
    trade_peak_factor: float = 2.5
    liquidity_by_regime: tuple[float, float, float, float] = (2.8e18, 2.0e18, 2.0e18, 1.4e18)
    liquidity_step_share: float = 0.12
    liquidity_log_sd: float = 0.25
    liquidity_crash_share: float = 0.6
    liquidity_daily_amplitude: float = 0.0
    liquidity_flight: float = 0.0
    flight_lag_bars: int = 5
    flight_half_life_bars: float = 15.0
    turn: Turn | None = None


SPEC_DEFAULT = SyntheticSpec()

START = datetime(2026, 1, 1, tzinfo=UTC)
"""First bar of graded markets."""

DAY_BARS = 1_440


def graded_spec(turn_bar: int | None) -> SyntheticSpec:
    """Return the specification of graded markets: with decoys, and with truths that expire at a bar (None: never)."""
    turn = None if turn_bar is None else Turn(turn_bar, excursion_kept=1.8, flight=False)
    return replace(
        SPEC_DEFAULT, liquidity_step_share=1.0, liquidity_daily_amplitude=0.25, liquidity_flight=8.0, turn=turn
    )


def swinging_spec() -> SyntheticSpec:
    """Return the specification of a market that is volatile most of the time, without crashes and own gas spikes.

    Its excursions of 1.8 to 2.8 % are wider than the standard range of 1.6 %, so a range of 400 pool ticks earns more
    than one of 160. Over 30 ticks the difference is 0.6 of its standard deviation.
    """
    never = 10**9
    return replace(
        SPEC_DEFAULT, calm_share=0.05, volatile_share=0.9, excursion_gap_bars_mean=40.0, excursion_min=0.018,
        excursion_max=0.028, excursion_half_life_bars=10.0, crash_first_bars=(never, never + 1),
        gas_own_gap_bars_mean=float(never),
    )  # fmt: skip


def planted_truths(spec: SyntheticSpec) -> tuple[PlantedTruth, ...]:
    """Return the regularities of a market with this specification: causal and entailed truths, and decoys.

    Sizes follow from the specification. sigma is the standard deviation of one observation without the cause: of the
    log of gas, volume or liquidity, or of the log return over the lag.
    """
    return (*_of_crashes(spec), *_of_prices(spec), *_of_volume_and_gas(spec), *_of_liquidity(spec), *_decoys())


def _of_crashes(spec: SyntheticSpec) -> tuple[PlantedTruth, ...]:
    lag, back = spec.gas_lag_bars, round(spec.crash_recovery_half_life_bars)
    lift = math.log(math.prod(spec.gas_spike_factor)) / 2
    depth, recovery = sum(spec.crash_depth) / 2, sum(spec.crash_recovery) / 2
    spike = round(sum(spec.gas_spike_bars) / 2)
    return (
        PlantedTruth(
            "gas_follows_crash",
            f"Gas spikes {lag} minutes after a crash begins, for 10 to 30 minutes: act at once or wait.",
            "crash", "gas_gwei", lag, "any", 1, span_bars=spike, size=lift, sigma=spec.gas_noise_sd,
        ),
        PlantedTruth(
            "crash_recovers_partly",
            f"Part of a crash comes back, half of that within {back} minutes.",
            "crash", "price_return", back, "any", 1, span_bars=back, size=depth * recovery / 2,
            sigma=spec.trend_sigma * math.sqrt(back),
        ),
        PlantedTruth(
            "falls_lift_gas", "Gas rises after a sharp fall of the price.", "price_return", "gas_gwei", lag, "any", -1,
            span_bars=spike, kind="entailed", restates="gas_follows_crash",
        ),
        PlantedTruth(
            "large_moves_lift_gas", "Gas rises after large moves of the price.", "price_move", "gas_gwei", lag, "any",
            1, span_bars=spike, kind="entailed", restates="gas_follows_crash",
        ),
        PlantedTruth(
            "deep_falls_lift_gas", "Gas rises while the price stands far below its mean.", "price_excursion",
            "gas_gwei", lag, "any", -1, span_bars=spike, kind="entailed", restates="gas_follows_crash",
        ),
        PlantedTruth(
            "falls_drive_out_liquidity", "Liquidity leaves after a sharp fall of the price.", "price_return",
            "liquidity", 0, "any", 1, span_bars=30, kind="entailed", restates="liquidity_flees_crash",
        ),
        PlantedTruth(
            "deep_falls_drive_out_liquidity", "Liquidity leaves while the price stands far below its mean.",
            "price_excursion", "liquidity", 0, "any", 1, span_bars=30, kind="entailed",
            restates="liquidity_flees_crash",
        ),
        PlantedTruth(
            "crash_is_a_large_move", "In a crash the price moves far.", "crash", "price_move", 0, "any", 1,
            span_bars=spec.crash_bars, kind="entailed",
        ),
        PlantedTruth(
            "crash_is_traded", "A crash is traded.", "crash", "volume", 0, "any", 1, span_bars=spec.crash_bars,
            kind="entailed",
        ),
    )  # fmt: skip


def _of_prices(spec: SyntheticSpec) -> tuple[PlantedTruth, ...]:
    half_life = round(spec.excursion_half_life_bars)
    turned = spec.turn is not None and spec.turn.excursion_kept > 0
    drift = spec.trend_drift * 60
    excursion = (spec.excursion_min + spec.excursion_max) / 2
    trend = "In a {} trend the drift persists for hours: re-centring early pays."
    trends = tuple(
        PlantedTruth(
            name, trend.format(word), "past_return", "price_return", 60, regime, 1, span_bars=60, size=drift,
            sigma=spec.trend_sigma * math.sqrt(60),
        )
        for name, word, regime in (
            ("uptrend_persists", "rising", "trending_up"), ("downtrend_persists", "falling", "trending_down"),
        )
    )  # fmt: skip
    return (
        PlantedTruth(
            "excursions_revert",
            f"In volatile stretches excursions halve every {half_life} minutes: waiting beats re-centring.",
            "price_excursion", "price_return", half_life, "volatile", -1, span_bars=half_life, size=excursion / 2,
            sigma=math.hypot(spec.volatile_sigma, spec.excursion_sigma) * math.sqrt(half_life),
            rule_sign=-1, valid_until_bar=spec.turn.bar if turned and spec.turn else None,
        ),
        *trends,
        *_of_the_turn(spec),
        PlantedTruth(
            "moves_cluster", "Large moves of the price follow large moves.", "price_move", "price_move", 1, "any", 1,
            span_bars=60, kind="entailed",
        ),
    )  # fmt: skip


def _of_the_turn(spec: SyntheticSpec) -> tuple[PlantedTruth, ...]:
    """Return the truth about excursions after the turn; before it, excursions revert."""
    if spec.turn is None or spec.turn.excursion_kept <= 1.0:
        return ()
    half_life = round(spec.excursion_half_life_bars)
    return (
        PlantedTruth(
            "excursions_go_on", "Since the turn excursions go on, at the pace at which they used to come back.",
            "price_excursion", "price_return", half_life, "volatile", 1, span_bars=half_life, kind="entailed",
            valid_from_bar=spec.turn.bar,
        ),
    )  # fmt: skip


def _of_volume_and_gas(spec: SyntheticSpec) -> tuple[PlantedTruth, ...]:
    afternoon = 0.97  # mean of the daily cosine between 14 and 16 UTC
    return (
        PlantedTruth(
            "volume_follows_moves", "Volume rises with the price's moves.", "price_move", "volume", 0, "any", 1,
            span_bars=1, size=2 * spec.trade_log_sd, sigma=spec.trade_log_sd,
        ),
        PlantedTruth(
            "volume_peaks_14_to_16", "Trades are larger from 14 to 16 UTC.", "hour_14_to_16_utc", "volume", 0, "any", 1,
            span_bars=60, size=math.log(spec.trade_peak_factor), sigma=spec.trade_log_sd,
        ),
        PlantedTruth(
            "gas_peaks_at_15", "Gas is dearest around 15 UTC.", "hour_14_to_16_utc", "gas_gwei", 0, "any", 1,
            span_bars=120, size=math.log1p(afternoon * spec.gas_daily_amplitude), sigma=spec.gas_noise_sd,
        ),
        PlantedTruth(
            "depth_is_traded", "The deeper the pool, the more a move of the price takes.", "liquidity", "volume", 0,
            "any", 1, kind="entailed",
        ),
    )  # fmt: skip


def _of_liquidity(spec: SyntheticSpec) -> tuple[PlantedTruth, ...]:
    fled = math.log1p(-spec.liquidity_crash_share)
    truths = [
        PlantedTruth(
            "liquidity_flees_crash", "A crash drives liquidity out of the pool.", "crash", "liquidity", 0, "any", -1,
            span_bars=120, size=fled, sigma=spec.liquidity_log_sd,
        )
    ]  # fmt: skip
    if spec.liquidity_flight:
        turned = spec.turn is not None and not spec.turn.flight
        truths.append(
            PlantedTruth(
                "liquidity_flees_moves",
                f"Liquidity leaves {spec.flight_lag_bars} minutes after large moves of the price.",
                "price_move", "liquidity", spec.flight_lag_bars, "any", -1, span_bars=round(spec.flight_half_life_bars),
                size=spec.liquidity_flight * (spec.excursion_min + spec.excursion_max) / 2, sigma=spec.liquidity_log_sd,
                valid_until_bar=spec.turn.bar if turned and spec.turn else None,
            )
        )  # fmt: skip
    if spec.liquidity_daily_amplitude:
        truths.append(
            PlantedTruth(
                "liquidity_peaks_at_15", "The pool is deepest around 15 UTC.", "hour_14_to_16_utc", "liquidity", 0,
                "any", 1, span_bars=120, size=math.log1p(spec.liquidity_daily_amplitude), sigma=spec.liquidity_log_sd,
            )
        )  # fmt: skip
    return tuple(truths)


def _decoys() -> tuple[PlantedTruth, ...]:
    """Return correlated pairs without causation: they share a daily rhythm or a crash as common cause."""
    pairs = [
        ("volume", "gas_gwei", "Both follow crashes, and both peak in the afternoon."),
        ("gas_gwei", "volume", "Both follow crashes, and both peak in the afternoon."),
        ("gas_gwei", "price_return", "A crash lifts gas, and then part of it comes back."),
        ("gas_gwei", "price_move", "A crash lifts gas, and moves the price."),
        ("gas_gwei", "liquidity", "Both follow crashes."),
        ("liquidity", "gas_gwei", "Both follow crashes."),
        ("volume", "liquidity", "Both follow moves of the price, volume at once and liquidity later."),
    ]
    return tuple(
        PlantedTruth(
            f"{cause}_before_{effect}", why, cause, effect, 0, "any", 1, span_bars=10**6, kind="decoy",
        )
        for cause, effect, why in pairs
    )  # fmt: skip
