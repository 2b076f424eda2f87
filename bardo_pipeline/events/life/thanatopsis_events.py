"""Thanatopsis as events: the four phases of dying, each with what it did and what it cost; and how deaths stay single.

Of a golem's death, and of each phase of its dying, the first on record stands: who declares it again, at another moment
or for another cause, says nothing new. A phase is recorded behind the one before it. All four bear the moment of the
death, since what was done for the dead depends on their life and not on the hour at which it was done.
Source: MEM ("The death moment: Thanatopsis Protocol"), INH S13; INH-2, INH-4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from bardo_pipeline.errors import RecordError
from bardo_pipeline.events.record.model import Name, Part, Spent, Text, Tick, Unit, Whole

if TYPE_CHECKING:
    from bardo_pipeline.events.life.events import LifeEvent

Cause = Literal["economic", "epistemic", "stochastic", "silence"]
"""What a golem dies of: a component of its vitality at zero, or that nothing was heard of it (an observer says so)."""

SILENCE = "silence"

PHASES_OF_DYING = ("DeathAccepted", "AffairsSettled", "LifeReflected", "LegacyLeft")
"""Phases 0 (acceptance), I (settlement), II (reflection) and III (legacy), by the kind of their events."""

_RANK = {kind: rank for rank, kind in enumerate(PHASES_OF_DYING)}


class Dying(Part):
    """What each phase says: the event that it follows, and the reserve from which all of them are paid, micro-dollars.

    reserve: what was set aside at birth. cost: of this phase. spent: of all phases so far, this one included; never
    more than the reserve. tick: of the death.
    """

    follows: Name
    tick: Tick
    reserve_micros: Spent
    cost_micros: Spent
    spent_micros: Spent

    @model_validator(mode="after")
    def _stays_within_its_reserve(self) -> Self:
        if not self.cost_micros <= self.spent_micros <= self.reserve_micros:
            raise ValueError(
                f"a phase of dying costs {self.cost_micros} of {self.spent_micros} spent, out of a reserve of "
                f"{self.reserve_micros} micro-dollars: dying never spends more than its reserve"
            )
        return self


class Accepted(Dying):
    """Phase 0: the death is taken as it is. means: whether the reserve bears a reflection, or the cheapest death."""

    cause: Cause
    means: Literal["full", "cheapest"]


class Settled(Dying):
    """Phase I: what it held is valued as last seen, nothing is traded any more.

    position_count, position_value_micros (fees owed included): null where its positions are sealed.
    """

    position_count: Whole | None
    position_value_micros: Spent | None
    idle_micros: Spent
    capital_micros: Spent
    credits_micros: Spent


class Reflected(Dying):
    """Phase II: the testament is written. testament_hash: SHA-256 of its page; entry_count: entries looked over."""

    testament_hash: Name
    statement_count: Whole
    entry_count: Whole
    reflection_micros: Spent
    compression_micros: Spent


class Bequeathed(Dying):
    """Phase III: what is left. bundle_hash: its snapshot, which heirs may have if it was published.

    vote_count: last words on Lethe; how many, since which they are is not to be known. pushed_entry_ids: what the clade
    is offered, the surest first; push_confidence: what an insight needed for it. notice: what its owner is told.
    """

    bundle_hash: Name
    published: bool
    entry_count: Whole
    episode_count: Whole
    vote_count: Whole
    push_confidence: Unit
    pushed_entry_ids: tuple[Name, ...]
    upload_micros: Spent
    indexing_micros: Spent
    notice: Annotated[Text, Field(min_length=1)]


def rank_of(kind: str) -> int | None:
    """The number of a phase of dying, 0 to 3; None for an event that is none."""
    return _RANK.get(kind)


def unsaid(
    events: Iterable[LifeEvent], *, is_dead: Callable[[str], bool], passed: Callable[[str], int]
) -> list[LifeEvent]:
    """These events without deaths of golems that are dead, and phases of dying that are passed.

    Of a golem: whether its death is on record, and how many phases are. Of several among the events the first stands.
    """
    kept: list[LifeEvent] = []
    said: set[tuple[str, str]] = set()
    for event in events:
        rank, key = _RANK.get(event.kind), (event.golem_id, event.kind)
        again = (event.kind == "DeathDeclared" and is_dead(event.golem_id)) or (
            rank is not None and rank < passed(event.golem_id)
        )
        if event.kind == "DeathDeclared" or rank is not None:
            again = again or key in said
            said.add(key)
        if not again:
            kept.append(event)
    return kept


def check_dying(events: Sequence[LifeEvent], *, is_dead: Callable[[str], bool], passed: Callable[[str], int]) -> None:
    """Raise RecordError for a phase of dying of a golem that lives, or behind one that is not on record.

    events: as `unsaid` gives them, in any order.
    """
    dead = {event.golem_id for event in events if event.kind == "DeathDeclared"}
    reached: dict[str, int] = {}
    for event in sorted((e for e in events if e.kind in _RANK), key=lambda e: _RANK[e.kind]):
        golem_id, rank = event.golem_id, _RANK[event.kind]
        if golem_id not in dead and not is_dead(golem_id):
            raise RecordError(f"golem {golem_id}: {event.kind} of one that lives: record its death first")
        if rank != reached.get(golem_id, passed(golem_id)):
            raise RecordError(
                f"golem {golem_id}: {event.kind} is phase {rank} of dying, and {PHASES_OF_DYING[rank - 1]} before it "
                "is not on record: record that first"
            )
        reached[golem_id] = rank + 1
