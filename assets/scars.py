"""Scars: what hurt golems, and what their clades are told of it."""

from __future__ import annotations

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from assets.log import CYCLES, LIFE_EVENTS
from assets.materialized import Seen, markdown_table, of_table, projected
from assets.stores import LazyStores
from bardo_pipeline.derivation.scarring import derive_failures, derive_scars


@dg.asset(deps=[CYCLES, LIFE_EVENTS, "curation"], **of_table("failures", "katabasis"))
def failures(home: dg.ResourceParam[LazyStores]) -> dg.MaterializeResult:
    """One row per confirmed failure of a golem: what it did, what came of it, why, and how sure that is.

    Key (golem_id, seq); seq numbers a golem's failures as they were confirmed. Effects in ppm of the position,
    confidence in parts per million; cause_ticks names the act and its check. Appends what curated cycles and deaths
    confirmed since.
    """
    stores = home.stores
    seen = Seen.before(stores, ["curation"])
    written = derive_failures(stores)
    return projected(stores, "failures", seen, written)


@dg.asset(deps=["failures", LIFE_EVENTS], **of_table("scars", "katabasis"))
def scars(home: dg.ResourceParam[LazyStores]) -> dg.MaterializeResult:
    """One row per scar: a failure that its owner's golems did not know yet, with its cause told in words.

    Key (owner_id, scar_id). Private to the owner's clade (L1). Told at the close of a cycle, or by death, and then it
    is a bloodstain; fades by half in 30 days, a bloodstain in 90. Renews the owners whose failures changed, or of whom
    somebody died: a function of the set of their failures.
    """
    stores = home.stores
    seen = Seen.before(stores, ["failures"])
    written = derive_scars(stores)
    return projected(stores, "scars", seen, written, more={"told": _told(stores.projections.renewed("scars").read())})


def _told(rows: pa.Table) -> dg.MarkdownMetadataValue:
    """The surest scars, bloodstains first."""
    stained = rows.append_column("stain", pc.cast(rows["is_bloodstain"], pa.int8()))
    ordered = stained.sort_by([("stain", "descending"), ("confidence_ppm", "descending"), ("scar_id", "ascending")])
    names = {"scar_id": "scar", "causal_narrative": "what hurt", "seen_count": "times", "published": "told by"}
    return markdown_table(ordered.select(list(names)).rename_columns(list(names.values())).slice(0, 10).to_pylist())
