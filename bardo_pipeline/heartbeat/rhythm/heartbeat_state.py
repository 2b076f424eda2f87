"""States of a heartbeat in real time, their transitions, and what a steer does in each. Pure.

Retrieving follows Gating (canon 24). Only a tick at T2 passes Simulating (canon 27). Source: HB S7.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Step(StrEnum):
    """The eleven states, and Dreaming, which is part of being between ticks."""

    IDLE = "idle"
    OBSERVING = "observing"
    RETRIEVING = "retrieving"
    ANALYZING = "analyzing"
    GATING = "gating"
    DECIDING = "deciding"
    SIMULATING = "simulating"
    VALIDATING = "validating"
    EXECUTING = "executing"
    VERIFYING = "verifying"
    REFLECTING = "reflecting"
    DREAMING = "dreaming"


NORMAL, INTERRUPTED, CANCEL_PENDING, RESTRICTED = "", "interrupted", "cancel_pending", "restricted"
"""Substates. `interrupted` is of Deciding, the last two of Executing."""

NEXT: dict[Step, frozenset[Step]] = {
    Step.IDLE: frozenset({Step.OBSERVING, Step.DREAMING}),
    Step.OBSERVING: frozenset({Step.ANALYZING}),
    Step.ANALYZING: frozenset({Step.GATING}),
    Step.GATING: frozenset({Step.RETRIEVING, Step.REFLECTING}),
    Step.RETRIEVING: frozenset({Step.DECIDING}),
    Step.DECIDING: frozenset({Step.SIMULATING, Step.VALIDATING}),
    Step.SIMULATING: frozenset({Step.VALIDATING}),
    Step.VALIDATING: frozenset({Step.EXECUTING, Step.REFLECTING}),
    Step.EXECUTING: frozenset({Step.VERIFYING}),
    Step.VERIFYING: frozenset({Step.REFLECTING}),
    Step.REFLECTING: frozenset({Step.IDLE}),
    Step.DREAMING: frozenset({Step.IDLE}),
}
"""Steps that may follow each step. A dream begins and ends between ticks, so it is whole or does not happen."""

ACCEPTING = frozenset({Step.DECIDING, Step.SIMULATING, Step.VALIDATING, Step.EXECUTING})
"""Steps that accept a steer; in another step it waits for the next tick (HB S7, `accepts_steer`)."""


class Steer(NamedTuple):
    """An owner's intervention for a golem. is_high: it steers; a lower one is a follow-up."""

    steer_id: str
    golem_id: str
    is_high: bool
    intent: str

    @property
    def severity(self) -> str:
        """`high` or `low`."""
        return "high" if self.is_high else "low"


@dataclass(frozen=True)
class HeartbeatState:
    """A step with its substate and the cause of the substate: a steer, or the constraint that was hit."""

    step: Step = Step.IDLE
    substate: str = NORMAL
    cause: str = ""

    @property
    def name(self) -> str:
        """The step, with its substate: `executing.cancel_pending`."""
        return f"{self.step}.{self.substate}" if self.substate else str(self.step)

    @property
    def accepts_steer(self) -> bool:
        """Whether a steer reaches the present tick."""
        return self.step in ACCEPTING

    @property
    def sends_calls(self) -> bool:
        """Whether the next call of the tick may be sent."""
        return self.step is Step.EXECUTING and self.substate == NORMAL

    def to(self, step: Step) -> HeartbeatState:
        """Return the state after a transition. A transition outside NEXT is broken logic."""
        assert step in NEXT[self.step], f"{step} does not follow {self.step}"
        return HeartbeatState(step)

    def steered(self, steer: Steer) -> HeartbeatState:
        """Return the state after a steer: Deciding begins again, and a high steer cancels pending calls.

        In Simulating and Validating no call is pending, so the state stays; `Steering` keeps a high steer for the
        calls that follow. A constraint stays in force.
        """
        if self.step is Step.DECIDING:
            return HeartbeatState(Step.DECIDING, INTERRUPTED, steer.steer_id)
        if self.sends_calls and steer.is_high:
            return HeartbeatState(Step.EXECUTING, CANCEL_PENDING, steer.intent)
        return self

    def restricted(self, constraint: str) -> HeartbeatState:
        """Return the state after a safety constraint was hit: it blocks the remaining calls of the tick."""
        if self.step is not Step.EXECUTING:
            return self
        return HeartbeatState(Step.EXECUTING, RESTRICTED, constraint)
