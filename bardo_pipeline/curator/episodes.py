"""Episodes: notable records, each with a text for search. Pure, set-based over columns.

Texts use bands instead of numbers, so that similar moments have equal texts and share a vector.
Source: canon 13, 14; MEM (episodic capture).
"""

from __future__ import annotations

import math
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Float64Array, Int64Array
from bardo_pipeline.clock import micros_of
from bardo_pipeline.curator.state.evidence import is_episode, is_verified
from bardo_pipeline.events.record.arrow_columns import all_nullable, all_required, contiguous, listed, required
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.confidence import DAY_US
from bardo_pipeline.grimoire.entries import MOMENT
from bardo_pipeline.grimoire.entry_text import REGIME_WORDS
from bardo_pipeline.policy import DecayPolicy, Policy

IMPORTANCE_TIERS = ("routine", "notable", "critical", "emergency")

EPISODE_SCHEMA = pa.schema(
    [
        *all_required(pa.string(), "episode_id", "golem_id"),
        *all_required(pa.int64(), "tick", "cycle"),
        required("at", MOMENT),
        *all_required(pa.string(), "chain", "protocol", "pair", "regime", "tier"),
        *all_nullable(pa.string(), "action_type", "action_status"),
        *all_nullable(pa.int64(), "value_micros", "gas_cost_micros", "pnl_impact_micros"),
        *all_required(pa.float64(), "curiosity", "importance"),
        required("importance_tier", pa.string()),
        required("may_go_at", MOMENT),
        *all_required(pa.float64(), "pleasure", "arousal", "dominance"),
        required("verified", pa.bool_()),
        *all_required(pa.string(), "text", "text_hash", "embedder"),
        listed("vector", pa.float32()),
    ]
)
"""One row per episode; its id "golem:tick" names its record.

importance: [0, 1]. curiosity: prediction error. may_go_at: time from which its retention is below the policy's minimum.
*_micros: micro-dollars. vector: embedding of the text by `embedder`, L2-normalised."""

EPISODE_COLUMNS = (
    "golem_id", "tick", "observed_at", "observation", "regime", "tier", "prediction_error", "prediction_error_sources",
    "actions", "anomalies", "outcome", "pad_after", "primary_emotion", "dream_tag",
)  # fmt: skip
"""Columns of a record that `episodes_of` reads."""

_LAST_US = micros_of(datetime.max.replace(tzinfo=UTC))
TEXT_FIELDS = ("text_hash", "embedder", "vector")
ACTION_TEXT = {
    "rebalance": "re-centred the position",
    "add_liquidity": "opened a position",
    "remove_liquidity": "left the market",
    "collect_fees": "collected fees",
    "borrow": "took a loan",
    "repay": "paid back a part of its loan",
    "liquidated": "was liquidated",
}
STATUS_TEXT = {
    "executed": "",
    "blocked": "wanted but was stopped: ",
    "deferred": "put off: ",
    "reverted": "failed on inclusion: ",
}
PROBE_TEXT = {
    "price_delta": "the price jumped",
    "tvl_change": "liquidity moved",
    "position_health": "the position ran out of range",
    "gas_price": "gas spiked",
    "credit_balance": "credits ran low",
    "rsi_macd": "momentum was extreme",
    "circuit_breaker": "net worth fell hard",
    "kill_switch": "the kill switch was thrown",
    "pheromone_threat": "peers signalled a threat",
    "homeostatic_deviation": "its own habits broke",
    "world_model_drift": "its forecasts failed",
    "causal_graph": "a causal link broke",
}


def episodes_of(records: pa.Table, cycle: Int64Array, policy: Policy) -> pa.Table:
    """Return the episodes among records (EPISODE_COLUMNS) as EPISODE_SCHEMA without TEXT_FIELDS."""
    notable = is_episode(records)
    records, cycle = records.filter(pa.array(notable)).combine_chunks(), cycle[notable]
    observation, pad = contiguous(records.column("observation")), contiguous(records.column("pad_after"))
    first = _first_action(records)
    pnl = pc.struct_field(contiguous(records.column("outcome")), "pnl_impact_micros")
    importance = _importance(pnl, pc.struct_field(observation, "net_asset_value_micros"), policy)
    tier = _tier(importance, policy)
    tick = pc.cast(records.column("tick"), pa.string())
    parts = {
        "episode_id": pc.binary_join_element_wise(records.column("golem_id"), tick, ":"),
        **{n: records.column(n) for n in ("golem_id", "tick", "regime", "tier")},
        "cycle": pa.array(cycle),
        "at": records.column("observed_at"),
        **{n: pc.struct_field(observation, n) for n in ("chain", "protocol", "pair")},
        **{n: first[n] for n in ("action_type", "value_micros", "gas_cost_micros")},
        "action_status": first["status"],
        "pnl_impact_micros": pnl,
        "curiosity": records.column("prediction_error"),
        "importance": pa.array(importance),
        "importance_tier": pa.array(IMPORTANCE_TIERS).take(pa.array(tier)),
        "may_go_at": _may_go_at(records.column("observed_at"), tier, policy.decay),
        **{n: pc.struct_field(pad, n) for n in ("pleasure", "arousal", "dominance")},
        "verified": pa.array(is_verified(records)),
        "text": _texts(records, first),
    }
    names = [n for n in EPISODE_SCHEMA.names if n not in TEXT_FIELDS]
    return pa.table({n: parts[n] for n in names}, schema=pa.schema([EPISODE_SCHEMA.field(n) for n in names]))


def _first_action(records: pa.Table) -> dict[str, pa.Array]:
    lists = contiguous(records.column("actions"))
    offsets = lists.offsets.to_numpy().astype(np.int64)
    empty = np.diff(offsets) == 0
    values = lists.values
    at = pa.array(np.where(empty, 0, offsets[:-1]), mask=empty)
    if not len(values):
        return {f.name: pa.nulls(len(lists), f.type) for f in values.type}
    return {f.name: pc.struct_field(values, f.name).take(at) for f in values.type}


def _importance(pnl: pa.Array, worth: pa.Array, policy: Policy) -> Float64Array:
    """Return abs(PnL) over 2 % of the balance, capped at 1; 0 without PnL (canon 14)."""
    change = np.abs(pc.fill_null(pnl, 0).to_numpy(zero_copy_only=False))
    balance = np.maximum(worth.to_numpy(zero_copy_only=False), 1)
    return np.minimum(change / (policy.episode.importance_balance_share * balance), 1.0)


def _tier(importance: Float64Array, policy: Policy) -> Int64Array:
    edges = np.array([policy.episode.notable, policy.episode.critical, policy.episode.emergency])
    return np.searchsorted(edges, importance, side="right")


def importance_tiers(pnl: pa.Array, worth: pa.Array, policy: Policy) -> pa.Array:
    """Return the importance tier of each record. pnl (null for none), worth: micro-dollars."""
    return pa.array(IMPORTANCE_TIERS).take(pa.array(_tier(_importance(pnl, worth, policy), policy)))


def _may_go_at(at: pa.ChunkedArray, tier: Int64Array, policy: DecayPolicy) -> pa.Array:
    """Return when retention exp(-t/S) falls below its minimum: S ln(1 / minimum) later, at most year 9999 (TOOLS)."""
    e_folds = -math.log(policy.episode_retention_min) if policy.episode_retention_min else math.inf
    strength_days = [policy.routine_days, policy.notable_days, policy.critical_days, policy.emergency_days]
    wait = np.array([math.ceil(min(s * e_folds * DAY_US, float(_LAST_US))) for s in strength_days], dtype=np.int64)
    return pa.array(np.minimum(contiguous(at).cast(pa.int64()).to_numpy() + wait[tier], _LAST_US)).cast(MOMENT)


def _texts(records: pa.Table, first: dict[str, pa.Array]) -> pa.Array:
    """Return a sentence per episode: regime, pair, protocol, surprise, anomalies, mood, action."""
    regime = _worded(records.column("regime"), {r: f"In {REGIME_WORDS[r]}" for r in REGIMES})
    observation = contiguous(records.column("observation"))
    protocol, pair = (pc.struct_field(observation, name) for name in ("protocol", "pair"))
    scene = pc.binary_join_element_wise(regime, " with ", pair, " on ", protocol, "")
    anomalies = _anomaly_words(records)
    status = _worded(pc.fill_null(first["status"], "executed"), STATUS_TEXT)
    action = _worded(pc.fill_null(first["action_type"], "-"), ACTION_TEXT | {"-": "held"})
    surprise = pc.if_else(pc.greater_equal(records.column("prediction_error"), 0.6), ", a great surprise", "")
    mood = records.column("primary_emotion")
    return pc.binary_join_element_wise(
        scene, surprise, anomalies, ", feeling ", mood, ", the golem ", status, action, ".", ""
    )


def _anomaly_words(records: pa.Table) -> pa.Array:
    """Return the words of each record's anomalous probes; equal sets of probes give equal words."""
    lists = contiguous(records.column("anomalies"))
    offsets = lists.offsets.to_numpy().astype(np.int64)
    probe = pc.struct_field(lists.values, "probe") if len(lists.values) else pa.array([], pa.string())
    names = list(PROBE_TEXT)
    code = pc.index_in(probe, value_set=pa.array(names)).to_numpy(zero_copy_only=False).astype(np.int64)
    bits = np.zeros(len(lists), np.int64)
    np.bitwise_or.at(bits, np.repeat(np.arange(len(lists)), np.diff(offsets)), 1 << code[offsets[0] : offsets[-1]])
    unique, inverse = np.unique(bits, return_inverse=True)
    words = ["".join(f", {PROBE_TEXT[n]}" for i, n in enumerate(names) if mask >> i & 1) for mask in unique.tolist()]
    return pa.array(words, pa.string()).take(pa.array(inverse)) if words else pa.array([], pa.string())


def _worded(codes: pa.Array | pa.ChunkedArray, words: dict[str, str]) -> pa.Array:
    """Return each code's words, or the code itself if it has none."""
    encoded = contiguous(codes).dictionary_encode()
    table = pa.array([words.get(w, w) for w in encoded.dictionary.to_pylist()], pa.string())
    return table.take(encoded.indices)
