"""Power: what a disk would still hold if the machine stopped, at worst.

While it records, it stands between the code and the system and keeps, in order: the bytes of each file that is synced,
the names of each folder that is synced, names that are taken away, bytes that are written by a call that it sees, and
what was acknowledged. From that list alone a tree is made as of any moment: a file is there if its folder was synced
with its name in it, and so the folder's own name, up to the home; it holds what it held when it was synced last,
and nothing if it never was. A call to fsync is left out by leaving its entries out: no code needs to run again.

Bytes that pyarrow or Delta's library write are seen only when somebody syncs the file, which is the point.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from typing import Any, Literal
from unittest import mock

CODE = str(Path(__file__).parents[2] / "bardo_pipeline")
SYNCS = ("fsync", "fdatasync", "sync_file", "sync_folder")
"""What a line of ours may call to make something durable."""

Inode = tuple[int, int]
Mode = Literal["dropped", "deleted", "torn"]
"""What becomes of what was not synced: all of it is gone; or names that were taken away are gone at once, though their
folder was not synced; or half of the bytes that were written behind the last sync are there."""


@dataclass(frozen=True)
class Synced:
    """A file's bytes, made durable by these lines of ours."""

    inode: Inode
    content: bytes
    sites: frozenset[str]


@dataclass(frozen=True)
class Listed:
    """A folder's names, made durable by these lines: name to what it stands for, and whether that is a folder."""

    inode: Inode
    names: Mapping[str, tuple[Inode, bool]]
    sites: frozenset[str]


@dataclass(frozen=True)
class Removed:
    """A name that was taken away, the last one of its file."""

    folder: Inode
    name: str


@dataclass(frozen=True)
class Wrote:
    """Bytes that were added to a file."""

    inode: Inode
    content: bytes


@dataclass(frozen=True)
class Acknowledged:
    """Somebody was told that this is on record."""

    what: Any


Event = Synced | Listed | Removed | Wrote | Acknowledged


@dataclass
class Disk:
    """The record of what reached the disk below a home, in order."""

    root: Path
    events: list[Event] = field(default_factory=list)
    _pins: dict[Inode, int] = field(default_factory=dict)
    _lock: RLock = field(default_factory=RLock)

    def acknowledge(self, what: Any) -> None:
        """Note that somebody was told."""
        with self._lock:
            self.events.append(Acknowledged(what))

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Stand between until the end; then nothing is held open any more."""
        with (
            mock.patch("os.fsync", self._syncing(os.fsync)),
            mock.patch("os.fdatasync", self._syncing(os.fdatasync)),
            mock.patch("os.unlink", self._removing(os.unlink)),
            mock.patch("os.rmdir", self._removing(os.rmdir)),
            mock.patch("os.write", self._writing(os.write)),
            mock.patch("os.writev", self._writing(os.writev)),
        ):
            yield
        for pin in self._pins.values():
            os.close(pin)
        self._pins.clear()

    def _syncing(self, honest: Any) -> Any:
        def sync(handle: Any) -> None:
            handle = handle if isinstance(handle, int) else handle.fileno()
            honest(handle)
            with self._lock:
                self._note(handle)

        return sync

    def _note(self, handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if not path.is_relative_to(self.root) and not self.root.is_relative_to(path):
            return
        inode = self._pinned(f"/proc/self/fd/{handle}")
        if path.is_dir():
            entries = sorted(os.scandir(path), key=lambda entry: entry.name)
            names = {e.name: (self._pinned(e.path), e.is_dir(follow_symlinks=False)) for e in entries}
            self.events.append(Listed(inode, names, _sites()))
        else:
            self.events.append(Synced(inode, Path(f"/proc/self/fd/{handle}").read_bytes(), _sites()))

    def _removing(self, honest: Any) -> Any:
        def remove(path: Any, *args: Any, **more: Any) -> None:
            place = Path(os.path.abspath(path)) if not more else None
            with self._lock:
                last = place is not None and place.is_relative_to(self.root) and _is_last_name(place)
                folder = self._pinned(str(place.parent)) if last and place is not None else None
                honest(path, *args, **more)
                if folder is not None and place is not None:
                    self.events.append(Removed(folder, place.name))

        return remove

    def _writing(self, honest: Any) -> Any:
        def write(handle: int, content: Any) -> int:
            with self._lock:
                written = honest(handle, content)
                path = os.readlink(f"/proc/self/fd/{handle}")
                if path.endswith(".seg"):
                    whole = bytes(content) if isinstance(content, bytes | bytearray | memoryview) else b"".join(content)
                    self.events.append(Wrote(self._pinned(f"/proc/self/fd/{handle}"), whole[:written]))
            return written

        return write

    def _pinned(self, path: str) -> Inode:
        """The file's identity, which nothing else can have while we hold it open."""
        follow = 0 if path.startswith("/proc/") else os.O_NOFOLLOW
        handle = os.open(path, os.O_PATH | follow)
        status = os.fstat(handle)
        inode = (status.st_dev, status.st_ino)
        if self._pins.setdefault(inode, handle) != handle:
            os.close(handle)
        return inode

    # afterwards

    def sites(self) -> list[str]:
        """Every line of ours that made something durable."""
        return sorted({site for event in self.events if isinstance(event, Synced | Listed) for site in event.sites})

    def cuts(self) -> list[int]:
        """The moments at which to cut: before each sync, after each acknowledgement, after each removal, at the end."""
        found = {len(self.events)}
        for at, event in enumerate(self.events):
            found.add(at if isinstance(event, Synced | Listed) else at + 1)
        return sorted(found)

    def acknowledged(self, cut: int) -> list[Any]:
        """What was acknowledged before a cut."""
        return [event.what for event in self.events[:cut] if isinstance(event, Acknowledged)]

    def durable(self, cut: int, *, without: str | None = None, mode: Mode = "dropped") -> dict[str, bytes | None]:
        """What the disk holds after a cut: path below the home to its bytes, None for a folder.

        without: a line of ours whose syncs never happened.
        """
        contents: dict[Inode, bytes] = {}
        pending: dict[Inode, bytes] = {}
        names: dict[Inode, dict[str, tuple[Inode, bool]]] = {}
        for event in self.events[:cut]:
            if isinstance(event, Synced) and without not in event.sites:
                contents[event.inode] = event.content
                pending.pop(event.inode, None)
            elif isinstance(event, Listed) and without not in event.sites:
                names[event.inode] = dict(event.names)
            elif isinstance(event, Removed) and mode == "deleted":
                names.get(event.folder, {}).pop(event.name, None)
            elif isinstance(event, Wrote) and mode == "torn":
                pending[event.inode] = pending.get(event.inode, b"") + event.content
        tree: dict[str, bytes | None] = {}
        status = os.stat(self.root)
        todo: list[tuple[str, Inode]] = [("", (status.st_dev, status.st_ino))]
        while todo:
            below, folder = todo.pop()
            for name, (inode, is_folder) in names.get(folder, {}).items():
                path = f"{below}{name}"
                if is_folder:
                    tree[path] = None
                    todo.append((f"{path}/", inode))
                else:
                    torn = pending.get(inode, b"")
                    tree[path] = contents.get(inode, b"") + torn[: len(torn) // 2] if torn else contents.get(inode, b"")
        return tree


def rebuild(target: Path, tree: Mapping[str, bytes | None]) -> None:
    """Put a tree on a real disk."""
    target.mkdir(parents=True)
    for path, content in sorted(tree.items()):
        place = target / path
        if content is None:
            place.mkdir(exist_ok=True)
        else:
            place.write_bytes(content)


def _is_last_name(path: Path) -> bool:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return False
    return status.st_nlink == 1 or path.is_dir()


def _sites() -> frozenset[str]:
    """The lines of ours on the way to the call that make something durable by name: each is a line one could delete."""
    found = []
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(CODE):
            line = _line(code.co_filename, frame.f_lineno)
            if any(f"{name}(" in line for name in SYNCS):
                place = Path(code.co_filename).relative_to(Path(CODE).parent)
                found.append(f"{place}:{frame.f_lineno}: {line.strip()}")
        frame = frame.f_back
    return frozenset(found)


def _line(file: str, number: int) -> str:
    lines = _SOURCES.get(file)
    if lines is None:
        lines = _SOURCES[file] = Path(file).read_text().splitlines()
    return lines[number - 1]


_SOURCES: dict[str, Sequence[str]] = {}
