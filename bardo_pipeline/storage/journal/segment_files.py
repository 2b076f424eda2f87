"""The folders of journals: whose they are, which of their segments may be drained, how much waits in them."""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import orjson
from pydantic import ValidationError

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
    written_bytes,
)
from bardo_pipeline.storage.locks import Handle

DRAIN, LOG = "drain", "log"
"""The home's locks of whoever drains, and of whoever writes to the log; to be taken in this order."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LOCK = "lock"
_GONE = Handle(-1)


@dataclass(frozen=True)
class TornTail:
    """The last segment of a dead writer, and how many bytes at its end were of an append that nobody was told of."""

    path: Path
    bytes: int


@dataclass(frozen=True)
class JournalDepth:
    """What waits in a journal, or in all: segments that hold records, their bytes, when the oldest was accepted."""

    segments: int
    bytes: int
    oldest_at: datetime | None


class Backlog:
    """The sealed segments of a journal that the drainer has not taken yet. Any threads may use it at once.

    bytes: how much they hold, as far as was last seen.
    """

    def __init__(self) -> None:
        self._segments: deque[tuple[Path, int]] = deque()
        self._lock = threading.Lock()
        self.bytes = 0

    def add(self, path: Path, size: int) -> None:
        """Another one, the newest."""
        with self._lock:
            self._segments.append((path, size))
            self.bytes += size

    def look(self) -> int:
        """How many they are: the drainer takes the oldest away."""
        with self._lock:
            while self._segments and not os.path.exists(self._segments[0][0]):
                self.bytes -= self._segments.popleft()[1]
            return len(self._segments)


def checked_name(writer: str) -> str:
    """The name, if it can be a journal's folder; ConfigError otherwise."""
    if not _NAME.fullmatch(writer):
        raise ConfigError(f"writer {writer!r}: a name has up to 100 letters, digits, dots, dashes or underscores")
    return writer


def locked_journal(home: Home, folder: Path) -> Handle:
    """The lock of a writer's folder, made where it is missing."""
    with ExitStack() as alone:
        for attempt in count():
            make_folder(folder)
            handle = _try_lock(folder / _LOCK, locks.take_soon)
            if handle is not None and handle is not _GONE:
                return handle
            if handle is None and attempt:
                raise LeaseError(f"writer {folder.name} is open in another process: give this one another name")
            if not attempt:
                alone.enter_context(home.lock(DRAIN))  # perhaps it was a drainer that had a look at the dead
    raise AssertionError("unreachable")


def _try_lock(path: Path, lock: Callable[[Handle], bool]) -> Handle | None:
    """The handle of a lock file that is ours now; None when another has it, _GONE when it was taken away meanwhile."""
    try:
        handle = locks.opened(path)
    except FileNotFoundError:
        return _GONE
    try:
        if not lock(handle):
            locks.let_go(handle)
            return None
        if os.stat(path).st_ino == os.fstat(handle).st_ino:
            return handle
    except FileNotFoundError:
        pass
    locks.let_go(handle)
    return _GONE


@contextmanager
def dead(folder: Path) -> Iterator[bool]:
    """Whether the writer of this journal is dead; if so, nobody else takes its place meanwhile."""
    handle = _try_lock(folder / _LOCK, locks.take_at_once)
    try:
        yield handle is not None and handle is not _GONE
    finally:
        if handle is not None:
            locks.let_go(handle)


def remove_recycled_segments(folder: Path) -> None:
    """Remove the zeroed segments that earlier versions kept for reuse; they hold no records."""
    for suffix in ("spare", "washed"):
        for path in folder.glob(f"*.{suffix}"):
            path.unlink(missing_ok=True)


def remove_journal(folder: Path) -> None:
    """Take away a drained journal, of which the caller has the lock."""
    for number in segment_numbers(folder):
        segment_path(folder, number).unlink()
    remove_recycled_segments(folder)
    (folder / _LOCK).unlink(missing_ok=True)
    with suppress(OSError):  # something lies in it that is none of ours
        folder.rmdir()


def cut_tail(path: Path) -> TornTail:
    """Cut off what a dead writer left half written at the end of its last segment, and the room behind it."""
    found = read(path, sealed=False)
    kept = found.size - found.torn
    if kept < path.stat().st_size:
        with path.open("r+b") as segment:
            segment.truncate(kept)
            os.fsync(segment.fileno())
    return TornTail(path, found.torn)


def journal_folders(home: Home) -> list[Path]:
    """The journals of a home, by writer."""
    try:
        return sorted(path for path in home.journal.iterdir() if path.is_dir())
    except FileNotFoundError:
        return []


def sealed_numbers(folder: Path, *, ended: bool) -> list[int]:
    """The segments of a journal that a drainer may take; all of them, if its writer is dead."""
    numbers = segment_numbers(folder)
    return numbers if ended else numbers[:-1]


def depth_of(folder: Path) -> JournalDepth:
    """What waits in one journal; looks at names, at a few blocks of each segment, and at how the oldest begins."""
    segments = size = 0
    oldest: list[int] = []
    for number in segment_numbers(folder):
        path = segment_path(folder, number)
        try:
            held = written_bytes(path) - HEADER_BYTES
            if held <= 0:
                continue
            oldest = oldest or first_accepted_at(path)
        except FileNotFoundError:  # drained meanwhile
            continue
        segments, size = segments + 1, size + held
    return JournalDepth(segments, size, datetime.fromtimestamp(oldest[0] / 1e6, UTC) if oldest else None)


def journal_depth(home: Home) -> JournalDepth:
    """What waits in all journals."""
    found = [depth_of(folder) for folder in journal_folders(home)]
    oldest = [depth.oldest_at for depth in found if depth.oldest_at is not None]
    return JournalDepth(
        sum(depth.segments for depth in found), sum(depth.bytes for depth in found), min(oldest, default=None)
    )


def note_limits(lock: int, policy: WriterPolicy) -> None:
    """Write into a journal's lock file which limits its writers keep, for those who watch."""
    said = orjson.dumps({"journal_bytes_max": policy.journal_bytes_max, "flush_seconds": policy.flush_seconds})
    os.ftruncate(lock, 0)
    os.pwrite(lock, said, 0)


def limits_of(folder: Path, policy: WriterPolicy) -> WriterPolicy:
    """The limits that a journal's writers keep; those of the policy where nothing says so."""
    try:
        return WriterPolicy.model_validate(policy.model_dump() | orjson.loads((folder / _LOCK).read_bytes()))
    except (FileNotFoundError, orjson.JSONDecodeError, TypeError, ValidationError):
        return policy
