"""Packs chosen entries into a bundle without a death: a kit of the library, or a parcel for the clade. Pure.

Such a bundle has entries, their links and a descriptive page; its episodes, procedures and playbook are empty. Its
entries are attenuated once, as at a death (canon 2). Source: INH S6, S14.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from bardo_pipeline.clock import micros_of
from bardo_pipeline.curator.views.crossings import links_of
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA
from bardo_pipeline.grimoire.entry_columns import confidence_of
from bardo_pipeline.inheritance import bundle_files as bundle
from bardo_pipeline.inheritance.canonical_json import canonical, jsonl
from bardo_pipeline.inheritance.testament import CATEGORIES
from bardo_pipeline.inheritance.weismann import attenuate, shed
from bardo_pipeline.policy import Policy


def pack_entries(
    entries: pa.Table,
    *,
    golem_id: str,
    lineage_id: str,
    at: datetime,
    selected_by: str,
    title: tuple[str, str],
    head: Mapping[str, Any],
    derivation_id: str,
    policy: Policy,
    generation: int = 0,
    source_watermark: int = 0,
) -> bundle.Bundle:
    """Pack entries as a bundle, the most confident first.

    Parameters
    ----------
    entries : pa.Table, ENTRY_SCHEMA
    golem_id, lineage_id, generation : of the sender
    at : datetime, UTC, as of which confidence is compared
    selected_by : word for the rule that chose the entries
    title : heading and first sentence of the page
    head : further fields of the manifest
    source_watermark : highest tick of the sender that the entries derive from
    """
    trusted = confidence_of(entries, micros_of(at), policy.decay)
    entries = entries.append_column("confidence_death_ppm", pa.array(trusted, pa.int64()))
    keys = [("confidence_death_ppm", "descending"), ("entry_id", "ascending")]
    crossed = shed(attenuate(entries.sort_by(keys), policy), policy)
    crossed = crossed.append_column("rank", pa.array(np.arange(1, crossed.num_rows + 1)))
    crossed = crossed.append_column("selected_by", pa.repeat(selected_by, crossed.num_rows))
    page = [f"# {title[0]}", "", title[1], ""]
    page += [
        f"- ({row['kind']}) {' '.join(row['text'].split())}" for row in crossed.select(["kind", "text"]).to_pylist()
    ]
    files = {
        bundle.ENTRIES: jsonl(crossed.select(bundle.CROSSING_COLUMNS)),
        bundle.EPISODES: b"",
        bundle.LEARNING: canonical({}),
        bundle.LINKS: jsonl(links_of(crossed.select(ENTRY_SCHEMA.names)).select(bundle.LINK_COLUMNS)),
        bundle.PROCEDURES: b"",
        bundle.LINEAGE: canonical({"lineage_id": lineage_id, "ancestors": []}),
        bundle.PLAYBOOK: b"",
        bundle.TESTAMENT: canonical({"golem_id": golem_id, "at": at, **{name: [] for name in CATEGORIES}}),
        bundle.TESTAMENT_PAGE: ("\n".join(page) + "\n").encode(),
    }
    manifest = {
        "schema_version": bundle.BUNDLE_VERSION,
        "golem_id": golem_id,
        "generation": generation,
        "lineage_id": lineage_id,
        "died_at": at,
        "derivation_id": derivation_id,
        "policy_hash": policy.hash,
        "source_watermark": source_watermark,
        "anti_knowledge": sum(crossed["is_anti_knowledge"].to_pylist()),
        "bloodstains": sum(crossed["is_bloodstain"].to_pylist()),
        **head,
    }
    return bundle.seal(files, manifest)
