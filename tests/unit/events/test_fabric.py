"""The event stream: its event names, their payloads, and the source of each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pyarrow as pa
import pytest

from bardo_pipeline.dreams.dream_cycle import DREAM_SCHEMA
from bardo_pipeline.dreams.hypothesis_table import HYPOTHESIS_SCHEMA
from bardo_pipeline.events.custody.sealing import PRIVATE
from bardo_pipeline.events.life.events import Died, Kind, Received, Steered, Struck, life_event
from bardo_pipeline.events.life.life_schema import LIFE_SCHEMA
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA, to_table
from bardo_pipeline.events.record.model import Vitality
from bardo_pipeline.events.stream.catalogue import CATEGORIES, EVENTS, GolemEvent
from bardo_pipeline.events.stream.event_table import NEIGHBOUR_COLUMNS, Emitted
from bardo_pipeline.events.stream.from_projections import (
    DREAM_COLUMNS,
    HYPOTHESIS_COLUMNS,
    dream_events,
    hypothesis_events,
    life_events,
)
from bardo_pipeline.events.stream.from_records import RECORD_COLUMNS, record_events
from bardo_pipeline.policy import FabricPolicy
from tests.property.events.test_fabric_twin import by_path
from tests.support.records.handmade_records import START, action, full

pytestmark = pytest.mark.row("EV-7")

DOCS = Path(__file__).parents[3] / "docs" / "events.md"
NAMED = {
    "heartbeat:tick": ("tick", "tier", "prediction_error", "threshold"),
    "heartbeat:complete": ("tick", "duration_ms", "actions_taken"),
    "heartbeat:suppress": ("tick", "reason", "next_scheduled"),
    "heartbeat:observation": ("regime", "anomaly_count", "probe_count"),
    "heartbeat:steer_received": ("steer_id", "fsm_state", "severity"),
    "heartbeat:queue_warning": ("tick",),
    "heartbeat:tick_dropped": ("tick",),
    "heartbeat:tick_dropped_during_dream": ("tick",),
    "tool:start": ("tool_name", "params_hash", "tick"),
    "tool:update": ("step",),
    "tool:end": ("success", "duration_ms", "result_summary"),
    "grimoire:episode_stored": ("episode_id", "importance", "tool", "chain", "dream_tag"),
    "grimoire:consolidation_complete": ("episodes_processed", "insights_created", "episodes_decayed"),
    "grimoire:import_complete": ("episodes", "insights", "strategies", "confidence_override"),
    "dream:import_hook": (),
    "dream:consolidation_hook": (),
    "dream:cycle_start": ("cycle",),
    "dream:fragment": ("replayed_tick",),
    "dream:integration": ("hypothesis_id", "confidence"),
    "dream:cycle_end": ("cycle",),
    "pheromone:deposited": ("sort", "intensity"),
    "CuratorCycleComplete": ("entries_pruned", "entries_promoted", "heuristics_proposed"),
    "GrimoireWrite": ("entry_type", "category", "confidence", "source"),
    "AccuracyUpdated": (),
}
"""Each documented event name with a recorded cause, and its documented fields."""

PIPELINE = {
    "queue_depth": 0,
    "ticks_dropped": 0,
    "dropped_while_dreaming": False,
    "duration_ms": 12,
    "steer_state": None,
    "tool_runs": None,
}


def events_of(*rows: dict, before: pa.Table | None = None) -> list[GolemEvent]:
    """The events of records made by hand."""
    table = by_path(full({"golem_id": "g", "tick": at + 1, "observed_at": START, **r} for at, r in enumerate(rows)))
    neighbours = table.slice(0, 0).select(NEIGHBOUR_COLUMNS) if before is None else before
    tiers = pa.array(["notable"] * len(rows))
    return events(record_events(table, neighbours, tiers, policy=FabricPolicy(), window=500))


def events(emitted: Emitted) -> list[GolemEvent]:
    return [event for _, event in emitted.events()]


def named(rows: list[GolemEvent], name: str) -> list[dict]:
    return [event.payload.model_dump() for event in rows if event.name == name]


def test_every_documented_event_has_its_documented_fields() -> None:
    for name, fields in NAMED.items():
        assert set(fields) <= set(EVENTS[name].payload.model_fields), name


def test_every_event_has_a_category_and_every_life_event_kind_is_an_event() -> None:
    assert len(CATEGORIES) == 10
    assert {family.category for family in EVENTS.values()} == set(CATEGORIES) - {"hermes"}
    assert set(get_args(Kind)) <= set(EVENTS)


def test_the_documentation_lists_every_event_with_category_and_fields() -> None:
    listed: dict[str, tuple[str, str]] = {}
    for line in DOCS.read_text().splitlines():
        if row := re.match(r"\| `([A-Za-z:_]+)` \| (\w+) \| [^|]+ \| (.+) \|$", line):
            listed[row[1]] = (row[2], row[3])
    assert {name: category for name, (category, _) in listed.items()} == {n: f.category for n, f in EVENTS.items()}
    for name, (_, payload) in listed.items():
        words = set(re.findall(r"\w+", payload))
        assert payload == "the same" or set(EVENTS[name].payload.model_fields) <= words, name


def test_events_read_every_record_column_except_metadata_and_private_parts() -> None:
    read = {path.split(".")[0] for path in RECORD_COLUMNS}
    unread = {"schema_version", "cycle_seen", "derivation_id", "playbook_version", "prediction_error_sources", "sealed"}
    unread |= {"attention", "clocks", "credit_partitions", "experiences", "gating", "retrieval", "trials"}
    unread |= {"spending", "permits", "cached_decision", "residual_digest", "failed_subsystems"}
    assert set(RECORD_SCHEMA.names) - read == unread
    assert not any(path == read or path.startswith(f"{read}.") for path in PRIVATE for read in RECORD_COLUMNS)


def test_heartbeat_events_are_derived_from_the_record() -> None:
    (tick,) = named(events_of({"tier": "T1", "prediction_error": 0.4, "deliberation_threshold": 0.3}), "heartbeat:tick")
    assert (tick["tick"], tick["tier"], tick["prediction_error"], tick["threshold"]) == (1, "T1", 0.4, 0.3)
    (done,) = named(events_of({"actions": [action(), action("blocked")], "pipeline": PIPELINE}), "heartbeat:complete")
    assert (done["duration_ms"], done["actions_taken"]) == (12, 2)
    assert named(events_of({}), "heartbeat:complete")[0]["duration_ms"] is None


def test_a_suppress_event_contains_the_next_scheduled_tick() -> None:
    breaks = named(
        events_of({"tier": "suppress", "tick_interval_seconds": 90, "gating_reason": "dying"}), "heartbeat:suppress"
    )
    assert breaks[0]["reason"] == "dying"
    assert (breaks[0]["next_scheduled"] - START).total_seconds() == 90
    assert not named(events_of({"tier": "T0"}), "heartbeat:suppress")


def test_queue_warnings_start_at_depth_two_and_drops_in_a_dream_are_marked() -> None:
    result = events_of(
        {"pipeline": PIPELINE | {"queue_depth": 1}},
        {"pipeline": PIPELINE | {"queue_depth": 2, "ticks_dropped": 1}},
        {"pipeline": PIPELINE | {"queue_depth": 3, "ticks_dropped": 4, "dropped_while_dreaming": True}},
    )
    assert [w["queue_depth"] for w in named(result, "heartbeat:queue_warning")] == [2, 3]
    assert [(d["dropped"], d["during_dream"]) for d in named(result, "heartbeat:tick_dropped")] == [
        (1, False),
        (4, True),
    ]
    (asleep,) = [event for event in result if event.name == "heartbeat:tick_dropped_during_dream"]
    assert (asleep.category, asleep.tick, asleep.payload.model_dump()["dropped"]) == ("dream", 3, 4)


def test_a_steer_event_contains_the_state_of_the_tick() -> None:
    steer = {"intervention_id": "i-1", "kind": "steer", "severity": "high", "intent": "sell"}
    result = events_of(
        {"active_interventions": [steer], "pipeline": PIPELINE | {"steer_state": "deciding:interrupted"}}
    )
    assert named(result, "heartbeat:steer_received") == [
        {"steer_id": "i-1", "fsm_state": "deciding:interrupted", "severity": "high", "kind": "steer"}
    ]


def test_tool_events_come_from_tool_runs_or_else_from_actions() -> None:
    run = {"tool": "memory_consolidate", "params_hash": "ab12", "steps": ["Clustering", "Running decay pass"],
           "success": True, "duration_ms": 900, "result_summary": "2 insights created"}  # fmt: skip
    result = events_of({"pipeline": PIPELINE | {"tool_runs": [run]}, "actions": [action()]})
    assert named(result, "tool:start") == [{"tool_name": "memory_consolidate", "params_hash": "ab12", "tick": 1}]
    assert [step["step"] for step in named(result, "tool:update")] == run["steps"]
    assert named(result, "tool:end")[0]["result_summary"] == "2 insights created"
    silent = events_of({"actions": [action(), action("reverted")]})
    assert [(t["params_hash"], t["tick"]) for t in named(silent, "tool:start")] == [(None, 1), (None, 1)]
    assert [(t["success"], t["duration_ms"]) for t in named(silent, "tool:end")] == [(True, None), (False, None)]


def test_an_action_event_is_named_after_its_status() -> None:
    result = events_of({"actions": [action(), action("reverted"), action("blocked"), action("deferred")]})
    names = [event.name for event in result if event.name.startswith("action:")]
    assert sorted(names) == ["action:blocked", "action:deferred", "action:executed", "action:failed"]


def test_a_phase_change_is_reported_once_for_any_order_of_arrival() -> None:
    rows = [{"phase": "stable", "regime": "volatile"}, {"phase": "declining", "regime": "volatile"}]
    table = by_path(full({"golem_id": "g", "tick": at + 1, "observed_at": START, **r} for at, r in enumerate(rows)))
    none, tier = table.slice(0, 0).select(NEIGHBOUR_COLUMNS), pa.array(["routine"])
    first, second = table.slice(0, 1), table.slice(1, 1)
    for early, late in ((first, second), (second, first)):
        alone = events(record_events(early, none, tier, policy=FabricPolicy(), window=500))
        assert not named(alone, "mortality:phase_transition")
        result = events(record_events(late, early.select(NEIGHBOUR_COLUMNS), tier, policy=FabricPolicy(), window=500))
        (change,) = [event for event in result if event.name == "mortality:phase_transition"]
        assert (change.tick, change.payload.model_dump()) == (2, {"before": "stable", "after": "declining"})
        assert not named(result, "heartbeat:regime_shift")


def test_accuracy_is_updated_once_a_curator_cycle() -> None:
    table = by_path(full({"golem_id": "g", "tick": t, "observed_at": START} for t in range(1, 101)))
    none, tiers = table.slice(0, 0).select(NEIGHBOUR_COLUMNS), pa.array(["routine"] * 100)
    result = events(record_events(table, none, tiers, policy=FabricPolicy(), window=500))
    assert [event.tick for event in result if event.name == "AccuracyUpdated"] == [50, 100]


def test_event_ids_are_unique_and_equal_for_equal_causes() -> None:
    rows = [{"golem_id": g, "tick": t, "actions": [action(), action()]} for g in ("a", "a/1", "1.0/a") for t in (1, 11)]
    result = events_of(*rows)
    assert len({event.event_id for event in result}) == len(result)
    assert {event.event_id for event in events_of(*rows)} == {event.event_id for event in result}


def test_life_events_keep_names_and_payloads_and_imports_add_an_event() -> None:
    vitality = Vitality(economic=0.1, epistemic=0.2, stochastic=0.0, composite=0.0)
    died = Died(cause="stochastic", tick=9, phase="terminal", vitality=vitality, credits_micros=1, capital_micros=2,
                earned_micros=3)  # fmt: skip
    given = [
        life_event("g", START, died),
        life_event("g", START, Steered(intervention_id="i", due_tick=4, severity="low", intent="wait")),
        life_event("g", START, Struck(tick=7, why="bad feed")),
        life_event("h", START, Received(source="succession", from_golem_id="g", content_hash="c1", entry_count=5)),
    ]
    imported = {"episodes": 64, "insights": 5, "strategies": 0, "confidence_override": None, "content_hash": "c1"}
    by_key = {e.name: e for e in events(life_events(to_table(given, LIFE_SCHEMA), [imported]))}
    assert by_key["DeathDeclared"].payload == died
    assert [by_key[n].tick for n in ("DeathDeclared", "OwnerSteered", "RecordStruck", "KnowledgeReceived")] == [
        9,
        4,
        7,
        None,
    ]
    assert by_key["grimoire:import_complete"].payload.model_dump() == imported
    assert by_key["dream:import_hook"].category == "dream"


@pytest.mark.row("EV-7")
def test_dreams_and_their_hypotheses_are_events_and_retracted_ones_are_not() -> None:
    replay = {"tick": 41, "salience_ppm": 800_000, "arousal_before_ppm": 500_000, "arousal_after_ppm": 380_000}
    dream = dict.fromkeys(DREAM_COLUMNS, 1) | {
        "golem_id": "g-1", "at": START, "began_by": "idle", "tick": 50, "replayed": [replay, replay | {"tick": 43}],
        "because": None,
    }  # fmt: skip
    columns = [field for field in DREAM_SCHEMA if field.name in DREAM_COLUMNS]
    schema = pa.schema([*columns, pa.field("turn", pa.int64()), pa.field("because", pa.string())])
    rows = [dream, dream | {"golem_id": "g-2", "because": "struck"}]
    events = [event for _, event in dream_events(pa.Table.from_pylist(rows, schema)).events()]
    assert [event.name for event in events] == ["dream:cycle_start", *["dream:fragment"] * 2, "dream:cycle_end"]
    assert {(event.golem_id, event.tick) for event in events} == {("g-1", 50)}
    assert [part["replayed_tick"] for part in named(events, "dream:fragment")] == [41, 43]
    assert named(events, "dream:fragment")[0]["arousal_after"] == 0.38
    assert named(events, "dream:cycle_end")[0]["episodes_replayed"] == 2
    change = dict.fromkeys(HYPOTHESIS_COLUMNS, 2) | {
        "golem_id": "g-1", "hypothesis_id": "h", "at": START, "operation": "staged", "state": "staged", "text": "x",
        "confidence_ppm": 250_000, "because": None,
    }  # fmt: skip
    columns = [field for field in HYPOTHESIS_SCHEMA if field.name in HYPOTHESIS_COLUMNS]
    schema = pa.schema([*columns, pa.field("turn", pa.int64()), pa.field("because", pa.string())])
    rows = [change, change | {"seq": 3, "because": "struck"}]
    (event,) = [event for _, event in hypothesis_events(pa.Table.from_pylist(rows, schema)).events()]
    assert (event.name, event.payload.model_dump()["confidence"]) == ("dream:integration", 0.25)


def test_no_event_contains_private_parts() -> None:
    secret = "the whale of Turin"
    table = full([{"golem_id": "g", "tick": 1, "observed_at": START, "deliberation": {
        "model": "m", "tier": "T1", "input_tokens": 1, "output_tokens": 1, "cache_read_tokens": None,
        "reasoning_summary": secret, "tool_calls": [], "decision": "hold", "confidence": 0.5, "latency_ms": None,
        "cost_micros": 1, "recommends_action": False}}])  # fmt: skip
    paths = by_path(table)
    made = record_events(paths, paths.slice(0, 0).select(NEIGHBOUR_COLUMNS), pa.array(["routine"]),
                         policy=FabricPolicy(), window=500)  # fmt: skip
    assert secret in str(table.to_pylist())
    assert secret not in "".join(event.model_dump_json() for event in events(made))
