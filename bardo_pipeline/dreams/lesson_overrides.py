"""The owner's word on lessons: pinned, unpinned and retracted as any entry of the grimoire. Pure.

What an owner said takes effect when its cycle closes, after the dream that closes it. Source: X-8.
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

_WORDS = {"EntryPinned": PINNED, "EntryUnpinned": UNPINNED, "EntryRetracted": RETRACTED}

_BEHIND_DREAMS = 1_000_000
"""Added to an order's number, so that it comes after all that a dream of its cycle decided."""

Row = dict[str, Any]


def obeyed(decisions: pa.Table, hypotheses: Sequence[str], orders: Sequence[Order], policy: Policy) -> pa.Table:
    """Decisions of dreams (DECISION_SCHEMA) with what owners said of their entries, and without what that undoes.

    hypotheses: of which each row tells. An order counts where the entry is active when its cycle closes; retracted,
    what the same hypothesis says later does not count any more; pinned, nothing is forgotten. Entries that nobody spoke
    of are not looked at one by one.
    """
    said: dict[tuple[str, str], list[Order]] = {}
    for order in sorted(orders):
        if order.kind in _WORDS:
            said.setdefault((order.golem_id, order.entry_id), []).append(order)
    pairs = list(zip(decisions["golem_id"].to_pylist(), decisions["entry_id"].to_pylist(), strict=True))
    told = [i for i, pair in enumerate(pairs) if pair in said]
    if not told:
        return decisions
    kept = decisions.filter(pa.array([pair not in said for pair in pairs]))
    taken = decisions.take(pa.array(told)).to_pylist()
    rows = sorted(
        (row | {"hypothesis": hypotheses[i]} for i, row in zip(told, taken, strict=True)),
        key=lambda row: (row["golem_id"], row["entry_id"], row["cycle"], row["seq"]),
    )
    made: list[Row] = []
    for pair, mine in groupby(rows, key=lambda row: (row["golem_id"], row["entry_id"])):
        made += _life(list(mine), said[pair], policy)
    names = DECISION_SCHEMA.names
    told_again = pa.Table.from_pylist([{n: row[n] for n in names} for row in made], schema=DECISION_SCHEMA)
    return pa.concat_tables([kept, told_again])


def _life(rows: Sequence[Row], orders: Sequence[Order], policy: Policy) -> Iterator[Row]:
    """One entry's decisions and orders in their order, each as it is with those before."""
    span = policy.curator.cycle_ticks
    events: list[tuple[int, int, int, Row | None, Order | None]] = [
        (row["cycle"], 0, i, row, None) for i, row in enumerate(rows)
    ]
    events += [(order.cycle(span), 1, i, None, order) for i, order in enumerate(orders)]
    last: Row | None = None
    undone: set[str] = set()
    for _, _, _, row, order in sorted(events, key=lambda event: event[:3]):
        if row is not None:
            pinned = 0 if last is None else last["pinned_ppm"]
            if row["hypothesis"] in undone or (pinned and row["status"] != "active"):
                continue
            last = row | {"pinned_ppm": pinned}
            yield last
        elif order is not None and last is not None and last["status"] == "active":
            last = _said(last, order, policy)
            if order.kind == "EntryRetracted":
                undone.add(last["hypothesis"])
            yield last


def _said(row: Row, order: Order, policy: Policy) -> Row:
    """The entry as an order leaves it."""
    entry = pa.Table.from_pylist([{n: row[n] for n in DECISION_SCHEMA.names}], schema=DECISION_SCHEMA)
    at_us = pa.scalar(order.at, DECISION_SCHEMA.field("at").type).cast(pa.int64()).as_py()
    now, word = int(confidence_of(entry, at_us, policy.decay)[0]), _WORDS[order.kind]
    changed: Row = {"pinned_ppm": max(now, 1) if word == PINNED else 0}
    if word == UNPINNED:
        changed |= {"confidence_ppm": now, "anchor_at": order.at}
    if word == RETRACTED:
        changed["status"] = "retracted"
    return (
        row
        | changed
        | {
            "cycle": order.cycle(policy.curator.cycle_ticks), "seq": _BEHIND_DREAMS + order.number, "at": order.at,
            "operation": OPERATIONS[word], "reason": f"{REASONS[word]}: {order.why}", "confidence_before_ppm": now,
            "cause_ticks": [], "cause_event": order.event_id,
        }
    )  # fmt: skip
