"""Folds recorded succession steps into the state of each succession and its next step. Pure.

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
    """State of a succession. last: the highest attempt of each step."""

    last: Mapping[Step, Advanced]

    def is_done(self, step: Step) -> bool:
        """Return whether a step is complete."""
        return step in self.last and self.last[step].outcome == "done"

    @property
    def booted(self) -> bool:
        """Whether the heir is born."""
        return self.is_done("booted")

    @property
    def halted(self) -> Advanced | None:
        """The step at which the succession ended without an heir; None if it did not."""
        return next((s for s in self.last.values() if s.outcome == "halted" and s.step != "registered"), None)

    @property
    def unregistered(self) -> bool:
        """Whether the heir's identity is still missing and will be requested again."""
        return "registered" in self.last and self.last["registered"].outcome == "failed"

    @property
    def nameless(self) -> bool:
        """Whether the heir's identity was refused permanently."""
        return "registered" in self.last and self.last["registered"].outcome == "halted"

    @property
    def due_at(self) -> datetime | None:
        """Time of the next retry of a failed step; None without one."""
        return min((step.due_at for step in self.last.values() if step.due_at is not None), default=None)

    @property
    def state(self) -> str:
        """The state in words."""
        if self.halted is not None:
            return f"halted: {self.halted.step}"
        if self.booted:
            return "born, no identity yet" if self.unregistered else "born, nameless" if self.nameless else "born"
        return "under way" if self.due_at is None else f"waits until {self.due_at:%Y-%m-%d %H:%M:%S} UTC"

    @property
    def tried(self) -> int:
        """Number of attempts over all steps."""
        return sum(step.attempt for step in self.last.values())

    def attempts(self, step: Step) -> int:
        """Return the number of attempts of a step."""
        return self.last[step].attempt if step in self.last else 0

    def next_step(self, now: datetime) -> Step | None:
        """Return the step to try now; None if the heir is born, the succession halted, or a retry is not due yet.

        A refused identity does not stop the succession: the heir is born without it.
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
    """Fold (dead golem, step) events in any order into the state of each succession.

    Manual steps of an owner replace the automatic steps of the same succession.
    """
    steps_by_golem: dict[str, list[Advanced]] = {}
    for golem_id, step in events:
        steps_by_golem.setdefault(golem_id, []).append(step)
    return {golem_id: _standing(steps) for golem_id, steps in steps_by_golem.items()}


def _standing(steps: list[Advanced]) -> Standing:
    manual_steps = [advanced for advanced in steps if advanced.mode == "manual"]
    last: dict[Step, Advanced] = {}
    for advanced in manual_steps or steps:
        if advanced.step not in last or last[advanced.step].attempt < advanced.attempt:
            last[advanced.step] = advanced
    return Standing({step: last[step] for step in STEPS if step in last})


def due_again(attempt: int, now: datetime, policy: SuccessionPolicy) -> datetime:
    """Return the time of the next try after the attempt-th failure (from 1) of a step."""
    waits = policy.retry_seconds
    seconds = waits[attempt - 1] if attempt <= len(waits) else policy.retry_later_seconds
    return now + timedelta(seconds=seconds)
