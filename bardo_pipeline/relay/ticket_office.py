"""TicketOffice: signs posts of verified authors without reading them, so that posts are anonymous and bounded.

An author proves its identity, which a registry knows with a score, and gets a limited number of signatures a day. The
signatures are blind, so a post that comes with one later cannot be traced to the request. Votes of the dead have a
key and a smaller quota of their own: a relay that checked the death would learn the voter.
Source: KAT (Write Paths: "ERC-8004 score >= 50"; death votes); canon 48; ADR 0115.
"""

from __future__ import annotations

import hashlib
import json
import threading
from pathlib import Path
from typing import NamedTuple, Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa

from bardo_pipeline.client.lethe_client import TicketRequest
from bardo_pipeline.errors import ConfigError, ServerError
from bardo_pipeline.events.custody.blind_signature import PURPOSES, BlindKey, BlindSigner, Purpose, new_key
from bardo_pipeline.relay.message_store import open_database, transaction

SCORE_MIN = 50
"""Score of the verified tier (KAT: "ERC-8004 score >= 50")."""

_TABLES = """
    create table if not exists keys (purpose text primary key, pem blob not null);
    create table if not exists tickets (
        identity text not null, day text not null, purpose text not null, digest text not null,
        primary key (identity, day, purpose, digest)
    );
"""


class Registry(Protocol):
    """Scores of identities."""

    def score(self, identity: str) -> int:
        """Return the score of an identity, 0 for an unknown one."""


class FileRegistry:
    """The registry in a JSON file: identity (64 hex digits) -> score. Raises ConfigError for another form.

    The file is read at each question, so an operator adds an identity without a restart.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._scores()

    def score(self, identity: str) -> int:
        """Return the score of an identity, 0 for an unknown one."""
        return self._scores().get(identity, 0)

    def _scores(self) -> dict[str, int]:
        try:
            scores = json.loads(self._path.read_bytes())
        except (OSError, ValueError) as error:
            raise ConfigError(f"the registry {self._path} cannot be read ({error}): name a JSON file") from None
        if not isinstance(scores, dict) or not all(isinstance(score, int) for score in scores.values()):
            raise ConfigError(f"the registry {self._path} is no JSON object of identity and whole score")
        return scores


class Quota(NamedTuple):
    """Signatures of one identity a day, by purpose."""

    living: int = 1_000
    death: int = 500


class TicketOffice:
    """Signs blinded posts within quotas.

    Parameters
    ----------
    path : file of its keys and of the digests that it signed, made if it does not exist
    """

    def __init__(self, path: Path, registry: Registry, quota: Quota | None = None) -> None:
        self._lock, self._registry, self._quota = threading.Lock(), registry, quota or Quota()
        self._database = open_database(path)
        self._database.executescript(_TABLES)
        self._signers = {purpose: self._signer(purpose) for purpose in PURPOSES}

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._database.close()

    @property
    def keys(self) -> dict[Purpose, BlindKey]:
        """Return the public keys by purpose."""
        return {purpose: signer.public for purpose, signer in self._signers.items()}

    def sign(self, request: TicketRequest, day: str) -> list[int]:
        """Return the signatures of a request's blinded digests; a repeated digest costs nothing.

        Raises ServerError 403 unless the identity signed the request and is verified, and 429 beyond its quota.
        """
        _require_signed(request)
        if self._registry.score(request.identity) < SCORE_MIN:
            raise ServerError(
                403, "NotVerifiedError", f"identity {request.identity} has a score below {SCORE_MIN}",
                "let the relay's operator register it; `bardo clade identity` prints it",
            )  # fmt: skip
        with self._lock, transaction(self._database) as database:
            for blinded in request.blinded:
                digest = hashlib.sha256(f"{blinded:x}".encode()).hexdigest()
                row = request.identity, day, request.purpose, digest
                database.execute("insert or ignore into tickets values (?, ?, ?, ?)", row)
            self._require_quota(request, day)
        return [self._signers[request.purpose].sign(blinded) for blinded in request.blinded]

    def _require_quota(self, request: TicketRequest, day: str) -> None:
        """Raises ServerError 429 if the signatures of a day exceed the quota; the transaction is rolled back."""
        (count,) = self._database.execute(
            "select count(*) from tickets where identity = ? and day = ? and purpose = ?",
            (request.identity, day, request.purpose),
        ).fetchone()
        most = self._quota.living if request.purpose == "living" else self._quota.death
        if count > most:
            raise ServerError(
                429, "QuotaError", f"an identity has {most:,} {request.purpose} signatures a day", "ask again tomorrow"
            )

    def _signer(self, purpose: Purpose) -> BlindSigner:
        """Return the stored key of a purpose, or make and store one."""
        with transaction(self._database) as database:
            row = database.execute("select pem from keys where purpose = ?", (purpose,)).fetchone()
            if row is None:
                pem = new_key().private_bytes(
                    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
                )
                database.execute("insert into keys values (?, ?)", (purpose, pem))
            else:
                pem = row[0]
        key = serialization.load_pem_private_key(pem, None)
        assert isinstance(key, rsa.RSAPrivateKey)
        return BlindSigner(key, purpose)


def _require_signed(request: TicketRequest) -> None:
    """Raises ServerError 403 unless the identity signed the request."""
    try:
        key = ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(request.identity))
        key.verify(bytes.fromhex(request.signature), request.signed_bytes)
    except (ValueError, InvalidSignature):
        raise ServerError(
            403, "IdentityError", "the request is not signed by its identity", "sign it with the identity's key"
        ) from None
