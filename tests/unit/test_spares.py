"""Spares: what becomes of drained segments, and what is written into them."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from bardo_pipeline.errors import JournalError
from bardo_pipeline.policy import Policy, WriterPolicy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.journal import segment_recycling
from bardo_pipeline.storage.journal.commit_tickets import Ticket
from bardo_pipeline.storage.journal.frames import HEADER_BYTES, read, segment_path, written_bytes
from bardo_pipeline.storage.journal.journal import Journal
from bardo_pipeline.storage.journal.segment_files import cut_tail, depth_of, remove_journal
from bardo_pipeline.storage.journal.segment_recycling import retire
from tests.support.journal_segments import NOW, Chain, segment_of, ticks

LIMITS = WriterPolicy(segment_bytes_max=8_192, batch_records=2, journal_bytes_max=65_536)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    home = Home.create(tmp_path / "home", Policy(), NOW)
    return Journal.open(home, "w", policy=LIMITS, clock=lambda: NOW, last_segment=lambda: -1)[0]


def put(journal: Journal, chain: Chain, payload: bytes = b"x" * 1_000) -> None:
    journal.put(Ticket(chain.draft(payload)))


def retire_sealed(journal: Journal, *, wash: bool = True) -> list[str]:
    """Drain what is sealed, as it were; returns what is in the folder then."""
    retire(journal.folder, sorted(journal.folder.glob("*.seg"))[:-1], LIMITS, wash=wash)
    return sorted(f"{int(path.stem)}{path.suffix}" for path in journal.folder.iterdir() if path.name != "lock")


@pytest.mark.row("EV-3")
def test_a_drained_segment_becomes_the_zeros_that_another_is_written_into(journal: Journal) -> None:
    chain = Chain()
    put(journal, chain)
    put(journal, chain)
    identity, size = os.stat(segment_path(journal.folder, 0)).st_ino, os.stat(segment_path(journal.folder, 0)).st_size
    assert retire_sealed(journal) == ["0.spare", "1.seg"]
    (spare,) = journal.folder.glob("*.spare")
    assert spare.read_bytes() == bytes(size)
    put(journal, chain)
    put(journal, chain)  # and another one is begun
    path = segment_path(journal.folder, 2)
    assert (path.stat().st_ino, path.stat().st_size, written_bytes(path)) == (identity, size, HEADER_BYTES)
    put(journal, chain, b"y" * 100)
    assert ticks(read(path, sealed=False)) == [5]
    assert depth_of(journal.folder).bytes == sum(
        read(each, sealed=False).size - HEADER_BYTES for each in journal.folder.glob("*.seg")
    )
    assert written_bytes(path) == read(path, sealed=False).size < size
    journal.seal()
    sealed = read(path, sealed=True)
    assert (ticks(sealed), sealed.faults, path.stat().st_size) == ([5], (), sealed.size)


@pytest.mark.row("EV-3")
def test_a_segment_outgrows_the_spare_that_it_was_written_into(journal: Journal) -> None:
    chain = Chain()
    put(journal, chain)
    put(journal, chain)
    retire_sealed(journal)
    put(journal, chain)
    put(journal, chain)
    put(journal, chain, b"z" * 5_000)
    journal.seal()
    sealed = read(segment_path(journal.folder, 2), sealed=True)
    assert (ticks(sealed), sealed.faults) == ([5], ())


@pytest.mark.row("EV-3")
def test_a_spare_that_cannot_be_opened_is_no_segment_of_zeros(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = Chain()
    put(journal, chain)
    put(journal, chain)
    retire_sealed(journal)
    put(journal, chain)

    def full(path: Path, flags: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(segment_recycling, "os", SimpleNamespace(open=full, O_WRONLY=os.O_WRONLY, O_CLOEXEC=os.O_CLOEXEC))
        put(journal, chain)  # acknowledged; the next one learns that no segment could be begun
        lost = chain.draft(b"y" * 100)
        with pytest.raises(JournalError, match="Too many open files"):
            journal.put(Ticket(lost))
    journal.mend()
    journal.put(Ticket(lost))
    journal.seal()
    found = [read(path, sealed=True) for path in sorted(journal.folder.glob("*.seg"))[:-1]]
    assert ([tick for segment in found for tick in ticks(segment)], [s.faults for s in found]) == ([3, 4, 5], [(), ()])


@pytest.mark.row("EV-3")
def test_a_dead_writers_segment_is_read_and_cut_to_what_was_written(journal: Journal) -> None:
    chain = Chain()
    path = segment_path(journal.folder, 7)
    written = segment_of([[chain.draft()], [chain.draft()]])
    for room in (0, 1, 4_095, 100_000):
        path.write_bytes(written + bytes(room))
        assert (ticks(read(path, sealed=False)), written_bytes(path)) == ([1, 2], len(written))
        assert cut_tail(path).bytes == 0
        assert path.read_bytes() == written
        if room:  # in a sealed segment there is none: zeros are what the disk lost
            path.write_bytes(written + bytes(room))
            assert [fault.offset for fault in read(path, sealed=True).faults] == [len(written)]
    path.write_bytes(bytes(50_000))
    assert (written_bytes(path), cut_tail(path).bytes, path.stat().st_size) == (0, 0, 0)


@pytest.mark.row("EV-3")
def test_what_is_not_worth_washing_is_taken_away(journal: Journal) -> None:
    chain = Chain()
    put(journal, chain, b"x")
    put(journal, chain, b"x")
    assert retire_sealed(journal) == ["1.seg"], "too small"
    put(journal, chain)
    put(journal, chain)
    assert retire_sealed(journal, wash=False) == ["2.seg"], "nobody needs it"
    put(journal, chain)
    put(journal, chain)
    (journal.folder / "100.spare").write_bytes(bytes(LIMITS.journal_bytes_max // 2 - 2_000))
    assert retire_sealed(journal) == ["100.spare", "3.seg"], "half of the journal's bound is full of them"


@pytest.mark.row("EV-3")
@pytest.mark.row("X-9")
def test_a_segment_that_a_backup_copies_is_not_written_over(journal: Journal, tmp_path: Path) -> None:
    chain = Chain()
    put(journal, chain)
    put(journal, chain)
    second = tmp_path / "second name"
    os.link(segment_path(journal.folder, 0), second)
    held = second.read_bytes()
    assert retire_sealed(journal) == ["1.seg"]
    assert second.read_bytes() == held


@pytest.mark.row("EV-3")
def test_what_a_killed_drainer_left_half_washed_is_no_spare(journal: Journal) -> None:
    left = journal.folder / f"{9:020}.washed"
    left.write_bytes(b"half of it")
    retire(journal.folder, [], LIMITS, wash=True)
    assert not left.exists()
    left.write_bytes(b"half of it")
    shutil.copy(left, left.with_suffix(".spare"))
    journal.close()
    assert not journal.folder.exists(), "nor is a spare anything that a journal leaves behind"
    journal.folder.mkdir()
    left.write_bytes(b"half of it")
    remove_journal(journal.folder)
    assert not journal.folder.exists()
