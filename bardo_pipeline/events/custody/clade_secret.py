"""CladeSecret: what the homes of one owner share, and how they encrypt parcels for each other with it. Pure.

    topic   = the first 32 hex digits of HKDF-SHA256(secret, info "bardo/clade/1/topic")
    token   = 64 hex digits of HKDF-SHA256(secret, info "bardo/clade/1/token")
    vault   = the same with info "bardo/clade/1/vault/topic" and so on: topic, token and keys of the clade's backups
    lethe, identity: 32 bytes each, which hide and prove an author on public boards
    nonce   = the first 12 bytes of HMAC-SHA256(nonce key, padded plaintext)
    body    = nonce, then AES-256-GCM(encryption key, nonce, padded plaintext, topic)
    padded  = length[4, big-endian], the plaintext, and zeros up to the next power of two, at least 4,096 bytes

The nonce is computed from the plaintext, so a parcel that is sent twice has equal bytes. Because of the padding, a
relay learns of a parcel's size only the next power of two. Source: KAT-9, KAT-6; INH S6.2; canon 44.
"""

from __future__ import annotations

import hashlib
import hmac

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from bardo_pipeline.errors import SealError

SECRET_BYTES = 32
_NONCE_BYTES, _LENGTH_BYTES, _SIZE_MIN = 12, 4, 4_096

PLAINTEXT_BYTES_MAX = 2**19 - _LENGTH_BYTES
"""Longest plaintext whose body is shorter than the 1,048,576 bytes that a relay accepts."""


class CladeSecret:
    """The shared secret of a clade: 32 random bytes. Raises SealError for another length.

    room: prefix of the purposes for which keys are derived; "vault/" for backups.
    """

    def __init__(self, secret: bytes, room: str = "") -> None:
        if len(secret) != SECRET_BYTES:
            raise SealError(f"a clade's secret has {SECRET_BYTES} bytes, not {len(secret)}: give the whole file")
        self._secret = secret
        self.topic = _derived(secret, f"{room}topic").hex()[:32]
        self.token = _derived(secret, f"{room}token").hex()
        self._cipher = AESGCM(_derived(secret, f"{room}encrypt"))
        self._nonce_key = _derived(secret, f"{room}nonce")

    def __repr__(self) -> str:
        return f"CladeSecret({self.key_id})"

    @property
    def vault(self) -> CladeSecret:
        """The same secret for backups: another topic, token and keys, and the same id."""
        return CladeSecret(self._secret, "vault/")

    @property
    def lethe_key(self) -> bytes:
        """The key that hides an owner's golems on public boards: of voter ids, blinding factors and release times."""
        return _derived(self._secret, "lethe")

    @property
    def identity(self) -> Ed25519PrivateKey:
        """The key by which a relay knows the owner as a verified author."""
        return Ed25519PrivateKey.from_private_bytes(_derived(self._secret, "identity"))

    @property
    def identity_name(self) -> str:
        """The public half of the identity, 64 hex digits."""
        return self.identity.public_key().public_bytes_raw().hex()

    @property
    def key_id(self) -> str:
        """Id of the secret in the log; it does not reveal the secret."""
        return "clade-" + hashlib.sha256(b"bardo/clade-id/1\0" + self._secret).hexdigest()[:16]

    def message_id(self, content_hash: str) -> str:
        """Return the name under which the relay stores the parcel with this hash."""
        return hmac.digest(self._nonce_key, b"id\0" + content_hash.encode(), "sha256").hex()

    def encrypt(self, plaintext: bytes) -> bytes:
        """Return the body of a message with this plaintext."""
        room = _LENGTH_BYTES + len(plaintext)
        padded = len(plaintext).to_bytes(_LENGTH_BYTES, "big") + plaintext
        padded = padded.ljust(max(_SIZE_MIN, 1 << (room - 1).bit_length()), b"\0")
        nonce = hmac.digest(self._nonce_key, padded, "sha256")[:_NONCE_BYTES]
        return nonce + self._cipher.encrypt(nonce, padded, self.topic.encode())

    def decrypt(self, body: bytes) -> bytes:
        """Return the plaintext of a body. Raises SealError for one that another secret made or that was altered."""
        try:
            padded = self._cipher.decrypt(body[:_NONCE_BYTES], body[_NONCE_BYTES:], self.topic.encode())
        except (InvalidTag, ValueError):
            raise SealError(f"the message was altered, or not made with the secret {self.key_id}") from None
        return padded[_LENGTH_BYTES : _LENGTH_BYTES + int.from_bytes(padded[:_LENGTH_BYTES], "big")]


def _derived(secret: bytes, purpose: str) -> bytes:
    return HKDF(SHA256(), SECRET_BYTES, salt=None, info=f"bardo/clade/1/{purpose}".encode()).derive(secret)
