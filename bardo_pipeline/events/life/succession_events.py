"""Payloads of the life events about configurations and succession.

Source: P-7, INH S12 and S13.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from bardo_pipeline.events.record.model import Moment, Name, Part, Spent, Text, Whole

Step = Literal["exported", "compiled", "compared", "provisioned", "funded", "registered", "booted"]
STEPS: tuple[Step, ...] = ("exported", "compiled", "compared", "provisioned", "funded", "registered", "booted")
"""The seven steps of a succession in order (INH S13)."""


class Configured(Part):
    """The configuration of a golem or of the home (golem `*`) from now on, as canonical JSON, and its policy.

    run: the run that began with it; null if an owner adopted it between runs. source: its file, or `defaults`.
    """

    configuration_hash: Name
    configuration: Text
    policy_hash: Name
    source: Text
    run: Name | None
    why: Text


class Advanced(Part):
    """One attempt at a step of a dead golem's succession.

    outcome: done; halted: the succession ends, and an owner may summon a successor by hand (a halted `registered` step
    does not prevent the birth); failed: a retry follows at `due_at`, or at the heir's next heartbeat if that is null.
    Each step has its own result field. lifespan_ticks: lower and upper bound.
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
    def _check_due(self) -> Self:
        if self.due_at is not None and self.outcome != "failed":
            raise ValueError(f"a step with the outcome {self.outcome} has no retry")
        return self


class Credited(Part):
    """An owner commits money for automatic funding of heirs (INH S13, step 5)."""

    owner_id: Name
    amount_micros: Spent
    number: Annotated[int, Field(ge=1)]
    why: Text


class TakenUp(Part):
    """A run executes a golem that was born between runs. began_with: the run named in its settings."""

    run: Name
    began_with: Name
    market: Name
    market_hash: Name
