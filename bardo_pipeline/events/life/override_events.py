"""Overrides: the owner's word on single entries: pinned, unpinned, retracted, corrected. Pure.

An override stands in its golem's stream behind the newest tick that was there when the owner spoke, and takes effect
when the cycle of the next tick closes: so a closed cycle never changes, whoever derives it, and under whatever policy.
Source: X-8; architecture ("What is an event": owner's overrides).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Annotated, Literal, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from bardo_pipeline.errors import OverrideError
from bardo_pipeline.events.life.effective_cycle import by_golem, cycle_after, due
from bardo_pipeline.events.record.model import Name, Part, Tick, Unit, Whole

Said = Annotated[str, Field(min_length=1, max_length=4_096)]
"""An owner's words."""

Verdict = Literal["pays", "harms", "anti_knowledge"]
"""What an owner may say that acting does: it pays, it harms, or it harms so surely that nobody is to try it again."""

OwnersDecayClass = Literal["structural", "regime_conditional", "tactical", "ephemeral"]
"""The classes that an owner may give; a fact keeps its own rule (canon 6)."""


class Override(Part):
    """An owner's word on one entry of a golem.

    number: the how-manieth on this golem, from 1; of two on one entry the higher comes later. tick_seen: the newest
    tick up to which the golem's stream had no gap (0: none yet). cycle_seen: the last curated cycle, in which the owner
    saw the entry.
    """

    number: Tick
    entry_id: Name
    tick_seen: Whole
    cycle_seen: Whole
    why: Said


class Pinned(Override):
    """The entry does not fade below what it is trusted now, and is not pruned."""


class Unpinned(Override):
    """The entry fades again, from here on."""


class Retracted(Override):
    """The entry leaves the grimoire, and what was known of it until then does not count any more."""


class Corrected(Override):
    """Another confidence in [0, 1], another verdict, another decay class, or a note; at least one of them."""

    confidence: Unit | None = None
    verdict: Verdict | None = None
    decay_class: OwnersDecayClass | None = None
    note: Said | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.confidence is None and self.verdict is None and self.decay_class is None and self.note is None:
            raise ValueError("a correction names a confidence, a verdict, a decay class or a note")
        if self.verdict is not None and self.confidence is None:
            raise ValueError("a verdict comes with the confidence that its owner has in it")
        return self


OVERRIDES: dict[str, str] = {
    "EntryPinned": "pinned",
    "EntryUnpinned": "unpinned",
    "EntryRetracted": "retracted",
    "EntryCorrected": "corrected",
}
"""Kinds of life events that are overrides, each with the attribute that carries it."""


class Order(NamedTuple):
    """One override, as it is heeded."""

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
        """The cycle with which it takes effect."""
        return cycle_after(self.tick_seen, cycle_ticks)


@dataclass(frozen=True)
class Overrides:
    """All that owners said, by golem, number and event."""

    orders: tuple[Order, ...] = ()

    @classmethod
    def of(cls, events: pa.Table) -> Overrides:
        """From life events (LIFE_SCHEMA); events of other kinds do no harm."""
        told = events.filter(pc.is_in(events["kind"], value_set=pa.array(list(OVERRIDES))))
        rows = told.select(["golem_id", "observed_at", "event_id", "kind", *OVERRIDES.values()]).to_pylist()
        orders = {
            Order(row["golem_id"], event_id=row["event_id"], kind=row["kind"], at=row["observed_at"], **said)
            for row in rows
            if (said := row[OVERRIDES[row["kind"]]])
        }
        return cls(tuple(sorted(orders, key=lambda order: order[:3])))

    @cached_property
    def _by_golem(self) -> dict[str, tuple[Order, ...]]:
        return by_golem(self.orders)

    def of_golem(self, golem_id: str) -> tuple[Order, ...]:
        """What was said of one golem's entries, in order."""
        return self._by_golem.get(golem_id, ())

    def due(self, done: Mapping[str, int], upto: Mapping[str, int], cycle_ticks: int) -> tuple[Order, ...]:
        """What takes effect in these golems' cycles after one and up to another. done: 0 for golems that it lacks."""
        return due(self._by_golem, done, upto, cycle_ticks)


def check_overrides(
    said: Iterable[tuple[str, Override]],
    *,
    contiguous: Callable[[str], int],
    death: Callable[[str], int | None],
    known: Callable[[str], int],
) -> None:
    """Raise OverrideError for an override that is not said of the golem as it is now.

    said: golem and override, in order. contiguous: the tick up to which its stream has no gap. death: of its recorded
    death. known: how many overrides of it are on record.
    """
    number: dict[str, int] = {}
    for golem_id, override in said:
        seen, newest, died = override.tick_seen, contiguous(golem_id), death(golem_id)
        if died is not None and newest >= died:
            raise OverrideError(
                f"golem {golem_id} died at tick {died}: what it knew is closed; say it of the heirs that hold the entry"
            )
        if seen != newest:
            raise OverrideError(
                f"golem {golem_id}: this was said of entry {override.entry_id} as of tick {seen}, and the stream "
                f"stands at tick {newest} now: look at the entry again and say it again"
            )
        due = number.get(golem_id, known(golem_id)) + 1
        if override.number != due:
            raise OverrideError(
                f"golem {golem_id}: this is override {due}, not {override.number}: look at the entry again and say it "
                "again"
            )
        number[golem_id] = due
