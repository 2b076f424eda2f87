"""Leases: the exclusive right to write a golem's single records. Each lease is a lock file held by its writer.

The kernel releases the lock when the process dies. The file of a dead writer stays until its journal is drained,
because the journal holds records that the writer acknowledged. Source: architecture ("a writer leases its golem").
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
    """The exclusive right to write a golem's single records. Raises LeaseError if another writer has it.

    The file is durable before any record is acknowledged, so it excludes other writers after a power cut.
    """

    def __init__(self, home: Home, golem_id: str, holder: str) -> None:
        self.golem_id, self.holder = golem_id, holder
        self._path = lease_path(home, golem_id)
        make_folder(home.leases)
        self._handle = self._acquire()
        self.inherited = _holder(self._path) if os.fstat(self._handle).st_size else None
        """The dead writer that left the lease; its journal must be drained before a record is accepted."""
        try:
            self._write(holder)
            sync_folder(home.leases)
        except BaseException:
            locks.release(self._handle)
            raise

    def _acquire(self) -> locks.Handle:
        while True:
            with suppress(FileNotFoundError):  # the holder deleted the file meanwhile
                handle = locks.acquire_file(self._path, locks.acquire_soon)
                if handle is not None:
                    return handle
                other = _holder(self._path)
                raise LeaseError(f"golem {self.golem_id} is held by writer {other}: close that one first")

    def release(self) -> None:
        """Delete the file and then release the lock, so that no process sees a stale lease of a closed writer."""
        if locks.is_ours(self._handle):
            self._path.unlink(missing_ok=True)
            locks.release(self._handle)

    def abandon(self, holder: str | None = None) -> None:
        """Release the lock and keep the file, because records of this writer or of `holder` are not drained."""
        if locks.is_ours(self._handle):
            if holder is not None:
                self._write(holder)
            locks.release(self._handle)

    def _write(self, holder: str) -> None:
        content = orjson.dumps({"golem_id": self.golem_id, "holder": holder, "pid": os.getpid()})
        os.pwrite(self._handle, content, 0)  # overwrite before truncating: an empty file would look like a new lease
        os.ftruncate(self._handle, len(content))
        os.fsync(self._handle)


def lease_path(home: Home, golem_id: str) -> Path:
    """Return the path of a golem's lease; a hash makes any id a valid file name."""
    return home.leases / f"{hashlib.sha256(golem_id.encode()).hexdigest()[:40]}.lease"


def leased(home: Home, golem_ids: Collection[str]) -> dict[str, str]:
    """Return the golems with a held or stale lease, each with the reason for a refusal."""
    try:
        names = {entry.name for entry in os.scandir(home.leases)}
    except FileNotFoundError:
        return {}
    if not names:
        return {}
    reasons: dict[str, str] = {}
    for golem_id in golem_ids:
        path = lease_path(home, golem_id)
        if path.name in names and (reason := _reason(path)) is not None:
            reasons[golem_id] = reason
    return reasons


def holder_of(home: Home, golem_id: str) -> str | None:
    """Return the writer that holds a golem's lease; None without a living one."""
    path = lease_path(home, golem_id)
    with suppress(FileNotFoundError):
        if locks.is_held(path):
            return _holder(path)
    return None


def stale_leases(home: Home) -> list[Path]:
    """Return the leases of dead writers."""
    paths = []
    for path in sorted(home.leases.glob("*.lease")):
        with suppress(FileNotFoundError):  # released meanwhile
            if not locks.is_held(path):
                paths.append(path)
    return paths


def remove_stale_lease(path: Path, *, kept: Collection[str]) -> None:
    """Delete a stale lease, unless one of the `kept` writers left it or a new writer has taken it."""
    with suppress(FileNotFoundError):
        handle = locks.acquire_file(path, create=False)
        if handle is not None:
            try:
                if _holder(path) not in kept:
                    path.unlink()
            finally:
                locks.release(handle)


def _reason(path: Path) -> str | None:
    try:
        if locks.is_held(path):
            return f"is held by writer {_holder(path)}: write through it, or close it first"
        return f"was left by writer {_holder(path)}, which died: `bardo drain` commits its records"
    except FileNotFoundError:
        return None


def _holder(path: Path) -> str:
    try:
        return str(orjson.loads(path.read_bytes())["holder"])
    except (orjson.JSONDecodeError, KeyError, FileNotFoundError):
        return "unknown"
