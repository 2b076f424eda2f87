"""Drains, signatures, asyncio, waiting callers, and writers that die, fail or fork."""

from __future__ import annotations

import asyncio
import errno
import os
import re
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bardo_pipeline.errors import (
    BackpressureError,
    CustodyError,
    ForkError,
    JournalError,
    LeaseError,
    RecordError,
    SignatureError,
    StoreError,
)
from bardo_pipeline.events.custody.hash_chain import Tip, content_of, verified
from bardo_pipeline.events.life.events import KeyRegistered, LifeEvent, life_event
from bardo_pipeline.policy import Policy
from bardo_pipeline.signing import Signer, signed_message
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.intake.quarantine import Quarantine
from bardo_pipeline.storage.intake.quarantine_retry import retry
from bardo_pipeline.storage.journal.async_event_writer import AsyncEventWriter, EventWriter
from bardo_pipeline.storage.journal.drainer import Drainer
from bardo_pipeline.storage.journal.frames import HEADER_BYTES, segment_header, segment_path
from bardo_pipeline.storage.journal.journal import ROOM_SECONDS
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.operations.health_metrics import journals
from bardo_pipeline.storage.verification.verify import verify
from tests.support.processes.bardo_command import run
from tests.support.processes.forked_processes import Forked, die
from tests.support.records.drawn_records import records
from tests.support.records.log_queries import GOLEM, NOW, OTHER
from tests.support.records.writer_records import Opener, clock, drained, limited, line, on_record

# drains


@pytest.mark.row("EV-3")
@pytest.mark.parametrize("drain", ["process", "thread"])
def test_a_concurrent_drainer_brings_records_to_the_log(drain: str, home: Home, opened: Opener) -> None:
    policy = limited(batch_records=5, journal_bytes_max=20 * len(line(1)))
    writer = opened(drain=drain, policy=policy)
    for tick in range(1, 101):
        writer.append(line(tick))  # more than the journal holds, so the writer waits for drains
    waiting = policy.writer.journal_bytes_max // min(len(line(tick)) for tick in range(1, 101))
    assert len(on_record(home)) >= 100 - waiting
    writer.close()
    assert [row["tick"] for row in on_record(home)] == list(range(1, 101))


@pytest.mark.row("EV-3")
def test_a_damaged_frame_is_quarantined_and_the_other_frames_are_drained(home: Home, opened: Opener) -> None:
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
    with pytest.raises(CustodyError, match="was acknowledged, but the log has 4"):
        writer.close()
    with opened() as reopened:
        assert reopened.append(line(3)).late, "the sender can give it again"


@pytest.mark.row("EV-3")
def test_a_repeated_drain_stores_each_record_once(home: Home, opened: Opener) -> None:
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
def test_a_writer_signs_with_the_registered_key_of_its_golem(home: Home, opened: Opener) -> None:
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
def test_an_append_without_the_registered_key_is_refused(opened: Opener) -> None:
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

    async def write_all() -> list[list[Tip]]:
        return await asyncio.gather(*(write(golem) for golem in range(4)))

    links = asyncio.run(write_all())
    for golem in range(4):
        rows = on_record(home, f"golem-{golem:04}")
        assert [Tip(row["link"]["number"], row["link"]["hash"]) for row in rows] == links[golem]


@pytest.mark.row("EV-3")
def test_callers_are_slowed_down_before_the_journal_is_full(home: Home, opened: Opener) -> None:
    writer = opened(policy=limited(journal_bytes_max=16 * len(line(1)), batch_records=1))
    pauses = []
    for tick in range(1, 15):
        writer.append(line(tick), wait=False)
        pauses.append(writer.journal.pause_seconds())
    assert pauses[:6] == [0.0] * 6, "no pause while the journal is less than half full"
    late = [pause for pause in pauses if pause]
    assert len(late) > 3
    assert late == sorted(late), "pauses grow as the journal fills"
    assert late[-1] < ROOM_SECONDS
    drained(home)
    assert writer.journal.pause_seconds() == 0.0
    writer.close()


@pytest.mark.row("EV-3")
def test_a_coroutine_waits_for_room_without_blocking_its_loop(home: Home) -> None:
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


# writers that die or fail


def write_and_die(root: str) -> None:
    writer = EventWriter.open(Path(root), GOLEM, clock=clock, drain="none", writer="dead")
    for tick in (1, 2, 3):
        writer.append(line(tick))
    die()


@pytest.mark.row("EV-3", "X-9")
@pytest.mark.parametrize(
    ("kept", "ticks", "fact"), [(0, [3, 4], "0 bytes are the whole segment"), (1, [1, 3, 4], "0 bytes follow")]
)
def test_a_cut_sealed_segment_is_reported_and_the_others_are_drained(
    home: Home, opened: Opener, kept: int, ticks: list[int], fact: str
) -> None:
    """The cut is at the end of an append, so the segment itself does not show it."""
    writer = opened(policy=limited(batch_records=2))
    for tick in (1, 2, 3, 4):
        writer.append(line(tick))
    writer.journal.seal()
    path = segment_path(home.journal / "w", 0)
    place = path.relative_to(home.root).as_posix()
    ends = [match.start() for match in re.finditer(b"FRAM", path.read_bytes())]
    os.truncate(path, ends[1] if kept else 0)
    assert [journal.damaged for journal in journals(home, NOW, Policy().writer)] == [1]
    assert place in verify(home).files
    report = drained(home)
    assert report.records == len(ticks)
    assert f"{path}, offset" in str(report.faults[0][1])
    assert fact in str(report.faults[0][1])
    assert [row["tick"] for row in on_record(home)] == ticks
    (item,) = Quarantine(home).open().to_pylist()
    assert (item["file"], item["error"], item["raw"]) == (f"w/{path.name}", "JournalError", b"")
    with EventLog(home) as log:
        outcome = retry(log, Quarantine(home), [item["item_id"]], at=NOW, policy=Policy())
    assert (outcome.taken, [item_id for item_id, _ in outcome.stayed]) == ([], [item["item_id"]])
    with pytest.raises(CustodyError, match="was acknowledged"):
        writer.close()


@pytest.mark.row("EV-3", "X-9")
def test_an_empty_segment_of_a_dead_writer_is_reported(home: Home, opened: Opener) -> None:
    """It may hold no record: earlier versions left one after a power cut."""
    path = segment_path(home.journal / "dead", 0)
    path.parent.mkdir()
    path.touch()
    (broken,) = verify(home).breaks
    assert (broken.kind, broken.file) == ("journal", path.relative_to(home.root).as_posix())
    assert "shorter than its header: any record in it is lost" in broken.fact
    assert [journal.damaged for journal in journals(home, NOW, Policy().writer)] == [1]
    writer = opened()
    ((name, error),) = writer.recovered.faults
    assert (name, str(path) in str(error), path.parent.exists()) == ("dead", True, False)
    assert writer.append(line(1)).link.number == 1


@pytest.mark.row("EV-3")
def test_the_journal_of_a_dead_writer_is_drained_before_new_records(home: Home, opened: Opener) -> None:
    assert Forked(write_and_die, str(home.root)).wait() == -9
    leftover_segment = segment_path(home.journal / "dead", 0)
    with leftover_segment.open("ab") as torn:
        torn.write(b"FRAM and then the power went")
    with EventLog(home) as log, pytest.raises(LeaseError, match="was left by writer dead, which died: `bardo drain`"):
        log.append(records(4, golems=1), writer="batches", segment=1, recorded_at=NOW)
    writer = opened()
    assert (writer.recovered.records, writer.recovered.torn) == (3, 28)
    assert not leftover_segment.exists()
    with pytest.raises(ForkError):
        writer.append(line(3, seed=1))
    assert writer.append(line(4)).link.number == 4


@pytest.mark.row("EV-3")
def test_a_failed_opening_does_not_block_the_next(home: Home, opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_golem_is_refused_until_the_journal_of_its_last_writer_is_drained(
    home: Home, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, other_writer = opened(), opened(OTHER)
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
    with pytest.raises(LeaseError, match="writer w released this golem without draining"):
        opened(writer="another")
    other_writer.close()
    with opened(writer="another") as reopened:
        assert reopened.append(line(2)).link.number == 2
    assert [row["tick"] for row in on_record(home)] == [1, 2]


@pytest.mark.row("EV-3")
def test_an_unreadable_journal_is_named_and_blocks_no_other_journal(
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
def test_a_full_disk_is_named_when_a_writer_is_opened_or_closed(
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
        patch.setattr(Drainer, "_commit", full)
        with pytest.raises(StoreError, match=r"No space left on device.*: free some space"):
            writer.close()
    with opened() as reopened:
        assert reopened.append(line(2)).link.number == 2
    assert len(on_record(home)) == 2


@pytest.mark.row("EV-3")
def test_bardo_drain_drains_dead_writers_and_reports_damage(home: Home, opened: Opener) -> None:
    writer = opened(policy=limited(batch_records=2))
    for tick in (1, 2):
        writer.append(line(tick))
    path = segment_path(home.journal / "w", 0)
    raw = bytearray(path.read_bytes())
    raw[-10] ^= 1
    path.write_bytes(bytes(raw))
    words, wide = ["drain", "--home", str(home.root)], os.environ | {"COLUMNS": "400"}
    output = run(words, wide)
    assert (output.returncode, output.stderr) == (1, "")
    assert "1 records from 1 segments" in output.stdout
    assert "1 in quarantine: `bardo quarantine list`" in output.stdout
    assert f"{path}, offset" in output.stdout
    second_output = run(words, wide)
    assert second_output.returncode == 0
    assert second_output.stdout.startswith("0 records from 0 segments (0 bytes) in ")


@pytest.mark.row("EV-3")
def test_a_forked_child_cannot_use_the_writer_of_its_parent(home: Home, opened: Opener) -> None:
    writer = opened()
    writer.append(line(1))
    ends, begins = os.pipe()
    child = os.fork()
    if not child:
        output = b""
        try:
            writer.append(line(2, seed=1))
        except JournalError as error:
            output = str(error).encode()
        writer.close()
        os.write(begins, output)
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
def test_repeated_and_late_appends_of_a_coroutine_do_not_block(home: Home) -> None:
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
def test_a_journal_states_the_limits_of_its_writers(home: Home, opened: Opener) -> None:
    writer = opened(policy=limited(journal_bytes_max=4 * 2**20, flush_seconds=300.0))
    (journal,) = journals(home, NOW, Policy().writer)
    assert (journal.bytes_max, journal.flush_seconds, journal.alive) == (4 * 2**20, 300.0, True)
    writer.close()
