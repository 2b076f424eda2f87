"""Records of thought: what only a golem that thinks leaves, from its workspace to the outcome. Pure. Source: HB S6."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.events.record.model import PROBES, REGIMES, TIERS
from bardo_pipeline.grimoire.entries import ENTRY_KINDS
from bardo_pipeline.heartbeat.decide import ACTIONS, BLOCKED, DEFERRED, EXECUTED, STATUS, WHY
from bardo_pipeline.heartbeat.records.arrow_builders import (
    absent,
    empty_lists,
    flag,
    joined,
    listed,
    percent,
    real,
    same,
    scattered,
    struct,
    whole,
    word,
)
from bardo_pipeline.heartbeat.records.chunk_rows import Rows, kind, owing

TOOLS = (None, "uniswap_v3_rebalance", "uniswap_v3_mint", "uniswap_v3_burn", "uniswap_v3_collect")
MODELS = (None, "rules-1/fast", "rules-1/full")


def thought(rows: Rows) -> dict[str, pa.Array]:
    """Everything that only a thinking golem leaves: context, retrieval, deliberation, actions, outcome."""
    count, thinking = rows.count, rows.thinking
    where = np.flatnonzero(thinking)
    names = (
        "context_bundle_summary",
        "retrieved_entries",
        "deliberation",
        "actions",
        "outcome",
        "somatic_markers_fired",
    )
    if not len(where):
        return {n: empty_lists(kind(n), count) if pa.types.is_list(kind(n)) else absent(kind(n), count) for n in names}
    action, status = rows.of("choice_action", where), rows.of("choice_status", where)
    recalled = rows.of("choice_recalled", where)
    back = np.full(count, -1, np.int64)
    back[where] = np.arange(len(where))
    retrieved, felt = _retrieved(rows, where, recalled)
    return {
        "context_bundle_summary": scattered(_context(rows, where, recalled), back),
        "retrieved_entries": listed(
            kind("retrieved_entries"), _spread(count, where, (recalled >= 0).sum(axis=1)), retrieved
        ),
        "somatic_markers_fired": felt,
        "deliberation": scattered(_deliberation(rows, where, action), back),
        "actions": listed(kind("actions"), _spread(count, where, action > 0), _actions(rows, where, action, status)),
        "outcome": scattered(_outcome(rows, where, action, status), back),
    }


def _spread(count: int, where: np.ndarray, values: np.ndarray) -> np.ndarray:
    out = np.zeros(count, np.int64)
    out[where] = values
    return out


def _retrieved(rows: Rows, where: np.ndarray, recalled: np.ndarray) -> tuple[pa.Array, pa.Array]:
    """Retrieved entries, and the somatic markers among them: rules that pull at the golem in exactly this situation."""
    recall = rows.chunk.recall
    pick = (recalled >= 0).reshape(-1)
    entry = recalled.reshape(-1)[pick]
    column = {
        n: rows.of(f"choice_{n}", where).reshape(-1)[pick]
        for n in ("score", "likeness", "recency", "importance", "affect")
    }
    ids = word(pa.array(recall.names.ids, pa.string()), recall.code[entry])
    values = struct(
        kind("retrieved_entries").value_type,
        {
            "entry_id": ids,
            "kind": word(ENTRY_KINDS, recall.kind[entry]),
            "score": real(column["score"]),
            "semantic": real(column["likeness"]),
            "recency": real(column["recency"]),
            "importance": real(column["importance"]),
            "affect": real(column["affect"]),
        },
    )
    fires = (column["likeness"] >= 1.0 - 1e-9) & (recall.sign[entry] != 0)
    owner = np.repeat(where, (recalled >= 0).sum(axis=1))[fires]
    regime = word(REGIMES, rows.chunk.tape.regime[rows.t[owner]])
    markers = struct(
        kind("somatic_markers_fired").value_type,
        {
            "entry_id": ids.filter(pa.array(fires)),
            "situation": joined(regime, same(", the situation of a rule", len(owner), pa.string())),
            "valence": real(recall.sign[entry[fires]] * recall.confidence[entry[fires]] / 1e6),
        },
    )
    return values, listed(kind("somatic_markers_fired"), np.bincount(owner, minlength=rows.count), markers)


def _context(rows: Rows, where: np.ndarray, recalled: np.ndarray) -> pa.Array:
    """The workspace by category: what was observed, open positions and entries where there are any."""
    total, entries = rows.of("choice_input_tokens", where), (recalled >= 0).sum(axis=1)
    held = rows.of("open", where) + owing(rows)[where]
    cost = rows.chunk.policy.cost
    position_tokens, entry_tokens = cost.position_tokens * held, cost.entry_tokens * entries
    items = np.stack([np.full(len(where), len(PROBES)), held, entries], axis=1)
    tokens = np.stack([total - entry_tokens - position_tokens, position_tokens, entry_tokens], axis=1)
    pick = (items > 0).reshape(-1)
    wanted = kind("context_bundle_summary").field("categories").type
    names = word(("observation", "positions", "grimoire"), np.tile(np.arange(3), len(where))[pick])
    parts = {"category": names, "items": whole(items.reshape(-1)[pick]), "tokens": whole(tokens.reshape(-1)[pick])}
    categories = listed(wanted, (items > 0).sum(axis=1), struct(wanted.value_type, parts))
    return struct(kind("context_bundle_summary"), {"categories": categories, "tokens": whole(total)})


def _deliberation(rows: Rows, where: np.ndarray, action: np.ndarray) -> pa.Array:
    tier = rows.of("tier", where)
    count = len(where)
    wanted = kind("deliberation")
    calls = wanted.field("tool_calls").type
    acts = np.flatnonzero(action > 0)
    call = struct(calls.value_type, {"tool": word(TOOLS, action[acts]), "action_type": word(ACTIONS, action[acts])})
    score, limit = rows.of("score", where), rows.of("choice_threshold", where)
    summary = joined(
        same("anomaly ", count, pa.string()),
        percent(score),
        word((" is below", " reaches"), (score >= limit).astype(np.int64)),
        same(" the playbook's ", count, pa.string()),
        percent(limit),
        same("; decision: ", count, pa.string()),
        word(ACTIONS, action),
    )
    return struct(
        wanted,
        {
            "model": word(MODELS, tier),
            "tier": word(TIERS, tier),
            "input_tokens": whole(rows.of("choice_input_tokens", where)),
            "output_tokens": whole(rows.of("choice_output_tokens", where)),
            "cache_read_tokens": pa.nulls(count, pa.int64()),
            "reasoning_summary": summary,
            "tool_calls": listed(calls, (action > 0).astype(np.int64), call),
            "decision": word(ACTIONS, action),
            "confidence": real(rows.of("choice_certainty", where)),
            "latency_ms": pa.nulls(count, pa.int64()),
            "cost_micros": whole(rows.of("choice_cost_micros", where)),
            "recommends_action": flag(action > 0),
        },
    )


def _actions(rows: Rows, where: np.ndarray, action: np.ndarray, status: np.ndarray) -> pa.Array:
    acts = np.flatnonzero(action > 0)
    at = where[acts]
    done = status[acts] == EXECUTED
    sent = done | (status[acts] == STATUS.index("reverted"))
    ticks = whole(rows.of("tick", at)).cast(pa.string())
    permit = joined(
        same("permit-", len(acts), pa.string()), rows.ids.take(pa.array(at)), same("-", len(acts), pa.string()), ticks
    )
    why, blocker = rows.of("choice_why", at), rows.of("choice_blocker", at)
    reason = word(WHY, why)
    recall, warned = rows.chunk.recall, blocker >= 0
    if warned.any():
        named = joined(
            reason,
            same(": ", len(acts), pa.string()),
            word(pa.array(recall.names.ids, pa.string()), np.where(warned, recall.code[blocker], -1)),
        )
        reason = pc.if_else(pa.array(warned), named, reason)
    return struct(
        kind("actions").value_type,
        {
            "action_type": word(ACTIONS, action[acts]),
            "tool_name": word(TOOLS, action[acts]),
            "permit_id": pc.if_else(pa.array(sent), permit, pa.scalar(None, pa.string())),
            "tx_hash": pa.nulls(len(acts), pa.string()),
            "status": word(STATUS, status[acts]),
            "block_reason": reason,
            "gas_cost_micros": whole(rows.of("choice_gas_micros", at)),
            "slippage_ppm": whole(rows.of("choice_slip_ppm", at), missing=~done),
            "value_micros": whole(rows.of("choice_moved_micros", at)),
        },
    )


def _outcome(rows: Rows, where: np.ndarray, action: np.ndarray, status: np.ndarray) -> pa.Array:
    """What acting cost, verified against the trace; null where nothing was sent."""
    sent = (action > 0) & ~np.isin(status, (BLOCKED, DEFERRED))
    count = len(where)
    slip, expected = rows.of("choice_slip_ppm", where), rows.of("choice_expected_slip_ppm", where)
    moved, gas = rows.of("choice_swap_micros", where), rows.of("choice_gas_micros", where)
    ok = status == EXECUTED
    loss = -(gas + np.where(ok, moved * slip // 1_000_000, 0))
    return struct(
        kind("outcome"),
        {
            "verified": flag(np.ones(count, bool)),
            "expected": joined(
                word(ACTIONS, action),
                same(" slips about ", count, pa.string()),
                whole(expected).cast(pa.string()),
                same(" ppm", count, pa.string()),
            ),
            "actual": joined(
                word(("reverted: slippage above the limit; ", ""), ok.astype(np.int64)),
                same("slipped ", count, pa.string()),
                whole(slip).cast(pa.string()),
                same(" ppm", count, pa.string()),
            ),
            "pnl_impact_micros": whole(loss),
            "ground_truth_source": same("trace", count, pa.string()),
            "cause_variable": pa.nulls(count, pa.string()),
            "effect_variable": pa.nulls(count, pa.string()),
        },
        missing=~sent,
    )
