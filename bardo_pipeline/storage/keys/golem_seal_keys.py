"""Seal keys: one file a golem beside the log, never in it, nor in a backup; and what the log says of them.

A key exists from `SealKeyMade` to `SealKeyDestroyed`; the file is written before the first and goes after the second,
so that whoever is interrupted does the same again. Destroying overwrites the bytes, unlinks the name and syncs the
folder; a file system that copies on write, a snapshot or a copy of one's own may still have them. Source: X-7.
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
from bardo_pipeline.events.life.events import LifeEvent, SealKeyDestroyed, SealKeyMade, life_event
from bardo_pipeline.events.record.arrow_schema import to_models
from bardo_pipeline.storage.home import Home, sync_folder
from bardo_pipeline.storage.log.protocol import Log

KINDS = ("SealKeyMade", "SealKeyDestroyed")


@dataclass(frozen=True)
class SealState:
    """One key, as the log has it, and whether its file is there. destroyed_at, why: null while it is in force."""

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
        """Where a golem's key lies: any id makes a name that every file system takes."""
        return self._home.keys / f"{hashlib.sha256(golem_id.encode()).hexdigest()[:40]}.key"

    def key(self, golem_id: str) -> SealKey | None:
        """The golem's key; None where there is no file. Raises SealError for a file that is none of ours."""
        try:
            secret = self.path(golem_id).read_bytes()
        except FileNotFoundError:
            return None
        if len(secret) != SECRET_BYTES or not any(secret):
            raise SealError(f"golem {golem_id}: {self.path(golem_id)} is no seal key: put the right file back")
        return SealKey(secret)

    def in_force(self, log: Log, golem_id: str) -> SealKey:
        """The key under which the golem's private parts are sealed now. Raises SealError where there is none."""
        states = states_of(self._home, log, golem_id)
        current = next((state for state in states if state.destroyed_at is None), None)
        if current is None:
            raise SealError(f"golem {golem_id}: {_gone(states)}")
        key = self.key(golem_id)
        if key is None or key.key_id != current.key_id:
            raise SealError(
                f"golem {golem_id}: {self.path(golem_id)} does not hold key {current.key_id}: put it back, or "
                "`bardo seal destroy` the key and make another"
            )
        return key

    def to_open(self, log: Log, golem_id: str, key_id: str) -> SealKey:
        """The key of that id. Raises SealError, with the day and the reason, for one that was destroyed."""
        states = [state for state in states_of(self._home, log, golem_id) if state.key_id == key_id]
        if not states or states[0].destroyed_at is not None:
            raise SealError(f"golem {golem_id}: what {key_id} sealed cannot be opened: {_gone(states)}")
        return self.in_force(log, golem_id)

    def make(self, log: Log, golem_id: str, secret: bytes, at: datetime) -> SealKey:
        """Give the golem a key: the file first, then the event. The key on file counts if a first try left one.

        Raises SealError for a golem that has one, LeaseError while a writer holds the golem.
        """
        with self._home.lock("keys"):
            states = states_of(self._home, log, golem_id)
            in_force = [state for state in states if state.destroyed_at is None]
            if in_force:
                raise SealError(f"golem {golem_id} has key {in_force[0].key_id}: destroy it before you make another")
            left = self.key(golem_id)
            ended = {state.key_id for state in states}
            key = SealKey(secret) if left is None or left.key_id in ended else left
            self._home.keys.mkdir(mode=0o700, exist_ok=True)
            sync_folder(self._home.root)
            _write_secret(self.path(golem_id), key.secret)
            log.record([life_event(golem_id, at, SealKeyMade(key_id=key.key_id))], at)
            return key

    def destroy(self, log: Log, golem_id: str, why: str, at: datetime) -> None:
        """End the golem's key: the event first, then the file; finishes what a first try left.

        Raises SealError for a golem that has no key and none left to remove.
        """
        with self._home.lock("keys"):
            states = states_of(self._home, log, golem_id)
            in_force = next((state for state in states if state.destroyed_at is None), None)
            if in_force is None and not self.path(golem_id).exists():
                raise SealError(f"golem {golem_id}: there is nothing to destroy: {_gone(states)}")
            if in_force is not None:
                log.record([life_event(golem_id, at, SealKeyDestroyed(key_id=in_force.key_id, why=why))], at)
            _overwrite(self.path(golem_id))


def states_of(home: Home, log: Log, golem_id: str | None = None) -> list[SealState]:
    """Every key on record, of one golem or of all, by golem and moment."""
    found: list[LifeEvent] = []
    for kind in KINDS:
        table = log.life(kind)
        if golem_id is not None:
            table = table.filter(pc.equal(table.column("golem_id"), golem_id))
        found.extend(to_models(table, LifeEvent))
    ended = {(e.golem_id, e.seal_key_destroyed.key_id): e for e in found if e.seal_key_destroyed is not None}
    keys = SealKeys(home)
    states = []
    for event in found:
        if event.seal_key_made is None:
            continue
        key_id = event.seal_key_made.key_id
        end = ended.get((event.golem_id, key_id))
        gone, why = (end.observed_at, end.seal_key_destroyed.why) if end and end.seal_key_destroyed else (None, None)
        there = _holds(keys, event.golem_id, key_id)
        states.append(SealState(event.golem_id, key_id, event.observed_at, gone, why, there))
    return sorted(states, key=lambda state: (state.golem_id, state.made_at, state.key_id))


def sealing_golems(log: Log) -> frozenset[str]:
    """Golems whose private parts may not be written in plain text: those with a key on record, even a destroyed one."""
    return frozenset(log.life("SealKeyMade").column("golem_id").to_pylist())


def _holds(keys: SealKeys, golem_id: str, key_id: str) -> bool:
    try:
        key = keys.key(golem_id)
    except SealError:
        return False
    return key is not None and key.key_id == key_id


def _gone(states: list[SealState]) -> str:
    if not states:
        return "it has no seal key on record: `bardo seal make` gives it one"
    last = states[-1]
    assert last.destroyed_at is not None, "asked of keys that are gone"
    return f"there is no cure: the key was destroyed on {last.destroyed_at:%Y-%m-%d %H:%M} UTC ({last.why})"


def _write_secret(path: Path, secret: bytes) -> None:
    draft = path.with_suffix(".draft")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as out:
        out.write(secret)
        out.flush()
        os.fsync(out.fileno())
    draft.replace(path)
    sync_folder(path.parent)


def _overwrite(path: Path) -> None:
    for name in (path, path.with_suffix(".draft")):
        try:
            handle = os.open(name, os.O_WRONLY)
        except FileNotFoundError:
            continue
        with os.fdopen(handle, "wb") as out:
            out.write(bytes(SECRET_BYTES))
            out.flush()
            os.fsync(out.fileno())
        name.unlink()
    if path.parent.exists():
        sync_folder(path.parent)
