"""File locks (flock) that the kernel releases when the process dies and that forked children do not inherit.

A lock belongs to an open file description, which a fork shares. A child therefore closes its copies at once; otherwise
it would keep a dead parent's lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_RETRIES_MAX, _RETRY_SECONDS = 50, 0.001


class Handle(int):
    """A lock file's descriptor, compared by object identity because the kernel reuses numbers and forks share them."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__


_open: set[Handle] = set()
"""The handles under which this process holds a lock or waits for one."""


def open_lock_file(path: Path, *, create: bool = True) -> Handle:
    """Open a lock file or a folder; create a file if `create`. Raises FileNotFoundError if it or its folder is missing.

    A link to a lock file, as in the temporary home of an inspection, may be locked by a user who cannot write it.
    """
    try:
        handle = Handle(os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o644))
    except OSError as error:
        is_refused = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
        if error.errno != errno.EISDIR and not (is_refused and path.is_symlink()):
            raise
        handle = Handle(os.open(path, os.O_RDONLY))  # enough for flock
    _open.add(handle)
    return handle


def is_ours(handle: Handle) -> bool:
    """Return whether this process opened the handle, rather than the parent that it was forked from."""
    return handle in _open


def release(handle: Handle) -> None:
    """Unlock and close the handle if this process opened it."""
    if handle in _open:
        _open.discard(handle)
        fcntl.flock(handle, fcntl.LOCK_UN)  # closing is not enough: a child forked just now may still have it open
        os.close(handle)


def try_acquire(handle: Handle, *, shared: bool = False) -> bool:
    """Take the lock if it is free, without waiting. shared: allow other shared holders."""
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def acquire_soon(handle: Handle) -> bool:
    """Try to take the lock. Waits only for concurrent `is_held` probes, which last microseconds."""
    for _ in range(_RETRIES_MAX):
        if try_acquire(handle):
            return True
        time.sleep(_RETRY_SECONDS)
    return False


def acquire_file(path: Path, acquire: Callable[[Handle], bool] = try_acquire, *, create: bool = True) -> Handle | None:
    """Open and lock a file; None if another process holds it.

    Raises FileNotFoundError if the file is missing or was deleted meanwhile: a lock on a deleted file protects nothing.
    """
    handle = open_lock_file(path, create=create)
    try:
        if not acquire(handle):
            release(handle)
            return None
        if os.stat(path).st_ino != os.fstat(handle).st_ino:
            raise FileNotFoundError(path)
    except BaseException:
        release(handle)
        raise
    return handle


@contextmanager
def held(path: Path, *, shared: bool = False) -> Iterator[Handle]:
    """Hold the lock of this file, after waiting for it."""
    handle = open_lock_file(path)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield handle
    finally:
        release(handle)


@contextmanager
def held_if_free(path: Path) -> Iterator[bool]:
    """Try to take the lock for the block; yields whether it is held."""
    handle = open_lock_file(path)
    try:
        yield try_acquire(handle)
    finally:
        release(handle)


def is_held(path: Path) -> bool:
    """Return whether the lock is held exclusively. Raises FileNotFoundError if the file is missing."""
    handle = open_lock_file(path, create=False)
    try:
        return not try_acquire(handle, shared=True)
    finally:
        release(handle)


def _close_inherited_handles() -> None:
    for handle in _open:
        os.close(handle)
    _open.clear()


os.register_at_fork(after_in_child=_close_inherited_handles)
