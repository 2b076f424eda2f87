"""`bardo serve`: the resident server of a home."""

from __future__ import annotations

import os
import sys
from typing import Annotated

from typer import Option

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.options import named_owner, now, root_for_owner, root_of
from bardo_pipeline.cli.output.tables import print_line, show_log
from bardo_pipeline.server.callers import Caller
from bardo_pipeline.server.serve import ServeSettings, serve_http, serve_stdio


def serve(
    home: opt.Home = None,
    port: Annotated[int, Option(min=0, max=65_535, help="Port on 127.0.0.1; 0 for any free one.")] = ServeSettings.port,
    threads: Annotated[int, Option(min=1, max=64, help="Threads that read.")] = ServeSettings.threads,
    mcp_stdio: Annotated[
        bool, Option("--mcp-stdio", help="Serve the memory tools over standard input and output instead of HTTP.")
    ] = False,
    golem: Annotated[str | None, Option(help="With --mcp-stdio: the golem whose memory is used.")] = None,
) -> None:
    """Serve a home: HTTP with JSON, metrics, a page, and the Model Context Protocol at /mcp; 127.0.0.1 only."""
    show_log()
    settings = ServeSettings(port=port, threads=threads)
    if mcp_stdio:
        serve_stdio(root_for_owner(home), Caller(named_owner(), golem), settings, clock=now, environ=os.environ)
        return

    def on_ready(url: str) -> None:
        print_line(f"Bardo serves {url} (stop it with Ctrl-C); `bardo keys token OWNER` issues a token", to=sys.stderr)

    serve_http(root_of(home), settings, clock=now, environ=os.environ, on_ready=on_ready)
