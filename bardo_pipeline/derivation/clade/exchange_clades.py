"""Exchanges for every owner of a home who has a clade's secret, through one relay."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from bardo_pipeline.derivation.clade.clade_exchange import Exchange, exchange
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.errors import ServerError
from bardo_pipeline.storage.keys.clade_secrets import clade_secret_path, read_clade_secret


def exchange_clades(
    context: DerivationContext, address: str, *, now: datetime, owners: Collection[str] | None = None
) -> dict[str, Exchange | ServerError]:
    """Exchange for each of these owners, or of all owners, with a clade's secret; return the result by owner.

    A relay that fails, or that answers nonsense, is a result: golems go on without their siblings. Raises ConfigError
    for an address without http:// or https://.
    """
    from bardo_pipeline.client.relay_client import RelayClient  # imports httpx, which few processes need

    context = context.whole
    done: dict[str, Exchange | ServerError] = {}
    for owner in sorted(context.ownership().owners if owners is None else owners):
        if clade_secret_path(context.home, owner).exists():
            secret = read_clade_secret(context.home, owner)
            with RelayClient(address, secret.topic, secret.token) as relay:
                try:
                    done[owner] = exchange(context, owner, secret, relay, now=now)
                except ServerError as error:
                    done[owner] = error
    return done
