"""Coroutines append through the committer thread of their journal: no thread waits for an event loop."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from bardo_pipeline.errors import JournalError
from bardo_pipeline.events.record_json import Glance, glance
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.journal import group_commit
from bardo_pipeline.storage.journal.async_event_writer import AsyncEventWriter
from bardo_pipeline.storage.journal.event_writer import EventWriter
from bardo_pipeline.storage.journal.journal import Journal
from bardo_pipeline.storage.log.event_log import EventLog
from tests.support.records.log_queries import GOLEM, OTHER
from tests.support.records.writer_records import Opener, clock, limited, line, on_record

pytestmark = pytest.mark.row("EV-3")

SECONDS_MAX = 20.0
"""Longest time in seconds that a thread may take if it waits for no event loop."""


def golem_of(number: int) -> str:
    return f"golem-{number:04}"


async def opened_by_loop(home: Home, golem: int = 0, **more: Any) -> AsyncEventWriter:
    return await AsyncEventWriter.open(home, golem_of(golem), clock=clock, writer="w", **{"drain": "none"} | more)


def ticks(home: Home, golem_id: str = GOLEM) -> list[int]:
    return [row["tick"] for row in on_record(home, golem_id)]


def in_a_thread(act: Callable[[], object]) -> None:
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(SECONDS_MAX)
    assert not thread.is_alive(), "the thread waits for an event loop"


def test_a_segment_filled_by_a_loop_is_sealed(home: Home) -> None:
    async def go() -> int:
        async with await opened_by_loop(home, policy=limited(batch_records=5)) as writer:
            for tick in range(1, 7):
                await writer.append(line(tick))
            journal, until = writer._writer.journal, time.monotonic() + SECONDS_MAX
            while not journal.backlog() and time.monotonic() < until:
                await asyncio.sleep(0.001)
            return journal.backlog()

    assert asyncio.run(go()) == 1


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

    async def append_all() -> None:
        await asyncio.gather(*(append(golem) for golem in range(2)), *(asyncio.to_thread(write, k) for k in (2, 3)))

    asyncio.run(append_all())
    for golem_id in map(golem_of, range(4)):
        assert ticks(home, golem_id) == list(range(1, each + 1))


def test_a_blocked_loop_with_a_pending_commit_delays_no_other_writer(home: Home, opened: Opener) -> None:
    async def go() -> None:
        other = await asyncio.to_thread(opened, OTHER)
        async with await opened_by_loop(home) as writer:
            await writer.append(line(1))
            for tick in range(2, 12):
                waiting = asyncio.create_task(writer.append(line(tick)))
                await asyncio.sleep(0)
                in_a_thread(lambda tick=tick: other.append(line(tick - 1, 1)))
                if tick % 2:
                    other.append(line(tick + 100, 1))  # in the event loop's own thread
                await waiting
        await asyncio.to_thread(other.close)

    asyncio.run(go())
    assert ticks(home) == list(range(1, 12))


def test_other_loops_continue_the_journal_of_a_loop_that_ended_early(home: Home, opened: Opener) -> None:
    writers: list[AsyncEventWriter] = []

    async def begin() -> None:
        writer = await opened_by_loop(home)
        writers.append(writer)
        await writer.append(line(1))
        asyncio.create_task(writer.append(line(2)))  # noqa: RUF006
        await asyncio.sleep(0)

    async def go_on() -> None:
        async with await opened_by_loop(home, 1) as writer:
            for tick in range(1, 6):
                await writer.append(line(tick, 1))

    asyncio.run(begin())
    in_a_thread(lambda: asyncio.run(go_on()))
    in_a_thread(writers[0]._writer.close)
    assert ticks(home) == [1, 2]
    assert ticks(home, OTHER) == [1, 2, 3, 4, 5]


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


def test_a_failed_fsync_is_raised_in_each_coroutine_and_another_writer_goes_on(
    home: Home, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async def go() -> None:
        async with await opened_by_loop(home) as writer:
            await writer.append(line(1))
            with monkeypatch.context() as patch:
                patch.setattr(os, "fdatasync", fail)
                results = await asyncio.gather(*(writer.append(line(tick)) for tick in (2, 3)), return_exceptions=True)
            for error in results:
                assert isinstance(error, JournalError)
            assert "Input/output error" in str(results[0])
            with pytest.raises(JournalError, match="see to the disk, close every writer"):
                await writer.append(line(4))

    asyncio.run(go())
    with opened() as reopened:
        assert reopened.append(line(2, seed=5)).link.number == 2
    assert ticks(home) == [1, 2]


def test_a_batch_states_which_of_its_records_are_durable(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def batch(*ticks: int) -> list[tuple[bytes, Glance, None]]:
        return [(line(tick), glance(line(tick)), None) for tick in ticks]

    async def go() -> None:
        async with await opened_by_loop(home) as writer:
            acks, refusal = await writer.append_all(batch(1, 2))
            assert ([ack.tick for ack in acks], refusal) == ([1, 2], None)
            with monkeypatch.context() as patch:
                patch.setattr(os, "fdatasync", fail)
                acks, refusal = await writer.append_all(batch(3, 4))
            assert acks == []
            assert isinstance(refusal, JournalError)
            assert "Input/output error" in str(refusal)

    asyncio.run(go())
    assert ticks(home) == [1, 2]


def test_the_coroutines_of_a_commit_are_resumed_by_one_call_of_their_loop(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, goes_on, honest = list[int](), threading.Event(), os.fdatasync

    def sync(handle: int) -> None:
        assert goes_on.wait(SECONDS_MAX)
        honest(handle)

    async def go() -> None:
        async with await opened_by_loop(home) as writer:
            monkeypatch.setattr(os, "fdatasync", sync)
            resume = group_commit._resolve_futures
            monkeypatch.setattr(
                group_commit,
                "_resolve_futures",
                lambda futures, error: (calls.append(len(futures)), resume(futures, error)),
            )
            appends = [asyncio.create_task(writer.append(line(tick))) for tick in range(1, 10)]
            await asyncio.sleep(0)
            goes_on.set()
            await asyncio.gather(*appends)

    asyncio.run(go())
    assert sum(calls) == 9
    assert len(calls) <= 2, "the first frame may have begun a commit alone"


def test_a_cancelled_append_keeps_its_record_and_the_next_append_follows(home: Home) -> None:
    async def go() -> None:
        async with await opened_by_loop(home) as writer:
            cancelled = asyncio.create_task(writer.append(line(1)))
            await asyncio.sleep(0)
            cancelled.cancel()
            assert (await writer.append(line(2))).link.number == 2

    asyncio.run(go())
    assert ticks(home) == [1, 2]


@pytest.mark.parametrize("place", ["_store", "_write", "_is_due"])
def test_an_unexpected_error_in_a_commit_loses_no_acknowledged_record(
    place: str, home: Home, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    acknowledged: list[int] = []
    writers: list[EventWriter] = []
    honest = getattr(Journal, place)
    errors = iter([MemoryError])

    def fail_once(*args: Any, **more: Any) -> Any:
        for error in errors:
            raise error
        return honest(*args, **more)

    async def go() -> None:
        writer = await opened_by_loop(home)
        writers.append(writer._writer)
        for tick in range(1, 10):
            if tick == 4:
                monkeypatch.setattr(Journal, place, fail_once)
            await writer.append(line(tick))
            acknowledged.append(tick)

    with pytest.raises(JournalError, match=r"writing was interrupted \(MemoryError"):
        asyncio.run(go())
    in_a_thread(writers[0].close)
    with opened() as reopened:
        reopened.append(line(10))
    assert acknowledged == ([1, 2, 3, 4] if place == "_is_due" else [1, 2, 3])
    assert ticks(home) == [*acknowledged, 10]
    with EventLog(home) as log:
        assert log.tip(GOLEM).number == len(ticks(home))
