"""Sockets of a server, and connections of uvicorn whose request heads are bounded in bytes and in seconds."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any, cast

import orjson
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from bardo_pipeline.errors import ConfigError, ServerError
from bardo_pipeline.server.door import freshness_header, refusal

HOST = "127.0.0.1"
HEAD_BYTES_MAX = 32_768


class BoundedConnection(HttpToolsProtocol):
    """A connection that is closed with 408 if a request head takes longer than `head_seconds`, and with 431 if it is
    longer than HEAD_BYTES_MAX. uvicorn bounds neither.

    Beyond `connections_max` connections, a new one closes the one that waits longest for a request. If all are
    answering, the new request gets 503.
    """

    head_seconds: float
    connections_max: int

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_bytes: int | None = 0
        self._waits_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time of the first head; close the longest waiting connection if there are too many."""
        super().connection_made(transport)
        self._waits_since = self.loop.time()
        self._start_head()
        if not self._are_too_many:
            return
        others = [other for other in self._open_connections() if other is not self and other.is_waiting]
        if others:
            min(others, key=lambda other: (other.cycle is not None, other._waits_since)).transport.abort()

    @property
    def is_waiting(self) -> bool:
        """Whether no request is being answered on this connection."""
        return self.cycle is None or self.cycle.response_complete

    def _open_connections(self) -> list[BoundedConnection]:
        connections = cast("set[BoundedConnection]", self.connections)
        return [connection for connection in connections if not connection.transport.is_closing()]

    @property
    def _are_too_many(self) -> bool:
        return len(self.connections) > self.connections_max and len(self._open_connections()) > self.connections_max

    def on_response_complete(self) -> None:
        """Start the time that the connection waits for its next request."""
        super().on_response_complete()
        self._waits_since = self.loop.time()

    def data_received(self, data: bytes) -> None:
        """Parse received bytes; refuse a request whose head reaches HEAD_BYTES_MAX."""
        while data and not self.transport.is_closing():
            part = data[: HEAD_BYTES_MAX - (self._head_bytes or 0)]
            data = data[len(part) :]
            if self._head_bytes is not None:
                self._head_bytes += len(part)
            super().data_received(part)
            if self._head_bytes is not None and self._head_bytes >= HEAD_BYTES_MAX:
                self._refuse(431, "HeadTooLongError", f"the head is longer than {HEAD_BYTES_MAX:,} bytes")

    def on_message_begin(self) -> None:
        """Start the time of a head on a connection that stays open."""
        super().on_message_begin()
        if self._head_bytes is None:
            self._start_head()

    def on_headers_complete(self) -> None:
        """End the time of the head."""
        self._stop_head()
        if self._are_too_many:
            self.app = _busy
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the time of the head."""
        self._stop_head()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are no request."""
        self._refuse(400, "RequestError", msg)

    def _start_head(self) -> None:
        self._head_bytes = 0
        self._head_timer = self.loop.call_later(self.head_seconds, self._refuse, 408, "SlowHeadError",
                                                "the head did not arrive in time")  # fmt: skip

    def _stop_head(self) -> None:
        self._head_bytes = None
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, status: int, error: str, message: str) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        body = orjson.dumps({"error": error, "message": message, "cure": "send a complete, shorter head at once"})
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + b"bardo-freshness: null\r\n\r\n" + body)
        self.transport.close()


async def _busy(scope: Scope, receive: Receive, send: Send) -> None:
    error = ServerError(503, "BusyError", "too many connections are open", "close some, or ask again later")
    response = refusal(error)
    response.headers.update(freshness_header(None) | {"connection": "close"})
    await response(scope, receive, send)


def bounded_connection(seconds: float, count_max: int) -> type[BoundedConnection]:
    """Return the class of connections with this time for the head of a request, and this number of connections."""

    class Connection(BoundedConnection):
        head_seconds = seconds
        connections_max = count_max

    return Connection


def listening_socket(port: int, host: str = HOST) -> socket.socket:
    """Listen on a port, by default of this machine alone; connections wait for the server.

    Raises ConfigError if the port is taken, or the host is no address of this machine.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()
    except (OSError, TypeError, UnicodeError) as error:  # the last two for a text that no name of a host can be
        listener.close()
        if isinstance(error, OSError) and error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise ConfigError(f"--port {port}: {error.strerror}: give another port, or 0 for any free one") from None
        raise ConfigError(f"--host {host[:80]!r}: {error}: give an address of this machine, as 127.0.0.1") from None
    return listener
