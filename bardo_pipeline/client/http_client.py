"""Client and AsyncClient: the calls of `calls` over HTTP, with httpx."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Generic, NamedTuple, Self, TypeVar

import httpx

from bardo_pipeline.client.calls import Call, Calls, Document, T
from bardo_pipeline.client.running_server import running_server
from bardo_pipeline.errors import ConfigError, NoServerError, ServerError
from bardo_pipeline.signing import Signer

H = TypeVar("H")


class Address(NamedTuple):
    """Where a server answers, and the token for it."""

    url: str
    token: str


def address_of(
    url: str | None, token: str | None, home: Path | str | None, environ: Mapping[str, str] | None = None
) -> Address:
    """Return the address of a server: as given, else of the given home's running server, else of BARDO_URL.

    Without all three it is that of the running server of BARDO_HOME or ./.bardo. A token that is not given is that of
    BARDO_TOKEN, else that of the running server.

    Raises ConfigError for an address without a token, NoServerError if no server of the home runs.

    Parameters
    ----------
    home : folder of the home
    environ : environment variables, by default those of the process
    """
    environ = os.environ if environ is None else environ
    token = token or environ.get("BARDO_TOKEN")
    if url is None and home is None:
        url = environ.get("BARDO_URL")
    if url:
        if token is None:
            raise ConfigError(f"the server {url} asks for a token: give `token` or BARDO_TOKEN")
        return Address(url.rstrip("/"), token)
    root = Path(home or environ.get("BARDO_HOME") or ".bardo").absolute()
    server = running_server(root)
    if server is None:
        raise NoServerError(f"no server runs for the home {root}")
    return Address(server.url, token or server.token)


def _headers(**values: str | None) -> dict[str, bytes]:
    """Return headers without the absent ones. A name may have any character, so it is UTF-8."""
    return {name.replace("_", "-"): value.encode() for name, value in values.items() if value is not None}


def _request(call: Call) -> dict[str, Any]:
    headers = _headers(bardo_golem=call.golem, content_type=None if call.content is None else call.content_type)
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


class _HttpCalls(Calls[T], Generic[T, H]):
    """Calls over connections of httpx."""

    _connect: Callable[..., H]

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        home: Path | str | None = None,
        golem: str | None = None,
        owner: str | None = None,
        signer: Signer | None = None,
        timeout_seconds: float = 30.0,
    ) -> None:
        super().__init__(golem or os.environ.get("BARDO_GOLEM"), signer)
        self.address = address_of(url, token, home)
        headers = _headers(authorization=f"Bearer {self.address.token}", bardo_owner=owner)
        self._http = self._connect(base_url=self.address.url, headers=headers, timeout=timeout_seconds, trust_env=False)

    def _no_answer(self, error: httpx.TransportError) -> NoServerError:
        return NoServerError(f"{self.address.url} does not answer ({error!r})")


class Client(_HttpCalls[Document, httpx.Client]):
    """A client of a server, for one thread or many. Use it in a `with` block, or close it.

    Parameters
    ----------
    url, token : address and token; by default the running server of `home`, else BARDO_URL and BARDO_TOKEN, else the
        running server of BARDO_HOME or ./.bardo
    home : folder of the home whose running server is used
    golem : golem whose memory is used; BARDO_GOLEM by default
    owner : owner to whom a token of the whole home is limited
    signer : signs the lines of records and life events; needed for a golem with a registered key
    timeout_seconds : time for an answer
    """

    _connect = httpx.Client

    def _send(self, call: Call) -> Document:
        try:
            return _document(self._http.request(**_request(call)))
        except httpx.TransportError as error:
            raise self._no_answer(error) from error

    def _send_both(self, call: Call, following: Callable[[Document], Call]) -> Document:
        return self._send(following(self._send(call)))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        """Return the client."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the connections."""
        self.close()


class AsyncClient(_HttpCalls[Awaitable[Document], httpx.AsyncClient]):
    """A client of a server for the coroutines of an event loop; each call is awaited. See Client."""

    _connect = httpx.AsyncClient

    async def _send(self, call: Call) -> Document:
        try:
            return _document(await self._http.request(**_request(call)))
        except httpx.TransportError as error:
            raise self._no_answer(error) from error

    async def _send_both(self, call: Call, following: Callable[[Document], Call]) -> Document:
        return await self._send(following(await self._send(call)))

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        """Return the client."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close the connections."""
        await self.close()
