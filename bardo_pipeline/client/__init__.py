"""Client: the calls of an agent to the server of a home. Light: it imports no store and no model.

Examples
--------
>>> from bardo_pipeline.client import Client
>>> with Client() as memory:  # doctest: +SKIP
...     memory.remember("Swaps after 22:00 UTC cost half the gas.", tool="swap", importance="notable")
...     hits = memory.search("when is gas cheap?")["results"]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bardo_pipeline.client.running_server import RunningServer, running_server
from bardo_pipeline.signing import Signer

if TYPE_CHECKING:
    from bardo_pipeline.client.http_client import AsyncClient, Client

__all__ = ["AsyncClient", "Client", "RunningServer", "Signer", "running_server"]


def __getattr__(name: str) -> Any:
    """Return a client; its import takes 0.1 s, which a command without a running server saves."""
    if name not in ("AsyncClient", "Client"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from bardo_pipeline.client import http_client

    return getattr(http_client, name)
