"""Lessons: entries from confirmed hypotheses of dreams, and the decisions behind them. Pure.

A hypothesis becomes an entry when outcomes confirm it in a dream. Later outcomes reinforce or contradict it. It decays
at half its class's rate and is pruned below the usual limit. Lessons are the fold of these decisions, as a grimoire is
the fold of the curator's. Owners pin, unpin and retract lessons like entries of the grimoire. Their order takes effect
when its cycle closes, after the dream at that close.
Source: KAT (Loop 3, demurrage), MEM (shared constants), canon 1, 4, 5, 50; MEM-16, X-8.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import BoolArray, Int64Array
from bardo_pipeline.curator.state.decision_log import (
    CONTRADICTED,
    CREATED,
    DECISION_SCHEMA,
    NOTED,
    OPERATIONS,
    PINNED,
    PRUNED,
    REASONS,
    REINFORCED,
    RETRACTED,
    STAGED,
    UNPINNED,
    fold,
)
from bardo_pipeline.curator.state.grimoire_state import entry_id
from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.dreams.hypotheses import STATES
from bardo_pipeline.dreams.hypothesis_table import HYPOTHESIS_SCHEMA, SITUATED, text_of
from bardo_pipeline.events.life.override_events import Order
from bardo_pipeline.grimoire.entries import COUNTED_FIELDS, DREAMT, ENTRY_SCHEMA, MOMENT
from bardo_pipeline.grimoire.entry_columns import confidence_of, with_columns
from bardo_pipeline.inheritance.weismann import with_fade_time
from bardo_pipeline.policy import Policy

MEANING = {
    "imagined": (STAGED, "a failure went better in a dream, not often enough to say so"),
    "staged": (STAGED, "failures went better in dreams; outcomes since must bear it out"),
    "gathered": (STAGED, "outcomes since the dream, not yet decisive"),
    "confirmed": (CREATED, "outcomes since the dream bear it out"),
    "reinforced": (REINFORCED, REASONS[REINFORCED]),
    "contradicted": (CONTRADICTED, REASONS[CONTRADICTED]),
    "pushed": (NOTED, "sure enough to be offered to the clade"),
    "faded": (PRUNED, REASONS[PRUNED]),
}
"""Decision about the entry, and its reason, for each operation on a confirmed hypothesis."""

_STATUS = {"imagined": "candidate", "staged": "candidate", "confirmed": "active", "gone": "pruned"}

_OPERATIONS = {"EntryPinned": PINNED, "EntryUnpinned": UNPINNED, "EntryRetracted": RETRACTED}

_ORDER_SEQ = 1_000_000
"""Added to an order's number, so that its seq follows those of the dream in the same cycle."""

Row = dict[str, Any]


def lessons_of(hypotheses: pa.Table, orders: Sequence[Order], policy: Policy) -> pa.Table:
    """Return the lessons of hypotheses (HYPOTHESIS_SCHEMA) as ENTRY_SCHEMA, sorted by golem and entry.

    orders: orders of owners in closed cycles.
    """
    return fold(lesson_decisions(hypotheses, orders, policy))


def lesson_decisions(
    hypotheses: pa.Table, orders: Sequence[Order], policy: Policy, before: pa.Table | None = None
) -> pa.Table:
    """Return the decisions of dreams about entries as DECISION_SCHEMA, sorted by key.

    Hypotheses that are never confirmed have no decisions; the others have them from their first witness on.

    Parameters
    ----------
    hypotheses : pa.Table, HYPOTHESIS_SCHEMA, all rows of some golems up to a moment, or all since `before`
    orders : orders of owners in closed cycles; empty if `before` is given
    before : pa.Table, ENTRY_SCHEMA, the lessons of these golems before the given rows; None if the rows are complete
    """
    rows = hypotheses.sort_by([(n, "ascending") for n in ("golem_id", "hypothesis_id", "cycle", "seq")])
    confirmed = rows.filter(pc.or_(pc.equal(rows["state"], "confirmed"), pc.equal(rows["operation"], "faded")))
    rows = rows.filter(pc.is_in(rows["hypothesis_id"], value_set=confirmed["hypothesis_id"].combine_chunks()))
    rows = rows.combine_chunks()
    count = rows.num_rows
    if not count:
        return DECISION_SCHEMA.empty_table()
    meanings = [MEANING[operation] for operation in rows["operation"].to_pylist()]
    columns: dict[str, Any] = {name: rows[name] for name in HYPOTHESIS_SCHEMA.names if name in DECISION_SCHEMA.names}
    columns |= {f.name: np.zeros(count, np.int64) for f in COUNTED_FIELDS if f.name not in columns}
    columns |= _identity(rows) | _evidence(rows)
    columns |= _history(rows, columns["entry_id"], ENTRY_SCHEMA.empty_table() if before is None else before)
    columns |= {
        "revision": np.zeros(count, np.int64),
        "operation": [OPERATIONS[operation] for operation, _ in meanings],
        "reason": _reasons(rows, [reason for _, reason in meanings]),
        "cause_bundle": pa.nulls(count, pa.string()),
        "cause_event": pa.nulls(count, pa.string()),
        "kind": ["insight"] * count,
        "status": [_STATUS[state] for state in rows["state"].to_pylist()],
        "provenance": [DREAMT] * count,
        "origin_golem_id": rows["golem_id"],
        "is_anti_knowledge": [False] * count,
        "is_bloodstain": [False] * count,
        "fades_at": pa.nulls(count, MOMENT),
    }
    table = pa.table({n: columns[n] for n in DECISION_SCHEMA.names}).cast(DECISION_SCHEMA)
    if orders:
        table = _apply_orders(table, rows["hypothesis_id"].to_pylist(), orders, policy)
    table = with_columns(table, fades_at=with_fade_time(table.select(ENTRY_SCHEMA.names), policy)["fades_at"])
    return table.sort_by([(n, "ascending") for n in ("golem_id", "cycle", "seq")])


def lesson_of(situation: Structure, change: str) -> Structure:
    """Return the structure of a lesson: the situation and the change."""
    return situation._replace(source="dream", cause=change)


def lesson_id(row: Mapping[str, Any]) -> str:
    """Return the entry id of a hypothesis (a row of HYPOTHESIS_SCHEMA) once it is confirmed."""
    situation = Structure("pattern", **{n: row[n] for n in SITUATED})
    return entry_id(row["golem_id"], lesson_of(situation, row["change"]).key)


def _identity(rows: pa.Table) -> dict[str, Any]:
    """Return structure, id and text of each row's entry; each distinct hypothesis is named once."""
    coded = rows["hypothesis_id"].combine_chunks().dictionary_encode()
    place = coded.indices.to_numpy(zero_copy_only=False)
    first = np.unique(place, return_index=True)[1]
    distinct = rows.take(pa.array(first)).select(["golem_id", "change", *SITUATED]).to_pylist()
    situations = [Structure("pattern", **{n: row[n] for n in SITUATED}) for row in distinct]
    lessons = [lesson_of(where, row["change"]) for where, row in zip(situations, distinct, strict=True)]
    ids = [entry_id(row["golem_id"], lesson.key) for row, lesson in zip(distinct, lessons, strict=True)]
    fields = (*Structure._fields, "category", "domain")
    named: dict[str, Any] = {name: [getattr(lesson, name) for lesson in lessons] for name in fields}
    named |= {"structure": [lesson.key for lesson in lessons], "entry_id": ids}
    take = pa.array(place, pa.int64())
    columns: dict[str, Any] = {
        name: pa.array(values, DECISION_SCHEMA.field(name).type).take(take) for name, values in named.items()
    }
    effects = zip(place.tolist(), rows["sign"].to_pylist(), _stated(rows, "mean_ppm").tolist(), strict=True)
    columns["text"] = [text_of(situations[i], lessons[i].cause or "", sign, mean) for i, sign, mean in effects]
    return columns


def _stated(rows: pa.Table, name: str) -> Int64Array:
    """Return a figure of each row: simulated until its hypothesis is confirmed, then live."""
    is_simulated = pc.is_in(rows["state"], value_set=pa.array(STATES[:2])).to_numpy(zero_copy_only=False)
    return np.where(is_simulated, rows[name].to_numpy(), rows[f"live_{name}"].to_numpy())


def _evidence(rows: pa.Table) -> dict[str, Any]:
    """Return the stated effect of each row and the exact sums of its live effects."""
    stated = {
        "effect_mean_ppm": "mean_ppm", "effect_low_ppm": "low_ppm", "effect_high_ppm": "high_ppm",
        "evidence_count": "count",
    }  # fmt: skip
    live = {"own_count": "live_count", "own_sum": "live_total", "own_sumsq": "live_squares"}
    return {name: _stated(rows, column) for name, column in stated.items()} | {n: rows[c] for n, c in live.items()}


_COUNTED = ("validations", "contradictions", "created_cycle", "confidence_origin_ppm")
_DATED = ("created_at", "validated_at")


def _history(rows: pa.Table, entries: pa.Array, before: pa.Table) -> dict[str, Any]:
    """Return votes, creation and last validation of each row's entry, counting on from the lessons in `before`."""
    hypothesis = rows["hypothesis_id"].to_numpy(zero_copy_only=False)
    first = np.flatnonzero(np.r_[True, hypothesis[1:] != hypothesis[:-1]])
    group = np.repeat(np.arange(len(first)), np.diff(np.r_[first, len(hypothesis)]))
    operation = rows["operation"].to_numpy(zero_copy_only=False)
    at, row = rows["at"].cast(pa.int64()).to_numpy(), np.arange(len(group))
    confirmed_row = np.full(len(first), -1)  # a hypothesis is confirmed once, in these rows or before
    confirmed_row[group[operation == "confirmed"]] = row[operation == "confirmed"]
    old = _earlier_lessons(entries.take(pa.array(first)), confirmed_row < 0, before)

    def counted(name: str, column: str) -> Int64Array:
        total = np.cumsum(operation == name)
        return total - (total - (operation == name))[first][group] + old[column][group]

    at_row = confirmed_row[group]
    is_new, is_confirmed = at_row >= 0, row >= at_row
    validated_row = np.maximum.accumulate(np.where(np.isin(operation, ("confirmed", "reinforced")), row, -1))
    begun = rows["begun_at"].cast(pa.int64()).to_numpy()
    created = np.where(is_new, at[at_row], old["created_at"][group])
    validated = np.where(validated_row >= first[group], at[validated_row], old["validated_at"][group])
    cycle = np.where(is_new, rows["cycle"].to_numpy()[at_row], old["created_cycle"][group])
    confidence = np.where(is_new, rows["confidence_ppm"].to_numpy()[at_row], old["confidence_origin_ppm"][group])
    return {
        "validations": counted("reinforced", "validations"),
        "contradictions": counted("contradicted", "contradictions"),
        "created_cycle": np.where(is_confirmed, cycle, 0),
        "confidence_origin_ppm": np.where(is_confirmed, confidence, 0),
        "created_at": pa.array(np.where(is_confirmed, created, begun)).cast(MOMENT),
        "validated_at": pa.array(np.where(is_confirmed, validated, begun)).cast(MOMENT),
    }


def _earlier_lessons(entries: pa.Array, wanted: BoolArray, before: pa.Table) -> dict[str, Int64Array]:
    """Return columns of the wanted entries' lessons in `before`, zeros for the others."""
    place = pc.index_in(entries.filter(pa.array(wanted)), value_set=before["entry_id"].combine_chunks())
    assert not place.null_count, "a hypothesis confirmed earlier is among the lessons"
    columns = {}
    for name in (*_COUNTED, *_DATED):
        columns[name] = np.zeros(len(wanted), np.int64)
        columns[name][wanted] = before[name].cast(pa.int64()).take(place).to_numpy()
    return columns


def _reasons(rows: pa.Table, reasons: Sequence[str]) -> list[str]:
    """Complete each reason with dream, hypothesis, count and interval."""
    figures = (_stated(rows, name).tolist() for name in ("count", "low_ppm", "high_ppm"))
    parts = zip(reasons, rows["cycle"].to_pylist(), rows["hypothesis_id"].to_pylist(), *figures, strict=True)
    return [
        f"{reason}; dream of cycle {cycle}, hypothesis {name[:12]}; n={count}; interval {low} to {high}"
        for reason, cycle, name, count, low, high in parts
    ]


def _apply_orders(decisions: pa.Table, hypotheses: Sequence[str], orders: Sequence[Order], policy: Policy) -> pa.Table:
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
