"""Arrivals: knowledge that comes to a golem in the midst of its life, and the cycle in which it is let in. Pure.

Succession brings knowledge at birth; everything else that comes over is put before the curator when the cycle closes
after it was recorded, and waits in quarantine. Source: INH S5.2, S7.6; architecture ("What is an event").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.errors import RegressionError
from bardo_pipeline.events.life.effective_cycle import by_golem, cycle_after, due
from bardo_pipeline.events.record.model import Name, Part, Text, Whole


class Quarantined(Part):
    """How knowledge came in the midst of a life, beside where it came from.

    tick_seen: the tick up to which the golem's stream had no gap then; the entries are let into quarantine when the
    cycle of the next tick closes. unproven: entries whose claims about the chain did not check. replicant_id,
    parent_id, hypothesis: of a replicant's report alone, whose it was and what it was to find out.
    """

    tick_seen: Whole
    unproven: tuple[Name, ...] = ()
    replicant_id: Name | None = None
    parent_id: Name | None = None
    hypothesis: Text | None = None


class Replicant(Part):
    """A golem that its parent sent out for a short life, to find something out; what it leaves is its report."""

    parent_id: Name
    hypothesis: Text


class Arrival(NamedTuple):
    """One delivery, as the curator takes it. source: import or replicant."""

    golem_id: str
    tick_seen: int
    event_id: str
    at: datetime
    source: str
    content_hash: str
    from_golem_id: str
    unproven: tuple[str, ...] = ()
    hypothesis: str | None = None

    def cycle(self, cycle_ticks: int) -> int:
        """The cycle with which it is let in."""
        return cycle_after(self.tick_seen, cycle_ticks)


@dataclass(frozen=True)
class Arrivals:
    """All that came over in the midst of lives, by golem, tick seen and event."""

    deliveries: tuple[Arrival, ...] = ()

    @classmethod
    def of(cls, events: pa.Table) -> Arrivals:
        """From life events (LIFE_SCHEMA); events of other kinds, and successions, do no harm."""
        told = events.filter(pc.and_(pc.equal(events["kind"], "KnowledgeReceived"), events["quarantined"].is_valid()))
        rows = told.select(["golem_id", "event_id", "observed_at", "received", "quarantined"]).to_pylist()
        found = {
            Arrival(
                row["golem_id"], way["tick_seen"], row["event_id"], row["observed_at"], what["source"],
                what["content_hash"], what["from_golem_id"], tuple(way["unproven"]), way["hypothesis"],
            )
            for row in rows
            for what, way in [(row["received"], row["quarantined"])]
        }  # fmt: skip
        return cls(tuple(sorted(found, key=lambda arrival: arrival[:3])))

    @cached_property
    def _by_golem(self) -> dict[str, tuple[Arrival, ...]]:
        return by_golem(self.deliveries)

    def of_golem(self, golem_id: str) -> tuple[Arrival, ...]:
        """What came to one golem, in order."""
        return self._by_golem.get(golem_id, ())

    def due(self, done: Mapping[str, int], upto: Mapping[str, int], cycle_ticks: int) -> tuple[Arrival, ...]:
        """What is let in with these golems' cycles after one and up to another. done: 0 for golems that it lacks."""
        return due(self._by_golem, done, upto, cycle_ticks)


def check_arrivals(
    said: Iterable[tuple[str, Quarantined]], *, contiguous: Callable[[str], int], death: Callable[[str], int | None]
) -> None:
    """Raise RegressionError for knowledge that did not come to the golem as it stands now.

    said: golem and how it came. contiguous: the tick up to which its stream has no gap. death: of its recorded death.
    """
    for golem_id, way in said:
        newest, died = contiguous(golem_id), death(golem_id)
        if died is not None and newest >= died:
            raise RegressionError(golem_id, died, "was its last: give it to the heirs, who live")
        if way.tick_seen != newest:
            raise RegressionError(
                golem_id, way.tick_seen, f"is not its newest any more, tick {newest} is: give it again"
            )
