"""Client: the calls of an agent to the server of a home. Light: it imports no store and no model.

Examples
--------
>>> from bardo_pipeline.client import Client
>>> with Client() as memory:  # doctest: +SKIP
...     memory.remember("Swaps after 22:00 UTC cost half the gas.", tool="swap", importance="notable")
...     hits = memory.search("when is gas cheap?")["results"]
"""

from bardo_pipeline.client.http_client import AsyncClient, Client
from bardo_pipeline.client.running_server import RunningServer, running_server

__all__ = ["AsyncClient", "Client", "RunningServer", "running_server"]
