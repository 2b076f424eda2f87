"""A busy journal, drained and written on: what it writes into spares, what a backup has of it, how it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.journal import drainer
from bardo_pipeline.storage.journal.drainer import drain_once
from bardo_pipeline.storage.journal.event_writer import EventWriter
from bardo_pipeline.storage.journal.frames import read, segment_numbers, segment_path
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.operations.backup import back_up, restore
from bardo_pipeline.storage.verification.verify import verify
from tests.support.log_queries import NOW, OTHER
from tests.support.writer_records import Opener, clock, limited, line, on_record

POLICY = limited(batch_records=3, segment_bytes_max=16_384)


def drain(home: Home) -> None:
    with EventLog(home) as log:
        drain_once(home, log, clock=clock, policy=POLICY)


@pytest.fixture
def writer(home: Home, opened: Opener) -> EventWriter:
    """A writer that has drained six records, and is at a seventh, in a segment with room."""
    made = opened(policy=POLICY)
    for tick in range(1, 7):
        made.append(line(tick))
    drain(home)
    for tick in range(7, 11):  # the first of them end a segment that was begun before there were spares
        made.append(line(tick))
    return made


def at_hand(home: Home) -> Path:
    folder = home.journal / "w"
    return segment_path(folder, segment_numbers(folder)[-1])


@pytest.mark.row("EV-3")
def test_what_is_written_into_spares_comes_to_the_log_as_anything(home: Home, writer: EventWriter) -> None:
    assert at_hand(home).stat().st_size > read(at_hand(home), sealed=False).size, "there is room"
    assert verify(home).clean
    for tick in range(11, 41):
        writer.append(line(tick))
        if tick % 7 == 0:
            drain(home)
    writer.close()
    assert [row["payload"] for row in on_record(home)] == [line(tick) for tick in range(1, 41)]
    assert list(home.journal.iterdir()) == []
    assert verify(home).clean


@pytest.mark.row("EV-3", "X-9")
def test_a_backup_has_what_is_written_and_no_room(home: Home, writer: EventWriter, tmp_path: Path) -> None:
    written = read(at_hand(home), sealed=False).size
    back_up(home, tmp_path / "backup", NOW)
    made, _ = restore(tmp_path / "backup", tmp_path / "again", NOW)
    assert at_hand(made).stat().st_size == written
    assert list(made.journal.glob("*/*.spare")) == []
    drain(made)
    assert [row["tick"] for row in on_record(made)] == list(range(1, 11))


@pytest.mark.row("EV-3")
def test_the_last_writer_to_leave_washes_nothing(home: Home, opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    washed: list[bool] = []
    honest = drainer.retire
    monkeypatch.setattr(drainer, "retire", lambda *given, wash: (washed.append(wash), honest(*given, wash=wash))[1])
    one, other = opened(policy=POLICY), opened(OTHER)
    one.append(line(1))
    one.close()
    other.append(line(1, golem=1))
    other.close()
    assert washed == [True, False]
