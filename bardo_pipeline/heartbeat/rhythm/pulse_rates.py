"""Intervals of gamma and theta, the violations that quicken gamma, and the limit of reads. Pure.

Theta's interval by regime is that of the market's schedule; delta is a curator cycle. Source: HB "The Adaptive Clock".
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from bardo_pipeline.arrays import BoolArray, Float64Array
from bardo_pipeline.policy import ClockPolicy

MINUTE_US = 60_000_000

QUANTITIES = ("price", "gas")
"""Predicted quantities that a bar between two ticks resolves; health needs the golem's own tick."""


def gamma_seconds(violations: int, rules: ClockPolicy, *, throttled: bool = False) -> float:
    """Return the seconds until the next pulse of gamma: 15 / (1 + 0.3 v), at least 5.

    throttled: the budget is near its ceiling, so that violations do not quicken the clock.
    """
    if throttled:
        return rules.gamma_seconds_max
    return max(rules.gamma_seconds_max / (1.0 + rules.violation_gain * violations), rules.gamma_seconds_min)


def theta_seconds(interval: int, longest: int, *, throttled: bool) -> int:
    """Return the seconds until the next tick: the regime's, or the longest while the budget is near its ceiling."""
    return longest if throttled else interval


class Resolution(NamedTuple):
    """Standing predictions beside a reading between two ticks, [quantities, golems]; NaN without a prediction."""

    expected: Float64Array
    half: Float64Array
    actual: Float64Array

    @property
    def violated(self) -> BoolArray:
        """Where the reading lies outside the interval."""
        return np.asarray(np.abs(self.actual - self.expected) > self.half)  # a comparison with NaN is false


def resolve(expected: Float64Array, half: Float64Array, price: float, gas: float) -> Resolution:
    """Compare the predictions of price and gas with a reading.

    expected, half : of the fleet, [3, golems]; the third quantity is left out
    """
    number = len(QUANTITIES)
    actual = np.broadcast_to(np.array([[price], [gas]]), expected[:number].shape)
    return Resolution(expected[:number], half[:number], actual)


class ReadLimit:
    """Counts reads of the environment over the last minute. Ticks read always; gamma yields."""

    def __init__(self, rules: ClockPolicy) -> None:
        self._most, self._read_at = rules.reads_per_minute_max, deque[int]()

    def note(self, now_us: int) -> None:
        """Count a read."""
        self._read_at.append(now_us)

    def allows(self, now_us: int) -> bool:
        """Return whether one more read stays within the limit."""
        while self._read_at and self._read_at[0] <= now_us - MINUTE_US:
            self._read_at.popleft()
        return len(self._read_at) < self._most
