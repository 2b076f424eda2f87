"""The relay over HTTP: messages by PUT, catch-up by GET, and a WebSocket that pushes new ones.

The relay sees topics, ids, tokens and ciphertext, all derived from a secret that it does not have. It keeps a message
for the days that its sender asks for. Source: KAT-9, KAT-10; INH S6.2 to S6.5; ADR 0110, ADR 0112.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from bardo_pipeline.client.relay_client import RelayMessage
from bardo_pipeline.clock import micros_of
from bardo_pipeline.errors import BardoError, ServerError
from bardo_pipeline.relay.lethe_routes import LetheRoutes
from bardo_pipeline.relay.message_store import MessageStore
from bardo_pipeline.relay.request_fields import NAME, kept_time, names_of, number_after
from bardo_pipeline.relay.ticket_office import TicketOffice
from bardo_pipeline.server.door import json_response, refusal

BODY_BYTES_MAX = 1024 * 1024
PAGE = 64
"""Messages of one answer."""

_EXPIRY_SECONDS = 600.0


class RelayApplication:
    """Routes of a relay.

    Parameters
    ----------
    office : signs public posts; None for a relay whose board is read only
    clock : the present time in UTC, from which messages expire
    body_seconds : time for the body of a request
    """

    def __init__(
        self,
        store: MessageStore,
        *,
        office: TicketOffice | None = None,
        clock: Callable[[], datetime],
        body_seconds: float = 30.0,
    ) -> None:
        self._store, self._clock, self._body_seconds = store, clock, body_seconds
        self._lethe = LetheRoutes(store, office, clock=clock, body=self._body)
        self._waiting: dict[str, set[asyncio.Event]] = defaultdict(set)

    def asgi(self) -> Starlette:
        """Return the application."""
        routes = [
            Route("/healthz", self._health),
            Route("/v1/topics/{topic}/messages", self._messages),
            Route("/v1/topics/{topic}/messages/{message_id}", self._put, methods=["PUT"]),
            Route("/v1/topics/{topic}/kept", self._keep, methods=["POST"]),
            WebSocketRoute("/v1/topics/{topic}/feed", self._feed),
            *self._lethe.routes(),
        ]
        refused: dict[int | type[Exception], Callable[[Request, Exception], Awaitable[Response]]] = {
            BardoError: _refused,
            HTTPException: _unknown_route,
        }
        return Starlette(routes=routes, exception_handlers=refused, lifespan=self._lifespan)

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        expiry = asyncio.create_task(self._expire())
        yield
        expiry.cancel()
        with suppress(asyncio.CancelledError):
            await expiry

    async def _expire(self) -> None:
        while True:
            await asyncio.to_thread(self._store.expire, micros_of(self._clock()))
            await asyncio.sleep(_EXPIRY_SECONDS)

    async def _health(self, _: Request) -> Response:
        topics, messages = await asyncio.to_thread(self._store.counts)
        return json_response({"topics": topics, "messages": messages})

    async def _put(self, request: Request) -> Response:
        topic, message_id = names_of(request.path_params, "topic", "message_id")
        token, kept = _token(request.headers.get("authorization")), kept_time(request.query_params.get("days"))
        body, at = await self._body(request), self._clock()
        number, is_new = await asyncio.to_thread(
            self._store.put, topic, token, message_id, body, micros_of(at), micros_of(at + kept)
        )
        if is_new:
            for event in self._waiting.get(topic, ()):
                event.set()
        return json_response({"number": number, "is_new": is_new}, 201 if is_new else 200)

    async def _keep(self, request: Request) -> Response:
        """Extend the time of stored messages; answer the ids of those that are not stored."""
        (topic,), token = names_of(request.path_params, "topic"), _token(request.headers.get("authorization"))
        kept, ids = kept_time(request.query_params.get("days")), _ids(await self._body(request))
        missing = await asyncio.to_thread(self._store.keep, topic, token, ids, micros_of(self._clock() + kept))
        return json_response({"missing": missing})

    async def _body(self, request: Request) -> bytes:
        """Read the body. Raises ServerError 413 if it is too long, 408 if it is too slow."""
        parts, size = [], 0
        try:
            async with asyncio.timeout(self._body_seconds):
                async for part in request.stream():
                    parts.append(part)
                    size += len(part)
                    if size > BODY_BYTES_MAX:
                        raise ServerError(
                            413, "BodyTooLongError", f"the body is longer than {BODY_BYTES_MAX:,} bytes",
                            "send smaller bodies",
                        )  # fmt: skip
        except TimeoutError:
            raise ServerError(408, "SlowBodyError", "the body did not arrive in time", "send it at once") from None
        return b"".join(parts)

    async def _messages(self, request: Request) -> Response:
        (topic,), token = names_of(request.path_params, "topic"), _token(request.headers.get("authorization"))
        number = number_after(request.query_params.get("after"))
        found, newest = await asyncio.to_thread(self._store.after, topic, token, number, PAGE)
        return json_response({"messages": [_document(message) for message in found], "newest": newest})

    async def _feed(self, socket: WebSocket) -> None:
        """Send the messages behind `after`, then each new one when it is stored."""
        try:
            (topic,), token = names_of(socket.path_params, "topic"), _token(socket.headers.get("authorization"))
            number = number_after(socket.query_params.get("after"))
            found, _ = await asyncio.to_thread(self._store.after, topic, token, number, PAGE)
        except ServerError as error:
            await socket.close(1008, error.message[:120])
            return
        await socket.accept()
        with self._subscribed(topic) as stored, suppress(WebSocketDisconnect):
            ended = asyncio.create_task(_ended(socket))
            while not ended.done():
                for message in found:
                    await socket.send_json(_document(message))
                    number = message.number
                if len(found) < PAGE:
                    news = asyncio.create_task(stored.wait())
                    await asyncio.wait((news, ended), return_when=asyncio.FIRST_COMPLETED)
                    news.cancel()
                stored.clear()
                found, _ = await asyncio.to_thread(self._store.after, topic, token, number, PAGE)

    @contextmanager
    def _subscribed(self, topic: str) -> Iterator[asyncio.Event]:
        stored = asyncio.Event()
        self._waiting[topic].add(stored)
        try:
            yield stored
        finally:
            self._waiting[topic].discard(stored)
            if not self._waiting[topic]:
                del self._waiting[topic]


async def _ended(socket: WebSocket) -> None:
    """Return when the client closes the connection; what it sends is ignored."""
    while (await socket.receive())["type"] != "websocket.disconnect":
        pass


async def _refused(_: Request, error: Exception) -> Response:
    return refusal(error)


async def _unknown_route(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return refusal(ServerError(error.status_code, "RouteError", str(error.detail), "use the routes of the guide"))


def _document(message: RelayMessage) -> dict[str, object]:
    return {"number": message.number, "id": message.message_id, "body": base64.b64encode(message.body).decode()}


def _token(authorization: str | None) -> str:
    """Return the token of a header. Raises ServerError 401 without one."""
    scheme, _, token = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise ServerError(401, "TokenMissingError", "the request has no token", "send `Authorization: Bearer TOKEN`")
    return token


def _ids(body: bytes) -> list[str]:
    """Return the message ids of a body. Raises ServerError 400 unless it is a JSON list of names."""
    try:
        ids = json.loads(body)
    except ValueError:
        ids = None
    if not isinstance(ids, list) or not all(isinstance(one, str) and NAME.fullmatch(one) for one in ids):
        raise ServerError(400, "NameError", "the body is no list of ids", "send a JSON list of 32 to 64 hex digits")
    return ids
