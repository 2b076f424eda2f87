"""The journal alone: when it seals, when it is full, what a failing disk costs, and what one commit contains."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bardo_pipeline.errors import BackpressureError, ConfigError, JournalError, LeaseError
from bardo_pipeline.policy import Policy, WriterPolicy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.journal import journal as journals_module
from bardo_pipeline.storage.journal.frames import (
    HEADER_BYTES,
    Draft,
    parse,
    read,
    segment_numbers,
    segment_path,
    written_bytes,
)
from bardo_pipeline.storage.journal.group_commit import Outcome
from bardo_pipeline.storage.journal.journal import Journal
from bardo_pipeline.storage.journal.segment_files import cut_tail, journal_depth, sealed_numbers
from tests.support.records.journal_segments import NOW, PATH, Chain, segment_of, ticks


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.create(tmp_path / "home", Policy(), NOW)


class Clock:
    """A monotonic clock that a test advances."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def opened(home: Home, clock: Clock | None = None, **limits: object) -> Journal:
    policy = WriterPolicy.model_validate(limits)
    return Journal.open(
        home, "w", policy=policy, clock=lambda: NOW, monotonic=clock or Clock(), last_segment=lambda: -1
    )[0]


@pytest.fixture
def journal(home: Home) -> Iterator[Journal]:
    made = opened(home)
    yield made
    made.close()


# sealing


@pytest.mark.row("EV-3")
def test_a_segment_is_sealed_at_its_twenty_fifth_record(home: Home, journal: Journal) -> None:
    chain = Chain()
    for _ in range(24):
        journal.append(chain.draft())
    assert sealed_numbers(journal.folder, ended=False) == []
    journal.append(chain.draft())
    assert sealed_numbers(journal.folder, ended=False) == [0]
    assert ticks(read(segment_path(journal.folder, 0), sealed=True)) == list(range(1, 26))


@pytest.mark.row("EV-3")
def test_a_segment_is_sealed_thirty_seconds_after_its_first_record(home: Home) -> None:
    clock = Clock()
    journal = opened(home, clock)
    journal.append(Chain().draft())
    clock.seconds += 29.9
    journal.append(None)
    assert sealed_numbers(journal.folder, ended=False) == []
    clock.seconds += 0.1
    until = time.monotonic() + 30
    while not sealed_numbers(journal.folder, ended=False) and time.monotonic() < until:
        time.sleep(0.01)  # the committer looks once a second, though nothing is appended
    assert sealed_numbers(journal.folder, ended=False) == [0]
    clock.seconds += 1_000
    journal.append(None)
    assert sealed_numbers(journal.folder, ended=False) == [0], "an empty segment is not sealed"


@pytest.mark.row("EV-3")
def test_segments_grow_up_to_a_bound_while_the_drainer_is_behind(home: Home) -> None:
    journal, chain = opened(home, segment_bytes_max=20_000), Chain()
    for _ in range(25):
        journal.append(chain.draft())
    for _ in range(60):
        journal.append(chain.draft())
    assert sealed_numbers(journal.folder, ended=False) == [0], "segment 0 is not drained yet"
    segment_path(journal.folder, 0).unlink()
    journal.append(chain.draft())
    assert sealed_numbers(journal.folder, ended=False) == [1], "the drainer has caught up"
    for _ in range(145):
        journal.append(chain.draft())
    assert 20_000 <= segment_path(journal.folder, 2).stat().st_size < 21_000, "segments have a maximum size"


@pytest.mark.row("EV-3")
def test_concurrent_callers_share_an_fsync_and_return_after_it(
    home: Home, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    callers, each = 16, 20
    synced = threading.Lock()
    durable, syncs = 0, 0
    honest = os.fdatasync

    def sync(handle: int) -> None:
        nonlocal durable, syncs
        size = os.fstat(handle).st_size
        honest(handle)
        time.sleep(0.001)  # needs a disk: in memory a sync does not wait, so commits are not shared
        with synced:
            durable, syncs = size, syncs + 1

    monkeypatch.setattr(journals_module.os, "fdatasync", sync)
    monkeypatch.setattr(journal, "_is_due", lambda: False)
    early: list[int] = []

    def call(k: int) -> None:
        chain = Chain(f"golem-{k:02}")
        for _ in range(each):
            journal.append(chain.draft())
            raw = segment_path(journal.folder, 0).read_bytes()[:durable]
            own = [
                f for f in parse(PATH.with_stem(f"{0:020}"), raw, sealed=False).frames if f.golem_id[-2:] == f"{k:02}"
            ]
            if len(own) < chain.number:
                early.append(k)

    threads = [threading.Thread(target=call, args=(k,)) for k in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert early == []
    assert syncs < callers * each / 2
    frames = read(segment_path(journal.folder, 0), sealed=True).frames
    assert len(frames) == callers * each
    for k in range(callers):
        assert [f.number for f in frames if f.golem_id == f"golem-{k:02}"] == list(range(1, each + 1))


# a bound


@pytest.mark.row("EV-3")
def test_a_full_journal_raises_or_waits_as_the_caller_chooses(home: Home) -> None:
    clock = Clock()
    journal, chain = opened(home, clock, journal_bytes_max=4_096, batch_records=5), Chain()
    while journal.undrained_bytes + 500 <= 4_096:
        journal.append(chain.draft(b"z" * 300))
    with pytest.raises(BackpressureError, match=r"journal/w holds .* bytes that wait .* `bardo drain`"):
        journal.make_room(500, wait=False, timeout=None)
    with pytest.raises(BackpressureError):
        journal.make_room(500, wait=True, timeout=0.0)
    waiting = threading.Thread(target=journal.make_room, args=(500,), kwargs={"wait": True, "timeout": None})
    waiting.start()
    for number in sealed_numbers(journal.folder, ended=False):
        segment_path(journal.folder, number).unlink()
    waiting.join(timeout=30)
    assert not waiting.is_alive()
    journal.make_room(500, wait=False, timeout=None)


@pytest.mark.row("EV-3")
def test_a_full_journal_seals_its_segment_so_that_a_drain_can_make_room(home: Home) -> None:
    journal, chain = opened(home, journal_bytes_max=4_096, batch_records=1_000), Chain()
    while journal.undrained_bytes + 500 <= 4_096:
        journal.append(chain.draft(b"z" * 300))
    assert sealed_numbers(journal.folder, ended=False) == []
    with pytest.raises(BackpressureError):
        journal.make_room(500, wait=False, timeout=None)
    assert sealed_numbers(journal.folder, ended=False) == [0]


# a disk that fails


@pytest.mark.row("EV-3")
@pytest.mark.parametrize("call", ["fdatasync", "pwritev"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_failed_write_or_fsync_refuses_appends_until_the_journal_is_mended(
    call: str, code: int, home: Home, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = Chain()
    journal.append(chain.draft())
    held = segment_path(journal.folder, 0).read_bytes()
    lost = chain.draft()
    with monkeypatch.context() as patch:

        def fail(*_: object) -> int:
            raise OSError(code, os.strerror(code))

        patch.setattr(journals_module.os, call, fail)
        with pytest.raises(JournalError, match=os.strerror(code)):
            journal.append(lost)
    with pytest.raises(JournalError, match="open them again"):
        journal.append(lost)
    journal.mend()
    assert segment_path(journal.folder, 0).read_bytes() == held, "unacknowledged bytes are truncated"
    journal.append(lost)
    assert ticks(read(segment_path(journal.folder, 1), sealed=False)) == [2]


@pytest.mark.row("EV-3")
def test_a_failure_to_start_a_segment_loses_no_acknowledged_record(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, chain = opened(home, batch_records=2), Chain()
    journal.append(chain.draft())
    with monkeypatch.context() as patch:

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(journals_module, "sync_folder", full)
        journal.append(chain.draft())
        lost = chain.draft()
        with pytest.raises(JournalError, match="No space left"):
            journal.append(lost)
    assert ticks(read(segment_path(journal.folder, 0), sealed=True)) == [1, 2]
    journal.mend()
    journal.append(lost)
    assert segment_numbers(journal.folder) == [0, 2]
    assert journal.backlog() == 1
    assert ticks(read(segment_path(journal.folder, 2), sealed=False)) == [3]


@pytest.mark.row("EV-3")
def test_a_short_write_is_continued(home: Home, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = os.pwritev
    monkeypatch.setattr(journals_module.os, "pwritev", lambda at, buffers, to: honest(at, [buffers[0][:10]], to))
    journal.append(Chain().draft())
    assert ticks(read(segment_path(journal.folder, 0), sealed=True)) == [1]


# opening


@pytest.mark.row("EV-3")
def test_a_journal_has_one_process_at_a_time_and_a_valid_file_name(home: Home, journal: Journal) -> None:
    with pytest.raises(LeaseError, match="writer w is open in another process"):
        opened(home)
    for name in ("", "../w", "a/b", ".hidden", "x" * 101):
        with pytest.raises(ConfigError, match="a name has up to 100"):
            Journal.open(home, name, policy=WriterPolicy(), clock=lambda: NOW, last_segment=lambda: -1)


@pytest.mark.row("EV-3")
def test_a_reopened_journal_truncates_the_torn_tail_and_seals_the_segment(home: Home) -> None:
    folder = home.journal / "w"
    folder.mkdir()
    chain = Chain()
    whole = segment_of([[chain.draft()], [chain.draft()]], number=4)
    segment_path(folder, 4).write_bytes(whole + segment_of([[chain.draft()]], number=4)[HEADER_BYTES:-3])
    journal, torn = Journal.open(home, "w", policy=WriterPolicy(), clock=lambda: NOW, last_segment=lambda: 2)
    assert torn == len(segment_of([[Chain().draft()]])) - HEADER_BYTES - 3
    assert segment_path(folder, 4).read_bytes() == whole
    assert segment_numbers(folder) == [4, 5]
    assert journal.backlog() == 1
    journal.close()


@pytest.mark.row("EV-3")
def test_segment_numbers_continue_from_the_log_after_the_folder_is_removed(home: Home) -> None:
    journal, torn = Journal.open(home, "w", policy=WriterPolicy(), clock=lambda: NOW, last_segment=lambda: 41)
    journal.append(Chain().draft())
    assert (torn, segment_numbers(journal.folder)) == (None, [42])
    journal.close()


@pytest.mark.row("EV-3")
def test_closing_an_empty_journal_removes_its_folder(home: Home) -> None:
    opened(home).close()
    assert list(home.journal.iterdir()) == []


@pytest.mark.row("EV-3", "X-11")
def test_the_depth_of_all_journals_counts_undrained_records(home: Home) -> None:
    assert (journal_depth(home).segments, journal_depth(home).bytes, journal_depth(home).oldest_at) == (0, 0, None)
    journal, chain = opened(home, batch_records=2), Chain()
    for _ in range(3):
        journal.append(chain.draft())
    depth = journal_depth(home)
    assert (depth.segments, depth.oldest_at) == (2, NOW)
    assert depth.bytes == 3 * chain.draft().size
    journal.close()


# one commit


class SlowDisk:
    """An fdatasync that waits until a test lets it go on. threads: those that called it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began, self.goes_on = threading.Event(), threading.Event()
        self.threads: list[str] = []
        self._honest = os.fdatasync
        monkeypatch.setattr(journals_module.os, "fdatasync", self._sync)

    def _sync(self, handle: int) -> None:
        self.threads.append(threading.current_thread().name)
        self.began.set()
        assert self.goes_on.wait(30)
        self._honest(handle)


@pytest.mark.row("EV-3")
def test_frames_queued_during_a_commit_share_the_next_commit_up_to_its_bounds(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain, sizes, honest = Chain(), list[int](), Journal._write

    def write(self: Journal, handle: int, drafts: list[Draft]) -> int:
        sizes.append(len(drafts))
        return honest(self, handle, drafts)

    monkeypatch.setattr(Journal, "_write", write)
    disk, outcomes = SlowDisk(monkeypatch), [Outcome() for _ in range(303)]
    journal.enqueue(chain.draft(), outcomes[0])
    assert disk.began.wait(30)
    for outcome in outcomes[1:301]:
        journal.enqueue(chain.draft(), outcome)
    for outcome in outcomes[301:]:
        journal.enqueue(chain.draft(b"z" * 8 * 2**20), outcome)
    disk.goes_on.set()
    for outcome in outcomes:
        outcome.wait()
    assert sizes == [1, 256, 45, 1]
    assert set(disk.threads) == {"journal-w"}, "no caller's thread commits, because a signal may interrupt it"


@pytest.mark.row("EV-3")
def test_a_repeat_is_acknowledged_when_the_frames_before_it_are_durable(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, order = SlowDisk(monkeypatch), list[str]()

    def call(name: str, draft: Draft | None) -> None:
        journal.append(draft)
        order.append(name)

    first = threading.Thread(target=call, args=("frame", Chain().draft()))
    first.start()
    assert disk.began.wait(30)
    repeat = threading.Thread(target=call, args=("repeat", None))
    repeat.start()
    repeat.join(0.05)
    assert order == []
    disk.goes_on.set()
    first.join()
    repeat.join()
    assert sorted(order) == ["frame", "repeat"]


@pytest.mark.row("EV-3")
def test_an_interrupted_caller_blocks_no_other_caller_and_loses_no_record(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain, disk = Chain(), SlowDisk(monkeypatch)

    interrupted = threading.Event()

    def raise_once(*_: object) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt

    def interrupt() -> None:
        assert disk.began.wait(30)
        while not interrupted.wait(0.1):  # a signal that arrives just before the lock's system call does not end it
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    previous_handler = signal.signal(signal.SIGINT, raise_once)
    sender = threading.Thread(target=interrupt)
    sender.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            journal.append(chain.draft())
        sender.join()
    finally:
        signal.signal(signal.SIGINT, previous_handler)
    disk.goes_on.set()
    journal.append(chain.draft())
    assert ticks(read(segment_path(journal.folder, 0), sealed=True)) == [1, 2]


@pytest.mark.row("EV-3")
def test_frames_queued_before_close_are_durable_and_later_frames_are_refused(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, chain = opened(home), Chain()
    disk, outcomes = SlowDisk(monkeypatch), [Outcome(), Outcome()]
    for outcome in outcomes:
        journal.enqueue(chain.draft(), outcome)
    assert disk.began.wait(30)
    closing = threading.Thread(target=journal.close)
    closing.start()
    disk.goes_on.set()
    for outcome in outcomes:
        outcome.wait()
    closing.join()
    assert ticks(read(segment_path(journal.folder, 0), sealed=True)) == [1, 2]
    with pytest.raises(JournalError, match="the journal is closed"):
        journal.append(chain.draft())


# journals of earlier versions, which wrote into zeroed segments


@pytest.mark.row("EV-3")
def test_a_zero_padded_segment_is_read_and_truncated_to_its_written_bytes(journal: Journal) -> None:
    chain = Chain()
    path = segment_path(journal.folder, 7)
    written = segment_of([[chain.draft()], [chain.draft()]])
    for room in (0, 1, 4_095, 100_000):
        path.write_bytes(written + bytes(room))
        assert (ticks(read(path, sealed=False)), written_bytes(path)) == ([1, 2], len(written))
        assert cut_tail(path) == 0
        assert path.read_bytes() == written
        if room:  # a sealed segment has no padding: zeros are lost data
            path.write_bytes(written + bytes(room))
            assert [fault.offset for fault in read(path, sealed=True).faults] == [len(written)]
    path.write_bytes(bytes(50_000))
    assert (written_bytes(path), cut_tail(path), path.stat().st_size) == (0, 0, 0)


@pytest.mark.row("EV-3")
def test_drafts_and_zeroed_segments_that_were_kept_for_reuse_are_removed(home: Home) -> None:
    folder = home.journal / "w"
    folder.mkdir()
    for name in (f"{8:020}.spare", f"{9:020}.washed", f"{0:020}.new"):
        (folder / name).write_bytes(bytes(1_000))
    journal = opened(home)
    assert [path.name for path in folder.iterdir()] == ["lock"]
    (folder / f"{8:020}.spare").write_bytes(bytes(1_000))
    (folder / f"{9:020}.new").write_bytes(b"")
    journal.close()
    assert not folder.exists()
