"""Tokens of owners: a random word for each, shown once, of which the home stores the SHA-256.

The file is outside the log and outside backups, with mode 0600: a restored home has no tokens. A token opens the view
of one owner, or the whole home. Source: MEM-17; ADR 0076.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

import orjson

from bardo_pipeline.errors import StoreError
from bardo_pipeline.storage.home import Home, make_folder, replace_file

PREFIX = "bardo_"
"""Beginning of every token, by which scanners of leaked secrets recognize it."""


@dataclass(frozen=True)
class OwnerToken:
    """A token on file. owner_id: None for the whole home. token_id: prefix of its SHA-256."""

    token_id: str
    owner_id: str | None
    sha256: str
    made_at: datetime


class OwnerTokens:
    """The tokens of a home. The file is read again when it changes, so that a revoked token fails at once."""

    def __init__(self, home: Home) -> None:
        self._home, self.path = home, home.keys / "tokens.json"
        self._read_at: tuple[int, int, int] | None = None
        self._by_hash: dict[str, OwnerToken] = {}

    def on_file(self) -> list[OwnerToken]:
        """Return all tokens, oldest first. Raises StoreError if the file is not readable as tokens."""
        return list(self._current().values())

    def issue(self, owner_id: str | None, secret: str, at: datetime) -> str:
        """Store the hash of a new token with this secret; return the token, which is stored nowhere."""
        token = f"{PREFIX}{secret}"
        digest = _hash(token)
        with self._home.lock("keys"):
            tokens = [*self.on_file(), OwnerToken(digest[:12], owner_id, digest, at)]
            self._write(tokens)
        return token

    def revoke(self, token_id: str) -> OwnerToken | None:
        """Remove a token from the file and return it; None if no token has this id."""
        with self._home.lock("keys"):
            tokens = self.on_file()
            revoked = next((token for token in tokens if token.token_id == token_id), None)
            if revoked is not None:
                self._write([token for token in tokens if token is not revoked])
        return revoked

    def find(self, token: str) -> OwnerToken | None:
        """Return the stored token with the hash of this word; None for an unknown word."""
        return self._current().get(_hash(token))

    def _current(self) -> dict[str, OwnerToken]:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            self._read_at, self._by_hash = None, {}
            return self._by_hash
        seen = (status.st_ino, status.st_mtime_ns, status.st_size)
        if seen != self._read_at:
            self._by_hash = {token.sha256: token for token in _read(self.path)}
            self._read_at = seen
        return self._by_hash

    def _write(self, tokens: Sequence[OwnerToken]) -> None:
        make_folder(self.path.parent)
        self.path.parent.chmod(0o700)
        content = orjson.dumps([asdict(token) for token in tokens], option=orjson.OPT_INDENT_2)
        replace_file(self.path, content)  # drafts have mode 0600


def _read(path: Path) -> list[OwnerToken]:
    try:
        rows = orjson.loads(path.read_bytes())
        return [OwnerToken(**{**row, "made_at": datetime.fromisoformat(row["made_at"])}) for row in rows]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"{path} does not hold tokens ({error!r}): delete it and issue new ones (`bardo keys token`)"
        ) from error


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
