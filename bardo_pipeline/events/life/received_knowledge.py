"""Knowledge that a golem receives after birth, and the cycle in which it enters quarantine. Pure.

Succession gives knowledge at birth. Other received knowledge is passed to the curator at the close of the cycle after
its recording and waits in quarantine. Source: INH S5.2, S7.6; architecture ("What is an event").
"""

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.errors import RegressionError
from bardo_pipeline.events.life.override_events import ExternalEvents, cycle_after
from bardo_pipeline.events.record.model import Name, Part, Text, Whole


class Quarantined(Part):
    """Details of knowledge received after birth.

    tick_seen: last tick before the first gap of the golem's stream; the entries enter quarantine when the cycle of the
    next tick closes. unproven: entries whose claims about the chain failed a check. replicant_id, parent_id,
    hypothesis: for the report of a replicant.
    """

    tick_seen: Whole
    unproven: tuple[Name, ...] = ()
    replicant_id: Name | None = None
    parent_id: Name | None = None
    hypothesis: Text | None = None


class Replicant(Part):
    """A golem that its parent sent out for a short life to test a hypothesis; its bundle is its report."""

    parent_id: Name
    hypothesis: Text


class Arrival(NamedTuple):
    """A delivery of knowledge with its event. source: import, purchase, replicant or clade."""

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
        """Return the cycle in which the entries enter quarantine."""
        return cycle_after(self.tick_seen, cycle_ticks)


class Arrivals(ExternalEvents[Arrival]):
    """All deliveries after birth by golem, tick seen and event."""

    @classmethod
    def of(cls, events: pa.Table) -> Self:
        """Read life events (LIFE_SCHEMA); events of other kinds and successions are ignored."""
        deliveries = events.filter(
            pc.and_(pc.equal(events["kind"], "KnowledgeReceived"), events["quarantined"].is_valid())
        )
        rows = deliveries.select(["golem_id", "event_id", "observed_at", "received", "quarantined"]).to_pylist()
        arrivals = {
            Arrival(
                row["golem_id"], way["tick_seen"], row["event_id"], row["observed_at"], received["source"],
                received["content_hash"], received["from_golem_id"], tuple(way["unproven"]), way["hypothesis"],
            )
            for row in rows
            for received, way in [(row["received"], row["quarantined"])]
        }  # fmt: skip
        return cls(tuple(sorted(arrivals, key=lambda arrival: arrival[:3])))


def check_arrivals(
    deliveries: Iterable[tuple[str, Quarantined]],
    *,
    contiguous: Callable[[str], int],
    death: Callable[[str], int | None],
) -> None:
    """Raise RegressionError for knowledge that does not refer to the present state of its golem.

    Parameters
    ----------
    deliveries : (golem, details)
    contiguous : golem -> last tick before the first gap
    death : golem -> tick of the recorded death
    """
    for golem_id, way in deliveries:
        newest, died = contiguous(golem_id), death(golem_id)
        if died is not None and newest >= died:
            raise RegressionError(golem_id, died, "was its last: give it to its living heirs")
        if way.tick_seen != newest:
            raise RegressionError(golem_id, way.tick_seen, f"is no longer its newest tick ({newest} is): give it again")
