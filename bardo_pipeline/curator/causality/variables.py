"""Variables of the causal tests, computed from records as integers that are comparable between markets. Pure.

Returns and changes of gas and liquidity are in thousandths of their spread over the past 60 ticks, so that volatile
hours do not dominate. Changes are used instead of levels, because levels are autocorrelated.
Source: HB S4 (variables of a market), canon 16.

| variable | value, in thousandths |
|---|---|
| crash | 1000 in the first tick of a sharp fall, else 0 |
| price_return | log return of the tick, in spreads |
| price_move | log(1 + size of the return / 5 ppm) |
| past_return | 4 x mean of the last 60 returns, each capped at one spread |
| price_excursion | log distance of the price from its mean over 20 bars, in percent |
| volume | log(1 + volume / 100 dollars) |
| liquidity | change of log liquidity, in spreads |
| gas_gwei | change of the log gas price, in spreads |
| hour_14_to_16_utc | 1000 from 14 to 16 UTC, else 0 |

Auxiliary variables are only regressors, or columns that are reported as one of the above: levels of gas and liquidity
relative to their hour, sine and cosine of the time of day, means of a variable's own past, the size of a return.
crash_soon (reported as a crash 10 ticks ago) marks a deep fall in the past 15 ticks. crash_lately (60 ticks ago) is the
depth of a fall in the hour before those, if it was deep within 15 ticks; only deep falls have later effects.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bardo_pipeline.arrays import BoolArray, Float64Array, Int64Array
from bardo_pipeline.events.record.arrow_columns import contiguous
from bardo_pipeline.grimoire.entries import CAUSAL_VARIABLES
from bardo_pipeline.policy import CausalPolicy

READINGS = ("return", "gas", "liquidity", "volume", "excursion", "gas_level", "minute")
"""Integers read from a record: logs in ppm, and the minute of the day.

return: price. excursion: price over its mean. gas_level: gas over its hour's mean."""

RETURN, GAS, LIQUIDITY, VOLUME, EXCURSION, GAS_LEVEL, MINUTE = range(len(READINGS))

AUXILIARY = (
    "price_size", "gas_level", "liquidity_level", "day_sine", "day_cosine", "crash_soon", "crash_lately",
    "price_return_soon", "price_return_late", "volume_soon", "volume_late",
    "liquidity_soon", "liquidity_late", "gas_gwei_soon", "gas_gwei_late",
)  # fmt: skip
ALL_VARIABLES = (*CAUSAL_VARIABLES, *AUXILIARY)
"""Columns of `standardised`, in this order."""

CRASH, PRICE_RETURN, PRICE_MOVE, PAST_RETURN, PRICE_EXCURSION, VOLUMES, LIQUIDITIES, GASES, HOUR = range(9)
PRICE_SIZE, CRASH_SOON, CRASH_LATELY = (
    ALL_VARIABLES.index(name) for name in ("price_size", "crash_soon", "crash_lately")
)

SCALE = 1_000
"""Integer value of one spread, one event or one e-fold."""

LIMIT = 8 * SCALE
"""Largest absolute value, so that sums of products over 50,000 ticks are exact in a double."""

WINDOW = 60
"""Ticks over which the spread of a change is measured."""

_DAY = [np.rint(SCALE * turn(np.arange(1_440) * (2.0 * np.pi / 1_440))) for turn in (np.sin, np.cos)]

_LIMIT_PPM = 20_000_000
_PAST = ((4, 15), (16, 60))
_VOLUME_UNIT_MICROS = 100_000_000.0
_MOVE_UNIT_PPM = 5.0
_EXCURSION_UNIT_PPM = 10_000.0


class Column(NamedTuple):
    """A variable at a lag in ticks."""

    variable: int
    lag: int


_FAST, _SLOW = (1, 2, 3, 5, 10), (1,)
LAGS: dict[str, tuple[int, ...]] = {
    "crash": (1, 2, 3, 5),
    "price_return": (0, *_FAST),
    "price_move": (0, *_FAST),
    "past_return": _SLOW,
    "price_excursion": _SLOW,
    "volume": (0, *_FAST),
    "liquidity": (0, *_FAST),
    "gas_gwei": (0, *_FAST),
    "hour_14_to_16_utc": (0,),
    "price_size": _FAST,
    "gas_level": (1, 10),
    "liquidity_level": (0,),
    "day_sine": (0,),
    "day_cosine": (0,),
    "crash_soon": (0,),
    "crash_lately": (0,),
    **{
        f"{name}_{when}": (0,)
        for name in ("price_return", "volume", "liquidity", "gas_gwei")
        for when in ("soon", "late")
    },
}
"""Lags of each variable, in ticks; slow variables need few."""

COLUMNS = tuple(Column(ALL_VARIABLES.index(name), lag) for name, lags in LAGS.items() for lag in lags)
"""Columns of the moments, without the constant, which is the last."""

WIDTH = len(COLUMNS) + 1
CONSTANT = WIDTH - 1

SOON, LATE = 10, 60
"""Reported lags of crash_soon and crash_lately, in ticks."""

QUIET = 15
"""Ticks without a sharp fall before a fall counts as a new crash."""

WARM = WINDOW + 2 * QUIET + WINDOW + 1
"""Consecutive earlier ticks that a tick needs to be used: for lags, crashes and spreads."""


def readings(records: pa.Table) -> Int64Array:
    """Return the READINGS of records with observed_at and observation. [records, READINGS]."""
    observation = contiguous(records.column("observation"))

    def real(name: str) -> Float64Array:
        return pc.fill_null(pc.struct_field(observation, name), 0.0).to_numpy(zero_copy_only=False).astype(np.float64)

    names = ("price_return", "gas_gwei", "liquidity", "volume_micros", "price", "sma", "gas_hour_ratio")
    at_us: list[NDArray[Any]] = [records.column("observed_at").cast(pa.int64()).to_numpy()]
    return readings_of(*[real(name) for name in names], *at_us)


def readings_of(
    price_return: NDArray[Any],
    gas_gwei: NDArray[Any],
    liquidity: NDArray[Any],
    volume_micros: NDArray[Any],
    price: NDArray[Any],
    sma: NDArray[Any],
    gas_hour_ratio: NDArray[Any],
    at_us: NDArray[Any],
) -> Int64Array:
    """Return the READINGS of ticks. sma: 0 for none; at_us: UTC microseconds. [ticks, READINGS]."""
    has_mean = (sma > 0.0) & (price > 0.0)
    columns = (
        _ppm(price_return),
        _ppm(np.log(np.maximum(gas_gwei, 1e-6))),
        _ppm(np.log(np.maximum(liquidity, 1.0))),
        _ppm(np.log1p(volume_micros / _VOLUME_UNIT_MICROS)),
        _ppm(np.log(np.where(has_mean, price, 1.0)) - np.log(np.where(has_mean, sma, 1.0))),
        _ppm(np.log(np.maximum(gas_hour_ratio, 1e-3))),
        at_us // 60_000_000 % 1_440,
    )
    return np.stack(columns, axis=1).astype(np.int64)


def _ppm(values: Float64Array) -> Float64Array:
    return np.asarray(np.clip(np.rint(values * 1e6), -_LIMIT_PPM * 10, _LIMIT_PPM * 10))


def standardised(readings: Int64Array, age: Int64Array, rules: CausalPolicy) -> Int64Array:
    """Return ALL_VARIABLES of each row, each at most LIMIT in size. [rows, ALL_VARIABLES].

    Parameters
    ----------
    readings : int64 [rows, READINGS], consecutive ticks, one sequence without gaps after another
    age : int64 [rows], number of earlier ticks in the same sequence; values are final from age WARM - WINDOW on
    """
    by_reading = np.ascontiguousarray(readings.T)
    change = np.zeros((3, len(readings)), np.int64)
    np.subtract(by_reading[:3, 1:], by_reading[:3, :-1], out=change[:, 1:])
    change[RETURN] = by_reading[RETURN]
    change[:, age == 0] = 0
    np.clip(change, -_LIMIT_PPM, _LIMIT_PPM, out=change)
    spread = _spreads(change, age, rules)
    moved = np.clip(np.rint(SCALE * change / spread), -LIMIT, LIMIT).astype(np.int64)
    moved[RETURN] = _within(moved[RETURN].astype(np.float64), rules)
    ordinary = np.clip(moved[RETURN], -SCALE, SCALE)
    fell = (change[RETURN] <= -rules.fall_ppm) & (change[RETURN] <= -rules.fall_sigma * spread[RETURN])
    crash = fell & ~_lately(fell, age, 1, QUIET)
    volume = np.minimum(by_reading[VOLUME] // SCALE, LIMIT)
    past = np.stack([moved[RETURN], volume, moved[LIQUIDITY], moved[GAS]])
    means = np.stack([_mean_between(past, age, *span) for span in _PAST], axis=1)
    columns = (
        SCALE * crash,
        moved[RETURN],
        np.minimum(np.rint(SCALE * np.log1p(np.abs(change[RETURN]) / _MOVE_UNIT_PPM)), LIMIT),
        4 * (_past_sum(ordinary, age) + ordinary) // WINDOW,
        np.clip(np.rint(SCALE * by_reading[EXCURSION] / _EXCURSION_UNIT_PPM), -LIMIT, LIMIT),
        volume,
        moved[LIQUIDITY],
        moved[GAS],
        SCALE * ((by_reading[MINUTE] >= 14 * 60) & (by_reading[MINUTE] < 16 * 60)),
        np.minimum(np.abs(change[RETURN]), LIMIT),
        np.clip(by_reading[GAS_LEVEL] // SCALE, -2 * SCALE, 2 * SCALE),
        np.clip(_over_hour(by_reading[LIQUIDITY], age) // SCALE, -2 * SCALE, 2 * SCALE),
        *(wave[by_reading[MINUTE]] for wave in _DAY),
        *_deep_falls(crash, change[RETURN], age, rules),
        *means.reshape(-1, len(readings)),
    )
    variables = np.empty((len(columns), len(readings)), np.int64)
    for line, column in zip(variables, columns, strict=True):
        line[:] = column
    return variables.T


def return_spread(price_return: Float64Array, rules: CausalPolicy) -> Float64Array:
    """Return the spread of returns in ppm over the WINDOW consecutive ticks that end with each one."""
    change = np.zeros((3, len(price_return) + 1), np.int64)
    change[RETURN, :-1] = np.clip(_ppm(price_return), -_LIMIT_PPM, _LIMIT_PPM)
    change[:, 0] = 0
    return _spreads(change, np.arange(change.shape[1]), rules)[RETURN, 1:]


def _spreads(change: Int64Array, age: Int64Array, rules: CausalPolicy) -> Float64Array:
    """Return the spreads of return, gas and liquidity over the WINDOW ticks before each, in ppm. [3, rows]."""
    caps = np.array([[rules.return_cap_ppm], [rules.gas_cap_ppm], [rules.liquidity_cap_ppm]])
    floors = np.array([[rules.return_floor_ppm], [rules.gas_floor_ppm], [rules.liquidity_floor_ppm]])
    usual = np.minimum(np.abs(change), caps).astype(np.int64)
    spread: Float64Array = np.sqrt(_past_sum(usual * usual, age) / WINDOW)
    return np.maximum(spread, floors)


def _running(values: NDArray[Any]) -> Int64Array:
    """Return the sum before each row along the last axis, and at the end the total."""
    total = np.zeros((*values.shape[:-1], values.shape[-1] + 1), np.int64)
    np.cumsum(values, axis=-1, out=total[..., 1:])
    return total


def _past_sum(values: Int64Array, age: Int64Array) -> Int64Array:
    """Return the sum over the WINDOW rows before each row, within its sequence, along the last axis."""
    total = _running(values)
    return np.asarray(total[..., :-1] - total.take(np.arange(len(age)) - np.minimum(age, WINDOW), axis=-1))


def _mean_between(values: Int64Array, age: Int64Array, nearest: int, farthest: int) -> Int64Array:
    """Return the mean of the rows from farthest to nearest before each row; rows outside its sequence count as 0."""
    total, row = _running(values), np.arange(len(age))
    near, far = row - np.minimum(age, nearest - 1), row - np.minimum(age, farthest)
    return np.asarray((total.take(near, axis=-1) - total.take(far, axis=-1)) // (farthest - nearest + 1))


def _over_hour(level: Int64Array, age: Int64Array) -> Int64Array:
    """Return a level minus its mean over the WINDOW rows before, in ppm; 0 in the first row of a sequence."""
    count = np.minimum(age, WINDOW)
    return np.where(count > 0, level - _past_sum(level, age) // np.maximum(count, 1), 0)


def _lately(event: BoolArray, age: Int64Array, nearest: int, farthest: int) -> BoolArray:
    """Return whether an event is in the rows from farthest to nearest before each row, within its sequence."""
    count, row = _running(event), np.arange(len(event))
    near, far = row - np.minimum(age, nearest - 1), row - np.minimum(age, farthest)
    return np.asarray(count.take(near) > count.take(far))


def _deep_falls(
    begins: BoolArray, change: Int64Array, age: Int64Array, rules: CausalPolicy
) -> tuple[Int64Array, Int64Array]:
    """Return crash_soon (SCALE or 0) and crash_lately (depth of the fall in thousandths of crash_ppm).

    The depth counts because a recovery is a share of the loss. Each row uses earlier rows only.
    begins: first rows of sharp falls, more than QUIET apart. change: log returns in ppm.
    """
    row = np.arange(len(begins))
    start = np.maximum.accumulate(np.where(begins, row, -1))
    since = row - start
    falling = (start >= 0) & (since <= np.minimum(age, QUIET))
    level = _running(change)
    low = falling & (level[row + 1] - level[np.maximum(start, 0)] <= -rules.crash_ppm)
    deep = falling & (np.maximum.accumulate(np.where(low, row, -1)) >= start)
    crash_soon = np.concatenate([[False], deep[:-1] & (since[:-1] < QUIET)]) & (age > 0)
    proved = deep & (since == QUIET)
    last = np.concatenate([[0], np.maximum.accumulate(np.where(proved, row, 0))[:-1]])
    fallen = np.clip(np.rint(SCALE * (level[np.maximum(start, 0)] - level[row + 1]) / rules.crash_ppm), 0, LIMIT)
    return SCALE * crash_soon, np.where(_lately(proved, age, 1, WINDOW), fallen[last], 0.0).astype(np.int64)


def _within(values: Float64Array, rules: CausalPolicy) -> Float64Array:
    limit = SCALE * rules.clip_sigma
    return np.asarray(np.clip(np.rint(values), -limit, limit))
