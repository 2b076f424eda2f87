"""The cycle in which an event from outside the golem takes effect. Pure.

Source: X-8; architecture ("Time and order": a closed cycle never changes).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, TypeVar


class ExternalEvent(Protocol):
    """An event about a golem whose stream had no gap up to the tick `tick_seen`."""

    @property
    def golem_id(self) -> str:
        """Id of the golem."""

    @property
    def tick_seen(self) -> int:
        """Last tick before the first gap at the time of the event."""

    def cycle(self, cycle_ticks: int) -> int:
        """Return the cycle in which the event takes effect."""


S = TypeVar("S", bound=ExternalEvent)


def cycle_after(tick_seen: int, cycle_ticks: int) -> int:
    """Return the cycle of the tick after `tick_seen`, the first cycle that is not closed."""
    return tick_seen // cycle_ticks + 1


def by_golem(events: Iterable[S]) -> dict[str, tuple[S, ...]]:
    """Group events by golem, in their order."""
    groups: dict[str, list[S]] = {}
    for event in events:
        groups.setdefault(event.golem_id, []).append(event)
    return {golem_id: tuple(group) for golem_id, group in groups.items()}


def due(
    events: Mapping[str, tuple[S, ...]], done: Mapping[str, int], upto: Mapping[str, int], cycle_ticks: int
) -> tuple[S, ...]:
    """Return the events that take effect after the cycle `done` (0 if missing) and up to the cycle `upto`, by golem."""
    return tuple(
        event
        for golem_id in sorted(upto.keys() & events.keys())
        for event in events[golem_id]
        if done.get(golem_id, 0) < event.cycle(cycle_ticks) <= upto[golem_id]
    )
