"""The tape: a market by ticks, with all values that do not depend on golems. Pure.

The regime sets the interval of ticks (HB S9), so a tick may span several bars: volume is their sum, high and low are
their extremes, and levels are those of the last bar.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bardo_pipeline.arrays import Float64Array, Int64Array
from bardo_pipeline.curator.causality.variables import readings_of, return_spread, standardised
from bardo_pipeline.market.chain_events import ChainEvents, chain_events
from bardo_pipeline.market.market import Market, Reserves
from bardo_pipeline.market.regime import Features, features, schedule
from bardo_pipeline.market.return_topology import returns_distance
from bardo_pipeline.market.uniswap_v3 import sqrt_price
from bardo_pipeline.mortality.random_streams import STREAM_EXPLORE, seed_of, uniform
from bardo_pipeline.policy import Policy


@dataclass(frozen=True)
class Tape:
    """Arrays by tick; NaN for an indicator without enough earlier bars. Prices in quote per base.

    Parameters
    ----------
    pool_tick, pool_tick_low, pool_tick_high : pool ticks of close and extremes
    readings : variables of the causal graph, int64 [ticks, ALL_VARIABLES]
    spread_ppm : standard deviation of the next tick's return
    topology_windows : ticks of the window and of the reference of `topology`
    event_window : earlier events that one of `events` is compared with
    reserves : lending rates by tick; None without loans
    """

    market: Market
    bar: Int64Array
    at_us: Int64Array
    price: Float64Array
    price_low: Float64Array
    price_high: Float64Array
    pool_tick: Float64Array
    pool_tick_low: Float64Array
    pool_tick_high: Float64Array
    root: Float64Array
    liquidity: Float64Array
    liquidity_change: Float64Array
    volume_micros: Int64Array
    gas_gwei: Float64Array
    gas_hour_ratio: Float64Array
    price_return: Float64Array
    sma: Float64Array
    sigma_ratio: Float64Array
    rsi: Float64Array
    macd: Float64Array
    regime: Int64Array
    interval_seconds: Int64Array
    readings: Int64Array
    spread_ppm: Float64Array
    topology_windows: tuple[int, int]
    event_window: int
    reserves: Reserves | None

    @property
    def ticks(self) -> int:
        """Number of ticks."""
        return len(self.bar)

    @cached_property
    def regime_start(self) -> Int64Array:
        """First tick of the regime of each tick."""
        change = np.r_[True, self.regime[1:] != self.regime[:-1]]
        return np.maximum.accumulate(np.where(change, np.arange(self.ticks), 0))

    @cached_property
    def topology(self) -> Float64Array:
        """Distance of the latest returns from those before, in mean deviations; NaN without enough ticks."""
        return returns_distance(self.price_return, *self.topology_windows)

    @cached_property
    def log_levels(self) -> Float64Array:
        """Logarithms of price, gas, liquidity, volume and rates of loans, [6, ticks]; NaN for what the market lacks."""
        rates = np.full((2, self.ticks), np.nan) if self.reserves is None else self.reserves.borrow_rate
        level = np.stack([self.price, self.gas_gwei, self.liquidity, self.volume_micros.astype(np.float64), *rates])
        return np.log(np.where(level > 0.0, level, np.nan))

    @cached_property
    def events(self) -> ChainEvents:
        """Swaps and loans since the tick before."""
        return chain_events(self.volume_micros, self.reserves, self.event_window)

    @cached_property
    def exploration_luck(self) -> Float64Array:
        """Numbers in [0, 1) that decide which ticks the golems of this market explore; each is of its event time."""
        return uniform(np.array([seed_of(self.market.name)]), self.at_us, STREAM_EXPLORE)


def tape_of(market: Market, policy: Policy, bars: Int64Array | None = None, computed: Features | None = None) -> Tape:
    """Return the tape of a market under a policy.

    bars: those at which golems tick, ascending from bar 0; None: the schedule of the regimes. A tick covers the bars
    since the tick before, so that a dropped tick loses no fees. computed: features of this market, if they are known.
    """
    computed, gating = computed or features(market, policy), policy.gating
    bar = schedule(market, computed) if bars is None else bars
    starts = np.r_[0, bar[:-1] + 1]
    low = np.minimum.reduceat(market.price_low, starts)[: len(bar)]
    high = np.maximum.reduceat(market.price_high, starts)[: len(bar)]
    if bar[-1] + 1 < market.bars:
        low[-1] = market.price_low[starts[-1] : bar[-1] + 1].min()
        high[-1] = market.price_high[starts[-1] : bar[-1] + 1].max()
    total = np.r_[0, np.cumsum(market.volume_usd_micros)]
    price, liquidity = market.price[bar], market.liquidity[bar]
    price_return, volume = np.r_[0.0, np.diff(np.log(price))], (total[bar + 1] - total[starts]).astype(np.int64)
    readings = readings_of(
        price_return, market.gas_gwei[bar], liquidity, volume, price, np.nan_to_num(computed.sma[bar]),
        computed.gas_hour_ratio[bar], market.at_us[bar],
    )  # fmt: skip
    pool_tick = market.tick[bar].astype(np.float64)
    return Tape(
        market=market,
        bar=bar,
        price_low=low,
        price_high=high,
        pool_tick=pool_tick,
        pool_tick_low=np.minimum(_pool_tick(high), pool_tick),
        pool_tick_high=np.maximum(_pool_tick(low), pool_tick),
        root=sqrt_price(pool_tick),
        liquidity_change=np.r_[0.0, np.abs(np.diff(liquidity)) / liquidity[:-1]],
        volume_micros=volume,
        price_return=price_return,
        regime=computed.regime[bar].astype(np.int64),
        readings=standardised(readings, np.arange(len(bar)), policy.causal),
        spread_ppm=return_spread(price_return, policy.causal),
        topology_windows=(gating.topology_ticks, gating.topology_ticks * gating.reference_windows),
        event_window=policy.triage.event_window,
        reserves=None if market.reserves is None else market.reserves.at(bar),
        **{name: getattr(market, name)[bar] for name in ("at_us", "price", "liquidity", "gas_gwei")},
        **{name: getattr(computed, name)[bar] for name in ("gas_hour_ratio", "sma", "sigma_ratio", "rsi", "macd")},
        interval_seconds=computed.interval_seconds[bar],
    )


def _pool_tick(price: Float64Array) -> Float64Array:
    """Return the pool tick at a price, not rounded."""
    return np.asarray(np.log(1e12 / price) / np.log(1.0001))
