"""The drainer: commits sealed journal segments to the log exactly once and deletes them when they are durable there.

One drainer runs per home at a time. A batch is a run of one journal's segments under the transaction (writer, last
segment); a retry after a kill finds its rows in the log. Unreadable bytes go to quarantine.
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
from datetime import datetime
from pathlib import Path

from bardo_pipeline.clock import moment_at
from bardo_pipeline.errors import BardoError, JournalError
from bardo_pipeline.events.custody.hash_chain import Payloads, Tip
from bardo_pipeline.events.record.validate import examine
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage import locks
from bardo_pipeline.storage.home import Home, sync_folder, writing_to
from bardo_pipeline.storage.intake.json_reader import read_lines
from bardo_pipeline.storage.intake.line_buffer import Lines
from bardo_pipeline.storage.intake.quarantine import Quarantine, QuarantineItem
from bardo_pipeline.storage.journal.frames import Fault, Frame, Segment, read, segment_path, stated_sizes
from bardo_pipeline.storage.journal.segment_files import (
    DRAIN,
    LOG,
    dead_writer,
    journal_folders,
    remove_journal,
    sealed_numbers,
)
from bardo_pipeline.storage.leases import remove_stale_lease, stale_leases
from bardo_pipeline.storage.log.batch import Stamp
from bardo_pipeline.storage.log.event_log import EventLog

DRAINER = "drainer"
"""Name of the lock of the home's long-running drainer."""

_POLL_SECONDS = 0.05


@dataclass
class DrainReport:
    """Result of one pass over all journals.

    Parameters
    ----------
    records : committed to the log
    segments, bytes : deleted from journals
    refused : quarantined records and broken pieces
    torn : bytes of unacknowledged appends of dead writers
    faults : broken pieces and broken chains, by writer
    oldest_seconds : age of the oldest record; None without records
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
    """Commit every sealed segment of every journal to the log; drain journals of dead writers fully and delete them.

    Waits while another process drains.

    Parameters
    ----------
    clock : recording time, read once per commit
    """
    return Drainer(home, log, clock=clock, policy=policy).once()


class Drainer:
    """Commits the sealed segments of all journals of a home to its log."""

    def __init__(
        self, home: Home, log: EventLog, *, clock: Callable[[], datetime], policy: Policy | None = None
    ) -> None:
        self._home, self._log, self._clock = home, log, clock
        self._policy = policy or Policy()
        self._report = DrainReport()

    def once(self) -> DrainReport:
        """Drain all journals once. Raises the first error after all journals were tried."""
        errors: list[BardoError] = []
        with self._home.lock(DRAIN):
            self._report = report = DrainReport()
            started = time.perf_counter()
            for folder in journal_folders(self._home):
                try:
                    with writing_to(folder), dead_writer(folder) as ended:
                        self._drain(folder, ended=ended)
                except BardoError as error:
                    errors.append(error)
            self.clear_leases()
            report.seconds = time.perf_counter() - started
        if errors:
            raise errors[0]
        return report

    def run(self, stop: threading.Event, report_pass: Callable[[DrainReport], None] = lambda _: None) -> None:
        """Drain until `stop` is set, polling every 50 ms; `report_pass` gets the report of each pass."""
        while not stop.is_set():
            report = self.once() if self.is_work() else DrainReport()
            if report.segments or report.torn:
                report_pass(report)
                stop.wait(0.001)  # let a process that waits for the lock run first
            else:
                stop.wait(_POLL_SECONDS)

    def is_work(self) -> bool:
        """Whether there is a sealed segment or a journal of a dead writer."""
        return (
            any(sealed_numbers(folder, ended=False) for folder in journal_folders(self._home))
            or self.has_dead_journal()
        )

    def has_dead_journal(self) -> bool:
        """Whether a dead writer left its journal."""
        folders = journal_folders(self._home)
        if not folders:
            return False
        with self._home.lock(DRAIN):  # a writer that finds its lock taken by this probe waits for the drain lock
            return any(_is_dead(folder) for folder in folders)

    def _drain(self, folder: Path, *, ended: bool) -> None:
        numbers = sealed_numbers(folder, ended=ended)
        for batch in self._batches(folder, numbers, ended=ended):
            self._commit(folder.name, batch)
            for segment in batch:
                segment.path.unlink()  # a power cut may restore it; its records are then repetitions
            self._report.segments += len(batch)
            self._report.bytes += sum(segment.size for segment in batch)
        if ended:
            self.clear_leases(folder.name)
            remove_journal(folder)

    def _batches(self, folder: Path, numbers: Sequence[int], *, ended: bool) -> Iterator[list[Segment]]:
        """Group segments in order into batches within the limits of a commit."""
        limits = self._policy.writer
        batch: list[Segment] = []
        records = size = 0
        sizes = stated_sizes(folder)
        for number in numbers:
            is_sealed = not (ended and number == numbers[-1])
            segment = read(segment_path(folder, number), sealed=is_sealed, size_stated=sizes.get(number, 0))
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

    def _commit(self, writer: str, batch: Sequence[Segment]) -> None:
        """Commit the records of these segments to the log, and quarantine invalid bytes."""
        now = self._clock()
        items = [_item(writer, segment, fault) for segment in batch for fault in segment.faults]
        self._report.faults += [(writer, segment.error(fault)) for segment in batch for fault in segment.faults]
        self._report.torn += sum(segment.torn for segment in batch)
        frames = [(segment, frame) for segment in batch for frame in segment.frames]
        if frames:
            self._check_chains(writer, [frame for _, frame in frames])
            items += self._admit(writer, frames, batch[-1].number, now)
            oldest = moment_at(frames[0][1].accepted_at)
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
            Stamp(writer, number, now, checks_clock=False),
            payloads=Payloads(lines.column(parsed.lines), [frame.content for frame in kept]),
            signatures=[frame.signature for frame in kept],
            leased_golems=frozenset(frame.golem_id for frame in kept),
        )
        if admitted.appended.repeated:
            # A killed drainer may have created the commit's name without syncing it.
            sync_folder(self._home.cycles / "_delta_log")
        self._report.records += admitted.appended.written
        refused = [(int(parsed.lines[row]), error) for row, error in admitted.refused.items()]
        refused += [(bad.line, bad.error) for bad in parsed.bad]
        return [_refused(writer, frames[line][0], frames[line][1], error) for line, error in refused]

    def _check_chains(self, writer: str, frames: Sequence[Frame]) -> None:
        """Report the frames that do not follow their predecessor, which shows removed frames."""
        tips: dict[str, Tip] = {}
        for frame in frames:
            tip = tips.get(frame.golem_id) or self._log.tip(frame.golem_id)
            # After a kill, retried frames are in the log already, so their numbers are not above the tip.
            follows = frame.number <= tip.number and frame.golem_id not in tips
            if not follows and (frame.number, frame.previous) != (tip.number + 1, tip.hash):
                fact = f"golem {frame.golem_id}: link {frame.number} at tick {frame.tick} does not follow {tip.number}"
                error = JournalError(f"journal of writer {writer}: {fact}: `bardo verify` shows what is on record")
                self._report.faults.append((writer, error))
            tips[frame.golem_id] = Tip(frame.number, frame.link)

    def clear_leases(self, drained: str | None = None) -> None:
        """Delete the leases of dead writers without undrained records."""
        if self._home.leases.exists() and stale_leases(self._home):
            with self._home.lock(LOG):  # no writer takes a lease meanwhile
                undrained = {folder.name for folder in journal_folders(self._home)} - {drained}
                for path in stale_leases(self._home):
                    remove_stale_lease(path, kept=undrained)


def _is_dead(folder: Path) -> bool:
    with dead_writer(folder) as ended:
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
    """Try to become the home's long-running drainer for the block; yield whether that succeeded."""
    home.locks.mkdir(exist_ok=True)
    with locks.held_if_free(home.locks / f"{DRAINER}.lock") as free:
        yield free


def serve(root: Path, policy: Policy, clock: Callable[[], datetime]) -> None:
    """Drain until the parent ends (standard input closes), then once more."""
    home = Home.open(root)
    with only_drainer(home) as is_drainer:
        if not is_drainer:
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
    """A child process that drains the home if no other drainer runs; restarted when it ends."""

    def __init__(self, home: Home, policy: Policy) -> None:
        self._home, self._policy = home, policy
        self._child: subprocess.Popen[bytes] | None = None

    def ensure_running(self) -> None:
        """Start the process if no drainer runs."""
        if self._child is not None and self._child.poll() is None:
            return
        with only_drainer(self._home) as is_free:
            pass
        if is_free:
            command = [sys.executable, "-m", "bardo_pipeline.cli.operations.drain_command", str(self._home.root)]
            self._child = subprocess.Popen(
                [*command, self._policy.model_dump_json()],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C reaches only the writer; the child ends after it
            )

    def stop(self) -> None:
        """Let the process finish its pass and wait for it."""
        if self._child is not None:
            assert self._child.stdin is not None
            with suppress(BrokenPipeError):
                self._child.stdin.close()
            self._child.wait()
            self._child = None


class DrainThread:
    """A thread that drains with the writers' open log; restarted after a failure."""

    def __init__(self, drainer: Drainer) -> None:
        self._stop = threading.Event()
        self._drainer = drainer
        self._thread: threading.Thread | None = None

    def ensure_running(self) -> None:
        """Start the thread if it does not run."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._drainer.run, args=(self._stop,), name="drainer", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Let the thread finish its pass and join it."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
