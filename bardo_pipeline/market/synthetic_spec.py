"""Specifications of synthetic markets: which regularities are planted, how strongly, and until when. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bardo_pipeline.errors import ConfigError


@dataclass(frozen=True)
class Turn:
    """The bar from which on what held before holds no longer.

    excursion_kept: share of an excursion that stays, in place of none: at 1 it stands, at 2 it goes on to twice its
    size, at the pace at which it used to come back. flight: whether liquidity still flees large moves.
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
    """Every parameter of a synthetic market; shares are of the price (0.01 = 1 %), spans are in minute bars.

    price_start: USDC per WETH around which the price wanders. native_usd_micros: price of the gas token in
    micro-dollars (65 cents, as on Polygon: an action of 620,000 gas costs about two cents at 45 gwei, in a spike 5 to
    30 times that).

    Regimes: calm_share, volatile_share: probability that the next spell is one; the rest is trends, up and down in
    proportion to where the price stands (level_pull). spell_bars_min, spell_bars_mean: length of a spell (a shifted
    exponential). *_sigma: permanent noise a bar. calm_half_life_bars: how fast a calm price returns to its range.
    trend_drift: drift a bar, times uniform(0.7, 1.3) a spell.

    Excursions, in volatile spells only: one every excursion_gap_bars_mean, of excursion_min to excursion_max either
    way, grown over excursion_rise_bars and halved every excursion_half_life_bars; excursion_sigma: noise that reverts
    alike.

    Crashes: the first after crash_first_bars (from, to), then every crash_gap_bars (from, to); crash_depth (from, to)
    over crash_bars; crash_recovery (from, to) of the depth comes back with crash_recovery_half_life_bars.

    Gas: gas_gwei_base, gas_daily_amplitude (share, peak at 15 UTC), gas_noise_sd (of the log) with
    gas_noise_half_life_bars. A crash multiplies it by gas_spike_factor (from, to) for gas_spike_bars (from, to),
    beginning gas_lag_bars after the crash's first bar; it then falls back over gas_spike_fall_bars. Own spikes: every
    gas_own_gap_bars_mean, by gas_own_factor for gas_own_bars.

    Pool: fee_ppm; the pool follows the wider market only outside of the fee's band, as arbitrage does. Volume is what
    moving the price through the liquidity takes, plus trades of their own: in trade_share of the bars, of median
    trade_usd_median, sd of the log trade_log_sd, times trade_volatile_factor in volatile spells and trade_peak_factor
    in 14-16 UTC. liquidity_by_regime: raw L, in the order of REGIMES; liquidity_step_share of bars change it, with
    liquidity_log_sd of noise; a crash drives out liquidity_crash_share of it.

    Not in the default market: liquidity_daily_amplitude (share, peak at 15 UTC, as gas has: two rhythms that share a
    clock); liquidity_flight: how much the log of liquidity falls for a log move of the price, flight_lag_bars later,
    coming back with flight_half_life_bars (volume follows the same moves at once, so it runs ahead of liquidity and
    moves none of it). turn: from when on some of this no longer holds.
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
    """The default market with decoys and, from a bar on, with truths that have expired; None: they never do."""
    turn = None if turn_bar is None else Turn(turn_bar, excursion_kept=1.8, flight=False)
    return replace(
        SPEC_DEFAULT, liquidity_step_share=1.0, liquidity_daily_amplitude=0.25, liquidity_flight=8.0, turn=turn
    )
