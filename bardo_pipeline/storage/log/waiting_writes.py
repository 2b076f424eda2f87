"""Writes of threads that wait for one another: the first writes for all that wait, in one commit.

A thread that finds no running commit commits its write at once. Writes that arrive meanwhile wait, and the first of
their threads commits them together, so many callers pay for one commit.
Source: architecture ("Writing"); ADR 0084.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from threading import Lock
from weakref import WeakValueDictionary

from bardo_pipeline.errors import StoreError
from bardo_pipeline.events.custody.authority import Door, Proof
from bardo_pipeline.events.life.events import LifeEvent


@dataclass
class Write:
    """Life events that one caller records, and the outcome: the new events, or an error."""

    events: Sequence[LifeEvent]
    recorded_at: datetime
    leased_golems: frozenset[str]
    door: Door
    proofs: Mapping[str, Proof]
    fresh: list[LifeEvent] = field(default_factory=list)
    error: Exception | None = None
    is_done: bool = False

    def outcome(self) -> int:
        """Return the number of new events. Raises the error of the write."""
        if self.error is not None:
            raise self.error
        return len(self.fresh)


class WaitingWrites:
    """The writes of a process that wait for one table.

    event_ids, ids_seen: ids of the recorded events up to a version, for the thread that commits.
    """

    def __init__(self) -> None:
        self.event_ids: set[str] = set()
        self.ids_seen = -1
        self._mutex, self._committing = Lock(), Lock()
        self._waiting: list[Write] = []

    @property
    def count(self) -> int:
        """Number of writes that wait."""
        return len(self._waiting)

    def commit(self, write: Write, commit_all: Callable[[Sequence[Write]], None], *, alone: bool) -> int:
        """Commit a write, with all that wait or by the thread of another one; return the number of new events.

        Parameters
        ----------
        commit_all : commits writes together, and sets the error of each that is refused
        alone : commit no other write with it
        """
        if alone:
            with self._committing:
                _finish([write], commit_all)
            return write.outcome()
        with self._mutex:
            self._waiting.append(write)
        with self._committing:
            if not write.is_done:
                with self._mutex:
                    writes, self._waiting = self._waiting, []
                _finish(writes, commit_all)
        return write.outcome()


def _finish(writes: Sequence[Write], commit_all: Callable[[Sequence[Write]], None]) -> None:
    """Commit writes; an error of the commit is the error of each write that has none of its own."""
    failure: Exception | None = StoreError("the commit was interrupted: record the events again")
    try:
        commit_all(writes)
        failure = None
    except Exception as error:
        failure = error
    finally:
        for write in writes:
            write.error, write.is_done = write.error or failure, True


_by_table: WeakValueDictionary[tuple[object, ...], WaitingWrites] = WeakValueDictionary()


def waiting_writes(table: Path, table_id: str, *, durable: bool) -> WaitingWrites:
    """Return the writes of this process that wait for a table, shared by all handles of the same durability.

    A restored table has another folder, and so other writes.
    """
    return _by_table.setdefault((str(table.resolve()), table.stat().st_ino, table_id, durable), WaitingWrites())


# A forked child has none of the threads that hold the locks.
os.register_at_fork(after_in_child=_by_table.clear)
