"""The tape: a market as a fleet meets it, one element a tick, everything computed that no golem can change. Pure.

Ticks come at the intervals that the regime asks for (HB S9), so a tick can span several bars: volume is summed over
them, high and low are their extremes, levels are those of the last bar.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bardo_pipeline.curator.causality.variables import readings_of, return_spread, standardised
from bardo_pipeline.market.aave_reserves import Reserves
from bardo_pipeline.market.market import Market
from bardo_pipeline.market.regime import features, schedule
from bardo_pipeline.market.uniswap_v3 import sqrt_price
from bardo_pipeline.policy import Policy


@dataclass(frozen=True)
class Tape:
    """Arrays [ticks]; NaN where an indicator has not enough past. Prices quote per base, ticks are the pool's.

    told: the variables of the causal graph, int64 [ticks, ALL_VARIABLES]. spread_ppm: of the next tick's return.
    reserves: what may be borrowed, by tick; None where nothing may.
    """

    market: Market
    bar: np.ndarray
    at_us: np.ndarray
    price: np.ndarray
    price_low: np.ndarray
    price_high: np.ndarray
    pool_tick: np.ndarray
    pool_tick_low: np.ndarray
    pool_tick_high: np.ndarray
    root: np.ndarray
    liquidity: np.ndarray
    liquidity_change: np.ndarray
    volume_micros: np.ndarray
    gas_gwei: np.ndarray
    gas_hour_ratio: np.ndarray
    price_return: np.ndarray
    sma: np.ndarray
    sigma_ratio: np.ndarray
    rsi: np.ndarray
    macd: np.ndarray
    regime: np.ndarray
    interval_seconds: np.ndarray
    told: np.ndarray
    spread_ppm: np.ndarray
    reserves: Reserves | None

    @property
    def ticks(self) -> int:
        """Number of ticks."""
        return len(self.bar)


def tape_of(market: Market, policy: Policy) -> Tape:
    """The tape of a market under a policy."""
    seen = features(market, policy)
    bar = schedule(market, seen)
    starts = np.r_[0, bar[:-1] + 1]
    low = np.minimum.reduceat(market.price_low, starts)[: len(bar)]
    high = np.maximum.reduceat(market.price_high, starts)[: len(bar)]
    if bar[-1] + 1 < market.bars:
        low[-1] = market.price_low[starts[-1] : bar[-1] + 1].min()
        high[-1] = market.price_high[starts[-1] : bar[-1] + 1].max()
    total = np.r_[0, np.cumsum(market.volume_usd_micros)]
    price, liquidity = market.price[bar], market.liquidity[bar]
    price_return, volume = np.r_[0.0, np.diff(np.log(price))], (total[bar + 1] - total[starts]).astype(np.int64)
    read = readings_of(
        price_return, market.gas_gwei[bar], liquidity, volume, price, np.nan_to_num(seen.sma[bar]),
        seen.gas_hour_ratio[bar], market.at_us[bar],
    )  # fmt: skip
    pool_tick = market.tick[bar].astype(np.float64)
    return Tape(
        market=market,
        bar=bar,
        at_us=market.at_us[bar],
        price=price,
        price_low=low,
        price_high=high,
        pool_tick=pool_tick,
        pool_tick_low=np.minimum(_pool_tick(high), pool_tick),
        pool_tick_high=np.maximum(_pool_tick(low), pool_tick),
        root=sqrt_price(pool_tick),
        liquidity=liquidity,
        liquidity_change=np.r_[0.0, np.abs(np.diff(liquidity)) / liquidity[:-1]],
        volume_micros=volume,
        gas_gwei=market.gas_gwei[bar],
        gas_hour_ratio=seen.gas_hour_ratio[bar],
        price_return=price_return,
        sma=seen.sma[bar],
        sigma_ratio=seen.sigma_ratio[bar],
        rsi=seen.rsi[bar],
        macd=seen.macd[bar],
        regime=seen.regime[bar].astype(np.int64),
        interval_seconds=seen.interval_seconds[bar],
        told=standardised(read, np.arange(len(bar)), policy.causal),
        spread_ppm=return_spread(price_return, policy.causal),
        reserves=None if market.reserves is None else market.reserves.at(bar),
    )


def _pool_tick(price: np.ndarray) -> np.ndarray:
    """The pool's tick at a price, not rounded."""
    return np.asarray(np.log(1e12 / price) / np.log(1.0001))
