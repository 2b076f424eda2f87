"""Signs and verifies a bundle's hash, which covers every byte of the bundle. Pure.

    signed message = "bardo/bundle/1" 00 owner_id 00 bundle_hash[64 hex digits]           (Ed25519)

With the owner's public key a steward can verify a bundle that came through untrusted hands. Source: INH-7.
"""

from __future__ import annotations

import hashlib
from typing import Annotated

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bardo_pipeline.events.custody.hash_chain import verified
from bardo_pipeline.events.record.model import Name
from bardo_pipeline.inheritance.bundle_files import SIGNATURE, Bundle
from bardo_pipeline.inheritance.canonical_json import canonical


class _Signature(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    owner_id: Name
    key_id: Name
    public_key: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    signature: Annotated[str, Field(pattern="^[0-9a-f]{128}$")]


def key_id_of(public_key: str) -> str:
    """Return the id of a public key (64 hex digits): the first 16 hex digits of its SHA-256."""
    return hashlib.sha256(bytes.fromhex(public_key)).hexdigest()[:16]


def signed(bundle: Bundle, owner_id: str, key: Ed25519PrivateKey) -> dict[str, str]:
    """Return the content of signature.json: owner_id, key_id, public_key and signature, in hex."""
    public_key = key.public_key().public_bytes_raw().hex()
    signature = key.sign(_message(owner_id, bundle.bundle_hash)).hex()
    return {"owner_id": owner_id, "key_id": key_id_of(public_key), "public_key": public_key, "signature": signature}


def with_signature_file(bundle: Bundle, content: bytes) -> Bundle:
    """Return the bundle with this signature.json."""
    return Bundle({**bundle.files, SIGNATURE: content}, bundle.manifest)


def signature_of(bundle: Bundle) -> dict[str, str] | None:
    """Return the content of signature.json; None if it is missing or not in the form that `signed` writes."""
    content = bundle.files.get(SIGNATURE, b"")
    try:
        parts = _Signature.model_validate_json(content, strict=True).model_dump()
    except ValidationError:
        return None
    return parts if content == canonical(parts) else None


def signature_fault(bundle: Bundle, public_key: str | None = None) -> str | None:
    """Return the fault of the bundle's signature in a sentence, None for a valid signature.

    public_key: the required key, 64 hex digits. None accepts the key named in the signature, which proves that the
    bundle is unaltered but not who signed it.
    """
    if SIGNATURE not in bundle.files:
        return f"{SIGNATURE}: missing, the bundle is not signed"
    parts = signature_of(bundle)
    if parts is None:
        return f"{SIGNATURE}: not a signature as `bardo bundle sign` writes it"
    if public_key is not None and parts["public_key"] != public_key:
        return f"{SIGNATURE}: made with key {parts['key_id']}, not with the owner's {key_id_of(public_key)}"
    if parts["key_id"] != key_id_of(parts["public_key"]):
        return f"{SIGNATURE}: key {parts['key_id']} is named for another public key"
    message = _message(parts["owner_id"], bundle.bundle_hash)
    if not verified(parts["public_key"], bytes.fromhex(parts["signature"]), message):
        return f"{SIGNATURE}: key {parts['key_id']} did not sign bundle {bundle.bundle_hash}"
    return None


def _message(owner_id: str, bundle_hash: str) -> bytes:
    return b"bardo/bundle/1\0" + owner_id.encode() + b"\0" + bundle_hash.encode()
