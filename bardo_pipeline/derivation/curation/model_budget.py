"""Caps: what asking a language model may cost in a UTC day, and what it cost so far, whatever was asked.

A cap holds before a call is made: the most that it may cost must be left. Source: HB S3, S17; MEM, INH-20.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from bardo_pipeline.curator.model_prompt import Prompt
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.gateway.model_prices import most_micros
from bardo_pipeline.gateway.model_request import Reply
from bardo_pipeline.gateway.model_settings import ModelSettings

ASKINGS = {"ModelAsked": "asked", "TestamentPhrased": "phrased"}
"""Every kind of event that tells what asking cost, and its payload."""


def over_cap(
    context: DerivationContext, golem_id: str, prompt: Prompt, settings: ModelSettings, now: datetime
) -> Reply | None:
    """The reply where asking might cost more than is left of this UTC day's caps: the model is not asked."""
    for whose in (None, golem_id):
        detail = lacking(context, whose, prompt, settings, now)
        if detail is not None:
            return Reply(outcome="over_cap", detail=detail, answer=None)
    return None


@dataclass(frozen=True)
class MemoryBudget:
    """What asking may cost a golem in a UTC day, and what it cost so far, in micro-dollars; share: of its budget."""

    cap_micros: int
    spent_micros: int
    daily_budget_micros: int
    share: float

    @property
    def left_micros(self) -> int:
        """What is left of the cap today."""
        return max(self.cap_micros - self.spent_micros, 0)


def memory_budget(context: DerivationContext, golem_id: str, now: datetime) -> MemoryBudget:
    """How much of a golem's daily budget its memory services may take, and took, in this UTC day (INH-20).

    They get 5 % of it, and no more than the gateway's cap for one golem.
    """
    policy = context.policy.gateway
    cap = min(policy.golem_day_micros_max, int(policy.daily_budget_micros * policy.memory_share_max))
    spent = _spent_today(context, golem_id, now)
    return MemoryBudget(cap, spent, policy.daily_budget_micros, policy.memory_share_max)


def _spent_today(context: DerivationContext, golem_id: str | None, now: datetime) -> int:
    """What asking about one golem, or (None) about all, cost in this UTC day of recording."""
    return sum(
        row[payload]["cost_micros"]
        for kind, payload in ASKINGS.items()
        for row in context.life(kind).select(["golem_id", "recorded_at", payload]).to_pylist()
        if row["recorded_at"].date() == now.date() and golem_id in (None, row["golem_id"])
    )


def lacking(
    context: DerivationContext, golem_id: str | None, prompt: Prompt, settings: ModelSettings, now: datetime
) -> str | None:
    """Why a cap of this UTC day bears no such question, None where it does; of one golem, or (None) of all together."""
    policy = context.policy.gateway
    most = most_micros(settings, prompt.size_bytes, policy)
    if golem_id is None:
        cap, spent, whose = policy.day_micros_max, _spent_today(context, None, now), "all golems"
    else:
        budget = memory_budget(context, golem_id, now)
        cap, spent, whose = budget.cap_micros, budget.spent_micros, "this golem"
    if spent + most <= cap:
        return None
    left = f"${max(cap - spent, 0) / 1e6:.4f} of ${cap / 1e6:.4f} are left for {whose} today"
    return f"{left}, and asking may cost ${most / 1e6:.4f}"
