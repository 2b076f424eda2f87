"""Events about bundles and an owner's library: signing keys, waived warnings, imports, purchases, consents, kit orders.

Events of owners' keys, purchases, consents and kit orders concern the whole home (golem `*`). Source: INH-7, INH S14.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from bardo_pipeline.events.life.override_events import Statement
from bardo_pipeline.events.record.model import Name, Part, Spent, Text, Whole

PublicKey = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""An Ed25519 public key: 32 bytes in hex."""


class OwnerKeyRegistered(Part):
    """The owner signs bundles of its golems with this key from now on."""

    owner_id: Name
    key_id: Name
    public_key: PublicKey


class OwnerKeyRevoked(Part):
    """Later signatures with this key count as missing."""

    owner_id: Name
    key_id: Name
    why: Text


class BundleSigned(Part):
    """The owner signs a published bundle."""

    bundle_hash: Name
    owner_id: Name
    key_id: Name
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]


class BundleWaived(Part):
    """A steward accepts a warning about a judged bundle, with a reason. Critical failures cannot be waived."""

    bundle_hash: Name
    expectation: Name
    why: Annotated[str, Field(min_length=1, max_length=4_096)]


class BundleImported(Part):
    """A bundle of another home was imported. key_id: key of its signature; null if unsigned."""

    bundle_hash: Name
    from_golem_id: Name
    owner_id: Name | None
    key_id: Name | None
    entry_count: Whole


class EntryPulled(Part):
    """The owner copies an entry of a dying golem to the library, within the grace period after its testament."""

    entry_id: Name
    why: Statement


class EntryExported(Part):
    """The owner copies an entry of a living golem to the library, in its state at the close of `cycle_seen`.

    tick_seen: last tick before the first gap of the golem's stream.
    """

    entry_id: Name
    tick_seen: Whole
    cycle_seen: Whole
    why: Statement


class BundlePurchased(Part):
    """The owner bought an imported bundle; its entries enter the library at this time."""

    owner_id: Name
    bundle_hash: Name
    from_golem_id: Name
    entry_count: Whole
    why: Statement


class BundleConsented(Part):
    """The owner of a bundle sells it to another owner of this home, whose golems may then receive or inherit it."""

    owner_id: Name
    bundle_hash: Name
    to_owner_id: Name
    price_micros: Spent
    why: Statement


class KitOrdered(Part):
    """The owner's next golem is born with this kit of library entries.

    number: of the owner's order, from 1. bundle_hash: of the kit's bundle.
    """

    owner_id: Name
    number: Annotated[int, Field(ge=1)]
    bundle_hash: Name
    entry_count: Whole
    why: Statement


class EntriesShared(Part):
    """The golem shares entries with its clade, as of the close of `cycle_seen`.

    bundle_hash: of the parcel that holds them. is_urgent: warnings alone, which no limit delays.
    """

    bundle_hash: Name
    entry_ids: tuple[Name, ...]
    cycle_seen: Whole
    is_urgent: bool
