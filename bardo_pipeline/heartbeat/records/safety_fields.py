"""Record fields of budget, permits, decision cache, attention to items, and failed subsystems. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.events.record.model import TIERS
from bardo_pipeline.heartbeat.attention_items import CAUSES, LEVELS, NOTHING
from bardo_pipeline.heartbeat.decide import ACTIONS
from bardo_pipeline.heartbeat.defi.aave_loans import LOAN_ACTIONS
from bardo_pipeline.heartbeat.fleet import ITEMS
from bardo_pipeline.heartbeat.records import arrow_builders as arrow
from bardo_pipeline.heartbeat.records.chunk_rows import Rows, record_type
from bardo_pipeline.heartbeat.safety.decision_cache import HIT, RESULTS
from bardo_pipeline.heartbeat.safety.spending import ALL_TIERS, BANDS


def spending(rows: Rows) -> pa.Array | None:
    """Build the day's spending of each record from the first band on; None if no record has one."""
    band = rows["band"]
    if not (limited := band != ALL_TIERS).any():
        return None
    is_lowered = (rows["wanted"] != rows["tier"]) & (answered_outcomes(rows) == 0)
    parts = {
        "day_spent_micros": rows["day_spent"],
        "day_cap_micros": rows.chunk.policy.gateway.daily_budget_micros,
        "band": arrow.text_of(BANDS, band),
        "wanted_tier": arrow.text_of(TIERS, np.where(is_lowered, rows["wanted"], -1)),
    }
    return arrow.struct(record_type("spending"), parts, missing=~limited)


def answered_outcomes(rows: Rows) -> Int64Array:
    """Return the like outcomes behind each answer of the decision cache, 0 without one."""
    if not rows.has("cache_asked"):
        return np.zeros(rows.count, np.int64)
    outcomes: Int64Array = np.where(rows["cache_asked"] & (rows["cache_result"] == HIT), rows["cache_outcomes"], 0)
    return outcomes


def cached_decision(rows: Rows) -> pa.Array | None:
    """Build the lookup of each record; None without a decision cache."""
    if not rows.has("cache_asked"):
        return None
    parts = {
        "pattern": rows["cache_pattern"],
        "outcomes": rows["cache_outcomes"],
        "result": arrow.text_of(RESULTS, rows["cache_result"]),
        "wanted_tier": arrow.text_of(TIERS, rows["wanted"]),
    }
    return arrow.struct(record_type("cached_decision"), parts, missing=~rows["cache_asked"])


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
                "expires_us": sent[f"{prefix}_expires_us"],
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


def attention_changes(rows: Rows) -> pa.Array | None:
    """Build the items whose attention changed in each record; null in a record without any."""
    if not rows.has("item_cause"):
        return None
    where = np.flatnonzero((rows["item_cause"] != NOTHING).any(axis=1))
    changed = rows.take(where)
    cause = changed["item_cause"]
    row, item = np.nonzero(cause != NOTHING)
    parts = {
        "item": arrow.text_of(ITEMS, item),
        "level": arrow.text_of(LEVELS, changed["item_level"][row, item]),
        "cause": arrow.text_of(CAUSES, cause[row, item]),
        "residual": changed["item_residual"][row, item],
    }
    values = arrow.struct(record_type("attention_changes").value_type, parts)
    return some_lists("attention_changes", rows.count, where[row], values)


def residual_digest(rows: Rows) -> pa.Array | None:
    """Build the digest of each record that ends a delta; null in others."""
    if not rows.has("digest_due"):
        return None
    where = np.flatnonzero(rows["digest_due"])
    due = rows.take(where)
    resolved = due["digest_resolved"]
    row, item = np.nonzero(resolved > 0)
    figures = {name: due[f"digest_{name}"][row, item] for name in ("violations", "mean", "variance")}
    parts = {"item": arrow.text_of(ITEMS, item), "resolved": resolved[row, item], **figures}
    values = arrow.struct(record_type("residual_digest").value_type, parts)
    return some_lists("residual_digest", rows.count, where[row], values)


def failed_subsystems(rows: Rows) -> pa.Array | None:
    """Build the subsystems that failed after each tick; null in a record without any."""
    if not rows.out.failures:
        return None
    failed = [rows.out.failures.get(at, []) for at in rows.column.tolist()]
    owner = np.repeat(np.arange(rows.count), [len(own) for own in failed])
    parts = {
        name: pa.array([pair[i] for own in failed for pair in own], pa.string())
        for i, name in enumerate(("subsystem", "error"))
    }
    values = arrow.struct(record_type("failed_subsystems").value_type, parts)
    return some_lists("failed_subsystems", rows.count, owner, values)
