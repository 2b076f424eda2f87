"""Simulate the contents of a disk after a power cut.

The recorder wraps the system calls and keeps, in order, each change of names and bytes below a
home, each sync of a file or folder, and each acknowledgement. The tree of files at any point is built from that
list. In the worst case a file exists only if its folder was synced with its name, and likewise each folder up
to the home; its content is that of its last sync, or empty without one. Other modes keep a
part of the data that was not synced, because a disk may keep any of it. Removing a sync from the list simulates
a missing call to fsync without running the code again.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from types import FrameType
from typing import Any, Literal, get_args
from unittest import mock

CODE = str(Path(__file__).parents[2] / "bardo_pipeline")
SYNCS = ("fsync", "fdatasync", "ask_fdatasync", "sync_file", "sync_folder")
"""Calls by which a source line makes data durable."""

PAGE, SECTOR = 4096, 512

Inode = tuple[int, int]
Names = dict[str, tuple[Inode, bool]]
"""Map names, or paths below the home, to (inode, whether it is a folder)."""

Mode = Literal[
    "dropped", "deleted", "named", "scattered", "strewn", "newest", "torn", "zeros", "kept", "stale", "blank", "mixed"
]  # fmt: skip
"""The fate of data that was not synced.

dropped: all of it is lost. deleted: as dropped, but removed files are gone at once. named: all names are as last
changed, as with a journaling file system, and no unsynced byte is behind them. scattered, strewn: a part of the new
names exists and a part of the removed names is gone; each mode selects another part. newest: of the new names only the
one that was made last exists, as if the disk wrote names in reverse. torn, kept: of the bytes
overwritten in or appended to files with durable names, the first half is there, or all. stale: files hold the first
bytes written since their last sync. zeros: files with durable names that were never synced have pages of zeros in
their middle. blank, mixed: names as in named; bytes as in zeros, or for each file as in named, kept or zeros.
"""
MODES: tuple[Mode, ...] = get_args(Mode)


class Killed(BaseException):
    """A simulated kill of the process."""


@dataclass(frozen=True)
class Changed:
    """A file holds other bytes than before."""

    inode: Inode
    content: bytes


@dataclass(frozen=True)
class Named:
    """The names below the home changed; these are all of them."""

    names: Names


@dataclass(frozen=True)
class Synced:
    """A file's bytes became durable by a call from these source lines."""

    inode: Inode
    content: bytes
    sites: frozenset[str]


@dataclass(frozen=True)
class Listed:
    """A folder's names became durable by a call from these source lines."""

    inode: Inode
    names: Names
    sites: frozenset[str]


@dataclass(frozen=True)
class Acknowledged:
    """The code acknowledged this record."""

    what: Any


Event = Changed | Named | Synced | Listed | Acknowledged


@dataclass
class Disk:
    """The record of what happened below a home, in order.

    kill_before: the process dies once, before the next sync of this path.
    """

    root: Path
    events: list[Event] = field(default_factory=list)
    kill_before: Path | None = None
    _pins: dict[Inode, int] = field(default_factory=dict)
    _seen: dict[Inode, tuple[int, int]] = field(default_factory=dict)
    _names: Names = field(default_factory=dict)
    _begun: int = 0
    _lock: RLock = field(default_factory=RLock)

    def scan(self) -> None:
        """Record the changes since the last scan, although no call synced."""
        with self._lock:
            self._scan()

    def acknowledge(self, what: Any) -> None:
        """Record an acknowledgement."""
        with self._lock:
            self._scan()
            self.events.append(Acknowledged(what))

    def begin_durable(self) -> None:
        """Treat all existing content as synced."""
        with self._lock:
            for folder, _, files in os.walk(self.root):
                self.events.append(Listed(self._pinned(folder), self._entries(folder), frozenset()))
                for name in files:
                    path = os.path.join(folder, name)
                    self.events.append(Synced(self._pinned(path), Path(path).read_bytes(), frozenset()))
            self._begun = len(self.events)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Wrap the system calls until the block ends; then close all files."""
        with (
            mock.patch("os.fsync", self._syncing(os.fsync)),
            mock.patch("os.fdatasync", self._syncing(os.fdatasync)),
            mock.patch("os.unlink", self._removing(os.unlink)),
        ):
            yield
        self._scan()
        for pin in self._pins.values():
            os.close(pin)
        self._pins.clear()

    def _syncing(self, honest: Any) -> Any:
        def sync(file: Any) -> None:
            handle = file if isinstance(file, int) else file.fileno()
            path = Path(os.readlink(f"/proc/self/fd/{handle}"))
            if not path.is_relative_to(self.root):
                honest(handle)
                return
            with self._lock:
                self._scan()
                if path == self.kill_before:
                    self.kill_before = None
                    raise Killed
                honest(handle)
                inode = self._pinned(f"/proc/self/fd/{handle}")
                if path.is_dir():
                    self.events.append(Listed(inode, self._entries(str(path)), _sites()))
                else:
                    self.events.append(Synced(inode, Path(f"/proc/self/fd/{handle}").read_bytes(), _sites()))

        return sync

    def _removing(self, honest: Any) -> Any:
        def remove(path: Any, *args: Any, **more: Any) -> None:
            with self._lock:
                honest(path, *args, **more)
                self._scan()

        return remove

    def _scan(self) -> None:
        """Record the changes since the last scan."""
        names: Names = {}
        for folder, folders, files in os.walk(self.root):
            for name in [*folders, *files]:
                path = os.path.join(folder, name)
                with suppress(FileNotFoundError):
                    inode = self._pinned(path)
                    names[os.path.relpath(path, self.root)] = inode, name in folders
                    if name in files:
                        self._scan_file(path, inode)
        if names != self._names:
            self._names = names
            self.events.append(Named(names))

    def _scan_file(self, path: str, inode: Inode) -> None:
        status = os.stat(path)
        state = status.st_mtime_ns, status.st_size
        if self._seen.get(inode) != state:
            self._seen[inode] = state
            self.events.append(Changed(inode, Path(path).read_bytes()))

    def _entries(self, folder: str) -> Names:
        return {e.name: (self._pinned(e.path), e.is_dir(follow_symlinks=False)) for e in os.scandir(folder)}

    def _pinned(self, path: str) -> Inode:
        """Return the file's inode, which stays unique while the file is held open."""
        handle = os.open(path, os.O_PATH | (0 if path.startswith("/proc/") else os.O_NOFOLLOW))
        status = os.fstat(handle)
        inode = (status.st_dev, status.st_ino)
        if self._pins.setdefault(inode, handle) != handle:
            os.close(handle)
        return inode

    # afterwards

    def sites(self) -> list[str]:
        """Return every source line that made data durable."""
        return sorted({site for event in self.events if isinstance(event, Synced | Listed) for site in event.sites})

    def cuts(self) -> list[int]:
        """Return the cut points: before each sync, after each acknowledgement and each removal, and at the end."""
        fields = {len(self.events)}
        for at, event in enumerate(self.events[self._begun :], self._begun):
            fields |= (
                {at} if isinstance(event, Synced | Listed) else {at + 1} if isinstance(event, Acknowledged) else set()
            )
            if isinstance(event, Named):
                fields.add(at + 1)
        return sorted(fields)

    def acknowledged(self, cut: int) -> list[Any]:
        """Return the acknowledgements before a cut."""
        return [event.what for event in self.events[:cut] if isinstance(event, Acknowledged)]

    def blocks(self, cut: int, *, without: str | None = None) -> list[bytes]:
        """Return the bytes of every file that the disk may hold after a cut, named or not."""
        return list(self._contents(cut, without)[0].values())

    def durable(self, cut: int, *, without: str | None = None, mode: Mode = "dropped") -> dict[str, bytes | None]:
        """Return the disk after a cut: path below the home to its bytes, None for a folder.

        without: a source line; its syncs are left out.
        """
        synced, last = self._contents(cut, without, first=mode == "stale")
        listed, there = self._listed(cut, without)
        if mode in ("named", "blank", "mixed"):
            listed = there
        elif mode in ("scattered", "strewn"):
            listed = _merged(listed, there, {path for path in {*listed, *there} if _falls(path, mode)})
        elif mode == "newest":
            listed = _merged(listed, there, self._newest(cut, listed, there))
        elif mode == "deleted":
            alive = {inode for inode, _ in there.values()}
            listed = {path: entry for path, entry in listed.items() if entry[0] in alive or path in there}
        tree: dict[str, bytes | None] = {}
        for path, (inode, is_folder) in listed.items():
            held = _held(mode, synced.get(inode, b""), last.get(inode, b""), f"{cut} {path}")
            tree[path] = None if is_folder else held
        return tree

    def _contents(
        self, cut: int, without: str | None, *, first: bool = False
    ) -> tuple[dict[Inode, bytes], dict[Inode, bytes]]:
        """Return the bytes of each file as last synced and as last written, or as first written since the sync."""
        synced, last = dict[Inode, bytes](), dict[Inode, bytes]()
        for event in self.events[:cut]:
            if isinstance(event, Changed):
                last[event.inode] = last.get(event.inode, event.content) if first else event.content
            elif isinstance(event, Synced) and without not in event.sites:
                synced[event.inode] = event.content
                if first:
                    last.pop(event.inode, None)
        return synced, {**synced, **last}

    def _listed(self, cut: int, without: str | None) -> tuple[Names, Names]:
        """Return the paths below the home, as last synced and as they are now."""
        folders: dict[Inode, Names] = {}
        there: Names = {}
        for event in self.events[:cut]:
            if isinstance(event, Named):
                there = event.names
            elif isinstance(event, Listed) and without not in event.sites:
                folders[event.inode] = event.names
        status = os.stat(self.root)
        collected: Names = {}
        todo: list[tuple[str, Inode]] = [("", (status.st_dev, status.st_ino))]
        while todo:
            below, folder = todo.pop()
            for name, (inode, is_folder) in folders.get(folder, {}).items():
                collected[f"{below}{name}"] = inode, is_folder
                if is_folder:
                    todo.append((f"{below}{name}/", inode))
        return collected, there

    def _newest(self, cut: int, listed: Names, there: Names) -> set[str]:
        """Return the path that got its name last of those that are not durable; empty without one."""
        before: Names = {}
        made = dict[str, int]()
        for at, event in enumerate(self.events[:cut]):
            if isinstance(event, Named):
                made |= {path: at for path, entry in event.names.items() if before.get(path) != entry}
                before = event.names
        fresh = [path for path, entry in there.items() if listed.get(path) != entry]
        return {max(fresh, key=lambda path: (made[path], path))} if fresh else set()


def rebuild(target: Path, tree: Mapping[str, bytes | None]) -> None:
    """Write a tree of files to a real folder."""
    target.mkdir(parents=True)
    for path, content in sorted(tree.items()):
        place = target / path
        if content is None:
            place.mkdir(exist_ok=True)
        else:
            place.write_bytes(content)


def _held(mode: Mode, before: bytes, after: bytes, what: str) -> bytes:
    """Return the content of a file after a cut, given its synced and its written bytes."""
    if mode == "mixed":
        mode = ("named", "kept", "zeros")[zlib.crc32(what.encode()) % 3]
    if mode in ("kept", "stale"):
        return after
    if mode == "torn" and len(before) <= len(after):
        return torn(before, after)
    if mode in ("zeros", "blank") and not before:
        third = len(after) // PAGE // 3 * PAGE or len(after)
        return after[:third] + bytes(third) + after[2 * third :] if third < len(after) else bytes(len(after))
    return before


def torn(before: bytes, after: bytes) -> bytes:
    """Keep the first half of the overwritten sectors and of the appended bytes. No sector is torn."""
    end = len(before) + (len(after) - len(before)) // 2
    held = bytearray(before.ljust(end, b"\0"))
    grows_at = len(before) // SECTOR * SECTOR if end > len(before) else len(before)
    over = [at for at in range(0, grows_at, SECTOR) if held[at : at + SECTOR] != after[at : at + SECTOR]]
    for at in [*over[: len(over) // 2], *range(grows_at, end, SECTOR)]:
        held[at : at + SECTOR] = after[at : min(at + SECTOR, end)]
    return bytes(held)


def _merged(listed: Names, there: Names, surviving: Collection[str]) -> Names:
    """Return durable names with the surviving changes of names: new and removed ones; a renamed file has one name."""
    chosen = {path: entry for path, entry in there.items() if listed.get(path) != entry and path in surviving}
    moved, alive = {inode for inode, _ in chosen.values()}, {inode for inode, _ in there.values()}
    kept = {
        path: entry
        for path, entry in listed.items()
        if path in there or (entry[0] not in moved and (entry[0] in alive or path in surviving))
    }
    mixed = kept | chosen
    return {path: entry for path, entry in mixed.items() if _has_folders(path, mixed)}


def _falls(path: str, mode: Mode) -> bool:
    """Whether the seeded draw selects this path; equal for repeated calls."""
    return bool(zlib.crc32(path.encode() + b"0" * (mode == "strewn")) % 2)


def _has_folders(path: str, names: Names) -> bool:
    folder = os.path.dirname(path)
    return not folder or (folder in names and names[folder][1] and _has_folders(folder, names))


def _sites() -> frozenset[str]:
    """Return the source lines in the call stack that sync: each is a line that a change could delete."""
    rows = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(CODE):
            line = _line(code.co_filename, frame.f_lineno)
            if any(f"{name}(" in line for name in SYNCS):
                place = Path(code.co_filename).relative_to(Path(CODE).parent)
                rows.append(f"{place}:{frame.f_lineno}: {line.strip()}")
        frame = frame.f_back
    return frozenset(rows)


def _line(file: str, number: int) -> str:
    lines = _SOURCES.get(file)
    if lines is None:
        lines = _SOURCES[file] = Path(file).read_text().splitlines()
    return lines[number - 1]


_SOURCES: dict[str, Sequence[str]] = {}
