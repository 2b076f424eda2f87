"""Retrieval: what became of what golems retrieved."""

from __future__ import annotations

import dagster as dg

from assets.log import CYCLES
from assets.metadata import Seen, of_table, projected
from assets.resources import LazyStores
from bardo_pipeline.derivation.memory.retrieval_credits import derive_credits


@dg.asset(deps=[CYCLES, "curation", "grimoire"], **of_table("credits", "curation"))
def credits(home: dg.ResourceParam[LazyStores]) -> dg.MaterializeResult:
    """One row per golem, cycle and entry that was retrieved or judged in it: was it of use, or did it mislead?

    Key (golem_id, cycle, entry_id). Counts of ticks that retrieved it and of decisions judged, at which it had been
    retrieved, whose effect agreed with what it said then or not. Appends the cycles that were curated since.
    """
    stores = home.stores
    seen = Seen.before(stores, ["curation", "grimoire"])
    written = derive_credits(stores)
    return projected(stores, "credits", seen, written)
