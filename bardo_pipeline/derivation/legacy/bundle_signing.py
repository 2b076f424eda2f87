"""Signs published bundles with the owner's key; the signature is a file in the bundle's folder and an event.

Source: INH-7.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.legacy.bundle_store import load_bundle
from bardo_pipeline.derivation.legacy.death_queries import owners_of
from bardo_pipeline.errors import SignatureError
from bardo_pipeline.events.life.bundle_events import BundleSigned
from bardo_pipeline.events.life.events import LifeEvent, life_event
from bardo_pipeline.inheritance.bundle_files import SIGNATURE, Bundle
from bardo_pipeline.inheritance.bundle_signature import signature_fault, signed, with_signature_file
from bardo_pipeline.inheritance.canonical_json import canonical
from bardo_pipeline.storage.home import replace_file
from bardo_pipeline.storage.keys.owner_signing_keys import OwnerKeys


class BundleSigner:
    """Signs published bundles with owners' keys. The bundle hash does not cover the signature."""

    def __init__(self, context: DerivationContext, given: Mapping[str, Ed25519PrivateKey] | None = None) -> None:
        """Use the keys of this home and the `given` ones (owner -> key); SignatureError if one is not in force."""
        self._context, self._keys = context, OwnerKeys(context.home, context.log)
        self.in_force = self._keys.in_force()
        self._private: dict[str, Ed25519PrivateKey | None] = dict(given or {})
        for owner_id, key in (given or {}).items():
            current = self.in_force.get(owner_id)
            if current is None or current.public_key != key.public_key().public_bytes_raw().hex():
                raise SignatureError(
                    f"owner {owner_id}: this is not the key in force: `bardo keys owner` registers one"
                )

    def sign(self, bundle: Bundle, owner_id: str, died_at: datetime) -> LifeEvent | None:
        """Write the signature into the bundle's folder and return the event to record; None without the owner's key.

        A valid signature is kept. Raises SignatureError if the key file differs from the recorded key.
        """
        if owner_id not in self._private and owner_id in self.in_force:
            self._private[owner_id] = self._keys.private(self.in_force[owner_id])
        key = self._private.get(owner_id)
        if key is None:
            return None
        signature, path = signed(bundle, owner_id, key), self._context.home.bundles / bundle.bundle_hash / SIGNATURE
        present = with_signature_file(bundle, path.read_bytes()) if path.exists() else None
        if present is None or signature_fault(present, signature["public_key"]) is not None:
            replace_file(path, canonical(signature))
        names = ("owner_id", "key_id", "signature")
        payload = BundleSigned(bundle_hash=bundle.bundle_hash, **{name: signature[name] for name in names})
        return life_event(bundle.golem_id, died_at, payload)


def sign_all_bundles(
    context: DerivationContext, given: Mapping[str, Ed25519PrivateKey] | None = None, *, now: datetime
) -> dict[str, str]:
    """Sign every published bundle that its owner's current key has not signed. Return bundle hash -> key id.

    given holds private keys by owner from outside this home; SignatureError if one is not in force.
    """
    voucher = BundleSigner(context, given)
    owners = owners_of(context)
    signatures = context.life_fields("BundleSigned", "bundle_hash", "key_id").to_pylist()
    signed_before = {(signature["bundle_hash"], signature["key_id"]) for signature in signatures}
    key_ids: dict[str, str] = {}
    events = []
    for row in context.life_fields("BundlePublished", "bundle_hash").to_pylist():
        bundle_hash, owner_id = row["bundle_hash"], owners[row["golem_id"]]
        current = voucher.in_force.get(owner_id)
        if current is None or (bundle_hash, current.key_id) in signed_before:
            continue
        event = voucher.sign(load_bundle(context.home, bundle_hash), owner_id, row["observed_at"])
        if event is not None:
            events.append(event)
            key_ids[bundle_hash] = current.key_id
    context.log.record(events, now)
    return key_ids
