"""The public board of a relay over HTTP: blind signatures for verified authors, posts without a name, catch-up.

Source: KAT (Lethe, Write Paths); KAT-4, KAT-11; ADR 0115.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bardo_pipeline.client.lethe_client import TICKETS_MAX, TicketRequest
from bardo_pipeline.clock import micros_of
from bardo_pipeline.errors import ServerError
from bardo_pipeline.events.custody.blind_signature import KEY_BITS, PURPOSES, Purpose
from bardo_pipeline.katabasis.public_posts import POST_BYTES_MAX, post_id
from bardo_pipeline.relay.message_store import MessageStore
from bardo_pipeline.relay.request_fields import kept_time, names_of, number_after
from bardo_pipeline.relay.ticket_office import TicketOffice
from bardo_pipeline.server.door import json_response

PAGE = 64
"""Posts of one answer."""

_TOPIC, _TOKEN = "lethe", "public"
_NUMBER = re.compile(rf"[0-9a-f]{{1,{KEY_BITS // 4}}}")


class LetheRoutes:
    """Routes of the board.

    Parameters
    ----------
    office : signs posts; None for a relay without a registry, whose board is read only
    body : reads the body of a request within the relay's bounds
    """

    def __init__(
        self,
        store: MessageStore,
        office: TicketOffice | None,
        *,
        clock: Callable[[], datetime],
        body: Callable[[Request], Awaitable[bytes]],
    ) -> None:
        self._store, self._office, self._clock, self._body = store, office, clock, body

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/v1/lethe/keys", self._keys),
            Route("/v1/lethe/tickets", self._tickets, methods=["POST"]),
            Route("/v1/lethe/posts", self._posts),
            Route("/v1/lethe/posts/{post_id}", self._put, methods=["PUT"]),
        ]

    async def _keys(self, _: Request) -> Response:
        keys = _required(self._office).keys
        return json_response({"keys": {purpose: f"{key.modulus:x}" for purpose, key in keys.items()}})

    async def _tickets(self, request: Request) -> Response:
        office, day = _required(self._office), f"{self._clock():%Y-%m-%d}"
        wanted = _ticket_request(await self._body(request))
        signed = await asyncio.to_thread(office.sign, wanted, day)
        return json_response({"signed": [f"{number:x}" for number in signed]})

    async def _posts(self, request: Request) -> Response:
        number = number_after(request.query_params.get("after"))
        found, newest = await asyncio.to_thread(self._store.after, _TOPIC, _TOKEN, number, PAGE)
        return json_response({"posts": [{"number": m.number} | json.loads(m.body) for m in found], "newest": newest})

    async def _put(self, request: Request) -> Response:
        keys, (name,) = _required(self._office).keys, names_of(request.path_params, "post_id")
        kept, post = kept_time(request.query_params.get("days")), _object(await self._body(request))
        purpose, content, signature = (post.get(part) for part in ("purpose", "content", "signature"))
        if purpose not in PURPOSES or not isinstance(content, str) or not isinstance(signature, str):
            raise ServerError(400, "PostError", "a post has a purpose, a content and a signature", "state the three")
        body = content.encode("utf-8", "surrogatepass")
        if len(body) > POST_BYTES_MAX or post_id(purpose, body) != name:
            raise ServerError(400, "PostError", f"post {name} is too long or has another hash", "hash its content")
        if not _NUMBER.fullmatch(signature) or not keys[purpose].verifies(body, int(signature, 16)):
            raise ServerError(403, "NotVerifiedError", "the signature is not this relay's", "ask it for tickets first")
        stored = json.dumps({"purpose": purpose, "content": content, "signature": signature}).encode()
        at = self._clock()
        number, is_new = await asyncio.to_thread(
            self._store.put, _TOPIC, _TOKEN, name, stored, micros_of(at), micros_of(at + kept), is_bounded=False
        )
        return json_response({"number": number, "is_new": is_new}, 201 if is_new else 200)


def _required(office: TicketOffice | None) -> TicketOffice:
    """Return the office. Raises ServerError 404 without one."""
    if office is None:
        raise ServerError(404, "NoRegistryError", "the relay has no registry", "start it with --registry FILE")
    return office


def _object(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a body. Raises ServerError 400."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise ServerError(400, "BodyError", "the body is no JSON object", "send a JSON object")
    return document


class _TicketBody(BaseModel):
    """The JSON form of a request for tickets."""

    model_config = ConfigDict(extra="forbid")

    identity: str
    purpose: Purpose
    blinded: list[Annotated[str, Field(pattern=rf"^[0-9a-f]{{1,{KEY_BITS // 4}}}$")]] = Field(
        min_length=1, max_length=TICKETS_MAX
    )
    signature: str


def _ticket_request(body: bytes) -> TicketRequest:
    """Return a request for tickets. Raises ServerError 400 for another form."""
    try:
        read = _TicketBody.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the body"
        raise ServerError(400, "TicketError", f"{place}: {first['msg']}", "use the client of this version") from None
    return TicketRequest(read.identity, read.purpose, tuple(int(n, 16) for n in read.blinded), read.signature)
