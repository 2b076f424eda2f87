"""Ticks that are due and wait: at most three, the oldest is dropped, and its probes go to the next tick. Pure.

A dropped tick consumes no tick number (canon 35). Source: HB S7 (dreaming), S12 (backpressure).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bardo_pipeline.heartbeat.probes import Probes


class Taken(NamedTuple):
    """A tick that is executed now.

    Parameters
    ----------
    bar : its bar
    depth : largest number of ticks that waited since the tick before, this one included
    dropped : bars of the ticks that were dropped since the tick before, oldest first
    in_dream : whether one of them was dropped during a dream
    """

    bar: int
    depth: int
    dropped: tuple[int, ...] = ()
    in_dream: bool = False


class PendingTicks:
    """The queue of due ticks."""

    def __init__(self, pending_max: int) -> None:
        self._max, self._bars = pending_max, deque[int]()
        self._dropped: list[int] = []
        self._depth, self._in_dream = 0, False

    def __len__(self) -> int:
        """Return the number of ticks that wait."""
        return len(self._bars)

    def push(self, bar: int, *, dreaming: bool = False) -> None:
        """Add a due tick; on a full queue, drop the oldest one."""
        if len(self._bars) == self._max:
            self._dropped.append(self._bars.popleft())
            self._in_dream |= dreaming
        self._bars.append(bar)
        self._depth = max(self._depth, len(self._bars))

    def forget(self, bar: int) -> None:
        """Leave out ticks up to this bar, and what was dropped: no golem lives at them."""
        self._bars = deque(each for each in self._bars if each > bar)
        self._dropped, self._depth, self._in_dream = [], len(self._bars), False

    def take(self) -> Taken:
        """Return the oldest tick that waits."""
        taken = Taken(self._bars.popleft(), self._depth, tuple(self._dropped), self._in_dream)
        self._dropped, self._depth, self._in_dream = [], len(self._bars), False
        return taken


def merged(probes: Probes, dropped: Sequence[Probes]) -> Probes:
    """Return the probes of a tick with those of dropped ticks: of each probe, the reading of highest severity.

    Of equal severity, the tick's own reading counts, then the newest.
    """
    value, severity = probes.value.copy(), probes.severity
    for other in reversed(dropped):
        worse = other.severity > severity
        value, severity = np.where(worse, other.value, value), np.where(worse, other.severity, severity)
    return Probes(value, probes.rules)
