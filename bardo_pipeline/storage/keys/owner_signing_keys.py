"""Signing keys of owners: one private key file each, outside the log and outside backups, with their life in the log.

The private key signs the inheritance bundles of the owner's dead golems. Its public key is on record
(`OwnerKeyRegistered`), so that a steward of this home can verify a bundle's signature. For a private key that is kept
elsewhere, the home has only the public key.
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
    """One key on record. why: reason of its revocation, None while it is in force."""

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
        """Return every registered key, ordered by owner and time."""
        reasons = {
            (row["owner_id"], row["key_id"]): row["why"]
            for row in self._log.life("OwnerKeyRevoked")["owner_key_revoked"].to_pylist()
        }
        events = self._log.life("OwnerKeyRegistered").select(["observed_at", "owner_key_registered"]).to_pylist()
        keys = []
        for event in events:
            key = event["owner_key_registered"]
            why = reasons.get((key["owner_id"], key["key_id"]))
            keys.append(OwnerKey(**key, since=event["observed_at"], why=why))
        return sorted(keys, key=lambda key: (key.owner_id, key.since, key.key_id))

    def in_force(self) -> dict[str, OwnerKey]:
        """Map each owner to its newest key, unless that was revoked; an older key never returns."""
        newest = {key.owner_id: key for key in self.on_record()}
        return {owner_id: key for owner_id, key in newest.items() if key.why is None}

    def private(self, current: OwnerKey) -> Ed25519PrivateKey | None:
        """Read the private key of a key in force; None if this home does not have it.

        Raises SignatureError if the file holds another key than the one on record.
        """
        owner_id, path = current.owner_id, self.path(current.owner_id)
        if not path.exists():
            return None
        try:
            key = Ed25519PrivateKey.from_private_bytes(path.read_bytes())
        except ValueError:
            raise SignatureError(f"owner {owner_id}: {path} is not a signing key: restore the right file") from None
        if key.public_key().public_bytes_raw().hex() != current.public_key:
            raise SignatureError(
                f"owner {owner_id}: {path} does not hold key {current.key_id}: restore it, or revoke the key "
                "(`bardo keys revoke-owner`)"
            )
        return key

    def make(self, owner_id: str, secret: bytes, at: datetime) -> OwnerKey:
        """Create the owner's key from 32 random bytes, unless one is in force. Returns the key in force.

        The file is written before the event, so a retry after a crash uses the key on file.
        """
        with self._home.lock("keys"):
            current = self.in_force().get(owner_id)
            if current is not None:
                return current
            path, registered = self.path(owner_id), {key.public_key for key in self.on_record()}
            leftover = path.read_bytes() if path.exists() else b""
            if len(leftover) == len(secret) and _public(leftover) not in registered:
                secret = leftover
            make_folder(path.parent)
            path.parent.chmod(0o700)
            replace_file(path, secret)
            return self.register(owner_id, _public(secret), at)

    def register(self, owner_id: str, public_key: str, at: datetime) -> OwnerKey:
        """Record an owner's public key (64 hex digits), which is the key in force from now on."""
        event = OwnerKeyRegistered(owner_id=owner_id, key_id=key_id_of(public_key), public_key=public_key)
        self._log.record([life_event(EVERY_GOLEM, at, event)], at)
        return OwnerKey(owner_id, event.key_id, public_key, at, None)

    def revoke(self, owner_id: str, why: str, at: datetime) -> OwnerKey:
        """Revoke the owner's key in force. Raises SignatureError without one."""
        current = self.in_force().get(owner_id)
        if current is None:
            raise SignatureError(f"owner {owner_id} has no key in force: `bardo keys owner` gives one")
        event = OwnerKeyRevoked(owner_id=owner_id, key_id=current.key_id, why=why)
        self._log.record([life_event(EVERY_GOLEM, at, event)], at)
        return current

    def path(self, owner_id: str) -> Path:
        """Return the path of an owner's key file."""
        return owner_key_path(self._home, owner_id)


def owner_key_path(home: Home, owner_id: str) -> Path:
    """Return the path of an owner's key file: a hash, because an id may be an invalid file name."""
    return home.keys / f"owner-{hashlib.sha256(owner_id.encode()).hexdigest()[:40]}.key"


def _public(secret: bytes) -> str:
    return Ed25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw().hex()
