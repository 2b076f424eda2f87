"""Roots: on whose lives the entries of a bundle rest, up to which tick, and without what of them it was made. Pure.

A bundle that a golem left rests on its life alone; a kit rests on the lives of all golems that left its rules to the
library. What is left out of a life later is looked up here. Source: canon 20, EV-8, X-4; INH S14.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.events.life.retractions import LeftOut
from bardo_pipeline.inheritance.bundle_files import Bundle


class Root(NamedTuple):
    """A golem whose life entries of a bundle rest on. entries: those (CROSSING_SCHEMA); source_watermark: the last tick
    of it that they may rest on; made_without: what of it counted as never having been when they were packed."""

    golem_id: str
    entries: pa.Table
    source_watermark: int
    made_without: LeftOut


def root_said(golem_id: str, entry_ids: list[str], source_watermark: int, left: LeftOut) -> dict[str, Any]:
    """A root of a kit as its manifest says it, a JSON object (`roots_of` reads it)."""
    return {
        "golem_id": golem_id, "entry_ids": sorted(entry_ids), "source_watermark": source_watermark,
        "left_out": left.listing(golem_id),
    }  # fmt: skip


def roots_of(bundle: Bundle) -> dict[str, Root]:
    """The roots of a bundle that this home made, by golem."""
    entries, manifest = bundle.entries(), bundle.manifest
    if "kit" not in manifest:
        return {bundle.golem_id: _root(manifest, entries)}
    ids = entries["entry_id"]
    return {
        said["golem_id"]: _root(said, entries.filter(pc.is_in(ids, value_set=pa.array(said["entry_ids"], pa.string()))))
        for said in manifest["kit"]["roots"]
    }


def _root(said: Mapping[str, Any], entries: pa.Table) -> Root:
    golem_id = said["golem_id"]
    made_without = LeftOut.listed(golem_id, said.get("left_out"))
    return Root(golem_id, entries, int(said["source_watermark"]), made_without)
