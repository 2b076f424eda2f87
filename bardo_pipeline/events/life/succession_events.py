"""What is recorded of configurations and of succession: one model a kind, the payloads of life events.

Source: P-7, INH S12 and S13.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from bardo_pipeline.events.record.model import Moment, Name, Part, Spent, Text, Whole

Step = Literal["exported", "compiled", "compared", "provisioned", "funded", "registered", "booted"]
STEPS: tuple[Step, ...] = ("exported", "compiled", "compared", "provisioned", "funded", "registered", "booted")
"""The seven steps of a succession, in their order (INH S13)."""


class Configured(Part):
    """The configuration that is in force from here on: canonical JSON, and the policy that comes of it.

    Of one golem, or of the whole home (golem `*`): then `run` names the run that it began with, null where an owner
    put it in force between runs. source: the file it came from, or `defaults`.
    """

    configuration_hash: Name
    configuration: Text
    policy_hash: Name
    source: Text
    run: Name | None
    why: Text


class Advanced(Part):
    """One step of a dead golem's succession, tried once.

    done: it is made. halted: it ends here, and an owner may summon a successor by hand; of `registered`, which stops no
    birth: it is refused for good. failed: it is tried again at `due_at`, or, where that is null, at the heir's next
    heartbeat. What a step made is in the field that is its own;
    lifespan_ticks: the bounds, two numbers.
    """

    heir_id: Name
    mode: Literal["automatic", "manual"]
    step: Step
    outcome: Literal["done", "halted", "failed"]
    attempt: Annotated[int, Field(ge=1)]
    due_at: Moment | None
    why: Text
    bundle_hash: Name | None
    configuration: Text | None
    divergence_ppm: Spent | None
    budget_micros: Spent | None
    lifespan_ticks: tuple[Whole, ...] | None
    place: Text | None
    identity: Name | None

    @model_validator(mode="after")
    def _due_only_what_failed(self) -> Self:
        if self.due_at is not None and self.outcome != "failed":
            raise ValueError(f"a step that is {self.outcome} is not due again")
        return self


class Credited(Part):
    """An owner commits money from which heirs are funded without being asked (INH S13, step 5)."""

    owner_id: Name
    amount_micros: Spent
    number: Annotated[int, Field(ge=1)]
    why: Text


class TakenUp(Part):
    """A run lives this golem, which was born between runs. began_with: the run that its settings name."""

    run: Name
    began_with: Name
    market: Name
    market_hash: Name
