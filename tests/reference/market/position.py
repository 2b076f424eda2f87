"""The row-at-a-time twin of market/uniswap_v3.py: one position, by the cases of the Uniswap v3 whitepaper.

token0 is the quote in micro-dollars, token1 the base; prices are token1 per token0, so a higher tick is a lower price.
"""

from __future__ import annotations

import math


def root_of(tick: float) -> float:
    """Square root of 1.0001 to the tick."""
    return 1.0001 ** (tick / 2)


def amounts(liquidity: float, lower: float, upper: float, tick: float) -> tuple[float, float]:
    """Return (token0, token1): only token0 below the range, only token1 above it, both inside."""
    low, high, here = root_of(lower), root_of(upper), root_of(tick)
    if tick <= lower:
        return liquidity * (high - low) / (low * high), 0.0
    if tick >= upper:
        return 0.0, liquidity * (high - low)
    return liquidity * (high - here) / (here * high), liquidity * (here - low)


def worth(liquidity: float, lower: float, upper: float, tick: float) -> float:
    """Value in token0."""
    first, second = amounts(liquidity, lower, upper, tick)
    return first + second / 1.0001**tick


def share_in_range(lower: float, upper: float, tick_low: float, tick_high: float, tick: float) -> float:
    """Return the share of a walk between two ticks inside a range; for a single point 0 or 1."""
    if tick_high <= tick_low:
        return float(lower <= tick < upper)
    return max(0.0, min(upper, tick_high) - max(lower, tick_low)) / (tick_high - tick_low)


def fees_micros(liquidity: float, pool_liquidity: float, volume: float, fee_ppm: int, inside: float) -> float:
    """Return the fees that the position earns in proportion to its liquidity in the pool."""
    return volume * fee_ppm / 10**6 * inside * liquidity / (pool_liquidity + liquidity)


def slippage_ppm(
    swap: float, pool_liquidity: float, tick: float, fee_ppm: int, high_over_low: float, luck: float
) -> int:
    """Fee, impact and drift: the price moves by swap * root / liquidity, half its range against the swap by luck."""
    impact = swap * root_of(tick) / pool_liquidity
    return round(fee_ppm + 10**6 * (impact + luck * (high_over_low - 1) / 2))


def impermanent_loss_share(price_ratio: float) -> float:
    """Return the loss of a full-range position against holding, as a share of holding: 1 - 2 sqrt(r) / (1 + r)."""
    return 1 - 2 * math.sqrt(price_ratio) / (1 + price_ratio)
