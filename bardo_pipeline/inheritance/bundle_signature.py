"""Signature: an owner vouches for a bundle by its hash, which names every byte of it. Pure.

    signed message = "bardo/bundle/1" 00 owner_id 00 bundle_hash[64 hex digits]           (Ed25519)

A steward who holds the owner's public key need trust nobody else who had the bundle in hand. Source: INH-7.
"""

from __future__ import annotations

import hashlib
from typing import Any

import orjson
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bardo_pipeline.events.custody.hash_chain import verified
from bardo_pipeline.inheritance.bundle_files import SIGNATURE, Bundle
from bardo_pipeline.inheritance.canonical_json import canonical

_PARTS = ("owner_id", "key_id", "public_key", "signature")


def key_id_of(public_key: str) -> str:
    """The id of a public key (64 hex digits): the beginning of its SHA-256."""
    return hashlib.sha256(bytes.fromhex(public_key)).hexdigest()[:16]


def signed(bundle: Bundle, owner_id: str, key: Ed25519PrivateKey) -> dict[str, str]:
    """What signature.json says: owner_id, key_id, public_key and the signature over this bundle, in hex."""
    public_key = key.public_key().public_bytes_raw().hex()
    signature = key.sign(_message(owner_id, bundle.bundle_hash)).hex()
    return dict(zip(_PARTS, (owner_id, key_id_of(public_key), public_key, signature), strict=True))


def with_signature_file(bundle: Bundle, content: bytes) -> Bundle:
    """The bundle with this signature.json beside its manifest."""
    return Bundle({**bundle.files, SIGNATURE: content}, bundle.manifest)


def signature_of(bundle: Bundle) -> dict[str, str] | None:
    """What signature.json says; None where there is none, or where it is not of the form that `signed` writes."""
    said = _read(bundle.files.get(SIGNATURE))
    return said if said is not None and bundle.files.get(SIGNATURE) == canonical(said) else None


def signature_fault(bundle: Bundle, public_key: str | None = None) -> str | None:
    """What is wrong with the bundle's signature, in a sentence; None where nothing is.

    public_key: the only key that counts, 64 hex digits; without it the key that the signature names itself, which shows
    that nothing was altered since, and not by whom it was made.
    """
    if SIGNATURE not in bundle.files:
        return f"{SIGNATURE}: missing, nobody vouches for this bundle"
    said = signature_of(bundle)
    if said is None:
        return f"{SIGNATURE}: not a signature as `bardo bundle sign` writes it"
    if public_key is not None and said["public_key"] != public_key:
        return f"{SIGNATURE}: made with key {said['key_id']}, not with the owner's {key_id_of(public_key)}"
    if said["key_id"] != key_id_of(said["public_key"]):
        return f"{SIGNATURE}: key {said['key_id']} is named for another public key"
    message = _message(said["owner_id"], bundle.bundle_hash)
    if not verified(said["public_key"], bytes.fromhex(said["signature"]), message):
        return f"{SIGNATURE}: key {said['key_id']} did not sign bundle {bundle.bundle_hash}"
    return None


def _message(owner_id: str, bundle_hash: str) -> bytes:
    return b"bardo/bundle/1\0" + owner_id.encode() + b"\0" + bundle_hash.encode()


def _read(content: bytes | None) -> dict[str, str] | None:
    try:
        said: Any = orjson.loads(content or b"null")
    except orjson.JSONDecodeError:
        return None
    if not isinstance(said, dict) or set(said) != set(_PARTS) or not all(isinstance(v, str) for v in said.values()):
        return None
    named = all(1 <= len(said[part]) <= 256 for part in ("owner_id", "key_id"))
    return said if named and _is_hex(said["public_key"], 64) and _is_hex(said["signature"], 128) else None


def _is_hex(text: str, digits: int) -> bool:
    return len(text) == digits and all(c in "0123456789abcdef" for c in text)
