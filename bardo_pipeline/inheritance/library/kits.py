"""Packs entries of a library into a kit, a bundle for a new golem. Pure.

A kit is a bundle without a dead golem: entries, their links and a descriptive page, named by its hash. Its entries are
attenuated once more (canon 2), starting from their confidence at deposit. The bonus for battle-tested entries applies
in the library alone, so that it is not applied twice (canon 11).
Source: INH S14 ("Seed Kits and Bundles").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from bardo_pipeline.curator.views.crossings import links_of
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA, MOMENT
from bardo_pipeline.grimoire.entry_columns import confidence_of, with_columns
from bardo_pipeline.inheritance import bundle_files as bundle
from bardo_pipeline.inheritance.canonical_json import canonical, jsonl
from bardo_pipeline.inheritance.library.deposits import CONTENT
from bardo_pipeline.inheritance.testament import CATEGORIES
from bardo_pipeline.inheritance.weismann import SHED_COLUMNS, attenuate, shed
from bardo_pipeline.policy import Policy

_UNSTATED = ("level_p10", "level_p90")
"""Columns that a library does not hold: it states the quartiles of a level alone."""


def as_entries(rows: pa.Table) -> pa.Table:
    """Return library rows as active entries (ENTRY_SCHEMA) with their deposited confidence and no own experience."""
    count = rows.num_rows
    columns: dict[str, Any] = {name: rows[name] for name in ("entry_id", *CONTENT)}
    columns |= dict.fromkeys((*SHED_COLUMNS, *_UNSTATED), np.zeros(count, np.int64))
    columns |= {"confidence_ppm": rows["deposited_ppm"], "fades_at": pa.nulls(count, MOMENT)}
    columns |= {"golem_id": pa.repeat(bundle.LIBRARIAN, count), "status": pa.repeat("active", count)}
    return pa.table({name: columns[name] for name in ENTRY_SCHEMA.names}).cast(ENTRY_SCHEMA)


def pack_kit(
    rows: pa.Table,
    *,
    owner_id: str,
    number: int,
    at: datetime,
    roots: Sequence[Mapping[str, Any]],
    derivation_id: str,
    policy: Policy,
) -> bundle.Bundle:
    """Pack the kit of an owner's order, the most confident entries first.

    Parameters
    ----------
    rows : pa.Table, LIBRARY_SCHEMA, one row per rule
    number : int, number of the order; makes every kit's hash unique
    at : datetime, UTC, time of the order
    roots : one `root_listing` per golem that deposited a row
    """
    entries = as_entries(rows)
    trusted = confidence_of(entries, round(at.timestamp() * 1_000_000), policy.decay)
    entries = with_columns(entries, provenance=pa.repeat("import", entries.num_rows))
    entries = entries.append_column("confidence_death_ppm", pa.array(trusted, pa.int64()))
    keys = [("confidence_death_ppm", "descending"), ("entry_id", "ascending")]
    crossed = shed(attenuate(entries.sort_by(keys), policy), policy)
    crossed = crossed.append_column("rank", pa.array(np.arange(1, crossed.num_rows + 1)))
    crossed = crossed.append_column("selected_by", pa.repeat(bundle.LIBRARIAN, crossed.num_rows))
    page = [f"# Kit {number} of {owner_id}", "", "From the library, for the next golem.", ""]
    page += [
        f"- ({row['kind']}) {' '.join(row['text'].split())}" for row in crossed.select(["kind", "text"]).to_pylist()
    ]
    files = {
        bundle.ENTRIES: jsonl(crossed.select(bundle.CROSSING_COLUMNS)),
        bundle.EPISODES: b"",
        bundle.LEARNING: canonical({}),
        bundle.LINKS: jsonl(links_of(crossed.select(ENTRY_SCHEMA.names)).select(bundle.LINK_COLUMNS)),
        bundle.PROCEDURES: b"",
        bundle.LINEAGE: canonical({"lineage_id": f"{bundle.LIBRARIAN}/{owner_id}", "ancestors": []}),
        bundle.PLAYBOOK: b"",
        bundle.TESTAMENT: canonical({"golem_id": bundle.LIBRARIAN, "at": at, **{name: [] for name in CATEGORIES}}),
        bundle.TESTAMENT_PAGE: ("\n".join(page) + "\n").encode(),
    }
    head = {
        "schema_version": bundle.BUNDLE_VERSION,
        "golem_id": bundle.LIBRARIAN,
        "generation": 0,
        "lineage_id": f"{bundle.LIBRARIAN}/{owner_id}",
        "died_at": at,
        "derivation_id": derivation_id,
        "policy_hash": policy.hash,
        "source_watermark": 0,
        "anti_knowledge": sum(crossed["is_anti_knowledge"].to_pylist()),
        "bloodstains": sum(crossed["is_bloodstain"].to_pylist()),
        "kit": {"owner_id": owner_id, "number": number, "roots": list(roots)},
    }
    return bundle.seal(files, head)
