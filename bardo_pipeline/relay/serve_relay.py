"""Runs a relay: the application of `relay_application` under uvicorn, over one database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from bardo_pipeline.relay.message_store import MessageStore
from bardo_pipeline.relay.ticket_office import FileRegistry, TicketOffice
from bardo_pipeline.server.connections import HOST, bounded_connection, listening_socket


@dataclass(frozen=True)
class RelaySettings:
    """Settings of a relay.

    Parameters
    ----------
    host, port : address to listen on; port 0 takes any free one
    hour_max : most messages of a topic within an hour
    registry : JSON file of identities and scores; None for a relay without public posts
    connections_max, head_seconds, body_seconds : bounds of connections and of slow clients
    """

    host: str = HOST
    port: int = 8_790
    hour_max: int = 2_000
    registry: Path | None = None
    connections_max: int = 1_024
    head_seconds: float = 10.0
    body_seconds: float = 30.0


def serve_relay(
    database: Path, settings: RelaySettings, *, clock: Callable[[], datetime], on_ready: Callable[[str], None]
) -> None:
    """Serve a relay until SIGINT or SIGTERM. Raises ConfigError if the port is taken.

    Parameters
    ----------
    database : file of its messages and keys, made if it does not exist
    on_ready : called with the address when the relay listens
    """
    import uvicorn

    from bardo_pipeline.relay.relay_application import RelayApplication

    listener = listening_socket(settings.port, settings.host)
    store = MessageStore(database, settings.hour_max)
    office = None if settings.registry is None else TicketOffice(database, FileRegistry(settings.registry))
    try:
        app = RelayApplication(store, office=office, clock=clock, body_seconds=settings.body_seconds)
        config = uvicorn.Config(
            app.asgi(), http=bounded_connection(settings.head_seconds, settings.connections_max), ws="auto",
            lifespan="on", log_level="warning", log_config=None, access_log=False, timeout_keep_alive=30,
            timeout_graceful_shutdown=5, server_header=False, date_header=False, proxy_headers=False,
            ws_max_size=1024,
        )  # fmt: skip
        on_ready(f"http://{settings.host}:{listener.getsockname()[1]}")
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        store.close()
        if office is not None:
            office.close()
