"""Events from outside a golem with the cycle of their effect, and the owner's overrides of single entries. Pure.

An override refers to the newest tick at its time and takes effect when the cycle of the next tick closes, so a closed
cycle never changes.
Source: X-8; architecture ("What is an event": owner's overrides; "Time and order": a closed cycle never changes).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Annotated, Generic, Literal, NamedTuple, Protocol, Self, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from bardo_pipeline.errors import OverrideError
from bardo_pipeline.events.record.model import Name, Part, Tick, Unit, Whole

Statement = Annotated[str, Field(min_length=1, max_length=4_096)]
"""A reason or note by an owner."""

Verdict = Literal["pays", "harms", "anti_knowledge"]
"""An owner's verdict on acting: it pays, it harms, or it is anti-knowledge (never to be tried again)."""

OwnersDecayClass = Literal["structural", "regime_conditional", "tactical", "ephemeral"]
"""Decay classes that an owner may set; facts keep their own rule (canon 6)."""


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


class Override(Part):
    """An owner's decision about one entry of a golem.

    number: of the override on this golem, from 1; later overrides of an entry have higher numbers. tick_seen: last tick
    before the first gap of the golem's stream (0: none yet). cycle_seen: last curated cycle, whose state the owner saw.
    """

    number: Tick
    entry_id: Name
    tick_seen: Whole
    cycle_seen: Whole
    why: Statement


class Pinned(Override):
    """The confidence of the entry does not decay below its present value, and the entry is not pruned."""


class Unpinned(Override):
    """The entry decays again from now on."""


class Retracted(Override):
    """The entry leaves the grimoire, and its earlier evidence is ignored."""


class Corrected(Override):
    """A new confidence in [0, 1], verdict, decay class or note; at least one of them."""

    confidence: Unit | None = None
    verdict: Verdict | None = None
    decay_class: OwnersDecayClass | None = None
    note: Statement | None = None

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if self.confidence is None and self.verdict is None and self.decay_class is None and self.note is None:
            raise ValueError("a correction names a confidence, a verdict, a decay class or a note")
        if self.verdict is not None and self.confidence is None:
            raise ValueError("a verdict needs a confidence")
        return self


OVERRIDES: dict[str, str] = {
    "EntryPinned": "pinned",
    "EntryUnpinned": "unpinned",
    "EntryRetracted": "retracted",
    "EntryCorrected": "corrected",
}
"""Kinds of override events and the attribute of each payload."""


class Order(NamedTuple):
    """An override with its event."""

    golem_id: str
    number: int
    event_id: str
    kind: str
    at: datetime
    entry_id: str
    tick_seen: int
    cycle_seen: int
    why: str
    confidence: float | None = None
    verdict: str | None = None
    decay_class: str | None = None
    note: str | None = None

    def cycle(self, cycle_ticks: int) -> int:
        """Return the cycle in which the override takes effect."""
        return cycle_after(self.tick_seen, cycle_ticks)


class Overrides(ExternalEvents[Order]):
    """All overrides by golem, number and event."""

    @classmethod
    def of(cls, events: pa.Table) -> Self:
        """Read life events (LIFE_SCHEMA); events of other kinds are ignored."""
        overrides = events.filter(pc.is_in(events["kind"], value_set=pa.array(list(OVERRIDES))))
        rows = overrides.select(["golem_id", "observed_at", "event_id", "kind", *OVERRIDES.values()]).to_pylist()
        orders = {
            Order(row["golem_id"], event_id=row["event_id"], kind=row["kind"], at=row["observed_at"], **payload)
            for row in rows
            if (payload := row[OVERRIDES[row["kind"]]])
        }
        return cls(tuple(sorted(orders, key=lambda order: order[:3])))


def check_overrides(
    overrides: Iterable[tuple[str, Override]],
    *,
    contiguous: Callable[[str], int],
    death: Callable[[str], int | None],
    recorded: Callable[[str], int],
) -> None:
    """Raise OverrideError for an override that does not refer to the present state of its golem.

    Parameters
    ----------
    overrides : (golem, override) in order
    contiguous : golem -> last tick before the first gap
    death : golem -> tick of the recorded death
    recorded : golem -> number of recorded overrides
    """
    number: dict[str, int] = {}
    for golem_id, override in overrides:
        seen, newest, died = override.tick_seen, contiguous(golem_id), death(golem_id)
        if died is not None and newest >= died:
            raise OverrideError(
                f"golem {golem_id} died at tick {died}: its knowledge is closed: override the entry of its heirs"
            )
        if seen != newest:
            raise OverrideError(
                f"golem {golem_id}: entry {override.entry_id} was overridden as of tick {seen}, and the newest "
                f"tick is {newest}: look at the entry again and repeat the override"
            )
        expected = number.get(golem_id, recorded(golem_id)) + 1
        if override.number != expected:
            raise OverrideError(
                f"golem {golem_id}: the next override has number {expected}, not {override.number}: look at the "
                "entry again and repeat the override"
            )
        number[golem_id] = expected
