"""Owners' signing keys: one file an owner beside the log, never in it, nor in a backup; and what the log says of them.

The private key signs what the owner's dead leave. Its public half is on record (`OwnerKeyRegistered`), so that a
steward of this home knows whose word a bundle bears; a key that lies elsewhere signs there, and only its public half is
here.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bardo_pipeline.errors import SignatureError
from bardo_pipeline.events.life.bundle_events import OwnerKeyRegistered, OwnerKeyRevoked
from bardo_pipeline.events.life.events import EVERY_GOLEM, life_event
from bardo_pipeline.inheritance.bundle_signature import key_id_of
from bardo_pipeline.storage.home import Home, make_folder, replace_file
from bardo_pipeline.storage.log.event_log import EventLog


@dataclass(frozen=True)
class OwnerKey:
    """One key on record. why: null while it is in force."""

    owner_id: str
    key_id: str
    public_key: str
    since: datetime
    why: str | None


class OwnerKeys:
    """The signing keys of a home's owners."""

    def __init__(self, home: Home, log: EventLog) -> None:
        self._home, self._log = home, log

    def on_record(self) -> list[OwnerKey]:
        """Every key that was registered, by owner and moment."""
        gone = {
            (row["owner_id"], row["key_id"]): row["why"]
            for row in self._log.life("OwnerKeyRevoked")["owner_key_revoked"].to_pylist()
        }
        events = self._log.life("OwnerKeyRegistered").select(["observed_at", "owner_key_registered"]).to_pylist()
        keys = [
            OwnerKey(**event["owner_key_registered"], since=event["observed_at"], why=gone.get(_name(event)))
            for event in events
        ]
        return sorted(keys, key=lambda key: (key.owner_id, key.since, key.key_id))

    def in_force(self) -> dict[str, OwnerKey]:
        """By owner, the newest key that was not revoked."""
        return {key.owner_id: key for key in self.on_record() if key.why is None}

    def private(self, current: OwnerKey) -> Ed25519PrivateKey | None:
        """The private half of a key in force, where it lies in this home.

        Raises SignatureError for a file that holds another key than the one on record.
        """
        owner_id, path = current.owner_id, self.path(current.owner_id)
        if not path.exists():
            return None
        try:
            key = Ed25519PrivateKey.from_private_bytes(path.read_bytes())
        except ValueError:
            raise SignatureError(f"owner {owner_id}: {path} is no signing key: put the right file back") from None
        if key.public_key().public_bytes_raw().hex() != current.public_key:
            raise SignatureError(
                f"owner {owner_id}: {path} does not hold key {current.key_id}: put it back, or revoke the key "
                "(`bardo keys revoke-owner`)"
            )
        return key

    def make(self, owner_id: str, secret: bytes, at: datetime) -> OwnerKey:
        """Give the owner a key that lies in this home, from 32 random bytes; the one in force stays, if there is one.

        The file first, then the event: who is interrupted does the same again, with the key on file.
        """
        with self._home.lock("keys"):
            current = self.in_force().get(owner_id)
            if current is not None:
                return current
            path, known = self.path(owner_id), {key.public_key for key in self.on_record()}
            left = path.read_bytes() if path.exists() else b""
            if len(left) == len(secret) and _public(left) not in known:
                secret = left
            make_folder(path.parent)
            path.parent.chmod(0o700)
            replace_file(path, secret)
            return self.register(owner_id, _public(secret), at)

    def register(self, owner_id: str, public_key: str, at: datetime) -> OwnerKey:
        """Put an owner's public key (64 hex digits) on record; it is the one in force from here on."""
        said = OwnerKeyRegistered(owner_id=owner_id, key_id=key_id_of(public_key), public_key=public_key)
        self._log.record([life_event(EVERY_GOLEM, at, said)], at)
        return OwnerKey(owner_id, said.key_id, public_key, at, None)

    def revoke(self, owner_id: str, why: str, at: datetime) -> OwnerKey:
        """End the owner's key in force. Raises SignatureError where there is none."""
        current = self.in_force().get(owner_id)
        if current is None:
            raise SignatureError(f"owner {owner_id} has no key in force: `bardo keys owner` gives one")
        said = OwnerKeyRevoked(owner_id=owner_id, key_id=current.key_id, why=why)
        self._log.record([life_event(EVERY_GOLEM, at, said)], at)
        return current

    def path(self, owner_id: str) -> Path:
        """Where an owner's key lies: any id makes a name that every file system takes."""
        return self._home.keys / f"owner-{hashlib.sha256(owner_id.encode()).hexdigest()[:40]}.key"


def _name(event: dict[str, dict[str, str]]) -> tuple[str, str]:
    said = event["owner_key_registered"]
    return said["owner_id"], said["key_id"]


def _public(secret: bytes) -> str:
    return Ed25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw().hex()
