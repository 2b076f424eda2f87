"""WriterSession: the journal, the log and the drainer that all writers of one process and journal share.

Source: architecture ("Many journals, one drainer a home"); EV-3.
"""

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
from bardo_pipeline.storage.log.configuration_events import with_recorded_operations
from bardo_pipeline.storage.log.event_log import EventLog

DrainMode = Literal["process", "thread", "none"]

_open: dict[tuple[Path, str], WriterSession] = {}
_opening = threading.RLock()


class WriterSession:
    """Opened by the first writer that calls `join`, closed when the last one leaves.

    is_forked: whether this is a copy in a forked child; journal and leases then belong to the parent.
    """

    def __init__(
        self,
        home: Home,
        writer: str,
        policy: Policy | None,
        drain: DrainMode,
        clock: Callable[[], datetime],
        monotonic: Callable[[], float],
    ) -> None:
        self.clock, self._home = clock, home
        self.is_forked = False
        self._key, self._writer_count = (home.root.resolve(), writer), 0
        self.log = EventLog(home, policy)
        policy = policy or with_recorded_operations(Policy(), self.log.life("ConfigurationAdopted"))
        self.journal, torn = Journal.open(
            home,
            writer,
            policy=policy.writer,
            clock=clock,
            monotonic=monotonic,
            last_segment=lambda: self.log.last_segment(writer),
        )
        self._drainer = Drainer(home, self.log, clock=clock, policy=policy)
        try:
            self.recovered = self._drain_dead_writers(torn)
        except BaseException:
            self.journal.close()
            raise
        self._background: DrainProcess | DrainThread | None = None
        if drain == "process":
            self._background = DrainProcess(home, policy)
        elif drain == "thread":
            self._background = DrainThread(Drainer(home, self.log, clock=clock, policy=policy))
        if self._background is not None:
            self._background.ensure_running()
            self.journal.watchdog = self._background.ensure_running

    def _drain_dead_writers(self, torn: int | None) -> DrainReport | None:
        """Drain what dead writers left in any journal; None where they left nothing."""
        # The journals are the evidence, because a power cut may have removed the leases.
        if torn is None and not self._drainer.has_dead_journal():
            return None
        report = self._drainer.once()
        if torn is not None:
            report.torn += torn
            self._drainer.clear_leases(self.journal.writer)
        return report

    @classmethod
    def join(
        cls,
        home: Home,
        writer: str,
        policy: Policy | None,
        drain: DrainMode,
        clock: Callable[[], datetime],
        monotonic: Callable[[], float],
    ) -> Self:
        """Return the session of this journal; the arguments of the first writer apply to all."""
        with _opening:
            session = _open.get(key := (home.root.resolve(), writer))
            if session is None:
                session = _open[key] = cls(home, writer, policy, drain, clock, monotonic)
            session._writer_count += 1
        try:
            session.mend()
        except BaseException:
            session.leave()
            raise
        return session  # type: ignore[return-value]

    def leave(self) -> None:
        """Leave the session; the last writer closes drainer, journal and log."""
        with _opening:
            self._writer_count -= 1
            if self._writer_count:
                return
            del _open[self._key]
            if self._background is not None:
                self._background.stop()
            self.journal.close()
            self.log.close()

    def recover(self, holder: str) -> DrainReport:
        """Drain what the last holder of a lease left.

        Raises LeaseError while the holder's process still has a journal, which may hold records of the golem.
        """
        self.journal.seal()
        report = self._drainer.once()
        if holder != self.journal.writer and (self._home.journal / holder).exists():
            raise LeaseError(
                f"writer {holder} released this golem without draining its acknowledged records: end its process"
            )
        return report

    def drain(self) -> None:
        """Bring every accepted record to the log. Raises JournalError where a frame of this journal is damaged."""
        self.journal.seal()
        report = self._drainer.once()
        for writer, error in report.faults:
            if writer == self.journal.writer:
                raise error

    def mend(self) -> None:
        """Repair the journal after a disk failure. Raises JournalError while the disk still fails."""
        try:
            self.journal.mend()
        except OSError as error:
            raise JournalError(f"{self.journal.folder} cannot be written ({error}): see to the disk first") from error


def _forget_sessions() -> None:
    """Mark the sessions of the parent as foreign in a forked child."""
    for session in _open.values():
        session.is_forked = True
    _open.clear()
    _opening.release()


os.register_at_fork(before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_forget_sessions)
