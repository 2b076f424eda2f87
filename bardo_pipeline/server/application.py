"""The HTTP application: its routes, and the state that they share."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from datetime import datetime
from functools import cache
from typing import Any, TypeVar

import orjson
import pyarrow as pa
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from bardo_pipeline.derivation.clade.styx_doors import OpenQuery, open_query, receipt_document, write_entry
from bardo_pipeline.derivation.clade.styx_layers import LAYERS, Found, found_in
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.legacy.death_queries import births_of
from bardo_pipeline.derivation.reports.home_health import faults, health_of
from bardo_pipeline.derivation.succession.birth_events import record_founder
from bardo_pipeline.errors import AccessError, BardoError, ConfigError, RecordError, ServerError, UnknownGolemError
from bardo_pipeline.events.custody.authority import NO_GOLEM
from bardo_pipeline.events.life.clade_events import StyxLayer
from bardo_pipeline.events.life.events import EVERY_GOLEM
from bardo_pipeline.events.record.repeated_keys import check_keys
from bardo_pipeline.heartbeat.fleet import Founding
from bardo_pipeline.heartbeat.rhythm.heartbeat_state import Steer
from bardo_pipeline.server import reading
from bardo_pipeline.server.browser_pages import BrowserPages
from bardo_pipeline.server.callers import Caller, Doorkeeper
from bardo_pipeline.server.door import Door, freshness_header, json_response, refusal
from bardo_pipeline.server.error_responses import document_of, status_of
from bardo_pipeline.server.metrics import CONTENT_TYPE, Requests, exposition
from bardo_pipeline.server.openapi.openapi_document import (
    ARROW,
    EPISODES,
    EVENTS,
    LINES,
    RECORDS,
    Operation,
    answer_schema,
    openapi_document,
)
from bardo_pipeline.server.parameters import (
    AdviceParameters,
    AskParameters,
    BirthParameters,
    EntriesParameters,
    LineageParameters,
    NoParameters,
    RecordsParameters,
    ReportParameters,
    SearchParameters,
    SteerParameters,
    StyxEntryParameters,
    StyxQueryParameters,
    WarningsParameters,
)
from bardo_pipeline.server.reading import REPORTS, Reply
from bardo_pipeline.server.recorder import Recorder, events_in, lines_by_golem, reports_in
from bardo_pipeline.server.tool_calls import ToolRunner
from bardo_pipeline.server.upkeep import keep_up
from bardo_pipeline.server.warm_home import Batches, Freshness, WarmHome, each_alone
from bardo_pipeline.storage.intake.accept_or_refuse import record_events
from bardo_pipeline.storage.intake.json_reader import sentence_of
from bardo_pipeline.storage.journal.event_writer import Ack
from bardo_pipeline.storage.operations.live_files import SteerFolder
from bardo_pipeline.tools.catalogue import TOOLS

BODY_BYTES_MAX = {"": 1_048_576, "/v1/records": 16_777_216, "/v1/texts": 16_777_216, "/v1/events": 16_777_216}
"""Path prefix -> longest body."""

_REPORTS = "/v1/reports"

OPERATIONS = (
    Operation("GET", "/v1/status", "Health of the view, and exceeded thresholds."),
    Operation("GET", "/v1/golems", "Golems of the view.", has_table=True),
    Operation("POST", "/v1/golems", "Record the birth of an outside golem.", BirthParameters, creates=True),
    Operation("GET", "/v1/golems/{golem_id}", "State of a golem, now or at its death."),
    Operation("GET", "/v1/golems/{golem_id}/entries", "Entries of a golem.", EntriesParameters, has_table=True),
    Operation("GET", "/v1/golems/{golem_id}/records", "Records of a golem.", RecordsParameters, has_table=True),
    Operation("GET", "/v1/golems/{golem_id}/warnings", "Warnings about an action.", WarningsParameters, has_table=True),
    Operation("GET", "/v1/golems/{golem_id}/advice", "Rules that hold in a situation.", AdviceParameters),
    Operation("POST", "/v1/golems/{golem_id}/experiences", "Append the record of a report.", ReportParameters),
    Operation("POST", "/v1/golems/{golem_id}/drafts", "Record of a report, for its golem to sign.", ReportParameters),
    Operation("POST", "/v1/golems/{golem_id}/steers", "Steer a golem of a live run.", SteerParameters, creates=True),
    Operation("GET", "/v1/live", "Golems of live runs in view, as of their last tick."),
    Operation("GET", "/v1/ask", "Entries of a golem that answer a question.", AskParameters, has_table=True),
    Operation("POST", "/v1/ask", "As GET, with the parameters as JSON.", AskParameters, has_table=True),
    Operation("GET", "/v1/search", "Entries and episodes for words.", SearchParameters, has_table=True),
    Operation("POST", "/v1/search", "As GET, with the parameters as JSON.", SearchParameters, has_table=True),
    Operation("POST", "/v1/styx/entries", "Write an entry to the layers of shared memory.", StyxEntryParameters),
    Operation("GET", "/v1/styx/query", "Ask the layers of shared memory together.", StyxQueryParameters),
    Operation("GET", "/v1/lineage", "Evidence of an entry.", LineageParameters),
    *(Operation("GET", f"{_REPORTS}/{name}", each.summary, each.parameters) for name, each in REPORTS.items()),
    Operation("POST", "/v1/records", "Append records; the answer means that they are durable.", body=RECORDS),
    Operation("POST", "/v1/events", "Append signed life events by the rules of the spool.", body=EVENTS),
    Operation("POST", "/v1/texts", "Store episodes in one commit, each checked.", body=EPISODES, takes_golem=True),
    Operation("GET", "/v1/tools", "Memory tools with their schemas."),
    Operation("GET", "/healthz", "State that the process answers.", media="application/json", is_open=True),
    Operation("GET", "/openapi.json", "This document.", media="application/json", is_open=True),
    Operation("GET", "/metrics", "Figures of the status and counts of requests for Prometheus.", media="text/plain"),
    Operation("GET", "/", "Page of the home for a browser, which gives a token first.", media="text/html"),
    Operation("GET", "/live", "Page of the golems of live runs, which follows them.", media="text/html"),
    Operation("GET", "/docs/data/{path}", "Data Docs of all runs.", media="text/html"),
    Operation("GET", "/docs/dbt/", "dbt docs of the marts.", media="text/html"),
)

WRITE_FRESHNESS_SECONDS = 1.0
_WRITERS_MAX = 10_000

logger = logging.getLogger("bardo.server")

P = TypeVar("P", bound=BaseModel)
Endpoint = Callable[[Request], Awaitable[Response]]


class _GolemId(PathConvertor):
    """A part of a path with slashes that is not empty, so that `/v1/golems/` leads to `/v1/golems`."""

    regex = ".+"


register_url_convertor("golem", _GolemId())


class Application:
    """The routes of a server over one warm home.

    Parameters
    ----------
    clock : current UTC time
    version : version of the library
    instance : id of this process, by which a client recognizes it
    upkeep_seconds : time between passes that merge small files of life events and run due consolidations
    """

    def __init__(
        self,
        warm: WarmHome,
        recorder: Recorder,
        runner: ToolRunner,
        doorkeeper: Doorkeeper,
        *,
        clock: Callable[[], datetime],
        version: str,
        instance: str,
        upkeep_seconds: float,
    ) -> None:
        self._warm, self._recorder, self._runner, self._doorkeeper = warm, recorder, runner, doorkeeper
        warm.acknowledged = recorder.acknowledged
        self._pages = BrowserPages(warm, doorkeeper, clock)
        self._asks: Batches[Callable[[DerivationContext], Any], Any] = Batches(warm, each_alone)
        self._freshness = runner.freshness
        self._clock, self._version, self._instance, self._upkeep_seconds = clock, version, instance, upkeep_seconds
        self.requests = Requests()
        self._writes: dict[tuple[str | None, frozenset[str]], tuple[float, dict[str, Any]]] = {}

    def asgi(self, *, chunk_seconds: float, body_seconds: float, tools_over_http: ASGIApp | None) -> ASGIApp:
        """Return the application behind its door.

        Parameters
        ----------
        tools_over_http : the Model Context Protocol at /mcp; None to leave it out
        """
        routes = self.routes(tools_over_http)
        handlers: Any = {404: _unknown_path, 405: _wrong_method}
        app = Starlette(routes=routes, exception_handlers=handlers, lifespan=self._lifespan)
        return Door(
            app, self._doorkeeper, self._freshness, body_bytes_max=BODY_BYTES_MAX, chunk_seconds=chunk_seconds,
            body_seconds=body_seconds,
        )  # fmt: skip

    def routes(self, tools_over_http: ASGIApp | None) -> list[Route]:
        """Return all routes, with the Model Context Protocol at /mcp unless it is None."""
        one = "/v1/golems/{golem_id:golem}"
        listed: tuple[tuple[str, Endpoint, str], ...] = (
            # Each request tries one after the other: those of an agent's tick come first.
            ("/v1/tools/{name}", self.tool, "POST"),
            ("/v1/ask", self._reads(AskParameters, reading.ask_reply), "GET POST"),
            ("/v1/search", self._reads(SearchParameters, reading.search_reply), "GET POST"),
            ("/", self._pages.home, "GET POST"),
            ("/live", self._pages.live, "GET"),
            ("/docs/data/{path:path}", self._pages.data_docs, "GET"),
            ("/docs/dbt/", self._pages.dbt_docs, "GET"),
            ("/healthz", self.healthz, "GET"),
            ("/openapi.json", self.openapi, "GET"),
            ("/metrics", self.metrics, "GET"),
            ("/v1/status", self._reads(NoParameters, reading.status_reply), "GET"),
            ("/v1/golems", self._reads(NoParameters, reading.golems_reply), "GET"),
            ("/v1/golems", self.birth, "POST"),
            (f"{one}/entries", self._reads(EntriesParameters, reading.entries_reply), "GET"),
            (f"{one}/records", self._reads(RecordsParameters, reading.records_reply), "GET"),
            (f"{one}/warnings", self._reads(WarningsParameters, reading.warnings_reply), "GET"),
            (f"{one}/advice", self._reads(AdviceParameters, reading.advice_reply), "GET"),
            (f"{one}/experiences", self.experiences, "POST"),
            (f"{one}/drafts", self.drafts, "POST"),
            (f"{one}/steers", self.steers, "POST"),
            ("/v1/live", self._reads(NoParameters, reading.live_reply), "GET"),
            (one, self._reads(NoParameters, reading.golem_reply), "GET"),
            ("/v1/styx/entries", self.write_styx, "POST"),
            ("/v1/styx/query", self.ask_styx, "GET"),
            ("/v1/lineage", self._reads(LineageParameters, reading.lineage_reply), "GET"),
            *(
                (f"/v1/reports/{name}", self._reads(each.parameters, each.reply), "GET")
                for name, each in REPORTS.items()
            ),
            ("/v1/records", self.records, "POST"),
            ("/v1/events", self.events, "POST"),
            ("/v1/texts", self.texts, "POST"),
            ("/v1/tools", self.tools, "GET"),
        )
        routes = [Route(path, self._counted(path, called), methods=methods.split()) for path, called, methods in listed]
        if tools_over_http is not None:
            # GET would open a stream that never ends and, without sessions, never carries a message.
            routes.append(Route("/mcp", tools_over_http, methods=["POST", "DELETE"]))
        return routes

    lifespans: tuple[Callable[[], Any], ...] = ()
    """Context managers that are entered while the application runs."""

    warming: asyncio.Task[Freshness]
    """The task that opens the home in advance, while the application runs."""

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        upkeep = keep_up(self._warm, self._runner, clock=self._clock, seconds=self._upkeep_seconds)
        idle = [asyncio.create_task(work) for work in (self._recorder.close_idle(), upkeep)]
        self.warming = self._freshness.read(None, self._warm.run(lambda: self._warm.warm_up(self._clock())))
        self.warming.add_done_callback(_log_failure)
        try:
            async with AsyncExitStack() as stack:
                for enter in self.lifespans:
                    await stack.enter_async_context(enter())
                yield
        finally:
            for task in idle:
                task.cancel()
            self._runner.close()
            await self._recorder.close()
            await asyncio.to_thread(self._warm.close)

    def _counted(self, path: str, endpoint: Endpoint) -> Endpoint:
        name = re.sub(r":\w+", "", path)

        async def counted(request: Request) -> Response:
            started = time.perf_counter()
            try:
                response = await endpoint(request)
            except Exception as error:
                if not isinstance(error, BardoError):
                    logger.exception("%s %r failed", request.method, request.url.path)
                response = refusal(error)
            self.requests.add(name, response.status_code, time.perf_counter() - started)
            return response

        return counted

    # reading

    async def healthz(self, request: Request) -> Response:
        """State that the process answers."""
        return json_response({"status": "ok", "instance": self._instance, "version": self._version})

    async def openapi(self, request: Request) -> Response:
        """Return the OpenAPI document."""
        return Response(_openapi(self._version), media_type="application/json")

    async def metrics(self, request: Request) -> Response:
        """Return the figures of `bardo status` and the counts of requests for Prometheus."""
        await _given(request, NoParameters)
        now = self._clock()

        def work(context: DerivationContext) -> bytes:
            health = health_of(context, now)
            return exposition(health, faults(health, context.policy), context.log.version, self.requests)

        return Response(await self._warm.read(_caller(request).owner, work), media_type=CONTENT_TYPE)

    def _reads(self, model: type[BaseModel], reply: Callable[..., Reply]) -> Endpoint:
        """Return the endpoint that reads by a function of `reading`, in a thread.

        Questions about a golem's newest state that wait are answered together. Rows are Arrow IPC on request.
        """

        async def read(request: Request) -> Response:
            given, now = await _given(request, model), self._clock()
            golem = request.path_params.get("golem_id") or getattr(given, "golem", None)
            as_arrow = ARROW in request.headers.get("accept", "")

            def answered(context: DerivationContext) -> tuple[bytes | None, dict[str, Any]]:
                fresh = asdict(self._warm.freshness(context, golem))  # before the work, which may read a newer state
                answer = reply(reading.Asked(self._warm, context, golem or "", now), given)
                if as_arrow and answer.table is not None:
                    return _arrow_stream(answer.table, fresh), {"freshness": fresh}
                return None, {**answer.document(), "freshness": fresh}

            is_quick = isinstance(given, AskParameters) and given.at is None and given.tick is None
            run = self._asks.answer if is_quick else self._warm.read
            stream, document = await run(_caller(request).owner, answered)
            if stream is None:
                return json_response(document)
            return Response(stream, media_type=ARROW, headers=freshness_header(document["freshness"]))

        return read

    async def ask_styx(self, request: Request) -> Response:
        """Ask the layers of shared memory at the same time, each in a thread, and merge their results by score."""
        given, owner = await _given(request, StyxQueryParameters), _caller(request).owner
        chosen, now = LAYERS if given.layer is None else (given.layer,), self._clock()

        def opened(context: DerivationContext) -> tuple[OpenQuery, dict[str, Any]]:
            fresh = asdict(self._warm.freshness(context, given.golem))
            query = open_query(
                context, given.golem, given.question, count=given.k, confidence_min=given.min_confidence,
                layers=chosen, now=now,
            )  # fmt: skip
            return query, fresh

        query, fresh = await self._warm.read(owner, opened)

        def found(layer: StyxLayer) -> Callable[[DerivationContext], list[Found]]:
            return lambda context: found_in(context, layer, query.question, archives=query.archives, now=now)

        parts = await asyncio.gather(*(self._warm.read(owner, found(layer)) for layer in query.layers))
        return json_response({**query.document([one for part in parts for one in part]), "freshness": fresh})

    # writing

    async def write_styx(self, request: Request) -> Response:
        """Write an entry of a golem to each of its layers of shared memory whose rule it meets."""
        given, now = await _given(request, StyxEntryParameters), self._clock()

        def work(context: DerivationContext) -> dict[str, Any]:
            receipt = write_entry(context, given.golem, given.content, kept_days=given.kept_days, now=now)
            fresh = asdict(self._warm.freshness(context, given.golem))
            return {"golem_id": given.golem, **receipt_document(receipt), "freshness": fresh}

        return json_response(await self._warm.read(_caller(request).owner, work))

    async def birth(self, request: Request) -> Response:
        """Record the birth of a golem."""
        given, now = await _given(request, BirthParameters), self._clock()
        caller = _caller(request)
        owner = given.owner or caller.owner
        if owner is None:
            raise ConfigError(f"golem {given.golem}: the token opens the whole home: name the owner")
        if caller.owner not in (None, owner):
            raise AccessError(f"owner {owner!r} is not the owner of the token: use a token of that owner")
        if given.golem == EVERY_GOLEM:
            raise ConfigError(NO_GOLEM)
        founding = Founding((owner,), round(given.budget_dollars * 1e6), lifespan_ticks=given.lifespan_ticks)

        def work(context: DerivationContext) -> dict[str, Any]:
            born = births_of(context, [given.golem])
            if given.golem in born and born[given.golem][0].owner_id != owner:
                raise ConfigError(f"golem {given.golem}: the id belongs to a golem of another owner: choose another")
            golem_id, is_new = record_founder(
                context, given.golem, owner_id=owner, lineage_id=given.lineage or given.golem, founding=founding,
                market=given.market, at=given.at or now, now=now, door="home" if caller.owner is None else "token",
            )  # fmt: skip
            return {"golem_id": golem_id, "owner_id": owner, "is_new": is_new,
                    "freshness": asdict(self._warm.freshness(context, golem_id))}  # fmt: skip

        document = await self._warm.read(None, work)  # a first birth founds its owner, who has no view before
        return json_response(document, 201 if document["is_new"] else 200)

    async def records(self, request: Request) -> Response:
        """Append records; answer when they are durable, or with the first refusal and what is durable before it."""
        kind = _content_kind(request, "a record")
        body, caller = await request.body(), _caller(request)
        grouped = await self._warm.run(lambda: lines_by_golem(body, is_lines=kind == LINES))

        fresh = await self._writable(caller.owner, frozenset(grouped))
        acknowledged: list[dict[str, Any]] = []
        for golem_id, lines in grouped.items():
            acks, error = await self._recorder.append(golem_id, lines)
            acknowledged += [_acknowledged(ack) for ack in acks]
            if error is not None:
                refused = {**document_of(error), "acknowledged": acknowledged, "freshness": fresh}
                return json_response(refused, status_of(error))
        return json_response({"acknowledged": acknowledged, "durable": True, "freshness": fresh})

    async def experiences(self, request: Request) -> Response:
        """Append a record for each report of a golem; answer when they are durable."""
        is_lines = _content_kind(request, "a report") == LINES
        body, caller, golem_id = await request.body(), _caller(request), _golem(request)
        reports = await self._warm.run(lambda: reports_in(body, is_lines=is_lines))
        fresh = await self._writable(caller.owner, frozenset((golem_id,)))
        acks, error = await self._recorder.report(golem_id, reports)
        acknowledged = [_acknowledged(ack) for ack in acks]
        if error is not None:
            refused = {**document_of(error), "acknowledged": acknowledged, "freshness": fresh}
            return json_response(refused, status_of(error))
        return json_response({"acknowledged": acknowledged, "durable": True, "freshness": fresh})

    async def drafts(self, request: Request) -> Response:
        """Return the record of each report of a golem without appending it, so that the caller can sign it."""
        is_lines = _content_kind(request, "a report") == LINES
        body, golem_id = await request.body(), _golem(request)
        reports = await self._warm.run(lambda: reports_in(body, is_lines=is_lines))
        fresh = await self._writable(_caller(request).owner, frozenset((golem_id,)))
        return json_response({"records": await self._recorder.draft(golem_id, reports), "freshness": fresh})

    async def steers(self, request: Request) -> Response:
        """Leave a steer for the live run of a golem in view."""
        given, golem_id = await _given(request, SteerParameters), _golem(request)
        fresh = await self._writable(_caller(request).owner, frozenset((golem_id,)))
        steer = Steer(secrets.token_hex(8), golem_id, given.severity == "high", given.intent)
        await self._warm.run(lambda: SteerFolder(self._warm.home).send(steer))
        return json_response({"golem_id": golem_id, "steer_id": steer.steer_id, "freshness": fresh}, 201)

    async def events(self, request: Request) -> Response:
        """Append signed life events of golems in view, by the rules of the spool."""
        is_lines = _content_kind(request, "a life event") == LINES
        body, caller = await request.body(), _caller(request)
        lines, signatures, golems = await self._warm.run(lambda: events_in(body, is_lines=is_lines))
        await self._writable(caller.owner, frozenset(golems))
        await self._recorder.release(golems)

        def work(context: DerivationContext) -> tuple[dict[str, Any], int]:
            outcome = record_events(context.log, lines, self._clock(), signatures=signatures)
            refused = [{"index": place, **document_of(each.error)} for each in outcome.refused for place in each.places]
            golem = golems[0] if len(golems) == 1 else None
            answer = {"written": outcome.written, "repeated": outcome.repeated, "refused": refused, "durable": True,
                      "freshness": asdict(self._warm.freshness(context, golem))}  # fmt: skip
            if outcome.written or outcome.repeated:
                return answer, 200
            return document_of(outcome.refused[0].error) | answer, status_of(outcome.refused[0].error)

        answer, status = await self._warm.read(caller.owner, work)
        if answer["written"]:
            self._runner.embed_soon()
        return json_response(answer, status)

    async def _writable(self, owner: str | None, golems: frozenset[str]) -> dict[str, Any]:
        """Check that these golems were born to the owner; return a freshness that is at most a second old.

        The check reads each new commit of the log, so a batch within a second of another skips it and gets its result.
        """
        at, fresh = self._writes.get((owner, golems), (float("-inf"), {}))
        if asyncio.get_running_loop().time() - at < WRITE_FRESHNESS_SECONDS:
            return fresh

        def known(context: DerivationContext) -> dict[str, Any]:
            born = set(context.life("GolemBorn")["golem_id"].to_pylist())
            for golem_id in sorted(golems - born):
                raise UnknownGolemError(f"golem {golem_id}: no golem of this name was born: POST /v1/golems")
            return asdict(self._warm.freshness(context, min(golems) if len(golems) == 1 else None))

        fresh = await self._warm.read(owner, known)
        if len(self._writes) >= _WRITERS_MAX:
            self._writes.clear()
        self._writes[owner, golems] = asyncio.get_running_loop().time(), fresh
        return fresh

    # tools

    async def texts(self, request: Request) -> Response:
        """Store episodes of the golem in the header `Bardo-Golem`; answer when they are durable and found by words."""
        is_lines = _content_kind(request, "a text") == LINES
        body = await request.body()
        episodes = await self._warm.run(lambda: _values(body, is_lines=is_lines))
        return json_response(*await self._runner.store_all(_caller(request), episodes))

    async def tools(self, request: Request) -> Response:
        """List the memory tools."""
        await _given(request, NoParameters)
        listed = [
            {"name": tool.name, "description": tool.description, "capability": tool.capability,
             "tick_budget": tool.tick_budget, "input_schema": tool.input_schema,
             "output_schema": answer_schema(tool)}
            for tool in TOOLS.values()
        ]  # fmt: skip
        fresh = await self._warm.read(_caller(request).owner, self._warm.freshness)
        return json_response({"tools": listed, "enabled": self._runner.gate.is_open, "freshness": asdict(fresh)})

    async def tool(self, request: Request) -> Response:
        """Call a memory tool for the golem in the header `Bardo-Golem`."""
        name = request.path_params["name"]
        if name not in TOOLS:
            raise ServerError(404, "UnknownToolError", f"there is no tool {name[:100]!r}", "GET /v1/tools lists all")
        return json_response(await self._runner.call(_caller(request), name, _json_object(await request.body())))


def _content_kind(request: Request, subject: str) -> str:
    """Return the type of the body. Raises ServerError 415 for a type other than JSON and JSON lines."""
    kind = request.headers.get("content-type", "application/json").split(";")[0].strip().lower()
    if kind not in ("application/json", LINES):
        raise ServerError(415, "ContentTypeError", f"{subject} has no type {kind[:60]!r}",
                          f"send the header `Content-Type: application/json`, or {LINES}")  # fmt: skip
    return kind


@cache
def _openapi(version: str) -> bytes:
    return orjson.dumps(openapi_document(OPERATIONS, version))


def _log_failure(warming: asyncio.Task[Freshness]) -> None:
    """Log why the home could not be opened in advance; each request then states the error itself."""
    if not warming.cancelled() and (error := warming.exception()) is not None:
        logger.warning("the home could not be opened in advance: %s", error)


def _acknowledged(ack: Ack) -> dict[str, Any]:
    link = None if ack.link is None else ack.link.number
    return {"golem_id": ack.golem_id, "tick": ack.tick, "repeated": ack.repeated, "link": link}


def _caller(request: Request) -> Caller:
    caller: Caller | None = request.state.caller
    assert caller is not None, "the door lets no request without a caller pass"
    return caller


def _golem(request: Request) -> str:
    return str(request.path_params["golem_id"])


async def _given(request: Request, model: type[P]) -> P:
    """Return the parameters of a request: its query, with POST also its JSON body. Raises ServerError 400."""
    given: Any = dict(request.query_params)
    given.pop("owner", None)  # read by the door
    if request.method == "POST":
        given |= _json_object(await request.body())
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise ServerError(
            400, "ParameterError", sentence_of(error), "GET /openapi.json describes the parameters"
        ) from None


def _json_object(body: bytes) -> dict[str, Any]:
    document = _value(body)
    if isinstance(document, ServerError):
        raise document
    if not isinstance(document, dict):
        raise ServerError(400, "JSONError", "the body is no JSON object", "send one JSON object")
    return document


def _values(body: bytes, *, is_lines: bool) -> list[object]:
    """Return the values of a JSON array or of JSON lines; a line that is no JSON gives its error as the value.

    Raises ServerError 400 for a body that is no JSON array.
    """
    if is_lines:
        return [_value(line) for line in body.split(b"\n") if line.strip()]
    values = _value(body)
    if isinstance(values, ServerError):
        raise values
    if not isinstance(values, list):
        raise ServerError(400, "JSONError", "the body is no JSON array", f"send an array, or {LINES}")
    return values


def _value(text: bytes) -> object:
    try:
        value = orjson.loads(text)
        check_keys(text)
    except (orjson.JSONDecodeError, RecordError, RecursionError) as error:
        fact = str(error) if isinstance(error, RecordError) else f"the text is no JSON ({error})"
        return ServerError(400, "JSONError", fact, "send JSON")
    return value


def _arrow_stream(table: pa.Table, fresh: dict[str, Any]) -> bytes:
    """Return a table as an Arrow IPC stream whose schema metadata `freshness` states the state it is based on."""
    metadata = {**(table.schema.metadata or {}), b"freshness": orjson.dumps(fresh)}
    table = table.replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


async def _unknown_path(request: Request, error: Exception) -> Response:
    fault = ServerError(404, "UnknownPathError", f"there is no path {request.url.path[:100]!r}",
                        "GET /openapi.json lists the paths")  # fmt: skip
    return refusal(fault)


async def _wrong_method(request: Request, error: Exception) -> Response:
    fault = ServerError(405, "MethodError", f"{request.url.path[:100]} has no method {request.method[:20]}",
                        "GET /openapi.json lists the methods")  # fmt: skip
    return refusal(fault)
