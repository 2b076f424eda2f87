"""Event loops that commit: the kernel syncs meanwhile, nobody waits for a loop, and no loop is needed in the end."""

from __future__ import annotations

import asyncio
import errno
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from bardo_pipeline.errors import JournalError
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.journal import io_uring_sync
from bardo_pipeline.storage.journal.async_event_writer import AsyncEventWriter
from bardo_pipeline.storage.journal.commit_tickets import Ticket
from bardo_pipeline.storage.journal.event_writer import EventWriter
from bardo_pipeline.storage.journal.journal import Journal
from bardo_pipeline.storage.log.event_log import EventLog
from tests.support.log_queries import GOLEM, OTHER
from tests.support.writer_records import Opener, clock, limited, line, on_record

pytestmark = [
    pytest.mark.row("EV-3"),
    pytest.mark.skipif(io_uring_sync.opened_kernel() is None, reason="no io_uring here, or none that we may use"),
]
SECONDS_MAX = 20.0
"""So long a thread may take that is held up by nobody."""


@pytest.fixture(autouse=True)
def nothing_is_left_open() -> Iterator[None]:
    before = set(io_uring_sync._open)  # the dead of a power cut close nothing
    yield
    assert set(io_uring_sync._open) <= before


def golem_of(number: int) -> str:
    return f"golem-{number:04}"


async def opened_by_loop(home: Home, golem: int = 0, **more: Any) -> AsyncEventWriter:
    return await AsyncEventWriter.open(home, golem_of(golem), clock=clock, writer="w", **{"drain": "none"} | more)


def ticks(home: Home, golem_id: str = GOLEM) -> list[int]:
    return [row["tick"] for row in on_record(home, golem_id)]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many frames each write has from now on."""
    sizes: list[int] = []
    honest = Journal._write

    def write(journal: Journal, drafts: Any) -> int:
        sizes.append(len(drafts))
        return honest(journal, drafts)

    monkeypatch.setattr(Journal, "_write", write)
    return sizes


def in_a_thread(act: Callable[[], object]) -> None:
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(SECONDS_MAX)
    assert not thread.is_alive(), "it waits for a loop that waits for it"


@pytest.mark.parametrize("disk_seconds", [0.0, 1.0])
def test_half_of_the_callers_are_at_work_while_a_fast_disk_syncs_and_a_slow_one_is_asked_once_for_all(
    disk_seconds: float, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    callers, each = 8, 24
    lines = {(golem, tick): line(tick, golem) for golem in range(callers) for tick in range(1, each + 1)}
    seconds, pauses = 0.0, (looks == 100 for looks in count())  # a pause, once, tells nothing

    def perf_counter() -> float:
        nonlocal seconds
        seconds += 0.001 + 1e6 * next(pauses, False)  # each append looks at it once
        return seconds

    def ask(kernel: io_uring_sync.Context, handle: int, done: Callable[[int], object]) -> None:
        def synced() -> None:
            nonlocal seconds
            seconds += disk_seconds
            done(0)
            os.eventfd_write(kernel.fileno, 1)

        asyncio.get_running_loop().call_soon(synced)

    monkeypatch.setattr(io_uring_sync, "time", SimpleNamespace(perf_counter=perf_counter))
    monkeypatch.setattr(io_uring_sync, "ask_fdatasync", ask)
    sizes = counted(monkeypatch)

    async def write(golem: int, writer: AsyncEventWriter) -> None:
        for tick in range(1, each + 1):
            await writer.append(lines[golem, tick])

    async def everybody() -> None:
        writers = [await opened_by_loop(home, golem) for golem in range(callers)]
        await asyncio.gather(*(write(*each) for each in enumerate(writers)))
        for writer in writers:
            await writer.close()

    asyncio.run(everybody())
    assert sum(sizes) == callers * each
    assert statistics.median(sizes[callers:-callers]) == (callers if disk_seconds else callers / 2)


def test_a_segment_that_a_loop_has_filled_is_sealed(home: Home) -> None:
    async def go() -> int:
        async with await opened_by_loop(home, policy=limited(batch_records=5)) as writer:
            for tick in range(1, 7):
                await writer.append(line(tick))
            journal, until = writer._writer.journal, time.monotonic() + SECONDS_MAX
            while not journal.backlog() and time.monotonic() < until:
                await asyncio.sleep(0.001)
            return journal.backlog()

    assert asyncio.run(go()) == 1


def test_who_comes_while_a_loop_is_told_to_commit_does_not_depend_on_it(opened: Opener) -> None:
    journal, told = opened().journal, threading.Event()

    def commits() -> None:  # of a loop that is held up; and somebody else comes, who trusts whoever commits
        journal.enqueue(Ticket(done=lambda _: told.set()))

    def meanwhile(_: list[Ticket]) -> None:
        journal.enqueue(Ticket(done=lambda _: None, commits=commits))

    journal.enqueue(Ticket(done=meanwhile))
    journal.send()
    assert told.wait(SECONDS_MAX)


def test_coroutines_and_threads_share_a_journal(home: Home, opened: Opener) -> None:
    each = 30

    def write(golem: int) -> None:
        with opened(golem_of(golem), drain="thread") as writer:
            for tick in range(1, each + 1):
                writer.append(line(tick, golem))

    async def append(golem: int) -> None:
        async with await opened_by_loop(home, golem, drain="thread") as writer:
            for tick in range(1, each + 1):
                await writer.append(line(tick, golem))

    async def everybody() -> None:
        await asyncio.gather(*(append(golem) for golem in range(2)), *(asyncio.to_thread(write, k) for k in (2, 3)))

    asyncio.run(everybody())
    for golem_id in map(golem_of, range(4)):
        assert ticks(home, golem_id) == list(range(1, each + 1))


def test_a_loop_that_is_held_up_while_it_commits_holds_up_nobody(home: Home, opened: Opener) -> None:
    async def go() -> None:
        other = await asyncio.to_thread(opened, OTHER)
        async with await opened_by_loop(home) as writer:
            await writer.append(line(1))
            for tick in range(2, 12):
                waiting = asyncio.create_task(writer.append(line(tick)))
                await asyncio.sleep(0)
                in_a_thread(lambda tick=tick: other.append(line(tick - 1, 1)))
                if tick % 2:
                    other.append(line(tick + 100, 1))  # in the loop's own thread
                await waiting
        await asyncio.to_thread(other.close)

    asyncio.run(go())
    assert ticks(home) == list(range(1, 12))


def test_a_loop_that_ends_in_the_middle_leaves_a_journal_that_others_go_on_with(home: Home, opened: Opener) -> None:
    left: list[AsyncEventWriter] = []

    async def begin() -> None:
        writer = await opened_by_loop(home)
        left.append(writer)
        await writer.append(line(1))
        asyncio.create_task(writer.append(line(2)))  # noqa: RUF006
        await asyncio.sleep(0)

    async def go_on() -> None:
        async with await opened_by_loop(home, 1) as writer:
            for tick in range(1, 6):
                await writer.append(line(tick, 1))

    asyncio.run(begin())
    in_a_thread(lambda: asyncio.run(go_on()))
    left[0]._ring.leave()
    in_a_thread(left[0]._writer.close)
    assert ticks(home) == [1, 2]
    assert ticks(home, OTHER) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("where", ["in its thread", "in another thread"])
def test_what_a_loop_left_behind_that_is_closed_is_committed_by_the_keeper(where: str, home: Home) -> None:
    left: list[AsyncEventWriter] = []

    async def begin() -> None:
        left.append(await opened_by_loop(home))
        for tick in range(1, 4):
            await left[0].append(line(tick))
        left[0]._ring._wanted = 2  # as among several callers
        left[0]._writer.journal.enqueue(left[0]._ring.ticket())

    asyncio.run(begin())
    ring, journal = left[0]._ring, left[0]._writer.journal
    assert ring.commits is not None
    ring.commits() if where == "in its thread" else in_a_thread(ring.commits)
    until = time.monotonic() + SECONDS_MAX
    while journal.waiting and time.monotonic() < until:
        time.sleep(0.001)
    assert not journal.waiting
    ring.leave()
    in_a_thread(left[0]._writer.close)
    assert ticks(home) == [1, 2, 3]


def test_a_loop_in_another_thread_has_commits_of_its_own(home: Home) -> None:
    def live(golem: int) -> None:
        async def go() -> None:
            async with await opened_by_loop(home, golem) as writer:
                for tick in range(1, 41):
                    await writer.append(line(tick, golem))

        asyncio.run(go())

    threads = [threading.Thread(target=live, args=(golem,), daemon=True) for golem in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS_MAX)
    for golem_id in map(golem_of, range(3)):
        assert ticks(home, golem_id) == list(range(1, 41))


def test_what_the_kernel_could_not_sync_is_told_and_another_writer_goes_on(
    home: Home, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        async with await opened_by_loop(home) as writer:
            await writer.append(line(1))
            with monkeypatch.context() as patch:
                patch.setattr(io_uring_sync, "ask_fdatasync", lambda _kernel, _handle, done: done(-errno.EIO))
                both = await asyncio.gather(*(writer.append(line(tick)) for tick in (2, 3)), return_exceptions=True)
            for error in both:
                assert isinstance(error, JournalError)
                assert "Input/output error" in str(error)
            with pytest.raises(JournalError, match="see to the disk, close every writer"):
                await writer.append(line(4))

    asyncio.run(go())
    with opened() as again:
        assert again.append(line(2, seed=5)).link.number == 2
    assert ticks(home) == [1, 2]


def test_a_loop_that_watches_no_files_leaves_commits_to_the_keeper(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def watches_none(*_: object) -> None:
        raise NotImplementedError

    async def go() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", watches_none)
        async with await opened_by_loop(home) as writer:
            for tick in range(1, 6):
                await writer.append(line(tick))

    asyncio.run(go())
    assert ticks(home) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("refused", [OSError(errno.EAGAIN, "later"), SystemError(errno.ENOMEM, "no memory")])
def test_a_kernel_that_takes_nothing_more_leaves_commits_to_the_keeper(
    refused: Exception, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def refuse(kernel: io_uring_sync.Context, handle: int, done: Callable[[int], object]) -> None:
        asked.append(handle)
        raise refused

    async def go() -> None:
        async with await opened_by_loop(home, drain="thread", policy=limited(batch_records=5)) as writer:
            await writer.append(line(1))
            monkeypatch.setattr(io_uring_sync, "ask_fdatasync", refuse)
            for tick in range(2, 31):
                await writer.append(line(tick))

    asyncio.run(go())
    assert len(asked) == 1
    assert ticks(home) == list(range(1, 31))


@pytest.mark.parametrize("place", ["_take", "_write", "_told", "_written"])
def test_an_interrupt_in_a_commit_ends_the_loop_and_neither_loses_nor_blocks_what_follows(
    place: str, home: Home, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    left: list[EventWriter] = []
    honest = getattr(Journal, place)

    async def go() -> None:
        writer = await opened_by_loop(home)
        left.append(writer._writer)
        try:
            for tick in range(1, 10):
                if tick == 4:
                    once = iter([KeyboardInterrupt])

                    def interrupted(*args: Any, once: Iterator[type[BaseException]] = once, **more: Any) -> Any:
                        for error in once:
                            raise error
                        return honest(*args, **more)

                    monkeypatch.setattr(Journal, place, interrupted)
                await writer.append(line(tick))
                told.append(tick)
        finally:
            writer._ring.leave()

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(go())

    def close() -> None:
        try:
            left[0].close()
        except JournalError:
            left[0].close()

    in_a_thread(close)
    with opened() as again:
        again.append(line(10))
    assert told == [1, 2, 3]
    assert ticks(home)[:3] == told
    assert ticks(home)[-1] == 10
    with EventLog(home) as log:
        assert log.tip(GOLEM).number == len(ticks(home))
