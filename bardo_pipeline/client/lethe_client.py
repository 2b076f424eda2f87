"""LetheClient: the public board of a relay over HTTP, each post over a connection of its own.

A post carries no token and no name. Its signature shows that a verified author asked for it, and not which one.
Source: KAT (Lethe); KAT-4; ADR 0115.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import httpx

from bardo_pipeline.client.relay_answers import SECONDS, answered, relay_address
from bardo_pipeline.errors import ServerError

TICKETS_MAX = 64
"""Blinded digests of one request."""

T = TypeVar("T")


class TicketRequest(NamedTuple):
    """A request for blind signatures.

    Parameters
    ----------
    identity : public Ed25519 key of the author, 64 hex digits
    purpose : "living" or "death"
    blinded : blinded digests
    signature : of `signed_bytes` by the identity, hex digits
    """

    identity: str
    purpose: Literal["living", "death"]
    blinded: tuple[int, ...]
    signature: str = ""

    @property
    def signed_bytes(self) -> bytes:
        """Return the bytes that the identity signs."""
        parts = ["bardo/lethe/1/tickets", self.identity, self.purpose, *map(hex, self.blinded)]
        return "\n".join(parts).encode()

    @property
    def document(self) -> dict[str, Any]:
        """Return the request as a JSON object."""
        return self._asdict() | {"blinded": [f"{number:x}" for number in self.blinded]}


class BoardPost(NamedTuple):
    """A post as the relay stores it. number: its place on the board. signature: that of the relay."""

    number: int
    purpose: str
    content: str
    signature: int


class LetheClient:
    """The public board of one relay.

    Raises ConfigError for an address without http:// or https://. Calls raise NoServerError if the relay does not
    answer within 10 seconds, ServerError if it refuses or answers nonsense.
    """

    def __init__(self, url: str) -> None:
        self._url = relay_address(url)
        self._trust = ssl.create_default_context() if self._url.startswith("https") else False

    def keys(self) -> dict[str, int]:
        """Return the moduli of the relay's keys by purpose."""
        return self._read("GET", "keys", lambda answer: {str(k): int(v, 16) for k, v in answer["keys"].items()})

    def sign(self, request: TicketRequest) -> list[int]:
        """Return the relay's signatures of blinded digests, in order."""
        signed = self._read(
            "POST", "tickets", lambda answer: [int(text, 16) for text in answer["signed"]], json=request.document
        )
        if len(signed) != len(request.blinded):
            raise self._nonsense()
        return signed

    def post(self, post_id: str, purpose: str, content: str, signature: int, days: int) -> int:
        """Put a post on the board for so many days; return its number. A repetition extends its time."""
        body = {"purpose": purpose, "content": content, "signature": f"{signature:x}"}
        return self._read(
            "PUT", f"posts/{post_id}", lambda answer: int(answer["number"]), json=body, params={"days": days}
        )

    def after(self, number: int) -> tuple[list[BoardPost], int]:
        """Return the next posts behind a number, in order, and the number of the newest one."""

        def read(answer: dict[str, Any]) -> tuple[list[BoardPost], int]:
            posts = [
                BoardPost(int(p["number"]), str(p["purpose"]), str(p["content"]), int(p["signature"], 16))
                for p in answer["posts"]
            ]
            numbers: Sequence[int] = [post.number for post in posts]
            if numbers != sorted({n for n in numbers if n > number}):
                raise ValueError("numbers are not in order")
            return posts, int(answer["newest"])

        return self._read("GET", "posts", read, params={"after": number})

    def _read(self, method: str, place: str, read: Callable[[dict[str, Any]], T], **options: Any) -> T:
        address = f"{self._url}/v1/lethe/{place}"
        document = answered(
            self._url, lambda: httpx.request(method, address, timeout=SECONDS, verify=self._trust, **options)
        )
        try:
            return read(document)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise self._nonsense() from None

    def _nonsense(self) -> ServerError:
        return ServerError(502, "RelayError", f"the relay {self._url} answered no posts", "use another relay")
