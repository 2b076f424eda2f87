"""The journal alone: when it seals, when it is full, what a failing disk costs, and which thread commits."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bardo_pipeline.errors import BackpressureError, ConfigError, JournalError, LeaseError
from bardo_pipeline.policy import Policy, WriterPolicy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.journal import journal as journals_module
from bardo_pipeline.storage.journal.commit_tickets import Ticket
from bardo_pipeline.storage.journal.frames import HEADER_BYTES, parse, read, segment_numbers, segment_path
from bardo_pipeline.storage.journal.journal import Journal
from bardo_pipeline.storage.journal.segment_files import journal_depth, sealed_numbers
from tests.support.journal_segments import NOW, PATH, Chain, segment_of, ticks


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.create(tmp_path / "home", Policy(), NOW)


class Clock:
    """Seconds that pass when a test says so."""

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
        journal.put(Ticket(chain.draft()))
    assert sealed_numbers(journal.folder, ended=False) == []
    journal.put(Ticket(chain.draft()))
    assert sealed_numbers(journal.folder, ended=False) == [0]
    assert ticks(read(segment_path(journal.folder, 0), sealed=True)) == list(range(1, 26))


@pytest.mark.row("EV-3")
def test_a_segment_is_sealed_thirty_seconds_after_its_first_record(home: Home) -> None:
    clock = Clock()
    journal = opened(home, clock)
    journal.put(Ticket(Chain().draft()))
    clock.seconds += 29.9
    journal.keeper.turn()
    assert sealed_numbers(journal.folder, ended=False) == []
    clock.seconds += 0.1
    while journal.keeper.turn() == 0.0:
        pass
    assert sealed_numbers(journal.folder, ended=False) == [0]
    clock.seconds += 1_000
    journal.keeper.turn()
    assert sealed_numbers(journal.folder, ended=False) == [0], "an empty segment is not sealed"


@pytest.mark.row("EV-3")
def test_while_the_drainer_is_behind_segments_grow(home: Home) -> None:
    journal, chain = opened(home, segment_bytes_max=20_000), Chain()
    for _ in range(25):
        journal.put(Ticket(chain.draft()))
    for _ in range(60):
        journal.put(Ticket(chain.draft()))
    assert sealed_numbers(journal.folder, ended=False) == [0], "the first one still waits"
    segment_path(journal.folder, 0).unlink()
    journal.put(Ticket(chain.draft()))
    assert sealed_numbers(journal.folder, ended=False) == [1], "the drainer has caught up"
    for _ in range(145):
        journal.put(Ticket(chain.draft()))
    assert 20_000 <= segment_path(journal.folder, 2).stat().st_size < 21_000, "and they have a bound"


@pytest.mark.row("EV-3")
def test_many_callers_share_an_fsync_and_none_returns_before_its_own(
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
        time.sleep(0.001)  # of a disk; where homes lie in memory there is nothing to wait for, and so nothing to share
        with synced:
            durable, syncs = size, syncs + 1

    monkeypatch.setattr(journals_module.os, "fdatasync", sync)
    monkeypatch.setattr(journal, "_is_due", lambda: False)
    early: list[int] = []

    def call(k: int) -> None:
        chain = Chain(f"golem-{k:02}")
        for _ in range(each):
            journal.put(Ticket(chain.draft()))
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
def test_a_full_journal_says_so_or_waits_as_the_caller_chooses(home: Home) -> None:
    clock = Clock()
    journal, chain = opened(home, clock, journal_bytes_max=4_096, batch_records=5), Chain()
    while journal.undrained_bytes + 500 <= 4_096:
        journal.put(Ticket(chain.draft(b"z" * 300)))
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
def test_a_full_journal_seals_what_it_has_or_nobody_could_make_room(home: Home) -> None:
    journal, chain = opened(home, journal_bytes_max=4_096, batch_records=1_000), Chain()
    while journal.undrained_bytes + 500 <= 4_096:
        journal.put(Ticket(chain.draft(b"z" * 300)))
    assert sealed_numbers(journal.folder, ended=False) == []
    with pytest.raises(BackpressureError):
        journal.make_room(500, wait=False, timeout=None)
    assert sealed_numbers(journal.folder, ended=False) == [0]


# a disk that fails


@pytest.mark.row("EV-3")
@pytest.mark.parametrize("call", ["fdatasync", "pwritev"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_after_a_failed_write_or_fsync_nothing_is_acknowledged_until_it_is_mended(
    call: str, code: int, home: Home, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = Chain()
    journal.put(Ticket(chain.draft()))
    held = segment_path(journal.folder, 0).read_bytes()
    lost = chain.draft()
    with monkeypatch.context() as patch:

        def fail(*_: object) -> int:
            raise OSError(code, os.strerror(code))

        patch.setattr(journals_module.os, call, fail)
        with pytest.raises(JournalError, match=os.strerror(code)):
            journal.put(Ticket(lost))
    with pytest.raises(JournalError, match="open them again"):
        journal.put(Ticket(lost))
    journal.mend()
    assert segment_path(journal.folder, 0).read_bytes() == held, "what was not acknowledged is cut off"
    journal.put(Ticket(lost))
    assert ticks(read(segment_path(journal.folder, 1), sealed=False)) == [2]


@pytest.mark.row("EV-3")
def test_a_segment_that_cannot_be_begun_takes_nothing_back_that_was_acknowledged(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, chain = opened(home, batch_records=2), Chain()
    journal.put(Ticket(chain.draft()))
    with monkeypatch.context() as patch:

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(journals_module, "sync_folder", full)
        journal.put(Ticket(chain.draft()))
        lost = chain.draft()
        with pytest.raises(JournalError, match="No space left"):
            journal.put(Ticket(lost))
    assert ticks(read(segment_path(journal.folder, 0), sealed=True)) == [1, 2]
    journal.mend()
    journal.put(Ticket(lost))
    assert segment_numbers(journal.folder) == [0, 2]
    assert journal.backlog() == 1
    assert ticks(read(segment_path(journal.folder, 2), sealed=False)) == [3]


@pytest.mark.row("EV-3")
def test_a_short_write_goes_on_where_it_stopped(home: Home, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = os.pwritev
    monkeypatch.setattr(journals_module.os, "pwritev", lambda at, buffers, to: honest(at, [buffers[0][:10]], to))
    journal.put(Ticket(Chain().draft()))
    assert ticks(read(segment_path(journal.folder, 0), sealed=True)) == [1]


# opening


@pytest.mark.row("EV-3")
def test_a_journal_has_one_process_at_a_time_and_its_name_is_a_files(home: Home, journal: Journal) -> None:
    with pytest.raises(LeaseError, match="writer w is open in another process"):
        opened(home)
    for name in ("", "../w", "a/b", ".hidden", "x" * 101):
        with pytest.raises(ConfigError, match="a name has up to 100"):
            Journal.open(home, name, policy=WriterPolicy(), clock=lambda: NOW, last_segment=lambda: -1)


@pytest.mark.row("EV-3")
def test_opened_again_a_journal_cuts_the_torn_tail_and_seals_what_is_left(home: Home) -> None:
    folder = home.journal / "w"
    folder.mkdir()
    chain = Chain()
    whole = segment_of([[chain.draft()], [chain.draft()]], number=4)
    segment_path(folder, 4).write_bytes(whole + segment_of([[chain.draft()]], number=4)[HEADER_BYTES:-3])
    journal, torn = Journal.open(home, "w", policy=WriterPolicy(), clock=lambda: NOW, last_segment=lambda: 2)
    assert torn is not None
    assert (torn.path, torn.bytes) == (segment_path(folder, 4), len(segment_of([[Chain().draft()]])) - HEADER_BYTES - 3)
    assert segment_path(folder, 4).read_bytes() == whole
    assert segment_numbers(folder) == [4, 5]
    assert journal.backlog() == 1
    journal.close()


@pytest.mark.row("EV-3")
def test_numbers_go_on_behind_those_on_record_though_the_folder_was_removed(home: Home) -> None:
    journal, torn = Journal.open(home, "w", policy=WriterPolicy(), clock=lambda: NOW, last_segment=lambda: 41)
    journal.put(Ticket(Chain().draft()))
    assert (torn, segment_numbers(journal.folder)) == (None, [42])
    journal.close()


@pytest.mark.row("EV-3")
def test_an_empty_journal_goes_with_its_folder(home: Home) -> None:
    opened(home).close()
    assert list(home.journal.iterdir()) == []


@pytest.mark.row("EV-3", "X-11")
def test_the_depth_of_all_journals_counts_what_is_not_drained(home: Home) -> None:
    assert (journal_depth(home).segments, journal_depth(home).bytes, journal_depth(home).oldest_at) == (0, 0, None)
    journal, chain = opened(home, batch_records=2), Chain()
    for _ in range(3):
        journal.put(Ticket(chain.draft()))
    depth = journal_depth(home)
    assert (depth.segments, depth.oldest_at) == (2, NOW)
    assert depth.bytes == 3 * chain.draft().size
    journal.close()


# many threads


def committed_by_another(journal: Journal, one: Chain, other: Chain) -> Ticket:
    """A ticket that another thread has committed with its own, and woken for."""
    early = Ticket(one.draft())
    journal.enqueue(early)
    beside = threading.Thread(target=journal.put, args=(Ticket(other.draft()),))
    beside.start()
    beside.join()
    return early


@pytest.mark.row("EV-3")
def test_a_thread_whose_frame_another_committed_before_it_asked_leaves_nothing_behind(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = Chain("golem-1"), Chain("golem-2")
    journal.finish(committed_by_another(journal, one, other))
    # Its wake was for that ticket alone: the next one waits for its own fsync.
    order: list[str] = []
    began, goes_on = threading.Event(), threading.Event()
    honest = os.fdatasync

    def sync(handle: int) -> None:
        began.set()
        assert goes_on.wait(30)
        honest(handle)
        order.append("durable")

    with monkeypatch.context() as patch:
        patch.setattr(journals_module.os, "fdatasync", sync)
        leader = threading.Thread(target=journal.put, args=(Ticket(other.draft()),))
        leader.start()
        assert began.wait(30)
        late = Ticket(one.draft())
        journal.enqueue(late)
        threading.Thread(target=goes_on.set).start()
        journal.finish(late)
        order.append("acknowledged")
    leader.join()
    assert order == ["durable", "durable", "acknowledged"]


@pytest.mark.row("EV-3")
def test_what_comes_while_threads_are_woken_waits_for_what_they_append(journal: Journal) -> None:
    one, other = Chain("golem-1"), Chain("golem-2")
    woken = committed_by_another(journal, one, other)
    told: list[list[Ticket]] = []
    meanwhile = Ticket(other.draft(), done=told.append)
    journal.enqueue(meanwhile)
    journal.send()
    journal.keeper.turn()
    assert told == [], "somebody is still to be woken"
    journal.finish(woken)
    journal.keeper.turn()
    assert told == [[meanwhile]], "who was woken last passes the committer's place on"


@pytest.mark.row("EV-3")
def test_the_main_thread_leaves_committing_to_the_keeper_for_a_signal_may_interrupt_it(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, chain = opened(home), Chain()
    journal.keeper.start()
    committed: list[int] = []
    honest = os.fdatasync

    def sync(handle: int) -> None:
        committed.append(threading.get_ident())
        honest(handle)

    monkeypatch.setattr(journals_module.os, "fdatasync", sync)
    journal.put(Ticket(chain.draft()))
    beside = threading.Thread(target=journal.put, args=(Ticket(chain.draft()),))
    beside.start()
    beside.join()
    assert threading.get_ident() not in committed
    assert len(committed) == 2
    journal.seal()
    journal.close()
    assert ticks(read(segment_path(journal.folder, 0), sealed=True)) == [1, 2]
