"""Door: the outermost layer of the HTTP application. It lets a request in by host, token, size and speed.

Each answer leaves with the header `Bardo-Freshness`.

A request is refused before its body is read if its token is wrong, and before any route sees it if its body is too long
or too slow. So a refused request changes nothing. Source: MEM-17; ADR 0076.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import orjson
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bardo_pipeline.errors import BardoError, ServerError
from bardo_pipeline.server.error_responses import document_of, status_of

if TYPE_CHECKING:  # a relay answers by this module, and has no home to load
    from bardo_pipeline.server.callers import Doorkeeper
    from bardo_pipeline.server.warm_home import StatedFreshness

logger = logging.getLogger("bardo.server")

COOKIE = "bardo_session"
OPEN_PATHS = re.compile(r"/|/live|/docs/.*|/healthz|/openapi\.json|/favicon\.ico", re.DOTALL)
"""Paths that need no header with a token: a browser reads pages with its session, the others need none."""

_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_JSON = {"content-type": "application/json", "cache-control": "no-store", "x-content-type-options": "nosniff"}


class Door:
    """The application behind checks of host, token, body size and body speed.

    Parameters
    ----------
    body_bytes_max : path prefix -> largest body; "" for all other paths
    chunk_seconds, body_seconds : time for a part of a body, and for all of it
    """

    def __init__(
        self,
        app: ASGIApp,
        doorkeeper: Doorkeeper,
        freshness: StatedFreshness,
        *,
        body_bytes_max: Mapping[str, int],
        chunk_seconds: float,
        body_seconds: float,
    ) -> None:
        self._app, self._doorkeeper, self._freshness = app, doorkeeper, freshness
        self._bytes_max, self._chunk_seconds, self._body_seconds = dict(body_bytes_max), chunk_seconds, body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on with its caller in `scope["state"]["caller"]` and its body read."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False
        scope.setdefault("state", {})["caller"] = None

        async def watched(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                stated = MutableHeaders(raw=message["headers"])
                if "bardo-freshness" not in stated:
                    stated.update(freshness_header(await self._freshness.of(scope["state"]["caller"])))
            await send(message)

        try:
            headers = Headers(scope=scope)
            _check_host(headers)
            self._admit(scope, headers)
            body = await self._body(scope, headers, receive)
            await self._app(scope, replayed(body, receive), watched)
        except Exception as error:
            if not isinstance(error, BardoError):
                logger.exception("%s %r failed", scope["method"], scope["path"])
            if started:
                raise
            await refusal(error)(scope, receive, watched)

    def _admit(self, scope: Scope, headers: Headers) -> None:
        """Set the caller of the request. Raises TokenError and AccessError."""
        if OPEN_PATHS.fullmatch(scope["path"]) and "authorization" not in headers:
            return
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        owner, golem = _named(headers, "bardo-owner") or query.get("owner"), _named(headers, "bardo-golem")
        caller = self._doorkeeper.caller(headers.get("authorization"), owner, golem)
        scope["state"]["caller"] = caller

    async def _body(self, scope: Scope, headers: Headers, receive: Receive) -> bytes:
        """Read the body. Raises ServerError 413 if it is too long, and 408 if it is too slow."""
        limit = max((prefix for prefix in self._bytes_max if scope["path"].startswith(prefix)), key=len)
        bytes_max = self._bytes_max[limit]
        stated = headers.get("content-length", "")
        if stated.isdigit() and int(stated) > bytes_max:
            raise _too_long(bytes_max)
        parts, size = [], 0
        deadline = asyncio.get_running_loop().time() + self._body_seconds
        while True:
            left = deadline - asyncio.get_running_loop().time()
            try:
                message = await asyncio.wait_for(receive(), max(0.0, min(left, self._chunk_seconds)))
            except TimeoutError:
                raise ServerError(408, "SlowBodyError", "the body did not arrive in time", "send it at once") from None
            if message["type"] == "http.disconnect":
                raise ServerError(400, "DisconnectError", "the body ended early", "send as many bytes as stated")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > bytes_max:
                raise _too_long(bytes_max)
            if not message.get("more_body", False):
                return b"".join(parts)


def _named(headers: Headers, header: str) -> str | None:
    """Return the owner or golem that a header names in UTF-8; None without one. Raises ServerError 400."""
    try:
        return headers.get(header, "").encode("latin-1").decode() or None
    except UnicodeDecodeError:
        raise ServerError(400, "HeaderError", f"the header {header} is not UTF-8", "encode it as UTF-8") from None


def _too_long(bytes_max: int) -> ServerError:
    return ServerError(413, "BodyTooLongError", f"the body is longer than {bytes_max:,} bytes", "send smaller bodies")


def _check_host(headers: Headers) -> None:
    """Raise ServerError 421 for another host than this machine: a browser may be led here by a foreign name."""
    host = headers.get("host", "")
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    if name not in _HOSTS:
        raise ServerError(421, "HostError", f"the host {host[:100]!r} is not this machine", "use http://127.0.0.1:PORT")


def replayed(body: bytes, receive: Receive) -> Receive:
    """Return a channel that gives the body once, then waits for the end of the connection."""
    given = False

    async def channel() -> Message:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return channel


def json_response(document: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a document as JSON, with its freshness as a header too; moments become ISO 8601 texts."""
    options = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
    stated = freshness_header(document["freshness"]) if "freshness" in document else {}
    sent = {**_JSON, **stated, **(headers or {})}
    return Response(orjson.dumps(document, option=options, default=str), status, sent)


def freshness_header(fresh: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the header that states a freshness."""
    return {"bardo-freshness": orjson.dumps(fresh).decode()}


def refusal(error: BaseException) -> Response:
    """Return an error as a response."""
    status = status_of(error)
    extra = {"www-authenticate": "Bearer"} if status == 401 else {"retry-after": "1"} if status in (429, 503) else {}
    if status in (408, 413):
        extra = {"connection": "close"}
    return json_response(document_of(error), status, extra)
