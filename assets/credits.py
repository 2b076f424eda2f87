"""Asset of retrieval credits: outcomes of retrieved entries."""

from __future__ import annotations

import dagster as dg

from assets.log import CYCLES
from assets.metadata import Seen, of_table, projected
from assets.resources import LazyStores
from bardo_pipeline.derivation.memory.retrieval_credits import derive_credits


@dg.asset(deps=[CYCLES, "curation", "grimoire"], **of_table("credits", "curation"))
def credits(home: dg.ResourceParam[LazyStores]) -> dg.MaterializeResult:
    """One row per golem, cycle and retrieved or judged entry: how often it helped and how often it misled.

    Key (golem_id, cycle, entry_id). Counts of ticks that retrieved the entry, and of judged decisions made with it
    whose effect agreed or disagreed with its claim at that time. Appends newly curated cycles.
    """
    stores = home.stores
    seen = Seen.before(stores, ["curation", "grimoire"])
    written = derive_credits(stores)
    return projected(stores, "credits", seen, written)
