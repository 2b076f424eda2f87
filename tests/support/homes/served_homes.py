"""Servers of homes in processes of their own, and tokens for them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.keys.owner_tokens import OwnerTokens
from tests.conftest import NOW
from tests.support.processes.forked_processes import CONTEXT

START_SECONDS = 120.0


@dataclass(frozen=True)
class Served:
    """A running server: its home, its address, and a token for each owner (None: the whole home)."""

    root: Path
    url: str
    tokens: Mapping[str | None, str]
    pid: int

    def headers(self, owner: str | None) -> dict[str, str]:
        """Return the header with the owner's token."""
        return {"authorization": f"Bearer {self.tokens[owner]}"}


@contextmanager
def served(
    root: Path,
    *owners: str,
    seconds: float = 1.0,
    memory: bool = True,
    upkeep_seconds: float = 300.0,
    connections: int = 512,
    **variables: str,
) -> Iterator[Served]:
    """Serve a home on a free port until the block ends.

    Parameters
    ----------
    seconds : time for heads and for parts of bodies
    memory : whether the memory tools are on
    upkeep_seconds : time between passes that merge files of life events and run due consolidations
    connections : connections beyond this number get 503
    variables : further environment variables of the server
    """
    issued = OwnerTokens(Home.open(root))
    tokens = {owner: issued.issue(owner, f"secret of {owner}", NOW) for owner in (*owners, None)}
    ours, theirs = CONTEXT.Pipe()
    environ = {**os.environ, "BARDO_MEMORY_ENABLED": str(memory).lower(), **variables}
    process = CONTEXT.Process(target=_serve, args=(root, seconds, upkeep_seconds, connections, environ, theirs))
    process.start()
    theirs.close()
    try:
        assert ours.poll(START_SECONDS), "the server did not start"
        assert process.pid is not None
        yield Served(root, ours.recv(), tokens, process.pid)
    finally:
        process.terminate()
        process.join(30)
        if process.is_alive():
            process.kill()
            process.join()
            raise AssertionError("the server did not stop within 30 s of SIGTERM")


def _serve(
    root: Path, seconds: float, upkeep_seconds: float, connections: int, environ: Mapping[str, str], ready: Connection
) -> None:
    """Run the server in this process, in wall-clock time."""
    os.environ.update(environ)
    from bardo_pipeline.clock import utc_now
    from bardo_pipeline.server.serve import ServeSettings, serve_http

    settings = ServeSettings(
        port=0, head_seconds=seconds, chunk_seconds=seconds, body_seconds=3 * seconds, upkeep_seconds=upkeep_seconds,
        connections_max=connections, drain="thread",
    )  # fmt: skip
    serve_http(root, settings, clock=utc_now, environ=environ, on_ready=ready.send)
