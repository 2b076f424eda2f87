"""Succession: a bundle becomes the heir's first entries and first decisions. Pure.

Source: INH S12, S13; canon 2, 3; architecture ("an heir's fold starts from the recorded bundle").
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from bardo_pipeline.curator.decisions import DECISION_SCHEMA, OPERATIONS, REASONS, RECEIVED
from bardo_pipeline.errors import BundleError
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA, MOMENT
from bardo_pipeline.inheritance.bundle import CROSSING_COLUMNS, ENTRIES, Bundle
from bardo_pipeline.inheritance.weismann import SHED_COLUMNS, fading
from bardo_pipeline.policy import Policy


def inherited_entries(bundle: Bundle, heir_id: str, policy: Policy) -> pa.Table:
    """The heir's grimoire at birth: ENTRY_SCHEMA sorted by entry.

    Nothing is attenuated here: the bundle holds what crossed. Own sums, confirmations and cycles start at 0, provenance
    is the death testament, and whose experience an entry was stays with it.
    """
    crossed = crossing_table(bundle)
    count = crossed.num_rows
    columns: dict[str, Any] = {name: crossed.column(name) for name in crossed.column_names}
    columns |= {name: pa.array(np.zeros(count, np.int64)) for name in SHED_COLUMNS}
    constant = {"golem_id": heir_id, "status": "active", "provenance": "death_testament"}
    columns |= {name: pa.array([word] * count, pa.string()) for name, word in constant.items()}
    columns["fades_at"] = pa.nulls(count, MOMENT)
    table = pa.table({name: columns[name] for name in ENTRY_SCHEMA.names}).cast(ENTRY_SCHEMA)
    return fading(table, policy).sort_by("entry_id")


def crossing_table(bundle: Bundle) -> pa.Table:
    """entries.jsonl as columns (CROSSING_COLUMNS, types of ENTRY_SCHEMA); BundleError if a row does not fit."""
    fields = [ENTRY_SCHEMA.field(n) if n in ENTRY_SCHEMA.names else _EXTRA[n] for n in CROSSING_COLUMNS]
    written = pa.schema([f.with_type(pa.string()) if pa.types.is_timestamp(f.type) else f for f in fields])
    try:
        return pa.Table.from_pylist(bundle.rows(ENTRIES), schema=written).cast(pa.schema(fields))
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise BundleError(f"{ENTRIES}: a row does not fit ({error})") from None


_EXTRA = {
    "selected_by": pa.field("selected_by", pa.string(), nullable=False),
    "rank": pa.field("rank", pa.int64(), nullable=False),
}


def received_decisions(rows: pa.Table, bundle_hash: str, at: datetime, policy_hash: str) -> pa.Table:
    """The heir's first decisions (DECISION_SCHEMA, cycle 0): each entry received, caused by the bundle.

    rows: `inherited_entries`, of one heir or of several with the same bundle. The fold of these decisions is the rows.
    """
    rows = rows.sort_by([("golem_id", "ascending"), ("entry_id", "ascending")])
    count = rows.num_rows
    golem = rows.column("golem_id").to_numpy(zero_copy_only=False)
    starts = np.flatnonzero(np.r_[True, golem[1:] != golem[:-1]]) if count else np.zeros(0, np.int64)
    zeros = np.zeros(count, np.int64)
    columns: dict[str, Any] = {name: rows.column(name) for name in ENTRY_SCHEMA.names}
    columns |= {
        "revision": zeros,
        "cycle": zeros,
        "seq": np.arange(count) - np.repeat(starts, np.diff(np.r_[starts, count])),
        "at": pa.array([at] * count, MOMENT),
        "operation": pa.array([OPERATIONS[RECEIVED]] * count, pa.string()),
        "reason": pa.array([REASONS[RECEIVED]] * count, pa.string()),
        "confidence_before_ppm": zeros,
        "cause_ticks": pa.array([[]] * count, DECISION_SCHEMA.field("cause_ticks").type),
        "cause_bundle": pa.array([bundle_hash] * count, pa.string()),
        "policy_hash": pa.array([policy_hash] * count, pa.string()),
    }
    return pa.table({name: columns[name] for name in DECISION_SCHEMA.names}).cast(DECISION_SCHEMA)
