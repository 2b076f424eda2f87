"""Tickets: what waits for a journal's next commit, how those who wait are woken, and a commit that no thread waits for.

Source: architecture ("Many journals, one drainer a home"); EV-3.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import pairwise

from bardo_pipeline.errors import JournalError
from bardo_pipeline.storage.journal.frames import Draft

Done = Callable[["list[Ticket]"], None]


class Ticket:
    """What waits for the next commit: a frame, or only that all before it be durable.

    seals: the segment is sealed behind it. done: called with the tickets of one commit that have it, instead of waking
    a thread. commits: called, on any thread, when this waits and nobody commits, by a loop's tickets. last: its thread
    is the last that a commit wakes, and passes the committer's place on.
    """

    __slots__ = ("chosen", "commits", "done", "draft", "error", "following", "last", "seals", "taken", "waits")

    def __init__(
        self,
        draft: Draft | None = None,
        *,
        seals: bool = False,
        done: Done | None = None,
        commits: Callable[[], None] | None = None,
    ) -> None:
        self.draft, self.seals, self.done, self.commits = draft, seals, done, commits
        self.waits: threading.Lock | None = None
        self.following: Ticket | None = None
        self.taken = self.chosen = self.last = False
        self.error: JournalError | None = None


class Aside(ABC):
    """A commit that is made durable otherwise than by a thread that waits for it.

    tickets: whose it is. synced, records: how much of the segment is durable with it.
    """

    def __init__(self) -> None:
        self.tickets: list[Ticket] = []
        self.synced = self.records = 0
        self.ending = threading.Lock()

    @abstractmethod
    def sync(self, handle: int) -> None:
        """Begin to make this file durable. Raises OSError where that fails at once."""

    @abstractmethod
    def collect(self) -> None:
        """End it if it can be, on any thread."""


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
