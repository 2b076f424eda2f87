"""Reads the numbers that analyses need from the free JSON of a caller: prediction, regime, volatility, gas. Pure.

A runtime names its fields as it likes. The first name of a list that holds a number counts. Upper and lower case are
equal, and `-` counts as `_`. Objects inside the JSON are searched after its own fields. A text such as "12.5" counts
as a number.
Source: TOOLS (RecordExecutionParams), MEM-18.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

PROFIT = (
    "expected_pnl_usd", "predicted_pnl_usd", "pnl_usd", "expected_pnl", "predicted_pnl", "expected_return_usd",
    "expected_return", "predicted_return", "expected_profit_usd", "expected_profit", "expected_reward",
    "predicted_reward", "pnl", "profit", "return", "reward", "expected", "expected_value",
)  # fmt: skip
"""Names of a predicted profit in US dollars, the most specific first."""

INTERVAL = ("confidence_interval_usd", "confidence_interval", "interval", "ci")
"""Names of an interval: a list of two numbers, or an object with LOW and HIGH."""

LOW = ("low_usd", "low", "lower", "lower_bound", "min", "p10", "ci_low", "interval_low", "expected_low")
HIGH = ("high_usd", "high", "upper", "upper_bound", "max", "p90", "ci_high", "interval_high", "expected_high")
LEVEL = ("confidence_level", "interval_level", "level", "coverage")
REGIME = ("regime", "market_regime")
VOLATILITY = ("volatility", "realized_volatility", "volatility_24h", "volatility_1h", "sigma", "sigma_ratio", "vol")
GAS = ("gas_gwei", "gas_price_gwei", "gas_price", "base_fee_gwei", "base_fee", "gas")


class Prediction(NamedTuple):
    """A predicted profit and its interval, US dollars; None if the JSON does not state them."""

    profit: float | None
    low: float | None
    high: float | None
    level: float


def prediction_of(outcome: Any, default_level: float) -> Prediction:
    """Return the prediction that a caller's JSON states.

    Without a profit, the middle of the interval counts. Without a level, default_level counts; above 1 it is percent.
    """
    if (alone := _number(outcome)) is not None:
        return Prediction(alone, None, None, default_level)
    if not isinstance(outcome, Mapping):
        return Prediction(None, None, None, default_level)
    low, high, stated_level = _interval(outcome)
    level = first_number(outcome, LEVEL)
    level = stated_level if level is None else level
    level = default_level if level is None else level / 100 if 1 < level <= 100 else level
    profit = first_number(outcome, PROFIT, deep=False)
    if profit is None:
        profit = (low + high) / 2 if low is not None and high is not None else first_number(outcome, PROFIT)
    return Prediction(profit, low, high, min(max(level, 0.0), 1.0))


def _interval(outcome: Mapping[str, Any]) -> tuple[float | None, float | None, float | None]:
    """Return the bounds of the interval in ascending order and its level."""
    named = {_plain(key): value for key, value in outcome.items()}
    low, high = first_number(outcome, LOW, deep=False), first_number(outcome, HIGH, deep=False)
    level = None
    for name in INTERVAL:
        match named.get(name):
            case [first, second] if _number(first) is not None and _number(second) is not None:
                low, high = _number(first), _number(second)
                break
            case dict() as inside:
                low, high = first_number(inside, LOW), first_number(inside, HIGH)
                level = first_number(inside, LEVEL)
                break
    if low is None or high is None:
        return None, None, level
    return min(low, high), max(low, high), level


def first_number(value: Any, names: tuple[str, ...], *, deep: bool = True) -> float | None:
    """Return the number under the first of these names, of the outermost object that has one; None without."""
    for level in _objects(value) if deep else [value] if isinstance(value, Mapping) else []:
        named = {_plain(key): item for key, item in level.items()}
        for name in names:
            if (number := _number(named.get(name))) is not None:
                return number
    return None


def first_text(value: Any, names: tuple[str, ...]) -> str | None:
    """Return the text under the first of these names, of the outermost object that has one; None without."""
    for level in _objects(value):
        named = {_plain(key): item for key, item in level.items()}
        for name in names:
            if isinstance(named.get(name), str) and named[name].strip():
                return str(named[name]).strip()[:256]
    return None


def numbers_of(value: Any) -> dict[str, float]:
    """Return the numbers of the outermost object of a JSON value by name."""
    numbers = {str(k): _number(v) for k, v in value.items()} if isinstance(value, Mapping) else {}
    return {name: number for name, number in numbers.items() if number is not None}


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the objects in a JSON value, the outermost first."""
    waiting = [value]
    while waiting:
        inside: list[Any] = []
        for item in waiting:
            if isinstance(item, Mapping):
                yield item
                inside += item.values()
            elif isinstance(item, list | tuple):
                inside += item
        waiting = inside


def _number(value: Any) -> float | None:
    """Return a finite number below 1e12 in size, which may be a text; None for other values."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and abs(number) < 1e12 else None


def _plain(name: Any) -> str:
    return str(name).strip().lower().replace("-", "_").replace(" ", "_")
