"""The signature of a line by its golem's key, for writers inside and outside of the home. Light.

    signed message = "bardo/signed/1" 00 golem_id 00 SHA-256 of the line[32]           (Ed25519)

docs/writing.md defines the same bytes for other languages. Source: X-9.
"""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def signed_message(golem_id: str, content: bytes) -> bytes:
    """Return the bytes that a golem's key signs."""
    return b"bardo/signed/1\0" + golem_id.encode() + b"\0" + content


class Signer(NamedTuple):
    """A signing key and its registered id."""

    key_id: str
    key: Ed25519PrivateKey

    def sign(self, golem_id: str, content: bytes) -> bytes:
        """Return the signature (64 bytes) of a content hash (32 bytes)."""
        return self.key.sign(signed_message(golem_id, content))

    def signature_line(self, golem_id: str, line: bytes) -> str:
        """Return `KEY_ID BASE64` for a line of JSON without its newline, as in a signature file of the spool."""
        return f"{self.key_id} {base64.b64encode(self.sign(golem_id, hashlib.sha256(line).digest())).decode()}"
