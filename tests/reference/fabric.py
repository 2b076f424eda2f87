"""The row-at-a-time twins of events/stream/from_records.py and from_projections.py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from bardo_pipeline.events.stream.catalogue import EVENTS

Row = Mapping[str, Any]


class PlainEvent(NamedTuple):
    """An event as plain values."""

    event_id: str
    name: str
    golem_id: str
    tick: int | None
    at: Any
    payload: dict[str, Any]


def _plain_event(name: str, row: Row, place: int, **payload: Any) -> tuple[tuple[Any, ...], PlainEvent]:
    life = PlainEvent(f"{name}/{row['tick']}.{place}/{row['golem_id']}", name, row["golem_id"], row["tick"],
                row["observed_at"], payload)  # fmt: skip
    return _rank(life, place), life


def _rank(life: PlainEvent, place: Any) -> tuple[Any, ...]:
    return life.at, life.golem_id, -1 if life.tick is None else life.tick, list(EVENTS).index(life.name), place


def _picked(source: Row, *names: str) -> dict[str, Any]:
    return {name: source[name] for name in names}


def record_events(
    rows: Sequence[Row],
    neighbours: Iterable[Row],
    tiers: Sequence[str],
    *,
    warns_at: int,
    accuracy_every: int,
    window: int,
) -> list[PlainEvent]:
    """The events of records, in their order."""
    reported = [event for row, tier in zip(rows, tiers, strict=True)
             for event in _of_record(row, tier, warns_at, accuracy_every, window)]  # fmt: skip
    reported.extend(_changes(rows, neighbours))
    return [result for _, result in sorted(reported, key=lambda pair: pair[0])]


def _of_record(row: Row, tier: str, warns_at: int, accuracy_every: int, window: int) -> Iterator[Any]:
    seen, tick = row["observation"], row["tick"]
    yield _plain_event(
        "heartbeat:observation", row, 0, regime=row["regime"], anomaly_count=len(row["anomalies"]),
        probe_count=len(row["probe_results"]), anomalies=[a["description"] for a in row["anomalies"]],
        **_picked(seen, "chain", "protocol", "pair", "block_number", "price", "gas_gwei", "net_asset_value_micros"),
    )  # fmt: skip
    yield _plain_event(
        "heartbeat:tick", row, 0, tick=tick, tier=row["tier"], prediction_error=row["prediction_error"],
        threshold=row["deliberation_threshold"], forced_by=row["forced_by"], reason=row["gating_reason"],
    )  # fmt: skip
    if row["tier"] == "suppress":
        later = row["observed_at"] + timedelta(seconds=row["tick_interval_seconds"])
        yield _plain_event("heartbeat:suppress", row, 0, tick=tick, reason=row["gating_reason"], next_scheduled=later)
    pipeline = row["pipeline"] or {}
    for place, steer in enumerate(row["active_interventions"]):
        yield _plain_event(
            "heartbeat:steer_received", row, place, steer_id=steer["intervention_id"],
            fsm_state=pipeline.get("steer_state"), severity=steer["severity"], kind=steer["kind"],
        )  # fmt: skip
    yield _plain_event(
        "heartbeat:complete", row, 0, tick=tick, duration_ms=pipeline.get("duration_ms"),
        actions_taken=len(row["actions"]), cost_micros=row["cost"]["total_micros"],
    )  # fmt: skip
    if pipeline.get("queue_depth", 0) >= warns_at:
        yield _plain_event("heartbeat:queue_warning", row, 0, tick=tick, queue_depth=pipeline["queue_depth"])
    if pipeline.get("ticks_dropped", 0) > 0:
        dropped, dreaming = pipeline["ticks_dropped"], pipeline["dropped_while_dreaming"]
        yield _plain_event("heartbeat:tick_dropped", row, 0, tick=tick, dropped=dropped, during_dream=dreaming)
        if dreaming:
            yield _plain_event("heartbeat:tick_dropped_during_dream", row, 0, tick=tick, dropped=dropped)
    yield from _of_deliberation(row)
    yield from _of_mood(row)
    yield from _of_prediction(row, accuracy_every, window)
    yield from _of_action(row, pipeline)
    yield from _of_memory(row, tier)
    yield _plain_event(
        "mortality:vitality", row, 0, **_picked(row, "vitality", "phase", "credits_micros", "credit_consumed_micros")
    )


def _of_deliberation(row: Row) -> Iterator[Any]:
    if row["deliberation"] is not None:
        names = ("model", "tier", "input_tokens", "output_tokens", "cache_read_tokens", "latency_ms", "cost_micros",
                 "decision", "confidence", "recommends_action")  # fmt: skip
        yield _plain_event("inference:complete", row, 0, **_picked(row["deliberation"], *names))
    if row["context_bundle_summary"] is not None:
        yield _plain_event(
            "context:assembled", row, 0, **_picked(row["context_bundle_summary"], "tokens", "categories")
        )
    if row["outcome"] is not None:
        yield _plain_event("action:verified", row, 0, **row["outcome"])


def _of_mood(row: Row) -> Iterator[Any]:
    for place, probe in enumerate(row["probe_results"]):
        if probe["severity"] in ("low", "high"):
            yield _plain_event("attention:probe_raised", row, place, **probe)
    for place, change in enumerate(row["attention_changes"] or ()):
        yield _plain_event("attention:changed", row, place, **change)
    for place, event in enumerate((row["triage"] or {}).get("events", ())):
        if event["route"] in ("escalate", "emit"):
            yield _plain_event("ChainEvent", row, place, **_picked(event, "kind", "value_micros", "score", "route"))
    if row["pad_before"] != row["pad_after"]:
        payload = {"before": row["pad_before"], "after": row["pad_after"], "emotion": row["primary_emotion"]}
        yield _plain_event("affect:shifted", row, 0, **payload)
    for place, marker in enumerate(row["somatic_markers_fired"]):
        yield _plain_event("affect:somatic_marker", row, place, **marker)


def _of_prediction(row: Row, accuracy_every: int, window: int) -> Iterator[Any]:
    for place, made in enumerate(row["predictions"]):
        yield _plain_event("prediction:registered", row, place, **_picked(made, "quantity", "expected", "low", "high"))
        yield _plain_event("prediction:resolved", row, place, **_picked(made, "quantity", "expected", "actual", "held"))
    for place, judged in enumerate(row["resolutions"]):
        names = ("decision_tick", "action_type", "tool_name", "chosen", "regime", "effect_ppm", "verified",
                 "ground_truth_source")  # fmt: skip
        yield _plain_event("prediction:decision_resolved", row, place, **_picked(judged, *names))
    if row["tick"] % accuracy_every == 0:
        yield _plain_event("AccuracyUpdated", row, 0, accuracy=row["vitality"]["epistemic"], window=window)


def _of_action(row: Row, pipeline: Row) -> Iterator[Any]:
    words = {"executed": "executed", "reverted": "failed", "blocked": "blocked", "deferred": "deferred"}
    for place, action in enumerate(row["actions"]):
        names = ("action_type", "tool_name", "permit_id", "tx_hash", "gas_cost_micros", "slippage_ppm", "value_micros")
        payload = _picked(action, *names) | {"reason": action["block_reason"]}
        yield _plain_event(f"action:{words[action['status']]}", row, place, **payload)
    runs = pipeline.get("tool_runs")
    if runs is None:
        runs = [
            {"tool": a["tool_name"], "params_hash": None, "steps": [], "success": a["status"] == "executed",
             "duration_ms": None, "result_summary": None}
            for a in row["actions"]
        ]  # fmt: skip
    steps = 0
    for place, run in enumerate(runs):
        yield _plain_event(
            "tool:start", row, place, tool_name=run["tool"], params_hash=run["params_hash"], tick=row["tick"]
        )
        payload = {"tool_name": run["tool"], **_picked(run, "success", "duration_ms", "result_summary")}
        yield _plain_event("tool:end", row, place, **payload)
        for step in run["steps"]:
            yield _plain_event("tool:update", row, steps, tool_name=run["tool"], step=step)
            steps += 1


def _of_memory(row: Row, tier: str) -> Iterator[Any]:
    tool = row["actions"][0]["tool_name"] if row["actions"] else None
    for place, episode in enumerate(row["episodes_written"]):
        payload = {"episode_id": episode, "importance": tier, "tool": tool, "chain": row["observation"]["chain"]}
        yield _plain_event("grimoire:episode_stored", row, place, **payload, dream_tag=row["dream_tag"])
    for place, entry in enumerate(row["retrieved_entries"]):
        yield _plain_event("grimoire:retrieved", row, place, **entry)
    for place, mutation in enumerate(row["grimoire_mutations"]):
        yield _plain_event("grimoire:mutation_seen", row, place, **mutation)


def _changes(rows: Sequence[Row], neighbours: Iterable[Row]) -> Iterator[Any]:
    fresh = {(row["golem_id"], row["tick"]) for row in rows}
    known = {(row["golem_id"], row["tick"]): row for row in (*neighbours, *rows)}
    for (golem_id, tick), row in known.items():
        before = known.get((golem_id, tick - 1))
        if before is None or not {(golem_id, tick), (golem_id, tick - 1)} & fresh:
            continue
        for name, column in (("heartbeat:regime_shift", "regime"), ("mortality:phase_transition", "phase")):
            if before[column] != row[column]:
                yield _plain_event(name, row, 0, before=before[column], after=row[column])


def decision_events(rows: Sequence[Row]) -> list[PlainEvent]:
    """The events of a commit of decisions, in their order."""
    lines = []
    cycles: dict[tuple[str, int, int, int], list[Row]] = {}
    for row in rows:
        stands, turn = row["because"] is None, row["turn"] or 0
        payload = {"entry_type": row["kind"], "category": row["category"], "confidence": row["confidence_ppm"] / 1e6,
                   "source": row["provenance"], "entry_id": row["entry_id"],
                   "operation": row["operation"] if stands else "withdrawn", "cycle": row["cycle"]}  # fmt: skip
        place = f"{row['revision']}.{row['cycle']}.{row['seq']}.{turn}.{'stands' if stands else 'withdrawn'}"
        life = PlainEvent(
            f"GrimoireWrite/{place}/{row['golem_id']}", "GrimoireWrite", row["golem_id"], None, row["at"], payload
        )
        lines.append((_rank(life, 2 * row["seq"] + stands), life))
        if row["operation"] != "received" and row["cycle"] > 0:
            cycles.setdefault((row["golem_id"], row["revision"], row["cycle"], turn), []).append(row)
    name = "grimoire:consolidation_complete"
    for (golem_id, revision, cycle, turn), own in cycles.items() if all(r["because"] is None for r in rows) else ():
        payload = {
            "episodes_processed": len({tick for row in own for tick in row["cause_ticks"]}),
            "insights_created": sum(row["operation"] == "created" for row in own),
            "insights_reinforced": sum(row["operation"] == "reinforced" for row in own),
            "episodes_decayed": None,
            "cycle": cycle,
        }
        life = PlainEvent(f"{name}/{revision}.{cycle}.{turn}/{golem_id}", name, golem_id, None, own[0]["at"], payload)
        lines.append((_rank(life, (revision, cycle, turn)), life))
    return [life for _, life in sorted(lines, key=lambda pair: pair[0])]


def cycle_events(rows: Sequence[Row]) -> list[PlainEvent]:
    """The events of a commit of closed cycles, in their order."""
    name, result = "CuratorCycleComplete", []
    for row in rows:
        if row["because"] is None:
            names = ("entries_pruned", "entries_promoted", "heuristics_proposed", "cycle", "record_count")
            event_id = f"{name}/{row['cycle']}.{row['turn'] or 0}/{row['golem_id']}"
            life = PlainEvent(event_id, name, row["golem_id"], row["tick_last"], row["closed_at"], _picked(row, *names))
            result.append((_rank(life, row["cycle"]), life))
    return [life for _, life in sorted(result, key=lambda pair: pair[0])]
