"""The folders of journals: their locks, the segments that may be drained, and their depth."""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from pathlib import Path

import orjson
from pydantic import ValidationError

from bardo_pipeline.clock import moment_at
from bardo_pipeline.errors import ConfigError, LeaseError
from bardo_pipeline.policy import WriterPolicy
from bardo_pipeline.storage import locks
from bardo_pipeline.storage.home import Home, make_folder
from bardo_pipeline.storage.journal.frames import (
    HEADER_BYTES,
    first_accepted_at,
    read,
    segment_numbers,
    segment_path,
    stated_sizes,
    written_bytes,
)
from bardo_pipeline.storage.locks import Handle

DRAIN, LOG = "drain", "log"
"""Names of the home's locks for draining and for writing to the log; acquire them in this order."""

DRAFT_SUFFIX = ".new"
"""Suffix of a segment whose header may not be durable."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LOCK = "lock"


@dataclass(frozen=True)
class JournalDepth:
    """Undrained segments with records of a journal or of all, their bytes, acceptance time of the oldest record.

    damaged: segments that are shorter than their header, or than the next header states.
    """

    segments: int
    bytes: int
    oldest_at: datetime | None
    damaged: int = 0


class Backlog:
    """The sealed segments of a journal that are not drained, and their bytes at the last look. Thread-safe."""

    def __init__(self) -> None:
        self._segments: deque[tuple[Path, int]] = deque()
        self._lock = threading.Lock()
        self.bytes = 0

    def add(self, path: Path, size: int) -> None:
        """Add the newest segment."""
        with self._lock:
            self._segments.append((path, size))
            self.bytes += size

    def look(self) -> int:
        """Drop the segments that the drainer has deleted; return the number of the others."""
        with self._lock:
            while self._segments and not os.path.exists(self._segments[0][0]):
                self.bytes -= self._segments.popleft()[1]
            return len(self._segments)


def checked_name(writer: str) -> str:
    """Return the name if it is a valid folder name, else raise ConfigError."""
    if not _NAME.fullmatch(writer):
        raise ConfigError(f"writer {writer!r}: a name has up to 100 letters, digits, dots, dashes or underscores")
    return writer


def locked_journal(home: Home, folder: Path) -> Handle:
    """Create the folder of a writer if it is missing, and acquire its lock."""
    with ExitStack() as drain_lock:
        for attempt in count():
            make_folder(folder)
            with suppress(FileNotFoundError):  # a drainer deleted the journal of a dead writer meanwhile
                handle = locks.acquire_file(folder / _LOCK, locks.acquire_soon)
                if handle is not None:
                    return handle
                if attempt:
                    raise LeaseError(f"writer {folder.name} is open in another process: give this one another name")
            if not attempt:
                drain_lock.enter_context(home.lock(DRAIN))  # a drainer may have probed the folder for a dead writer
    raise AssertionError("unreachable")


@contextmanager
def dead_writer(folder: Path) -> Iterator[bool]:
    """Yield whether the writer of this journal is dead; if so, hold its lock during the block."""
    handle = None
    with suppress(FileNotFoundError):
        handle = locks.acquire_file(folder / _LOCK)
    try:
        yield handle is not None
    finally:
        if handle is not None:
            locks.release(handle)


def remove_unused_segments(folder: Path) -> None:
    """Remove segments without records: drafts, and the zeroed segments that earlier versions kept for reuse."""
    for suffix in (DRAFT_SUFFIX, ".spare", ".washed"):
        for path in folder.glob(f"*{suffix}"):
            path.unlink(missing_ok=True)


def remove_journal(folder: Path) -> None:
    """Delete a drained journal; the caller holds its lock."""
    for number in segment_numbers(folder):
        segment_path(folder, number).unlink()
    remove_unused_segments(folder)
    (folder / _LOCK).unlink(missing_ok=True)
    with suppress(OSError):  # the folder contains other files
        folder.rmdir()


def cut_tail(path: Path) -> int:
    """Truncate a dead writer's last segment to its whole frames; return the number of torn bytes before the zeros."""
    content = read(path, sealed=False)
    with path.open("r+b") as segment:
        segment.truncate(content.size - content.torn)
        # The next header states this size, and a killed writer may not have synced a segment that needs no cut.
        os.fsync(segment.fileno())
    return content.torn


def journal_folders(home: Home) -> list[Path]:
    """Return the journal folders of a home by writer."""
    try:
        return sorted(path for path in home.journal.iterdir() if path.is_dir())
    except FileNotFoundError:
        return []


def sealed_numbers(folder: Path, *, ended: bool) -> list[int]:
    """Return the segments that may be drained: all but the last, or all of a dead writer."""
    numbers = segment_numbers(folder)
    return numbers if ended else numbers[:-1]


def depth_of(folder: Path) -> JournalDepth:
    """Measure the undrained records of one journal from names, a few blocks of each segment and the first head."""
    segments = size = damaged = 0
    oldest: list[int] = []
    sizes = stated_sizes(folder)  # before the segments are measured, because the open one grows
    for number in segment_numbers(folder):
        path = segment_path(folder, number)
        try:
            frame_bytes = written_bytes(path) - HEADER_BYTES
            damaged += HEADER_BYTES + frame_bytes < max(HEADER_BYTES, sizes.get(number, 0))
            if frame_bytes <= 0:
                continue
            oldest = oldest or first_accepted_at(path)
        except FileNotFoundError:  # drained meanwhile
            continue
        segments, size = segments + 1, size + frame_bytes
    oldest_at = moment_at(oldest[0]) if oldest else None
    return JournalDepth(segments, size, oldest_at, damaged)


def journal_depth(home: Home) -> JournalDepth:
    """Measure the undrained records of all journals."""
    depths = [depth_of(folder) for folder in journal_folders(home)]
    oldest = [depth.oldest_at for depth in depths if depth.oldest_at is not None]
    return JournalDepth(
        sum(depth.segments for depth in depths),
        sum(depth.bytes for depth in depths),
        min(oldest, default=None),
        sum(depth.damaged for depth in depths),
    )


def write_limits(lock: int, policy: WriterPolicy) -> None:
    """Write the limits of a journal's writers into its lock file, for health checks."""
    content = orjson.dumps({"journal_bytes_max": policy.journal_bytes_max, "flush_seconds": policy.flush_seconds})
    os.ftruncate(lock, 0)
    os.pwrite(lock, content, 0)


def read_limits(folder: Path, policy: WriterPolicy) -> WriterPolicy:
    """Return the limits of a journal's writers, or those of the policy if none are written."""
    try:
        return WriterPolicy.model_validate(policy.model_dump() | orjson.loads((folder / _LOCK).read_bytes()))
    except (FileNotFoundError, orjson.JSONDecodeError, TypeError, ValidationError):
        return policy
