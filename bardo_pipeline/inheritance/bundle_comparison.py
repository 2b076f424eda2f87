"""Compares two bundles: entries, playbook and testament. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from bardo_pipeline.events.record.arrow_columns import all_nullable, all_required
from bardo_pipeline.grimoire.entry_columns import query_tables
from bardo_pipeline.inheritance.bundle_files import PLAYBOOK, TESTAMENT, Bundle
from bardo_pipeline.inheritance.testament import CATEGORIES

CHANGE_SCHEMA = pa.schema(
    [
        *all_required(pa.string(), "change", "entry_id", "kind", "category", "text"),
        *all_nullable(pa.int64(), "confidence_ppm", "other_confidence_ppm"),
    ]
)
"""One row per entry that differs. change: lost (only in the first bundle), gained (only in the second), turned (other
sign), stronger or weaker. Confidences are at the anchors, null for the bundle without the entry."""

_CHANGES = """
    select case when second.entry_id is null then 'lost' when first.entry_id is null then 'gained'
            when first.sign <> second.sign then 'turned'
            when first.confidence_ppm < second.confidence_ppm then 'stronger' else 'weaker' end as change,
        entry_id, coalesce(second.kind, first.kind) as kind, coalesce(second.category, first.category) as category,
        coalesce(second.text, first.text) as text, first.confidence_ppm, second.confidence_ppm as other_confidence_ppm
    from first full join second using (entry_id)
    where first.entry_id is null or second.entry_id is null or first.sign <> second.sign
        or first.confidence_ppm <> second.confidence_ppm
    order by change, kind, entry_id
"""


@dataclass(frozen=True)
class Comparison:
    """entries: CHANGE_SCHEMA. playbook: lines of a unified diff. testament: category -> (removed, added) sentences."""

    same: int
    entries: pa.Table
    playbook: tuple[str, ...]
    testament: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]


def compared(first: Bundle, second: Bundle) -> Comparison:
    """Return the changes from the first bundle to the second. Raises BundleError for unreadable entries."""
    names = ["entry_id", "kind", "category", "text", "sign", "confidence_ppm"]
    old_entries, new_entries = (bundle.entries().select(names) for bundle in (first, second))
    changes = query_tables(_CHANGES, first=old_entries, second=new_entries).cast(CHANGE_SCHEMA)
    changed_count = sum(change != "lost" for change in changes["change"].to_pylist())
    pages = [bundle.files[PLAYBOOK].decode(errors="replace").splitlines() for bundle in (first, second)]
    old, new = (_statements(bundle) for bundle in (first, second))
    testament = {
        name: (_without(old[name], new[name]), _without(new[name], old[name]))
        for name in CATEGORIES
        if old[name] != new[name]
    }
    diff = tuple(difflib.unified_diff(pages[0], pages[1], "first", "second", lineterm="", n=1))
    return Comparison(new_entries.num_rows - changed_count, changes, diff, testament)


def _statements(bundle: Bundle) -> dict[str, list[str]]:
    testament: dict[str, Any] = orjson.loads(bundle.files[TESTAMENT])
    return {name: [item["statement"] for item in testament.get(name, ())] for name in CATEGORIES}


def _without(sentences: list[str], excluded: list[str]) -> tuple[str, ...]:
    return tuple(sentence for sentence in sentences if sentence not in excluded)
