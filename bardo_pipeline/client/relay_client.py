"""RelayClient: a topic of a relay over HTTP, and its feed over a WebSocket, with httpx and websockets."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Self

import httpx

from bardo_pipeline.client.relay_answers import SECONDS, answered, relay_address
from bardo_pipeline.errors import NoServerError, ServerError

_IDS = 10_000
"""Message ids of one request."""

_LAST = 10**17
"""Number behind which a relay has no message."""


class RelayMessage(NamedTuple):
    """A message of a topic. number: its place in the topic, from 1. message_id: the sender's name of it."""

    number: int
    message_id: str
    body: bytes


class RelayClient:
    """One topic of a relay.

    Raises ConfigError for an address without http:// or https://. Calls raise NoServerError if the relay does not
    answer within 10 seconds, ServerError if it refuses or answers no message.

    Parameters
    ----------
    url : address of the relay
    topic, token : of the clade, from its secret
    """

    def __init__(self, url: str, topic: str, token: str) -> None:
        self._url, self._topic = relay_address(url), topic
        self._headers = {"authorization": f"Bearer {token}"}
        self._http = httpx.Client(base_url=self._url, headers=self._headers, timeout=SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._http.close()

    def put(self, message_id: str, body: bytes, days: int | None = None) -> int:
        """Send a message; return its number. A repetition extends its time.

        days: that the relay keeps the message; None for the relay's own number, 7
        """
        wanted = {} if days is None else {"days": days}
        return _number(self._asked("PUT", f"messages/{message_id}", content=body, params=wanted), "number")

    def keep(self, message_ids: Sequence[str], days: int) -> list[str]:
        """Let the relay keep messages for so many days from now; return the ids of those that it does not have."""
        missing = []
        for start in range(0, len(message_ids), _IDS):
            part = message_ids[start : start + _IDS]
            missing += _ids(self._asked("POST", "kept", json=part, params={"days": days}), part, self._url)
        return missing

    def after(self, number: int) -> list[RelayMessage]:
        """Return the next messages behind a number, in order; an empty list at the end of the topic."""
        rows = self._asked("GET", "messages", params={"after": number}).get("messages")
        messages = _messages(rows)
        numbers = [] if messages is None else [message.number for message in messages]
        if messages is None or numbers != sorted({n for n in numbers if n > number}):
            raise ServerError(502, "RelayError", f"the relay {self._url} answered no messages", "use another relay")
        return messages

    def newest(self) -> int:
        """Return the number of the topic's newest message, 0 without one."""
        return _number(self._asked("GET", "messages", params={"after": _LAST}), "newest")

    def wait(self, number: int, seconds: float) -> bool:
        """Wait until the relay pushes a message behind a number; return whether it did within these seconds."""
        from websockets.exceptions import WebSocketException
        from websockets.sync.client import connect

        address = f"ws{self._url.removeprefix('http')}/v1/topics/{self._topic}/feed?after={number}"
        with suppress(TimeoutError):
            try:
                with connect(address, additional_headers=self._headers, open_timeout=SECONDS) as socket:
                    socket.recv(timeout=seconds)
                    return True
            except (OSError, WebSocketException) as error:
                if isinstance(error, TimeoutError):
                    raise
                raise NoServerError(f"relay {self._url} does not answer ({error})", "bardo relay DATABASE") from error
        return False

    def _asked(self, method: str, place: str, **options: Any) -> dict[str, Any]:
        return answered(self._url, lambda: self._http.request(method, f"/v1/topics/{self._topic}/{place}", **options))


def _number(document: dict[str, Any], name: str) -> int:
    number = document.get(name)
    if not isinstance(number, int) or number < 0:
        raise ServerError(502, "RelayError", f"the relay answered without {name}", "use another relay")
    return number


def _ids(document: dict[str, Any], sent: Sequence[str], url: str) -> list[str]:
    missing = document.get("missing")
    if not isinstance(missing, list) or not set(sent).issuperset(missing):
        raise ServerError(502, "RelayError", f"the relay {url} answered without ids", "use another relay")
    return missing


def _messages(rows: object) -> list[RelayMessage] | None:
    """Return the messages of an answer, None if it has another form: a relay is not trusted."""
    try:
        return [
            RelayMessage(int(row["number"]), str(row["id"]), base64.b64decode(row["body"], validate=True))
            for row in rows  # type: ignore[attr-defined]
        ]
    except (TypeError, ValueError, KeyError):
        return None
