"""Client and AsyncClient: the calls of `calls` over HTTP, with httpx."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import httpx

from bardo_pipeline.client.calls import Call, Calls, Document
from bardo_pipeline.client.running_server import running_server
from bardo_pipeline.errors import ConfigError, NoServerError, ServerError


class Address(NamedTuple):
    """Where a server answers, and the token for it."""

    url: str
    token: str


def address_of(
    url: str | None, token: str | None, home: Path | str | None, environ: Mapping[str, str] | None = None
) -> Address:
    """Return the address of a server: as given, else of BARDO_URL and BARDO_TOKEN, else of the home's running server.

    Raises ConfigError for an address without a token, NoServerError if no server of the home runs.

    Parameters
    ----------
    home : folder of the home, by default BARDO_HOME or ./.bardo
    environ : environment variables, by default those of the process
    """
    environ = os.environ if environ is None else environ
    url, token = url or environ.get("BARDO_URL"), token or environ.get("BARDO_TOKEN")
    if url is not None:
        if token is None:
            raise ConfigError(f"the server {url} asks for a token: give `token` or BARDO_TOKEN")
        return Address(url.rstrip("/"), token)
    root = Path(home or environ.get("BARDO_HOME") or ".bardo").absolute()
    found = running_server(root)
    if found is None:
        raise NoServerError(f"no server runs for the home {root}")
    return Address(found.url, token or found.token)


def _headers(token: str, owner: str | None) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"} | ({} if owner is None else {"bardo-owner": owner})


def _request(call: Call) -> dict[str, Any]:
    headers = {} if call.golem is None else {"bardo-golem": call.golem}
    if call.content is not None:
        headers["content-type"] = call.content_type
    return {"method": call.method, "url": call.path, "params": dict(call.parameters), "content": call.content,
            "headers": headers}  # fmt: skip


def _document(response: httpx.Response) -> Document:
    try:
        document = response.json()
    except ValueError:
        document = None
    if response.is_success and isinstance(document, dict):
        return document
    facts = document if isinstance(document, dict) else {}
    message = str(facts.get("message", f"the server answered {response.status_code} without a JSON document"))
    raise ServerError(response.status_code, str(facts.get("error", "HTTPError")), message, facts.get("cure"))


class Client(Calls[Document]):
    """A client of a server, for one thread or many. Use it in a `with` block, or close it.

    Parameters
    ----------
    url, token : address and token; by default BARDO_URL and BARDO_TOKEN, else the running server of the home
    home : folder of the home whose running server is used
    golem : golem whose memory is used; BARDO_GOLEM by default
    owner : owner to whom a token of the whole home is limited
    timeout_seconds : time for an answer
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        home: Path | str | None = None,
        golem: str | None = None,
        owner: str | None = None,
        timeout_seconds: float = 30.0,
    ) -> None:
        super().__init__(golem or os.environ.get("BARDO_GOLEM"))
        self.address = address_of(url, token, home)
        self._http = httpx.Client(
            base_url=self.address.url, headers=_headers(self.address.token, owner), timeout=timeout_seconds,
            trust_env=False,
        )  # fmt: skip

    def _send(self, call: Call) -> Document:
        try:
            return _document(self._http.request(**_request(call)))
        except httpx.TransportError as error:
            raise NoServerError(f"{self.address.url} does not answer ({error!r})") from error

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        """Return the client."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the connections."""
        self.close()


class AsyncClient(Calls[Awaitable[Document]]):
    """A client of a server for the coroutines of an event loop; each call is awaited. See Client."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        home: Path | str | None = None,
        golem: str | None = None,
        owner: str | None = None,
        timeout_seconds: float = 30.0,
    ) -> None:
        super().__init__(golem or os.environ.get("BARDO_GOLEM"))
        self.address = address_of(url, token, home)
        self._http = httpx.AsyncClient(
            base_url=self.address.url, headers=_headers(self.address.token, owner), timeout=timeout_seconds,
            trust_env=False,
        )  # fmt: skip

    def _send(self, call: Call) -> Awaitable[Document]:
        return self._awaited(call)

    async def _awaited(self, call: Call) -> Document:
        try:
            return _document(await self._http.request(**_request(call)))
        except httpx.TransportError as error:
            raise NoServerError(f"{self.address.url} does not answer ({error!r})") from error

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        """Return the client."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close the connections."""
        await self.close()
