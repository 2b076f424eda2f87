"""Exchanges, posts and backs up for the owners of a home who have a clade's secret, through one relay.

A relay that fails, or that answers nonsense, is a result: golems go on without their siblings. So is a damaged bundle,
or an unfinished restore.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime
from typing import TypeVar

from bardo_pipeline.derivation.clade.clade_backup import BackedUp, back_up, require_restored
from bardo_pipeline.derivation.clade.clade_exchange import Exchange, exchange
from bardo_pipeline.derivation.clade.lethe_exchange import LetheExchange, exchange_posts
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.errors import BackupError, BardoError, BundleError, ServerError
from bardo_pipeline.events.custody.clade_secret import CladeSecret
from bardo_pipeline.storage.keys.clade_secrets import clade_secret_path, read_clade_secret

T = TypeVar("T")


def exchange_clades(
    context: DerivationContext, address: str, *, now: datetime, owners: Collection[str] | None = None
) -> dict[str, Exchange | BardoError]:
    """Exchange for each of these owners, or of all, with a clade's secret; return the result by owner.

    Raises ConfigError for an address without http:// or https://.
    """

    from bardo_pipeline.client.relay_client import RelayClient  # imports httpx, which few processes need

    def exchanged(owner: str, secret: CladeSecret) -> Exchange:
        with RelayClient(address, secret.topic, secret.token) as relay:
            return exchange(context, owner, secret, relay, now=now)

    return _by_owner(context, owners, exchanged)


def exchange_public_posts(
    context: DerivationContext, address: str, *, now: datetime, owners: Collection[str] | None = None
) -> dict[str, LetheExchange | BardoError]:
    """Exchange public posts for each of these owners, or of all, with a clade's secret; return the result by owner.

    Raises ConfigError for an address without http:// or https://.
    """
    from bardo_pipeline.client.lethe_client import LetheClient

    board = LetheClient(address)
    return _by_owner(context, owners, lambda owner, secret: exchange_posts(context, owner, secret, board, now=now))


def back_up_clades(
    context: DerivationContext,
    address: str,
    *,
    now: datetime,
    is_due_only: bool,
    owners: Collection[str] | None = None,
) -> dict[str, BackedUp | BardoError]:
    """Back up for each of these owners, or of all, with a clade's secret; return the result by owner.

    is_due_only: as in `back_up`. Raises ConfigError for an address without http:// or https://.
    """

    from bardo_pipeline.client.relay_client import RelayClient

    def backed_up(owner: str, secret: CladeSecret) -> BackedUp:
        vault = secret.vault
        with RelayClient(address, vault.topic, vault.token) as relay:
            return back_up(context, owner, vault, relay, now=now, is_due_only=is_due_only)

    return _by_owner(context, owners, backed_up)


def _by_owner(
    context: DerivationContext, owners: Collection[str] | None, work: Callable[[str, CladeSecret], T]
) -> dict[str, T | BardoError]:
    """Do work for each of these owners, or of all, with a clade's secret."""
    home, done = context.home, dict[str, T | BardoError]()
    for owner in sorted(context.ownership().owners if owners is None else owners):
        if clade_secret_path(home, owner).exists():
            try:
                require_restored(home, owner)
                done[owner] = work(owner, read_clade_secret(home, owner))
            except (BackupError, BundleError, ServerError) as error:
                done[owner] = error
    return done
