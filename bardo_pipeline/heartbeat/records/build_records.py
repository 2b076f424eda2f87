"""Builds the DecisionCycleRecords of a chunk of ticks, column by column. Pure.

Rows are sorted by golem, then by tick, because readers read the ticks of one golem. Source: HB S6.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from bardo_pipeline.arrays import Float64Array
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.events.record.model import EMOTIONS, PHASES, PROBES, REGIMES, SCHEMA_VERSION, TIERS
from bardo_pipeline.events.record.upcast import absent
from bardo_pipeline.heartbeat.gate import FORCES, gating_reasons
from bardo_pipeline.heartbeat.probes import HIGH, detail_arrow
from bardo_pipeline.heartbeat.records.arrow_builders import (
    booleans,
    concat_lists,
    concat_text,
    constant,
    empty_lists,
    floats,
    integers,
    list_array,
    struct,
    text_of,
)
from bardo_pipeline.heartbeat.records.chunk_rows import Chunk, Rows, lists_of, record_type
from bardo_pipeline.heartbeat.records.loan_fields import loan_positions, with_loan_acts
from bardo_pipeline.heartbeat.records.thought_fields import thought
from bardo_pipeline.mortality.affect import emotion_codes
from bardo_pipeline.mortality.vitality import phase_codes

SEVERITIES = ("none", "low", "high")
QUANTITIES = ("price", "gas", "health")
PROBE_NAMES = pa.array(PROBES)
_TAPE_COLUMNS = (
    "price", "price_low", "price_high", "price_return", "sma", "sigma_ratio", "rsi", "macd", "liquidity", "gas_gwei",
    "gas_hour_ratio",
)  # fmt: skip


def records_of(chunk: Chunk) -> pa.Table:
    """Build the chunk's records: RECORD_SCHEMA, one row per tick of a living golem."""
    rows = Rows(chunk)
    tape, t, count = chunk.tape, rows.t, rows.count
    regime = text_of(REGIMES, tape.regime[t])
    parts: dict[str, pa.Array] = {
        "schema_version": constant(SCHEMA_VERSION, count, pa.int64()),
        "golem_id": rows.ids,
        "tick": integers(rows["tick"]),
        "observed_at": integers(tape.at_us[t]).cast(record_type("observed_at")),
        "cycle_seen": integers(rows["cycle_seen"]),
        "derivation_id": constant(chunk.derivation_id, count, pa.string()),
        "playbook_version": integers(rows["playbook_version"]),
        "observation": _observation(rows),
        "regime": regime,
        "tick_interval_seconds": integers(tape.interval_seconds[t]),
        **_probes(rows),
        "predictions": _predictions(rows),
        "pad_before": _pad(rows["pad_before"]),
        "pad_after": _pad(rows["pad_after"]),
        "primary_emotion": text_of(EMOTIONS, emotion_codes(rows["pad_after"].T)),
        "prediction_error": floats(rows["error"]),
        "prediction_error_sources": _sources(rows),
        "deliberation_threshold": floats(rows["threshold"]),
        "tier": text_of(TIERS, rows["tier"]),
        "forced_by": text_of(FORCES, rows["forced"]),
        "pipeline": absent(record_type("pipeline"), count),
        "sealed": absent(record_type("sealed"), count),
        "dream_tag": pa.nulls(count, pa.string()),
        "gating_reason": gating_reasons(rows["error"], rows["threshold"], rows["tier"], rows["forced"]),
        **with_loan_acts(rows, thought(rows)),
        "resolutions": _resolutions(rows),
        "episodes_written": _episodes(rows),
        "grimoire_mutations": _given(rows, "grimoire_mutations", chunk.mutations),
        "active_interventions": _given(rows, "active_interventions", chunk.interventions),
        "vitality": struct(
            record_type("vitality"), {n: floats(rows[n]) for n in ("economic", "epistemic", "stochastic", "composite")}
        ),
        "phase": text_of(PHASES, phase_codes(rows["composite"], chunk.policy)),
        "credits_micros": integers(rows["credits"]),
        "credit_consumed_micros": integers(rows["consumed"]),
        "cost": struct(
            record_type("cost"),
            {
                "inference_micros": integers(rows["inference"]),
                "gas_micros": integers(rows["gas"]),
                "total_micros": integers(rows["inference"] + rows["gas"]),
            },
        ),
    }
    return pa.Table.from_arrays([parts[n] for n in RECORD_SCHEMA.names], schema=RECORD_SCHEMA)


def _given(rows: Rows, name: str, values: pa.Array | None) -> pa.Array:
    """Select the rows' lists from `values`, one list per position of the buffer; None: all empty."""
    return empty_lists(record_type(name), rows.count) if values is None else values.take(pa.array(rows.position))


def _pad(values: Float64Array) -> pa.Array:
    return struct(
        record_type("pad_before"), {n: floats(values[:, i]) for i, n in enumerate(("pleasure", "arousal", "dominance"))}
    )


def _observation(rows: Rows) -> pa.Array:
    tape, t, market = rows.chunk.tape, rows.t, rows.chunk.tape.market
    return struct(
        record_type("observation"),
        {
            "market": market.name,
            **{n: getattr(market, n) for n in ("chain", "protocol", "pair", "pool")},
            **{n: floats(getattr(tape, n)[t]) for n in _TAPE_COLUMNS},
            "volume_micros": integers(tape.volume_micros[t]),
            "idle_micros": integers(rows["idle"]),
            "net_asset_value_micros": integers(np.rint(rows["nav_seen"])),
            "anomaly_score": floats(rows["score"]),
            "positions": _positions(rows),
        },
    )


def _positions(rows: Rows) -> pa.Array:
    held = rows["open"]
    where = np.flatnonzero(held)
    market = rows.chunk.tape.market
    wanted = record_type("observation").field("positions").type
    opened = rows.text("opened_tick", where)
    values = struct(
        wanted.value_type,
        {
            "position_id": concat_text(rows.golem_ids(where), "/", opened),
            "protocol": market.protocol,
            "pair": market.pair,
            "tick_lower": integers(rows.of("lower", where)),
            "tick_upper": integers(rows.of("upper", where)),
            "liquidity": floats(rows.of("liquidity", where)),
            "value_micros": integers(np.rint(rows.of("value", where))),
            "fees_owed_micros": integers(np.floor(rows.of("fees", where))),
            "impermanent_loss_micros": integers(np.rint(rows.of("loss", where))),
            "in_range": booleans(rows.of("inside", where)),
            "health_factor": floats(rows.of("health", where)),
        },
    )
    loan_counts, loans = loan_positions(rows)
    positions = concat_lists(held, values, loan_counts, loans) if loan_counts.any() else values
    return list_array(wanted, held.astype(np.int64) + loan_counts, positions)


def _probes(rows: Rows) -> dict[str, pa.Array]:
    probes = rows.probes
    severity = probes.severity.T.reshape(-1)
    value, limit = (column.T.reshape(-1) for column in (probes.value, probes.threshold))
    code = np.tile(np.arange(len(PROBES)), rows.count)
    detail = detail_arrow(code, severity, value, limit)
    names, high = text_of(PROBE_NAMES, code), np.flatnonzero(severity == HIGH)
    results = {
        "probe": names,
        "severity": text_of(SEVERITIES, severity),
        "value": floats(value),
        "threshold": floats(limit),
        "detail": detail,
    }
    anomalies = {
        "probe": names.take(pa.array(high)),
        "value": floats(value[high]),
        "threshold": floats(limit[high]),
        "description": detail.take(pa.array(high)),
    }
    return {
        "probe_results": lists_of("probe_results", np.full(rows.count, len(PROBES)), results),
        "anomalies": lists_of("anomalies", probes.anomaly_count, anomalies),
    }


def _predictions(rows: Rows) -> pa.Array:
    resolved = rows["resolved"]
    pick = resolved.reshape(-1)
    expected, half, actual, held = (rows[n].reshape(-1)[pick] for n in ("expected", "half", "actual", "held"))
    parts = {
        "quantity": text_of(QUANTITIES, np.tile(np.arange(3), rows.count)[pick]),
        "expected": floats(expected),
        "low": floats(expected - half),
        "high": floats(expected + half),
        "actual": floats(actual),
        "held": booleans(held),
    }
    return lists_of("predictions", resolved.sum(axis=1), parts)


def _sources(rows: Rows) -> pa.Array:
    values = rows["sources"]
    names = ("price", "regime", "health", "threat", "interventions", "anomalies")
    return struct(record_type("prediction_error_sources"), {n: floats(values[:, i]) for i, n in enumerate(names)})


def _resolutions(rows: Rows) -> pa.Array:
    wanted = record_type("resolutions")
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
    entry_lists = list_array(ids, (recalled >= 0).sum(axis=1), rows.entry_ids(recalled[recalled >= 0]))
    values = struct(
        wanted.value_type,
        {
            "decision_tick": integers(column["decision_tick"]),
            "action_type": "rebalance",
            "tool_name": "uniswap_v3_rebalance",
            "chosen": text_of(("hold", "act"), column["chosen_act"]),
            "regime": text_of(REGIMES, column["regime"]),
            "anomaly_score": floats(column["score"]),
            "gas_ratio": floats(column["gas_ratio"]),
            "value_micros": integers(np.rint(column["value"])),
            "effect_ppm": integers(column["effect_ppm"]),
            "verified": True,
            "ground_truth_source": "trace",
            "retrieved_entry_ids": entry_lists,
        },
    )
    return list_array(wanted, due.sum(axis=1), values)


def _episodes(rows: Rows) -> pa.Array:
    """Build the episode id of each record that is an episode (canon 13)."""
    is_episode = (rows.probes.anomaly_count > 0) | (rows["sources"][:, 1] > 0) | rows.thinking
    where = np.flatnonzero(is_episode)
    ids = concat_text(rows.golem_ids(where), ":", rows.text("tick", where))
    return list_array(record_type("episodes_written"), is_episode.astype(np.int64), ids)
