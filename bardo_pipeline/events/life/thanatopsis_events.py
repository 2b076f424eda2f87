"""Events of the four phases of dying (Thanatopsis), each with its result and cost.

A death and each phase of dying are recorded once per golem; the first event is valid and later ones are dropped. Phases
are recorded in order. All four have the event time of the death, because their content depends on the life alone.
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
"""Cause of death: a component of vitality at zero, or silence (declared by an observer)."""

SILENCE = "silence"

PHASES_OF_DYING = ("DeathAccepted", "AffairsSettled", "LifeReflected", "LegacyLeft")
"""Kinds of the events of phases 0 (acceptance), I (settlement), II (reflection) and III (legacy)."""

_RANK = {kind: rank for rank, kind in enumerate(PHASES_OF_DYING)}


class Dying(Part):
    """Common fields of the phases, in micro-dollars.

    follows: id of the preceding event. tick: of the death. reserve: set aside at birth. cost: of this phase. spent: of
    all phases up to this one; at most the reserve.
    """

    follows: Name
    tick: Tick
    reserve_micros: Spent
    cost_micros: Spent
    spent_micros: Spent

    @model_validator(mode="after")
    def _check_reserve(self) -> Self:
        if not self.cost_micros <= self.spent_micros <= self.reserve_micros:
            raise ValueError(
                f"a phase of dying costs {self.cost_micros} of {self.spent_micros} spent, out of a reserve of "
                f"{self.reserve_micros} micro-dollars: dying never spends more than its reserve"
            )
        return self


class Accepted(Dying):
    """Phase 0, acceptance. means: whether the reserve pays for a reflection or for the cheapest death."""

    cause: Cause
    means: Literal["full", "cheapest"]


class Settled(Dying):
    """Phase I, settlement: positions are valued as last seen; no more trades.

    position_count, position_value_micros (with fees owed): null if the positions are sealed.
    """

    position_count: Whole | None
    position_value_micros: Spent | None
    idle_micros: Spent
    capital_micros: Spent
    credits_micros: Spent


class Reflected(Dying):
    """Phase II, reflection. testament_hash: SHA-256 of the testament; entry_count: number of reviewed entries."""

    testament_hash: Name
    statement_count: Whole
    entry_count: Whole
    reflection_micros: Spent
    compression_micros: Spent


class Bequeathed(Dying):
    """Phase III, legacy. bundle_hash: snapshot of the knowledge, inheritable if published.

    vote_count: number of final votes on Lethe, which are anonymous. pushed_entry_ids: entries offered to the clade, by
    descending confidence; push_confidence: the minimum for it. notice: message to the owner.
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


def drop_repeated_deaths(
    events: Iterable[LifeEvent], *, is_dead: Callable[[str], bool], passed: Callable[[str], int]
) -> list[LifeEvent]:
    """Drop deaths and phases of dying that are already recorded or repeated among the events.

    Parameters
    ----------
    is_dead : golem -> whether its death is recorded
    passed : golem -> number of recorded phases
    """
    kept: list[LifeEvent] = []
    seen: set[tuple[str, str]] = set()
    for event in events:
        rank, key = _RANK.get(event.kind), (event.golem_id, event.kind)
        is_repeated = (event.kind == "DeathDeclared" and is_dead(event.golem_id)) or (
            rank is not None and rank < passed(event.golem_id)
        )
        if event.kind == "DeathDeclared" or rank is not None:
            is_repeated = is_repeated or key in seen
            seen.add(key)
        if not is_repeated:
            kept.append(event)
    return kept


def check_dying(events: Sequence[LifeEvent], *, is_dead: Callable[[str], bool], passed: Callable[[str], int]) -> None:
    """Raise RecordError for a phase of a living golem, or after a phase that is not recorded.

    events: result of `drop_repeated_deaths`, in any order.
    """
    dead = {event.golem_id for event in events if event.kind == "DeathDeclared"}
    reached: dict[str, int] = {}
    for event in sorted((e for e in events if e.kind in _RANK), key=lambda e: _RANK[e.kind]):
        golem_id, rank = event.golem_id, _RANK[event.kind]
        if golem_id not in dead and not is_dead(golem_id):
            raise RecordError(f"golem {golem_id}: {event.kind} of a living golem: record its death first")
        if rank != reached.get(golem_id, passed(golem_id)):
            raise RecordError(
                f"golem {golem_id}: {event.kind} is phase {rank} of dying, and the preceding "
                f"{PHASES_OF_DYING[rank - 1]} is not in the log: record that first"
            )
        reached[golem_id] = rank + 1
