"""Asks a language model to phrase testaments, checks each wording and records the result as an event.

The testament, the bundle and their hashes are derived without a model; accepted wordings are only shown in place of the
derived sentences. A model is asked once per testament, by one process at a time; a rebuild never asks.
Source: INH-3, canon 58.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from bardo_pipeline.curator.model_prompt import Prompt
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.request_proposals import ERRORS, RETRYABLE, cap_shortfall, over_cap
from bardo_pipeline.errors import CostCapError, GatewayError, QueryError
from bardo_pipeline.events.life.events import LifeEvent, life_event
from bardo_pipeline.events.life.proposal_events import Phrased, Wording
from bardo_pipeline.events.record.arrow_schema import to_models
from bardo_pipeline.gateway.model_request import ModelSettings, ask
from bardo_pipeline.inheritance.phrasing.model_answers import Phrasing, Sentence, judged, prompt_of, sentences_of
from bardo_pipeline.inheritance.phrasing.wording_check import fault_of
from bardo_pipeline.inheritance.testament import CATEGORIES


@dataclass(frozen=True)
class PhrasingResult:
    """The recorded event of a phrasing request; known is True if it was on record before the call."""

    golem_id: str
    event: LifeEvent
    known: bool = False

    @property
    def phrased(self) -> Phrased:
        """The content of the event."""
        assert self.event.phrased is not None, "the event of a phrasing carries it"
        return self.event.phrased

    @property
    def error(self) -> GatewayError | None:
        """The typed error of a request without an answer, None for an answered one."""
        phrased = self.phrased
        if phrased.outcome == "answered":
            return None
        what = f"{phrased.provider}:{phrased.model} {phrased.outcome.replace('_', ' ')}: {phrased.detail}"
        return ERRORS[phrased.outcome](f"testament of {self.golem_id}: {what} (on record as {self.event.event_id})")


PhrasingRequest = tuple[tuple[Sentence, ...], datetime, Prompt]
"""(sentences to phrase, moment of the death, prompt)."""


def phrasing_requests(context: DerivationContext, golems: Sequence[str] | None = None) -> dict[str, PhrasingRequest]:
    """Return golem -> phrasing request for all testaments or those of the given golems."""
    requests, sentence_max = {}, context.policy.gateway.phrased_sentences_max
    rows = context.projections.growing("testaments").read(golems=golems)
    for row in rows.sort_by("golem_id").to_pylist():
        sentences = sentences_of(row, sentence_max)
        requests[row["golem_id"]] = sentences, row["at"], prompt_of(sentences)
    return requests


def phrase_testament(
    context: DerivationContext,
    golem_id: str,
    settings: ModelSettings,
    *,
    clock: Callable[[], datetime],
    again: bool = False,
) -> PhrasingResult:
    """Ask the model to phrase a testament unless an equal request is on record, and record the outcome.

    again repeats a recorded request that got no answer. Raises QueryError without a testament, ConfigError for bad
    settings; failures of the model are recorded and then reported as the result's `error`.
    """
    requests = phrasing_requests(context, [golem_id])
    if golem_id not in requests:
        raise QueryError(f"golem {golem_id} has no testament: it is derived with the legacy of a dead golem")
    sentences, died_at, prompt = requests[golem_id]
    with context.home.lock("gateway"):
        known = _on_record(context, golem_id, prompt, settings)
        if known is not None and not (again and known.phrased is not None and known.phrased.outcome in RETRYABLE):
            return PhrasingResult(golem_id, known, known=True)
        reply = over_cap(context, golem_id, prompt, settings, clock()) or ask(prompt, settings, context.policy.gateway)
        payload = Phrased(
            provider=settings.provider,
            model=settings.model,
            prompt_hash=prompt.hash,
            wordings=judged(sentences, reply.parsed) if isinstance(reply.parsed, Phrasing) else (),
            **reply.event_fields,
        )
        event = life_event(golem_id, died_at, payload)
        context.log.record([event], clock())
    return PhrasingResult(golem_id, event)


def phrase_all_testaments(
    context: DerivationContext, settings: ModelSettings, *, clock: Callable[[], datetime], again: bool = False
) -> list[PhrasingResult]:
    """Phrase every testament that is not phrased yet, by golem, until the day's cap is reached.

    again includes recorded requests that got no answer.
    """
    results: list[PhrasingResult] = []
    skipped = _requests_to_skip(context, settings, again=again)
    for golem_id, (_, _, prompt) in phrasing_requests(context).items():
        if (golem_id, prompt.hash) in skipped:
            continue
        result = phrase_testament(context, golem_id, settings, clock=clock, again=again)
        results.append(result)
        if isinstance(result.error, CostCapError) and cap_shortfall(context, None, prompt, settings, clock()):
            break
    return results


def _requests_to_skip(context: DerivationContext, settings: ModelSettings, *, again: bool) -> set[tuple[str, str]]:
    """(golem, prompt hash) of the recorded requests to this model that are not repeated."""
    return {
        (row["golem_id"], row["prompt_hash"])
        for row in context.life_fields("TestamentPhrased", "prompt_hash", "provider", "model", "outcome").to_pylist()
        if (row["provider"], row["model"]) == (settings.provider, settings.model)
        and not (again and row["outcome"] in RETRYABLE)
    }


def _on_record(context: DerivationContext, golem_id: str, prompt: Prompt, settings: ModelSettings) -> LifeEvent | None:
    """The newest answered event of this request, else its newest event, None without one."""
    key = (prompt.hash, settings.provider, settings.model)
    events = [
        e
        for e in _phrasings(context, golem_id)
        if e.phrased and (e.phrased.prompt_hash, e.phrased.provider, e.phrased.model) == key
    ]
    answered = [e for e in events if e.phrased and e.phrased.outcome == "answered"]
    chosen = answered or events
    return chosen[-1] if chosen else None


def _phrasings(context: DerivationContext, golem_id: str) -> list[LifeEvent]:
    """All recorded phrasing events of a golem, newest last."""
    rows = context.life("TestamentPhrased", [golem_id])
    rows = rows.sort_by([("recorded_at", "ascending"), ("event_id", "ascending")])
    return to_models(rows.drop_columns(["recorded_at"]), LifeEvent)


@dataclass(frozen=True)
class PhrasedTestament:
    """A testament in a model's words, for display.

    said maps a category to (derived sentence, shown text); the text is the sentence itself without an accepted wording.
    refused lists the wordings that failed the check. by names the model.
    """

    by: str
    wordings: Mapping[str, list[tuple[str, str]]]
    refused: tuple[Wording, ...]

    @property
    def page(self) -> str:
        """The testament as a Markdown page with the accepted wordings."""
        parts = [
            f"## {CATEGORIES[name]}\n\n" + "".join(f"- {text}\n" for _, text in items)
            for name, items in self.wordings.items()
            if items
        ]
        return "\n".join(parts)

    @property
    def facts(self) -> dict[str, Any]:
        """All fields and the page, for JSON."""
        refused = [wording.model_dump() for wording in self.refused]
        return {"by": self.by, "said": self.wordings, "refused": refused, "page": self.page}


def phrased_testament(
    context: DerivationContext, golem_id: str, testament: Mapping[str, Sequence[str]]
) -> PhrasedTestament | None:
    """Return a golem's testament in the words of the newest recorded answer, None without an answer.

    testament maps a category to derived sentences. A wording replaces only the sentence it was requested for, and only
    if it makes the same claims; this is checked again here, because events may come from elsewhere.
    """
    answers = [e.phrased for e in _phrasings(context, golem_id) if e.phrased and e.phrased.outcome == "answered"]
    if not answers:
        return None
    answer = answers[-1]
    accepted = {wording.statement: wording.wording for wording in answer.wordings if _is_accepted(wording)}
    shown = {name: [(s, accepted.get(s, s)) for s in testament.get(name, ())] for name in CATEGORIES}
    refused = tuple(wording for wording in answer.wordings if not _is_accepted(wording))
    return PhrasedTestament(f"{answer.provider}:{answer.model}", shown, refused)


def _is_accepted(wording: Wording) -> bool:
    return wording.fault is None and fault_of(wording.statement, wording.wording) is None
