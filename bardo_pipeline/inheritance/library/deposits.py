"""Selects the entries deposited in an owner's library through each channel. Pure.

Source: INH S14 ("Five Inflow Channels"), canon 3, 7.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Column
from bardo_pipeline.events.record.arrow_columns import all_required, contiguous, required
from bardo_pipeline.grimoire.confidence import ppm
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA, MOMENT, STRUCTURE_FIELDS
from bardo_pipeline.grimoire.entry_columns import (
    confidence_of,
    int_column,
    micros,
    query_tables,
    to_bools,
    with_columns,
)
from bardo_pipeline.inheritance.weismann import leave_bloodstains
from bardo_pipeline.policy import Policy

CHANNELS = ("death", "pull", "export", "overflow", "purchase")
"""Channels by which entries enter a library, most reliable first (INH S14)."""

DEATH, PULL, EXPORT, OVERFLOW, PURCHASE = CHANNELS

CONTENT = (
    *[f.name for f in STRUCTURE_FIELDS], "kind", "text", "provenance", "origin_golem_id", "decay_class",
    "is_anti_knowledge", "is_bloodstain", "sign", "confidence_ppm", "confidence_origin_ppm", "generation",
    "effect_mean_ppm", "effect_low_ppm", "effect_high_ppm", "evidence_count", "anchor_at", "created_at", "validated_at",
)  # fmt: skip
"""Columns of an entry that a library keeps: content, confidence with its anchor, and origin."""

BOUGHT = "marketplace_purchase"
"""Provenance of purchased entries (canon 3)."""

DEPOSIT_SCHEMA = pa.schema(
    [
        *all_required(pa.string(), "owner_id", "channel", "golem_id"),
        required("at", MOMENT),
        *all_required(pa.string(), "event_id", "entry_id"),
        *[ENTRY_SCHEMA.field(name) for name in CONTENT],
    ]
)
"""One row per deposit of an entry. golem_id: the golem whose grimoire or bundle held it. event_id: the causing death,
pull, export or purchase; empty for overflow."""


def deposited(
    entries: pa.Table, channel: str, *, owners: Column, at: Column, causes: Column, provenance: str | None = None
) -> pa.Table:
    """Return entries (CONTENT, golem_id, entry_id) as deposits (DEPOSIT_SCHEMA); owners, at and causes are per entry.

    Own evidence is copied to evidence_count, because a deposit keeps no own sums.
    """
    columns: dict[str, Any] = {name: entries[name] for name in ("golem_id", "entry_id", *CONTENT)}
    if "own_count" in entries.column_names:
        columns["evidence_count"] = pc.max_element_wise(entries["own_count"], entries["evidence_count"])
    if provenance is not None:
        columns["provenance"] = pa.repeat(provenance, entries.num_rows)
    columns |= {"owner_id": owners, "at": at, "event_id": causes, "channel": pa.repeat(channel, entries.num_rows)}
    return pa.table({name: columns[name] for name in DEPOSIT_SCHEMA.names}).cast(DEPOSIT_SCHEMA)


def death_deposits(entries: pa.Table, deaths: pa.Table, policy: Policy) -> pa.Table:
    """Return the automatic deposits of dead golems: DEPOSIT_SCHEMA.

    Insights and heuristics need confidence 0.6 at death, causal links 0.5 and three evidences; warnings have no
    minimum and are marked as bloodstains.

    Parameters
    ----------
    entries : pa.Table, ENTRY_SCHEMA as folded at death; entries of living golems are ignored
    deaths : pa.Table, columns golem_id, owner_id, at and event_id
    """
    left = leave_bloodstains(entries.filter(pc.equal(entries["status"], "active")), deaths, policy)
    death = deaths.take(pc.index_in(left["golem_id"], value_set=contiguous(deaths["golem_id"])))
    trusted = confidence_of(left, micros(death, "at"), policy.decay)
    evidence = np.maximum(int_column(left, "own_count"), int_column(left, "evidence_count"))
    kind, rules = left["kind"], policy.library
    is_rule = to_bools(pc.is_in(kind, value_set=pa.array(["insight", "heuristic"])))
    link = to_bools(pc.equal(kind, "causal_link"))
    keep = to_bools(pc.equal(kind, "warning")) | (is_rule & (trusted >= ppm(rules.deposit_confidence)))
    keep |= link & (trusted >= ppm(rules.link_confidence)) & (evidence >= rules.link_evidence)
    owners, at, causes = (death[name].filter(pa.array(keep)) for name in ("owner_id", "at", "event_id"))
    return deposited(left.filter(pa.array(keep)), DEATH, owners=owners, at=at, causes=causes)


def pull_deposits(entries: pa.Table, deaths: pa.Table, pulls: pa.Table, policy: Policy) -> pa.Table:
    """Return the deposits that owners pulled within `pull_seconds` after a death, at any confidence: DEPOSIT_SCHEMA.

    entries, deaths: as for `death_deposits`. pulls: golem_id, entry_id, at, event_id. Late pulls and pulls of missing
    entries are ignored.
    """
    left = leave_bloodstains(entries.filter(pc.equal(entries["status"], "active")), deaths, policy)
    accepted = query_tables(
        _PULLED,
        {"grace": round(policy.library.pull_seconds * 1e6)},
        held=pa.table({"golem_id": left["golem_id"], "entry_id": left["entry_id"], "row": np.arange(left.num_rows)}),
        pulls=pulls,
        deaths=deaths.select(["golem_id", "owner_id", "at"]),
    )
    owners, at, causes = (accepted[name] for name in ("owner_id", "at", "event_id"))
    return deposited(left.take(accepted["row"]), PULL, owners=owners, at=at, causes=causes)


_PULLED = """
    select row, owner_id, pulls.at, event_id
    from pulls join held using (golem_id, entry_id) join deaths using (golem_id)
    where pulls.at >= deaths.at and epoch_us(pulls.at) <= epoch_us(deaths.at) + $grace
    qualify row_number() over (partition by row order by pulls.at, event_id) = 1 order by row
"""


def export_deposits(entries: pa.Table, owners: pa.Array, at: pa.Array, causes: pa.Array, policy: Policy) -> pa.Table:
    """Return the deposits that owners exported from living golems: DEPOSIT_SCHEMA.

    entries: ENTRY_SCHEMA at the time of each export; owners, at and causes are per entry. Inactive entries and entries
    below `export_confidence` are ignored.
    """
    moments = at.cast(pa.int64()).to_numpy()
    is_confident = confidence_of(entries, moments, policy.decay) >= ppm(policy.library.export_confidence)
    keep = pa.array(is_confident & to_bools(contiguous(pc.equal(entries["status"], "active"))))
    return deposited(
        entries.filter(keep), EXPORT, owners=owners.filter(keep), at=at.filter(keep), causes=causes.filter(keep)
    )


def purchase_deposits(
    entries: pa.Table, owner_id: str, seller_id: str, at: datetime, event_id: str, policy: Policy
) -> pa.Table:
    """Return the deposits of a purchased bundle: DEPOSIT_SCHEMA, with `purchase_confidence` anchored at the purchase.

    entries: CROSSING_SCHEMA. seller_id: the golem whose death produced the bundle.
    """
    count = entries.num_rows
    anchor = pa.repeat(pa.scalar(at, MOMENT), count)
    confidence = np.full(count, ppm(policy.library.purchase_confidence))
    entries = with_columns(entries, confidence_ppm=confidence, anchor_at=anchor)
    entries = entries.append_column("golem_id", pa.repeat(seller_id, count))
    owners, causes = pa.repeat(owner_id, count), pa.repeat(event_id, count)
    return deposited(entries, PURCHASE, owners=owners, at=anchor, causes=causes, provenance=BOUGHT)
