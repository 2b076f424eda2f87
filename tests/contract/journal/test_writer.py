"""A live writer: acknowledged records are durable, in order, and reach the log exactly as acknowledged."""

from __future__ import annotations

import errno
import os
import threading
import time
from datetime import timedelta

import orjson
import pytest

from bardo_pipeline.errors import (
    BackpressureError,
    BardoError,
    ForkError,
    IdentityError,
    JournalError,
    LeaseError,
    RecordError,
    RegressionError,
    SchemaVersionError,
)
from bardo_pipeline.events.custody.hash_chain import Tip, content_of, link_of
from bardo_pipeline.events.record.model import SCHEMA_VERSION
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.intake.quarantine import Quarantine
from bardo_pipeline.storage.journal.drainer import drain_once
from bardo_pipeline.storage.journal.frames import read, segment_path
from bardo_pipeline.storage.journal.segment_files import journal_depth, sealed_numbers
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.log.stream_heads import TickRange
from tests.support.records.drawn_records import records
from tests.support.records.log_queries import GOLEM, NOW, OTHER, accepted, died
from tests.support.records.writer_records import Opener, changed, drained, limited, line, model, on_record

# acknowledged records reach the log


@pytest.mark.row("EV-3")
def test_acknowledged_records_are_in_the_log_after_close(home: Home, opened: Opener) -> None:
    writer = opened()
    lines = [line(tick) for tick in range(1, 31)]
    acks = [writer.append(each) for each in lines]
    assert [ack.tick for ack in acks] == list(range(1, 31))
    assert not any(ack.repeated or ack.late or ack.gaps for ack in acks)
    writer.close()
    rows = on_record(home)
    assert [row["payload"] for row in rows] == lines
    assert [Tip(row["link"]["number"], row["link"]["hash"]) for row in rows] == [ack.link for ack in acks]
    assert {row["writer"] for row in rows} == {"w"}
    assert (list(home.journal.iterdir()), list(home.leases.iterdir())) == ([], [])


@pytest.mark.row("EV-3")
def test_each_acknowledged_link_follows_the_previous_link(opened: Opener) -> None:
    writer = opened()
    first, second = writer.append(line(1)).link, writer.append(line(2)).link
    assert first == Tip(1, link_of(GOLEM, 1, bytes(32), content_of(line(1))))
    assert second == Tip(2, link_of(GOLEM, 2, first.hash, content_of(line(2))))


@pytest.mark.row("EV-3")
def test_a_record_is_in_the_journal_before_it_is_acknowledged(home: Home, opened: Opener) -> None:
    writer = opened()
    for tick in (1, 2, 3):
        writer.append(line(tick))
        frames = read(segment_path(home.journal / "w", 0), sealed=True).frames
        assert [frame.payload for frame in frames] == [line(at) for at in range(1, tick + 1)]


@pytest.mark.row("EV-3")
def test_a_model_is_written_as_its_json(home: Home, opened: Opener) -> None:
    with opened() as writer:
        writer.append(model(1))
    assert on_record(home)[0]["payload"] == line(1)


@pytest.mark.row("EV-3")
def test_a_drain_moves_records_to_the_log_and_trims_the_journal(home: Home, opened: Opener) -> None:
    writer = opened()
    for tick in range(1, 26):
        writer.append(line(tick))
    assert on_record(home) == []
    report = drained(home)
    assert (report.records, report.segments, report.refused, report.torn, report.faults) == (25, 1, 0, 0, [])
    assert len(on_record(home)) == 25
    assert journal_depth(home).bytes == 0
    assert writer.append(line(26)).tick == 26


# the order of ticks


@pytest.mark.row("EV-3")
def test_a_gap_is_accepted_and_reported_and_a_late_tick_fills_it(home: Home, opened: Opener) -> None:
    writer = opened()
    assert writer.append(line(3)).gaps == (TickRange(GOLEM, 1, 2),)
    ack = writer.append(line(2))
    assert (ack.late, ack.gaps, ack.link.number) == (True, (), 2)
    assert writer.append(line(1)).late
    assert not writer.append(line(4)).late
    writer.close()
    assert [(row["tick"], row["link"]["number"]) for row in on_record(home)] == [(1, 3), (2, 2), (3, 1), (4, 4)]


@pytest.mark.row("EV-3")
@pytest.mark.parametrize("where", ["in the journal", "in the log"])
def test_a_repeat_is_acknowledged_with_its_existing_link_and_stored_once(
    where: str, home: Home, opened: Opener
) -> None:
    writer = opened()
    acks = [writer.append(line(tick)) for tick in (1, 2)]
    if where == "in the log":
        writer.close()
        writer = opened()
    again = writer.append(line(1))
    assert (again.repeated, again.link) == (True, acks[0].link)
    spaced = writer.append(line(2).replace(b'":', b'": ', 1))
    assert (spaced.repeated, spaced.link) == (True, acks[1].link), "the content counts, not the bytes"
    assert writer.append(line(3)).link.number == 3
    writer.close()
    assert [row["payload"] for row in on_record(home)] == [line(1), line(2), line(3)]


@pytest.mark.row("EV-3")
@pytest.mark.parametrize("where", ["in the journal", "in the log"])
def test_another_record_of_an_accepted_tick_is_a_fork(where: str, home: Home, opened: Opener) -> None:
    writer = opened()
    writer.append(line(1))
    if where == "in the log":
        writer.close()
        writer = opened()
    with pytest.raises(ForkError, match=f"golem {GOLEM}: tick 1 is already on record with different content"):
        writer.append(line(1, seed=1))
    assert writer.append(line(2)).link.number == 2
    writer.close()
    assert [row["payload"] for row in on_record(home)] == [line(1), line(2)]


@pytest.mark.row("EV-3")
def test_a_record_after_a_death_or_in_an_accepted_gap_is_refused(home: Home, opened: Opener) -> None:
    writer = opened()
    writer.append(line(3))
    assert writer.record(accepted(1, 2)) == 1
    assert writer.record(accepted(1, 2)) == 0
    with pytest.raises(RegressionError, match="tick 2 comes after its gap was accepted as lost"):
        writer.append(line(2))
    assert writer.record(died(4)) == 1
    writer.append(line(4))
    with pytest.raises(RegressionError, match="tick 5 comes after its death at tick 4"):
        writer.append(line(5))
    writer.close()
    assert [row["tick"] for row in on_record(home)] == [3, 4]


@pytest.mark.row("EV-3")
def test_a_life_event_follows_the_appended_records(home: Home, opened: Opener) -> None:
    writer = opened()
    writer.append(line(1))
    writer.append(line(2))
    with pytest.raises(RecordError, match="a death at tick 1 lies below tick 2"):
        writer.record(died(1))
    with pytest.raises(IdentityError, match=f"golem {OTHER}: this is the writer of golem {GOLEM}"):
        writer.record(died(2, OTHER))
    assert writer.record(died(2)) == 1
    with EventLog(home) as log:
        assert (log.death_of(GOLEM), log.tip(GOLEM).number) == (2, 2)


# records that the writer refuses


@pytest.mark.row("EV-3")
@pytest.mark.parametrize(
    ("wrong", "error", "fact"),
    [
        (changed(line(1), tick="1"), RecordError, "tick: Input should be a valid integer"),
        (changed(line(1), tick=1.0), RecordError, "tick"),
        (changed(line(1), prediction_error=1.5), RecordError, "prediction_error"),
        (line(1).replace(b'"prediction_error":', b'"prediction_error":NaN,"x":'), RecordError, "prediction_error"),
        (changed(line(1), surprise=1), RecordError, "surprise"),
        (changed(line(1), observed_at="2026-01-01T00:00:00+01:00"), RecordError, "UTC"),
        (changed(line(1), schema_version=SCHEMA_VERSION + 1), SchemaVersionError, "upgrade bardo-pipeline"),
        (changed(line(1), golem_id=OTHER), IdentityError, f"golem {OTHER}: this is the writer of golem {GOLEM}"),
        (orjson.dumps(orjson.loads(line(1)), option=orjson.OPT_INDENT_2), RecordError, "one line"),
        (line(1)[:-5], RecordError, "Invalid JSON"),
        (line(1).replace(b"golem-0000", b"golem-\xff\xfe00"), RecordError, "Invalid JSON"),
        (b"", RecordError, "Invalid JSON"),
        (b"[" * 200_000, RecordError, "JSON"),
        (b"null", RecordError, "object"),
        (changed(line(1), gating_reason="x" * 5_000_000), RecordError, "longer than record_bytes_max"),
        (42, RecordError, "int is not a record"),
    ],
)
def test_an_invalid_record_is_refused_before_anything_is_written(
    wrong: bytes, error: type[BardoError], fact: str, home: Home, opened: Opener
) -> None:
    writer = opened()
    with pytest.raises(error, match=fact):
        writer.append(wrong)
    assert journal_depth(home).segments == 0
    assert writer.append(line(1)).link.number == 1


@pytest.mark.row("EV-3")
def test_records_that_arrow_parses_differently_are_drained_as_pydantic_parses(home: Home, opened: Opener) -> None:
    odd = [
        changed(line(1), observed_at="2026-01-01 00:00:00.1234567Z"),
        changed(line(3), gating_reason="\x00\u2028\ud83d\ude00"[:2] + "😀"),
        b"  " + line(4) + b"\t ",
        orjson.dumps({k: v for k, v in orjson.loads(line(5)).items() if k not in ("pipeline", "sealed")}),
    ]
    with opened() as writer:
        acks = [writer.append(each) for each in odd]
    rows = on_record(home)
    assert [row["payload"] for row in rows] == odd
    assert [row["link"]["hash"] for row in rows] == [ack.link.hash for ack in acks]
    assert len(Quarantine(home).open()) == 0


# one writer per golem


@pytest.mark.row("EV-3")
def test_a_golem_has_one_writer(home: Home, opened: Opener) -> None:
    writer = opened()
    for name in ("w", "another"):
        with pytest.raises(LeaseError, match=f"golem {GOLEM} is held by writer w: close that one first"):
            opened(writer=name)
    with EventLog(home) as log, pytest.raises(LeaseError, match="is held by writer w"):
        log.append(records(1, golems=1), writer="batches", segment=1, recorded_at=NOW)
    with EventLog(home) as log, pytest.raises(LeaseError, match="is held by writer w"):
        log.record([died(1)], NOW)
    assert writer.append(line(1)).link.number == 1
    writer.close()
    with opened(writer="another") as next_one:
        assert next_one.append(line(2)).link.number == 2


@pytest.mark.row("EV-3")
def test_a_writer_continues_after_a_batch(home: Home, opened: Opener) -> None:
    with EventLog(home) as log:
        log.append(records(5, golems=1), writer="batches", segment=1, recorded_at=NOW)
    with opened() as writer:
        ack = writer.append(line(6))
    assert (ack.link.number, ack.gaps) == (2, ())
    assert len(on_record(home)) == 6


@pytest.mark.row("EV-3")
def test_a_closed_writer_refuses_appends_and_can_be_closed_again(opened: Opener) -> None:
    writer = opened()
    writer.close()
    writer.close()
    with pytest.raises(JournalError, match="its writer is closed"):
        writer.append(line(1))


@pytest.mark.row("EV-3")
def test_writers_of_one_process_share_a_journal_and_never_reuse_numbers(home: Home, opened: Opener) -> None:
    for first in (1, 26):
        item, other = opened(), opened(OTHER)
        for tick in range(first, first + 25):
            item.append(line(tick))
            other.append(line(tick, golem=1))
        assert [path.name for path in home.journal.iterdir()] == ["w"]
        item.close()
        other.close()
    rows = on_record(home)
    assert [row["tick"] for row in rows] == list(range(1, 51))
    assert max(row["segment"] for row in rows[:25]) < min(row["segment"] for row in rows[25:])


@pytest.mark.row("EV-3")
def test_threads_of_one_writer_build_one_chain(home: Home, opened: Opener) -> None:
    writer = opened()
    ticks = iter(range(1, 81))
    turn = threading.Lock()

    def append_some() -> None:
        while True:
            with turn:
                tick = next(ticks, None)
            if tick is None:
                return
            writer.append(line(tick))

    threads = [threading.Thread(target=append_some) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    rows = on_record(home)
    assert [row["tick"] for row in rows] == list(range(1, 81))
    assert sorted(row["link"]["number"] for row in rows) == list(range(1, 81))


# segments and the journal's limits


@pytest.mark.row("EV-3")
def test_a_segment_is_sealed_at_the_batch_size_of_the_policy(home: Home, opened: Opener) -> None:
    writer = opened(policy=limited(batch_records=3))
    for tick in range(1, 4):
        assert sealed_numbers(home.journal / "w", ended=False) == []
        writer.append(line(tick))
    late = time.monotonic() + 10.0
    while not sealed_numbers(home.journal / "w", ended=False) and time.monotonic() < late:
        time.sleep(0.001)  # callers are acknowledged before the next segment begins
    assert sealed_numbers(home.journal / "w", ended=False) == [0]


@pytest.mark.row("EV-3")
def test_a_full_journal_refuses_or_waits_as_the_caller_chooses(home: Home, opened: Opener) -> None:
    writer = opened(policy=limited(journal_bytes_max=len(line(1)) + len(line(2)) + 800, batch_records=1))
    writer.append(line(1))
    writer.append(line(2))
    with pytest.raises(BackpressureError, match=r"bytes that wait for the drainer, and journal_bytes_max is"):
        writer.append(line(3), wait=False)
    with pytest.raises(BackpressureError):
        writer.append(line(3), timeout=0.0)
    waiting = threading.Thread(target=writer.append, args=(line(3),))
    waiting.start()
    while waiting.is_alive():
        drained(home)
    writer.close()
    assert [row["tick"] for row in on_record(home)] == [1, 2, 3]


@pytest.mark.row("EV-3")
def test_a_failed_fsync_ends_the_writer_without_a_retry(
    home: Home, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, other_writer = opened(), opened(OTHER)
    writer.append(line(1))

    def fail(handle: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(JournalError, match="Input/output error"):
            writer.append(line(2))
    for refused in (writer, other_writer):
        with pytest.raises(JournalError):
            refused.append(line(2, golem=int(refused is other_writer)))
    writer.close()
    reopened = opened()
    with pytest.raises(JournalError, match="close this writer and open another"):
        other_writer.append(line(1, golem=1))
    ack = reopened.append(line(2))
    assert (ack.repeated, ack.link.number) == (False, 2)
    reopened.close()
    assert [row["tick"] for row in on_record(home)] == [1, 2]


@pytest.mark.row("EV-3")
def test_a_clock_that_steps_back_changes_neither_order_nor_batches(home: Home, opened: Opener) -> None:
    moments = iter(NOW - timedelta(days=at) for at in range(100))
    writer = opened(clock=lambda: next(moments), policy=limited(batch_records=5))
    links = [writer.append(line(tick)).link for tick in range(1, 13)]
    assert sealed_numbers(home.journal / "w", ended=False) == [0]
    with EventLog(home) as log:
        report = drain_once(home, log, clock=lambda: NOW - timedelta(days=200))
    assert (report.records, report.oldest_seconds) == (5, 0.0)
    writer.close()
    rows = on_record(home)
    assert [row["tick"] for row in rows] == list(range(1, 13))
    assert [Tip(row["link"]["number"], row["link"]["hash"]) for row in rows] == links
