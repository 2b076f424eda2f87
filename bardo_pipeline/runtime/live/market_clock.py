"""The time of a market: virtual for tests and replays at once, or real time at a speed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

POLL_SECONDS = 0.1
"""Longest sleep in real seconds, after which steers are looked for."""


class MarketClock(Protocol):
    """Market time in microseconds since the epoch."""

    def start_at(self, at_us: int) -> None:
        """Begin at this moment of the market."""

    def now_us(self) -> int:
        """Return the present moment of the market."""

    def real_ms(self) -> int:
        """Return a running count of real milliseconds."""

    async def sleep_until(self, at_us: int) -> None:
        """Return at this moment of the market, or earlier, so that the caller looks for steers."""


class VirtualClock:
    """A clock that jumps to the next moment. Work takes no time, so a run is as fast as the machine."""

    def __init__(self) -> None:
        self._now_us = 0

    def start_at(self, at_us: int) -> None:
        """Begin at this moment of the market."""
        self._now_us = at_us

    def now_us(self) -> int:
        """Return the present moment of the market."""
        return self._now_us

    def real_ms(self) -> int:
        """Return 0: a virtual clock measures no work."""
        return 0

    async def sleep_until(self, at_us: int) -> None:
        """Jump to this moment of the market, after other tasks had their turn."""
        await asyncio.sleep(0)
        self._now_us = max(self._now_us, at_us)


class PacedClock:
    """A clock that follows real time.

    Parameters
    ----------
    speed : seconds of the market in a real second, > 0
    monotonic : real seconds
    """

    def __init__(self, speed: float, monotonic: Callable[[], float]) -> None:
        self._speed, self._monotonic = speed, monotonic
        self._begun_us, self._begun_at = 0, monotonic()

    def start_at(self, at_us: int) -> None:
        """Begin at this moment of the market."""
        self._begun_us, self._begun_at = at_us, self._monotonic()

    def now_us(self) -> int:
        """Return the present moment of the market."""
        return self._begun_us + round((self._monotonic() - self._begun_at) * self._speed * 1e6)

    def real_ms(self) -> int:
        """Return a running count of real milliseconds."""
        return round(self._monotonic() * 1e3)

    async def sleep_until(self, at_us: int) -> None:
        """Return at this moment of the market, at the latest after POLL_SECONDS."""
        seconds = (at_us - self.now_us()) / 1e6 / self._speed
        await asyncio.sleep(min(max(seconds, 0.0), POLL_SECONDS))
