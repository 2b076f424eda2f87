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

from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA, MOMENT
from bardo_pipeline.grimoire.entry_columns import with_columns
from bardo_pipeline.inheritance import bundle_files as bundle
from bardo_pipeline.inheritance.library.deposits import CONTENT
from bardo_pipeline.inheritance.packed_entries import pack_entries
from bardo_pipeline.inheritance.weismann import SHED_COLUMNS
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
    entries = with_columns(entries, provenance=pa.repeat("import", entries.num_rows))
    return pack_entries(
        entries, golem_id=bundle.LIBRARIAN, lineage_id=f"{bundle.LIBRARIAN}/{owner_id}", at=at,
        selected_by=bundle.LIBRARIAN, title=(f"Kit {number} of {owner_id}", "From the library, for the next golem."),
        head={"kit": {"owner_id": owner_id, "number": number, "roots": list(roots)}}, derivation_id=derivation_id,
        policy=policy,
    )  # fmt: skip
