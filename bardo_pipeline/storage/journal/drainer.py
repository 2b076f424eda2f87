"""Drainer: sealed segments go to the log, exactly once, and are taken away when they are durable there.

One a home at a time. A batch is a run of one journal's segments under the transaction (writer, last segment); sent
again after a kill, all its rows are on record already. What cannot be read is kept in quarantine, never dropped.
Source: architecture ("Many journals, one drainer a home"); EV-3.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from bardo_pipeline.errors import BardoError, JournalError
from bardo_pipeline.events.custody.hash_chain import Payloads, Tip
from bardo_pipeline.events.record.check_batch import examine
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage import locks
from bardo_pipeline.storage.disk_errors import writing_to
from bardo_pipeline.storage.home import Home, sync_folder
from bardo_pipeline.storage.intake.json_reader import read_lines
from bardo_pipeline.storage.intake.line_buffer import Lines
from bardo_pipeline.storage.intake.quarantine import Quarantine, QuarantineItem
from bardo_pipeline.storage.journal.frames import Fault, Frame, Segment, read, segment_path
from bardo_pipeline.storage.journal.leases import clear, stale
from bardo_pipeline.storage.journal.segment_files import (
    DRAIN,
    LOG,
    dead,
    journal_folders,
    remove_journal,
    sealed_numbers,
)
from bardo_pipeline.storage.log.event_log import EventLog

DRAINER = "drainer"
"""The lock of the one that drains for as long as there are writers."""

_POLL_SECONDS = 0.05


@dataclass
class DrainReport:
    """What one pass over all journals did.

    records: taken to the log. segments, bytes: taken away. refused: records in quarantine, and broken pieces.
    torn: bytes that dead writers left half written, of which nobody was told. faults: every broken piece, and every
    break of a chain, by writer. oldest_seconds: how long ago the oldest of the records was accepted; None without one.
    """

    records: int = 0
    segments: int = 0
    refused: int = 0
    torn: int = 0
    bytes: int = 0
    seconds: float = 0.0
    oldest_seconds: float | None = None
    faults: list[tuple[str, JournalError]] = field(default_factory=list)


def drain_once(
    home: Home, log: EventLog, *, clock: Callable[[], datetime], policy: Policy | None = None
) -> DrainReport:
    """Take every sealed segment of every journal to the log; journals of the dead to their end, and then away.

    clock: the moment of recording, asked once a commit. Waits while another drains.
    """
    return Drainer(home, log, clock=clock, policy=policy).once()


class Drainer:
    """Takes the sealed segments of all journals of a home to its log."""

    def __init__(
        self,
        home: Home,
        log: EventLog,
        *,
        clock: Callable[[], datetime],
        policy: Policy | None = None,
    ) -> None:
        self._home, self._log, self._clock = home, log, clock
        self._policy = policy or Policy()
        self._report = DrainReport()

    def once(self) -> DrainReport:
        """Drain all journals once. Raises the first journal's error after the other journals were drained."""
        failed: list[BardoError] = []
        with self._home.lock(DRAIN):
            self._report = report = DrainReport()
            started = time.perf_counter()
            for folder in journal_folders(self._home):
                try:
                    with writing_to(folder), dead(folder) as ended:
                        self._drain(folder, ended=ended)
                except BardoError as error:
                    failed.append(error)
            self.clear_leases()
            report.seconds = time.perf_counter() - started
        if failed:
            raise failed[0]
        return report

    def run(self, stop: threading.Event, tell: Callable[[DrainReport], None] = lambda _: None) -> None:
        """Drain until told to stop, looking for sealed segments twenty times a second. tell: hears what a pass did."""
        while not stop.is_set():
            report = self.once() if self.is_work() else DrainReport()
            if report.segments or report.torn:
                tell(report)
                stop.wait(0.001)  # whoever waits for the lock comes before the next pass
            else:
                stop.wait(_POLL_SECONDS)

    def is_work(self) -> bool:
        """Whether a pass would find anything."""
        return (
            any(sealed_numbers(folder, ended=False) for folder in journal_folders(self._home))
            or self.has_dead_journal()
        )

    def has_dead_journal(self) -> bool:
        """Whether a writer died and left its journal."""
        folders = journal_folders(self._home)
        if not folders:
            return False
        with self._home.lock(DRAIN):  # so that a writer that meets us at its lock knows what to wait for
            return any(_is_dead(folder) for folder in folders)

    def _drain(self, folder: Path, *, ended: bool) -> None:
        numbers = sealed_numbers(folder, ended=ended)
        for batch in self._batches(folder, numbers, ended=ended):
            self._take(folder.name, batch)
            for segment in batch:
                segment.path.unlink()  # a power cut may bring it back; its records are then repeats
            self._report.segments += len(batch)
            self._report.bytes += sum(segment.size for segment in batch)
        if ended:
            self.clear_leases(folder.name)
            remove_journal(folder)

    def _batches(self, folder: Path, numbers: Sequence[int], *, ended: bool) -> Iterator[list[Segment]]:
        """Segments in order, as many at a time as a commit may take."""
        limits = self._policy.writer
        batch: list[Segment] = []
        records = size = 0
        for number in numbers:
            segment = read(segment_path(folder, number), sealed=not (ended and number == numbers[-1]))
            full = (
                records + len(segment.frames) > limits.drain_records_max or size + segment.size > limits.drain_bytes_max
            )
            if batch and full:
                yield batch
                batch, records, size = [], 0, 0
            batch.append(segment)
            records, size = records + len(segment.frames), size + segment.size
        if batch:
            yield batch

    def _take(self, writer: str, batch: Sequence[Segment]) -> None:
        """Bring the records of these segments to the log, durably; what is no record, to quarantine."""
        now = self._clock()
        items = [_item(writer, segment, fault) for segment in batch for fault in segment.faults]
        self._report.faults += [(writer, segment.error(fault)) for segment in batch for fault in segment.faults]
        self._report.torn += sum(segment.torn for segment in batch)
        frames = [(segment, frame) for segment in batch for frame in segment.frames]
        if frames:
            self._check_chains(writer, [frame for _, frame in frames])
            items += self._admit(writer, frames, batch[-1].number, now)
            oldest = datetime.fromtimestamp(frames[0][1].accepted_at / 1e6, UTC)
            age = max(0.0, (now - oldest).total_seconds())  # a clock may step back
            self._report.oldest_seconds = max(age, self._report.oldest_seconds or age)
        if items:
            Quarantine(self._home, self._policy).put(items, now)
            self._report.refused += len(items)

    def _admit(
        self, writer: str, frames: Sequence[tuple[Segment, Frame]], number: int, now: datetime
    ) -> list[QuarantineItem]:
        lines = Lines.of([frame.payload for _, frame in frames])
        parsed = read_lines(lines)
        kept = [frames[line][1] for line in parsed.lines.tolist()]
        admitted = self._log.admit(
            examine(parsed.records),
            writer=writer,
            segment=number,
            recorded_at=now,
            payloads=Payloads(lines.column(parsed.lines), [frame.content for frame in kept]),
            signatures=[frame.signature for frame in kept],
            leased_golems=frozenset(frame.golem_id for frame in kept),
        )
        if admitted.appended.repeated:
            # A drainer that was killed may have named its commit without making the name durable.
            sync_folder(self._home.cycles / "_delta_log")
        self._report.records += admitted.appended.written
        refused: list[tuple[int, BardoError]] = [(int(parsed.lines[row.row]), row.error) for row in admitted.refused]
        refused += [(bad.line, bad.error) for bad in parsed.bad]
        return [_refused(writer, frames[line][0], frames[line][1], error) for line, error in refused]

    def _check_chains(self, writer: str, frames: Sequence[Frame]) -> None:
        """Say where a frame does not follow the one before it: whoever took frames away left this behind."""
        tips: dict[str, Tip] = {}
        for frame in frames:
            tip = tips.get(frame.golem_id) or self._log.tip(frame.golem_id)
            # Sent again after a kill, frames are on record already and below the tip.
            follows = frame.number <= tip.number and frame.golem_id not in tips
            if not follows and (frame.number, frame.previous) != (tip.number + 1, tip.hash):
                fact = f"golem {frame.golem_id}: link {frame.number} at tick {frame.tick} does not follow {tip.number}"
                error = JournalError(f"journal of writer {writer}: {fact}: `bardo verify` shows what is on record")
                self._report.faults.append((writer, error))
            tips[frame.golem_id] = Tip(frame.number, frame.link)

    def clear_leases(self, drained: str | None = None) -> None:
        """Free the golems of writers that have nothing left to drain."""
        if self._home.leases.exists() and stale(self._home):
            with self._home.lock(LOG):  # nobody takes a lease meanwhile
                left = {folder.name for folder in journal_folders(self._home)} - {drained}
                for path in stale(self._home):
                    clear(path, kept=left)


def _is_dead(folder: Path) -> bool:
    with dead(folder) as ended:
        return ended


def _item(writer: str, segment: Segment, fault: Fault) -> QuarantineItem:
    file = f"{writer}/{segment.path.name}"
    reason = str(segment.error(fault))
    return QuarantineItem("journal", file, fault.offset, fault.golem_id, fault.tick, "JournalError", reason, fault.raw)


def _refused(writer: str, segment: Segment, frame: Frame, error: BardoError) -> QuarantineItem:
    line = segment.frames.index(frame) + 1
    file, kind = f"{writer}/{segment.path.name}", type(error).__name__
    return QuarantineItem(
        "journal", file, line, frame.golem_id, frame.tick, kind, str(error), frame.payload, frame.signature
    )


# the drainer's own process


@contextmanager
def only_drainer(home: Home) -> Iterator[bool]:
    """Whether this is the home's only lasting drainer; if so, it is until the end."""
    home.locks.mkdir(exist_ok=True)
    with locks.held_if_free(home.locks / f"{DRAINER}.lock") as free:
        yield free


def serve(root: Path, policy: Policy, clock: Callable[[], datetime]) -> None:
    """Drain until the parent is gone (its end of our standard input closes), then once more."""
    home = Home.open(root)
    with only_drainer(home) as alone:
        if not alone:
            return
        stop = threading.Event()
        threading.Thread(target=_until_closed, args=(stop,), daemon=True).start()
        with EventLog(home, policy) as log:
            drainer = Drainer(home, log, clock=clock, policy=policy)
            drainer.run(stop)
            drainer.once()


def _until_closed(stop: threading.Event) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    stop.set()


class DrainProcess:
    """The drainer's process of this process, begun where no other drains the home, and again when it is gone."""

    def __init__(self, home: Home, policy: Policy) -> None:
        self._home, self._policy = home, policy
        self._child: subprocess.Popen[bytes] | None = None

    def ensure_running(self) -> None:
        """Begin it if nobody drains."""
        if self._child is not None and self._child.poll() is None:
            return
        with only_drainer(self._home) as nobody:
            pass
        if nobody:
            command = [sys.executable, "-m", "bardo_pipeline.cli.operations.drain_command", str(self._home.root)]
            self._child = subprocess.Popen(
                [*command, self._policy.model_dump_json()],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the writer; this one ends when that has gone
            )

    def stop(self) -> None:
        """Let it finish what it is at."""
        if self._child is not None:
            assert self._child.stdin is not None
            with suppress(BrokenPipeError):
                self._child.stdin.close()
            self._child.wait()
            self._child = None


class DrainThread:
    """A thread that drains with the log that the writers have open; begun again where it failed."""

    def __init__(self, drainer: Drainer) -> None:
        self._stop = threading.Event()
        self._drainer = drainer
        self._thread: threading.Thread | None = None

    def ensure_running(self) -> None:
        """Begin it if it is not at work."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._drainer.run, args=(self._stop,), name="drainer", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Let it finish what it is at."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
