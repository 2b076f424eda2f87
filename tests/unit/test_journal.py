"""The journal alone: its bytes after a crash, a flipped bit or a full disk; when it seals, and when it is full."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bardo_pipeline.errors import BackpressureError, ConfigError, JournalError, LeaseError
from bardo_pipeline.events.custody import GENESIS, Signature, content_of, link_of
from bardo_pipeline.policy import Policy, WriterPolicy
from bardo_pipeline.storage import journal as journals_module
from bardo_pipeline.storage.frames import (
    HEADER_BYTES,
    Draft,
    Frame,
    Segment,
    parse,
    read,
    segment_header,
    segment_numbers,
    segment_path,
)
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.journal import Journal
from bardo_pipeline.storage.journals import journal_depth, sealed_numbers
from bardo_pipeline.storage.tickets import Ticket

NOW = datetime(2026, 11, 1, tzinfo=UTC)
NOW_US = int(NOW.timestamp() * 1e6)
PATH = Path("00000000000000000007.seg")


class Chain:
    """Frames of one golem, each linked to the one before."""

    def __init__(self, golem_id: str = "golem-1") -> None:
        self.golem_id, self.number, self.tip = golem_id, 0, GENESIS

    def draft(self, payload: bytes = b'{"some": "record"}', signature: Signature | None = None) -> Draft:
        self.number += 1
        previous, self.tip = self.tip, link_of(self.golem_id, self.number, self.tip, content_of(payload))
        return Draft(self.golem_id.encode(), self.number, self.number, previous, self.tip, signature, payload)


def segment_of(groups: list[list[Draft]], number: int = 7) -> bytes:
    """A segment as a journal writes it: each group by one append, durable before the next."""
    raw = segment_header(number)
    for group in groups:
        synced = len(raw)
        for draft in group:
            raw += draft.head(number, synced, NOW_US) + draft.payload
    return raw


def ticks(segment: Segment) -> list[int]:
    return [frame.tick for frame in segment.frames]


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


# the bytes


@pytest.mark.row("EV-3")
def test_what_was_framed_is_read_back() -> None:
    chain, signature = Chain("gölem/../1"), Signature("key-1", bytes(range(64)))
    drafts = [chain.draft(b'{"a":1}', signature), chain.draft(b"x" * 70_000)]
    segment = parse(PATH, segment_of([drafts]), sealed=True)
    assert (segment.faults, segment.torn) == ((), 0)
    first, second = segment.frames
    assert first == Frame("gölem/../1", 1, 1, GENESIS, second.previous, NOW_US, signature, b'{"a":1}')
    assert (second.payload, second.signature, second.link) == (b"x" * 70_000, None, chain.tip)


@pytest.mark.row("EV-3")
def test_a_tail_torn_at_any_byte_costs_only_what_nobody_was_told_of() -> None:
    chain = Chain()
    kept = [[chain.draft(), chain.draft()], [chain.draft()]]
    whole = segment_of(kept)
    longer = segment_of([*kept, [chain.draft(), chain.draft(b"y" * 100)]])
    fourth = len(segment_of([*kept, [Chain().draft()]]))  # frames of the same size
    for cut in range(len(whole), len(longer)):
        segment = parse(PATH, longer[:cut], sealed=False)
        assert ticks(segment) == ([1, 2, 3] if cut < fourth else [1, 2, 3, 4])
        assert segment.torn == cut - (len(whole) if cut < fourth else fourth)
        assert segment.faults == ()


@pytest.mark.row("EV-3")
def test_a_torn_header_of_a_new_segment_is_no_damage() -> None:
    for cut in range(HEADER_BYTES):
        segment = parse(PATH, segment_header(7)[:cut], sealed=False)
        assert (segment.frames, segment.faults, segment.torn) == ((), (), cut)


@pytest.mark.row("EV-3")
def test_pages_of_an_unacknowledged_append_that_came_down_out_of_order_are_torn() -> None:
    chain = Chain()
    raw = bytearray(segment_of([[chain.draft()], [chain.draft(b"y" * 2_000), chain.draft()]]))
    second = len(segment_of([[Chain().draft()]]))
    for first, last in (
        (second, 512),  # the sector in which the last acknowledged bytes end kept its old content
        (512, 1_024),
        (1_024, 2_560),  # on both sides of where a frame ends
        (len(raw) // 512 * 512, len(raw)),  # the last sector, which is not whole
    ):
        lacking = bytearray(raw)
        lacking[first:last] = bytes(last - first)
        segment = parse(PATH, bytes(lacking), sealed=False)
        assert segment.faults == (), (first, last)
        assert 1 in ticks(segment), (first, last)
        assert segment.torn > 0, (first, last)


@pytest.mark.row("EV-3")
@pytest.mark.parametrize("sealed", [True, False])
def test_a_segment_of_which_the_disk_has_only_the_name_is_no_damage(sealed: bool) -> None:
    for size in (0, HEADER_BYTES):
        segment = parse(PATH, bytes(size), sealed=sealed)
        assert (segment.frames, segment.faults, segment.torn) == ((), (), size)


@pytest.mark.row("EV-3")
def test_zeros_where_frames_were_sealed_are_damage() -> None:
    assert parse(PATH, bytes(4_096), sealed=False).faults == ()
    assert [fault.offset for fault in parse(PATH, bytes(4_096), sealed=True).faults] == [0]


@pytest.mark.row("EV-3")
def test_a_header_that_never_reached_the_disk_takes_its_unacknowledged_frames_along() -> None:
    chain = Chain()
    raw = bytearray(segment_of([[chain.draft(b"y" * 2_000), chain.draft()]]))
    raw[:512] = bytes(512)
    segment = parse(PATH, bytes(raw), sealed=False)
    assert (segment.frames, segment.faults, segment.torn) == ((), (), len(raw))


@pytest.mark.row("EV-3")
def test_a_flipped_bit_in_any_byte_of_a_sealed_segment_is_found_and_costs_one_frame() -> None:
    chain = Chain()
    raw = segment_of([[chain.draft()], [chain.draft()], [chain.draft()]])
    bounds = [HEADER_BYTES + k * (len(raw) - HEADER_BYTES) // 3 for k in range(4)]
    for at in range(len(raw)):
        flipped = bytearray(raw)
        flipped[at] ^= 1 << at % 8
        segment = parse(PATH, bytes(flipped), sealed=True)
        hit = next((k for k in range(3) if bounds[k] <= at < bounds[k + 1]), None)
        wanted = [k + 1 for k in range(3) if k != hit]
        assert ticks(segment) == wanted, f"byte {at}"
        (fault,) = segment.faults
        assert fault.offset == (0 if hit is None else bounds[hit])
        assert fault.raw == bytes(flipped[fault.offset : fault.offset + len(fault.raw)])
        assert f"{PATH}, offset {fault.offset}:" in str(segment.error(fault))


@pytest.mark.row("EV-3")
def test_a_flipped_bit_before_the_last_append_of_a_dead_writer_is_damage_and_not_a_torn_tail() -> None:
    chain = Chain()
    raw = bytearray(segment_of([[chain.draft()], [chain.draft()], [chain.draft()]]))
    raw[HEADER_BYTES + 20] ^= 4
    segment = parse(PATH, bytes(raw), sealed=False)
    assert (ticks(segment), len(segment.faults), segment.torn) == ([2, 3], 1, 0)


@pytest.mark.row("EV-3")
def test_a_flipped_bit_in_the_last_append_of_a_dead_writer_is_damage_and_not_a_torn_tail() -> None:
    """Nothing says whether it was acknowledged: what neither breaks off nor lacks a sector is kept, and named."""
    last = segment_of([[Chain().draft()]])
    for at in range(len(last)):
        flipped = bytearray(last)
        flipped[at] ^= 1
        segment = parse(PATH, bytes(flipped), sealed=False)
        (fault,) = segment.faults
        if at < HEADER_BYTES:
            assert (ticks(segment), segment.torn, fault.offset) == ([1], 0, 0), f"byte {at}: it costs no frame"
        else:
            assert (segment.frames, segment.torn, fault.raw) == ((), 0, bytes(flipped[HEADER_BYTES:])), f"byte {at}"


@pytest.mark.row("EV-3")
def test_a_payload_that_was_altered_with_right_checksums_does_not_fit_its_link() -> None:
    honest, forged = Chain(), Chain()
    honest.draft(b'{"worth": 1}')
    draft = forged.draft(b'{"worth": 9}')
    draft._link = (draft._link[0], honest.tip, *draft._link[2:])
    segment = parse(PATH, segment_of([[draft]]), sealed=True)
    assert segment.frames == ()
    (fault,) = segment.faults
    assert (fault.golem_id, fault.tick) == ("golem-1", 1)
    assert "link does not cover its payload" in str(segment.error(fault))


@pytest.mark.row("EV-3")
def test_a_frame_of_another_segment_is_none_of_this_one() -> None:
    raw = segment_header(7) + segment_of([[Chain().draft()]], number=8)[HEADER_BYTES:]
    assert parse(PATH, raw, sealed=True).frames == ()


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
@pytest.mark.parametrize("call", ["fdatasync", "writev"])
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
    honest = os.writev
    monkeypatch.setattr(journals_module.os, "writev", lambda handle, buffers: honest(handle, [buffers[0][:10]]))
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


@pytest.mark.row("EV-3")
def test_a_thread_whose_frame_another_committed_before_it_asked_leaves_nothing_behind(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = Chain("golem-1"), Chain("golem-2")
    early = Ticket(one.draft())
    journal.enqueue(early)
    beside = threading.Thread(target=journal.put, args=(Ticket(other.draft()),))
    beside.start()
    beside.join()
    journal.finish(early)
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
