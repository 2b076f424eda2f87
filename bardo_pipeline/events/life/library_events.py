"""Events about an owner's library: pulled and exported entries, purchases and kit orders.

Kit orders and purchases concern the whole home (golem `*`). Source: INH S14.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from bardo_pipeline.events.life.override_events import Said
from bardo_pipeline.events.record.model import Name, Part, Whole


class EntryPulled(Part):
    """The owner copies an entry of a dying golem to the library, within the grace period after its testament."""

    entry_id: Name
    why: Said


class EntryExported(Part):
    """The owner copies an entry of a living golem to the library, in its state at the close of `cycle_seen`.

    tick_seen: last tick before the first gap of the golem's stream.
    """

    entry_id: Name
    tick_seen: Whole
    cycle_seen: Whole
    why: Said


class BundlePurchased(Part):
    """The owner bought an imported bundle; its entries enter the library at this time."""

    owner_id: Name
    bundle_hash: Name
    from_golem_id: Name
    entry_count: Whole
    why: Said


class KitOrdered(Part):
    """The owner's next golem is born with this kit of library entries.

    number: of the owner's order, from 1. bundle_hash: of the kit's bundle.
    """

    owner_id: Name
    number: Annotated[int, Field(ge=1)]
    bundle_hash: Name
    entry_count: Whole
    why: Said
