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

from bardo_pipeline.arrays import Column
from bardo_pipeline.curator.state import decision_log as log
from bardo_pipeline.curator.state.grimoire_state import entry_id
from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.dreams.hypothesis_table import HYPOTHESIS_SCHEMA, SITUATED, lesson_entry_id, lesson_of, text_of
from bardo_pipeline.events.life.override_events import Order
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.grimoire.entries import COUNTED_FIELDS, DREAMT, ENTRY_SCHEMA, MOMENT
from bardo_pipeline.grimoire.entry_columns import confidence_of, query_tables, with_columns
from bardo_pipeline.inheritance.weismann import with_fade_time
from bardo_pipeline.policy import Policy

MEANING = {
    "imagined": (log.STAGED, "a failure went better in a dream, not often enough to say so"),
    "staged": (log.STAGED, "failures went better in dreams; outcomes since must bear it out"),
    "gathered": (log.STAGED, "outcomes since the dream, not yet decisive"),
    "confirmed": (log.CREATED, "outcomes since the dream bear it out"),
    "reinforced": (log.REINFORCED, log.REASONS[log.REINFORCED]),
    "contradicted": (log.CONTRADICTED, log.REASONS[log.CONTRADICTED]),
    "pushed": (log.NOTED, "sure enough to be offered to the clade"),
    "faded": (log.PRUNED, log.REASONS[log.PRUNED]),
}
"""Decision about the entry, and its reason, for each operation on a confirmed hypothesis."""

_STATUS = {"imagined": "candidate", "staged": "candidate", "confirmed": "active", "gone": "pruned"}

_OPERATIONS = {"EntryPinned": log.PINNED, "EntryUnpinned": log.UNPINNED, "EntryRetracted": log.RETRACTED}

_ORDER_SEQ = 1_000_000
"""Added to an order's number, so that its seq follows those of the dream in the same cycle."""

Row = dict[str, Any]


def lessons_of(hypotheses: pa.Table, orders: Sequence[Order], policy: Policy) -> pa.Table:
    """Return the lessons of hypotheses (HYPOTHESIS_SCHEMA) as ENTRY_SCHEMA, sorted by golem and entry.

    orders: orders of owners in closed cycles.
    """
    return log.fold(lesson_decisions(hypotheses, orders, policy))


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
        return log.DECISION_SCHEMA.empty_table()
    meanings = [MEANING[operation] for operation in rows["operation"].to_pylist()]
    columns: dict[str, Any] = {
        name: rows[name] for name in HYPOTHESIS_SCHEMA.names if name in log.DECISION_SCHEMA.names
    }
    columns |= {f.name: np.zeros(count, np.int64) for f in COUNTED_FIELDS if f.name not in columns}
    numbered = rows.append_column("meaning", pa.array([reason for _, reason in meanings]))
    stated = query_tables(_STATED, hypotheses=numbered.append_column("row", pa.array(np.arange(count))))
    columns |= {name: stated[name] for name in stated.column_names}
    columns |= _identity(rows, stated["effect_mean_ppm"].to_pylist())
    columns |= _history(rows, columns["entry_id"], ENTRY_SCHEMA.empty_table() if before is None else before)
    columns |= {
        "revision": np.zeros(count, np.int64),
        "operation": [log.OPERATIONS[operation] for operation, _ in meanings],
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
    table = pa.table({n: columns[n] for n in log.DECISION_SCHEMA.names}).cast(log.DECISION_SCHEMA)
    if orders:
        table = _apply_orders(table, rows["hypothesis_id"], orders, policy)
    table = with_columns(table, fades_at=with_fade_time(table.select(ENTRY_SCHEMA.names), policy)["fades_at"])
    return table.sort_by([(n, "ascending") for n in ("golem_id", "cycle", "seq")])


_STATED = """
    with stated as (select *, state in ('imagined', 'staged') as is_simulated from hypotheses)
    select if(is_simulated, mean_ppm, live_mean_ppm) as effect_mean_ppm,
        if(is_simulated, low_ppm, live_low_ppm) as effect_low_ppm,
        if(is_simulated, high_ppm, live_high_ppm) as effect_high_ppm,
        if(is_simulated, "count", live_count) as evidence_count,
        live_count as own_count, live_total as own_sum, live_squares as own_sumsq,
        concat(meaning, '; dream of cycle ', cycle, ', hypothesis ', left(hypothesis_id, 12), '; n=', evidence_count,
            '; interval ', effect_low_ppm, ' to ', effect_high_ppm) as reason
    from stated order by "row"
"""
"""The stated effect of each row (simulated until its hypothesis is confirmed, then live), live sums, and the reason."""


def lesson_id(row: Mapping[str, Any]) -> str:
    """Return the entry id of a hypothesis (a row of HYPOTHESIS_SCHEMA) once it is confirmed."""
    situation = Structure("pattern", **{n: row[n] for n in SITUATED})
    return lesson_entry_id(row["golem_id"], situation, row["change"])


def acting_sign(change: str, sign: int) -> int:
    """Return the effect of re-centring by a hypothesis: 1 for a gain, -1 for a loss, 0 if none is stated.

    A higher threshold that pays speaks against re-centring; a lower one that pays speaks for it.
    """
    return sign * {"threshold_higher": -1, "threshold_lower": 1}.get(change, 0)


def revision_of(row: Mapping[str, Any], confidence_ppm: int) -> str | None:
    """Describe the staged revision of the playbook that a hypothesis (HYPOTHESIS_SCHEMA) makes; None without one."""
    effect = acting_sign(row["change"], row["sign"]) if row["state"] == "confirmed" else 0
    if not effect:
        return None
    edge = "down to the lower" if effect > 0 else "up to the upper"
    where = f"{row['regime']}, {row['anomaly_band']}, gas {row['gas_band']}"
    return f"rebalanceThreshold moves {100 * confidence_ppm / PPM:.0f} % of the way {edge} edge of the band ({where})"


def _identity(rows: pa.Table, mean_ppm: Sequence[int]) -> dict[str, Any]:
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
        name: pa.array(values, log.DECISION_SCHEMA.field(name).type).take(take) for name, values in named.items()
    }
    effects = zip(place.tolist(), rows["sign"].to_pylist(), mean_ppm, strict=True)
    columns["text"] = [text_of(situations[i], lessons[i].cause or "", sign, mean) for i, sign, mean in effects]
    return columns


_HISTORY = """
    with counted as (
        select *,
            max("at") filter (operation = 'confirmed') over whole as confirmed_at,
            max(cycle) filter (operation = 'confirmed') over whole as confirmed_cycle,
            max(confidence_ppm) filter (operation = 'confirmed') over whole as confirmed_ppm,
            confirmed_at is null or count(*) filter (operation = 'confirmed') over so_far > 0 as is_confirmed,
            max("at") filter (operation in ('confirmed', 'reinforced')) over so_far as last_validated_at,
            count(*) filter (operation = 'reinforced') over so_far as reinforced,
            count(*) filter (operation = 'contradicted') over so_far as contradicted
        from events
        window whole as (partition by hypothesis_id), so_far as (partition by hypothesis_id order by cycle, seq)
    )
    select coalesce(validations, 0) + reinforced as validations,
        coalesce(contradictions, 0) + contradicted as contradictions,
        if(is_confirmed, coalesce(confirmed_cycle, created_cycle), 0) as created_cycle,
        if(is_confirmed, coalesce(confirmed_ppm, confidence_origin_ppm), 0) as confidence_origin_ppm,
        if(is_confirmed, coalesce(confirmed_at, created_at), begun_at) as created_at,
        if(is_confirmed, coalesce(last_validated_at, validated_at), begun_at) as validated_at
    from counted left join earlier on counted.entry_id = earlier.entry_id and confirmed_at is null
    order by "row"
"""
"""A hypothesis is confirmed once: by one of the given events, or earlier, and then its lesson is in `earlier`."""


def _history(rows: pa.Table, entries: pa.Array, before: pa.Table) -> dict[str, Any]:
    """Return votes, creation and last validation of each row's entry, counting on from the lessons in `before`."""
    names = ["hypothesis_id", "cycle", "seq", "at", "operation", "begun_at", "confidence_ppm"]
    events = rows.select(names).append_column("entry_id", entries)
    events = events.append_column("row", pa.array(np.arange(rows.num_rows)))
    earlier = ["entry_id", "validations", "contradictions", "created_cycle", "confidence_origin_ppm", "created_at"]
    history = query_tables(_HISTORY, events=events, earlier=before.select([*earlier, "validated_at"]))
    assert not history["created_at"].null_count, "a hypothesis confirmed earlier is among the lessons"
    return {name: history[name] for name in history.column_names}


def _apply_orders(decisions: pa.Table, hypotheses: Column, orders: Sequence[Order], policy: Policy) -> pa.Table:
    """Apply orders to decisions of dreams (DECISION_SCHEMA), dropping the decisions that an order overrides.

    hypotheses: hypothesis id of each row. An order counts if the entry is active when its cycle closes. After a
    retraction, later decisions of the same hypothesis are dropped. A pinned entry is not pruned.
    """
    orders_of: dict[tuple[str, str], list[Order]] = {}
    for order in sorted(orders):
        if order.kind in _OPERATIONS:
            orders_of.setdefault((order.golem_id, order.entry_id), []).append(order)
    pairs = zip(decisions["golem_id"].to_pylist(), decisions["entry_id"].to_pylist(), strict=True)
    is_ordered = pa.array([pair in orders_of for pair in pairs], pa.bool_())
    affected = decisions.append_column("hypothesis", hypotheses).filter(is_ordered)
    rows = affected.sort_by([(n, "ascending") for n in ("golem_id", "entry_id", "cycle", "seq")]).to_pylist()
    new_rows: list[Row] = []
    for pair, entry_rows in groupby(rows, key=lambda row: (row["golem_id"], row["entry_id"])):
        new_rows += _merge_orders(list(entry_rows), orders_of[pair], policy)
    merged = pa.Table.from_pylist(new_rows, schema=log.DECISION_SCHEMA)
    return pa.concat_tables([decisions.filter(pc.invert(is_ordered)), merged])


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
    entry = pa.Table.from_pylist([row], schema=log.DECISION_SCHEMA)
    at_us = pa.scalar(order.at, log.DECISION_SCHEMA.field("at").type).cast(pa.int64()).as_py()
    now, operation = int(confidence_of(entry, at_us, policy.decay)[0]), _OPERATIONS[order.kind]
    changed: Row = {
        "cycle": order.cycle(policy.curator.cycle_ticks), "seq": _ORDER_SEQ + order.number, "at": order.at,
        "operation": log.OPERATIONS[operation], "reason": f"{log.REASONS[operation]}: {order.why}",
        "confidence_before_ppm": now, "cause_ticks": [], "cause_event": order.event_id,
        "pinned_ppm": max(now, 1) if operation == log.PINNED else 0,
    }  # fmt: skip
    if operation == log.UNPINNED:
        changed |= {"confidence_ppm": now, "anchor_at": order.at}
    if operation == log.RETRACTED:
        changed["status"] = "retracted"
    return row | changed
