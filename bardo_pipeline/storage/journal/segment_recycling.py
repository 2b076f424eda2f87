"""Spares: drained segments, written over with zeros, that a busy journal writes its next segments into.

Bytes that take the place of others are durable in half the time that a growing file needs: its size and its blocks need
not be, and nobody waits for what others wrote meanwhile. Zeros, so that what is written can be told from room; a spare
that a power cut left half washed is none. Small segments are taken away: a journal with little to do grows its own.
Source: architecture ("Writing"); EV-3.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from bardo_pipeline.policy import WriterPolicy
from bardo_pipeline.storage.home import sync_folder

_SPARE, _WASHED = ".spare", ".washed"
_PART_OF_SEGMENT = 16
_PART_OF_JOURNAL = 2
_BITE_BYTES = 2**20  # an append that syncs meanwhile waits for no more than that


def take_spare(folder: Path, path: Path) -> int | None:
    """A spare of the journal, under this name from now on and open to be written; None where there is none.

    For whoever has the journal. The name is durable when the folder is synced.
    """
    spare = next(folder.glob(f"*{_SPARE}"), None)
    if spare is None:
        return None
    handle = os.open(spare, os.O_WRONLY | os.O_CLOEXEC)  # or else it keeps its name: no segment is all zeros
    try:
        spare.rename(path)
    except BaseException:
        os.close(handle)
        raise
    return handle


def remove_spares(folder: Path) -> None:
    """Take away what a journal has of spares, and of what was becoming one."""
    for pattern in (_SPARE, _WASHED):
        for path in folder.glob(f"*{pattern}"):
            path.unlink(missing_ok=True)


def retire(folder: Path, segments: Sequence[Path], limits: WriterPolicy, *, wash: bool) -> None:
    """Take drained segments away, and make spares of those that are worth it.

    For whoever drains. limits: the journal's; spares hold at most half of what it may. wash: or else none is made.
    """
    for path in folder.glob(f"*{_WASHED}"):
        path.unlink()  # of a drainer that was killed
    room = limits.journal_bytes_max // _PART_OF_JOURNAL - sum(_size(spare) for spare in folder.glob(f"*{_SPARE}"))
    chosen: list[Path] = []
    for path in segments:
        size = path.stat().st_size
        if wash and limits.segment_bytes_max // _PART_OF_SEGMENT <= size <= room:
            room -= size
            chosen.append(path.rename(path.with_suffix(_WASHED)))
        else:
            path.unlink()  # if a power cut brings it back, all its records are on record
    if chosen:
        sync_folder(folder)  # no segment any more, before its bytes are gone
    for path in chosen:
        _wash(path)


def _wash(path: Path) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(handle)
        if status.st_nlink > 1:  # a backup copies it under its second name
            path.unlink()
            return
        zeros = bytes(_BITE_BYTES)
        for at in range(0, status.st_size, _BITE_BYTES):
            os.pwrite(handle, zeros[: status.st_size - at], at)
            os.fdatasync(handle)
    finally:
        os.close(handle)
    path.rename(path.with_suffix(_SPARE))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # taken meanwhile
        return 0
