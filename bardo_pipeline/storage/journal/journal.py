"""The journal of a process: where records become durable before they are acknowledged.

`frames.py` describes the bytes. One committer thread (`group_commit.py`) does all writing: it appends the queued frames
to the open segment, calls fdatasync once for all of them, and seals the segment when it is full or old. The drainer
takes sealed segments to the log.
A failed write or fsync breaks the journal, because a second fsync would report success for data that the kernel has
dropped. Every later append fails until `mend`.
Source: architecture ("Many journals, one drainer a home"); EV-3.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from bardo_pipeline.errors import BackpressureError, JournalError
from bardo_pipeline.policy import WriterPolicy
from bardo_pipeline.storage import locks
from bardo_pipeline.storage.home import Home, sync_folder
from bardo_pipeline.storage.journal.frames import HEADER_BYTES, Draft, segment_header, segment_numbers, segment_path
from bardo_pipeline.storage.journal.group_commit import GroupCommit, Outcome
from bardo_pipeline.storage.journal.segment_files import (
    DRAFT_SUFFIX,
    Backlog,
    checked_name,
    cut_tail,
    locked_journal,
    remove_journal,
    remove_unused_segments,
    write_limits,
)

_CROWDED_SHARE = 0.5
_WATCHDOG_SECONDS = 1.0
ROOM_SECONDS = 0.005
"""Interval at which a caller checks a full journal for room, and the longest pause before the journal is full."""


class Journal:
    """The journal of one process. Made by `Journal.open`.

    broken: the error of the failed write or fsync; None while the journal works. mended: number of repairs; a writer
    opened before the last one must be opened again. watchdog: called about once a second on the committer thread.
    """

    def __init__(
        self,
        folder: Path,
        lock: locks.Handle,
        *,
        first_number: int,
        policy: WriterPolicy,
        clock: Callable[[], datetime],
        monotonic: Callable[[], float],
    ) -> None:
        self.folder, self.policy = folder, policy
        self.writer = folder.name
        self.broken: JournalError | None = None
        self.mended = 0
        self.watchdog: Callable[[], None] = lambda: None
        self._watchdog_at = 0.0
        self._lock, self._clock, self._monotonic = lock, clock, monotonic
        self._sealed = Backlog()
        self._handle: int | None = None
        self._number, self._next_number = first_number - 1, first_number
        self._size = self._records = 0
        self._first_at = 0.0
        self._committer = GroupCommit(f"journal-{self.writer}", self._commit, self._pause_seconds)

    @classmethod
    def open(
        cls,
        home: Home,
        writer: str,
        *,
        policy: WriterPolicy,
        clock: Callable[[], datetime],
        monotonic: Callable[[], float] = time.monotonic,
        last_segment: Callable[[], int],
    ) -> tuple[Journal, int | None]:
        """Lock the journal of this name and start its committer; segments of a dead process count as sealed.

        Parameters
        ----------
        clock : returns the UTC time at which a record is accepted
        monotonic : returns the seconds that a segment's age is measured by
        last_segment : called under the lock; returns the highest segment number in the log

        Returns the journal, and the torn bytes of its newest segment (None where the folder held no segment).
        Raises LeaseError when another process has the journal, ConfigError for a name that no file can have.
        """
        folder = home.journal / checked_name(writer)
        lock = locked_journal(home, folder)
        try:
            write_limits(lock, policy)
            remove_unused_segments(folder)
            numbers = segment_numbers(folder)
            torn = cut_tail(segment_path(folder, numbers[-1])) if numbers else None
            first_number = max([last_segment(), *numbers]) + 1
            journal = cls(folder, lock, first_number=first_number, policy=policy, clock=clock, monotonic=monotonic)
            for number in numbers:
                path = segment_path(folder, number)
                journal._number, journal._size = number, path.stat().st_size
                journal._sealed.add(path, journal._size)
            if numbers:
                journal._roll()  # a segment is sealed when the next number exists
            journal._committer.start()
        except BaseException:
            locks.release(lock)
            raise
        return journal, torn

    # for callers, on any thread

    def enqueue(self, draft: Draft | None, outcome: Outcome | asyncio.Future[None]) -> None:
        """Queue a frame; the outcome is set when it, and all queued before it, are durable or have failed.

        The order of calls is the order in the segment. Without a frame, only the frames queued before count.
        """
        self._committer.enqueue(draft, outcome)

    def append(self, draft: Draft | None) -> None:
        """Queue a frame and wait until it is durable. Raises JournalError where it may not be."""
        outcome = Outcome()
        self.enqueue(draft, outcome)
        outcome.wait()

    def seal(self) -> None:
        """Seal the open segment if it holds a record. Raises JournalError where the journal is broken."""
        self._committer.call(self._seal)

    def backlog(self) -> int:
        """Return the number of sealed segments that the drainer has not taken yet."""
        return self._sealed.look()

    @property
    def undrained_bytes(self) -> int:
        """Acknowledged bytes that were not drained at the last look."""
        return self._sealed.bytes + self._size

    def pause_seconds(self, timeout: float | None = None) -> float:
        """Return for how long an append with this timeout should pause, so that callers rarely meet a full journal.

        0 while less than half of the journal is used, then growing to ROOM_SECONDS as it fills.
        """
        full, crowded = self.policy.journal_bytes_max, int(_CROWDED_SHARE * self.policy.journal_bytes_max)
        if self.undrained_bytes <= crowded or not self.backlog():
            return 0.0
        pause = ROOM_SECONDS * max(self.undrained_bytes - crowded, 0) / (full - crowded)
        return pause if timeout is None else min(pause, max(timeout, 0.0))

    def make_room(self, size: int, *, wait: bool, timeout: float | None) -> None:
        """Return when a frame of this size fits. Raises BackpressureError after the timeout in seconds."""
        deadline = None if timeout is None else self._monotonic() + timeout
        while self.undrained_bytes + size > self.policy.journal_bytes_max:
            if self.broken is not None:
                raise JournalError(*self.broken.args)
            if not self.backlog() and self._records:
                self.seal()
            elif self.undrained_bytes + size <= self.policy.journal_bytes_max or not self.backlog():
                return  # an empty journal takes a record that is larger than the bound
            elif not wait or (deadline is not None and self._monotonic() >= deadline):
                raise BackpressureError(
                    f"{self.folder} holds {self.undrained_bytes:,} bytes that wait for the drainer, and "
                    f"journal_bytes_max is {self.policy.journal_bytes_max:,}: wait, or see whether `bardo drain` runs"
                )
            else:
                time.sleep(ROOM_SECONDS)

    def mend(self) -> None:
        """Repair a broken journal: cut off unacknowledged bytes and begin a new segment.

        Writers that were open must be opened again. Raises OSError while the disk still fails.
        """
        if self.broken is not None:
            self._committer.call(self._mend)

    def close(self) -> None:
        """Stop the committer and unlock; remove the folder if every record was drained."""
        self._committer.stop()
        self._close_segment()
        if not self._records and not self.backlog():
            remove_journal(self.folder)
        locks.release(self._lock)

    # on the committer thread

    def _commit(self, drafts: Sequence[Draft]) -> JournalError | None:
        """Make frames durable, then seal the segment if it is full or old. Returns the callers' error.

        A segment that cannot be sealed breaks the journal, but these frames are durable.
        """
        if drafts and self.broken is None:
            self._try(lambda: self._store(drafts))
        error = self.broken
        if error is None:
            self._try(self._roll_if_due)
        return error

    def _roll_if_due(self) -> None:
        if self._is_due():
            self._roll()

    def _try(self, action: Callable[[], None]) -> None:
        """Run an action that writes; a failure breaks the journal."""
        try:
            action()
        except OSError as error:
            self._break(f"{self.folder}: a record could not be made durable ({error})")
        except BaseException as error:
            self._break(f"{self.folder}: writing was interrupted ({error!r})")

    def _break(self, why: str) -> None:
        self.broken = JournalError(f"{why}: see to the disk, close every writer of this process, and open them again")

    def _store(self, drafts: Sequence[Draft]) -> None:
        if self._handle is None:
            self._begin()
        assert self._handle is not None
        size = self._write(self._handle, drafts)
        os.fdatasync(self._handle)
        if not self._records:
            self._first_at = self._monotonic()
        self._size, self._records = self._size + size, self._records + len(drafts)

    def _write(self, handle: int, drafts: Sequence[Draft]) -> int:
        """Write frames behind the durable ones. Returns their size in bytes."""
        buffers: list[bytes] = []
        size = 0
        accepted_at = int(self._clock().timestamp() * 1e6)
        for draft in drafts:
            buffers += (draft.head(self._number, self._size, accepted_at), draft.payload)
            size += draft.size
        written = os.pwritev(handle, buffers, self._size)
        if written < size:
            joined = memoryview(b"".join(buffers))
            while written < size:
                written += os.pwrite(handle, joined[written:], self._size + written)
        return size

    def _is_due(self) -> bool:
        """Whether the segment is to be sealed: it is old, or it has a full batch that the drainer is ready for."""
        if not self._records:
            return False
        if self._age_left_seconds() <= 0:
            return True
        if self._records < self.policy.batch_records:
            return False
        return self._size >= self.policy.segment_bytes_max or not self.backlog()

    def _age_left_seconds(self) -> float:
        return self._first_at + self.policy.flush_seconds - self._monotonic()

    def _pause_seconds(self) -> float:
        """Call the watchdog if a second has passed; return the seconds until the next look at the segment's age."""
        now = time.monotonic()
        if now >= self._watchdog_at:
            self._watchdog_at = now + _WATCHDOG_SECONDS
            with suppress(OSError, RuntimeError):  # no process or thread could be started: the next call tries again
                self.watchdog()
        if not self._records or self.broken is not None:
            return _WATCHDOG_SECONDS
        return min(max(self._age_left_seconds(), 0.0), _WATCHDOG_SECONDS)

    def _seal(self) -> None:
        if self.broken is None and self._records:
            self._try(self._roll)
        if self.broken is not None:
            raise JournalError(*self.broken.args)

    def _mend(self) -> None:
        if self._handle is not None:
            os.ftruncate(self._handle, self._size)
            os.fsync(self._handle)
        self._roll()
        self.broken, self.mended = None, self.mended + 1

    def _roll(self) -> None:
        """Seal the open segment by beginning the next one."""
        handle, number, size, records = self._handle, self._number, self._size, self._records
        self._begin()
        if handle is not None:
            if records:
                self._sealed.add(segment_path(self.folder, number), size)
            os.close(handle)

    def _begin(self) -> None:
        """Begin a segment; its header is durable before it has its name, and its name before a record in it counts."""
        number = self._next_number
        self._next_number += 1  # a number whose file may have reached the disk is used once
        path = segment_path(self.folder, number)
        draft = path.with_suffix(DRAFT_SUFFIX)
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(handle, segment_header(number, number - self._number, self._size), 0)
            os.fdatasync(handle)
            os.rename(draft, path)
            sync_folder(self.folder)
        except BaseException:
            os.close(handle)
            for created in (draft, path):
                with suppress(OSError):
                    created.unlink()
            raise
        self._number, self._handle = number, handle
        self._size, self._records = HEADER_BYTES, 0

    def _close_segment(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
