"""Events about bundles: owners' signing keys, signatures, waived warnings and imports.

Events of owners' keys concern the whole home (golem `*`). Source: INH-7.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from bardo_pipeline.events.record.model import Name, Part, Text, Whole

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
