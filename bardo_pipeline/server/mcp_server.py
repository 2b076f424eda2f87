"""The memory tools over the Model Context Protocol: stdio, and streamable HTTP at /mcp."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import mcp_types as types
import orjson
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.message import SessionMessage

from bardo_pipeline.errors import BardoError, RecordError, ToolError
from bardo_pipeline.events.record.repeated_keys import check_keys
from bardo_pipeline.server.callers import Caller
from bardo_pipeline.server.openapi.openapi_document import REFUSAL, answer_schema
from bardo_pipeline.server.parameters import ReportParameters
from bardo_pipeline.server.recorder import Recorder
from bardo_pipeline.server.tool_calls import ToolRunner
from bardo_pipeline.tools.catalogue import TOOLS
from bardo_pipeline.tools.definition import Tool
from bardo_pipeline.tools.episode_tools import STORE_EPISODE

logger = logging.getLogger("bardo.server")

INSTRUCTIONS = (
    "Memory of a mortal agent. Search before a decision; store an episode after it; record an execution before it "
    "settles and its outcome afterwards. Each result states in `freshness` the cycle and log versions it is based on."
)
GOLEM_ARGUMENT = "golem_id"
"""Argument that each tool has beside those of TOOLS: the golem whose memory is used."""
EXPERIENCE_ARGUMENT = "experience"
"""Argument that memory_store_episode has beside those of TOOLS: the report of a situation, an action and its reward."""


def mcp_server(
    runner: ToolRunner, recorder: Recorder, caller_of: Callable[[ServerRequestContext[Any, Any]], Caller], version: str
) -> Any:
    """Return the protocol's server of the memory tools.

    Parameters
    ----------
    recorder : writes the records of reported experiences
    caller_of : returns the caller of a request
    """

    async def list_tools(ctx: ServerRequestContext[Any, Any], params: Any) -> types.ListToolsResult:
        """List the tools; none while the memory tools are off."""
        return types.ListToolsResult(tools=[_listed(tool) for tool in TOOLS.values()] if runner.gate.is_open else [])

    async def call_tool(
        ctx: ServerRequestContext[Any, Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        """Call a tool; an error is a result with `is_error`, which the agent reads."""
        arguments, caller = dict(params.arguments or {}), caller_of(ctx)
        golem = arguments.pop(GOLEM_ARGUMENT, None)
        try:
            if golem is not None and not isinstance(golem, str):
                raise ToolError(f"tool {params.name}: {GOLEM_ARGUMENT} is no text: give the id of a golem")
            chosen = Caller(caller.owner, golem or caller.golem)
            if params.name != STORE_EPISODE.name or EXPERIENCE_ARGUMENT not in arguments:
                return _result(await runner.call(chosen, params.name, arguments))
            report = runner.checked_report(arguments.pop(EXPERIENCE_ARGUMENT))
            STORE_EPISODE.checked(arguments)  # else a call refused for them would leave a record, and its retry another
            reported = await runner.report(recorder, chosen, report)
            return _result(await runner.call(chosen, params.name, arguments) | {EXPERIENCE_ARGUMENT: reported})
        except Exception as error:
            if not isinstance(error, BardoError):
                logger.exception("tool %r failed", params.name)
            return _result(await runner.refusal(caller, error), is_error=True)

    return Server(
        "bardo", version=version, title="Bardo memory", instructions=INSTRUCTIONS, on_list_tools=list_tools,
        on_call_tool=call_tool,
    )  # fmt: skip


_EXPERIENCE = {
    **ReportParameters.model_json_schema(),
    "description": "The episode as a situation, an action and its reward, from which rules are learned.",
}

_REPORTED = {"type": "object", "description": "Tick of the record of the experience, and whether it is durable."}


def _listed(tool: Tool) -> types.Tool:
    schema = dict(tool.input_schema)
    golem = {"type": "string", "description": "Golem whose memory is used; the one of the connection by default."}
    added = {EXPERIENCE_ARGUMENT: _REPORTED} if tool is STORE_EPISODE else {}
    schema["properties"] = {**schema.get("properties", {}), GOLEM_ARGUMENT: golem, **dict.fromkeys(added, _EXPERIENCE)}
    output = answer_schema(tool, **added, **REFUSAL)
    del output["required"]  # the TypeScript client compares a refusal with this schema too
    is_read = tool.capability == "read"
    return types.Tool(
        name=tool.name,
        description=tool.description,
        input_schema=schema,
        output_schema=output,
        annotations=types.ToolAnnotations(read_only_hint=is_read, destructive_hint=False, open_world_hint=False),
    )


def _result(document: dict[str, Any], *, is_error: bool = False) -> types.CallToolResult:
    text = orjson.dumps(document, default=str)
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text.decode())],
        structured_content=orjson.loads(text),
        is_error=is_error,
    )


def caller_of_request(context: ServerRequestContext[Any, Any]) -> Caller:
    """Return the caller that the door found for the HTTP request of a message."""
    assert context.request is not None, "a message over HTTP has its request"
    caller: Caller = context.request.state.caller
    return caller


def http_manager(server: Any, body_bytes_max: int) -> StreamableHTTPSessionManager:
    """Return the manager of the protocol over HTTP. It keeps no session: each request carries its token."""
    return StreamableHTTPSessionManager(
        server, json_response=True, stateless=True, max_request_body_size=body_bytes_max
    )


def _repeated_key_refusal(text: bytes) -> types.JSONRPCError | None:
    """Return the answer to a message that has a key twice, of which the SDK would use one value; else None."""
    try:
        check_keys(text)
    except RecordError as error:
        message = json.loads(text)
        asked = message.get("id") if isinstance(message, dict) else None
        fault = types.ErrorData(code=types.INVALID_REQUEST, message=str(error))
        return types.JSONRPCError(jsonrpc="2.0", id=asked if type(asked) in (int, str) else None, error=fault)
    except (ValueError, RecursionError):
        pass  # the SDK refuses it
    return None


async def serve_stdio(server: Any) -> None:
    """Serve the protocol over standard input and output until the input ends; refuse messages with a repeated key."""
    from mcp.server.stdio import stdio_server

    lines = anyio.wrap_file(os.fdopen(os.dup(0), encoding="utf-8", errors="replace"))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # a child process must not read the agent's messages
    answers: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def messages() -> AsyncIterator[str]:
        async for line in lines:
            if (refused := _repeated_key_refusal(line.encode())) is None:
                yield line
            else:
                await (await answers).send(SessionMessage(refused))

    async with stdio_server(messages()) as (read_stream, write_stream):
        answers.set_result(write_stream)
        await server.run(read_stream, write_stream, server.create_initialization_options())
