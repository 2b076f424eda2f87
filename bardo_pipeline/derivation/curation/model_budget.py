"""Caps on the cost of model calls in a UTC day, and the cost so far.

A model is called only if the remaining cap covers the call's maximum cost. Source: HB S3, S17; MEM, INH-20.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from bardo_pipeline.curator.model_prompt import Prompt
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.gateway.model_request import ModelSettings, Reply, most_micros

_PAYLOADS = {"ModelAsked": "asked", "TestamentPhrased": "phrased"}
"""Kinds of events that record the cost of a model call, with the payload that holds it."""


def over_cap(
    context: DerivationContext, golem_id: str, prompt: Prompt, settings: ModelSettings, now: datetime
) -> Reply | None:
    """Return an `over_cap` reply if today's caps do not cover the call, else None."""
    for capped_golem in (None, golem_id):
        detail = cap_shortfall(context, capped_golem, prompt, settings, now)
        if detail is not None:
            return Reply(outcome="over_cap", detail=detail, answer=None)
    return None


@dataclass(frozen=True)
class MemoryBudget:
    """A golem's cap on model calls in a UTC day and the cost so far, in micro-dollars.

    share: of the golem's daily budget, in [0, 1].
    """

    cap_micros: int
    spent_micros: int
    daily_budget_micros: int
    share: float

    @property
    def left_micros(self) -> int:
        """The rest of today's cap."""
        return max(self.cap_micros - self.spent_micros, 0)


def memory_budget(context: DerivationContext, golem_id: str, now: datetime) -> MemoryBudget:
    """Return a golem's budget for memory services today: a share of its daily budget, at most the cap (INH-20)."""
    policy = context.policy.gateway
    cap = min(policy.golem_day_micros_max, int(policy.daily_budget_micros * policy.memory_share_max))
    return MemoryBudget(cap, _spent_today(context, golem_id, now), policy.daily_budget_micros, policy.memory_share_max)


def _spent_today(context: DerivationContext, golem_id: str | None, now: datetime) -> int:
    """Return the cost of model calls recorded today, in micro-dollars, for one golem or (None) for all."""
    return sum(
        row[payload]["cost_micros"]
        for kind, payload in _PAYLOADS.items()
        for row in context.life(kind).select(["golem_id", "recorded_at", payload]).to_pylist()
        if row["recorded_at"].date() == now.date() and golem_id in (None, row["golem_id"])
    )


def cap_shortfall(
    context: DerivationContext, golem_id: str | None, prompt: Prompt, settings: ModelSettings, now: datetime
) -> str | None:
    """Return why today's cap of one golem or (None) of all golems does not cover a call; None if it does."""
    policy = context.policy.gateway
    cost_max = most_micros(settings, prompt.size_bytes, policy)
    if golem_id is None:
        cap, spent, owner = policy.day_micros_max, _spent_today(context, None, now), "all golems"
    else:
        budget = memory_budget(context, golem_id, now)
        cap, spent, owner = budget.cap_micros, budget.spent_micros, "this golem"
    if spent + cost_max <= cap:
        return None
    left = f"${max(cap - spent, 0) / 1e6:.4f} of ${cap / 1e6:.4f} are left for {owner} today"
    return f"{left}, and asking may cost ${cost_max / 1e6:.4f}"
