"""Calls a memory tool by name. Source: TOOLS, MEM-21."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.storage.home import Home, bucket_of, typed_disk_errors
from bardo_pipeline.tools.catalogue import tool_named
from bardo_pipeline.tools.definition import Tool
from bardo_pipeline.tools.memory_gate import MemoryGate
from bardo_pipeline.tools.schemas import Arguments, Result
from bardo_pipeline.tools.tool_call import Caller, ToolCall, check_caller, hash_of


def call_tool(
    home: DerivationContext | Home | Path,
    caller: Caller,
    name: str,
    arguments: Mapping[str, Any],
    *,
    clock: Callable[[], datetime],
    ids: Callable[[], str],
    gate: MemoryGate,
) -> Result:
    """Call a memory tool for a golem and return its result.

    A call that writes states the number of rows before and after. Calls for one golem wait for one another, unless what
    they record does not depend on the log. A refused call records nothing.

    Parameters
    ----------
    home : an open derivation, which a resident process keeps, or a home that is opened for this call
    arguments : JSON values by parameter name
    clock : source of the time of the call, UTC
    ids : source of call ids
    gate : the settings that open the tools, for example `MemoryGate.of(os.environ)`

    Raises
    ------
    MemoryGateError : the tools are switched off, or the learning profile is not active
    ToolError : the tool is unknown, or its arguments are invalid or contradict the log
    QueryError : the golem is unknown, or belongs to another owner than the caller's
    """
    gate.check(name)
    tool = tool_named(name)
    with typed_disk_errors(), _opened(home, caller) as context:
        call, given = checked_call(context, caller, tool, arguments, clock=clock, ids=ids)
        is_write = tool.capability == "write"
        lock = f"tools-{bucket_of(caller.golem_id, context.home.bucket_count)}"
        with context.home.lock(lock) if is_write and tool.waits else nullcontext():
            if is_write:
                call.require_alive()
            return tool.run(call, given)


def checked_call(
    context: DerivationContext,
    caller: Caller,
    tool: Tool,
    arguments: Mapping[str, Any],
    *,
    clock: Callable[[], datetime],
    ids: Callable[[], str],
) -> tuple[ToolCall, Arguments]:
    """Return a call and its arguments after all checks that depend on no lock. Raises as `call_tool`."""
    given = tool.checked(dict(arguments))
    params_hash = hash_of(given.model_dump(mode="json"))
    at = clock()
    if at.utcoffset() != timedelta(0):
        raise ConfigError(f"the clock of a tool gives UTC moments, not {at}")
    check_caller(context, caller)
    return ToolCall(context, caller, tool.name, tool.steps, at, ids(), params_hash, clock), given


@contextmanager
def _opened(home: DerivationContext | Home | Path, caller: Caller) -> Iterator[DerivationContext]:
    """Yield the open derivation, or open one for the caller's owner and close its log afterwards."""
    if isinstance(home, DerivationContext):
        yield home
        return
    root = home.root if isinstance(home, Home) else home
    context = DerivationContext.open(root, owner=caller.owner)
    try:
        yield context
    finally:
        context.log.close()
