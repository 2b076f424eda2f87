"""Lists the source golems of a bundle's entries, with the source tick and the retractions it was made under. Pure.

The entries of a golem's bundle come from that golem alone. The entries of a kit come from every golem that deposited
one of its rules. Later retractions use this list to find affected bundles. Source: canon 20, EV-8, X-4; INH S14.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.events.life.retractions import LeftOut
from bardo_pipeline.inheritance.bundle_files import Bundle


class Root(NamedTuple):
    """A golem from whose stream entries of a bundle were derived. entries: CROSSING_SCHEMA. source_watermark: the last
    tick that they can depend on. made_without: the records retracted when they were packed."""

    golem_id: str
    entries: pa.Table
    source_watermark: int
    made_without: LeftOut


def root_listing(golem_id: str, entry_ids: list[str], source_watermark: int, left: LeftOut) -> dict[str, Any]:
    """Return the JSON object of a root in a kit's manifest (`roots_of` reads it)."""
    return {
        "golem_id": golem_id, "entry_ids": sorted(entry_ids), "source_watermark": source_watermark,
        "left_out": left.listing(golem_id),
    }  # fmt: skip


def roots_of(bundle: Bundle) -> dict[str, Root]:
    """Return golem -> root for a bundle that this home made."""
    entries, manifest = bundle.entries(), bundle.manifest
    if "kit" not in manifest:
        return {bundle.golem_id: _root(manifest, entries)}
    ids = entries["entry_id"]
    return {
        root["golem_id"]: _root(root, entries.filter(pc.is_in(ids, value_set=pa.array(root["entry_ids"], pa.string()))))
        for root in manifest["kit"]["roots"]
    }


def _root(listing: Mapping[str, Any], entries: pa.Table) -> Root:
    golem_id = listing["golem_id"]
    made_without = LeftOut.listed(golem_id, listing.get("left_out"))
    return Root(golem_id, entries, int(listing["source_watermark"]), made_without)
