"""Seal keys of golems: one file each, outside the log and outside backups, with their life in the log.

A key is in force from `SealKeyMade` to `SealKeyDestroyed`. The file is written before the first event and deleted after
the second, so both operations can be repeated after a crash. Destruction overwrites the bytes, unlinks the name and
syncs the folder; a copy-on-write file system, a snapshot or a manual copy may still contain the key. Source: X-7.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pyarrow.compute as pc

from bardo_pipeline.errors import SealError
from bardo_pipeline.events.custody.sealing import SECRET_BYTES, SealKey
from bardo_pipeline.events.life.events import SealKeyDestroyed, SealKeyMade, life_event
from bardo_pipeline.storage.home import Home, replace_file, sync_folder
from bardo_pipeline.storage.log.event_log import EventLog

_COLUMNS = {"SealKeyMade": "seal_key_made", "SealKeyDestroyed": "seal_key_destroyed"}


@dataclass(frozen=True)
class SealState:
    """A recorded key. destroyed_at, why: None until its destruction. present: whether the key file holds this key."""

    golem_id: str
    key_id: str
    made_at: datetime
    destroyed_at: datetime | None
    why: str | None
    present: bool


class SealKeys:
    """The seal keys of a home."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def path(self, golem_id: str) -> Path:
        """Return the path of a golem's key file: a hash, because an id may be an invalid file name."""
        return self._home.keys / f"{hashlib.sha256(golem_id.encode()).hexdigest()[:40]}.key"

    def key(self, golem_id: str) -> SealKey | None:
        """Read the golem's key; None if there is no file. Raises SealError if the file is not a key."""
        try:
            secret = self.path(golem_id).read_bytes()
        except FileNotFoundError:
            return None
        if len(secret) != SECRET_BYTES or not any(secret):
            raise SealError(f"golem {golem_id}: {self.path(golem_id)} is not a seal key: restore the right file")
        return SealKey(secret)

    def in_force(self, log: EventLog, golem_id: str) -> SealKey:
        """Return the key that seals the golem's private parts now. Raises SealError without one in force."""
        states = states_of(self._home, log, golem_id)
        current = next((state for state in states if state.destroyed_at is None), None)
        if current is None:
            raise SealError(f"golem {golem_id}: {_why_no_key(states)}")
        key = self.key(golem_id)
        if key is None or key.key_id != current.key_id:
            raise SealError(
                f"golem {golem_id}: {self.path(golem_id)} does not hold key {current.key_id}: restore it, or "
                "`bardo seal destroy` the key and make another"
            )
        return key

    def to_open(self, log: EventLog, golem_id: str, key_id: str) -> SealKey:
        """Return the key with this id. Raises SealError, with date and reason, if it was destroyed."""
        states = [state for state in states_of(self._home, log, golem_id) if state.key_id == key_id]
        if not states or states[0].destroyed_at is not None:
            raise SealError(f"golem {golem_id}: data sealed with {key_id} cannot be opened: {_why_no_key(states)}")
        return self.in_force(log, golem_id)

    def make(self, log: EventLog, golem_id: str, secret: bytes, at: datetime) -> SealKey:
        """Give the golem a key: first the file, then the event. A retry uses the file of the interrupted attempt.

        Raises SealError if the golem has a key, LeaseError while a writer holds the golem.
        """
        with self._home.lock("keys"):
            states = states_of(self._home, log, golem_id)
            in_force = [state for state in states if state.destroyed_at is None]
            if in_force:
                raise SealError(f"golem {golem_id} has key {in_force[0].key_id}: destroy it before you make another")
            leftover = self.key(golem_id)
            destroyed_ids = {state.key_id for state in states}
            key = SealKey(secret) if leftover is None or leftover.key_id in destroyed_ids else leftover
            self._home.keys.mkdir(mode=0o700, exist_ok=True)
            sync_folder(self._home.root)
            replace_file(self.path(golem_id), key.secret)
            log.record([life_event(golem_id, at, SealKeyMade(key_id=key.key_id))], at)
            return key

    def destroy(self, log: EventLog, golem_id: str, why: str, at: datetime) -> None:
        """Destroy the golem's key: first the event, then the file. A retry completes an interrupted attempt.

        Raises SealError if the golem has neither a key in force nor a key file.
        """
        with self._home.lock("keys"):
            states = states_of(self._home, log, golem_id)
            in_force = next((state for state in states if state.destroyed_at is None), None)
            if in_force is None and not self.path(golem_id).exists():
                raise SealError(f"golem {golem_id}: there is nothing to destroy: {_why_no_key(states)}")
            if in_force is not None:
                log.record([life_event(golem_id, at, SealKeyDestroyed(key_id=in_force.key_id, why=why))], at)
            _overwrite(self.path(golem_id))


def states_of(home: Home, log: EventLog, golem_id: str | None = None) -> list[SealState]:
    """Return every key on record, of one golem or of all, ordered by golem and time."""
    made, destroyed = (log.life(kind).select(["golem_id", "observed_at", column]) for kind, column in _COLUMNS.items())
    if golem_id is not None:
        made, destroyed = (table.filter(pc.equal(table["golem_id"], golem_id)) for table in (made, destroyed))
    ends = {(row["golem_id"], row["seal_key_destroyed"]["key_id"]): row for row in destroyed.to_pylist()}
    states = []
    for row in made.to_pylist():
        owner, key_id = row["golem_id"], row["seal_key_made"]["key_id"]
        end = ends.get((owner, key_id))
        ended_at, why = (end["observed_at"], end["seal_key_destroyed"]["why"]) if end else (None, None)
        present = _holds(SealKeys(home), owner, key_id)
        states.append(SealState(owner, key_id, row["observed_at"], ended_at, why, present))
    return sorted(states, key=lambda state: (state.golem_id, state.made_at, state.key_id))


def sealing_golems(log: EventLog) -> frozenset[str]:
    """Return the golems whose private parts must be sealed: those with a key on record, even a destroyed one."""
    return frozenset(log.life("SealKeyMade").column("golem_id").to_pylist())


def _holds(keys: SealKeys, golem_id: str, key_id: str) -> bool:
    try:
        key = keys.key(golem_id)
    except SealError:
        return False
    return key is not None and key.key_id == key_id


def _why_no_key(states: list[SealState]) -> str:
    if not states:
        return "it has no seal key on record: `bardo seal make` gives it one"
    last = states[-1]
    assert last.destroyed_at is not None, "the caller found no key in force"
    return f"the key was destroyed on {last.destroyed_at:%Y-%m-%d %H:%M} UTC ({last.why}) and cannot be recovered"


def _overwrite(path: Path) -> None:
    """Overwrite and delete a key file, and the drafts that a killed process left."""
    for name in [path, *path.parent.glob(f".{path.name}.*"), path.with_suffix(".draft")]:
        if not name.exists():
            continue
        with name.open("r+b") as out:
            out.write(bytes(SECRET_BYTES))
            out.flush()
            os.fsync(out.fileno())
        name.unlink()
    if path.parent.exists():
        sync_folder(path.parent)
