"""Observation of the market and comparison with predictions (steps 1 and 3 of the nine). Pure, over columns.

Source: HB S3, S4, S9; HB adaptive clock (predict before observing); canon ("oracle", "homeostatic variables").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bardo_pipeline.arrays import BoolArray, Float64Array
from bardo_pipeline.heartbeat.causal_forecast import Foresight
from bardo_pipeline.heartbeat.fleet import Fleet
from bardo_pipeline.market.tick_series import Tape
from bardo_pipeline.market.uniswap_v3 import fees_micros, share_in_range, worth
from bardo_pipeline.policy import Policy

PRICE, GAS, HEALTH = range(3)
"""The three predicted quantities."""


@dataclass
class Sight:
    """Observations of this tick before acting, [golems]; without a position health is NaN and score is 0.

    health: minimum over position and loan. range_health: of the pool position alone. loss: impermanent loss.
    """

    value: Float64Array
    loss: Float64Array
    nav: Float64Array
    drawdown: Float64Array
    inside: Float64Array
    health: Float64Array
    range_health: Float64Array
    score: Float64Array
    change: Float64Array
    open: BoolArray


def observe(fleet: Fleet, tape: Tape, t: int, policy: Policy) -> Sight:
    """Update positions to the tick: fees, value, health, anomaly score."""
    root, tick = tape.root[t], tape.pool_tick[t]
    held = fleet.liquidity > 0
    inside = share_in_range(fleet.lower, fleet.upper, tape.pool_tick_low[t], tape.pool_tick_high[t], tick)
    fleet.fees += fees_micros(fleet.liquidity, tape.liquidity[t], tape.volume_micros[t], tape.market.fee_ppm, inside)
    value = worth(fleet.liquidity, fleet.root_lower, fleet.root_upper, root)
    nav = value + fleet.fees + fleet.idle + fleet.loan_value
    change = (nav - fleet.nav) / np.maximum(fleet.nav, 1.0)
    fleet.high_water = np.maximum(fleet.high_water, nav)
    away = _away(fleet, tick)
    range_health = np.where(held, np.maximum(2.0 - away, 0.0), np.nan)
    rules = policy.anomaly
    volatility = tape.sigma_ratio[t] - 1.0
    volatility = 0.0 if np.isnan(volatility) else min(max(volatility, 0.0), 1.0)
    return Sight(
        value=value,
        loss=np.where(held, fleet.hold0 + fleet.hold1 / (root * root) - value, 0.0),
        nav=nav,
        drawdown=1.0 - nav / np.maximum(fleet.high_water, 1.0),
        inside=inside,
        health=np.fmin(range_health, fleet.loan_health),
        range_health=range_health,
        score=np.where(held, np.minimum(rules.away_gain * away + rules.stir_gain * volatility, 1.0), 0.0),
        change=change,
        open=held,
    )


@dataclass
class Comparison:
    """Resolved predictions, [3, golems]: NaN and False without a prediction.

    scale: divisors of residuals. sigma: standard deviation of the forecasts after the tick.
    """

    expected: Float64Array
    half: Float64Array
    actual: Float64Array
    residual: Float64Array
    resolved: BoolArray
    held: BoolArray
    scale: Float64Array
    sigma: Float64Array
    drift: Float64Array
    held_share: Float64Array


def compare(fleet: Fleet, tape: Tape, t: int, sight: Sight, policy: Policy) -> Comparison:
    """Resolve the predictions of the last tick, update forecast variances and fitness counts."""
    actual = np.empty_like(fleet.expected)
    actual[PRICE], actual[GAS], actual[HEALTH] = tape.price[t], tape.gas_gwei[t], sight.health
    residual = actual - fleet.expected
    resolved = ~np.isnan(residual)
    held = np.abs(residual) <= fleet.half
    scale = relative_scale(fleet.expected)
    relative = np.where(resolved, residual / scale, 0.0)
    memory = fleet.forecast_memory
    fleet.forecast_var = np.where(
        resolved, memory * fleet.forecast_var + (1.0 - memory) * relative * relative, fleet.forecast_var
    )
    _count(fleet, resolved, held, policy.prediction.fitness_window)
    number = resolved.sum(axis=0)
    of_number = np.where(number > 0, number, np.nan)
    return Comparison(
        expected=fleet.expected,
        half=fleet.half,
        actual=actual,
        residual=residual,
        resolved=resolved,
        held=held,
        scale=scale,
        sigma=sigma_now(fleet, policy),
        drift=np.abs(relative).sum(axis=0) / of_number,
        held_share=held.sum(axis=0) / of_number,
    )


def _count(fleet: Fleet, resolved: BoolArray, held: BoolArray, window: int) -> None:
    """Count how many of the last `window` resolved predictions held, with one ring buffer per golem."""
    for first in range(0, len(resolved), window):  # a ring of `window` places takes at most that many at once
        mask, held_now = resolved[first : first + window], held[first : first + window]
        number = mask.cumsum(axis=0)
        place = (fleet.ring_at + number - mask) % window * fleet.size + np.arange(fleet.size)
        before = fleet.ring.take(place)
        fleet.held_count += np.subtract(held_now, mask & before, dtype=np.int8).sum(axis=0)
        # An unresolved prediction shares its place with the next resolved one, which is written later.
        fleet.ring.put(place, np.where(mask, held_now, before))
        fleet.ring_at += number[-1]
    fleet.resolved_count = np.minimum(fleet.ring_at, window)


def relative_scale(expected: Float64Array) -> Float64Array:
    """Return the divisors of residuals: expected values, and 1 for health, [3, golems]."""
    scale = np.maximum(np.abs(expected), 1e-12)
    scale[HEALTH] = 1.0
    return scale


def sigma_now(fleet: Fleet, policy: Policy) -> Float64Array:
    """Return the standard deviation of the next forecasts, at least its floor, [3, golems]."""
    rules = policy.prediction
    floors = np.array([[rules.sigma_floor_price], [rules.sigma_floor_gas], [rules.sigma_floor_health]])
    return np.maximum(np.sqrt(fleet.forecast_var), floors)


def forecast(
    fleet: Fleet, tape: Tape, t: int, health: Float64Array, sigma: Float64Array, policy: Policy,
    foresight: Foresight | None = None,
) -> None:  # fmt: skip
    """Predict the next tick: a random walk, shifted by the causal graph's forecast of the price.

    The interval's width comes from past residuals, weighted by the golem's own forecast memory.

    sigma: as in Comparison.
    """
    expected = np.empty_like(sigma)
    expected[PRICE], expected[GAS], expected[HEALTH] = tape.price[t], tape.gas_gwei[t], health
    if foresight is not None and len(foresight.variable):
        fleet.foreseen = foresight.shift(tape, t)
        expected[PRICE] *= np.exp(fleet.foreseen * (tape.spread_ppm[t] / 1e6))
    else:
        fleet.foreseen = np.zeros(fleet.size)
    fleet.expected, fleet.half = expected, policy.prediction.interval_z * sigma * relative_scale(expected)


def health_now(fleet: Fleet, pool_tick: float) -> Float64Array:
    """Return the minimum health over position and loan; NaN without both.

    A position has health 2 at the centre of its range, 1 at the edge, 0 from two half-widths.
    """
    range_health = np.where(fleet.liquidity > 0, np.maximum(2.0 - _away(fleet, pool_tick), 0.0), np.nan)
    return np.asarray(np.fmin(range_health, fleet.loan_health))


def _away(fleet: Fleet, pool_tick: float) -> Float64Array:
    """Return the distance of the price from the centre of the range, in half-widths."""
    return np.abs(pool_tick - (fleet.lower + fleet.upper) * 0.5) / ((fleet.upper - fleet.lower) * 0.5)


def deviation(fleet: Fleet, policy: Policy) -> Float64Array:
    """Return the largest absolute z-score of the five homeostatic variables; NaN during the first ticks."""
    spread = np.sqrt(np.maximum(fleet.home_var, 1e-12))
    largest = (np.abs(fleet.home_last - fleet.home_mean) / spread).max(axis=0)
    return np.where(fleet.home_seen >= policy.probes.homeostatic_ticks_min, largest, np.nan)


def settle(fleet: Fleet, values: Float64Array, policy: Policy) -> None:
    """Update the moving means of burn rate, inference cost, gas spend, action and prediction error, [5, golems]."""
    memory = policy.probes.homeostatic_memory
    delta = values - fleet.home_mean
    first = fleet.home_seen == 0
    fleet.home_mean = np.where(first, values, fleet.home_mean + (1.0 - memory) * delta)
    fleet.home_var = np.where(first, 0.0, memory * (fleet.home_var + (1.0 - memory) * delta * delta))
    fleet.home_last = values
    fleet.home_seen += 1
