"""Proposing: a language model is asked what a golem's closed cycles teach; what comes of it is recorded as an event.

Gather the golem's decisions, ask through the gateway, record. The same question about the same cycle is asked once, by
one process at a time; a rebuild asks nothing, since it reads what was recorded. Source: MEM-4, canon 58.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.episodes import EPISODE_COLUMNS, episodes_of
from bardo_pipeline.curator.model_prompt import Prompt, prompt_of
from bardo_pipeline.curator.replay import REPLAY_COLUMNS
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.model_budget import cap_shortfall, over_cap
from bardo_pipeline.derivation.incremental.record_queries import closed_records, curated_through, cycle_of
from bardo_pipeline.derivation.incremental.retraction_tracking import without_retracted
from bardo_pipeline.errors import (
    AnswerError,
    CostCapError,
    GatewayError,
    QueryError,
    RefusalError,
    RegressionError,
    UnreachableError,
)
from bardo_pipeline.events.life.events import LifeEvent, life_event
from bardo_pipeline.events.life.proposal_events import Asked, Outcome, ProposedOperation
from bardo_pipeline.events.record.arrow_schema import to_models
from bardo_pipeline.gateway.model_request import Reply, ask
from bardo_pipeline.gateway.model_settings import ModelSettings

TRIED_AGAIN: tuple[Outcome, ...] = ("timed_out", "failed", "over_cap")
"""Outcomes after which the same question may be asked again, if the caller wants that: nothing was answered."""

ERRORS: dict[Outcome, type[GatewayError]] = {
    "malformed": AnswerError,
    "refused": RefusalError,
    "timed_out": UnreachableError,
    "failed": UnreachableError,
    "over_cap": CostCapError,
}


@dataclass(frozen=True)
class Asking:
    """What came of wanting to ask about one golem. event: what is on record, None where there was nothing to ask.

    known: it was on record before.
    """

    golem_id: str
    cycle: int
    prompt: Prompt | None
    event: LifeEvent | None = None
    known: bool = False

    @property
    def operations(self) -> tuple[ProposedOperation, ...]:
        """What was proposed."""
        return self.event.asked.operations if self.event is not None and self.event.asked is not None else ()

    @property
    def error(self) -> GatewayError | None:
        """The typed error of an asking that brought nothing, None for one that did."""
        if self.event is None or self.event.asked is None or self.event.asked.outcome == "answered":
            return None
        said = self.event.asked
        what = f"{said.provider}:{said.model} {said.outcome.replace('_', ' ')}: {said.detail}"
        where = f"on record as {self.event.event_id}"
        return ERRORS[said.outcome](f"golem {self.golem_id}, cycle {self.cycle}: {what} ({where})")


def living_golems(context: DerivationContext) -> list[str]:
    """Golems that live and have a curated cycle, by id."""
    dead = set(context.life("DeathDeclared")["golem_id"].to_pylist())
    born = set(context.life("GolemBorn")["golem_id"].to_pylist())
    rows = context.projections.growing("cycles").read(["golem_id", "cycle"])
    told = zip(rows["golem_id"].to_pylist(), rows["cycle"].to_pylist(), strict=True)
    return sorted({g for g, cycle in told if g in born - dead and cycle <= (curated_through(context, g) or 0)})


def question(context: DerivationContext, golem_id: str, cycle: int | None = None) -> tuple[int, Prompt | None]:
    """The cycle asked about and the prompt, None where nothing is learned yet.

    cycle: by default the last curated one that was lived. Raises QueryError for a golem that is unknown or dead, and
    for a cycle that is not curated yet or was lost.
    """
    closings = _closings(context, golem_id)
    if not closings:
        raise QueryError(f"golem {golem_id} has no curated cycle: there is nothing to ask about yet")
    if golem_id in context.life("DeathDeclared")["golem_id"].to_pylist():
        raise QueryError(f"golem {golem_id} is dead: nothing that is proposed would be judged any more")
    asked, done = max(closings) if cycle is None else cycle, curated_through(context, golem_id) or 0
    if not 0 < asked <= done:
        raise QueryError(f"golem {golem_id} is curated through cycle {done}: cycle {asked} is not among them")
    if asked not in closings:
        raise QueryError(f"golem {golem_id}: cycle {asked} was lost, there is nothing to ask about it")
    decisions = context.projections.growing("curation").read(golems=[golem_id])
    return asked, prompt_of(decisions, _episodes(context, golem_id, asked), asked, context.policy)


def _episodes(context: DerivationContext, golem_id: str, upto: int) -> pa.Table:
    """A golem's episodes through a closed cycle, from its records, without their vectors."""
    records = closed_records(context, EPISODE_COLUMNS, {golem_id: 1}, {golem_id: upto})
    records = without_retracted(records, context.left_out())
    cycle = cycle_of(records["tick"].to_numpy(), context.policy.curator.cycle_ticks)
    return episodes_of(records, cycle, context.policy).select(REPLAY_COLUMNS)


def propose(
    context: DerivationContext,
    golem_id: str,
    settings: ModelSettings,
    *,
    clock: Callable[[], datetime],
    cycle: int | None = None,
    again: bool = False,
) -> Asking:
    """Ask about one golem, unless this very question is on record, and record what came of it.

    again: ask anew where it is on record that nothing was answered. Raises QueryError and ConfigError; what the model
    does is told by the result's `error`, after it is on record.
    """
    asked, prompt = question(context, golem_id, cycle)
    if prompt is None:
        return Asking(golem_id, asked, None)
    closed_at = _closings(context, golem_id)[asked]  # known before anything is paid for
    with context.home.lock("gateway"):
        known = _on_record(context, golem_id, asked, prompt, settings)
        if known is not None and not (again and known.asked is not None and known.asked.outcome in TRIED_AGAIN):
            return Asking(golem_id, asked, prompt, known, known=True)
        reply = over_cap(context, golem_id, prompt, settings, clock()) or ask(prompt, settings, context.policy.gateway)
        event = _record(context, golem_id, asked, closed_at, prompt, settings, reply, clock)
    return Asking(golem_id, asked, prompt, event)


def propose_all(
    context: DerivationContext, settings: ModelSettings, *, clock: Callable[[], datetime], again: bool = False
) -> list[Asking]:
    """Ask about every living golem after its last curated cycle, by id, until the day's cap is reached.

    A golem that reached its own cap stands in nobody's way.
    """
    askings: list[Asking] = []
    for golem_id in living_golems(context):
        try:
            asking = propose(context, golem_id, settings, clock=clock, again=again)
        except QueryError:
            if golem_id in living_golems(context):
                raise
            continue  # it died since it was listed
        askings.append(asking)
        if asking.known or asking.prompt is None or not isinstance(asking.error, CostCapError):
            continue
        if cap_shortfall(context, None, asking.prompt, settings, clock()) is not None:
            break
    return askings


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
    """Put on record what came, as of the newest tick; of a golem that died meanwhile nothing is proposed any more."""
    while True:
        event = life_event(golem_id, closed_at, _payload(context, golem_id, cycle, prompt, settings, reply))
        try:
            context.log.record([event], clock())
        except RegressionError:  # it lived on, or died, between two looks at its newest tick
            if golem_id in context.life("DeathDeclared")["golem_id"].to_pylist():
                reply = replace(reply, given=None, detail="the golem died while the model was asked")
        else:
            return event


def _payload(
    context: DerivationContext, golem_id: str, cycle: int, prompt: Prompt, settings: ModelSettings, reply: Reply
) -> Asked:
    heads = context.log.heads()
    contiguous = dict(zip(heads["golem_id"].to_pylist(), heads["contiguous"].to_pylist(), strict=True))
    return Asked(
        cycle=cycle,
        tick_seen=contiguous[golem_id],
        provider=settings.provider,
        model=settings.model,
        prompt_hash=prompt.hash,
        operations=reply.operations,
        **reply.told,
    )


def _closings(context: DerivationContext, golem_id: str) -> dict[int, datetime]:
    """When each curated cycle of a golem closed, in event time; a lost one has no row and is not among them."""
    done = curated_through(context, golem_id) or 0
    rows = context.projections.growing("cycles").read(["cycle", "closed_at"], golems=[golem_id])
    told = zip(rows["cycle"].to_pylist(), rows["closed_at"].to_pylist(), strict=True)
    return {cycle: at for cycle, at in told if cycle <= done}


def asked_before(context: DerivationContext) -> pa.Table:
    """Every asking on record, newest last."""
    return context.life("ModelAsked").sort_by([("recorded_at", "ascending"), ("event_id", "ascending")])


def _on_record(
    context: DerivationContext, golem_id: str, cycle: int, prompt: Prompt, settings: ModelSettings
) -> LifeEvent | None:
    """What came of this question, an answer before anything else, else the newest."""
    rows = asked_before(context)
    mine = rows.filter(pc.equal(rows["golem_id"], golem_id)).drop_columns(["recorded_at"])
    key = (cycle, prompt.hash, settings.provider, settings.model)
    found = [
        event
        for event in to_models(mine, LifeEvent)
        if event.asked and (event.asked.cycle, event.asked.prompt_hash, event.asked.provider, event.asked.model) == key
    ]
    answered = [event for event in found if event.asked and event.asked.outcome == "answered"]
    chosen = answered or found
    return chosen[-1] if chosen else None
