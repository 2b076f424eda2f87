"""Due: what was said of a golem from outside, and the cycle in which it takes effect. Pure.

Source: X-8; architecture ("Time and order": a closed cycle never changes).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, TypeVar


class Spoken(Protocol):
    """Something that was said of a golem whose stream had no gap up to a tick."""

    @property
    def golem_id(self) -> str:
        """The golem."""

    @property
    def tick_seen(self) -> int:
        """The tick."""

    def cycle(self, cycle_ticks: int) -> int:
        """The cycle in which it takes effect."""


S = TypeVar("S", bound=Spoken)


def cycle_after(tick_seen: int, cycle_ticks: int) -> int:
    """The cycle of the tick after the one that was seen: the first that what is said now can still change."""
    return tick_seen // cycle_ticks + 1


def by_golem(said: Iterable[S]) -> dict[str, tuple[S, ...]]:
    """What was said of each golem, in the order given."""
    out: dict[str, list[S]] = {}
    for one in said:
        out.setdefault(one.golem_id, []).append(one)
    return {golem_id: tuple(found) for golem_id, found in out.items()}


def due(
    said: Mapping[str, tuple[S, ...]], done: Mapping[str, int], upto: Mapping[str, int], cycle_ticks: int
) -> tuple[S, ...]:
    """What takes effect in these golems' cycles after one and up to another. done: 0 for golems that it lacks."""
    return tuple(
        one
        for golem_id in sorted(upto.keys() & said.keys())
        for one in said[golem_id]
        if done.get(golem_id, 0) < one.cycle(cycle_ticks) <= upto[golem_id]
    )
