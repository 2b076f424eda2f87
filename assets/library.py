"""Assets of the library: surviving rules of each owner, seed kits, and playbooks of dead golems."""

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
        description="One row per owner and rule in the owner's library, merged over the golems that left it. Key "
        "(owner_id, entry_id), where entry_id is the representative entry of the rule. Confidence at anchor_at in "
        "parts per million, x 1.10 once if five golems confirmed the rule (at most 0.95); channel: death, pull, "
        "export, overflow or purchase; golem_ids, entry_ids, event_ids: origins; validator_ids: confirming golems. "
        "Replaces the rows of owners whose golems changed.",
        **of_table("library", "library"),
    ),
    dg.AssetSpec(
        "kits",
        deps=["curation", "grimoire", "playbooks", LIFE_EVENTS],
        description="One row per owner and seed kit: rules of one archetype and domain that three golems learned "
        "independently within seven days. Key (owner_id, kit_id). A rule is published after two further golems "
        "confirmed it; until then its id is in proposed_ids.",
        **of_table("kits", "library"),
    ),
    dg.AssetSpec(
        "shelved_playbooks",
        deps=["curation", "grimoire", "playbooks", LIFE_EVENTS],
        description="One row per dead golem: its last PLAYBOOK.md. Key (owner_id, golem_id).",
        **of_table("shelved_playbooks", "library", "markdown"),
    ),
]


@dg.multi_asset(specs=_SPECS, name="shelve")
def shelve(home: dg.ResourceParam[LazyStores]) -> Iterator[dg.MaterializeResult]:
    """Derive again the libraries of owners whose golems have new decisions, events or retractions."""
    stores = home.stores
    seen = Seen.before(stores, ["curation", "grimoire", "playbooks"])
    written = derive_library(stores)
    for table in LIBRARY_TABLES:
        yield projected(stores, table, seen, written)
