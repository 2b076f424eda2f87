"""Leases: who may write a golem's single records. One lock file a golem, held for as long as its writer lives.

The system lets go of it when the process dies; what the dead one acknowledged is then in its journal, and the lease
stays behind until a drain has taken that. Source: architecture ("a writer leases its golem").
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import orjson

from bardo_pipeline.errors import LeaseError
from bardo_pipeline.storage import locks
from bardo_pipeline.storage.home import Home, make_folder, sync_folder


class Lease:
    """The exclusive right to write a golem's single records. Raises LeaseError when another writer has it.

    It is on the disk before anything can be acknowledged under it: after a power cut, too, it keeps others out.
    """

    def __init__(self, home: Home, golem_id: str, holder: str) -> None:
        self.golem_id, self.holder = golem_id, holder
        self._path = lease_path(home, golem_id)
        make_folder(home.leases)
        while True:
            self._handle = locks.opened(self._path)
            if not locks.take_soon(self._handle):
                other = _holder(self._path)
                locks.let_go(self._handle)
                raise LeaseError(f"golem {golem_id} is held by writer {other}: close that one first")
            try:
                if os.stat(self._path).st_ino == os.fstat(self._handle).st_ino:
                    break
            except FileNotFoundError:
                pass
            locks.let_go(self._handle)  # its holder took the name away meanwhile: the lock is on nothing
        self.inherited = _holder(self._path) if os.fstat(self._handle).st_size else None
        """The writer that left it: what that one acknowledged must be drained before anything is accepted."""
        try:
            self._say(holder)
            sync_folder(home.leases)
        except BaseException:
            locks.let_go(self._handle)
            raise

    def release(self) -> None:
        """Let go: the name first, so that nobody finds a free lease of a writer that closed in order."""
        if locks.is_ours(self._handle):
            self._path.unlink(missing_ok=True)
            locks.let_go(self._handle)

    def abandon(self, holder: str | None = None) -> None:
        """Let go and leave the name: what was acknowledged under it, by this writer or by that, waits for a drain."""
        if locks.is_ours(self._handle):
            if holder is not None:
                self._say(holder)
            locks.let_go(self._handle)

    def _say(self, holder: str) -> None:
        said = orjson.dumps({"golem_id": self.golem_id, "holder": holder, "pid": os.getpid()})
        os.pwrite(self._handle, said, 0)  # over what is there: killed in between, it must not look like a new one
        os.ftruncate(self._handle, len(said))
        os.fsync(self._handle)


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
            if not locks.is_held(path):
                found.append(path)
    return found


def clear(path: Path, *, kept: Collection[str]) -> bool:
    """Take away a stale lease, unless one of these writers left it or somebody has taken it up meanwhile."""
    try:
        handle = locks.opened(path, make=False)
    except FileNotFoundError:
        return False
    try:
        ours = locks.take_at_once(handle)
        if not ours or _holder(path) in kept or os.stat(path).st_ino != os.fstat(handle).st_ino:
            return False
        path.unlink()
    except FileNotFoundError:
        return False
    finally:
        locks.let_go(handle)
    return True


def _why_not(path: Path) -> str | None:
    try:
        if locks.is_held(path):
            return f"is held by writer {_holder(path)}: write through it, or close it first"
        return f"was left by writer {_holder(path)}, which died: `bardo drain` takes what it acknowledged"
    except FileNotFoundError:
        return None


def _holder(path: Path) -> str:
    try:
        return str(orjson.loads(path.read_bytes())["holder"])
    except (orjson.JSONDecodeError, KeyError, FileNotFoundError):
        return "unknown"
