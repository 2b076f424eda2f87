"""Leases: who may write a golem's single records. One lock file a golem, held for as long as its writer lives.

The system lets go of it when the process dies; what the dead one acknowledged is then in its journal, and the lease
stays behind until a drain has taken that. Source: architecture ("a writer leases its golem").
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import orjson

from bardo_pipeline.errors import LeaseError
from bardo_pipeline.storage.home import Home, make_folder, sync_folder

_LOOKS_MAX, _LOOK_SECONDS = 50, 0.001


class Lease:
    """The exclusive right to write a golem's single records. Raises LeaseError when another writer has it.

    It is on the disk before anything can be acknowledged under it: after a power cut, too, it keeps others out.
    """

    def __init__(self, home: Home, golem_id: str, holder: str) -> None:
        self.golem_id, self.holder = golem_id, holder
        self._path = lease_path(home, golem_id)
        make_folder(home.leases)
        while True:
            self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            if not try_lock(self._handle):
                other = _holder(self._path)
                os.close(self._handle)
                raise LeaseError(f"golem {golem_id} is held by writer {other}: close that one first")
            try:
                if os.stat(self._path).st_ino == os.fstat(self._handle).st_ino:
                    break
            except FileNotFoundError:
                pass
            os.close(self._handle)  # its holder took the name away meanwhile: the lock is on nothing
        self.inherited = _holder(self._path) if os.fstat(self._handle).st_size else None
        """The writer that left it: what that one acknowledged must be drained before anything is accepted."""
        try:
            self._say(holder)
            sync_folder(home.leases)
        except BaseException:
            os.close(self._handle)
            raise

    def release(self) -> None:
        """Let go: the name first, so that nobody finds a free lease of a writer that closed in order."""
        self._path.unlink(missing_ok=True)
        os.close(self._handle)

    def abandon(self, holder: str | None = None) -> None:
        """Let go and leave the name: what was acknowledged under it, by this writer or by that, waits for a drain."""
        if holder is not None:
            self._say(holder)
        os.close(self._handle)

    def _say(self, holder: str) -> None:
        said = orjson.dumps({"golem_id": self.golem_id, "holder": holder, "pid": os.getpid()})
        os.pwrite(self._handle, said, 0)  # over what is there: killed in between, it must not look like a new one
        os.ftruncate(self._handle, len(said))
        os.fsync(self._handle)


def try_lock(handle: int) -> bool:
    """Lock an open file for us alone. Whoever only looks at it holds it for microseconds: that is waited for."""
    for _ in range(_LOOKS_MAX):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOOK_SECONDS)
        else:
            return True
    return False


def lease_path(home: Home, golem_id: str) -> Path:
    """Where the lease of a golem lies: any id makes a name that every file system takes."""
    return home.leases / f"{hashlib.sha256(golem_id.encode()).hexdigest()[:40]}.lease"


def leased(home: Home, golem_ids: Collection[str]) -> dict[str, str]:
    """Those of these golems that a writer holds, or left with records in its journal: golem to why not."""
    try:
        names = {entry.name for entry in os.scandir(home.leases)}
    except FileNotFoundError:
        return {}
    if not names:
        return {}
    found: dict[str, str] = {}
    for golem_id in golem_ids:
        path = lease_path(home, golem_id)
        if path.name in names and (why := _why_not(path)) is not None:
            found[golem_id] = why
    return found


def stale(home: Home) -> list[Path]:
    """Leases whose holder is dead."""
    found = []
    for path in sorted(home.leases.glob("*.lease")):
        with suppress(FileNotFoundError):  # released meanwhile
            if not _is_held(path):
                found.append(path)
    return found


def clear(path: Path, *, kept: Collection[str]) -> bool:
    """Take away a stale lease, unless one of these writers left it or somebody has taken it up meanwhile."""
    try:
        handle = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _holder(path) in kept or os.stat(path).st_ino != os.fstat(handle).st_ino:
            return False
        path.unlink()
    except (BlockingIOError, FileNotFoundError):
        return False
    finally:
        os.close(handle)
    return True


def _why_not(path: Path) -> str | None:
    try:
        if _is_held(path):
            return f"is held by writer {_holder(path)}: write through it, or close it first"
        return f"was left by writer {_holder(path)}, which died: `bardo drain` takes what it acknowledged"
    except FileNotFoundError:
        return None


def _is_held(path: Path) -> bool:
    handle = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def _holder(path: Path) -> str:
    try:
        return str(orjson.loads(path.read_bytes())["holder"])
    except (orjson.JSONDecodeError, KeyError, FileNotFoundError):
        return "unknown"
