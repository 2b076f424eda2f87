"""Windows: the named moments at which a process is killed.

A window is a set of points in a record's path: a system call on a certain file, before it, after it, or in its middle.
System calls are wrapped in the process to be killed, so the code under test does not know the points. A call by name
("module:function") wrapped for work of a library outside Python.
"""

from __future__ import annotations

import importlib
import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Literal

When = Literal["before", "after", "half"]


@dataclass(frozen=True)
class Point:
    """A call, which side of it, and the paths (below the home, as a regular expression) on which it counts."""

    call: str
    when: When
    path: str = ""


@dataclass(frozen=True)
class Window:
    """A named window: its role and its points. passings_max: the largest number of the passing at which it kills."""

    name: str
    role: str
    points: tuple[Point, ...]
    passings_max: int = 4


_SEGMENT = r"journal/[^/]+/\d+\.seg"
_DRAFT = r"journal/[^/]+/\d+\.new"
_JOURNAL = r"journal/[^/]+"
_CYCLES_COMMIT = r"log/cycles/_delta_log/\d+\.json"
_CYCLES_FILE = r"log/cycles/[^/]*\.parquet"
_REWRITTEN = r"log/cycles/(warm|cold)/[^/]*\.parquet"
_CHECKPOINT = r"log/cycles/_delta_log/(\d+\.checkpoint\.parquet|_last_checkpoint)"
_SWEPT = r"log/cycles/.*\.parquet"
_PROJECTED = r"derivations/[^/]+/[^/]+/_delta_log/\d+\.json"

WINDOWS = (
    Window(
        "direct batch, before the commit",
        "batch",
        (Point("link", "before", _CYCLES_COMMIT), Point("fsync", "before", _CYCLES_FILE)),
    ),
    Window(
        "direct batch, after the commit",
        "batch",
        (Point("link", "after", _CYCLES_COMMIT), Point("fsync", "after", "log/cycles/_delta_log")),
    ),
    Window("append", "writer", (Point("pwritev", "before", _SEGMENT), Point("pwritev", "half", _SEGMENT)), 40),
    Window(
        "fsync, before it",
        "writer",
        (Point("fdatasync", "before", _SEGMENT),),
        40,
    ),
    Window(
        "fsync, after it",
        "writer",
        (
            Point("fdatasync", "after", _SEGMENT),
            Point("bardo_pipeline.storage.journal.group_commit:_resolve", "before"),
            Point("bardo_pipeline.storage.journal.group_commit:_resolve_futures", "before"),
        ),
        40,
    ),
    Window(
        "seal",
        "writer",
        (
            Point("open", "after", _DRAFT),
            Point("pwrite", "half", _DRAFT),
            Point("rename", "before", _DRAFT),
            Point("rename", "after", _DRAFT),
            Point("fsync", "after", _JOURNAL),
        ),
        8,
    ),
    Window(
        "drain, before the commit",
        "drainer",
        (
            Point("fsync", "before", _CYCLES_FILE),
            Point("fsync", "after", _CYCLES_FILE),
            Point("link", "before", _CYCLES_COMMIT),
        ),
        8,
    ),
    Window(
        "drain, after the commit",
        "drainer",
        (
            Point("link", "after", _CYCLES_COMMIT),
            Point("fsync", "before", "log/cycles/_delta_log"),
            Point("fsync", "after", "log/cycles/_delta_log"),
            Point("unlink", "before", _SEGMENT),
            Point("unlink", "after", _SEGMENT),
        ),
        8,
    ),
    Window(
        "spool, around its renames",
        "spool",
        (
            Point("rename", "before", r"spool/.*"),
            Point("rename", "after", r"spool/.*"),
            Point("replace", "before", r"spool/.*"),
            Point("replace", "after", r"spool/.*"),
            Point("unlink", "before", r"spool/.*"),
            Point("unlink", "after", r"spool/.*"),
            Point("fsync", "before", r"spool/\.taking"),
        ),
    ),
    Window(
        "compaction",
        "care",
        (
            Point("fsync", "before", _REWRITTEN),
            Point("fsync", "after", _REWRITTEN),
            Point("link", "before", _CYCLES_COMMIT),
            Point("link", "after", _CYCLES_COMMIT),
            Point("replace", "before", _CHECKPOINT),
            Point("replace", "after", _CHECKPOINT),
            Point("unlink", "before", _SWEPT),
            Point("unlink", "after", _SWEPT),
        ),
        2,
    ),
    Window(
        "curator",
        "curator",
        (
            Point("link", "before", _PROJECTED),
            Point("link", "after", _PROJECTED),
            Point("bardo_pipeline.storage.delta.replaceable_table:write_parquet", "before"),
            Point("bardo_pipeline.storage.delta.replaceable_table:write_parquet", "after"),
            Point("replace", "before", r"derivations/.*"),
            Point("replace", "after", r"derivations/.*"),
        ),
        8,
    ),
)
"""Every window, in the order in which a record passes them."""


class Trap:
    """Kills this process at the n-th passing of a window."""

    def __init__(self, window: Window, passing: int, root: Path) -> None:
        self._window, self._left, self._root = window, passing, root
        self._lock = Lock()

    def set(self) -> None:
        """Wrap the system calls of this process until it ends."""
        for call in {point.call for point in self._window.points}:
            module, _, name = call.rpartition(":")
            owner = importlib.import_module(module) if module else os
            setattr(owner, name, self._between(call, getattr(owner, name)))

    def _between(self, call: str, honest: Callable[..., Any]) -> Callable[..., Any]:
        points = [point for point in self._window.points if point.call == call]

        def wrapped(*args: Any, **more: Any) -> Any:
            paths = [] if ":" in call else [self._below(arg) for arg in args[:2] if isinstance(arg, int | str | Path)]
            met = [p.when for p in points if not p.path or any(re.fullmatch(p.path, path) for path in paths)]
            if "before" in met:
                self._passed()
            if "half" in met and self._passes():
                _write_half(*args)
                _die()
            done = honest(*args, **more)
            if "after" in met:
                self._passed()
            return done

        return wrapped

    def _below(self, place: int | str | Path) -> str:
        """The path below the home of a file or an open handle."""
        try:
            path = os.readlink(f"/proc/self/fd/{place}") if isinstance(place, int) else os.path.abspath(place)
        except FileNotFoundError:
            return ""
        return os.path.relpath(path, self._root)

    @property
    def left(self) -> int:
        """Number of passings until the kill."""
        return self._left

    def _passes(self) -> bool:
        with self._lock:
            self._left -= 1
            return self._left == 0

    def _passed(self) -> None:
        if self._passes():
            _die()


def _write_half(handle: int, content: Any, at: int) -> None:
    whole = bytes(content) if isinstance(content, bytes | bytearray | memoryview) else b"".join(content)
    os.pwrite(handle, whole[: len(whole) // 2], at)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
