"""Events from outside a golem, and the cycle in which each takes effect. Pure.

Source: X-8; architecture ("Time and order": a closed cycle never changes).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, Protocol, TypeVar


class ExternalEvent(Protocol):
    """An event about a golem whose stream had no gap up to the tick `tick_seen`."""

    @property
    def golem_id(self) -> str:
        """Id of the golem."""

    def cycle(self, cycle_ticks: int) -> int:
        """Return the cycle in which the event takes effect."""


S = TypeVar("S", bound=ExternalEvent)


def cycle_after(tick_seen: int, cycle_ticks: int) -> int:
    """Return the cycle of the tick after `tick_seen`, the first cycle that is not closed."""
    return tick_seen // cycle_ticks + 1


@dataclass(frozen=True)
class ExternalEvents(Generic[S]):
    """All events of one sort in order."""

    events: tuple[S, ...] = ()

    @cached_property
    def _by_golem(self) -> dict[str, tuple[S, ...]]:
        groups: dict[str, list[S]] = {}
        for event in self.events:
            groups.setdefault(event.golem_id, []).append(event)
        return {golem_id: tuple(group) for golem_id, group in groups.items()}

    def of_golem(self, golem_id: str) -> tuple[S, ...]:
        """Return the events of one golem in order."""
        return self._by_golem.get(golem_id, ())

    def due(self, done: Mapping[str, int], upto: Mapping[str, int], cycle_ticks: int) -> tuple[S, ...]:
        """Return the events that take effect after the cycle `done` (0 if missing) and up to `upto`, by golem."""
        return tuple(
            event
            for golem_id in sorted(upto)
            for event in self.of_golem(golem_id)
            if done.get(golem_id, 0) < event.cycle(cycle_ticks) <= upto[golem_id]
        )
