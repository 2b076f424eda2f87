"""A local webhook that records what is posted to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


class Hook(ThreadingHTTPServer):
    """A local webhook that records the notices it accepts and fails after a set number."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), NoticeHandler)
        self.taken: list[dict[str, Any]] = []
        self.accepted_max = 10**9

    @property
    def url(self) -> str:
        """Return the webhook's URL."""
        return f"http://127.0.0.1:{self.server_port}/deaths"


class NoticeHandler(BaseHTTPRequestHandler):
    """Request handler that accepts posted notices."""

    server: Hook

    def do_POST(self) -> None:
        """Accept or refuse one notice."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        fits = len(self.server.taken) < self.server.accepted_max
        if fits:
            self.server.taken.append(body)
        self.send_response(204 if fits else 503)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Suppress the request log."""


@contextmanager
def webhook() -> Iterator[Hook]:
    """Serve a webhook until the end of the block."""
    server = Hook()
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
