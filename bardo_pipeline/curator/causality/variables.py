"""Variables: what of a record can be a cause or an effect, each in integers that mean the same in any market. Pure.

Returns, gas, liquidity and the distance from the mean are told in thousandths of their own spread over the past hour of
ticks, so that a wild hour weighs no more than a quiet one, and what changes is told by its change: minute prices
remember, their changes hardly do. Source: HB S4 (variables of a market), canon 16.

| variable | what it is |
|---|---|
| crash | 1000 in the first tick of a sharp fall, else 0 |
| price_return | the tick's log return, in its spread |
| price_move | logarithm of 1 + its size over a hundredth of a percent, in thousandths |
| past_return | the mean of the last 60 returns, none of which counts for more than its spread, four times |
| price_excursion | log distance of the price from its mean over 20 bars, in percent: only wild hours go far |
| volume | logarithm of 1 + volume over 100 dollars, in thousandths |
| liquidity | the change of its logarithm, in its spread |
| gas_gwei | the change of the logarithm of the gas price, in its spread |
| hour_14_to_16_utc | 1000 from 14 to 16 UTC, else 0 |

The others only explain: levels of gas and liquidity against their hour, sine and cosine of the time of day, means of a
variable's own past, and the size of a move as it is. A crash 10 ticks ago means one in the past 15 ticks, and 60 ticks
ago one in the hour before those, by how far it fell: a sharp fall that was deep within 15 ticks, since only that has a
wake.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bardo_pipeline.grimoire.entries import CAUSAL_VARIABLES
from bardo_pipeline.grimoire.entry_columns import contiguous
from bardo_pipeline.policy import CausalPolicy

Ints = NDArray[np.int64]

READINGS = ("return", "gas", "liquidity", "volume", "excursion", "gas_level", "minute")
"""What is read from a record, each an integer: log return, log gas, log liquidity, log volume, log distance from the
mean and log gas over its hour in ppm, minute of the day."""

RETURN, GAS, LIQUIDITY, VOLUME, EXCURSION, GAS_LEVEL, MINUTE = range(len(READINGS))

AUXILIARY = (
    "price_size", "gas_level", "liquidity_level", "day_sine", "day_cosine", "crash_soon", "crash_lately",
    "price_return_soon", "price_return_late", "volume_soon", "volume_late",
    "liquidity_soon", "liquidity_late", "gas_gwei_soon", "gas_gwei_late",
)  # fmt: skip
ALL_VARIABLES = (*CAUSAL_VARIABLES, *AUXILIARY)
"""Columns of `standardised`, in order."""

CRASH, PRICE_RETURN, PRICE_MOVE, PAST_RETURN, PRICE_EXCURSION, VOLUMES, LIQUIDITIES, GASES, HOUR = range(9)
PRICE_SIZE, CRASH_SOON, CRASH_LATELY = (
    ALL_VARIABLES.index(name) for name in ("price_size", "crash_soon", "crash_lately")
)

SCALE = 1_000
"""Thousandths: one spread, one event, or one e-fold."""

LIMIT = 8 * SCALE
"""No value is larger, so that products of 50,000 ticks still add up exactly in a double."""

WINDOW = 60
"""Ticks whose spread a change is measured in."""

_DAY = [np.rint(SCALE * turn(np.arange(1_440) * (2.0 * np.pi / 1_440))) for turn in (np.sin, np.cos)]

_LIMIT_PPM = 20_000_000
_PAST = ((4, 15), (16, 60))
_VOLUME_UNIT_MICROS = 100_000_000.0
_MOVE_UNIT_PPM = 5.0
_EXCURSION_UNIT_PPM = 10_000.0


class Column(NamedTuple):
    """A variable some ticks ago."""

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
"""The lags, in ticks, at which each variable is looked at. What changes slowly needs few."""

COLUMNS = tuple(Column(ALL_VARIABLES.index(name), lag) for name, lags in LAGS.items() for lag in lags)
"""Columns of the moments but the last, which is a constant."""

WIDTH = len(COLUMNS) + 1
CONSTANT = WIDTH - 1

SOON, LATE = 10, 60
"""The lags, in ticks, that what spreads over a quarter of an hour, and over an hour, is said to have."""

QUIET = 15
"""Ticks without a sharp fall before the next one counts as a beginning."""

WARM = WINDOW + 2 * QUIET + WINDOW + 1
"""Ticks of unbroken past that a tick needs to be looked at: a lag, the falls before it, and their spread."""


def readings(records: pa.Table) -> Ints:
    """READINGS of each record, int64 [records, 7]. records: observed_at and observation."""
    seen = contiguous(records.column("observation"))

    def real(name: str, missing: float = 0.0) -> NDArray[np.float64]:
        return pc.fill_null(pc.struct_field(seen, name), missing).to_numpy(zero_copy_only=False).astype(np.float64)

    names = ("price_return", "gas_gwei", "liquidity", "volume_micros", "price", "sma", "gas_hour_ratio")
    seen_at: list[NDArray[Any]] = [records.column("observed_at").cast(pa.int64()).to_numpy()]
    return readings_of(*[real(name) for name in names], *seen_at)


def readings_of(
    price_return: NDArray[Any],
    gas_gwei: NDArray[Any],
    liquidity: NDArray[Any],
    volume_micros: NDArray[Any],
    price: NDArray[Any],
    sma: NDArray[Any],
    gas_hour_ratio: NDArray[Any],
    at_us: NDArray[Any],
) -> Ints:
    """READINGS from what is observed, one element a tick; sma: 0 where there is none."""
    known = (sma > 0.0) & (price > 0.0)
    columns = (
        _ppm(price_return),
        _ppm(np.log(np.maximum(gas_gwei, 1e-6))),
        _ppm(np.log(np.maximum(liquidity, 1.0))),
        _ppm(np.log1p(volume_micros / _VOLUME_UNIT_MICROS)),
        _ppm(np.log(np.where(known, price, 1.0)) - np.log(np.where(known, sma, 1.0))),
        _ppm(np.log(np.maximum(gas_hour_ratio, 1e-3))),
        at_us // 60_000_000 % 1_440,
    )
    return np.stack(columns, axis=1).astype(np.int64)


def _ppm(values: NDArray[np.float64]) -> NDArray[np.float64]:
    limited: NDArray[np.float64] = np.clip(np.rint(values * 1e6), -_LIMIT_PPM * 10, _LIMIT_PPM * 10)
    return limited


def standardised(read: Ints, age: Ints, rules: CausalPolicy) -> Ints:
    """ALL_VARIABLES of each row, int64 [rows, variables], each within LIMIT.

    read: READINGS of consecutive ticks, stretch after stretch. age: how many ticks of its own stretch stand before each
    row. A row's values are final from age WARM - WINDOW on; what looks further back sees only its own stretch.
    """
    seen = np.ascontiguousarray(read.T)  # a variable a line
    change = np.zeros((3, len(read)), np.int64)
    np.subtract(seen[:3, 1:], seen[:3, :-1], out=change[:, 1:])
    change[RETURN] = seen[RETURN]
    change[:, age == 0] = 0
    np.clip(change, -_LIMIT_PPM, _LIMIT_PPM, out=change)
    spread = _spreads(change, age, rules)
    moved = np.clip(np.rint(SCALE * change / spread), -LIMIT, LIMIT).astype(np.int64)
    moved[RETURN] = _within(moved[RETURN].astype(np.float64), rules)
    ordinary = np.clip(moved[RETURN], -SCALE, SCALE)
    fell = (change[RETURN] <= -rules.fall_ppm) & (change[RETURN] <= -rules.fall_sigma * spread[RETURN])
    crash = fell & ~_lately(fell, age, 1, QUIET)
    volume = np.minimum(seen[VOLUME] // SCALE, LIMIT)
    past = np.stack([moved[RETURN], volume, moved[LIQUIDITY], moved[GAS]])
    means = np.stack([_mean_between(past, age, *span) for span in _PAST], axis=1)
    columns = (
        SCALE * crash,
        moved[RETURN],
        np.minimum(np.rint(SCALE * np.log1p(np.abs(change[RETURN]) / _MOVE_UNIT_PPM)), LIMIT),
        4 * (_past_sum(ordinary, age) + ordinary) // WINDOW,
        np.clip(np.rint(SCALE * seen[EXCURSION] / _EXCURSION_UNIT_PPM), -LIMIT, LIMIT),
        volume,
        moved[LIQUIDITY],
        moved[GAS],
        SCALE * ((seen[MINUTE] >= 14 * 60) & (seen[MINUTE] < 16 * 60)),
        np.minimum(np.abs(change[RETURN]), LIMIT),
        np.clip(seen[GAS_LEVEL] // SCALE, -2 * SCALE, 2 * SCALE),
        np.clip(_over_hour(seen[LIQUIDITY], age) // SCALE, -2 * SCALE, 2 * SCALE),
        *(turn[seen[MINUTE]] for turn in _DAY),
        *_deep_falls(crash, change[RETURN], age, rules),
        *means.reshape(-1, len(read)),
    )
    told = np.empty((len(columns), len(read)), np.int64)
    for line, column in zip(told, columns, strict=True):
        line[:] = column
    return told.T


def return_spread(price_return: NDArray[np.float64], rules: CausalPolicy) -> NDArray[np.float64]:
    """The spread in ppm that a tick's return is told in, from the ticks up to and with each one; unbroken ticks."""
    change = np.zeros((3, len(price_return) + 1), np.int64)
    change[RETURN, :-1] = np.clip(_ppm(price_return), -_LIMIT_PPM, _LIMIT_PPM)
    change[:, 0] = 0
    return _spreads(change, np.arange(change.shape[1]), rules)[RETURN, 1:]


def _spreads(change: Ints, age: Ints, rules: CausalPolicy) -> NDArray[np.float64]:
    """The spread of return, gas and liquidity over the WINDOW ticks before each, in ppm, [3, rows]."""
    caps = np.array([[rules.return_cap_ppm], [rules.gas_cap_ppm], [rules.liquidity_cap_ppm]])
    floors = np.array([[rules.return_floor_ppm], [rules.gas_floor_ppm], [rules.liquidity_floor_ppm]])
    usual = np.minimum(np.abs(change), caps).astype(np.int64)
    spread: NDArray[np.float64] = np.sqrt(_past_sum(usual * usual, age) / WINDOW)
    return np.maximum(spread, floors)


def _running(values: NDArray[Any]) -> Ints:
    """Sums of all that stands before each row, and at the end of all, along the last axis."""
    total = np.zeros((*values.shape[:-1], values.shape[-1] + 1), np.int64)
    np.cumsum(values, axis=-1, out=total[..., 1:])
    return total


def _past_sum(values: Ints, age: Ints) -> Ints:
    """Sum over the WINDOW rows before each row, within its stretch, along the last axis."""
    total = _running(values)
    summed: Ints = total[..., :-1] - total.take(np.arange(len(age)) - np.minimum(age, WINDOW), axis=-1)
    return summed


def _mean_between(values: Ints, age: Ints, nearest: int, farthest: int) -> Ints:
    """Mean of the rows from farthest to nearest before each row, within the stretch; no value counts as 0."""
    total, row = _running(values), np.arange(len(age))
    near, far = row - np.minimum(age, nearest - 1), row - np.minimum(age, farthest)
    mean: Ints = (total.take(near, axis=-1) - total.take(far, axis=-1)) // (farthest - nearest + 1)
    return mean


def _over_hour(level: Ints, age: Ints) -> Ints:
    """A logarithm less its mean over the WINDOW rows before, in whole ppm; 0 in the first row of a stretch."""
    count = np.minimum(age, WINDOW)
    return np.where(count > 0, level - _past_sum(level, age) // np.maximum(count, 1), 0)


def _lately(event: NDArray[np.bool_], age: Ints, nearest: int, farthest: int) -> NDArray[np.bool_]:
    """Whether it happened from farthest to nearest rows before each row, within the stretch."""
    count, row = _running(event), np.arange(len(event))
    near, far = row - np.minimum(age, nearest - 1), row - np.minimum(age, farthest)
    lately: NDArray[np.bool_] = count.take(near) > count.take(far)
    return lately


def _deep_falls(begins: NDArray[np.bool_], change: Ints, age: Ints, rules: CausalPolicy) -> tuple[Ints, Ints]:
    """Whether a fall that began in the QUIET rows before each row was deep before it (SCALE or 0), and how far one that
    began in the WINDOW rows before those, and was deep within QUIET rows, had fallen by then, in thousandths of
    crash_ppm: what comes back is a share of what was lost. No row knows of what comes after it.

    begins: the first rows of sharp falls, more than QUIET apart. change: log returns in ppm.
    """
    row = np.arange(len(begins))
    start = np.maximum.accumulate(np.where(begins, row, -1))
    since = row - start
    falling = (start >= 0) & (since <= np.minimum(age, QUIET))
    level = _running(change)
    low = falling & (level[row + 1] - level[np.maximum(start, 0)] <= -rules.crash_ppm)
    deep = falling & (np.maximum.accumulate(np.where(low, row, -1)) >= start)
    soon = np.concatenate([[False], deep[:-1] & (since[:-1] < QUIET)]) & (age > 0)
    proved = deep & (since == QUIET)
    last = np.concatenate([[0], np.maximum.accumulate(np.where(proved, row, 0))[:-1]])
    fallen = np.clip(np.rint(SCALE * (level[np.maximum(start, 0)] - level[row + 1]) / rules.crash_ppm), 0, LIMIT)
    return SCALE * soon, np.where(_lately(proved, age, 1, WINDOW), fallen[last], 0.0).astype(np.int64)


def _within(values: NDArray[np.float64], rules: CausalPolicy) -> NDArray[np.float64]:
    limit = SCALE * rules.clip_sigma
    limited: NDArray[np.float64] = np.clip(np.rint(values), -limit, limit)
    return limited
