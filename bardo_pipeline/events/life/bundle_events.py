"""Events about bundles: which key an owner signs with, who vouched for a bundle, which warning a steward waived, what
came from another home.

Owner's keys concern the whole home (golem `*`). Source: INH-7.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from bardo_pipeline.events.record.model import Name, Part, Text, Whole

PublicKey = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""An Ed25519 public key: 32 bytes in hex."""


class OwnerKeyRegistered(Part):
    """From here on bundles of this owner's golems are signed with this key."""

    owner_id: Name
    key_id: Name
    public_key: PublicKey


class OwnerKeyRevoked(Part):
    """What this key signs from here on counts as unsigned."""

    owner_id: Name
    key_id: Name
    why: Text


class BundleSigned(Part):
    """The owner vouches for a published bundle."""

    bundle_hash: Name
    owner_id: Name
    key_id: Name
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]


class BundleWaived(Part):
    """A steward knows this warning about a judged bundle, and why it may stand. What is critical cannot be waived."""

    bundle_hash: Name
    expectation: Name
    why: Annotated[str, Field(min_length=1, max_length=4_096)]


class BundleImported(Part):
    """A bundle that was left in another home is here; signed by that key, or by nobody where null."""

    bundle_hash: Name
    from_golem_id: Name
    owner_id: Name | None
    key_id: Name | None
    entry_count: Whole
