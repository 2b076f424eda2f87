"""Record fields of deliberating golems: context, retrieval, deliberation, actions, outcome. Pure. Source: HB S6."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.events.record.model import PROBES, REGIMES, TIERS
from bardo_pipeline.events.record.upcast import absent
from bardo_pipeline.grimoire.entries import ENTRY_KINDS
from bardo_pipeline.heartbeat.decide import ACTIONS, BLOCKED, DEFERRED, EXECUTED, STATUS, WHY
from bardo_pipeline.heartbeat.records.arrow_builders import (
    booleans,
    concat_text,
    empty_lists,
    floats,
    integers,
    list_array,
    percent,
    scattered,
    struct,
    text_of,
)
from bardo_pipeline.heartbeat.records.chunk_rows import Rows, lists_of, loan_counts, record_type

TOOLS = (None, "uniswap_v3_rebalance", "uniswap_v3_mint", "uniswap_v3_burn", "uniswap_v3_collect")
MODELS = (None, "rules-1/fast", "rules-1/full")
_FACTORS = ("score", "likeness", "recency", "importance", "affect")


def thought(rows: Rows) -> dict[str, pa.Array]:
    """Build the fields that only deliberating golems fill; empty or null in all other rows."""
    count, thinking = rows.count, rows.thinking
    where = np.flatnonzero(thinking)
    if not len(where):
        structs = ("context_bundle_summary", "deliberation", "outcome")
        lists = ("retrieved_entries", "actions", "somatic_markers_fired")
        fields = {name: absent(record_type(name), count) for name in structs}
        return fields | {name: empty_lists(record_type(name), count) for name in lists}
    action, status = rows.of("choice_action", where), rows.of("choice_status", where)
    recalled = rows.of("choice_recalled", where)
    place = np.full(count, -1, np.int64)
    place[where] = np.arange(len(where))
    retrieved, markers = _retrieved(rows, where, recalled)
    entry_counts, action_counts = np.zeros((2, count), np.int64)
    entry_counts[where], action_counts[where] = (recalled >= 0).sum(axis=1), action > 0
    return {
        "context_bundle_summary": scattered(_context(rows, where, recalled), place),
        "retrieved_entries": list_array(record_type("retrieved_entries"), entry_counts, retrieved),
        "somatic_markers_fired": markers,
        "deliberation": scattered(_deliberation(rows, where, action), place),
        "actions": list_array(record_type("actions"), action_counts, _actions(rows, where, action, status)),
        "outcome": scattered(_outcome(rows, where, action, status), place),
    }


def _retrieved(rows: Rows, where: Int64Array, recalled: Int64Array) -> tuple[pa.Array, pa.Array]:
    """Build retrieved entries and somatic markers: retrieved rules about exactly the golem's situation."""
    recall = rows.chunk.recall
    counts = (recalled >= 0).sum(axis=1)
    pick = (recalled >= 0).reshape(-1)
    entry = recalled.reshape(-1)[pick]
    column = {name: rows.of(f"choice_{name}", where).reshape(-1)[pick] for name in _FACTORS}
    ids = rows.entry_ids(recall.code[entry])
    values = struct(
        record_type("retrieved_entries").value_type,
        {"entry_id": ids, "kind": text_of(ENTRY_KINDS, recall.kind[entry]), "semantic": floats(column["likeness"])}
        | {name: floats(values) for name, values in column.items() if name != "likeness"},
    )
    fires = (column["likeness"] >= 1.0 - 1e-9) & (recall.sign[entry] != 0)
    owner = np.repeat(where, counts)[fires]
    regime = text_of(REGIMES, rows.chunk.tape.regime[rows.t[owner]])
    markers = {
        "entry_id": ids.filter(pa.array(fires)),
        "situation": concat_text(regime, ", the situation of a rule"),
        "valence": floats(recall.sign[entry[fires]] * recall.confidence[entry[fires]] / 1e6),
    }
    return values, lists_of("somatic_markers_fired", np.bincount(owner, minlength=rows.count), markers)


def _context(rows: Rows, where: Int64Array, recalled: Int64Array) -> pa.Array:
    """Build items and tokens by category: observation, and positions and entries if there are any."""
    total, entries = rows.of("choice_input_tokens", where), (recalled >= 0).sum(axis=1)
    held = rows.of("open", where) + loan_counts(rows)[where]
    cost = rows.chunk.policy.cost
    position_tokens, entry_tokens = cost.position_tokens * held, cost.entry_tokens * entries
    items = np.stack([np.full(len(where), len(PROBES)), held, entries], axis=1)
    tokens = np.stack([total - entry_tokens - position_tokens, position_tokens, entry_tokens], axis=1)
    pick = (items > 0).reshape(-1)
    wanted = record_type("context_bundle_summary").field("categories").type
    names = text_of(("observation", "positions", "grimoire"), np.tile(np.arange(3), len(where))[pick])
    parts = {
        "category": names,
        "items": integers(items.reshape(-1)[pick]),
        "tokens": integers(tokens.reshape(-1)[pick]),
    }
    categories = list_array(wanted, (items > 0).sum(axis=1), struct(wanted.value_type, parts))
    return struct(record_type("context_bundle_summary"), {"categories": categories, "tokens": integers(total)})


def _deliberation(rows: Rows, where: Int64Array, action: Int64Array) -> pa.Array:
    tier = rows.of("tier", where)
    type_ = record_type("deliberation")
    calls = type_.field("tool_calls").type
    acts = np.flatnonzero(action > 0)
    call = struct(
        calls.value_type, {"tool": text_of(TOOLS, action[acts]), "action_type": text_of(ACTIONS, action[acts])}
    )
    score, limit = rows.of("score", where), rows.of("choice_threshold", where)
    summary = concat_text(
        "anomaly ",
        percent(score),
        text_of((" is below", " reaches"), (score >= limit).astype(np.int64)),
        " the playbook's ",
        percent(limit),
        "; decision: ",
        text_of(ACTIONS, action),
    )
    return struct(
        type_,
        {
            "model": text_of(MODELS, tier),
            "tier": text_of(TIERS, tier),
            "input_tokens": integers(rows.of("choice_input_tokens", where)),
            "output_tokens": integers(rows.of("choice_output_tokens", where)),
            "reasoning_summary": summary,
            "tool_calls": list_array(calls, (action > 0).astype(np.int64), call),
            "decision": text_of(ACTIONS, action),
            "confidence": floats(rows.of("choice_certainty", where)),
            "cost_micros": integers(rows.of("choice_cost_micros", where)),
            "recommends_action": booleans(action > 0),
        },
    )


def _actions(rows: Rows, where: Int64Array, action: Int64Array, status: Int64Array) -> pa.Array:
    acts = np.flatnonzero(action > 0)
    at = where[acts]
    done = status[acts] == EXECUTED
    sent = done | (status[acts] == STATUS.index("reverted"))
    ticks = rows.text("tick", at)
    permit = concat_text("permit-", rows.golem_ids(at), "-", ticks)
    why, blocker = rows.of("choice_why", at), rows.of("choice_blocker", at)
    reason = text_of(WHY, why)
    recall, warned = rows.chunk.recall, blocker >= 0
    if warned.any():
        named = concat_text(reason, ": ", rows.entry_ids(np.where(warned, recall.code[blocker], -1)))
        reason = pc.if_else(pa.array(warned), named, reason)
    return struct(
        record_type("actions").value_type,
        {
            "action_type": text_of(ACTIONS, action[acts]),
            "tool_name": text_of(TOOLS, action[acts]),
            "permit_id": pc.if_else(pa.array(sent), permit, pa.scalar(None, pa.string())),
            "status": text_of(STATUS, status[acts]),
            "block_reason": reason,
            "gas_cost_micros": integers(rows.of("choice_gas_micros", at)),
            "slippage_ppm": integers(rows.of("choice_slip_ppm", at), missing=~done),
            "value_micros": integers(rows.of("choice_moved_micros", at)),
        },
    )


def _outcome(rows: Rows, where: Int64Array, action: Int64Array, status: Int64Array) -> pa.Array:
    """Build the cost of acting, verified against the trace; null if no transaction was sent."""
    sent = (action > 0) & ~np.isin(status, (BLOCKED, DEFERRED))
    slip, expected = rows.of("choice_slip_ppm", where), rows.of("choice_expected_slip_ppm", where)
    moved, gas = rows.of("choice_swap_micros", where), rows.of("choice_gas_micros", where)
    executed = status == EXECUTED
    loss = -(gas + np.where(executed, moved * slip // 1_000_000, 0))
    return struct(
        record_type("outcome"),
        {
            "verified": True,
            "expected": concat_text(
                text_of(ACTIONS, action), " slips about ", integers(expected).cast(pa.string()), " ppm"
            ),
            "actual": concat_text(
                text_of(("reverted: slippage above the limit; ", ""), executed.astype(np.int64)),
                "slipped ",
                integers(slip).cast(pa.string()),
                " ppm",
            ),
            "pnl_impact_micros": integers(loss),
            "ground_truth_source": "trace",
        },
        missing=~sent,
    )
