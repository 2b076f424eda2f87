"""Life events about configurations and succession, and the instincts that configure heirs. Pure.

Instincts are rules that survived several generations of a lineage.
Source: P-7, INH S12 and S13; INH S7.5 (Baldwin effect), canon 10.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self, get_args

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from bardo_pipeline.events.record.model import REGIMES, Moment, Name, Part, Regime, Spent, Text, Unit, Whole

Step = Literal["exported", "compiled", "compared", "provisioned", "funded", "registered", "booted"]
STEPS: tuple[Step, ...] = get_args(Step)
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


class Default(Part):
    """Initial threshold of the heir in a regime. entry_ids: the rules that determined it."""

    regime: Regime
    rebalance_threshold: Unit
    entry_ids: tuple[Name, ...]


class DefaultsInherited(Part):
    """Defaults of an heir's configuration, from rules that survived three generations, by regime."""

    bundle_hash: Name
    defaults: tuple[Default, ...]


@dataclass(frozen=True)
class Instincts:
    """Inherited defaults by golem."""

    by_golem: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)

    @classmethod
    def of(cls, events: pa.Table) -> Self:
        """Read life events (LIFE_SCHEMA); events of other kinds are ignored."""
        rows = events.filter(pc.equal(events["kind"], "DefaultsInherited")).select(["golem_id", "instincts"])
        return cls({row["golem_id"]: row["instincts"]["defaults"] for row in rows.to_pylist()})

    def base(self, golem_id: str, threshold: float) -> tuple[float, ...]:
        """Return the initial threshold of each regime: its default, else the golem's own."""
        by_regime = {row["regime"]: row["rebalance_threshold"] for row in self.by_golem.get(golem_id, ())}
        return tuple(by_regime.get(regime, threshold) for regime in REGIMES)

    def words(self, golem_id: str) -> tuple[str, ...]:
        """Return one line per default for PLAYBOOK.md, in the order of REGIMES."""
        order = sorted(self.by_golem.get(golem_id, ()), key=lambda row: REGIMES.index(row["regime"]))
        return tuple(
            f"{row['regime']}: {row['rebalance_threshold']:.2f}, by {', '.join(e[:12] for e in row['entry_ids'])}"
            for row in order
        )
