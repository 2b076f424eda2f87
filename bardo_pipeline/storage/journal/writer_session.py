"""Desk: what all writers of one process and journal share: the journal, the log, and who drains meanwhile."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Literal, Self

from bardo_pipeline.errors import JournalError, LeaseError
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.journal.drainer import Drainer, DrainProcess, DrainReport, DrainThread
from bardo_pipeline.storage.journal.journal import Journal
from bardo_pipeline.storage.journal.segment_files import Torn
from bardo_pipeline.storage.log.configuration_events import operated
from bardo_pipeline.storage.log.event_log import EventLog

Drain = Literal["process", "thread", "none"]

_open: dict[tuple[Path, str], Desk] = {}
_opening = threading.RLock()


class Desk:
    """Made by `enter`, which counts who is at it; the last to leave closes it.

    is_forked: whether this is a copy in a child process: the desk, its journal and its leases are the parent's.
    """

    def __init__(
        self,
        home: Home,
        writer: str,
        policy: Policy | None,
        drain: Drain,
        clock: Callable[[], datetime],
        monotonic: Callable[[], float],
    ) -> None:
        self.clock, self._home = clock, home
        self.is_forked = False
        self._key, self._count = (home.root.resolve(), writer), 0
        self.log = EventLog(home, policy)
        policy = policy or operated(Policy(), self.log.life("ConfigurationAdopted"))
        self.journal, left = Journal.open(
            home,
            writer,
            policy=policy.writer,
            clock=clock,
            monotonic=monotonic,
            last_segment=lambda: self.log.last_segment(writer),
        )
        self._drainer = Drainer(home, self.log, clock=clock, policy=policy)
        try:
            self.recovered = self._take_over(left)
        except BaseException:
            self.journal.close()
            raise
        self._beside: DrainProcess | DrainThread | None = None
        if drain == "process":
            self._beside = DrainProcess(home, policy)
        elif drain == "thread":
            self._beside = DrainThread(Drainer(home, self.log, clock=clock, policy=policy))
        if self._beside is not None:
            self._beside.tend()
            self.journal.keeper.tend = self._beside.tend
        self.journal.keeper.start()

    def _take_over(self, left: Torn | None) -> DrainReport | None:
        """Drain what dead writers left, in this journal or in others; None where there is nothing."""
        if left is None and not self._drainer.is_left():  # a power cut takes leases away: they do not tell
            return None
        report = self._drainer.once()
        if left is not None:
            report.torn += left.bytes
            self._drainer.clear_leases(self.journal.writer)
        return report

    @classmethod
    def enter(
        cls,
        home: Home,
        writer: str,
        policy: Policy | None,
        drain: Drain,
        clock: Callable[[], datetime],
        monotonic: Callable[[], float],
    ) -> Self:
        """The desk of this journal; the first one at it decides how it is."""
        with _opening:
            desk = _open.get(key := (home.root.resolve(), writer))
            if desk is None:
                desk = _open[key] = cls(home, writer, policy, drain, clock, monotonic)
            desk._count += 1
        try:
            desk.mend()
        except BaseException:
            desk.leave()
            raise
        return desk  # type: ignore[return-value]

    def leave(self) -> None:
        """The last one lets go of everything."""
        with _opening:
            self._count -= 1
            if self._count:
                return
            del _open[self._key]
            if self._beside is not None:
                self._beside.stop()
            self.journal.close()
            self.log.close()

    def recover(self, holder: str) -> DrainReport:
        """Drain what the last holder of a lease left. Raises LeaseError while that one still may hold a part of it."""
        self.journal.seal()
        report = self._drainer.once()
        if holder != self.journal.writer and (self._home.journal / holder).exists():
            raise LeaseError(
                f"writer {holder} let go of this golem and could not drain what it had acknowledged: end its process"
            )
        return report

    def drain(self, *, leaving: bool = False) -> None:
        """Bring everything that was accepted here to the log. Raises JournalError where a piece of it is broken.

        leaving: whoever asks will leave next.
        """
        self.journal.seal()
        report = self._drainer.once(spares=not leaving or self._count > 1)
        for writer, error in report.faults:
            if writer == self.journal.writer:
                raise error

    def mend(self) -> None:
        """Go on after a failure of the disk. Raises JournalError while it lasts."""
        try:
            self.journal.mend()
        except OSError as error:
            raise JournalError(f"{self.journal.folder} cannot be written ({error}): see to the disk first") from error


def _forget() -> None:
    """A forked child has no desk: what it inherits is its parent's."""
    for desk in _open.values():
        desk.is_forked = True
    _open.clear()
    _opening.release()


os.register_at_fork(before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_forget)
