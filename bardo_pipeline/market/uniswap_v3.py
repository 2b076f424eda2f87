"""Value, fees and moving costs of Uniswap v3 positions. Pure, elementwise over columns.

token0 is the quote (6 decimals, so raw units are micro-dollars), token1 the base (18 decimals). The raw price of the
pool is token1 per token0, so a higher tick is a lower price. `root` is the square root of the raw price. Source:
Uniswap v3 whitepaper, section 6; HB S3 (execute).
"""

from __future__ import annotations

import numpy as np

LOG_SQRT_BASE = 0.5 * np.log(1.0001)


def sqrt_price(tick: np.ndarray) -> np.ndarray:
    """Return the square root of the raw price at a tick."""
    return np.exp(np.asarray(tick, dtype=np.float64) * LOG_SQRT_BASE)


def amounts(
    liquidity: np.ndarray, root_lower: np.ndarray, root_upper: np.ndarray, root: np.ndarray | float
) -> tuple[np.ndarray, np.ndarray]:
    """Return (raw token0, raw token1) of a position at this root."""
    at = np.minimum(np.maximum(root, root_lower), root_upper)
    return liquidity * (1.0 / at - 1.0 / root_upper), liquidity * (at - root_lower)


def worth(
    liquidity: np.ndarray, root_lower: np.ndarray, root_upper: np.ndarray, root: np.ndarray | float
) -> np.ndarray:
    """Return the value of a position in micro-dollars at this root."""
    first, second = amounts(liquidity, root_lower, root_upper, root)
    return first + second / (root * root)


def liquidity_for(
    value_micros: np.ndarray, root_lower: np.ndarray, root_upper: np.ndarray, root: np.ndarray | float
) -> np.ndarray:
    """Liquidity that this value buys in this range at the pool price root."""
    unit = worth(np.ones_like(root_lower), root_lower, root_upper, root)
    return value_micros / unit


def token1_share(root_lower: np.ndarray, root_upper: np.ndarray, root: np.ndarray | float) -> np.ndarray:
    """Share of a position's value that is token1, in [0, 1]."""
    first, second = amounts(np.ones_like(root_lower), root_lower, root_upper, root)
    quoted = second / (root * root)
    return quoted / (first + quoted)


def range_around(tick: np.ndarray | float, half_width: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(lower, upper) of a new range around a tick, on the pool's spacing of 10 ticks, outwards. int64."""
    lower = (np.floor((tick - half_width) / 10) * 10).astype(np.int64)
    return lower, (np.ceil((tick + half_width) / 10) * 10).astype(np.int64)


def share_in_range(
    lower: np.ndarray,
    upper: np.ndarray,
    tick_low: np.ndarray | float,
    tick_high: np.ndarray | float,
    tick: np.ndarray | float,
) -> np.ndarray:
    """Share of the way from tick_low to tick_high that lay inside a range: the part of the volume that paid it."""
    way = np.asarray(tick_high - tick_low)
    moved = way > 0
    inside = np.minimum(upper, tick_high) - np.maximum(lower, tick_low)
    if moved.all():
        return np.minimum(np.maximum(inside / way, 0.0), 1.0)
    share = np.minimum(np.maximum(inside / np.where(moved, way, 1.0), 0.0), 1.0)
    return np.where(moved, share, (lower <= tick) & (tick < upper))


def fees_micros(
    liquidity: np.ndarray,
    pool_liquidity: np.ndarray | float,
    volume_micros: np.ndarray | float,
    fee_ppm: np.ndarray | int,
    inside: np.ndarray,
) -> np.ndarray:
    """Fees that a position earned: its share of the active liquidity, of the volume that crossed its range."""
    return liquidity / (pool_liquidity + liquidity) * (volume_micros * (fee_ppm * 1e-6)) * inside


def slippage_ppm(
    swap_micros: np.ndarray,
    pool_liquidity: np.ndarray | float,
    root: np.ndarray | float,
    fee_ppm: np.ndarray | int,
    bar_range: np.ndarray | float,
    luck: np.ndarray | float,
) -> np.ndarray:
    """Return the loss of a swap, ppm of the swapped value: pool fee, price impact, drift until inclusion.

    bar_range: high over low of the bar less one; luck in [0, 1): how much of half that range went against the swap.
    """
    impact = swap_micros * root / pool_liquidity
    return np.rint((fee_ppm * 1e-6 + impact + 0.5 * bar_range * luck) * 1e6).astype(np.int64)
