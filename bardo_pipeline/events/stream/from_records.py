"""Typed events of records. Pure. Private parts (sealing.py) are never read.

Source: EV-7; HB S1 ("every field in the record maps to a typed event").
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.events.record.arrow_columns import one
from bardo_pipeline.events.record.arrow_schema import MOMENT
from bardo_pipeline.events.stream.catalogue import EVENTS
from bardo_pipeline.events.stream.event_table import Emitted, event_ids, flat, frame_of, relisted
from bardo_pipeline.events.stream.from_changes import Steps, add_change_events, steps_within
from bardo_pipeline.policy import FabricPolicy

RECORD_COLUMNS = (
    "golem_id", "tick", "observed_at", "regime", "tick_interval_seconds", "probe_results", "anomalies", "predictions",
    "observation.chain", "observation.protocol", "observation.pair", "observation.block_number", "observation.price",
    "observation.gas_gwei", "observation.net_asset_value_micros", "pad_before", "pad_after", "somatic_markers_fired",
    "primary_emotion", "prediction_error", "deliberation_threshold", "tier", "forced_by", "gating_reason",
    "context_bundle_summary.tokens", "context_bundle_summary.categories", "retrieved_entries", "active_interventions",
    "deliberation.model", "deliberation.tier", "deliberation.input_tokens", "deliberation.output_tokens",
    "deliberation.cache_read_tokens", "deliberation.latency_ms", "deliberation.cost_micros", "deliberation.decision",
    "deliberation.confidence", "deliberation.recommends_action", "actions", "outcome.verified", "outcome.expected",
    "outcome.actual", "outcome.pnl_impact_micros", "outcome.ground_truth_source", "outcome.cause_variable",
    "outcome.effect_variable", "resolutions", "episodes_written", "grimoire_mutations", "vitality", "phase",
    "credits_micros", "credit_consumed_micros", "cost.total_micros", "pipeline.queue_depth", "pipeline.ticks_dropped",
    "pipeline.dropped_while_dreaming", "pipeline.duration_ms", "pipeline.steer_state", "pipeline.tool_runs",
    "dream_tag",
)  # fmt: skip
"""Columns of records from which events are derived."""

STATUS_EVENTS = {
    "executed": "action:executed",
    "reverted": "action:failed",
    "blocked": "action:blocked",
    "deferred": "action:deferred",
}
_ACTION_PAYLOAD = (
    "action_type", "tool_name", "permit_id", "tx_hash", "gas_cost_micros", "slippage_ppm", "value_micros",
)  # fmt: skip


class _Records:
    """Columns of records by path, and a builder of their events."""

    def __init__(self, records: pa.Table, out: Emitted) -> None:
        self._columns = {name: one(records.column(name)) for name in records.column_names}
        self.count, self._out = records.num_rows, out

    def __getitem__(self, path: str) -> pa.Array:
        return self._columns[path]

    def number(self, path: str) -> Int64Array:
        """Return a column of integers, with 0 for null."""
        return pc.fill_null(self[path], 0).to_numpy(zero_copy_only=False)

    def listed(self, path: str) -> tuple[Int64Array, Int64Array, pa.Array]:
        """Flatten a list column: record of each element, index in that record, elements."""
        return flat(self[path])

    def emit(
        self, name: str, rows: Int64Array, payload: Mapping[str, pa.Array], ordinal: Int64Array | None = None
    ) -> None:
        """Add an event for each of these rows. payload: field -> one value per event."""
        at = pa.array(rows)
        place = np.zeros(len(rows), np.int64) if ordinal is None else ordinal
        golems, ticks = self["golem_id"].take(at), self["tick"].take(at)
        ids = event_ids(name, golems, pc.cast(ticks, pa.string()), pc.cast(pa.array(place), pa.string()))
        self._out.add(name, frame_of(name, ids, golems, ticks, self["observed_at"].take(at), place, payload))

    def emit_from(self, name: str, rows: Int64Array, **paths: str) -> None:
        """Add an event for each of these rows, with columns of the record as payload (field=path)."""
        self.emit(name, rows, {field: self[path].take(pa.array(rows)) for field, path in paths.items()})


def record_events(
    records: pa.Table,
    neighbours: pa.Table,
    importance: pa.Array,
    *,
    policy: FabricPolicy,
    window: int,
    across: Steps | None = None,
) -> Emitted:
    """Return the events of records.

    Parameters
    ----------
    records : RECORD_COLUMNS, one commit of the log
    neighbours : NEIGHBOUR_COLUMNS of earlier committed records at adjacent ticks
    importance : importance tier of each record as an episode
    window : number of resolved predictions in a golem's accuracy
    across : pairs of records around ticks that were accepted as lost
    """
    out = Emitted()
    columns = _Records(records, out)
    _cognition(columns)
    _queue(columns, policy)
    _thought(columns)
    _attention_and_affect(columns)
    _predictions(columns, policy, window)
    _actions(columns)
    _tools(columns)
    _memories(columns, importance)
    every = np.arange(columns.count)
    columns.emit_from(
        "mortality:vitality",
        every,
        vitality="vitality",
        phase="phase",
        credits_micros="credits_micros",
        credit_consumed_micros="credit_consumed_micros",
    )
    steps = steps_within(records, neighbours)
    add_change_events(steps if across is None else Steps.of(steps, across), out)
    return out


def _cognition(columns: _Records) -> None:
    every = np.arange(columns.count)
    owner, _, anomaly = columns.listed("anomalies")
    words = relisted(every, owner, anomaly.field("description") if len(anomaly) else pa.array([], pa.string()))
    observed = {
        n: columns[f"observation.{n}"] for n in ("chain", "protocol", "pair", "block_number", "price", "gas_gwei")
    }
    columns.emit(
        "heartbeat:observation",
        every,
        {
            "regime": columns["regime"],
            "anomaly_count": pc.list_value_length(columns["anomalies"]),
            "probe_count": pc.list_value_length(columns["probe_results"]),
            "anomalies": words,
            **observed,
            "net_asset_value_micros": columns["observation.net_asset_value_micros"],
        },
    )
    columns.emit_from(
        "heartbeat:tick",
        every,
        tick="tick",
        tier="tier",
        prediction_error="prediction_error",
        threshold="deliberation_threshold",
        forced_by="forced_by",
        reason="gating_reason",
    )
    rows = np.flatnonzero(pc.equal(columns["tier"], "suppress"))
    later = columns["observed_at"].cast(pa.int64()).to_numpy() + columns.number("tick_interval_seconds") * 1_000_000
    payload = {
        "tick": columns["tick"],
        "reason": columns["gating_reason"],
        "next_scheduled": pa.array(later).cast(MOMENT),
    }
    columns.emit("heartbeat:suppress", rows, {n: values.take(pa.array(rows)) for n, values in payload.items()})
    owner, place, steer = columns.listed("active_interventions")
    columns.emit(
        "heartbeat:steer_received",
        owner,
        {
            "steer_id": steer.field("intervention_id"),
            "fsm_state": columns["pipeline.steer_state"].take(pa.array(owner)),
            "severity": steer.field("severity"),
            "kind": steer.field("kind"),
        },
        place,
    )
    columns.emit(
        "heartbeat:complete",
        every,
        {
            "tick": columns["tick"],
            "duration_ms": columns["pipeline.duration_ms"],
            "actions_taken": pc.list_value_length(columns["actions"]),
            "cost_micros": columns["cost.total_micros"],
        },
    )


def _queue(columns: _Records, policy: FabricPolicy) -> None:
    rows = np.flatnonzero(columns.number("pipeline.queue_depth") >= policy.queue_warning_depth)
    columns.emit_from("heartbeat:queue_warning", rows, tick="tick", queue_depth="pipeline.queue_depth")
    dropped = columns.number("pipeline.ticks_dropped") > 0
    asleep = np.asarray(pc.fill_null(columns["pipeline.dropped_while_dreaming"], False))
    columns.emit_from(
        "heartbeat:tick_dropped",
        np.flatnonzero(dropped),
        tick="tick",
        dropped="pipeline.ticks_dropped",
        during_dream="pipeline.dropped_while_dreaming",
    )
    rows = np.flatnonzero(dropped & asleep)
    columns.emit_from("heartbeat:tick_dropped_during_dream", rows, tick="tick", dropped="pipeline.ticks_dropped")


def _thought(columns: _Records) -> None:
    names = (
        "model", "tier", "input_tokens", "output_tokens", "cache_read_tokens", "latency_ms", "cost_micros", "decision",
        "confidence", "recommends_action",
    )  # fmt: skip
    rows = np.flatnonzero(columns["deliberation.model"].is_valid())
    columns.emit_from("inference:complete", rows, **{name: f"deliberation.{name}" for name in names})
    rows = np.flatnonzero(columns["context_bundle_summary.tokens"].is_valid())
    columns.emit_from(
        "context:assembled",
        rows,
        tokens="context_bundle_summary.tokens",
        categories="context_bundle_summary.categories",
    )
    rows = np.flatnonzero(columns["outcome.verified"].is_valid())
    outcome_fields = (
        "verified", "expected", "actual", "pnl_impact_micros", "ground_truth_source", "cause_variable",
        "effect_variable",
    )  # fmt: skip
    columns.emit_from("action:verified", rows, **{name: f"outcome.{name}" for name in outcome_fields})


def _attention_and_affect(columns: _Records) -> None:
    owner, place, probe = columns.listed("probe_results")
    raised = np.flatnonzero(pc.fill_null(pc.is_in(probe.field("severity"), value_set=pa.array(["low", "high"])), False))
    _each(columns, "attention:probe_raised", owner, place, probe, raised)
    before, after = columns["pad_before"], columns["pad_after"]
    moved = np.zeros(columns.count, np.bool_)
    for name in ("pleasure", "arousal", "dominance"):
        moved |= np.asarray(pc.not_equal(before.field(name), after.field(name)))
    columns.emit_from(
        "affect:shifted", np.flatnonzero(moved), before="pad_before", after="pad_after", emotion="primary_emotion"
    )
    owner, place, marker = columns.listed("somatic_markers_fired")
    _each(columns, "affect:somatic_marker", owner, place, marker)


def _predictions(columns: _Records, policy: FabricPolicy, window: int) -> None:
    owner, place, prediction = columns.listed("predictions")
    _each(columns, "prediction:registered", owner, place, prediction)
    _each(columns, "prediction:resolved", owner, place, prediction)
    owner, place, resolution = columns.listed("resolutions")
    _each(columns, "prediction:decision_resolved", owner, place, resolution)
    rows = np.flatnonzero(columns.number("tick") % policy.accuracy_ticks == 0)
    accuracy = columns["vitality"].field("epistemic").take(pa.array(rows))
    columns.emit("AccuracyUpdated", rows, {"accuracy": accuracy, "window": pa.array(np.full(len(rows), window))})


def _actions(columns: _Records) -> None:
    owner, place, action = columns.listed("actions")
    for status, name in STATUS_EVENTS.items():
        rows = np.flatnonzero(pc.equal(action.field("status"), status))
        at = pa.array(rows)
        payload = {n: action.field(n).take(at) for n in _ACTION_PAYLOAD}
        columns.emit(name, owner[rows], payload | {"reason": action.field("block_reason").take(at)}, place[rows])


def _tools(columns: _Records) -> None:
    """Add events of tool runs as the runtime reports them, else of actions."""
    owner, place, run = columns.listed("pipeline.tool_runs")
    is_reported = np.asarray(columns["pipeline.tool_runs"].is_valid())
    action_owner, action_place, action = columns.listed("actions")
    unreported = np.flatnonzero(~is_reported[action_owner])
    owners = np.concatenate([owner, action_owner[unreported]])
    places = np.concatenate([place, action_place[unreported]])
    own, count = pa.array(unreported), len(unreported)
    names = pa.concat_arrays([run.field("tool"), action.field("tool_name").take(own)])
    done = pc.equal(action.field("status").take(own), "executed")
    unknown = pa.nulls(count, pa.string())
    ticks = columns["tick"].take(pa.array(owners))
    hashes = pa.concat_arrays([run.field("params_hash"), unknown])
    columns.emit("tool:start", owners, {"tool_name": names, "params_hash": hashes, "tick": ticks}, places)
    columns.emit(
        "tool:end",
        owners,
        {
            "tool_name": names,
            "success": pa.concat_arrays([run.field("success"), done]),
            "duration_ms": pa.concat_arrays([run.field("duration_ms"), pa.nulls(count, pa.int64())]),
            "result_summary": pa.concat_arrays([run.field("result_summary"), unknown]),
        },
        places,
    )
    of_run, _, step = flat(run.field("steps"))
    # The index of a step counts over all runs of its record, because it is part of the id.
    rows = owner[of_run]
    starts = np.searchsorted(rows, rows)
    columns.emit(
        "tool:update",
        rows,
        {"tool_name": run.field("tool").take(pa.array(of_run)), "step": step},
        np.arange(len(rows)) - starts,
    )


def _memories(columns: _Records, importance: pa.Array) -> None:
    owner, place, episode = columns.listed("episodes_written")
    at = pa.array(owner)
    action_owner, action_place, action = columns.listed("actions")
    first = np.full(columns.count, -1)
    first[action_owner[action_place == 0]] = np.flatnonzero(action_place == 0)
    first_action = first[owner]
    tools = action.field("tool_name").take(pa.array(np.maximum(first_action, 0), mask=first_action < 0))
    payload = {
        "episode_id": episode,
        "importance": importance.take(at),
        "tool": tools,
        "chain": columns["observation.chain"].take(at),
        "dream_tag": columns["dream_tag"].take(at),
    }
    columns.emit("grimoire:episode_stored", owner, payload, place)
    owner, place, entry = columns.listed("retrieved_entries")
    _each(columns, "grimoire:retrieved", owner, place, entry)
    owner, place, mutation = columns.listed("grimoire_mutations")
    _each(columns, "grimoire:mutation_seen", owner, place, mutation)


def _each(
    columns: _Records,
    name: str,
    owner: Int64Array,
    place: Int64Array,
    elements: pa.Array,
    chosen: Int64Array | None = None,
) -> None:
    """Add an event for each element (or each chosen one), with the element's fields as payload."""
    rows = np.arange(len(owner)) if chosen is None else chosen
    at = pa.array(rows)
    payload = {column: elements.field(column).take(at) for column in EVENTS[name].payload.model_fields}
    columns.emit(name, owner[rows], payload, place[rows])
