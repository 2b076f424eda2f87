"""Blind signatures: a relay signs posts that it cannot read, and verifies them later without naming authors. Pure.

    digest(post) = SHAKE-256("bardo/lethe/1" || purpose || 0 || post), one byte shorter than the modulus n
    blinded      = digest * r^e mod n, where only the author knows r
    signed       = blinded^d mod n, by the relay
    signature    = signed / r mod n, which verifies as signature^e = digest mod n

r is derived from the author's secret and the post, so an author that repeats a request after a crash asks for the same
signature. Source: Chaum 1982; RFC 9474 (the scheme with a full-domain hash); ADR 0115.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Literal, NamedTuple

from cryptography.hazmat.primitives.asymmetric import rsa

from bardo_pipeline.errors import SealError

Purpose = Literal["living", "death"]
"""What a key's signature attests: a post of a verified author, or a last vote of one, of which it has fewer."""

PURPOSES: tuple[Purpose, ...] = ("living", "death")

KEY_BITS = 2048
_EXPONENT = 65_537
_BYTES = KEY_BITS // 8


class BlindKey(NamedTuple):
    """Public key of a relay for one purpose."""

    purpose: Purpose
    modulus: int

    def blind(self, post: bytes, secret: bytes) -> int:
        """Return the digest of a post, blinded with a factor that follows from the author's secret."""
        return _digest(self, post) * pow(_factor(self, post, secret), _EXPONENT, self.modulus) % self.modulus

    def unblind(self, post: bytes, secret: bytes, signed: int) -> int:
        """Return the signature of a post from the relay's answer. Raises SealError if the relay signed other data."""
        signature = signed * pow(_factor(self, post, secret), -1, self.modulus) % self.modulus
        if not self.verifies(post, signature):
            raise SealError("the relay signed other data than the post: use another relay")
        return signature

    def verifies(self, post: bytes, signature: int) -> bool:
        """Whether a signature is that of a post under this key."""
        return 0 < signature < self.modulus and pow(signature, _EXPONENT, self.modulus) == _digest(self, post)


class BlindSigner:
    """Private key of a relay for one purpose."""

    def __init__(self, key: rsa.RSAPrivateKey, purpose: Purpose) -> None:
        numbers = key.private_numbers()
        self._p, self._q, self._dp, self._dq, self._inverse = (
            numbers.p, numbers.q, numbers.dmp1, numbers.dmq1, numbers.iqmp,
        )  # fmt: skip
        self.public = BlindKey(purpose, numbers.public_numbers.n)

    def sign(self, blinded: int) -> int:
        """Sign a blinded digest. Raises SealError for a number outside the modulus."""
        if not 0 < blinded < self.public.modulus:
            raise SealError("a blinded digest is no number below the relay's modulus: fetch the relay's keys again")
        at_p, at_q = pow(blinded % self._p, self._dp, self._p), pow(blinded % self._q, self._dq, self._q)
        return at_q + self._q * ((at_p - at_q) * self._inverse % self._p)


def new_key() -> rsa.RSAPrivateKey:
    """Make the private key of a relay."""
    return rsa.generate_private_key(public_exponent=_EXPONENT, key_size=KEY_BITS)


def _digest(key: BlindKey, post: bytes) -> int:
    head = f"bardo/lethe/1/{key.purpose}".encode() + b"\0"
    return int.from_bytes(hashlib.shake_256(head + post).digest(_BYTES - 1), "big")


def _factor(key: BlindKey, post: bytes, secret: bytes) -> int:
    """Return the blinding factor of a post: pseudo-random for all without the secret, never 0."""
    seed = hmac.digest(secret, b"blind\0" + f"{key.modulus:x}\0".encode() + post, "sha256")
    return 2 + int.from_bytes(hashlib.shake_256(seed).digest(_BYTES - 1), "big")
