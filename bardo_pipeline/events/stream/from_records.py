"""Typed events of records. Pure. Private parts (sealing.py) are never read.

Source: EV-7; HB S1 ("every field in the record maps to a typed event").
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.events.record.arrow_columns import contiguous
from bardo_pipeline.events.record.arrow_schema import MOMENT
from bardo_pipeline.events.stream.catalogue import EVENTS
from bardo_pipeline.events.stream.event_table import Emitted, Steps, add_change_events, flat, relisted, steps_within
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
    "dream_tag", "triage.events", "attention_changes",
)  # fmt: skip
"""Columns of records from which events are derived."""

STATUS_EVENTS = {
    "executed": "action:executed",
    "reverted": "action:failed",
    "blocked": "action:blocked",
    "deferred": "action:deferred",
}


class _Records:
    """Columns of records by path, and a builder of their events."""

    def __init__(self, records: pa.Table, out: Emitted) -> None:
        self._columns = {name: contiguous(records.column(name)) for name in records.column_names}
        self.every, self._out = np.arange(records.num_rows), out

    def __getitem__(self, path: str) -> pa.Array:
        return self._columns[path]

    def number(self, path: str) -> Int64Array:
        """Return a column of integers, with 0 for null."""
        return pc.fill_null(self[path], 0).to_numpy(zero_copy_only=False)

    def emit(
        self, name: str, rows: Int64Array, payload: Mapping[str, pa.Array], ordinal: Int64Array | None = None
    ) -> None:
        """Add an event for each of these rows. payload: field -> one value per event."""
        place = np.zeros(len(rows), np.int64) if ordinal is None else ordinal
        golems, ticks, at = (self[path].take(pa.array(rows)) for path in ("golem_id", "tick", "observed_at"))
        numbers = [pc.cast(ticks, pa.string()), pc.cast(pa.array(place), pa.string())]
        self._out.add(name, golems, ticks, at, numbers, payload, place)

    def emit_rows(self, name: str, rows: Int64Array, prefix: str = "", **sources: str | pa.Array) -> None:
        """Add an event for each of these rows.

        sources: path or column (one value per record) of a field of the payload; default: the path prefix + field.
        """
        paths = {field: sources.get(field, prefix + field) for field in EVENTS[name].payload.model_fields}
        columns = {field: self[path] if isinstance(path, str) else path for field, path in paths.items()}
        self.emit(name, rows, {field: column.take(pa.array(rows)) for field, column in columns.items()})

    def emit_each(self, name: str, path: str, chosen: Int64Array | None = None, **sources: str) -> None:
        """Add an event for each element (or each chosen one) of a list column.

        sources: field of the element, if it differs from the field of the payload.
        """
        owner, place, elements = flat(self[path])
        rows = np.arange(len(owner)) if chosen is None else chosen
        fields = EVENTS[name].payload.model_fields
        payload = {field: elements.field(sources.get(field, field)).take(pa.array(rows)) for field in fields}
        self.emit(name, owner[rows], payload, place[rows])


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
    columns.emit_rows("mortality:vitality", columns.every)
    steps = steps_within(records, neighbours)
    add_change_events(steps if across is None else Steps.of(steps, across), out)
    return out


def _cognition(columns: _Records) -> None:
    every = columns.every
    owner, _, anomaly = flat(columns["anomalies"])
    words = relisted(every, owner, anomaly.field("description") if len(anomaly) else pa.array([], pa.string()))
    columns.emit_rows(
        "heartbeat:observation",
        every,
        prefix="observation.",
        regime="regime",
        anomaly_count=pc.list_value_length(columns["anomalies"]),
        probe_count=pc.list_value_length(columns["probe_results"]),
        anomalies=words,
    )
    columns.emit_rows("heartbeat:tick", every, threshold="deliberation_threshold", reason="gating_reason")
    rows = np.flatnonzero(pc.equal(columns["tier"], "suppress"))
    later = columns["observed_at"].cast(pa.int64()).to_numpy() + columns.number("tick_interval_seconds") * 1_000_000
    next_scheduled = pa.array(later).cast(MOMENT)
    columns.emit_rows("heartbeat:suppress", rows, reason="gating_reason", next_scheduled=next_scheduled)
    owner, place, steer = flat(columns["active_interventions"])
    steer_state = columns["pipeline.steer_state"].take(pa.array(owner))
    payload = {"steer_id": steer.field("intervention_id"), "fsm_state": steer_state}
    payload |= {name: steer.field(name) for name in ("severity", "kind")}
    columns.emit("heartbeat:steer_received", owner, payload, place)
    columns.emit_rows(
        "heartbeat:complete",
        every,
        duration_ms="pipeline.duration_ms",
        actions_taken=pc.list_value_length(columns["actions"]),
        cost_micros="cost.total_micros",
    )


def _queue(columns: _Records, policy: FabricPolicy) -> None:
    rows = np.flatnonzero(columns.number("pipeline.queue_depth") >= policy.queue_warning_depth)
    columns.emit_rows("heartbeat:queue_warning", rows, queue_depth="pipeline.queue_depth")
    dropped = columns.number("pipeline.ticks_dropped") > 0
    asleep = pc.fill_null(columns["pipeline.dropped_while_dreaming"], False)
    paths = {"dropped": "pipeline.ticks_dropped", "during_dream": "pipeline.dropped_while_dreaming"}
    columns.emit_rows("heartbeat:tick_dropped", np.flatnonzero(dropped), **paths)
    columns.emit_rows("heartbeat:tick_dropped_during_dream", np.flatnonzero(dropped & np.asarray(asleep)), **paths)


def _thought(columns: _Records) -> None:
    for name, part, field in (
        ("inference:complete", "deliberation", "model"),
        ("context:assembled", "context_bundle_summary", "tokens"),
        ("action:verified", "outcome", "verified"),
    ):
        rows = np.flatnonzero(columns[f"{part}.{field}"].is_valid())
        columns.emit_rows(name, rows, prefix=f"{part}.")


def _attention_and_affect(columns: _Records) -> None:
    severity = flat(columns["probe_results"])[2].field("severity")
    raised = np.flatnonzero(pc.fill_null(pc.is_in(severity, value_set=pa.array(["low", "high"])), False))
    columns.emit_each("attention:probe_raised", "probe_results", raised)
    changes = np.arange(len(flat(columns["attention_changes"])[2]))
    columns.emit_each("attention:changed", "attention_changes", changes)
    route = flat(columns["triage.events"])[2].field("route")
    passed = np.flatnonzero(pc.fill_null(pc.is_in(route, value_set=pa.array(["escalate", "emit"])), False))
    columns.emit_each("ChainEvent", "triage.events", passed)
    before, after = columns["pad_before"], columns["pad_after"]
    moved = np.zeros(len(before), np.bool_)
    for name in ("pleasure", "arousal", "dominance"):
        moved |= np.asarray(pc.not_equal(before.field(name), after.field(name)))
    paths = {"before": "pad_before", "after": "pad_after", "emotion": "primary_emotion"}
    columns.emit_rows("affect:shifted", np.flatnonzero(moved), **paths)
    columns.emit_each("affect:somatic_marker", "somatic_markers_fired")


def _predictions(columns: _Records, policy: FabricPolicy, window: int) -> None:
    columns.emit_each("prediction:registered", "predictions")
    columns.emit_each("prediction:resolved", "predictions")
    columns.emit_each("prediction:decision_resolved", "resolutions")
    rows = np.flatnonzero(columns.number("tick") % policy.accuracy_ticks == 0)
    accuracy, windows = columns["vitality"].field("epistemic"), pa.array(np.full(len(columns.every), window))
    columns.emit_rows("AccuracyUpdated", rows, accuracy=accuracy, window=windows)


def _actions(columns: _Records) -> None:
    actions = flat(columns["actions"])[2]
    for status, name in STATUS_EVENTS.items():
        rows = np.flatnonzero(pc.equal(actions.field("status"), status))
        columns.emit_each(name, "actions", rows, reason="block_reason")


def _tools(columns: _Records) -> None:
    """Add events of tool runs as the runtime reports them, else of actions."""
    owner, place, run = flat(columns["pipeline.tool_runs"])
    is_reported = np.asarray(columns["pipeline.tool_runs"].is_valid())
    action_owner, action_place, action = flat(columns["actions"])
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
    owner, place, episode = flat(columns["episodes_written"])
    at = pa.array(owner)
    action_owner, action_place, action = flat(columns["actions"])
    first = np.full(len(columns.every), -1)
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
    columns.emit_each("grimoire:retrieved", "retrieved_entries")
    columns.emit_each("grimoire:mutation_seen", "grimoire_mutations")
