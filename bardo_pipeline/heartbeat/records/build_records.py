"""Builds the DecisionCycleRecords of a chunk of ticks, column by column. Pure.

Rows are sorted by golem, then by tick, because readers read the ticks of one golem. Source: HB S6.
"""

from __future__ import annotations

from dataclasses import fields
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Float64Array, Int64Array
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.events.record.model import EMOTIONS, PHASES, PROBES, REGIMES, SCHEMA_VERSION, TIERS
from bardo_pipeline.heartbeat.choice_trials import alternatives
from bardo_pipeline.heartbeat.fleet import EXPERTS, HORIZONS
from bardo_pipeline.heartbeat.gate import FORCES, SOURCES, Attention, Gated, Lowered, gating_reasons
from bardo_pipeline.heartbeat.probes import HIGH, detail_arrow
from bardo_pipeline.heartbeat.records import arrow_builders as arrow
from bardo_pipeline.heartbeat.records import safety_fields
from bardo_pipeline.heartbeat.records.chunk_rows import Chunk, Rows, lists_of, record_type
from bardo_pipeline.heartbeat.records.loan_fields import loan_positions, with_loan_acts
from bardo_pipeline.heartbeat.records.safety_fields import answered_outcomes, some_lists
from bardo_pipeline.heartbeat.records.thought_fields import thought
from bardo_pipeline.heartbeat.records.triage_fields import triage
from bardo_pipeline.mortality.affect import emotion_codes
from bardo_pipeline.mortality.credit_partitions import GAS, INFERENCE
from bardo_pipeline.mortality.vitality import phase_codes

SEVERITIES = ("none", "low", "high")
QUANTITIES = ("price", "gas", "health")
PROBE_NAMES = pa.array(PROBES)
_TAPE_COLUMNS = (
    "price", "price_low", "price_high", "price_return", "sma", "sigma_ratio", "rsi", "macd", "liquidity", "gas_gwei",
    "gas_hour_ratio", "volume_micros",
)  # fmt: skip
_SAFETY = (
    "spending", "permits", "cached_decision", "attention_changes", "residual_digest", "failed_subsystems",
)  # fmt: skip
"""Record fields that functions of safety_fields build."""


def records_of(chunk: Chunk) -> pa.Table:
    """Build the chunk's records: RECORD_SCHEMA, one row per tick of a living golem."""
    rows = Rows(chunk)
    tape, t = chunk.tape, rows.t
    judgement, gated = _judgement(rows), _gated(rows)
    parts: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "golem_id": rows.golem_ids,
        "tick": rows["tick"],
        "observed_at": pa.array(tape.at_us[t]),
        "cycle_seen": rows["cycle_seen"],
        "derivation_id": chunk.derivation_id,
        "playbook_version": rows["playbook_version"],
        "observation": _observation(rows),
        "regime": arrow.text_of(REGIMES, tape.regime[t]),
        "tick_interval_seconds": tape.interval_seconds[t],
        **_probes(rows),
        "predictions": _predictions(rows),
        "pad_before": _pad(rows["pad_before"]),
        "pad_after": _pad(rows["pad_after"]),
        "primary_emotion": arrow.text_of(EMOTIONS, emotion_codes(rows["pad_after"].T)),
        "prediction_error": rows["error"],
        "prediction_error_sources": dict(zip(SOURCES, rows["sources"].T, strict=True)),
        "deliberation_threshold": rows["threshold"],
        "tier": arrow.text_of(TIERS, rows["tier"]),
        "forced_by": arrow.text_of(FORCES, rows["forced"]),
        "gating_reason": gating_reasons(
            rows["error"],
            rows["threshold"],
            rows["tier"],
            rows["forced"],
            chunk.policy,
            judgement,
            rows.entry_ids(rows["settling"] - 1),
            gated,
            Lowered(rows["wanted"], rows["day_spent"], answered_outcomes(rows)),
        ),
        "attention": _attention(judgement),
        "gating": _gating(rows, gated),
        "triage": triage(rows),
        **{name: getattr(safety_fields, name)(rows) for name in _SAFETY},
        "credit_partitions": _partitions(rows),
        **with_loan_acts(rows, thought(rows)),
        "resolutions": _resolutions(rows),
        "trials": _trials(rows),
        "episodes_written": _episodes(rows),
        "grimoire_mutations": _given(rows, "grimoire_mutations", chunk.mutations),
        "active_interventions": _given(rows, "active_interventions", chunk.interventions),
        "vitality": {n: rows[n] for n in ("economic", "epistemic", "stochastic", "composite")},
        "phase": arrow.text_of(PHASES, phase_codes(rows["composite"], chunk.policy)),
        "credits_micros": rows["credits"],
        "credit_consumed_micros": rows["consumed"],
        "cost": {
            "inference_micros": rows["inference"],
            "gas_micros": rows["gas"],
            "total_micros": rows["inference"] + rows["gas"],
        },
    }
    columns = [arrow.column(parts.get(field.name), field.type, rows.count) for field in RECORD_SCHEMA]
    return pa.Table.from_arrays(columns, schema=RECORD_SCHEMA)


def _given(rows: Rows, name: str, values: pa.Array | None) -> pa.Array:
    """Select the rows' lists from `values`, one list per position of the buffer; None: all empty."""
    return arrow.empty_lists(record_type(name), rows.count) if values is None else values.take(pa.array(rows.position))


def _judgement(rows: Rows) -> Attention | None:
    """Return attention's judgement of the rows; None if it judged none in this chunk."""
    if not rows.has("attention_judged"):
        return None
    return Attention(**{f.name: rows[f"attention_{f.name}"] for f in fields(Attention)})


def _attention(judgement: Attention | None) -> pa.Array | None:
    if judgement is None:
        return None
    parts = {"thoughts": judgement.thoughts, "vain_thoughts": judgement.vain, "chance": judgement.chance}
    return arrow.struct(record_type("attention"), parts | {"draw": judgement.draw}, missing=~judgement.judged)


def _gated(rows: Rows) -> Gated | None:
    """Return the figures of the learned gate; None without it."""
    if not rows.has("gating_composite"):
        return None
    names = ("composite", "thresholds", "decided", "explored")
    woke = rows["triage_woke"] if rows.has("triage_woke") else np.zeros(rows.count, bool)
    return Gated(**{name: np.moveaxis(rows[f"gating_{name}"], 0, -1) for name in names}, woke=woke)


def _gating(rows: Rows, gated: Gated | None) -> pa.Array | None:
    """Build the learned gate's figures of each record. Boundaries are columns: the three alpha, then the three beta."""
    if gated is None:
        return None
    type_, beta_params = record_type("gating"), rows["gating_boundaries"].T
    experts = {n: dict(zip(EXPERTS, rows[f"gating_{n}"].T, strict=True)) for n in ("signals", "weights")}
    thresholds = np.where(gated.decided, gated.thresholds, np.nan)
    number = len(thresholds)
    boundaries = {
        f"boundary_{name}": {"alpha": beta_params[i], "beta": beta_params[number + i], "threshold": thresholds[i]}
        for i, name in enumerate(("t2", "t1", "t0"))
    }
    columns = {"composite": gated.composite, "explored": gated.explored, "found": rows["gating_found"]}
    return arrow.struct(type_, columns | experts | boundaries)


def _partitions(rows: Rows) -> dict[str, Int64Array]:
    columns = {"allotted": rows["allotted"], "available": rows["partitions"], "hourly": rows["hourly"]}
    return {
        f"{name}_{column}_micros": values[:, code]
        for code, name in ((INFERENCE, "inference"), (GAS, "gas"))
        for column, values in columns.items()
    }


def _pad(values: Float64Array) -> dict[str, Float64Array]:
    return dict(zip(("pleasure", "arousal", "dominance"), values.T, strict=True))


def _observation(rows: Rows) -> dict[str, Any]:
    tape, market = rows.chunk.tape, rows.chunk.tape.market
    return {
        "market": market.name,
        **{n: getattr(market, n) for n in ("chain", "protocol", "pair", "pool")},
        **{n: getattr(tape, n)[rows.t] for n in _TAPE_COLUMNS},
        "idle_micros": rows["idle"],
        "net_asset_value_micros": np.rint(rows["nav_seen"]),
        "anomaly_score": rows["score"],
        "positions": _positions(rows),
    }


def _positions(rows: Rows) -> pa.Array:
    held = rows["open"]
    position, market = rows.take(np.flatnonzero(held)), rows.chunk.tape.market
    wanted = record_type("observation").field("positions").type
    parts = {
        "position_id": arrow.concat_text(position.golem_ids, "/", position.text("opened_tick")),
        "protocol": market.protocol,
        "pair": market.pair,
        "tick_lower": position["lower"],
        "tick_upper": position["upper"],
        "liquidity": position["liquidity"],
        "value_micros": np.rint(position["value"]),
        "fees_owed_micros": np.floor(position["fees"]),
        "impermanent_loss_micros": np.rint(position["loss"]),
        "in_range": position["inside"],
        "health_factor": position["health"],
    }
    positions = arrow.struct(wanted.value_type, parts)
    loan_counts, loans = loan_positions(rows)
    if loan_counts.any():
        positions = arrow.concat_lists(held, positions, loan_counts, loans)
    return arrow.list_array(wanted, held.astype(np.int64) + loan_counts, positions)


def _probes(rows: Rows) -> dict[str, pa.Array]:
    probes = rows.probes
    severity = probes.severity.T.reshape(-1)
    value, limit = (column.T.reshape(-1) for column in (probes.value, probes.threshold))
    code = np.tile(np.arange(len(PROBES)), rows.count)
    detail = detail_arrow(code, severity, value, limit)
    names, high = _probe_names(rows.count), np.flatnonzero(severity == HIGH)
    results = {
        "probe": names,
        "severity": arrow.text_of(SEVERITIES, severity),
        "value": value,
        "threshold": limit,
        "detail": detail,
    }
    anomalies = {
        "probe": names.take(pa.array(high)),
        "value": value[high],
        "threshold": limit[high],
        "description": detail.take(pa.array(high)),
    }
    return {
        "probe_results": lists_of("probe_results", np.full(rows.count, len(PROBES)), results),
        "anomalies": lists_of("anomalies", probes.anomaly_count, anomalies),
    }


@lru_cache(maxsize=4)
def _probe_names(count: int) -> pa.Array:
    """Return the names of the probes of so many records, which are kept, because most chunks have as many."""
    return PROBE_NAMES.take(pa.array(np.tile(np.arange(len(PROBES)), count)))


def _predictions(rows: Rows) -> pa.Array:
    resolved = rows["resolved"]
    pick = resolved.reshape(-1)
    expected, half, actual, held = (rows[n].reshape(-1)[pick] for n in ("expected", "half", "actual", "held"))
    parts = {
        "quantity": arrow.text_of(QUANTITIES, np.tile(np.arange(3), rows.count)[pick]),
        "expected": expected,
        "low": expected - half,
        "high": expected + half,
        "actual": actual,
        "held": held,
    }
    return lists_of("predictions", resolved.sum(axis=1), parts)


def _resolutions(rows: Rows) -> pa.Array:
    wanted = record_type("resolutions")
    if not rows.has("trial_due"):
        return arrow.empty_lists(wanted, rows.count)
    counts = rows["trial_due"].sum(axis=1)
    judged = rows.take(np.flatnonzero(counts))
    pick = judged["trial_due"].reshape(-1)
    column = {
        n: judged[f"trial_{n}"].reshape(-1)[pick]
        for n in ("decision_tick", "chosen_act", "regime", "score", "gas_ratio", "value", "effect_ppm")
    }
    recalled = judged["trial_recalled"].reshape(len(pick), -1)[pick]
    ids = wanted.value_type.field("retrieved_entry_ids").type
    parts = {
        "decision_tick": column["decision_tick"],
        "action_type": "rebalance",
        "tool_name": "uniswap_v3_rebalance",
        "chosen": arrow.text_of(("hold", "act"), column["chosen_act"]),
        "regime": arrow.text_of(REGIMES, column["regime"]),
        "anomaly_score": column["score"],
        "gas_ratio": column["gas_ratio"],
        "value_micros": np.rint(column["value"]),
        "effect_ppm": column["effect_ppm"],
        "verified": True,
        "ground_truth_source": "trace",
        "retrieved_entry_ids": arrow.list_array(
            ids, (recalled >= 0).sum(axis=1), rows.entry_ids(recalled[recalled >= 0])
        ),
    }
    return lists_of("resolutions", counts, parts)


def _trials(rows: Rows) -> pa.Array | None:
    """Build the judged alternatives of each record; null in a record without any."""
    if not rows.has("window_due"):
        return None
    kinds = alternatives(rows.chunk.policy)
    where = np.flatnonzero(rows["window_due"].any(axis=1))
    judged, shape = rows.take(where), (len(where), len(HORIZONS), len(kinds))
    effect = judged["window_effect_ppm"].reshape(shape)
    row, horizon, kind = np.nonzero(judged["window_applies"].reshape(shape))
    column = {
        n: judged[f"window_{n}"][row, horizon]
        for n in ("decision_tick", "regime", "score", "gas_ratio", "value", "width", "levered")
    }
    about_loan = np.array([choice == "loan" for choice, _, _ in kinds])[kind]
    ranges = arrow.concat_text("range_", pa.array(column["width"]).cast(pa.string()))
    parts = {
        "decision_tick": column["decision_tick"],
        **{
            n: arrow.text_of(tuple(k[i] for k in kinds), kind)
            for i, n in enumerate(("choice", "alternative", "beside"))
        },
        "taken": pc.if_else(
            pa.array(about_loan),
            arrow.text_of(("unlevered", "levered"), column["levered"].astype(np.int64)),
            pc.if_else(pa.array(column["width"] > 0), ranges, "out"),
        ),
        "horizon": arrow.text_of(HORIZONS, horizon),
        "regime": arrow.text_of(REGIMES, column["regime"]),
        "anomaly_score": column["score"],
        "gas_ratio": column["gas_ratio"],
        "value_micros": np.rint(column["value"]),
        "effect_ppm": effect[row, horizon, kind],
        "verified": True,
        "ground_truth_source": "trace",
    }
    type_ = record_type("trials")
    return some_lists("trials", rows.count, where[row], arrow.struct(type_.value_type, parts))


def _episodes(rows: Rows) -> pa.Array:
    """Build the episode id of each record that is an episode (canon 13)."""
    is_episode = (rows.probes.anomaly_count > 0) | (rows["sources"][:, 1] > 0) | rows.thinking
    episode = rows.take(np.flatnonzero(is_episode))
    ids = arrow.concat_text(episode.golem_ids, ":", episode.text("tick"))
    return arrow.list_array(record_type("episodes_written"), is_episode.astype(np.int64), ids)
