"""Tickets: what waits for a journal's next commit, and how those who wait are woken: each one wakes the next.

Source: architecture ("Many journals, one drainer a home"); EV-3.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise

from bardo_pipeline.errors import JournalError
from bardo_pipeline.storage.frames import Draft

Done = Callable[["list[Ticket]"], None]


class Ticket:
    """What waits for the next commit: a frame, or only that all before it be durable.

    seals: the segment is sealed behind it. done: called with the tickets of one commit that have it, instead of waking
    a thread. last: its thread is the last that a commit wakes, and passes the committer's place on.
    """

    __slots__ = ("chosen", "done", "draft", "error", "following", "last", "seals", "taken", "waits")

    def __init__(self, draft: Draft | None = None, *, seals: bool = False, done: Done | None = None) -> None:
        self.draft, self.seals, self.done = draft, seals, done
        self.waits: threading.Lock | None = None
        self.following: Ticket | None = None
        self.taken = self.chosen = self.last = False
        self.error: JournalError | None = None


def release(tickets: list[Ticket]) -> None:
    """Wake those who wait alone."""
    for ticket in tickets:
        assert ticket.waits is not None
        ticket.waits.release()


def wake(chain: list[Ticket]) -> None:
    """Wake the first, who wakes the next."""
    for ticket, after in pairwise(chain):
        ticket.following = after
    release(chain[:1])


def wait_for(ticket: Ticket) -> None:
    """Wait until woken, then wake the next."""
    assert ticket.waits is not None
    ticket.waits.acquire()
    following = ticket.following
    if following is not None:
        assert following.waits is not None
        following.waits.release()
