"""Calls of memory tools in the server, equal for HTTP and for the Model Context Protocol."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.legacy.death_queries import births_of, deaths_of
from bardo_pipeline.derivation.memory.shared_texts import embed_stored
from bardo_pipeline.errors import BardoError, ServerError, ToolError
from bardo_pipeline.events.experience.reported_experience import fault_of
from bardo_pipeline.server.callers import Caller
from bardo_pipeline.server.error_responses import document_for_agent, document_of, status_of
from bardo_pipeline.server.parameters import ReportParameters
from bardo_pipeline.server.recorder import Recorder
from bardo_pipeline.server.warm_home import Batches, StatedFreshness, WarmHome
from bardo_pipeline.tools.call_tool import call_tool
from bardo_pipeline.tools.due_consolidations import consolidate_due
from bardo_pipeline.tools.episode_tools import SEARCH, STORE_EPISODE, compared_together
from bardo_pipeline.tools.memory_gate import MemoryGate
from bardo_pipeline.tools.store_episodes import store_calls_together, store_episodes
from bardo_pipeline.tools.tool_call import Caller as GolemCaller
from bardo_pipeline.tools.tool_call import check_caller, json_text

logger = logging.getLogger("bardo.server")


class ToolRunner:
    """Calls tools on a warm home.

    Parameters
    ----------
    ids : source of call ids
    gate : the settings that open the tools
    """

    def __init__(
        self, warm: WarmHome, *, clock: Callable[[], datetime], ids: Callable[[], str], gate: MemoryGate
    ) -> None:
        self._warm, self._clock, self._ids, self.gate = warm, clock, ids, gate
        self._searches = Batches(warm, self._search_all)
        self._stores = Batches(warm, self._store_calls)
        self.freshness = StatedFreshness(warm)
        self._embedding: asyncio.Task[None] | None = None
        self._has_waiting = False

    async def call(self, caller: Caller, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Call a tool for the golem of the caller; return its result with `freshness`.

        Searches that wait together are compared with the texts together, and episodes that wait together are stored
        in one commit.
        """
        if name == SEARCH.name:
            return await self._searches.answer(caller.owner, (caller, arguments))
        if name == STORE_EPISODE.name:
            result = await self._stores.answer(caller.owner, (caller, arguments))
        else:
            result = await self._warm.read(caller.owner, lambda context: self._result(context, caller, name, arguments))
        if result.get("vector_dimension") == 0:
            self.embed_soon()
        return result

    async def consolidate_due(self) -> None:
        """Consolidate the episodes of each golem whose consolidation is due, if the tools are open."""
        if self.gate.is_open:
            await self._warm.read(
                None, lambda context: consolidate_due(context, clock=self._clock, ids=self._ids, gate=self.gate)
            )

    async def refusal(self, caller: Caller, error: Exception) -> dict[str, Any]:
        """Return an error as an agent reads it, with the `freshness` of the caller's view if it can be read."""
        fresh = await self.freshness.of(caller)
        return document_for_agent(error) | ({} if fresh is None else {"freshness": fresh})

    def checked_report(self, given: object) -> ReportParameters:
        """Return the report of an experience. Raises ToolError for an invalid one, MemoryGateError if tools are off."""
        self.gate.check(STORE_EPISODE.name)
        try:
            return ReportParameters.model_validate_json(json_text(given, "experience"))
        except ValidationError as error:
            raise ToolError(f"tool {STORE_EPISODE.name}: experience: {fault_of(error)}") from None

    async def report(self, recorder: Recorder, caller: Caller, report: ReportParameters) -> dict[str, Any]:
        """Append the record of a reported experience of the caller's golem; return its tick when it is durable.

        Raises
        ------
        UnknownGolemError : the golem is unknown, or belongs to another owner
        SignatureError : the golem signs its records, and no tool can sign
        """

        def owned(context: DerivationContext) -> str:
            golem = golem_of(context, caller)
            check_caller(context, GolemCaller(golem, caller.owner))
            return golem

        acks, refusal = await recorder.report(await self._warm.read(caller.owner, owned), [report])
        if refusal is not None:
            raise refusal
        return {"tick": acks[0].tick, "repeated": acks[0].repeated, "durable": True}

    def _result(
        self, context: DerivationContext, caller: Caller, name: str, arguments: Mapping[str, Any]
    ) -> dict[str, Any]:
        golem = golem_of(context, caller)
        result = call_tool(
            context, GolemCaller(golem, caller.owner), name, arguments, clock=self._clock, ids=self._ids, gate=self.gate
        )
        return {**result.document(), "freshness": asdict(self._warm.freshness(context, golem))}

    def _search_all(
        self, context: DerivationContext, searches: Sequence[tuple[Caller, Mapping[str, Any]]]
    ) -> Iterator[dict[str, Any] | Exception]:
        """Yield the result or the error of each call of memory_search."""
        named = [(caller.golem, arguments) for caller, arguments in searches if caller.golem is not None]
        with compared_together(context, named, now=self._clock()):
            for caller, arguments in searches:
                try:
                    yield self._result(context, caller, SEARCH.name, arguments)
                except Exception as error:
                    yield error

    def _store_calls(
        self, context: DerivationContext, calls: Sequence[tuple[Caller, Mapping[str, Any]]]
    ) -> Iterator[dict[str, Any] | Exception]:
        """Yield the result or the error of each call of memory_store_episode, with the state after all of them."""
        named: dict[int, tuple[GolemCaller, Mapping[str, Any]]] = {}
        errors: dict[int, Exception] = {}
        for index, (caller, arguments) in enumerate(calls):
            try:
                named[index] = GolemCaller(golem_of(context, caller), caller.owner), arguments
            except BardoError as error:
                errors[index] = error
        stored = store_calls_together(context, list(named.values()), clock=self._clock, ids=self._ids, gate=self.gate)
        results = dict(zip(named, stored, strict=True)) | errors
        with self._warm.held_stamp(context):
            for index in range(len(calls)):
                result = results[index]
                if isinstance(result, Exception):
                    yield result
                else:
                    fresh = self._warm.freshness(context, named[index][0].golem_id)
                    yield {**result.document(), "freshness": asdict(fresh)}

    async def store_all(self, caller: Caller, episodes: Sequence[object]) -> tuple[dict[str, Any], int]:
        """Store episodes of the caller's golem in one commit; return the answer with `freshness`, and its status.

        If no episode was stored, status and fields `error`, `message`, `cure` are those of the first refusal; else 200.

        Parameters
        ----------
        episodes : arguments of memory_store_episode for each, or the error for which one was no JSON
        """

        def work(context: DerivationContext) -> tuple[dict[str, Any], int]:
            golem = golem_of(context, caller)
            result = store_episodes(
                context, GolemCaller(golem, caller.owner), episodes, clock=self._clock, ids=self._ids, gate=self.gate
            )
            answer: dict[str, Any] = {
                "stored": [
                    {"index": index, "episode_id": episode.text_id, "importance": episode.importance,
                     "estimated_retention_until": episode.retained_until.isoformat()}
                    for index, episode in result.stored.items()
                ],
                "refused": [{"index": index, **document_of(error)} for index, error in result.refused.items()],
                "counts": None if result.counts is None else result.counts.model_dump(),
                "durable": True,
                "freshness": asdict(self._warm.freshness(context, golem)),
            }  # fmt: skip
            if result.stored:
                return answer, 200
            first = next(iter(result.refused.values()))
            return document_of(first) | answer, status_of(first)

        answer, status = await self._warm.read(caller.owner, work)
        if answer["stored"]:
            self.embed_soon()
        return answer, status

    def close(self) -> None:
        """Stop embedding; the next question or server embeds the texts that wait."""
        if self._embedding is not None:
            self._embedding.cancel()

    def embed_soon(self) -> None:
        """Begin to embed stored texts that wait, in the background, so that their callers have their answers first."""
        self._has_waiting = True
        if self._embedding is None or self._embedding.done():
            self._embedding = asyncio.create_task(self._embed())

    async def _embed(self) -> None:
        while self._has_waiting:
            self._has_waiting = False
            try:
                if await self._warm.read(None, lambda context: embed_stored(context, self._clock())):
                    self._has_waiting = True
            except BardoError as error:
                logger.warning("stored texts wait for vectors: %s", error)


def golem_of(context: DerivationContext, caller: Caller) -> str:
    """Return the golem of the caller: the one it names, else the only living golem of the view.

    Raises ServerError 400 if the caller names none and the view has not exactly one living golem.
    """
    if caller.golem is not None:
        return caller.golem
    dead = deaths_of(context)
    living = sorted(name for name in births_of(context) if name not in dead)
    if len(living) != 1:
        raise ServerError(400, "GolemMissingError", f"the request names no golem, and {len(living)} golems live here",
                          "name one in the header `Bardo-Golem`, or over MCP in the argument golem_id")  # fmt: skip
    return living[0]
