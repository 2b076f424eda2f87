"""Record fields of the daily budget, of permits, of the decision cache, and of the attention to items. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.events.record.model import TIERS
from bardo_pipeline.heartbeat.decide import ACTIONS
from bardo_pipeline.heartbeat.defi.aave_loans import LOAN_ACTIONS
from bardo_pipeline.heartbeat.records import arrow_builders as arrow
from bardo_pipeline.heartbeat.records.chunk_rows import Rows, record_type
from bardo_pipeline.heartbeat.safety.spending import ALL_TIERS, BANDS


def spending(rows: Rows) -> pa.Array | None:
    """Build the day's spending of each record from the first band on; None if no record has one."""
    band = rows["band"]
    if not (limited := band != ALL_TIERS).any():
        return None
    parts = {
        "day_spent_micros": rows["day_spent"],
        "day_cap_micros": rows.chunk.policy.gateway.daily_budget_micros,
        "band": arrow.text_of(BANDS, band),
        "wanted_tier": arrow.text_of(TIERS, np.where(rows["wanted"] != rows["tier"], rows["wanted"], -1)),
    }
    return arrow.struct(record_type("spending"), parts, missing=~limited)


_PERMITTED: tuple[tuple[str, str, tuple[str | None, ...]], ...] = (
    ("lent", "-loan", LOAN_ACTIONS),
    ("choice", "", ACTIONS),
)
"""Columns of actions on loans and on the position, the end of their permits' ids, and their names."""


def permits(rows: Rows) -> pa.Array | None:
    """Build the permits of the sent actions of each record; null in a record without any."""
    owners, values = [], []
    item = record_type("permits").value_type
    for prefix, end, names in _PERMITTED:
        if rows.has(f"{prefix}_permitted"):
            where = np.flatnonzero(rows[f"{prefix}_permitted"])
            sent = rows.take(where)
            state = [f"{word:016x}" for word in sent[f"{prefix}_market_state"].tolist()]
            parts = {
                "permit_id": arrow.concat_text("permit-", sent.golem_ids, "-", sent.text("tick"), end),
                "action_type": arrow.text_of(names, sent[f"{prefix}_action"]),
                "market_state": pa.array(state, pa.string()),
                "expires_at": pa.array(sent[f"{prefix}_expires_us"]),
                "accuracy": sent[f"{prefix}_accuracy"],
                "simulated": sent[f"{prefix}_simulated"],
            }
            owners.append(where)
            values.append(arrow.struct(item, parts))
    return some_lists("permits", rows.count, np.concatenate(owners), pa.concat_arrays(values)) if owners else None


def some_lists(name: str, count: int, owner: Int64Array, values: pa.Array) -> pa.Array | None:
    """Build the lists of a record field whose empty lists are null, one per row; None if all are empty.

    owner: the row of each value.
    """
    if not len(owner):
        return None
    counts = np.bincount(owner, minlength=count)
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
    ordered = values.take(pa.array(np.argsort(owner, kind="stable")))
    return pa.ListArray.from_arrays(offsets, ordered, type=record_type(name), mask=pa.array(counts == 0))
