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


class Handle(int):
    """An open lock file's number, equal to itself alone: the system gives a number again, a forked child has it too."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__


_open: set[Handle] = set()
"""The handles under which this process holds a lock, or asks for one."""


def opened(path: Path, *, make: bool = True) -> Handle:
    """A handle of a lock file. make: where it is missing. Raises FileNotFoundError where it, or its folder, is."""
    handle = Handle(os.open(path, os.O_RDWR | (os.O_CREAT if make else 0), 0o644))
    _open.add(handle)
    return handle


def is_ours(handle: Handle) -> bool:
    """Whether this process has it open, and not only the parent that it was forked from."""
    return handle in _open


def let_go(handle: Handle) -> None:
    """Unlock and close what is ours."""
    if handle in _open:
        _open.discard(handle)
        fcntl.flock(handle, fcntl.LOCK_UN)  # not by closing alone: a child may have been forked a moment ago
        os.close(handle)


def take_at_once(handle: Handle, *, shared: bool = False) -> bool:
    """Lock it if it is free. shared: beside others that share it."""
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def take_soon(handle: Handle) -> bool:
    """Lock it if it is free but for those who look at it: that takes microseconds, and is waited for."""
    for _ in range(_LOOKS_MAX):
        if take_at_once(handle):
            return True
        time.sleep(_LOOK_SECONDS)
    return False


@contextmanager
def held(path: Path, *, shared: bool = False) -> Iterator[Handle]:
    """Hold the lock of this file; waits for it."""
    handle = opened(path)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield handle
    finally:
        let_go(handle)


@contextmanager
def held_if_free(path: Path) -> Iterator[bool]:
    """Whether the lock was free; if so, it is held meanwhile."""
    handle = opened(path)
    try:
        yield take_at_once(handle)
    finally:
        let_go(handle)


def is_held(path: Path) -> bool:
    """Whether somebody holds the lock of this file alone. Raises FileNotFoundError where there is no such file."""
    handle = opened(path, make=False)
    try:
        return not take_at_once(handle, shared=True)
    finally:
        let_go(handle)


def _forget() -> None:
    for handle in _open:
        os.close(handle)
    _open.clear()


os.register_at_fork(after_in_child=_forget)
