"""Callers: the owner behind a token, and the golem for which a request speaks."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from datetime import datetime

from bardo_pipeline.errors import AccessError, TokenError
from bardo_pipeline.storage.keys.owner_tokens import OwnerTokens

_OWN = "server"
"""Id of the process's own token in a session."""


@dataclass(frozen=True)
class Caller:
    """The owner of a request (None: the whole home) and its golem, None if the request names none."""

    owner: str | None
    golem: str | None = None


class Doorkeeper:
    """Finds the caller of a request by its token.

    Parameters
    ----------
    own_token : token of this process, in the file `server.json` of the home; it opens the whole home
    """

    def __init__(self, tokens: OwnerTokens, own_token: str) -> None:
        self._tokens, self._own = tokens, own_token.encode()

    def caller(self, authorization: str | None, owner: str | None, golem: str | None) -> Caller:
        """Return the caller of a request.

        Raises TokenError without a valid bearer token, AccessError for another owner than the token's.

        Parameters
        ----------
        authorization : header of the request, "Bearer TOKEN"
        owner : owner whose view a token of the whole home asks for
        golem : golem for which the request speaks
        """
        scheme, _, token = (authorization or "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            raise TokenError("the request has no token: send the header `Authorization: Bearer TOKEN`, with a "
                                    "token of `bardo keys token OWNER`")  # fmt: skip
        if hmac.compare_digest(token.encode("utf-8", "surrogatepass"), self._own):
            return Caller(owner, golem)
        issued = self._tokens.find(token)
        if issued is None:
            raise TokenError("the token is unknown or revoked: `bardo keys token OWNER` issues one")
        if issued.owner_id is None:
            return Caller(owner, golem)
        if owner not in (None, issued.owner_id):
            raise AccessError(f"owner {owner!r}: the token belongs to another owner: use a token of that owner")
        return Caller(issued.owner_id, golem)

    def session(self, token: str, until: datetime) -> str:
        """Return a signed text that stands for a token in this process; it does not contain the token.

        Raises TokenError for an invalid token.
        """
        self.caller(f"Bearer {token}", None, None)
        issued = self._tokens.find(token)
        stated = f"{_OWN if issued is None else issued.token_id}.{int(until.timestamp())}"
        return f"{stated}.{self._signature(stated)}"

    def caller_of_session(self, session: str, now: datetime) -> Caller:
        """Return the caller of a session. Raises TokenError for an altered or old one, or if its token is revoked."""
        stated, _, signature = session.rpartition(".")
        token_id, _, until = stated.partition(".")
        is_signed = hmac.compare_digest(signature.encode(), self._signature(stated).encode())
        if not is_signed or int(until) <= now.timestamp():
            raise TokenError("the session has ended: give the token again")
        if token_id == _OWN:
            return Caller(None)
        issued = next((issued for issued in self._tokens.on_file() if issued.token_id == token_id), None)
        if issued is None:
            raise TokenError("the token of the session is revoked: `bardo keys token OWNER` issues one")
        return Caller(issued.owner_id)

    def _signature(self, stated: str) -> str:
        return hmac.digest(self._own, b"bardo/session/1\0" + stated.encode(), "sha256").hex()
