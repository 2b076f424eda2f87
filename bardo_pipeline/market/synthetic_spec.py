"""Specifications of synthetic markets: planted regularities, their strength and their end. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bardo_pipeline.errors import ConfigError


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
        """Check ranges."""
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
    times uniform(0.7, 1.3) per spell.

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
    trend_drift: float = 0.000_1
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


def graded_spec(turn_bar: int | None) -> SyntheticSpec:
    """Return the specification of graded markets: with decoys, and with truths that expire at a bar (None: never)."""
    turn = None if turn_bar is None else Turn(turn_bar, excursion_kept=1.8, flight=False)
    return replace(
        SPEC_DEFAULT, liquidity_step_share=1.0, liquidity_daily_amplitude=0.25, liquidity_flight=8.0, turn=turn
    )
