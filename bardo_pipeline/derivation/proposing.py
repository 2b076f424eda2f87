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
from bardo_pipeline.curator.prompts import Prompt, prompt_of
from bardo_pipeline.curator.replay import REPLAY_COLUMNS
from bardo_pipeline.derivation.reading import closed_records, curated, cycle_of
from bardo_pipeline.derivation.repairing import without
from bardo_pipeline.derivation.stores import Stores
from bardo_pipeline.errors import (
    AnswerError,
    CostCapError,
    GatewayError,
    QueryError,
    RefusalError,
    RegressionError,
    UnreachableError,
)
from bardo_pipeline.events.life import LifeEvent, life_event
from bardo_pipeline.events.operations import Asked, Outcome, ProposedOperation
from bardo_pipeline.events.schema import to_models
from bardo_pipeline.gateway.asking import Reply, ask
from bardo_pipeline.gateway.prices import most_micros
from bardo_pipeline.gateway.settings import ModelSettings

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


def living_golems(stores: Stores) -> list[str]:
    """Golems that live and have a curated cycle, by id."""
    dead = set(stores.life("DeathDeclared")["golem_id"].to_pylist())
    born = stores.life("GolemBorn")["golem_id"].to_pylist()
    return sorted(golem_id for golem_id in born if golem_id not in dead and curated(stores, golem_id))


def question(stores: Stores, golem_id: str, cycle: int | None = None) -> tuple[int, Prompt | None]:
    """The cycle asked about, by default the last curated one, and the prompt, None where nothing is learned yet.

    Raises QueryError for a golem that is unknown, and for a cycle that is not curated yet.
    """
    done = curated(stores, golem_id)
    if done is None or not done:
        raise QueryError(f"golem {golem_id} has no curated cycle: there is nothing to ask about yet")
    if golem_id in stores.life("DeathDeclared")["golem_id"].to_pylist():
        raise QueryError(f"golem {golem_id} is dead: nothing that is proposed would be judged any more")
    asked = done if cycle is None else cycle
    if not 0 < asked <= done:
        raise QueryError(f"golem {golem_id} is curated through cycle {done}: cycle {asked} is not among them")
    decisions = stores.projections.growing("curation").read(golems=[golem_id])
    return asked, prompt_of(decisions, _episodes(stores, golem_id, asked), asked, stores.policy)


def _episodes(stores: Stores, golem_id: str, upto: int) -> pa.Table:
    """A golem's episodes through a closed cycle, from its records, without their vectors."""
    records = closed_records(stores, EPISODE_COLUMNS, {golem_id: 1}, {golem_id: upto})
    records = without(records, stores.left_out())
    cycle = cycle_of(records["tick"].to_numpy(), stores.policy.curator.cycle_ticks)
    return episodes_of(records, cycle, stores.policy).select(REPLAY_COLUMNS)


def propose(
    stores: Stores,
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
    asked, prompt = question(stores, golem_id, cycle)
    if prompt is None:
        return Asking(golem_id, asked, None)
    with stores.home.lock("gateway"):
        known = _on_record(stores, golem_id, asked, prompt, settings)
        if known is not None and not (again and known.asked is not None and known.asked.outcome in TRIED_AGAIN):
            return Asking(golem_id, asked, prompt, known, known=True)
        reply = _over_cap(stores, golem_id, prompt, settings, clock()) or ask(prompt, settings, stores.policy.gateway)
        event = _record(stores, golem_id, asked, prompt, settings, reply, clock)
    return Asking(golem_id, asked, prompt, event)


def propose_all(
    stores: Stores, settings: ModelSettings, *, clock: Callable[[], datetime], again: bool = False
) -> list[Asking]:
    """Ask about every living golem after its last curated cycle, by id, until a cap is reached."""
    askings: list[Asking] = []
    for golem_id in living_golems(stores):
        askings.append(propose(stores, golem_id, settings, clock=clock, again=again))
        if isinstance(askings[-1].error, CostCapError) and not askings[-1].known:
            break
    return askings


def _record(
    stores: Stores,
    golem_id: str,
    cycle: int,
    prompt: Prompt,
    settings: ModelSettings,
    reply: Reply,
    clock: Callable[[], datetime],
) -> LifeEvent:
    """Put on record what came, as of the newest tick; of a golem that died meanwhile nothing is proposed any more."""
    while True:
        event = _event(stores, golem_id, cycle, prompt, settings, reply)
        try:
            stores.log.record([event], clock())
        except RegressionError:  # it lived on, or died, between two looks at its newest tick
            if golem_id in stores.life("DeathDeclared")["golem_id"].to_pylist():
                reply = replace(reply, operations=(), detail="the golem died while the model was asked")
        else:
            return event


def _event(
    stores: Stores, golem_id: str, cycle: int, prompt: Prompt, settings: ModelSettings, reply: Reply
) -> LifeEvent:
    heads = stores.log.heads()
    contiguous = dict(zip(heads["golem_id"].to_pylist(), heads["contiguous"].to_pylist(), strict=True))
    payload = Asked(
        cycle=cycle,
        tick_seen=contiguous[golem_id],
        provider=settings.provider,
        model=settings.model,
        prompt_hash=prompt.hash,
        **vars(reply),
    )
    return life_event(golem_id, _closing(stores, golem_id, cycle), payload)


def _closing(stores: Stores, golem_id: str, cycle: int) -> datetime:
    """When a curated cycle closed, in event time."""
    rows = stores.projections.growing("cycles").read(["golem_id", "cycle", "closed_at"], golems=[golem_id])
    moments = rows.filter(pc.equal(rows["cycle"], cycle))["closed_at"].to_pylist()
    if not moments:
        raise QueryError(f"golem {golem_id}: cycle {cycle} was lost, there is nothing to ask about it")
    return max(moments)


def asked_before(stores: Stores) -> pa.Table:
    """Every asking on record, newest last."""
    return stores.life("ModelAsked").sort_by([("recorded_at", "ascending"), ("event_id", "ascending")])


def _on_record(stores: Stores, golem_id: str, cycle: int, prompt: Prompt, settings: ModelSettings) -> LifeEvent | None:
    """What came of this question, an answer before anything else, else the newest."""
    rows = asked_before(stores)
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


def _over_cap(stores: Stores, golem_id: str, prompt: Prompt, settings: ModelSettings, now: datetime) -> Reply | None:
    """The reply where asking might cost more than is left of this UTC day's caps: the model is not asked."""
    policy = stores.policy.gateway
    rows = asked_before(stores).select(["golem_id", "recorded_at", "asked"]).to_pylist()
    today = [row for row in rows if row["recorded_at"].date() == now.date()]
    most = most_micros(settings, prompt.size_bytes, policy)
    mine = [row for row in today if row["golem_id"] == golem_id]
    caps = (("all golems", policy.day_micros_max, today), ("this golem", policy.golem_day_micros_max, mine))
    for whose, cap, askings in caps:
        spent = sum(row["asked"]["cost_micros"] for row in askings)
        if spent + most > cap:
            left = f"${max(cap - spent, 0) / 1e6:.4f} of ${cap / 1e6:.4f} are left for {whose} today"
            return Reply(outcome="over_cap", detail=f"{left}, and asking may cost ${most / 1e6:.4f}", answer=None)
    return None
