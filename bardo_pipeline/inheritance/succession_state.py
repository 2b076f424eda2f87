"""Standing: how far a succession has come, and what is due of it. Pure: a fold of what is recorded.

Source: INH S13 (seven steps, four failure modes).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from bardo_pipeline.events.life.succession_events import STEPS, Advanced, Step
from bardo_pipeline.policy import SuccessionPolicy


@dataclass(frozen=True)
class Standing:
    """A succession as it stands. last: what came last of each step, that is, its highest attempt."""

    last: Mapping[Step, Advanced]

    def is_done(self, step: Step) -> bool:
        """Whether a step is made."""
        return step in self.last and self.last[step].outcome == "done"

    @property
    def booted(self) -> bool:
        """Whether the heir is born."""
        return self.is_done("booted")

    @property
    def halted(self) -> Advanced | None:
        """The step at which it ended without an heir."""
        return next((one for one in self.last.values() if one.outcome == "halted" and one.step != "registered"), None)

    @property
    def unregistered(self) -> bool:
        """Whether the heir lives without an identity that it is still to be asked for."""
        return "registered" in self.last and self.last["registered"].outcome == "failed"

    @property
    def nameless(self) -> bool:
        """Whether its identity was refused for good."""
        return "registered" in self.last and self.last["registered"].outcome == "halted"

    @property
    def due_at(self) -> datetime | None:
        """When the step that failed is tried again."""
        moments = [one.due_at for one in self.last.values() if one.due_at is not None]
        return min(moments, default=None)

    @property
    def state(self) -> str:
        """How it stands, in words."""
        if self.halted is not None:
            return f"halted: {self.halted.step}"
        if self.booted:
            return "born, no identity yet" if self.unregistered else "born, nameless" if self.nameless else "born"
        return "under way" if self.due_at is None else f"waits until {self.due_at:%Y-%m-%d %H:%M:%S} UTC"

    @property
    def tried(self) -> int:
        """How many attempts there were, at all steps."""
        return sum(one.attempt for one in self.last.values())

    def attempts(self, step: Step) -> int:
        """How often a step was tried."""
        return self.last[step].attempt if step in self.last else 0

    def next_step(self, now: datetime) -> Step | None:
        """The step to try now; None where the heir is born, it ended, or the time has not come.

        An identity that was refused stops nothing: the heir is born without.
        """
        if self.booted or self.halted is not None:
            return None
        for step in STEPS:
            if self.is_done(step) or (step == "registered" and step in self.last):
                continue
            due = self.last[step].due_at if step in self.last else None
            return step if due is None or due <= now else None
        return None


def standings(events: Iterable[tuple[str, Advanced]]) -> dict[str, Standing]:
    """How each dead golem's succession stands. events: golem and step, in any order.

    What an owner does by hand takes the place of what was begun automatically.
    """
    told: dict[str, list[Advanced]] = {}
    for golem_id, one in events:
        told.setdefault(golem_id, []).append(one)
    return {golem_id: _standing(steps) for golem_id, steps in told.items()}


def _standing(steps: list[Advanced]) -> Standing:
    by_hand = [one for one in steps if one.mode == "manual"]
    last: dict[Step, Advanced] = {}
    for one in by_hand or steps:
        if one.step not in last or last[one.step].attempt < one.attempt:
            last[one.step] = one
    return Standing({step: last[step] for step in STEPS if step in last})


def due_again(attempt: int, now: datetime, policy: SuccessionPolicy) -> datetime:
    """When a step that failed for the attempt-th time (from 1) is tried again."""
    waits = policy.retry_seconds
    seconds = waits[attempt - 1] if attempt <= len(waits) else policy.retry_later_seconds
    return now + timedelta(seconds=seconds)
