"""Records: a chunk of ticks becomes DecisionCycleRecords, whole columns at a time. Pure.

Rows are golem-major: all ticks of one golem stand together, which is how they are read again. Source: HB S6.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.events.record import EMOTIONS, PHASES, PROBES, REGIMES, SCHEMA_VERSION, TIERS
from bardo_pipeline.events.schema import RECORD_SCHEMA
from bardo_pipeline.grimoire.entries import ENTRY_KINDS
from bardo_pipeline.heartbeat.buffers import Buffers
from bardo_pipeline.heartbeat.choose import ACTIONS, BLOCKED, DEFERRED, EXECUTED, STATUS, WHY
from bardo_pipeline.heartbeat.columns import (
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
from bardo_pipeline.heartbeat.gate import FORCES, gating_reasons
from bardo_pipeline.heartbeat.probes import HIGH, detail_arrow
from bardo_pipeline.heartbeat.recall import Recall
from bardo_pipeline.heartbeat.tape import Tape
from bardo_pipeline.policy import Policy

SEVERITIES = ("none", "low", "high")
QUANTITIES = ("price", "gas", "health")
TOOLS = (None, "uniswap_v3_rebalance", "uniswap_v3_mint", "uniswap_v3_burn", "uniswap_v3_collect")
MODELS = (None, "rules-1/fast", "rules-1/full")
PROBE_NAMES = pa.array(PROBES)


@dataclass(frozen=True)
class Chunk:
    """What a stretch of ticks needs to become records."""

    out: Buffers
    tape: Tape
    start: int
    golem_ids: list[str]
    recall: Recall
    derivation_id: str | None
    policy: Policy
    mutations: pa.Array | None = None
    interventions: pa.Array | None = None


def kind(name: str) -> pa.DataType:
    """Arrow type of one part of a record."""
    return RECORD_SCHEMA.field(name).type


class _Rows:
    """The living rows of a chunk, and how to read a column at them."""

    def __init__(self, chunk: Chunk) -> None:
        self.chunk, self.out = chunk, chunk.out
        self.at = np.flatnonzero(chunk.out.columns["alive"].reshape(-1))
        self.golem, self.column = np.divmod(self.at, chunk.out.ticks)
        self.t = chunk.start + self.column
        self.count = len(self.at)
        self.ids = pa.array(chunk.golem_ids, pa.string()).take(pa.array(self.golem))
        self.thinking = np.isin(self["tier"], (1, 2))

    def __getitem__(self, name: str) -> np.ndarray:
        return self.out.flat(name, self.at)

    def of(self, name: str, where: np.ndarray) -> np.ndarray:
        return self.out.flat(name, self.at[where])

    def has(self, name: str) -> bool:
        return name in self.out.columns


def records_of(chunk: Chunk) -> pa.Table:
    """The chunk's records: RECORD_SCHEMA, one row per golem and tick lived."""
    rows = _Rows(chunk)
    tape, t, count = chunk.tape, rows.t, rows.count
    regime = word(REGIMES, tape.regime[t])
    parts: dict[str, pa.Array] = {
        "schema_version": same(SCHEMA_VERSION, count, pa.int64()),
        "golem_id": rows.ids,
        "tick": whole(rows["tick"]),
        "observed_at": whole(tape.at_us[t]).cast(kind("observed_at")),
        "cycle_seen": whole(rows["cycle_seen"]),
        "derivation_id": same(chunk.derivation_id, count, pa.string()),
        "playbook_version": whole(rows["playbook_version"]),
        "observation": _observation(rows),
        "regime": regime,
        "tick_interval_seconds": whole(tape.interval_seconds[t]),
        **_probes(rows),
        "predictions": _predictions(rows),
        "pad_before": _pad(rows["pad_before"]),
        "pad_after": _pad(rows["pad_after"]),
        "primary_emotion": word(EMOTIONS, rows["emotion"]),
        "prediction_error": real(rows["error"]),
        "prediction_error_sources": _sources(rows),
        "deliberation_threshold": real(rows["threshold"]),
        "tier": word(TIERS, rows["tier"]),
        "forced_by": word(FORCES, rows["forced"]),
        "gating_reason": gating_reasons(rows["error"], rows["threshold"], rows["tier"], rows["forced"]),
        **_thought(rows),
        "resolutions": _resolutions(rows),
        "episodes_written": _episodes(rows),
        "grimoire_mutations": _given(rows, "grimoire_mutations", chunk.mutations),
        "active_interventions": _given(rows, "active_interventions", chunk.interventions),
        "vitality": struct(
            kind("vitality"),
            {n: real(rows["life"][:, i]) for i, n in enumerate(("economic", "epistemic", "stochastic", "composite"))},
        ),
        "phase": word(PHASES, rows["phase"]),
        "credits_micros": whole(rows["credits"]),
        "credit_consumed_micros": whole(rows["consumed"]),
        "cost": struct(
            kind("cost"),
            {
                "inference_micros": whole(rows["inference"]),
                "gas_micros": whole(rows["gas"]),
                "total_micros": whole(rows["inference"] + rows["gas"]),
            },
        ),
    }
    return pa.Table.from_arrays([parts[n] for n in RECORD_SCHEMA.names], schema=RECORD_SCHEMA)


def _given(rows: _Rows, name: str, values: pa.Array | None) -> pa.Array:
    """Lists handed in per (golem, tick) of the whole buffer, or empty ones."""
    return empty_lists(kind(name), rows.count) if values is None else values.take(pa.array(rows.at))


def _pad(values: np.ndarray) -> pa.Array:
    return struct(
        kind("pad_before"), {n: real(values[:, i]) for i, n in enumerate(("pleasure", "arousal", "dominance"))}
    )


def _observation(rows: _Rows) -> pa.Array:
    tape, t, count = rows.chunk.tape, rows.t, rows.count
    market = tape.market
    money, position = rows["money"], rows["position"]
    fixed = {
        n: same(getattr(market, a), count)
        for n, a in (("market", "name"), ("chain",) * 2, ("protocol",) * 2, ("pair",) * 2, ("pool",) * 2)
    }
    return struct(
        kind("observation"),
        {
            **fixed,
            "block_number": pa.nulls(count, pa.int64()),
            **{
                n: real(getattr(tape, n)[t])
                for n in (
                    "price",
                    "price_low",
                    "price_high",
                    "price_return",
                    "sma",
                    "sigma_ratio",
                    "rsi",
                    "macd",
                    "liquidity",
                    "gas_gwei",
                    "gas_hour_ratio",
                )
            },
            "volume_micros": whole(tape.volume_micros[t]),
            "idle_micros": whole(money[:, 0]),
            "net_asset_value_micros": whole(np.rint(rows["nav_seen"])),
            "anomaly_score": real(rows["score"]),
            "positions": _positions(rows, money, position),
        },
    )


def _positions(rows: _Rows, money: np.ndarray, position: np.ndarray) -> pa.Array:
    held = rows["open"]
    where = np.flatnonzero(held)
    count, market = len(where), rows.chunk.tape.market
    wanted = kind("observation").field("positions").type
    opened = whole(money[where, 3]).cast(pa.string())
    values = struct(
        wanted.value_type,
        {
            "position_id": joined(rows.ids.take(pa.array(where)), same("/", count, pa.string()), opened),
            "protocol": same(market.protocol, count, pa.string()),
            "pair": same(market.pair, count, pa.string()),
            "tick_lower": whole(money[where, 1]),
            "tick_upper": whole(money[where, 2]),
            "liquidity": real(position[where, 0]),
            "value_micros": whole(np.rint(rows.of("value", where))),
            "fees_owed_micros": whole(np.floor(position[where, 1])),
            "impermanent_loss_micros": whole(np.rint(rows.of("loss", where))),
            "in_range": flag(rows.of("inside", where)),
            "health_factor": real(rows.of("health", where)),
        },
    )
    return listed(wanted, held.astype(np.int64), values)


def _probes(rows: _Rows) -> dict[str, pa.Array]:
    severity, value, limit = (rows[n].reshape(-1) for n in ("severity", "probe_value", "probe_threshold"))
    code = np.tile(np.arange(len(PROBES)), rows.count)
    said = np.flatnonzero(severity > 0)
    sentences = detail_arrow(code[said], severity[said], value[said], limit[said])
    place = np.full(len(severity), -1, np.int64)
    place[said] = np.arange(len(said))
    detail = word(sentences, place) if len(said) else pa.nulls(len(severity), pa.string())
    names = word(PROBE_NAMES, code)
    results = struct(
        kind("probe_results").value_type,
        {
            "probe": names,
            "severity": word(SEVERITIES, severity),
            "value": real(value),
            "threshold": real(limit),
            "detail": detail,
        },
    )
    high = np.flatnonzero(severity == HIGH)
    anomalies = struct(
        kind("anomalies").value_type,
        {
            "probe": names.take(pa.array(high)),
            "value": real(value[high]),
            "threshold": real(limit[high]),
            "description": detail.take(pa.array(high)),
        },
    )
    each = np.full(rows.count, len(PROBES))
    counts = (rows["severity"] == HIGH).sum(axis=1)
    return {
        "probe_results": listed(kind("probe_results"), each, results),
        "anomalies": listed(kind("anomalies"), counts, anomalies),
    }


def _predictions(rows: _Rows) -> pa.Array:
    resolved = rows["resolved"]
    pick = resolved.reshape(-1)
    expected, half, actual, held = (rows[n].reshape(-1)[pick] for n in ("expected", "half", "actual", "held"))
    values = struct(
        kind("predictions").value_type,
        {
            "quantity": word(QUANTITIES, np.tile(np.arange(3), rows.count)[pick]),
            "expected": real(expected),
            "low": real(expected - half),
            "high": real(expected + half),
            "actual": real(actual),
            "held": flag(held),
        },
    )
    return listed(kind("predictions"), resolved.sum(axis=1), values)


def _sources(rows: _Rows) -> pa.Array:
    values = rows["sources"]
    names = ("price", "regime", "health", "threat", "interventions", "anomalies")
    return struct(kind("prediction_error_sources"), {n: real(values[:, i]) for i, n in enumerate(names)})


def _thought(rows: _Rows) -> dict[str, pa.Array]:
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
        "deliberation": scattered(_deliberation(rows, where, action, status), back),
        "actions": listed(kind("actions"), _spread(count, where, action > 0), _actions(rows, where, action, status)),
        "outcome": scattered(_outcome(rows, where, action, status), back),
    }


def _spread(count: int, where: np.ndarray, values: np.ndarray) -> np.ndarray:
    out = np.zeros(count, np.int64)
    out[where] = values
    return out


def _retrieved(rows: _Rows, where: np.ndarray, recalled: np.ndarray) -> tuple[pa.Array, pa.Array]:
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


def _context(rows: _Rows, where: np.ndarray, recalled: np.ndarray) -> pa.Array:
    """The workspace by category: what was observed, open positions and entries where there are any."""
    total, held, entries = rows.of("choice_input_tokens", where), rows.of("open", where), (recalled >= 0).sum(axis=1)
    cost = rows.chunk.policy.cost
    position_tokens, entry_tokens = cost.position_tokens * held, cost.entry_tokens * entries
    items = np.stack([np.full(len(where), len(PROBES)), held.astype(np.int64), entries], axis=1)
    tokens = np.stack([total - entry_tokens - position_tokens, position_tokens, entry_tokens], axis=1)
    pick = (items > 0).reshape(-1)
    wanted = kind("context_bundle_summary").field("categories").type
    names = word(("observation", "positions", "grimoire"), np.tile(np.arange(3), len(where))[pick])
    parts = {"category": names, "items": whole(items.reshape(-1)[pick]), "tokens": whole(tokens.reshape(-1)[pick])}
    categories = listed(wanted, (items > 0).sum(axis=1), struct(wanted.value_type, parts))
    return struct(kind("context_bundle_summary"), {"categories": categories, "tokens": whole(total)})


def _deliberation(rows: _Rows, where: np.ndarray, action: np.ndarray, status: np.ndarray) -> pa.Array:
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


def _actions(rows: _Rows, where: np.ndarray, action: np.ndarray, status: np.ndarray) -> pa.Array:
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


def _outcome(rows: _Rows, where: np.ndarray, action: np.ndarray, status: np.ndarray) -> pa.Array:
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


def _resolutions(rows: _Rows) -> pa.Array:
    wanted = kind("resolutions")
    if not rows.has("trial_due"):
        return empty_lists(wanted, rows.count)
    due = rows["trial_due"]
    pick = due.reshape(-1)
    column = {
        n: rows[f"trial_{n}"].reshape(-1)[pick]
        for n in ("decision_tick", "chosen_act", "regime", "score", "gas_ratio", "value", "effect_ppm")
    }
    recalled = rows["trial_recalled"].reshape(rows.count * due.shape[1], -1)[pick]
    ids = wanted.value_type.field("retrieved_entry_ids").type
    count = int(pick.sum())
    values = struct(
        wanted.value_type,
        {
            "decision_tick": whole(column["decision_tick"]),
            "action_type": same("rebalance", count, pa.string()),
            "tool_name": same("uniswap_v3_rebalance", count, pa.string()),
            "chosen": word(("hold", "act"), column["chosen_act"]),
            "regime": word(REGIMES, column["regime"]),
            "anomaly_score": real(column["score"]),
            "gas_ratio": real(column["gas_ratio"]),
            "value_micros": whole(np.rint(column["value"])),
            "effect_ppm": whole(column["effect_ppm"]),
            "verified": flag(np.ones(count, bool)),
            "ground_truth_source": same("trace", count, pa.string()),
            "retrieved_entry_ids": listed(
                ids,
                (recalled >= 0).sum(axis=1),
                word(pa.array(rows.chunk.recall.names.ids, pa.string()), recalled[recalled >= 0]),
            ),
        },
    )
    return listed(wanted, due.sum(axis=1), values)


def _episodes(rows: _Rows) -> pa.Array:
    """Id of the episode this record is, for records that are one (canon 13)."""
    odd = (rows["severity"] == HIGH).any(axis=1) | (rows["sources"][:, 1] > 0) | rows.thinking
    where = np.flatnonzero(odd)
    ids = joined(
        rows.ids.take(pa.array(where)),
        same(":", len(where), pa.string()),
        whole(rows.of("tick", where)).cast(pa.string()),
    )
    return listed(kind("episodes_written"), odd.astype(np.int64), ids)
