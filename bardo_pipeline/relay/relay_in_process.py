"""RelayInProcess: a relay for callers of the same process, over the store and the office of `bardo relay`.

An evaluation exchanges through it, where a process and HTTP would only add time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from pathlib import Path

from bardo_pipeline.client.lethe_client import BoardPost, TicketRequest
from bardo_pipeline.client.relay_client import RelayMessage
from bardo_pipeline.clock import micros_of
from bardo_pipeline.relay.lethe_routes import PAGE
from bardo_pipeline.relay.message_store import MessageStore
from bardo_pipeline.relay.request_fields import KEPT_DAYS
from bardo_pipeline.relay.serve_relay import RelaySettings
from bardo_pipeline.relay.ticket_office import SCORE_MIN, TicketOffice

_BOARD, _PUBLIC = "lethe", "public"


class RelayInProcess:
    """A topic of a relay and its public board.

    Parameters
    ----------
    database : file of its messages and keys, made if it does not exist
    topic, token : of the clade, from its secret
    identities : verified authors of public posts
    clock : time of the relay, UTC
    """

    def __init__(
        self, database: Path, topic: str, token: str, identities: Collection[str], clock: Callable[[], datetime]
    ) -> None:
        self._store = MessageStore(database, RelaySettings().hour_max)
        self._office = TicketOffice(database, _Verified(identities))
        self._topic, self._token, self._clock = topic, token, clock
        self.board = _Board(self._store, self._office, clock)

    def close(self) -> None:
        """Close the database."""
        self._store.close()
        self._office.close()

    def put(self, message_id: str, body: bytes, days: int | None = None) -> int:
        """Send a message; a repetition extends its time. days: that it is kept; None for the relay's own number."""
        at = self._clock()
        until = micros_of(at + timedelta(days=KEPT_DAYS if days is None else days))
        return self._store.put(self._topic, self._token, message_id, body, micros_of(at), until)[0]

    def after(self, number: int) -> list[RelayMessage]:
        """Return the next messages behind a number, in order."""
        return self._store.after(self._topic, self._token, number, PAGE)[0]

    def newest(self) -> int:
        """Return the number of the newest message, 0 without one."""
        return self._store.after(self._topic, self._token, 0, 0)[1]


class _Verified:
    """A registry that knows some identities."""

    def __init__(self, identities: Collection[str]) -> None:
        self._identities = frozenset(identities)

    def score(self, identity: str) -> int:
        """Return the least score of a verified author, 0 for an unknown identity."""
        return SCORE_MIN if identity in self._identities else 0


class _Board:
    """The public board."""

    def __init__(self, store: MessageStore, office: TicketOffice, clock: Callable[[], datetime]) -> None:
        self._store, self._office, self._clock = store, office, clock

    def keys(self) -> dict[str, int]:
        """Return the moduli of the relay's keys by purpose."""
        return {purpose: key.modulus for purpose, key in self._office.keys.items()}

    def sign(self, request: TicketRequest) -> list[int]:
        """Return the relay's signatures of blinded digests, in order."""
        return self._office.sign(request, f"{self._clock():%Y-%m-%d}")

    def post(self, post_id: str, purpose: str, content: str, signature: int, days: int) -> int:
        """Put a post on the board for so many days; return its number. Its readers check the signature."""
        at, stored = self._clock(), json.dumps({"purpose": purpose, "content": content, "signature": f"{signature:x}"})
        until = micros_of(at + timedelta(days=days))
        return self._store.put(_BOARD, _PUBLIC, post_id, stored.encode(), micros_of(at), until, is_bounded=False)[0]

    def after(self, number: int) -> tuple[list[BoardPost], int]:
        """Return the next posts behind a number, and the number of the newest one."""
        found, newest = self._store.after(_BOARD, _PUBLIC, number, PAGE)
        posts = [(message.number, json.loads(message.body)) for message in found]
        return [BoardPost(n, post["purpose"], post["content"], int(post["signature"], 16)) for n, post in posts], newest
