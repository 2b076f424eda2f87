"""Kits: entries of a library packed for the next golem, as a bundle of their own. Pure.

A kit is a bundle that no golem left: it has entries, their links and a page that says what it is, and is named by its
hash like any other. What goes out of a library crosses once more (canon 2), with the confidence that it came in with:
being battle-tested raises it in the library alone, so that nothing is raised twice (canon 11).
Source: INH S14 ("Seed Kits and Bundles").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from bardo_pipeline.curator.views.entry_links import links_of
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA
from bardo_pipeline.grimoire.entry_columns import confidence_of, with_columns
from bardo_pipeline.inheritance.bundle_files import (
    BUNDLE_VERSION,
    CROSSING_COLUMNS,
    ENTRIES,
    EPISODES,
    LEARNING,
    LIBRARIAN,
    LINEAGE,
    LINK_COLUMNS,
    LINKS,
    PLAYBOOK,
    PROCEDURES,
    TESTAMENT,
    TESTAMENT_PAGE,
    Bundle,
    seal,
)
from bardo_pipeline.inheritance.canonical_json import canonical, jsonl
from bardo_pipeline.inheritance.library.deposits import CONTENT
from bardo_pipeline.inheritance.testament import CATEGORIES
from bardo_pipeline.inheritance.weismann import SHED_COLUMNS, attenuate, shed
from bardo_pipeline.policy import Policy


def as_entries(rows: pa.Table) -> pa.Table:
    """Rows of a library as active entries, nobody's own experience (ENTRY_SCHEMA), in their order and as deposited."""
    count = rows.num_rows
    columns: dict[str, Any] = {name: rows[name] for name in ("entry_id", *CONTENT)}
    columns |= dict.fromkeys(SHED_COLUMNS, pa.array(np.zeros(count, np.int64)))
    columns |= {
        "confidence_ppm": rows["deposited_ppm"],
        "fades_at": pa.nulls(count, ENTRY_SCHEMA.field("fades_at").type),
    }
    columns |= {"golem_id": pa.array([LIBRARIAN] * count), "status": pa.array(["active"] * count)}
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
) -> Bundle:
    """The kit of an owner's order.

    rows: LIBRARY_SCHEMA, those that it holds, one of each rule. number: of the order, so that no two orders have the
    same kit. at: UTC, when it was ordered. roots: of each golem that left any of the rows (`roots.root_said`). Surest
    first.
    """
    entries = as_entries(rows)
    trusted = confidence_of(entries, round(at.timestamp() * 1_000_000), policy.decay)
    entries = with_columns(entries, provenance=pa.array(["import"] * entries.num_rows, pa.string()))
    entries = entries.append_column("confidence_death_ppm", pa.array(trusted, pa.int64()))
    keys = [("confidence_death_ppm", "descending"), ("entry_id", "ascending")]
    crossed = shed(attenuate(entries.sort_by(keys), policy), policy)
    crossed = crossed.append_column("rank", pa.array(np.arange(1, crossed.num_rows + 1)))
    crossed = crossed.append_column("selected_by", pa.array([LIBRARIAN] * crossed.num_rows))
    page = [f"# Kit {number} of {owner_id}", "", "From the library, for the next golem.", ""]
    page += [
        f"- ({row['kind']}) {' '.join(row['text'].split())}" for row in crossed.select(["kind", "text"]).to_pylist()
    ]
    files = {
        ENTRIES: jsonl(crossed.select(CROSSING_COLUMNS)),
        EPISODES: b"",
        LEARNING: canonical({}),
        LINKS: jsonl(links_of(crossed.select(ENTRY_SCHEMA.names)).select(LINK_COLUMNS)),
        PROCEDURES: b"",
        LINEAGE: canonical({"lineage_id": f"{LIBRARIAN}/{owner_id}", "ancestors": []}),
        PLAYBOOK: b"",
        TESTAMENT: canonical({"golem_id": LIBRARIAN, "at": at, **{name: [] for name in CATEGORIES}}),
        TESTAMENT_PAGE: ("\n".join(page) + "\n").encode(),
    }
    head = {
        "schema_version": BUNDLE_VERSION,
        "golem_id": LIBRARIAN,
        "generation": 0,
        "lineage_id": f"{LIBRARIAN}/{owner_id}",
        "died_at": at,
        "derivation_id": derivation_id,
        "policy_hash": policy.hash,
        "source_watermark": 0,
        "anti_knowledge": sum(crossed["is_anti_knowledge"].to_pylist()),
        "bloodstains": sum(crossed["is_bloodstain"].to_pylist()),
        "kit": {"owner_id": owner_id, "number": number, "roots": list(roots)},
    }
    return seal(files, head)
