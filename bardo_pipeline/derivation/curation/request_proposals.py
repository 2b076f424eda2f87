"""Proposals: ask a language model for operations on a golem's entries, and record the reply as an event.

The same question about the same cycle is asked once; a lock allows one asking process at a time. A rebuild asks
nothing, because it reads the recorded replies. A model is called only if the caps on the cost of a UTC day cover the
call's maximum cost. Source: HB S3, S17; MEM, MEM-4, INH-20, canon 58.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa

from bardo_pipeline import errors
from bardo_pipeline.curator.episodes import EPISODE_COLUMNS, episodes_of
from bardo_pipeline.curator.model_prompt import REPLAY_COLUMNS, Prompt, prompt_of
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental import record_queries as queries
from bardo_pipeline.events.life.events import LifeEvent, life_event
from bardo_pipeline.events.life.proposal_events import Asked, Outcome, ProposedOperation
from bardo_pipeline.events.record.arrow_columns import rows_of_golems
from bardo_pipeline.events.record.arrow_schema import to_models
from bardo_pipeline.gateway.model_request import ModelSettings, Reply, ask, most_micros

RETRYABLE: tuple[Outcome, ...] = ("timed_out", "failed", "over_cap")
"""Outcomes without an answer, after which the caller may ask the same question again."""

ERRORS: dict[Outcome, type[errors.GatewayError]] = {
    "malformed": errors.AnswerError,
    "refused": errors.RefusalError,
    "timed_out": errors.UnreachableError,
    "failed": errors.UnreachableError,
    "over_cap": errors.CostCapError,
}


@dataclass(frozen=True)
class ProposalRequest:
    """The result of a request about one golem.

    prompt, event: None if the golem has no entries to ask about. event: the recorded reply. known: whether it was on
    record before.
    """

    golem_id: str
    cycle: int
    prompt: Prompt | None
    event: LifeEvent | None = None
    known: bool = False

    @property
    def operations(self) -> tuple[ProposedOperation, ...]:
        """The proposed operations."""
        return self.event.asked.operations if self.event is not None and self.event.asked is not None else ()

    @property
    def error(self) -> errors.GatewayError | None:
        """The typed error of a reply without an answer, else None."""
        if self.event is None or self.event.asked is None or self.event.asked.outcome == "answered":
            return None
        asked = self.event.asked
        problem = f"{asked.provider}:{asked.model} {asked.outcome.replace('_', ' ')}: {asked.detail}"
        where = f"on record as {self.event.event_id}"
        return ERRORS[asked.outcome](f"golem {self.golem_id}, cycle {self.cycle}: {problem} ({where})")


def living_golems(context: DerivationContext) -> list[str]:
    """Return the ids of living golems with a curated cycle."""
    born, dead = (set(context.life(kind)["golem_id"].to_pylist()) for kind in ("GolemBorn", "DeathDeclared"))
    rows = rows_of_golems(context.projections.growing("cycles").read(["golem_id", "cycle"]), born - dead)
    cycles = zip(rows["golem_id"].to_pylist(), rows["cycle"].to_pylist(), strict=True)
    return sorted({g for g, cycle in cycles if cycle <= (queries.curated_through(context, g) or 0)})


def question(context: DerivationContext, golem_id: str, cycle: int | None = None) -> tuple[int, Prompt | None]:
    """Return the cycle to ask about and the prompt, which is None before the first decision.

    Raises QueryError for an unknown or dead golem, and for a cycle that is not curated or was lost.

    Parameters
    ----------
    cycle : by default the last curated cycle with records
    """
    closings = _closings(context, golem_id)
    if not closings:
        raise errors.QueryError(f"golem {golem_id} has no curated cycle: there is nothing to ask about yet")
    if golem_id in context.life("DeathDeclared")["golem_id"].to_pylist():
        raise errors.QueryError(f"golem {golem_id} is dead, so proposals about it could not be judged any more")
    asked, done = max(closings) if cycle is None else cycle, queries.curated_through(context, golem_id) or 0
    if not 0 < asked <= done:
        raise errors.QueryError(
            f"golem {golem_id} is curated through cycle {done}: cycle {asked} is outside that range"
        )
    if asked not in closings:
        raise errors.QueryError(f"golem {golem_id}: cycle {asked} was lost, so there is nothing to ask about")
    decisions = context.projections.growing("curation").read(golems=[golem_id])
    return asked, prompt_of(decisions, _episodes(context, golem_id, asked), asked, context.policy)


def _episodes(context: DerivationContext, golem_id: str, upto: int) -> pa.Table:
    """Make a golem's episodes up to a closed cycle from its records, without vectors."""
    records = queries.closed_records(context, EPISODE_COLUMNS, {golem_id: 1}, {golem_id: upto}, context.left_out())
    cycle = queries.cycle_of(records["tick"].to_numpy(), context.policy.curator.cycle_ticks)
    return episodes_of(records, cycle, context.policy).select(REPLAY_COLUMNS)


def propose(
    context: DerivationContext,
    golem_id: str,
    settings: ModelSettings,
    *,
    clock: Callable[[], datetime],
    cycle: int | None = None,
    again: bool = False,
) -> ProposalRequest:
    """Ask about one golem and record the reply, unless the same question is on record.

    Raises QueryError and ConfigError. Failures of the model are recorded and returned as the result's `error`.

    Parameters
    ----------
    again : whether to repeat a recorded question that was not answered (RETRYABLE)
    """
    asked, prompt = question(context, golem_id, cycle)
    if prompt is None:
        return ProposalRequest(golem_id, asked, None)
    closed_at = _closings(context, golem_id)[asked]  # looked up before a paid call
    with context.home.lock("gateway"):
        recorded = _recorded_reply(context, golem_id, asked, prompt, settings)
        if recorded is not None and not (again and recorded.asked and recorded.asked.outcome in RETRYABLE):
            return ProposalRequest(golem_id, asked, prompt, recorded, known=True)
        reply = over_cap(context, golem_id, prompt, settings, clock()) or ask(prompt, settings, context.policy.gateway)
        event = _record(context, golem_id, asked, closed_at, prompt, settings, reply, clock)
    return ProposalRequest(golem_id, asked, prompt, event)


def propose_all(
    context: DerivationContext, settings: ModelSettings, *, clock: Callable[[], datetime], again: bool = False
) -> list[ProposalRequest]:
    """Ask about the last curated cycle of every living golem, by id, until the day's cap of all golems is reached.

    A golem that reached its own cap is skipped.
    """
    requests: list[ProposalRequest] = []
    for golem_id in living_golems(context):
        try:
            request = propose(context, golem_id, settings, clock=clock, again=again)
        except errors.QueryError:
            if golem_id in living_golems(context):
                raise
            continue  # the golem died after it was listed
        requests.append(request)
        if request.known or request.prompt is None or not isinstance(request.error, errors.CostCapError):
            continue
        if cap_shortfall(context, None, request.prompt, settings, clock()) is not None:
            break
    return requests


def _record(
    context: DerivationContext,
    golem_id: str,
    cycle: int,
    closed_at: datetime,
    prompt: Prompt,
    settings: ModelSettings,
    reply: Reply,
    clock: Callable[[], datetime],
) -> LifeEvent:
    """Record the reply as of the golem's newest tick; if the golem died meanwhile, without the proposals."""
    while True:
        asked = Asked(
            cycle=cycle,
            tick_seen=queries.values_by_golem(context.log.heads(), "contiguous")[golem_id],
            provider=settings.provider,
            model=settings.model,
            prompt_hash=prompt.hash,
            operations=reply.operations,
            **reply.event_fields,
        )
        event = life_event(golem_id, closed_at, asked)
        try:
            context.log.record([event], clock())
        except errors.RegressionError:  # the stream advanced or the golem died meanwhile
            if golem_id in context.life("DeathDeclared")["golem_id"].to_pylist():
                reply = replace(reply, parsed=None, detail="the golem died while the model was asked")
        else:
            return event


def _closings(context: DerivationContext, golem_id: str) -> dict[int, datetime]:
    """Map each curated cycle of a golem to the event time when it closed; lost cycles are absent."""
    done = queries.curated_through(context, golem_id) or 0
    rows = context.projections.growing("cycles").read(["cycle", "closed_at"], golems=[golem_id])
    closings = zip(rows["cycle"].to_pylist(), rows["closed_at"].to_pylist(), strict=True)
    return {cycle: at for cycle, at in closings if cycle <= done}


def _recorded_reply(
    context: DerivationContext, golem_id: str, cycle: int, prompt: Prompt, settings: ModelSettings
) -> LifeEvent | None:
    """Return the newest recorded reply to a question, an answer if there is one."""
    rows = context.life("ModelAsked", [golem_id]).sort_by([("recorded_at", "ascending"), ("event_id", "ascending")])
    key = (cycle, prompt.hash, settings.provider, settings.model)
    replies = [
        event
        for event in to_models(rows.drop_columns(["recorded_at"]), LifeEvent)
        if event.asked and (event.asked.cycle, event.asked.prompt_hash, event.asked.provider, event.asked.model) == key
    ]
    answers = [event for event in replies if event.asked and event.asked.outcome == "answered"]
    preferred = answers or replies
    return preferred[-1] if preferred else None


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
