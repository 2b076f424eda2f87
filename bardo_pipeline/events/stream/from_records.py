"""The event fabric of records: columns of records in, events out. Pure. Private parts (sealing.py) are never read.

Source: EV-7; HB S1 ("every field in the record maps to a typed event").
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.events.record.arrow_schema import MOMENT
from bardo_pipeline.events.stream.catalogue import EVENTS
from bardo_pipeline.events.stream.event_table import Emitted, event_ids, flat, frame_of, one, relisted
from bardo_pipeline.events.stream.from_changes import Steps, steps_within, tell_changes
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
"""Paths of a record that events are made from."""

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
    """Columns of records by path, and events made of some of their rows."""

    def __init__(self, records: pa.Table, out: Emitted) -> None:
        self._columns = {name: one(records.column(name)) for name in records.column_names}
        self.count, self._out = records.num_rows, out

    def __getitem__(self, path: str) -> pa.Array:
        return self._columns[path]

    def number(self, path: str) -> np.ndarray:
        """A column of whole numbers, null as 0."""
        return pc.fill_null(self[path], 0).to_numpy(zero_copy_only=False)

    def listed(self, path: str) -> tuple[np.ndarray, np.ndarray, pa.Array]:
        """A list column, flat: the record of each element, its place in that record, the elements."""
        return flat(self[path])

    def emit(
        self, name: str, rows: np.ndarray, payload: Mapping[str, pa.Array], ordinal: np.ndarray | None = None
    ) -> None:
        """An event of each of these rows; payload: a column a field, one value an event."""
        at = pa.array(rows)
        place = np.zeros(len(rows), np.int64) if ordinal is None else ordinal
        golems, ticks = self["golem_id"].take(at), self["tick"].take(at)
        ids = event_ids(name, golems, pc.cast(ticks, pa.string()), pc.cast(pa.array(place), pa.string()))
        self._out.add(name, frame_of(name, ids, golems, ticks, self["observed_at"].take(at), place, payload))

    def emit_from(self, name: str, rows: np.ndarray, **paths: str) -> None:
        """An event of each of these rows whose payload's fields are columns of the record (field=path)."""
        self.emit(name, rows, {given: self[path].take(pa.array(rows)) for given, path in paths.items()})


def record_events(
    records: pa.Table,
    neighbours: pa.Table,
    importance: pa.Array,
    *,
    policy: FabricPolicy,
    window: int,
    across: Steps | None = None,
) -> Emitted:
    """The events of records.

    records: RECORD_COLUMNS, one commit of the log. neighbours: NEIGHBOUR_COLUMNS of records on record before, those of
    the ticks just before and after these. importance: the tier of each record as an episode. window: resolved
    predictions that a golem's accuracy counts. across: steps over ticks that were given up, which these records tell.
    """
    out = Emitted()
    known = _Records(records, out)
    _cognition(known)
    _queue(known, policy)
    _thought(known)
    _attention_and_affect(known)
    _predictions(known, policy, window)
    _actions(known)
    _tools(known)
    _memories(known, importance)
    every = np.arange(known.count)
    known.emit_from(
        "mortality:vitality",
        every,
        vitality="vitality",
        phase="phase",
        credits_micros="credits_micros",
        credit_consumed_micros="credit_consumed_micros",
    )
    steps = steps_within(records, neighbours)
    tell_changes(steps if across is None else Steps.of(steps, across), out)
    return out


def _cognition(known: _Records) -> None:
    every = np.arange(known.count)
    owner, _, anomaly = known.listed("anomalies")
    words = relisted(every, owner, anomaly.field("description") if len(anomaly) else pa.array([], pa.string()))
    observed = {
        n: known[f"observation.{n}"] for n in ("chain", "protocol", "pair", "block_number", "price", "gas_gwei")
    }
    known.emit(
        "heartbeat:observation",
        every,
        {
            "regime": known["regime"],
            "anomaly_count": pc.list_value_length(known["anomalies"]),
            "probe_count": pc.list_value_length(known["probe_results"]),
            "anomalies": words,
            **observed,
            "net_asset_value_micros": known["observation.net_asset_value_micros"],
        },
    )
    known.emit_from(
        "heartbeat:tick",
        every,
        tick="tick",
        tier="tier",
        prediction_error="prediction_error",
        threshold="deliberation_threshold",
        forced_by="forced_by",
        reason="gating_reason",
    )
    rows = np.flatnonzero(pc.equal(known["tier"], "suppress"))
    later = known["observed_at"].cast(pa.int64()).to_numpy() + known.number("tick_interval_seconds") * 1_000_000
    given = {"tick": known["tick"], "reason": known["gating_reason"], "next_scheduled": pa.array(later).cast(MOMENT)}
    known.emit("heartbeat:suppress", rows, {n: values.take(pa.array(rows)) for n, values in given.items()})
    owner, place, steer = known.listed("active_interventions")
    known.emit(
        "heartbeat:steer_received",
        owner,
        {
            "steer_id": steer.field("intervention_id"),
            "fsm_state": known["pipeline.steer_state"].take(pa.array(owner)),
            "severity": steer.field("severity"),
            "kind": steer.field("kind"),
        },
        place,
    )
    known.emit(
        "heartbeat:complete",
        every,
        {
            "tick": known["tick"],
            "duration_ms": known["pipeline.duration_ms"],
            "actions_taken": pc.list_value_length(known["actions"]),
            "cost_micros": known["cost.total_micros"],
        },
    )


def _queue(known: _Records, policy: FabricPolicy) -> None:
    rows = np.flatnonzero(known.number("pipeline.queue_depth") >= policy.queue_warning_depth)
    known.emit_from("heartbeat:queue_warning", rows, tick="tick", queue_depth="pipeline.queue_depth")
    dropped = known.number("pipeline.ticks_dropped") > 0
    asleep = np.asarray(pc.fill_null(known["pipeline.dropped_while_dreaming"], False))
    known.emit_from(
        "heartbeat:tick_dropped",
        np.flatnonzero(dropped),
        tick="tick",
        dropped="pipeline.ticks_dropped",
        during_dream="pipeline.dropped_while_dreaming",
    )
    rows = np.flatnonzero(dropped & asleep)
    known.emit_from("heartbeat:tick_dropped_during_dream", rows, tick="tick", dropped="pipeline.ticks_dropped")


def _thought(known: _Records) -> None:
    names = (
        "model", "tier", "input_tokens", "output_tokens", "cache_read_tokens", "latency_ms", "cost_micros", "decision",
        "confidence", "recommends_action",
    )  # fmt: skip
    rows = np.flatnonzero(known["deliberation.model"].is_valid())
    known.emit_from("inference:complete", rows, **{name: f"deliberation.{name}" for name in names})
    rows = np.flatnonzero(known["context_bundle_summary.tokens"].is_valid())
    known.emit_from(
        "context:assembled",
        rows,
        tokens="context_bundle_summary.tokens",
        categories="context_bundle_summary.categories",
    )
    rows = np.flatnonzero(known["outcome.verified"].is_valid())
    told = (
        "verified", "expected", "actual", "pnl_impact_micros", "ground_truth_source", "cause_variable",
        "effect_variable",
    )  # fmt: skip
    known.emit_from("action:verified", rows, **{name: f"outcome.{name}" for name in told})


def _attention_and_affect(known: _Records) -> None:
    owner, place, probe = known.listed("probe_results")
    raised = np.flatnonzero(pc.fill_null(pc.is_in(probe.field("severity"), value_set=pa.array(["low", "high"])), False))
    _each(known, "attention:probe_raised", owner, place, probe, raised)
    before, after = known["pad_before"], known["pad_after"]
    moved = np.zeros(known.count, np.bool_)
    for name in ("pleasure", "arousal", "dominance"):
        moved |= np.asarray(pc.not_equal(before.field(name), after.field(name)))
    known.emit_from(
        "affect:shifted", np.flatnonzero(moved), before="pad_before", after="pad_after", emotion="primary_emotion"
    )
    owner, place, marker = known.listed("somatic_markers_fired")
    _each(known, "affect:somatic_marker", owner, place, marker)


def _predictions(known: _Records, policy: FabricPolicy, window: int) -> None:
    owner, place, prediction = known.listed("predictions")
    _each(known, "prediction:registered", owner, place, prediction)
    _each(known, "prediction:resolved", owner, place, prediction)
    owner, place, resolution = known.listed("resolutions")
    _each(known, "prediction:decision_resolved", owner, place, resolution)
    told = np.flatnonzero(known.number("tick") % policy.accuracy_ticks == 0)
    accuracy = known["vitality"].field("epistemic").take(pa.array(told))
    known.emit("AccuracyUpdated", told, {"accuracy": accuracy, "window": pa.array(np.full(len(told), window))})


def _actions(known: _Records) -> None:
    owner, place, action = known.listed("actions")
    for status, name in STATUS_EVENTS.items():
        rows = np.flatnonzero(pc.equal(action.field("status"), status))
        at = pa.array(rows)
        payload = {n: action.field(n).take(at) for n in _ACTION_PAYLOAD}
        known.emit(name, owner[rows], payload | {"reason": action.field("block_reason").take(at)}, place[rows])


def _tools(known: _Records) -> None:
    """Runs of tools as the runtime tells them; where it does not, the actions."""
    owner, place, run = known.listed("pipeline.tool_runs")
    told = np.asarray(known["pipeline.tool_runs"].is_valid())
    acting, acted, action = known.listed("actions")
    silent = np.flatnonzero(~told[acting])
    owners, places = np.concatenate([owner, acting[silent]]), np.concatenate([place, acted[silent]])
    own, count = pa.array(silent), len(silent)
    named = pa.concat_arrays([run.field("tool"), action.field("tool_name").take(own)])
    done = pc.equal(action.field("status").take(own), "executed")
    unknown = pa.nulls(count, pa.string())
    ticks = known["tick"].take(pa.array(owners))
    hashes = pa.concat_arrays([run.field("params_hash"), unknown])
    known.emit("tool:start", owners, {"tool_name": named, "params_hash": hashes, "tick": ticks}, places)
    known.emit(
        "tool:end",
        owners,
        {
            "tool_name": named,
            "success": pa.concat_arrays([run.field("success"), done]),
            "duration_ms": pa.concat_arrays([run.field("duration_ms"), pa.nulls(count, pa.int64())]),
            "result_summary": pa.concat_arrays([run.field("result_summary"), unknown]),
        },
        places,
    )
    of_run, _, step = flat(run.field("steps"))
    # A step's place counts through all runs of its record: it is its number in the id.
    rows = owner[of_run]
    starts = np.searchsorted(rows, rows)
    known.emit(
        "tool:update",
        rows,
        {"tool_name": run.field("tool").take(pa.array(of_run)), "step": step},
        np.arange(len(rows)) - starts,
    )


def _memories(known: _Records, importance: pa.Array) -> None:
    owner, place, episode = known.listed("episodes_written")
    at = pa.array(owner)
    acting, acted, action = known.listed("actions")
    first = np.full(known.count, -1)
    first[acting[acted == 0]] = np.flatnonzero(acted == 0)
    mine = first[owner]
    tools = action.field("tool_name").take(pa.array(np.maximum(mine, 0), mask=mine < 0))
    payload = {
        "episode_id": episode,
        "importance": importance.take(at),
        "tool": tools,
        "chain": known["observation.chain"].take(at),
        "dream_tag": known["dream_tag"].take(at),
    }
    known.emit("grimoire:episode_stored", owner, payload, place)
    owner, place, entry = known.listed("retrieved_entries")
    _each(known, "grimoire:retrieved", owner, place, entry)
    owner, place, mutation = known.listed("grimoire_mutations")
    _each(known, "grimoire:mutation_seen", owner, place, mutation)


def _each(
    known: _Records,
    name: str,
    owner: np.ndarray,
    place: np.ndarray,
    elements: pa.Array,
    chosen: np.ndarray | None = None,
) -> None:
    """An event of each element (or of those chosen) whose payload's fields are the element's own."""
    rows = np.arange(len(owner)) if chosen is None else chosen
    at = pa.array(rows)
    payload = {column: elements.field(column).take(at) for column in EVENTS[name].payload.model_fields}
    known.emit(name, owner[rows], payload, place[rows])
