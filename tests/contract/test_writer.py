"""What a live writer promises: what it acknowledges is durable, in order, and in the log exactly as acknowledged."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bardo_pipeline.errors import (
    BackpressureError,
    BardoError,
    CustodyError,
    ForkError,
    IdentityError,
    JournalError,
    LeaseError,
    RecordError,
    RegressionError,
    SchemaVersionError,
    SignatureError,
    StoreError,
)
from bardo_pipeline.events.custody import Tip, content_of, link_of, signed_message, verified
from bardo_pipeline.events.life import KeyRegistered, LifeEvent, life_event
from bardo_pipeline.events.record import SCHEMA_VERSION, DecisionCycleRecord
from bardo_pipeline.events.schema import to_models
from bardo_pipeline.policy import Policy, WriterPolicy
from bardo_pipeline.storage.async_writer import AsyncEventWriter
from bardo_pipeline.storage.drainer import Drainer, DrainReport, drain_once
from bardo_pipeline.storage.frames import HEADER_BYTES, read, segment_header, segment_path
from bardo_pipeline.storage.heads import TickRange
from bardo_pipeline.storage.health import journals
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.journal import ROOM_SECONDS
from bardo_pipeline.storage.journals import journal_depth, sealed_numbers
from bardo_pipeline.storage.log import EventLog
from bardo_pipeline.storage.quarantine import Quarantine
from bardo_pipeline.storage.writer import EventWriter, Signer
from tests.contract.test_event_log import accepted, died
from tests.records import records

NOW = datetime(2026, 11, 1, tzinfo=UTC)
GOLEM, OTHER = "golem-0000", "golem-0001"
Opener = Callable[..., EventWriter]


def clock() -> datetime:
    return NOW


@cache
def model(tick: int, golem: int = 0, seed: int = 0) -> DecisionCycleRecord:
    table = records(golem + 1, golems=golem + 1, tick=tick, seed=1000 * seed + tick).slice(golem)
    return to_models(table, DecisionCycleRecord)[0]


def line(tick: int, golem: int = 0, seed: int = 0) -> bytes:
    return model(tick, golem, seed).model_dump_json().encode()


def changed(record: bytes, **changes: object) -> bytes:
    return orjson.dumps(orjson.loads(record) | changes)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.create(tmp_path / "home", Policy(), NOW)


@pytest.fixture
def opened(home: Home) -> Iterator[Opener]:
    """Opens writers, and lets go of those that a test leaves open."""
    made: list[EventWriter] = []

    def open_(golem_id: str = GOLEM, **more: object) -> EventWriter:
        writer = EventWriter.open(home, golem_id, **({"clock": clock, "drain": "none", "writer": "w"} | more))
        made.append(writer)
        return writer

    yield open_
    for writer in made:
        with suppress(BardoError):
            writer.close()


def limited(**limits: object) -> Policy:
    return Policy(writer=WriterPolicy.model_validate(limits))


def on_record(home: Home, golem_id: str = GOLEM) -> list[dict]:
    with EventLog(home) as log:
        rows = log.read_cycles(["tick", "payload", "link", "writer", "segment"], golems=[golem_id])
        return rows.sort_by("tick").to_pylist()


def drained(home: Home) -> DrainReport:
    with EventLog(home) as log:
        return drain_once(home, log, clock=clock)


# acknowledged, then on record


@pytest.mark.row("EV-3")
def test_what_was_acknowledged_is_in_the_log_when_the_writer_is_closed(home: Home, opened: Opener) -> None:
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
def test_the_link_that_is_acknowledged_follows_the_one_before(opened: Opener) -> None:
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
def test_a_model_is_written_as_the_json_that_it_dumps(home: Home, opened: Opener) -> None:
    with opened() as writer:
        writer.append(model(1))
    assert on_record(home)[0]["payload"] == line(1)


@pytest.mark.row("EV-3")
def test_nothing_is_in_the_log_until_a_drain_and_then_the_journal_is_trimmed(home: Home, opened: Opener) -> None:
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
def test_a_repeat_is_acknowledged_with_the_link_it_has_and_kept_once(where: str, home: Home, opened: Opener) -> None:
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
def test_nothing_is_accepted_past_a_death_or_in_a_gap_that_was_accepted_as_lost(home: Home, opened: Opener) -> None:
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
def test_a_life_event_goes_behind_what_was_appended(home: Home, opened: Opener) -> None:
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


# what is no record of this golem


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
        (42, RecordError, "int is no record"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(
    wrong: bytes, error: type[BardoError], fact: str, home: Home, opened: Opener
) -> None:
    writer = opened()
    with pytest.raises(error, match=fact):
        writer.append(wrong)
    assert journal_depth(home).segments == 0
    assert writer.append(line(1)).link.number == 1


@pytest.mark.row("EV-3")
def test_what_pydantic_reads_otherwise_than_arrow_is_acknowledged_and_drained_as_it_was_meant(
    home: Home, opened: Opener
) -> None:
    odd = [
        changed(line(1), observed_at="2026-01-01 00:00:00.1234567Z"),
        line(2).replace(b'"tick":2', b'"tick":1,"tick":2'),
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


# one writer a golem


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
def test_a_writer_goes_on_where_a_batch_ended(home: Home, opened: Opener) -> None:
    with EventLog(home) as log:
        log.append(records(5, golems=1), writer="batches", segment=1, recorded_at=NOW)
    with opened() as writer:
        ack = writer.append(line(6))
    assert (ack.link.number, ack.gaps) == (2, ())
    assert len(on_record(home)) == 6


@pytest.mark.row("EV-3")
def test_a_closed_writer_accepts_nothing_and_can_be_closed_again(opened: Opener) -> None:
    writer = opened()
    writer.close()
    writer.close()
    with pytest.raises(JournalError, match="its writer is closed"):
        writer.append(line(1))


@pytest.mark.row("EV-3")
def test_writers_of_one_process_share_a_journal_and_numbers_are_never_used_again(home: Home, opened: Opener) -> None:
    for first in (1, 26):
        one, other = opened(), opened(OTHER)
        for tick in range(first, first + 25):
            one.append(line(tick))
            other.append(line(tick, golem=1))
        assert [path.name for path in home.journal.iterdir()] == ["w"]
        one.close()
        other.close()
    rows = on_record(home)
    assert [row["tick"] for row in rows] == list(range(1, 51))
    assert max(row["segment"] for row in rows[:25]) < min(row["segment"] for row in rows[25:])


@pytest.mark.row("EV-3")
def test_threads_of_one_writer_leave_one_chain(home: Home, opened: Opener) -> None:
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


# segments and their bound


@pytest.mark.row("EV-3")
def test_batches_and_seconds_are_the_policys(home: Home, opened: Opener) -> None:
    writer = opened(policy=limited(batch_records=3))
    for tick in range(1, 4):
        assert sealed_numbers(home.journal / "w", ended=False) == []
        writer.append(line(tick))
    late = time.monotonic() + 10.0
    while not sealed_numbers(home.journal / "w", ended=False) and time.monotonic() < late:
        time.sleep(0.001)  # callers are told before the next segment begins
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
def test_a_failed_fsync_is_not_tried_again_as_if_it_had_worked(
    home: Home, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, beside = opened(), opened(OTHER)
    writer.append(line(1))

    def fail(handle: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(JournalError, match="Input/output error"):
            writer.append(line(2))
    for refused in (writer, beside):
        with pytest.raises(JournalError):
            refused.append(line(2, golem=int(refused is beside)))
    writer.close()
    again = opened()
    with pytest.raises(JournalError, match="close this writer and open another"):
        beside.append(line(1, golem=1))
    ack = again.append(line(2))
    assert (ack.repeated, ack.link.number) == (False, 2)
    again.close()
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


# who drains


@pytest.mark.row("EV-3")
@pytest.mark.parametrize("drain", ["process", "thread"])
def test_a_drainer_beside_the_writer_brings_records_to_the_log(drain: str, home: Home, opened: Opener) -> None:
    policy = limited(batch_records=5, journal_bytes_max=20 * len(line(1)))
    writer = opened(drain=drain, policy=policy)
    for tick in range(1, 101):
        writer.append(line(tick))  # far more than fits: it waits for the drainer
    assert len(on_record(home)) >= 80
    writer.close()
    assert [row["tick"] for row in on_record(home)] == list(range(1, 101))


@pytest.mark.row("EV-3")
def test_damage_in_a_sealed_segment_is_named_and_kept_and_the_rest_is_drained(home: Home, opened: Opener) -> None:
    writer = opened(policy=limited(batch_records=5))
    for tick in range(1, 6):
        writer.append(line(tick))
    path = segment_path(home.journal / "w", 0)
    raw = bytearray(path.read_bytes())
    sizes = [len(line(tick)) for tick in range(1, 6)]
    head = (len(raw) - HEADER_BYTES - sum(sizes)) // 5
    offset = HEADER_BYTES + 2 * head + sizes[0] + sizes[1]
    raw[offset + head + 100] ^= 1
    path.write_bytes(bytes(raw))
    report = drained(home)
    assert (report.records, report.segments, report.refused) == (4, 1, 1)
    assert f"{path}, offset {offset}:" in str(report.faults[0][1])
    assert [row["tick"] for row in on_record(home)] == [1, 2, 4, 5]
    (item,) = Quarantine(home).open().to_pylist()
    assert (item["golem_id"], item["tick"], item["error"]) == (GOLEM, 3, "JournalError")
    assert item["raw"] == bytes(raw[offset : offset + head + sizes[2]])
    with pytest.raises(CustodyError, match="was acknowledged, but the log holds 4"):
        writer.close()
    with opened() as again:
        assert again.append(line(3)).late, "the sender can give it again"


@pytest.mark.row("EV-3")
def test_a_drain_that_is_sent_again_leaves_each_record_once(home: Home, opened: Opener) -> None:
    writer = opened(policy=limited(batch_records=5))
    for tick in range(1, 11):
        writer.append(line(tick))
    folder = home.journal / "w"
    kept = {path: path.read_bytes() for path in folder.glob("*.seg")}
    assert drained(home).records == 5
    for path, raw in kept.items():  # as if the drainer had died before it could trim
        path.write_bytes(raw)
    assert drained(home).records == 0
    writer.close()
    assert [row["tick"] for row in on_record(home)] == list(range(1, 11))


# signed


def key_event(key: Ed25519PrivateKey, tick_from: int) -> LifeEvent:
    public_key = key.public_key().public_bytes_raw().hex()
    return life_event(GOLEM, NOW, KeyRegistered(key_id="key-1", public_key=public_key, tick_from=tick_from))


@pytest.mark.row("EV-3", "X-9")
def test_a_signed_writer_signs_what_its_golems_key_asks_for(home: Home, opened: Opener) -> None:
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    with opened(signer=Signer("key-1", key)) as writer:
        writer.append(line(1))
        writer.record(key_event(key, 2))
        writer.append(line(2))
    first, second = (row["link"] for row in on_record(home))
    assert (first["key_id"], first["signature"]) == (None, None)
    assert second["key_id"] == "key-1"
    public_key = key.public_key().public_bytes_raw().hex()
    assert verified(public_key, second["signature"], signed_message(GOLEM, content_of(line(2))))


@pytest.mark.row("EV-3", "X-9")
def test_without_the_registered_key_nothing_is_accepted(opened: Opener) -> None:
    key, wrong = (Ed25519PrivateKey.from_private_bytes(bytes([k]) * 32) for k in (1, 2))
    with opened() as writer:
        writer.record(key_event(key, 2))
        writer.append(line(1))
        with pytest.raises(SignatureError, match="tick 2 is not signed, though key key-1 is registered"):
            writer.append(line(2))
    for signer in (Signer("key-1", wrong), Signer("key-2", key)):
        with opened(signer=signer) as writer, pytest.raises(SignatureError, match="asks for key key-1"):
            writer.append(line(2))
    with opened(signer=Signer("key-1", key)) as writer:
        assert writer.append(line(2)).link.number == 2


# asyncio


@pytest.mark.row("EV-3")
def test_coroutines_append_through_the_same_journal(home: Home) -> None:
    async def write(golem: int) -> list[Tip]:
        opened = AsyncEventWriter.open(home, f"golem-{golem:04}", clock=clock, drain="thread", writer="w")
        async with await opened as writer:
            acks = [await writer.append(line(tick, golem)) for tick in range(1, 31)]
            again = await writer.append(line(1, golem))
            assert (again.repeated, again.link) == (True, acks[0].link)
            with pytest.raises(ForkError):
                await writer.append(line(2, golem, seed=1))
            with pytest.raises(RecordError):
                await writer.append(b"{}")
            return [ack.link for ack in acks]

    async def everybody() -> list[list[Tip]]:
        return await asyncio.gather(*(write(golem) for golem in range(4)))

    links = asyncio.run(everybody())
    for golem in range(4):
        rows = on_record(home, f"golem-{golem:04}")
        assert [Tip(row["link"]["number"], row["link"]["hash"]) for row in rows] == links[golem]


@pytest.mark.row("EV-3")
def test_callers_are_held_up_a_little_before_the_journal_is_full(home: Home, opened: Opener) -> None:
    writer = opened(policy=limited(journal_bytes_max=16 * len(line(1)), batch_records=1))
    pauses = []
    for tick in range(1, 15):
        writer.append(line(tick), wait=False)
        pauses.append(writer.pause_seconds())
    assert pauses[:6] == [0.0] * 6, "nothing while it is less than half full"
    late = [pause for pause in pauses if pause]
    assert len(late) > 3
    assert late == sorted(late), "the fuller, the longer"
    assert late[-1] < ROOM_SECONDS
    drained(home)
    assert writer.pause_seconds() == 0.0
    writer.close()


@pytest.mark.row("EV-3")
def test_a_coroutine_waits_for_room_without_holding_up_its_loop(home: Home) -> None:
    policy = limited(journal_bytes_max=len(line(1)) + len(line(2)) + 800, batch_records=1)

    async def go() -> None:
        async with await AsyncEventWriter.open(home, GOLEM, clock=clock, drain="none", policy=policy) as writer:
            await writer.append(line(1))
            await writer.append(line(2))
            with pytest.raises(BackpressureError):
                await writer.append(line(3), wait=False)
            waiting = asyncio.create_task(writer.append(line(3)))
            while not waiting.done():
                await asyncio.to_thread(drained, home)
            assert (await waiting).tick == 3

    asyncio.run(go())


# who dies, and who can not go on


@pytest.mark.row("EV-3")
def test_what_a_dead_writer_left_is_drained_before_anything_is_accepted(home: Home, opened: Opener) -> None:
    code = (
        "import os, sys; from pathlib import Path; from tests.contract.test_writer import GOLEM, clock, line\n"
        "from bardo_pipeline.storage.writer import EventWriter\n"
        "w = EventWriter.open(Path(sys.argv[1]), GOLEM, clock=clock, drain='none', writer='dead')\n"
        "[w.append(line(tick)) for tick in (1, 2, 3)]; os._exit(9)"
    )
    run = subprocess.run([sys.executable, "-c", code, str(home.root)], cwd=Path(__file__).parents[2])
    assert run.returncode == 9
    left = segment_path(home.journal / "dead", 0)
    with left.open("ab") as torn:
        torn.write(b"FRAM and then the power went")
    with EventLog(home) as log, pytest.raises(LeaseError, match="was left by writer dead, which died: `bardo drain`"):
        log.append(records(4, golems=1), writer="batches", segment=1, recorded_at=NOW)
    writer = opened()
    assert (writer.recovered.records, writer.recovered.torn) == (3, 28)
    assert not left.exists()
    with pytest.raises(ForkError):
        writer.append(line(3, seed=1))
    assert writer.append(line(4)).link.number == 4


@pytest.mark.row("EV-3")
def test_an_opening_that_fails_leaves_nothing_behind_that_hinders_the_next(
    home: Home, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = home.journal / "w"
    folder.mkdir()
    segment_path(folder, 3).write_bytes(segment_header(3))
    with monkeypatch.context() as patch:
        patch.setattr(Drainer, "once", lambda _: (_ for _ in ()).throw(StoreError("the log cannot be read")))
        with pytest.raises(StoreError, match="the log cannot be read"):
            opened()
    assert list(home.leases.iterdir()) == []
    assert opened().append(line(1)).link.number == 1


@pytest.mark.row("EV-3")
def test_a_golem_whose_writer_could_not_drain_waits_for_that_writers_journal(
    home: Home, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, beside = opened(), opened(OTHER)
    writer.append(line(1))

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(JournalError):
            writer.append(line(2))
        patch.setattr(os, "ftruncate", fail)
        with pytest.raises(JournalError, match="cannot be written"):
            writer.close()
    with pytest.raises(LeaseError, match="writer w let go of this golem and could not drain"):
        opened(writer="another")
    beside.close()
    with opened(writer="another") as again:
        assert again.append(line(2)).link.number == 2
    assert [row["tick"] for row in on_record(home)] == [1, 2]


@pytest.mark.row("EV-3")
def test_a_journal_that_cannot_be_read_is_named_and_holds_back_no_other(
    home: Home, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = opened(policy=limited(batch_records=1)), opened(OTHER, writer="x", policy=limited(batch_records=1))
    first.append(line(1))
    second.append(line(1, golem=1))
    honest = Path.read_bytes

    def fail(path: Path) -> bytes:
        if path.parent.name == "w":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return honest(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", fail)
        with pytest.raises(StoreError, match=r"journal/w cannot be .*Input/output error"):
            drained(home)
    assert [len(on_record(home, golem_id)) for golem_id in (GOLEM, OTHER)] == [0, 1]
    assert drained(home).records == 1


@pytest.mark.row("EV-3")
def test_a_disk_that_takes_nothing_is_named_when_a_writer_is_opened_and_closed(
    home: Home, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = opened()
    writer.append(line(1))

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("bardo_pipeline.storage.leases.os.pwrite", full)
        with pytest.raises(StoreError, match=r"No space left on device.*: free some space"):
            opened(OTHER)
    assert opened(OTHER).append(line(1, golem=1)).link.number == 1
    with monkeypatch.context() as patch:
        patch.setattr(Drainer, "_take", full)
        with pytest.raises(StoreError, match=r"No space left on device.*: free some space"):
            writer.close()
    with opened() as again:
        assert again.append(line(2)).link.number == 2
    assert len(on_record(home)) == 2


@pytest.mark.row("EV-3")
def test_bardo_drain_takes_what_the_dead_left_and_says_what_was_broken(home: Home, opened: Opener) -> None:
    writer = opened(policy=limited(batch_records=2))
    for tick in (1, 2):
        writer.append(line(tick))
    path = segment_path(home.journal / "w", 0)
    raw = bytearray(path.read_bytes())
    raw[-10] ^= 1
    path.write_bytes(bytes(raw))
    command = [sys.executable, "-m", "bardo_pipeline.doors.cli", "drain", "--home", str(home.root)]
    said = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"COLUMNS": "400"})
    assert (said.returncode, said.stderr) == (1, "")
    assert "1 records from 1 segments" in said.stdout
    assert "1 in quarantine: `bardo quarantine list`" in said.stdout
    assert f"{path}, offset" in said.stdout
    again = subprocess.run(command, capture_output=True, text=True)
    assert (again.returncode, again.stdout.splitlines()[0]) == (0, "0 records from 0 segments (0 bytes) in 0.00 s")


@pytest.mark.row("EV-3")
def test_a_forked_child_has_no_part_in_its_parent_s_writer(home: Home, opened: Opener) -> None:
    writer = opened()
    writer.append(line(1))
    ends, begins = os.pipe()
    child = os.fork()
    if not child:
        said = b""
        try:
            writer.append(line(2, seed=1))
        except JournalError as error:
            said = str(error).encode()
        writer.close()
        os.write(begins, said)
        os._exit(0)
    os.waitpid(child, 0)
    assert b"belongs to the process that opened it" in os.read(ends, 1_000)
    assert writer.append(line(2)).link.number == 2
    with pytest.raises(LeaseError):
        opened(writer="other")
    writer.close()
    with EventLog(home) as log:
        assert log.read_cycles(["tick"])["tick"].to_pylist() == [1, 2]


@pytest.mark.row("EV-3")
def test_a_coroutine_that_sends_again_or_late_holds_up_nobody(home: Home) -> None:
    async def go() -> None:
        async with await AsyncEventWriter.open(home, GOLEM, clock=clock, drain="none", writer="w") as writer:
            acks = await asyncio.gather(*(writer.append(line(tick)) for tick in (1, 2, 4)))
            again, late = await asyncio.gather(writer.append(line(2)), writer.append(line(3), wait=False))
            assert (again.repeated, again.link) == (True, acks[1].link)
            assert (late.late, late.link.number) == (True, 4)
            with pytest.raises(ForkError):
                await writer.append(line(2, seed=9))

    asyncio.run(go())


@pytest.mark.row("X-11")
def test_a_journal_says_which_limits_its_writers_keep(home: Home, opened: Opener) -> None:
    writer = opened(policy=limited(journal_bytes_max=4 * 2**20, flush_seconds=300.0))
    (journal,) = journals(home, NOW, Policy().writer)
    assert (journal.bytes_max, journal.flush_seconds, journal.alive) == (4 * 2**20, 300.0, True)
    writer.close()
