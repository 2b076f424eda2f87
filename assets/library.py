"""Library: what survived of each owner's golems, the kits found in it, and the playbooks of the dead."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg

from assets.log import LIFE_EVENTS
from assets.metadata import Seen, of_table, projected
from assets.resources import LazyStores
from bardo_pipeline.derivation.library.derive_library import LIBRARY_TABLES, derive_library

_SPECS = [
    dg.AssetSpec(
        "library",
        deps=["curation", "grimoire", "playbooks", LIFE_EVENTS],
        description="One row per owner and rule in that owner's library, however many golems left it. Key owner_id, "
        "entry_id: the entry that stands for the rule. Confidence at anchor_at in parts per million, x 1.10 where five "
        "golems bore it out (once, at most 0.95); channel: death, pull, export, overflow or purchase; golem_ids, "
        "entry_ids, event_ids: where it came from; validator_ids: who bore it out. Renewed for owners of whose golems "
        "something changed.",
        **of_table("library", "library"),
    ),
    dg.AssetSpec(
        "kits",
        deps=["curation", "grimoire", "playbooks", LIFE_EVENTS],
        description="One row per owner and seed kit found by repetition: rules of one archetype and domain that three "
        "golems made by themselves within seven days. Key owner_id, kit_id. Published once two golems bore a rule out "
        "after that; proposed_ids wait for it.",
        **of_table("kits", "library"),
    ),
    dg.AssetSpec(
        "shelved_playbooks",
        deps=["curation", "grimoire", "playbooks", LIFE_EVENTS],
        description="One row per dead golem: its last PLAYBOOK.md, in its owner's library. Key owner_id, golem_id.",
        **of_table("shelved_playbooks", "library", "markdown"),
    ),
]


@dg.multi_asset(specs=_SPECS, name="shelve")
def shelve(home: dg.ResourceParam[LazyStores]) -> Iterator[dg.MaterializeResult]:
    """Make the libraries again of owners of whose golems something is known, recorded or left out since."""
    stores = home.stores
    seen = Seen.before(stores, ["curation", "grimoire", "playbooks"])
    written = derive_library(stores)
    for table in LIBRARY_TABLES:
        yield projected(stores, table, seen, written)
