"""File locks (flock): the system lets go of them when the process dies, and no child that it forked has a part in them.

A lock belongs to an open file, which a fork shares: unless the child closes it, it would keep a dead parent's lock.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LOOKS_MAX, _LOOK_SECONDS = 50, 0.001

_open: set[int] = set()
"""The handles under which this process holds a lock, or asks for one."""


def opened(path: Path, *, make: bool = True) -> int:
    """A handle of a lock file. make: where it is missing. Raises FileNotFoundError where it, or its folder, is."""
    handle = os.open(path, os.O_RDWR | (os.O_CREAT if make else 0), 0o644)
    _open.add(handle)
    return handle


def let_go(handle: int) -> None:
    """Unlock and close."""
    if handle in _open:
        _open.discard(handle)
        fcntl.flock(handle, fcntl.LOCK_UN)  # not by closing alone: a child may have been forked a moment ago
        os.close(handle)


def take_at_once(handle: int, *, shared: bool = False) -> bool:
    """Lock it if it is free. shared: beside others that share it."""
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def take_soon(handle: int) -> bool:
    """Lock it if it is free but for those who look at it: that takes microseconds, and is waited for."""
    for _ in range(_LOOKS_MAX):
        if take_at_once(handle):
            return True
        time.sleep(_LOOK_SECONDS)
    return False


@contextmanager
def held(path: Path, *, shared: bool = False) -> Iterator[int]:
    """Hold the lock of this file; waits for it."""
    with _until_done(opened(path)) as handle:
        fcntl.flock(handle, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield handle


@contextmanager
def held_if_free(path: Path) -> Iterator[bool]:
    """Whether the lock was free; if so, it is held meanwhile."""
    with _until_done(opened(path)) as handle:
        yield take_at_once(handle)


def is_held(path: Path) -> bool:
    """Whether somebody holds the lock of this file alone. Raises FileNotFoundError where there is no such file."""
    with _until_done(opened(path, make=False)) as handle:
        return not take_at_once(handle, shared=True)


@contextmanager
def _until_done(handle: int) -> Iterator[int]:
    """Let go of it in the end, unless that is the end of a forked child, where it is closed and no longer ours."""
    process = os.getpid()
    try:
        yield handle
    finally:
        if os.getpid() == process:
            let_go(handle)


def _forget() -> None:
    for handle in _open:
        os.close(handle)
    _open.clear()


os.register_at_fork(after_in_child=_forget)
