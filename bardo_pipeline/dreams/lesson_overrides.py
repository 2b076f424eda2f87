"""Orders of owners about lessons: pin, unpin and retract them like entries of the grimoire. Pure.

An order takes effect when its cycle closes, after the dream at that close. Source: X-8.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa

from bardo_pipeline.curator.state.decision_log import DECISION_SCHEMA, OPERATIONS, PINNED, REASONS, RETRACTED, UNPINNED
from bardo_pipeline.events.life.override_events import Order
from bardo_pipeline.grimoire.entry_columns import confidence_of
from bardo_pipeline.policy import Policy

_OPERATIONS = {"EntryPinned": PINNED, "EntryUnpinned": UNPINNED, "EntryRetracted": RETRACTED}

_ORDER_SEQ = 1_000_000
"""Added to an order's number, so that its seq follows those of the dream in the same cycle."""

Row = dict[str, Any]


def apply_orders(decisions: pa.Table, hypotheses: Sequence[str], orders: Sequence[Order], policy: Policy) -> pa.Table:
    """Apply orders to decisions of dreams (DECISION_SCHEMA), dropping the decisions that an order overrides.

    hypotheses: hypothesis id of each row. An order counts if the entry is active when its cycle closes. After a
    retraction, later decisions of the same hypothesis are dropped. A pinned entry is not pruned.
    """
    orders_of: dict[tuple[str, str], list[Order]] = {}
    for order in sorted(orders):
        if order.kind in _OPERATIONS:
            orders_of.setdefault((order.golem_id, order.entry_id), []).append(order)
    pairs = list(zip(decisions["golem_id"].to_pylist(), decisions["entry_id"].to_pylist(), strict=True))
    ordered = [i for i, pair in enumerate(pairs) if pair in orders_of]
    if not ordered:
        return decisions
    unordered = decisions.filter(pa.array([pair not in orders_of for pair in pairs]))
    affected = decisions.take(pa.array(ordered)).to_pylist()
    rows = sorted(
        (row | {"hypothesis": hypotheses[i]} for i, row in zip(ordered, affected, strict=True)),
        key=lambda row: (row["golem_id"], row["entry_id"], row["cycle"], row["seq"]),
    )
    new_rows: list[Row] = []
    for pair, entry_rows in groupby(rows, key=lambda row: (row["golem_id"], row["entry_id"])):
        new_rows += _merge_orders(list(entry_rows), orders_of[pair], policy)
    names = DECISION_SCHEMA.names
    merged = pa.Table.from_pylist([{n: row[n] for n in names} for row in new_rows], schema=DECISION_SCHEMA)
    return pa.concat_tables([unordered, merged])


def _merge_orders(rows: Sequence[Row], orders: Sequence[Order], policy: Policy) -> Iterator[Row]:
    """Yield one entry's decisions and orders by time, each with the effect of those before."""
    span = policy.curator.cycle_ticks
    events: list[tuple[int, int, int, Row | None, Order | None]] = [
        (row["cycle"], 0, i, row, None) for i, row in enumerate(rows)
    ]
    events += [(order.cycle(span), 1, i, None, order) for i, order in enumerate(orders)]
    last: Row | None = None
    retracted: set[str] = set()
    for _, _, _, row, order in sorted(events, key=lambda event: event[:3]):
        if row is not None:
            pinned = 0 if last is None else last["pinned_ppm"]
            if row["hypothesis"] in retracted or (pinned and row["status"] != "active"):
                continue
            last = row | {"pinned_ppm": pinned}
            yield last
        elif order is not None and last is not None and last["status"] == "active":
            last = _ordered(last, order, policy)
            if order.kind == "EntryRetracted":
                retracted.add(last["hypothesis"])
            yield last


def _ordered(row: Row, order: Order, policy: Policy) -> Row:
    """Return the decision that applies an order to an entry's last decision."""
    entry = pa.Table.from_pylist([{n: row[n] for n in DECISION_SCHEMA.names}], schema=DECISION_SCHEMA)
    at_us = pa.scalar(order.at, DECISION_SCHEMA.field("at").type).cast(pa.int64()).as_py()
    now, operation = int(confidence_of(entry, at_us, policy.decay)[0]), _OPERATIONS[order.kind]
    changed: Row = {
        "cycle": order.cycle(policy.curator.cycle_ticks), "seq": _ORDER_SEQ + order.number, "at": order.at,
        "operation": OPERATIONS[operation], "reason": f"{REASONS[operation]}: {order.why}",
        "confidence_before_ppm": now, "cause_ticks": [], "cause_event": order.event_id,
        "pinned_ppm": max(now, 1) if operation == PINNED else 0,
    }  # fmt: skip
    if operation == UNPINNED:
        changed |= {"confidence_ppm": now, "anchor_at": order.at}
    if operation == RETRACTED:
        changed["status"] = "retracted"
    return row | changed
