"""Journal: where a writer's records are acknowledged. One a process and home; many waiting appends share one fsync.

The bytes are described in frames.py. Whoever finds nobody at work commits what waits: it writes the frames, makes them
durable, and wakes the first of those it committed, who wakes the next, so that at any time one or two threads want the
interpreter. The last one passes the committer's place on: what the others appended meanwhile shares the next fsync.
Without callers' threads (asyncio) their event loop commits and has the kernel sync meanwhile (io_uring_sync.py), or
else the keeper's thread does.
Source: architecture ("Many journals, one drainer a home"); EV-3.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path

from bardo_pipeline.errors import BackpressureError, JournalError
from bardo_pipeline.policy import WriterPolicy
from bardo_pipeline.storage import locks
from bardo_pipeline.storage.home import Home, sync_folder
from bardo_pipeline.storage.journal.background_committer import Keeper
from bardo_pipeline.storage.journal.commit_tickets import Aside, Done, Ticket, release, wait_for, wake
from bardo_pipeline.storage.journal.frames import HEADER_BYTES, Draft, segment_header, segment_numbers, segment_path
from bardo_pipeline.storage.journal.segment_files import (
    Backlog,
    Torn,
    checked_name,
    cut_tail,
    locked_journal,
    note_limits,
    remove_journal,
)
from bardo_pipeline.storage.journal.segment_recycling import take_spare

_GROUP_FRAMES_MAX = 256  # two buffers a frame: far below what one writev takes
_GROUP_BYTES_MAX = 8 * 2**20
_CROWDED = 0.5
ROOM_SECONDS = 0.005
"""How often a caller that waits for room looks; the longest that one is held up before the journal is full."""

_own = threading.local()


class Journal:
    """The journal of one process. Made by `Journal.open`.

    first: the lowest number that a new segment may have. clock: now, in UTC, for when a record was accepted.
    monotonic: seconds that never step back, for ages.
    """

    def __init__(
        self,
        folder: Path,
        lock: locks.Handle,
        *,
        first: int,
        policy: WriterPolicy,
        clock: Callable[[], datetime],
        monotonic: Callable[[], float],
    ) -> None:
        self.folder, self.policy = folder, policy
        self.writer = folder.name
        self.crowded_bytes = int(_CROWDED * policy.journal_bytes_max)
        self.broken: JournalError | None = None
        self.aside: Aside | None = None
        self.mended = 0
        self._lock, self._clock, self._monotonic = lock, clock, monotonic
        self._queue: deque[Ticket] = deque()
        self._committing = threading.Lock()
        self._sealed = Backlog()
        self._handle: int | None = None
        self._number, self._upcoming = first - 1, first
        self._synced = self._records = self._room = 0
        self._first_at = 0.0
        self.keeper = Keeper(self)

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
    ) -> tuple[Journal, Torn | None]:
        """The journal of this name, which no other process may have; what a dead one left in it counts as sealed.

        last_segment: asked under the lock for the highest number that is on record.
        Returns also what the dead one left at the end of it; None where there was nothing left of anybody.
        Raises LeaseError when another process has it, ConfigError for a name that is no file's.
        """
        folder = home.journal / checked_name(writer)
        lock = locked_journal(home, folder)
        try:
            note_limits(lock, policy)
            numbers = segment_numbers(folder)
            left = cut_tail(segment_path(folder, numbers[-1])) if numbers else None
            first = max([last_segment(), *numbers]) + 1
            journal = cls(folder, lock, first=first, policy=policy, clock=clock, monotonic=monotonic)
            for number in numbers:
                path = segment_path(folder, number)
                journal._sealed.add(path, path.stat().st_size)
            if numbers:
                journal._roll()  # the next number is what seals them
        except BaseException:
            locks.let_go(lock)
            raise
        return journal, left

    # appending

    def enqueue(self, ticket: Ticket) -> None:
        """Give a ticket its place in the order; `finish` or `send` must follow."""
        if ticket.done is None:
            if self.keeper.is_at_work and threading.get_ident() == threading.main_thread().ident:
                # Signals interrupt the main thread, and others depend on whoever commits or wakes the next.
                ticket.waits, ticket.done = threading.Lock(), release
                ticket.waits.acquire()
                self._queue.append(ticket)
                return
            try:
                ticket.waits = _own.lock
            except AttributeError:
                ticket.waits = _own.lock = threading.Lock()
                ticket.waits.acquire()
        self._queue.append(ticket)

    def finish(self, ticket: Ticket) -> None:
        """Return when what the ticket stands for is durable, by the thread that enqueued it.

        Raises JournalError when it could not be written, or may not have been.
        """
        if ticket.done is not None:
            assert ticket.waits is not None
            self.send()
            ticket.waits.acquire()
        elif not self._committing.acquire(False):
            if self.aside is not None:  # its loop may be held up, even by this thread
                self.keeper.stir()
            self._wait(ticket)
        elif ticket.taken:  # somebody was faster; he has woken us, or will
            self.commit()
            self._wait(ticket)
        elif not self.commit(ticket):  # more was before it than one commit takes
            self._wait(ticket)
        if ticket.error is not None:
            raise JournalError(*ticket.error.args)

    def _wait(self, ticket: Ticket) -> None:
        """Wait until woken, and then do what that was for."""
        wait_for(ticket)
        if ticket.chosen:
            self.commit(ticket)
        elif ticket.last:
            self._pass_on()

    def send(self) -> None:
        """See to it that what was enqueued with a `done` is committed; that is called then, on another thread."""
        if self._committing.acquire(False):
            self.keeper.commit()
        elif self.aside is not None:
            self.keeper.stir()

    def put(self, ticket: Ticket) -> None:
        """Enqueue and finish."""
        self.enqueue(ticket)
        self.finish(ticket)

    def commit(self, own: Ticket | None = None) -> bool:
        """Commit what waits, and see to it that somebody commits what came meanwhile.

        For whoever has the committer's place; own: the ticket that this thread waits for. Returns whether that was
        among what was committed.
        """
        group, drafts = self._take(sealing=True)
        is_mine = own is None or own.taken
        seals = bool(group) and group[-1].seals
        interrupt = self._trying(partial(self._store, drafts)) if self.broken is None else None
        if seals:  # whoever wants it sealed looks for it at once
            interrupt = self._rolled() or interrupt
        chain = self._told(group, own)
        if not seals and self._is_due():
            wake(chain)
            chain = []
            interrupt = self._rolled() or interrupt
        self._leave(chain)
        if interrupt is not None and own is not None:
            raise interrupt
        return is_mine

    def _told(self, group: Sequence[Ticket], own: Ticket | None = None) -> list[Ticket]:
        """Tell what became of a commit; returns whom to wake."""
        chain: list[Ticket] = []
        told: dict[Done, list[Ticket]] = {}
        for ticket in group:
            ticket.error = self.broken
            if ticket.done is not None:
                told.setdefault(ticket.done, []).append(ticket)
            elif ticket is not own:
                chain.append(ticket)
        for done, tickets in told.items():
            done(tickets)
        return chain

    def _leave(self, chain: list[Ticket]) -> None:
        """Wake these, and leave the committer's place to the last of them, or to whoever waits."""
        if chain:
            chain[-1].last = True
            wake(chain)
        else:
            self._pass_on()

    def _pass_on(self) -> None:
        """Have what waits committed by the first that waits, by its loops or by the keeper; by nobody if none does."""
        while (following := self._next()) is not None:
            if following.done is None:
                following.chosen = True
                wake([following])
                return
            loops = self._loops()
            if None in loops:  # nobody else may have to wait for a loop
                self.keeper.commit()
                return
            self._committing.release()
            for commits in loops:
                assert commits is not None
                commits()
            if None not in self._loops() or not self._committing.acquire(False):
                return

    def _loops(self) -> set[Callable[[], None] | None]:
        """How the loops commit whose tickets wait; None among them where others do."""
        return {ticket.commits for ticket in tuple(self._queue)}

    def _next(self) -> Ticket | None:
        """The ticket whose thread commits next; None when nothing waits, and then nobody is committing."""
        if self._queue:
            return self._queue[0]
        self._committing.release()
        # Whoever came between the look and the release went to sleep, trusting us.
        return self._queue[0] if self._queue and self._committing.acquire(False) else None

    def _take(self, *, sealing: bool) -> tuple[list[Ticket], list[Draft]]:
        """What waits, as much as is committed at once: up to what seals, and that too if we are sealing."""
        group: list[Ticket] = []
        drafts: list[Draft] = []
        size = 0
        queue = self._queue
        while queue and len(group) < _GROUP_FRAMES_MAX and size < _GROUP_BYTES_MAX:
            if queue[0].seals and not sealing:
                break
            ticket = queue.popleft()
            ticket.taken = True
            group.append(ticket)
            if ticket.draft is not None:
                drafts.append(ticket.draft)
                size += ticket.draft.size
            if ticket.seals:
                break
        return group, drafts

    # a commit that nobody waits for

    @property
    def waiting(self) -> int:
        """How many tickets wait for a commit."""
        return len(self._queue)

    def begin_aside(self, aside: Aside) -> None:
        """Write what waits, and have `aside` see to it that it is synced; `end_aside` follows, on any thread.

        Nothing is begun where somebody else commits, or where the keeper has to.
        """
        if not self._committing.acquire(False):
            return
        try:
            self.aside = aside
            if self._handle is None or self.broken is not None or not self._queue or self._queue[0].seals:
                self.aside = None
                self.keeper.commit()
                return
            aside.tickets, drafts = self._take(sealing=False)
            aside.records = self._records + len(drafts)
            interrupt = self._trying(partial(self._store_aside, aside, drafts))
        except BaseException as error:  # a signal's
            self._interrupted(error)
            interrupt = error
        if self.broken is not None:
            self.end_aside(aside)
        if interrupt is not None:
            raise interrupt

    def _store_aside(self, aside: Aside, drafts: Sequence[Draft]) -> None:
        assert self._handle is not None
        aside.synced = self._synced + self._write(drafts)
        aside.sync(self._handle)

    def end_aside(self, aside: Aside, error: OSError | None = None) -> None:
        """What `begin_aside` wrote is durable, or could not be made so.

        A second call goes on where the first was interrupted, and is nothing otherwise.
        """
        if not aside.ending.acquire(False):
            return
        try:
            if self.aside is not aside:
                return
            if error is not None:
                self._break(f"{self.folder}: a record could not be made durable ({error})")
            elif self.broken is None:
                self._written(aside.synced, aside.records)
            chain = self._told(aside.tickets)
            self.aside = None
            if self.broken is None and self._is_due():
                wake(chain)
                self.keeper.commit()  # sealing takes a while
            else:
                self._leave(chain)
        finally:
            aside.ending.release()

    def _rolled(self) -> BaseException | None:
        """Seal the segment at hand, if there is a record in it. If that fails, the next append learns it."""
        return self._trying(self._roll) if self._records and self.broken is None else None

    def _trying(self, act: Callable[[], None]) -> BaseException | None:
        try:
            act()
        except OSError as error:
            self._break(f"{self.folder}: a record could not be made durable ({error})")
        except BaseException as error:
            self._interrupted(error)
            return error
        return None

    def _interrupted(self, error: BaseException) -> None:
        self._break(f"{self.folder}: writing was interrupted ({error!r})")

    def _break(self, why: str) -> None:
        # What a failed fsync left behind is unknown, and a second one would report success (fsyncgate).
        self.broken = JournalError(f"{why}: see to the disk, close every writer of this process, and open them again")

    def _store(self, drafts: Sequence[Draft]) -> None:
        if not drafts:
            return
        if self._handle is None:
            self._begin()
        assert self._handle is not None
        size = self._write(drafts)
        os.fdatasync(self._handle)
        self._written(self._synced + size, self._records + len(drafts))

    def _write(self, drafts: Sequence[Draft]) -> int:
        """Write frames behind what is synced; returns their size in bytes."""
        assert self._handle is not None
        buffers: list[bytes] = []
        size = 0
        accepted_at = int(self._clock().timestamp() * 1e6)
        for draft in drafts:
            buffers += (draft.head(self._number, self._synced, accepted_at), draft.payload)
            size += draft.size
        written = os.pwritev(self._handle, buffers, self._synced)
        if written < size:
            whole = memoryview(b"".join(buffers))
            while written < size:
                written += os.pwrite(self._handle, whole[written:], self._synced + written)
        return size

    def _written(self, synced: int, records: int) -> None:
        """So many bytes and records of the segment at hand are durable now."""
        if not self._records:
            self._first_at = self._monotonic()
        self._synced, self._records = synced, records

    # segments

    def _begin(self) -> None:
        """A new segment, its name on the disk before anything in it is acknowledged."""
        number = self._upcoming
        self._upcoming += 1  # never that name again, whatever of it comes on the disk
        path = segment_path(self.folder, number)
        handle = take_spare(self.folder, path)
        if handle is None:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            room = os.fstat(handle).st_size
            os.pwrite(handle, segment_header(number), 0)  # durable with the first frame, and of no use before
            sync_folder(self.folder)
        except BaseException:
            os.close(handle)
            with suppress(OSError):
                path.unlink()
            raise
        self._number, self._handle, self._room = number, handle, room
        self._synced, self._records = HEADER_BYTES, 0

    def _roll(self) -> None:
        """Seal the segment at hand by beginning the next one."""
        handle, number, size, records = self._handle, self._number, self._synced, self._records
        if handle is not None and size < self._room:
            self._cut(handle)
        self._begin()
        if handle is not None:
            if records:
                self._sealed.add(segment_path(self.folder, number), size)
            os.close(handle)

    def _cut(self, handle: int) -> None:
        """End the segment at hand with what was acknowledged."""
        os.ftruncate(handle, self._synced)
        os.fsync(handle)
        self._room = self._synced

    def _is_due(self) -> bool:
        if self._records < self.policy.batch_records:
            return False
        return self._synced >= self.policy.segment_bytes_max or not self.backlog()

    def backlog(self) -> int:
        """How many sealed segments the drainer has not taken yet."""
        return self._sealed.look()

    @property
    def undrained_bytes(self) -> int:
        """Bytes that were acknowledged and, as far as was last seen, not drained."""
        return self._sealed.bytes + self._synced

    def seal(self) -> None:
        """Seal the segment at hand, if there is a record in it."""
        self.put(Ticket(seals=True))

    def due_seconds(self) -> float:
        """The seconds until the segment at hand is old enough to be sealed; 0 or less: it is."""
        left = self._first_at + self.policy.flush_seconds - self._monotonic()
        return left if self._records else self.policy.flush_seconds

    def pause_seconds(self) -> float:
        """How long an append that may wait should: callers that are held up a little never meet a full journal.

        Nothing while it is less than half full, then more the fuller it is.
        """
        crowded = self.crowded_bytes
        if self.undrained_bytes <= crowded or not self.backlog():
            return 0.0
        return ROOM_SECONDS * max(self.undrained_bytes - crowded, 0) / (self.policy.journal_bytes_max - crowded)

    def make_room(self, size: int, *, wait: bool, timeout: float | None) -> None:
        """Return once a frame of this size fits. Raises BackpressureError where that takes longer than one waits."""
        until = None if timeout is None else self._monotonic() + timeout
        while self.undrained_bytes + size > self.policy.journal_bytes_max:
            if self.broken is not None:
                raise JournalError(*self.broken.args)
            if not self.backlog() and self._records:
                self.seal()
            elif self.undrained_bytes + size <= self.policy.journal_bytes_max or not self.backlog():
                return  # a record that alone is larger than the bound is taken when nothing else waits
            elif not wait or (until is not None and self._monotonic() >= until):
                raise BackpressureError(
                    f"{self.folder} holds {self.undrained_bytes:,} bytes that wait for the drainer, and "
                    f"journal_bytes_max is {self.policy.journal_bytes_max:,}: wait, or see whether `bardo drain` runs"
                )
            else:
                time.sleep(ROOM_SECONDS)

    # the end

    def mend(self) -> None:
        """After a failure: cut off what was not acknowledged, so that one can go on in the next segment.

        Whoever had the journal open must open it again. Raises OSError when the disk still refuses.
        """
        if self.broken is None:
            return
        self._committing.acquire()
        try:
            if self._handle is not None:
                self._cut(self._handle)
            self._roll()
            self.broken, self.mended = None, self.mended + 1
        finally:
            self.commit()

    def close(self) -> None:
        """Let go of it: an empty journal goes with its folder, any other waits for a drainer."""
        self.keeper.stop()
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
        if not self._records and not self.backlog():
            remove_journal(self.folder)
        locks.let_go(self._lock)
