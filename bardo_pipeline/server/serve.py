"""Runs a server of a home: over HTTP on 127.0.0.1, or the Model Context Protocol over standard input and output."""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

import orjson

from bardo_pipeline.client.running_server import DEFAULT_PORT, FILE, LOCK
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.process_settings import CladeSettings
from bardo_pipeline.server.callers import Caller, Doorkeeper
from bardo_pipeline.server.recorder import Recorder
from bardo_pipeline.server.tool_calls import ToolRunner
from bardo_pipeline.server.upkeep import keep_exchanging, keep_up
from bardo_pipeline.server.warm_home import WarmHome
from bardo_pipeline.storage.home import Home, make_folder, replace_file
from bardo_pipeline.storage.journal.writer_session import DrainMode
from bardo_pipeline.storage.keys.owner_tokens import OwnerTokens
from bardo_pipeline.tools.memory_gate import MemoryGate

_LOCK_SECONDS = 2.0  # a client that looks for the server holds the lock for a moment


@dataclass(frozen=True)
class ServeSettings:
    """Settings of a server.

    Parameters
    ----------
    port : 0 for any free one
    threads : number of threads that read
    connections_max : beyond this number, a waiting connection is closed, or a new request gets 503
    head_seconds : time for the head of a request
    chunk_seconds, body_seconds : time for a part of a request's body, and for all of it
    lease_idle_seconds : time after which the lease of a golem that no longer sends records is released
    upkeep_seconds : time between passes that merge small files of life events and run due consolidations
    exchange_seconds : time between exchanges with the clades through the relay, if BARDO_RELAY names one
    drain : what commits acknowledged records to the log
    """

    port: int = DEFAULT_PORT
    threads: int = 8
    connections_max: int = 512
    head_seconds: float = 10.0
    chunk_seconds: float = 10.0
    body_seconds: float = 30.0
    lease_idle_seconds: float = 5.0
    upkeep_seconds: float = 300.0
    exchange_seconds: float = 30.0
    drain: DrainMode = "process"


def library_version() -> str:
    """Return the installed version of the library."""
    try:
        return version_of("bardo-pipeline")
    except PackageNotFoundError:
        return "0"


def serve_http(
    root: Path,
    settings: ServeSettings,
    *,
    clock: Callable[[], datetime],
    environ: Mapping[str, str],
    on_ready: Callable[[str], None],
) -> None:
    """Serve a home over HTTP until SIGINT or SIGTERM.

    Raises ConfigError if another server runs for the home or the port is taken.

    Parameters
    ----------
    environ : environment variables, for the gate of the memory tools and the relay
    on_ready : called with the address when the server listens
    """
    import uvicorn

    from bardo_pipeline.server.application import BODY_BYTES_MAX, Application
    from bardo_pipeline.server.connections import HOST, bounded_connection, listening_socket
    from bardo_pipeline.server.protocol_door import ProtocolDoor

    home, gate, relay = Home.open(root), MemoryGate.of(environ), CladeSettings.of(environ).relay
    with _only_server(home):
        listener = listening_socket(settings.port)
        url, token, instance = f"http://{HOST}:{listener.getsockname()[1]}", secrets.token_urlsafe(32), _id()
        warm = WarmHome(root, threads=settings.threads)
        recorder = Recorder(
            home, clock=clock, writer=f"server-{os.getpid()}", idle_seconds=settings.lease_idle_seconds,
            drain=settings.drain,
        )  # fmt: skip
        runner = ToolRunner(warm, clock=clock, ids=_id, gate=gate)
        doorkeeper = Doorkeeper(OwnerTokens(home), token)
        app = Application(
            warm, recorder, runner, doorkeeper, clock=clock, version=library_version(), instance=instance,
            upkeep_seconds=settings.upkeep_seconds,
        )  # fmt: skip
        protocol = ProtocolDoor(runner, recorder, library_version(), BODY_BYTES_MAX[""])
        app.lifespans = (
            lambda: _Announced(home, url, token, instance, on_ready),
            lambda: protocol.running(app.warming),
        )
        if relay is not None:
            work = partial(keep_exchanging, warm, relay, clock=clock, seconds=settings.exchange_seconds)
            app.lifespans += (lambda: _background(work()),)
        config = uvicorn.Config(
            app.asgi(
                chunk_seconds=settings.chunk_seconds, body_seconds=settings.body_seconds,
                tools_over_http=protocol,
            ),
            http=bounded_connection(settings.head_seconds, settings.connections_max), ws="none", lifespan="on",
            log_level="warning", log_config=None, access_log=False, timeout_keep_alive=30,
            timeout_graceful_shutdown=10, server_header=False, date_header=False, proxy_headers=False,
        )  # fmt: skip
        uvicorn.Server(config).run(sockets=[listener])


def serve_stdio(
    root: Path, caller: Caller, settings: ServeSettings, *, clock: Callable[[], datetime], environ: Mapping[str, str]
) -> None:
    """Serve the memory tools of a home over standard input and output until the input ends.

    Parameters
    ----------
    caller : owner and golem of all calls
    environ : environment variables, for the gate of the memory tools
    """
    from bardo_pipeline.server.mcp_server import mcp_server
    from bardo_pipeline.server.mcp_server import serve_stdio as serve_streams

    warm = WarmHome(root, threads=settings.threads)
    try:
        with warm.context(caller.owner):
            pass  # raises an error for an unknown owner
        recorder = Recorder(
            Home.open(root), clock=clock, writer=f"stdio-{os.getpid()}", idle_seconds=settings.lease_idle_seconds,
            drain=settings.drain,
        )  # fmt: skip
        warm.acknowledged = recorder.acknowledged
        runner = ToolRunner(warm, clock=clock, ids=_id, gate=MemoryGate.of(environ))
        tools = mcp_server(runner, recorder, lambda request: caller, library_version())
        upkeep = keep_up(warm, runner, clock=clock, seconds=settings.upkeep_seconds)
        asyncio.run(_served(serve_streams(tools), recorder, upkeep))
    finally:
        warm.close()


@asynccontextmanager
async def _background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run work while the block runs."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()


async def _served(streams: Awaitable[None], recorder: Recorder, upkeep: Coroutine[Any, Any, None]) -> None:
    """Serve streams until their input ends; close idle writers and keep the home up meanwhile."""
    idle = [asyncio.create_task(work) for work in (recorder.close_idle(), upkeep)]
    try:
        await streams
    finally:
        for task in idle:
            task.cancel()
        await recorder.close()


def _id() -> str:
    return secrets.token_hex(8)


@contextmanager
def _only_server(home: Home) -> Iterator[None]:
    """Hold the lock of the home's server. Raises ConfigError if another server holds it."""
    path = home.root / LOCK
    make_folder(path.parent)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ConfigError(f"a server runs for the home {home.root}: its address is in {FILE}") from None
                time.sleep(0.02)
        yield
    finally:
        os.close(handle)


class _Announced:
    """Context manager of the application's life: writes the file of the running server, and removes it."""

    def __init__(self, home: Home, url: str, token: str, instance: str, on_ready: Callable[[str], None]) -> None:
        self._path, self._url, self._on_ready = home.root / FILE, url, on_ready
        self._facts = {"url": url, "token": token, "pid": os.getpid(), "instance": instance}

    async def __aenter__(self) -> None:
        content = orjson.dumps(self._facts, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        await asyncio.to_thread(replace_file, self._path, content)  # a draft has mode 0600
        self._on_ready(self._url)

    async def __aexit__(self, *exc: object) -> None:
        with suppress(FileNotFoundError):
            self._path.unlink()
