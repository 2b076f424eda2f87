"""Group commit: one thread a journal that makes all queued frames durable with one write and one fdatasync.

Appends enqueue a frame and wait for its outcome. The committer takes all queued requests, up to a bound, commits them
together, then sets their outcomes. It runs no code of callers, so a signal in a caller's thread cannot interrupt a
commit.
Source: architecture ("Many journals, one drainer a home"); EV-3.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

from bardo_pipeline.errors import JournalError
from bardo_pipeline.storage.journal.frames import Draft

_BATCH_FRAMES_MAX = 256  # two buffers a frame, and one pwritev takes 1,024 buffers
_BATCH_BYTES_MAX = 8 * 2**20


class Outcome:
    """The outcome of one request, for a waiting thread.

    It is a bare lock because a KeyboardInterrupt inside `concurrent.futures.Future.result` can leave the future's
    condition locked, and the committer would then wait for it forever.
    """

    __slots__ = ("_pending", "error")

    def __init__(self) -> None:
        self.error: Exception | None = None
        self._pending = threading.Lock()
        self._pending.acquire()

    def set(self, error: Exception | None) -> None:
        """Release the waiting thread. Called once."""
        self.error = error
        self._pending.release()

    def wait(self) -> None:
        """Return when the request is done. Raises the request's error. Called once."""
        self._pending.acquire()
        if self.error is not None:
            raise self.error


_Request = tuple[Draft | None, Callable[[], None] | None, Outcome | asyncio.Future[None]]
"""A queued frame, action or barrier (neither of them), and its outcome. An action runs behind all frames before it."""
# a plain tuple is made in a sixth of the time of a named one


class GroupCommit:
    """The queue and the committer thread of one journal.

    Parameters
    ----------
    name : str, the thread's name
    commit : makes frames durable and returns the error that their callers get; called without frames after a pause
    pause_seconds : called after each commit; returns for how long the thread may wait for the next request
    """

    def __init__(
        self, name: str, commit: Callable[[Sequence[Draft]], JournalError | None], pause_seconds: Callable[[], float]
    ) -> None:
        self._commit, self._pause_seconds = commit, pause_seconds
        self._queue: SimpleQueue[_Request] = SimpleQueue()
        self._stopping = self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the committer thread."""
        self._thread.start()

    def enqueue(self, draft: Draft | None, outcome: Outcome | asyncio.Future[None]) -> None:
        """Queue a frame; without one, the outcome is set when all frames queued before it are durable."""
        self._put((draft, None, outcome))

    def call(self, action: Callable[[], None]) -> None:
        """Run an action on the committer thread, behind all queued frames. Raises what the action raises."""
        outcome = Outcome()
        self._put((None, action, outcome))
        outcome.wait()

    def stop(self) -> None:
        """Commit all queued frames, then end the thread. Later requests fail."""
        if self._thread.is_alive():
            self.call(self._stop)
            self._thread.join()
        self._stopped = True
        self._refuse()

    def _put(self, request: _Request) -> None:
        self._queue.put(request)
        if self._stopped:
            self._refuse()

    def _refuse(self) -> None:
        """Fail the requests that came after the thread's end."""
        with suppress(Empty):
            while True:
                _resolve([self._queue.get_nowait()], JournalError("the journal is closed: open the writer again"))

    def _stop(self) -> None:
        self._stopping = True

    def _run(self) -> None:
        pause = 0.0
        while not self._stopping:
            batch = self._next_batch(pause)
            error = self._commit([draft for draft, _, _ in batch if draft is not None])
            if batch and (action := batch[-1][1]) is not None:
                _run_action(action, batch.pop()[2])
            _resolve(batch, error)
            pause = self._pause_seconds()

    def _next_batch(self, pause: float) -> list[_Request]:
        """Wait for a request, then take what is queued, up to the bounds or the first action."""
        batch: list[_Request] = []
        size = 0
        with suppress(Empty):
            request = self._queue.get(timeout=pause)
            while True:
                batch.append(request)
                draft, action, _ = request
                size += draft.size if draft is not None else 0
                if action is not None or len(batch) == _BATCH_FRAMES_MAX or size >= _BATCH_BYTES_MAX:
                    break
                request = self._queue.get_nowait()
        return batch


def _run_action(action: Callable[[], None], outcome: Outcome | asyncio.Future[None]) -> None:
    assert isinstance(outcome, Outcome)
    try:
        action()
    except Exception as error:
        outcome.set(error)
    else:
        outcome.set(None)


def _resolve(batch: Sequence[_Request], error: JournalError | None) -> None:
    """Set the outcomes of a batch. Each event loop gets one call for all its coroutines."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for _, _, outcome in batch:
        if isinstance(outcome, Outcome):
            outcome.set(None if error is None else JournalError(*error.args))
        else:
            by_loop.setdefault(outcome.get_loop(), []).append(outcome)
    for loop, futures in by_loop.items():
        with suppress(RuntimeError):  # a closed loop has no waiting coroutines
            loop.call_soon_threadsafe(_resolve_futures, futures, error)


def _resolve_futures(futures: Sequence[asyncio.Future[None]], error: JournalError | None) -> None:
    for future in futures:
        if future.done():  # its coroutine was cancelled
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(JournalError(*error.args))
