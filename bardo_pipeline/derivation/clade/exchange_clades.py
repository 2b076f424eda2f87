"""Exchanges and backs up for the owners of a home who have a clade's secret, through one relay.

A relay that fails, or that answers nonsense, is a result: golems go on without their siblings. So is a damaged bundle,
or an unfinished restore.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from bardo_pipeline.derivation.clade.clade_backup import BackedUp, back_up, require_restored
from bardo_pipeline.derivation.clade.clade_exchange import Exchange, exchange
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.errors import BackupError, BardoError, BundleError, ServerError
from bardo_pipeline.events.custody.clade_secret import CladeSecret
from bardo_pipeline.storage.keys.clade_secrets import clade_secret_path, read_clade_secret

if TYPE_CHECKING:
    from bardo_pipeline.client.relay_client import RelayClient

T = TypeVar("T")


def exchange_clades(
    context: DerivationContext, address: str, *, now: datetime, owners: Collection[str] | None = None
) -> dict[str, Exchange | BardoError]:
    """Exchange for each of these owners, or of all, with a clade's secret; return the result by owner.

    Raises ConfigError for an address without http:// or https://.
    """

    def exchanged(owner: str, secret: CladeSecret, relay: RelayClient) -> Exchange:
        return exchange(context, owner, secret, relay, now=now)

    return _by_owner(context, address, owners, lambda secret: secret, exchanged)


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

    def backed_up(owner: str, vault: CladeSecret, relay: RelayClient) -> BackedUp:
        return back_up(context, owner, vault, relay, now=now, is_due_only=is_due_only)

    return _by_owner(context, address, owners, lambda secret: secret.vault, backed_up)


def _by_owner(
    context: DerivationContext,
    address: str,
    owners: Collection[str] | None,
    of_topic: Callable[[CladeSecret], CladeSecret],
    work: Callable[[str, CladeSecret, RelayClient], T],
) -> dict[str, T | BardoError]:
    """Do work for each owner with a clade's secret, on the topic of a secret that follows from it."""
    from bardo_pipeline.client.relay_client import RelayClient  # imports httpx, which few processes need

    home, done = context.home, dict[str, T | BardoError]()
    for owner in sorted(context.ownership().owners if owners is None else owners):
        if clade_secret_path(home, owner).exists():
            secret = of_topic(read_clade_secret(home, owner))
            with RelayClient(address, secret.topic, secret.token) as relay:
                try:
                    require_restored(home, owner)
                    done[owner] = work(owner, secret, relay)
                except (BackupError, BundleError, ServerError) as error:
                    done[owner] = error
    return done
