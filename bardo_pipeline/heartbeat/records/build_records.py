"""Records: a chunk of ticks becomes DecisionCycleRecords, whole columns at a time. Pure.

Rows are golem-major: all ticks of one golem stand together, which is how they are read again. Source: HB S6.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.events.record.model import EMOTIONS, PHASES, PROBES, REGIMES, SCHEMA_VERSION, TIERS
from bardo_pipeline.events.record.upcast import absent
from bardo_pipeline.heartbeat.gate import FORCES, gating_reasons
from bardo_pipeline.heartbeat.probes import HIGH, detail_arrow
from bardo_pipeline.heartbeat.records.arrow_builders import (
    empty_lists,
    flag,
    joined,
    listed,
    lists_beside,
    real,
    same,
    struct,
    whole,
    word,
)
from bardo_pipeline.heartbeat.records.chunk_rows import Chunk, Rows, kind
from bardo_pipeline.heartbeat.records.loan_fields import loan_positions, with_loan_acts
from bardo_pipeline.heartbeat.records.thought_fields import thought
from bardo_pipeline.mortality.affect import emotion_codes
from bardo_pipeline.mortality.vitality import phase_codes

SEVERITIES = ("none", "low", "high")
QUANTITIES = ("price", "gas", "health")
PROBE_NAMES = pa.array(PROBES)


def records_of(chunk: Chunk) -> pa.Table:
    """The chunk's records: RECORD_SCHEMA, one row per golem and tick lived."""
    rows = Rows(chunk)
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
        "primary_emotion": word(EMOTIONS, emotion_codes(rows["pad_after"].T)),
        "prediction_error": real(rows["error"]),
        "prediction_error_sources": _sources(rows),
        "deliberation_threshold": real(rows["threshold"]),
        "tier": word(TIERS, rows["tier"]),
        "forced_by": word(FORCES, rows["forced"]),
        "pipeline": absent(kind("pipeline"), count),
        "sealed": absent(kind("sealed"), count),
        "dream_tag": pa.nulls(count, pa.string()),
        "gating_reason": gating_reasons(rows["error"], rows["threshold"], rows["tier"], rows["forced"]),
        **with_loan_acts(rows, thought(rows)),
        "resolutions": _resolutions(rows),
        "episodes_written": _episodes(rows),
        "grimoire_mutations": _given(rows, "grimoire_mutations", chunk.mutations),
        "active_interventions": _given(rows, "active_interventions", chunk.interventions),
        "vitality": struct(
            kind("vitality"),
            {n: real(rows[n]) for n in ("economic", "epistemic", "stochastic", "composite")},
        ),
        "phase": word(PHASES, phase_codes(rows["composite"], chunk.policy)),
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


def _given(rows: Rows, name: str, values: pa.Array | None) -> pa.Array:
    """Lists handed in per (golem, tick) of the whole buffer, or empty ones."""
    return empty_lists(kind(name), rows.count) if values is None else values.take(pa.array(rows.at))


def _pad(values: np.ndarray) -> pa.Array:
    return struct(
        kind("pad_before"), {n: real(values[:, i]) for i, n in enumerate(("pleasure", "arousal", "dominance"))}
    )


def _observation(rows: Rows) -> pa.Array:
    tape, t, count = rows.chunk.tape, rows.t, rows.count
    market = tape.market
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
            "idle_micros": whole(rows["idle"]),
            "net_asset_value_micros": whole(np.rint(rows["nav_seen"])),
            "anomaly_score": real(rows["score"]),
            "positions": _positions(rows),
        },
    )


def _positions(rows: Rows) -> pa.Array:
    held = rows["open"]
    where = np.flatnonzero(held)
    count, market = len(where), rows.chunk.tape.market
    wanted = kind("observation").field("positions").type
    opened = whole(rows.of("opened_tick", where)).cast(pa.string())
    values = struct(
        wanted.value_type,
        {
            "position_id": joined(rows.ids.take(pa.array(where)), same("/", count, pa.string()), opened),
            "protocol": same(market.protocol, count, pa.string()),
            "pair": same(market.pair, count, pa.string()),
            "tick_lower": whole(rows.of("lower", where)),
            "tick_upper": whole(rows.of("upper", where)),
            "liquidity": real(rows.of("liquidity", where)),
            "value_micros": whole(np.rint(rows.of("value", where))),
            "fees_owed_micros": whole(np.floor(rows.of("fees", where))),
            "impermanent_loss_micros": whole(np.rint(rows.of("loss", where))),
            "in_range": flag(rows.of("inside", where)),
            "health_factor": real(rows.of("health", where)),
        },
    )
    lent, loans = loan_positions(rows)
    together = lists_beside(held, values, lent, loans) if lent.any() else values
    return listed(wanted, held.astype(np.int64) + lent, together)


def _probes(rows: Rows) -> dict[str, pa.Array]:
    told = rows.probes
    severity = told.severity.T.reshape(-1)
    value, limit = (column.T.reshape(-1) for column in (told.value, told.threshold))
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
    return {
        "probe_results": listed(kind("probe_results"), each, results),
        "anomalies": listed(kind("anomalies"), told.anomaly_count, anomalies),
    }


def _predictions(rows: Rows) -> pa.Array:
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


def _sources(rows: Rows) -> pa.Array:
    values = rows["sources"]
    names = ("price", "regime", "health", "threat", "interventions", "anomalies")
    return struct(kind("prediction_error_sources"), {n: real(values[:, i]) for i, n in enumerate(names)})


def _resolutions(rows: Rows) -> pa.Array:
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


def _episodes(rows: Rows) -> pa.Array:
    """Id of the episode this record is, for records that are one (canon 13)."""
    odd = (rows.probes.anomaly_count > 0) | (rows["sources"][:, 1] > 0) | rows.thinking
    where = np.flatnonzero(odd)
    ids = joined(
        rows.ids.take(pa.array(where)),
        same(":", len(where), pa.string()),
        whole(rows.of("tick", where)).cast(pa.string()),
    )
    return listed(kind("episodes_written"), odd.astype(np.int64), ids)
