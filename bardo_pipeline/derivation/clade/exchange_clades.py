"""Exchanges and backs up for every owner of a home with a clade's secret, through one relay."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from bardo_pipeline.derivation.clade.clade_backup import back_up, require_restored
from bardo_pipeline.derivation.clade.clade_exchange import Exchange, exchange
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.errors import BackupError, BardoError, BundleError, ServerError
from bardo_pipeline.storage.keys.clade_secrets import clade_secret_path, read_clade_secret


def exchange_clades(
    context: DerivationContext, address: str, *, now: datetime, owners: Collection[str] | None = None
) -> dict[str, Exchange | BardoError]:
    """Exchange, then back up what is due, for each of these owners, or of all, with a clade's secret.

    Returns the result by owner. A relay that fails, or that answers nonsense, is a result: golems go on without their
    siblings. So is a damaged bundle, or an unfinished restore. Raises ConfigError for an address without http:// or
    https://.
    """
    from bardo_pipeline.client.relay_client import RelayClient  # imports httpx, which few processes need

    context = context.whole
    done: dict[str, Exchange | BardoError] = {}
    for owner in sorted(context.ownership().owners if owners is None else owners):
        if clade_secret_path(context.home, owner).exists():
            secret = read_clade_secret(context.home, owner)
            vault = secret.vault
            with (
                RelayClient(address, secret.topic, secret.token) as relay,
                RelayClient(address, vault.topic, vault.token) as store,
            ):
                try:
                    require_restored(context.home, owner)
                    done[owner] = exchange(context, owner, secret, relay, now=now)
                    back_up(context, owner, vault, store, now=now, is_due_only=True)
                except (BackupError, BundleError, ServerError) as error:
                    done[owner] = error
    return done
