"""Rings: the commits of an event loop, which the kernel syncs while the loop goes on (io_uring, by the library caio).

A thread that has synced waits for the interpreter, which a busy loop gives away only when it has nothing to do; the
kernel waits for nobody. So half of those who append are at work while what the other half appended is synced. Where the
disk takes longer than all of them work, they are committed together. Without io_uring the keeper's thread commits.
Source: architecture ("Many journals, one drainer a home"); EV-3.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from bardo_pipeline.storage.journal.commit_tickets import Aside, Done, Ticket
from bardo_pipeline.storage.journal.journal import Journal

try:
    from caio.linux_uring import Context, Operation
except ImportError:  # another system, or a container that does not allow it
    Context = Operation = None  # type: ignore[assignment, misc]

_REQUESTS_MAX = 8
_WEIGHT = 0.1

_open: dict[tuple[Journal, asyncio.AbstractEventLoop], Ring] = {}


class Awaited(Ticket):
    """A ticket that a coroutine waits for; one that gives up leaves it where it is."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[None], done: Done, commits: Callable[[], None] | None) -> None:
        super().__init__(None, done=done, commits=commits)
        self.future = future


class Ring:
    """Commits for the coroutines of one loop, and tells them. Made by `enter`, which counts its writers.

    commits: see `Ticket`; None where the keeper is to commit.
    """

    def __init__(self, journal: Journal, loop: asyncio.AbstractEventLoop) -> None:
        self._journal, self._loop, self._thread = journal, loop, threading.get_ident()
        self._count = 0
        self._kernel = opened_kernel()
        if self._kernel is not None:
            try:
                loop.add_reader(self._kernel.fileno, self._ready)
            except NotImplementedError:  # a loop that watches no files
                self._kernel = None
        self.commits = None if self._kernel is None else self._turn
        self._wanted, self._soon = 1, False
        self._came, self._came_at, self._told_at = 0, 0.0, 0.0
        self._work_seconds = self._sync_seconds = 0.0

    @classmethod
    def enter(cls, journal: Journal) -> Ring:
        """The ring of this journal and of the running loop."""
        key = journal, asyncio.get_running_loop()
        ring = _open.get(key)
        if ring is None:
            ring = _open[key] = cls(*key)
        ring._count += 1
        return ring

    def leave(self) -> None:
        """The last one closes it; in its loop's thread."""
        self._count -= 1
        if not self._count:
            del _open[self._journal, self._loop]
            if self._kernel is not None:
                self._loop.remove_reader(self._kernel.fileno)

    def ticket(self) -> Awaited:
        """A ticket that a coroutine of this loop waits for, to be enqueued next."""
        self._came += 1
        self._came_at = time.perf_counter()
        return Awaited(self._loop.create_future(), self.tell, self.commits)

    def _turn(self) -> None:
        if threading.get_ident() == self._thread and not self._loop.is_closed():
            self._commit()
            return
        try:
            self._loop.call_soon_threadsafe(self._commit)
        except RuntimeError:  # it is closed, and its writers are not
            self._journal.send()

    def tell(self, tickets: list[Ticket]) -> None:
        """Tell the coroutines that wait for these; on any thread."""
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            if threading.get_ident() == self._thread:
                resume(tickets)
            else:
                self._loop.call_soon_threadsafe(resume, tickets)

    def _commit(self) -> None:
        """Begin to commit what waits if it is enough; or else when all who are at work now have had their turn."""
        if self._journal.aside is not None:
            return
        if self._journal.waiting >= self._wanted:
            self._begin()
        elif not self._soon:
            self._soon = True
            self._loop.call_soon(self._idle)

    def _idle(self) -> None:
        self._soon = False
        if self._journal.waiting and self._journal.aside is None:
            self._begin()

    def _begin(self) -> None:
        if self._kernel is None:  # it was given up
            self._journal.send()
        else:
            self._journal.begin_aside(_Synced(self, self._kernel))

    def _ready(self) -> None:
        """The kernel has done something."""
        kernel, aside = self._kernel, self._journal.aside
        if kernel is not None:
            with suppress(BlockingIOError):
                kernel.poll()
        if isinstance(aside, _Synced):
            aside.collect()

    def give_up(self) -> None:
        """The kernel takes nothing more: leave what comes to the keeper."""
        if self._kernel is not None:
            self._loop.remove_reader(self._kernel.fileno)
            self._kernel = self.commits = None

    def end(self, aside: _Synced, error: OSError | None) -> None:
        """Conclude a commit, and learn from it how many are to wait for the next; on any thread."""
        now = time.perf_counter()
        self._sync_seconds = _learned(self._sync_seconds, now - aside.begun)
        if self._came and self._told_at:
            self._work_seconds = _learned(self._work_seconds, (self._came_at - self._told_at) / self._came)
        self._came, self._told_at = 0, now
        callers = len(aside.tickets) + self._journal.waiting
        self._wanted = callers if self._sync_seconds > callers * self._work_seconds else -(-callers // 2)
        self._journal.end_aside(aside, error)


class _Synced(Aside):
    """A commit that the kernel syncs."""

    def __init__(self, ring: Ring, kernel: Context) -> None:
        super().__init__()
        self._ring, self._kernel = ring, kernel
        self._results: list[int] = []
        self.begun = time.perf_counter()

    def sync(self, handle: int) -> None:
        """See `Aside.sync`."""
        try:
            ask_fdatasync(self._kernel, handle, self._results.append)
        except (OSError, OverflowError, SystemError):
            self._ring.give_up()
            os.fdatasync(handle)
            self._results.append(0)
        self._end()

    def collect(self) -> None:
        """See `Aside.collect`."""
        self._kernel.process_events()
        self._end()

    def _end(self) -> None:
        if not self._results:
            return
        result = self._results[0]
        self._ring.end(self, OSError(-result, os.strerror(-result)) if result < 0 else None)


def ask_fdatasync(kernel: Context, handle: int, done: Callable[[int], object]) -> None:
    """Ask the kernel to make a file durable, and to call `done` with 0, or less than that for an error's number."""
    operation = Operation.fdsync(handle)
    operation.set_callback(done)
    kernel.submit(operation)
    kernel.flush()


def opened_kernel() -> Context | None:
    """A ring of the kernel's; None where it gives none."""
    if Context is None:
        return None
    try:
        return Context(max_requests=_REQUESTS_MAX)
    except (OSError, SystemError):
        return None


def _learned(known: float, seen: float) -> float:
    """A mean that follows what is seen; a single outlier, such as a pause, tells it little."""
    return known + _WEIGHT * (min(seen, 2 * known) - known) if known else seen


def resume(tickets: list[Ticket]) -> None:
    """Let the coroutines go on that wait for these."""
    for ticket in tickets:
        assert isinstance(ticket, Awaited)
        if not ticket.future.done():
            ticket.future.set_result(None)
