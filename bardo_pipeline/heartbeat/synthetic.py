"""Synthetic markets: seeded minute bars with regularities planted on purpose, so that learning can be graded. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from bardo_pipeline.errors import ConfigError
from bardo_pipeline.heartbeat.market import FloatBars, IntBars, Market, PlantedTruth, price_of_tick, tick_of_price

REGIMES = ("calm", "trending_up", "trending_down", "volatile")
CALM, TRENDING_UP, TRENDING_DOWN, VOLATILE = range(4)
"""Codes of the regimes in MarketPlan.regime."""

_NO_POOL = "0x" + "0" * 40
_MINUTES_A_DAY = 1_440
_STREAM_NAMES = (
    "spells",
    "crashes",
    "own_spikes",
    "permanent",
    "calm",
    "excursion_noise",
    "excursions",
    "wick",
    "liquidity",
    "trades",
    "gas",
)


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


SPEC_DEFAULT = SyntheticSpec()


@dataclass(frozen=True)
class Spike:
    """A stretch of dear gas: from bar start on, times factor for bars bars; own is True where no crash caused it."""

    start: int
    bars: int
    factor: float
    own: bool


@dataclass(frozen=True)
class Crash:
    """A crash: its first falling bar, its depth and the part of the depth that comes back, as shares of the price."""

    start: int
    depth: float
    recovery: float
    spike: Spike


@dataclass(frozen=True, eq=False)
class MarketPlan:
    """What was planted where: regime int8[T] (codes of REGIMES), drift float64[T] a bar, crashes, own gas spikes.

    Golems never see it; tests and graders do.
    """

    regime: NDArray[np.int8]
    drift: FloatBars
    crashes: tuple[Crash, ...]
    own_spikes: tuple[Spike, ...]


def planted_truths(spec: SyntheticSpec) -> tuple[PlantedTruth, ...]:
    """The regularities of a market made under this spec, each with cause, effect, lag in bars, regime and sign."""
    gas_lag, half_life = spec.gas_lag_bars, round(spec.excursion_half_life_bars)
    back = round(spec.crash_recovery_half_life_bars)
    excursion = f"In volatile stretches excursions halve every {half_life} minutes: waiting beats re-centring."
    trend = "In a {} trend the drift persists for hours: re-centring early pays."
    gas = f"Gas spikes {gas_lag} minutes after a crash begins, for 10 to 30 minutes: act at once or wait."
    recovery = f"Part of a crash comes back, half of that within {back} minutes."
    rhythm = "Trades are larger from 14 to 16 UTC."
    return (
        PlantedTruth("gas_follows_crash", gas, "crash", "gas_gwei", gas_lag, "any", 1),
        PlantedTruth("excursions_revert", excursion, "price_excursion", "price_return", half_life, "volatile", -1),
        PlantedTruth("uptrend_persists", trend.format("rising"), "past_return", "price_return", 60, "trending_up", 1),
        PlantedTruth(
            "downtrend_persists", trend.format("falling"), "past_return", "price_return", 60, "trending_down", 1
        ),
        PlantedTruth("crash_recovers_partly", recovery, "crash", "price_return", back, "any", 1),
        PlantedTruth(
            "volume_follows_moves", "Volume rises with the price's moves.", "price_move", "volume", 0, "any", 1
        ),
        PlantedTruth("volume_peaks_14_to_16", rhythm, "hour_14_to_16_utc", "volume", 0, "any", 1),
        PlantedTruth("gas_peaks_at_15", "Gas is dearest around 15 UTC.", "hour_14_to_16_utc", "gas_gwei", 0, "any", 1),
    )


def synthetic_market(*, seed: int, bars: int, start: datetime, spec: SyntheticSpec = SPEC_DEFAULT) -> Market:
    """Make a market of minute bars from a seed: same arguments, same bytes; more bars leave the first ones as they are.

    seed: >= 0. bars: >= 1. start: the first bar, timezone-aware, on the minute. Raises ConfigError otherwise.
    Prices wander around 1,800 USDC per WETH through calm, trending and volatile spells with a crash every 1-2 days;
    market.truths lists what is planted. 10,000 bars take some 20 ms.
    """
    at_us = _minutes(bars, start)
    plan = plan_market(seed=seed, bars=bars, spec=spec)
    noise = _streams(seed)
    wider = np.cumsum(_permanent(plan, noise["permanent"], spec)) + _passing(plan, noise, spec)
    pool_log = _follow(wider, band=spec.fee_ppm / 1_000_000)
    tick = tick_of_price(spec.price_start * np.exp(pool_log))
    before = np.concatenate([tick[:1], tick[:-1]])
    wick = np.floor(np.abs(noise["wick"].standard_normal(bars)) * 0.3 * np.abs(tick - before)).astype(np.int32)
    lowest, highest = np.minimum(tick, before) - wick, np.maximum(tick, before) + wick
    liquidity = _liquidity(plan, noise["liquidity"], spec)
    price = price_of_tick(tick)
    walked = np.abs(tick - before) + 2.0 * wick
    moved_usd = liquidity * np.sqrt(price * 1e-12) * 0.5e-4 * walked * 1e-6  # L times the change of 1/sqrt(raw price)
    return Market(
        name=f"synthetic-{seed}",
        chain="synthetic",
        protocol="uniswap_v3",
        pair="WETH/USDC",
        pool=_NO_POOL,
        fee_ppm=spec.fee_ppm,
        native_usd_micros=spec.native_usd_micros,
        at_us=at_us,
        price=price,
        price_low=price_of_tick(highest),  # token0 is the dollar: a higher tick is a lower price
        price_high=price_of_tick(lowest),
        tick=tick,
        volume_usd_micros=np.rint((moved_usd + _trades(plan, at_us, noise["trades"], spec)) * 1e6).astype(np.int64),
        liquidity=liquidity,
        gas_gwei=_gas(plan, at_us, noise["gas"], spec),
        truths=planted_truths(spec),
    )


def flat_market(*, bars: int, start: datetime) -> Market:
    """Make a market in which nothing happens: 1,800 USDC per WETH, 1 gwei, 20 dollars of volume a bar, L = 2e18.

    bars: >= 1. start: timezone-aware, on the minute. Raises ConfigError otherwise. Nothing is planted.
    """
    at_us = _minutes(bars, start)
    tick = np.full(bars, tick_of_price(np.array([1_800.0]))[0], dtype=np.int32)
    price = price_of_tick(tick)
    return Market(
        name="flat",
        chain="synthetic",
        protocol="uniswap_v3",
        pair="WETH/USDC",
        pool=_NO_POOL,
        fee_ppm=500,
        native_usd_micros=SyntheticSpec.native_usd_micros,
        at_us=at_us,
        price=price,
        price_low=price,
        price_high=price,
        tick=tick,
        volume_usd_micros=np.full(bars, 20_000_000, dtype=np.int64),
        liquidity=np.full(bars, 2e18),
        gas_gwei=np.full(bars, 1.0),
    )


def plan_market(*, seed: int, bars: int, spec: SyntheticSpec = SPEC_DEFAULT) -> MarketPlan:
    """Decide spells, crashes and gas spikes before any noise. Same arguments, same plan. Raises ConfigError.

    Spells are drawn one after the other, since the direction of a trend leans on where the last one left the price.
    """
    if seed < 0 or bars < 1:
        raise ConfigError(f"a synthetic market needs seed >= 0 and bars >= 1, not seed {seed} and bars {bars}")
    streams = _streams(seed)
    crashes = tuple(_draw_crashes(streams["crashes"], bars, spec))
    regime = np.empty(bars, dtype=np.int8)
    drift = np.zeros(bars, dtype=np.float64)
    rng, at, level = streams["spells"], 0, 0.0
    while at < bars:  # one round a spell, not one a bar
        length = spec.spell_bars_min + int(rng.exponential(spec.spell_bars_mean - spec.spell_bars_min))
        lasting = sum(c.depth * (1.0 - c.recovery) for c in crashes if c.start < at)
        kind = _next_regime(rng.random(), level - lasting, spec)
        pace = spec.trend_drift * rng.uniform(0.7, 1.3) * {TRENDING_UP: 1.0, TRENDING_DOWN: -1.0}.get(kind, 0.0)
        regime[at : at + length] = kind
        drift[at : at + length] = pace
        level += pace * length
        at += length
    return MarketPlan(regime, drift, crashes, tuple(_draw_own_spikes(streams["own_spikes"], bars, spec)))


def _next_regime(draw: float, level: float, spec: SyntheticSpec) -> int:
    if draw < spec.calm_share:
        return CALM
    if draw < spec.calm_share + spec.volatile_share:
        return VOLATILE
    up_share = min(max(0.5 - spec.level_pull * level, 0.1), 0.9)
    trends_from = spec.calm_share + spec.volatile_share
    return TRENDING_UP if (draw - trends_from) / (1.0 - trends_from) < up_share else TRENDING_DOWN


def _draw_crashes(rng: np.random.Generator, bars: int, spec: SyntheticSpec) -> Iterable[Crash]:
    start = int(rng.integers(*spec.crash_first_bars))
    while start < bars:
        factor = float(np.exp(rng.uniform(*np.log(spec.gas_spike_factor))))
        spike = Spike(start + spec.gas_lag_bars, int(rng.integers(*spec.gas_spike_bars)), factor, own=False)
        yield Crash(start, rng.uniform(*spec.crash_depth), rng.uniform(*spec.crash_recovery), spike)
        start += int(rng.integers(*spec.crash_gap_bars))


def _draw_own_spikes(rng: np.random.Generator, bars: int, spec: SyntheticSpec) -> Iterable[Spike]:
    start = int(rng.exponential(spec.gas_own_gap_bars_mean))
    while start < bars:
        yield Spike(start, int(rng.integers(*spec.gas_own_bars)), rng.uniform(*spec.gas_own_factor), own=True)
        start += 60 + int(rng.exponential(spec.gas_own_gap_bars_mean))


def _permanent(plan: MarketPlan, rng: np.random.Generator, spec: SyntheticSpec) -> FloatBars:
    """Lasting log return of each bar: drift, noise, and the part of a crash that stays."""
    sigma = np.array([0.0, spec.trend_sigma, spec.trend_sigma, spec.volatile_sigma])[plan.regime]
    steps = plan.drift + sigma * rng.standard_normal(len(plan.regime))
    for crash in plan.crashes:
        steps[crash.start : crash.start + spec.crash_bars] -= crash.depth * (1.0 - crash.recovery) / spec.crash_bars
    return steps


def _passing(plan: MarketPlan, noise: dict[str, np.random.Generator], spec: SyntheticSpec) -> FloatBars:
    """Log distance from the lasting price: calm wandering, volatile excursions, what of a crash comes back."""
    bars = len(plan.regime)
    calm = np.where(plan.regime == CALM, spec.calm_sigma, 0.0) * noise["calm"].standard_normal(bars)
    volatile = plan.regime == VOLATILE
    kicks = np.where(volatile, spec.excursion_sigma, 0.0) * noise["excursion_noise"].standard_normal(bars)
    draws = noise["excursions"].random((bars, 3))
    begins = volatile & (draws[:, 0] < 1.0 / spec.excursion_gap_bars_mean)
    size = spec.excursion_min + (spec.excursion_max - spec.excursion_min) * draws[:, 1]
    push = np.where(begins, np.where(draws[:, 2] < 0.5, -size, size), 0.0) / spec.excursion_rise_bars
    for late in range(spec.excursion_rise_bars):
        kicks[late:] += push[: bars - late]
    falls = np.zeros(bars, dtype=np.float64)
    for crash in plan.crashes:
        falls[crash.start : crash.start + spec.crash_bars] -= crash.depth * crash.recovery / spec.crash_bars
    return (
        _decaying(calm, spec.calm_half_life_bars)
        + _decaying(kicks, spec.excursion_half_life_bars)
        + _decaying(falls, spec.crash_recovery_half_life_bars)
    )


def _gas(plan: MarketPlan, at_us: IntBars, rng: np.random.Generator, spec: SyntheticSpec) -> FloatBars:
    bars = len(at_us)
    kept = 0.5 ** (1.0 / spec.gas_noise_half_life_bars)
    noise = (
        _decaying(rng.standard_normal(bars), spec.gas_noise_half_life_bars) * spec.gas_noise_sd * np.sqrt(1 - kept**2)
    )
    daily = 1.0 + spec.gas_daily_amplitude * np.cos(2 * np.pi * (_minute_of_day(at_us) - 15 * 60) / _MINUTES_A_DAY)
    lift = np.zeros(bars, dtype=np.float64)
    for spike in (*(crash.spike for crash in plan.crashes), *plan.own_spikes):
        since = np.arange(bars - spike.start if spike.start < bars else 0)[: spike.bars + spec.gas_spike_fall_bars]
        shape = np.clip(1.0 - (since - spike.bars + 1) / spec.gas_spike_fall_bars, 0.0, 1.0)
        window = slice(spike.start, spike.start + len(since))
        lift[window] = np.maximum(lift[window], np.log(spike.factor) * shape)
    return np.round(spec.gas_gwei_base * daily * np.exp(noise + lift), 3)


def _trades(plan: MarketPlan, at_us: IntBars, rng: np.random.Generator, spec: SyntheticSpec) -> FloatBars:
    """Dollars traded in each bar beyond what moves the price."""
    bars = len(at_us)
    present = rng.random(bars) < np.where(plan.regime == VOLATILE, 0.5 + spec.trade_share / 2, spec.trade_share)
    rng_size = rng.spawn(1)[0]
    size = spec.trade_usd_median * np.exp(spec.trade_log_sd * np.clip(rng_size.standard_normal(bars), -4.0, 4.0))
    hour = _minute_of_day(at_us) // 60
    peak = np.where((hour >= 14) & (hour < 16), spec.trade_peak_factor, 1.0)
    return np.where(present, size * peak * np.where(plan.regime == VOLATILE, spec.trade_volatile_factor, 1.0), 0.0)


def _liquidity(plan: MarketPlan, rng: np.random.Generator, spec: SyntheticSpec) -> FloatBars:
    bars = len(plan.regime)
    draws = rng.random(bars)
    wander = (
        _decaying(rng.spawn(1)[0].standard_normal(bars), 240.0) * spec.liquidity_log_sd * np.sqrt(1 - 0.5 ** (2 / 240))
    )
    fled = np.zeros(bars, dtype=np.float64)
    for crash in plan.crashes:
        fled[crash.start : crash.start + spec.crash_bars] = 1.0 / spec.crash_bars
    fled = _decaying(fled, 120.0)
    target = np.array(spec.liquidity_by_regime)[plan.regime] * np.exp(
        wander + np.log1p(-spec.liquidity_crash_share) * fled
    )
    stepped = np.maximum.accumulate(np.where(draws < spec.liquidity_step_share, np.arange(bars), 0))
    return np.rint(target[stepped] / 1e9) * 1e9


def _decaying(kicks: FloatBars, half_life_bars: float) -> FloatBars:
    """Sum of the kicks so far, each halved every half-life. A recurrence: each bar needs the one before."""
    kept = 0.5 ** (1.0 / half_life_bars)
    return np.fromiter(accumulate(kicks.tolist(), lambda held, kick: held * kept + kick), np.float64, len(kicks))


def _follow(wider: FloatBars, *, band: float) -> FloatBars:
    """Log price of a pool whose arbitrageurs trade only outside of the fee's band. Each bar needs the one before."""
    step: Callable[[float, float], float] = lambda held, seen: min(max(held, seen - band), seen + band)  # noqa: E731
    return np.fromiter(accumulate(wider.tolist(), step), np.float64, len(wider))


def _streams(seed: int) -> dict[str, np.random.Generator]:
    """One PCG64 stream a purpose, so that more bars or another parameter leave the other draws as they are."""
    seeds = np.random.SeedSequence(seed).spawn(len(_STREAM_NAMES))
    return {name: np.random.Generator(np.random.PCG64(child)) for name, child in zip(_STREAM_NAMES, seeds, strict=True)}


def _minute_of_day(at_us: IntBars) -> IntBars:
    return at_us // 60_000_000 % _MINUTES_A_DAY


def _minutes(bars: int, start: datetime) -> IntBars:
    if bars < 1:
        raise ConfigError(f"a market needs bars >= 1, not {bars}")
    if start.tzinfo is None or start.second or start.microsecond:
        raise ConfigError(f"a market starts on a minute with a time zone, not at {start.isoformat()}")
    first = (start - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(minutes=1)
    return (first + np.arange(bars, dtype=np.int64)) * 60_000_000
