"""Phrasing: a language model is asked to phrase what a dead golem left to say; what comes of it is recorded.

Gather the testament, ask through the gateway, judge each wording, record. The testament, the bundle and their hashes
are derived without a model and never change by it: the wordings that may stand are shown beside. One testament is
asked about once, by one process at a time; a rebuild asks nothing. Source: INH-3, canon 58.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow.compute as pc

from bardo_pipeline.curator.model_prompt import Prompt
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.model_budget import lacking, over_cap
from bardo_pipeline.derivation.curation.request_proposals import ERRORS, TRIED_AGAIN
from bardo_pipeline.errors import CostCapError, GatewayError, QueryError
from bardo_pipeline.events.life.events import LifeEvent, life_event
from bardo_pipeline.events.life.testament_phrased import Phrased, Wording
from bardo_pipeline.events.record.arrow_schema import to_models
from bardo_pipeline.gateway.model_request import ask
from bardo_pipeline.gateway.model_settings import ModelSettings
from bardo_pipeline.inheritance.phrasing.model_answers import Phrasing, Sentence, judged, prompt_of, sentences_of
from bardo_pipeline.inheritance.phrasing.wording_check import fault_of
from bardo_pipeline.inheritance.testament import CATEGORIES


@dataclass(frozen=True)
class PhrasingResult:
    """What came of wanting a testament phrased. event: what is on record. known: it was on record before."""

    golem_id: str
    event: LifeEvent
    known: bool = False

    @property
    def phrased(self) -> Phrased:
        """What the event says."""
        assert self.event.phrased is not None, "the event of a phrasing carries it"
        return self.event.phrased

    @property
    def error(self) -> GatewayError | None:
        """The typed error of an asking that brought nothing, None for one that did."""
        said = self.phrased
        if said.outcome == "answered":
            return None
        what = f"{said.provider}:{said.model} {said.outcome.replace('_', ' ')}: {said.detail}"
        where = f"on record as {self.event.event_id}"
        return ERRORS[said.outcome](f"testament of {self.golem_id}: {what} ({where})")


PhrasingRequest = tuple[tuple[Sentence, ...], datetime, Prompt]
"""The sentences to be phrased, the moment of the death, and the prompt."""


def phrasing_requests(context: DerivationContext, golems: Sequence[str] | None = None) -> dict[str, PhrasingRequest]:
    """What would be asked about the testaments of these dead, or of all, by golem."""
    found, most = {}, context.policy.gateway.phrased_sentences_max
    rows = context.projections.growing("testaments").read(golems=golems)
    for row in rows.sort_by("golem_id").to_pylist():
        sentences = sentences_of(row, most)
        found[row["golem_id"]] = sentences, row["at"], prompt_of(sentences)
    return found


def phrase_testament(
    context: DerivationContext,
    golem_id: str,
    settings: ModelSettings,
    *,
    clock: Callable[[], datetime],
    again: bool = False,
) -> PhrasingResult:
    """Have a testament phrased, unless this very question is on record, and record what came of it.

    again: ask anew where it is on record that nothing was answered. Raises QueryError and ConfigError; what the model
    does is told by the result's `error`, after it is on record.
    """
    found = phrasing_requests(context, [golem_id])
    if golem_id not in found:
        raise QueryError(f"golem {golem_id} left no testament: who is dead has one when its legacy is derived")
    sentences, died_at, prompt = found[golem_id]
    with context.home.lock("gateway"):
        known = _on_record(context, golem_id, prompt, settings)
        if known is not None and not (again and known.phrased is not None and known.phrased.outcome in TRIED_AGAIN):
            return PhrasingResult(golem_id, known, known=True)
        reply = over_cap(context, golem_id, prompt, settings, clock()) or ask(prompt, settings, context.policy.gateway)
        payload = Phrased(
            provider=settings.provider,
            model=settings.model,
            prompt_hash=prompt.hash,
            wordings=judged(sentences, reply.given) if isinstance(reply.given, Phrasing) else (),
            **reply.told,
        )
        event = life_event(golem_id, died_at, payload)
        context.log.record([event], clock())
    return PhrasingResult(golem_id, event)


def phrase_all_testaments(
    context: DerivationContext, settings: ModelSettings, *, clock: Callable[[], datetime], again: bool = False
) -> list[PhrasingResult]:
    """Have every testament phrased that is not, by golem, until the day's cap is reached.

    again: those, too, about which it is on record that nothing was answered.
    """
    askings: list[PhrasingResult] = []
    done = _done(context, settings, again=again)
    for golem_id, (_, _, prompt) in phrasing_requests(context).items():
        if (golem_id, prompt.hash) in done:
            continue
        asking = phrase_testament(context, golem_id, settings, clock=clock, again=again)
        askings.append(asking)
        if not isinstance(asking.error, CostCapError):
            continue
        if lacking(context, None, prompt, settings, clock()) is not None:
            break
    return askings


def _done(context: DerivationContext, settings: ModelSettings, *, again: bool) -> set[tuple[str, str]]:
    """Golem and prompt of everything that this model is not asked (again)."""
    rows = context.life("TestamentPhrased").select(["golem_id", "phrased"]).to_pylist()
    told = [(row["golem_id"], row["phrased"]) for row in rows]
    mine = [one for one in told if (one[1]["provider"], one[1]["model"]) == (settings.provider, settings.model)]
    return {(g, said["prompt_hash"]) for g, said in mine if not again or said["outcome"] not in TRIED_AGAIN}


def _on_record(context: DerivationContext, golem_id: str, prompt: Prompt, settings: ModelSettings) -> LifeEvent | None:
    """What came of this question, an answer before anything else, else the newest."""
    key = (prompt.hash, settings.provider, settings.model)
    found = [e for e in _phrasings(context, golem_id) if e.phrased and _asked(e.phrased) == key]
    answered = [e for e in found if e.phrased and e.phrased.outcome == "answered"]
    chosen = answered or found
    return chosen[-1] if chosen else None


def _asked(said: Phrased) -> tuple[str, str, str]:
    return said.prompt_hash, said.provider, said.model


def _phrasings(context: DerivationContext, golem_id: str) -> list[LifeEvent]:
    """Every phrasing of a golem's testament on record, newest last."""
    rows = context.life("TestamentPhrased").sort_by([("recorded_at", "ascending"), ("event_id", "ascending")])
    return to_models(rows.filter(pc.equal(rows["golem_id"], golem_id)).drop_columns(["recorded_at"]), LifeEvent)


@dataclass(frozen=True)
class PhrasedTestament:
    """A testament in a model's words, as it is shown. by: the model. said: category to each derived sentence and what
    is said in its place, the sentence itself where no wording of it may stand. refused: the wordings that may not."""

    by: str
    said: Mapping[str, list[tuple[str, str]]]
    refused: tuple[Wording, ...]

    @property
    def page(self) -> str:
        """The testament as a page, in these words where they may stand."""
        parts = [
            f"## {CATEGORIES[name]}\n\n" + "".join(f"- {told}\n" for _, told in items)
            for name, items in self.said.items()
            if items
        ]
        return "\n".join(parts)

    @property
    def facts(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {"by": self.by, "said": self.said, "refused": [one.model_dump() for one in self.refused]}


def phrased_testament(
    context: DerivationContext, golem_id: str, testament: Mapping[str, Sequence[str]]
) -> PhrasedTestament | None:
    """A golem's testament in the words of the newest answer on record, None where none was answered.

    testament: category to derived sentences. A wording counts only for the very sentence that it was asked for, and
    only where it claims what the sentence claims: however it came into the log, it adds nothing.
    """
    told = [e.phrased for e in _phrasings(context, golem_id) if e.phrased and e.phrased.outcome == "answered"]
    if not told:
        return None
    said = told[-1]
    may_stand = {one.statement: one.wording for one in said.wordings if _stands(one)}
    shown = {name: [(one, may_stand.get(one, one)) for one in testament.get(name, ())] for name in CATEGORIES}
    refused = tuple(one for one in said.wordings if not _stands(one))
    return PhrasedTestament(f"{said.provider}:{said.model}", shown, refused)


def _stands(one: Wording) -> bool:
    return one.fault is None and fault_of(one.statement, one.wording) is None
