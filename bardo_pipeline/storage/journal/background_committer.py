"""Keeper: the thread that sees to a process's journal where no caller's thread does.

Source: architecture ("Many journals, one drainer a home"); EV-3.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from bardo_pipeline.storage.journal.commit_tickets import Ticket

if TYPE_CHECKING:
    from bardo_pipeline.storage.journal.journal import Journal

_HURRY_SECONDS, _HURRY_SECONDS_MAX = 0.0002, 0.01


class Keeper:
    """The thread that seals what is old, commits where no caller's thread waits, and does what else is to be done.

    tend: called about once a second while it lives.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._stirred = threading.Event()
        self._commits = self._stops = False
        self._thread: threading.Thread | None = None
        self.tend: Callable[[], None] = lambda: None

    @property
    def is_at_work(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None

    def start(self) -> None:
        """Begin to keep."""
        self._thread = threading.Thread(target=self._keep, name=f"journal-{self._journal.writer}", daemon=True)
        self._thread.start()

    def commit(self) -> None:
        """Have this thread commit what waits; the caller has taken the committer's place for it."""
        self._commits = True
        self._stirred.set()

    def stir(self) -> None:
        """Have this thread look now."""
        self._stirred.set()

    def stop(self) -> None:
        """End it."""
        self._stops = True
        self._stirred.set()
        if self._thread is not None:
            self._thread.join()

    def hurry(self) -> None:
        """Return when a commit that is aside has ended: its loop may be held up, even by who waits for us."""
        aside, pause = self._journal.aside, _HURRY_SECONDS
        while aside is not None and self._journal.aside is aside:
            aside.collect()
            time.sleep(pause)
            pause = min(2 * pause, _HURRY_SECONDS_MAX)

    def turn(self) -> float:
        """Do what is to be done now; returns the seconds until there may be more."""
        self.hurry()
        while self._commits:
            self._commits = False
            self._journal.commit()
        wait = self._journal.due_seconds()
        if wait <= 0 and self._journal.broken is None:
            self._journal.enqueue(Ticket(seals=True, done=_nobody))
            self._journal.send()
            return 0.0
        with suppress(OSError):  # no processes left to begin, or such: it is tried again
            self.tend()
        return min(max(wait, 0.0), 1.0)

    def _keep(self) -> None:
        while not self._stops:
            self._stirred.wait(self.turn())
            self._stirred.clear()


def _nobody(tickets: list[Ticket]) -> None:
    """Nobody waits for these."""
