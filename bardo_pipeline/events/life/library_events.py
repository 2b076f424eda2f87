"""Events about an owner's library: what its owner pulls, exports and buys, and what golems are equipped with.

Orders of equipment and purchases concern the whole home (golem `*`). Source: INH S14.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from bardo_pipeline.events.life.override_events import Said
from bardo_pipeline.events.record.model import Name, Part, Whole


class EntryPulled(Part):
    """The owner takes an entry of the dying golem into the library, within the grace after its testament."""

    entry_id: Name
    why: Said


class EntryExported(Part):
    """The owner takes an entry of a living golem into the library, as it stood at the close of `cycle_seen`.

    tick_seen: the newest tick up to which the golem's stream had no gap.
    """

    entry_id: Name
    tick_seen: Whole
    cycle_seen: Whole
    why: Said


class BundlePurchased(Part):
    """The owner bought an imported bundle: its entries come into the library as of this moment."""

    owner_id: Name
    bundle_hash: Name
    from_golem_id: Name
    entry_count: Whole
    why: Said


class KitOrdered(Part):
    """The next golem of this owner that is founded or succeeds begins with this kit of library entries.

    number: the how-manieth order of the owner, from 1. bundle_hash: the kit, a bundle of its own.
    """

    owner_id: Name
    number: Annotated[int, Field(ge=1)]
    bundle_hash: Name
    entry_count: Whole
    why: Said
