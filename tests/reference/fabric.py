"""The row-at-a-time twins of events/stream/from_records.py and from_projections.py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from bardo_pipeline.events.stream.catalogue import EVENTS

Row = Mapping[str, Any]


class Told(NamedTuple):
    """An event as plain values."""

    event_id: str
    name: str
    golem_id: str
    tick: int | None
    at: Any
    payload: dict[str, Any]


def _told(name: str, row: Row, place: int, **payload: Any) -> tuple[tuple[Any, ...], Told]:
    told = Told(f"{name}/{row['tick']}.{place}/{row['golem_id']}", name, row["golem_id"], row["tick"],
                row["observed_at"], payload)  # fmt: skip
    return _rank(told, place), told


def _rank(told: Told, place: Any) -> tuple[Any, ...]:
    return told.at, told.golem_id, -1 if told.tick is None else told.tick, list(EVENTS).index(told.name), place


def _picked(source: Row, *names: str) -> dict[str, Any]:
    return {name: source[name] for name in names}


def record_events(
    rows: Sequence[Row], neighbours: Iterable[Row], tiers: Sequence[str], *, warns_at: int, told_every: int, window: int
) -> list[Told]:
    """The events of records, in their order."""
    found = [event for row, tier in zip(rows, tiers, strict=True)
             for event in _of_record(row, tier, warns_at, told_every, window)]  # fmt: skip
    found.extend(_changes(rows, neighbours))
    return [told for _, told in sorted(found, key=lambda pair: pair[0])]


def _of_record(row: Row, tier: str, warns_at: int, told_every: int, window: int) -> Iterator[Any]:
    seen, tick = row["observation"], row["tick"]
    yield _told(
        "heartbeat:observation", row, 0, regime=row["regime"], anomaly_count=len(row["anomalies"]),
        probe_count=len(row["probe_results"]), anomalies=[a["description"] for a in row["anomalies"]],
        **_picked(seen, "chain", "protocol", "pair", "block_number", "price", "gas_gwei", "net_asset_value_micros"),
    )  # fmt: skip
    yield _told(
        "heartbeat:tick", row, 0, tick=tick, tier=row["tier"], prediction_error=row["prediction_error"],
        threshold=row["deliberation_threshold"], forced_by=row["forced_by"], reason=row["gating_reason"],
    )  # fmt: skip
    if row["tier"] == "suppress":
        later = row["observed_at"] + timedelta(seconds=row["tick_interval_seconds"])
        yield _told("heartbeat:suppress", row, 0, tick=tick, reason=row["gating_reason"], next_scheduled=later)
    pipeline = row["pipeline"] or {}
    for place, steer in enumerate(row["active_interventions"]):
        yield _told(
            "heartbeat:steer_received", row, place, steer_id=steer["intervention_id"],
            fsm_state=pipeline.get("steer_state"), severity=steer["severity"], kind=steer["kind"],
        )  # fmt: skip
    yield _told(
        "heartbeat:complete", row, 0, tick=tick, duration_ms=pipeline.get("duration_ms"),
        actions_taken=len(row["actions"]), cost_micros=row["cost"]["total_micros"],
    )  # fmt: skip
    if pipeline.get("queue_depth", 0) >= warns_at:
        yield _told("heartbeat:queue_warning", row, 0, tick=tick, queue_depth=pipeline["queue_depth"])
    if pipeline.get("ticks_dropped", 0) > 0:
        dropped, dreaming = pipeline["ticks_dropped"], pipeline["dropped_while_dreaming"]
        yield _told("heartbeat:tick_dropped", row, 0, tick=tick, dropped=dropped, during_dream=dreaming)
        if dreaming:
            yield _told("heartbeat:tick_dropped_during_dream", row, 0, tick=tick, dropped=dropped)
    yield from _of_thought(row)
    yield from _of_feeling(row)
    yield from _of_prediction(row, told_every, window)
    yield from _of_action(row, pipeline)
    yield from _of_memory(row, tier)
    yield _told(
        "mortality:vitality", row, 0, **_picked(row, "vitality", "phase", "credits_micros", "credit_consumed_micros")
    )


def _of_thought(row: Row) -> Iterator[Any]:
    if row["deliberation"] is not None:
        names = ("model", "tier", "input_tokens", "output_tokens", "cache_read_tokens", "latency_ms", "cost_micros",
                 "decision", "confidence", "recommends_action")  # fmt: skip
        yield _told("inference:complete", row, 0, **_picked(row["deliberation"], *names))
    if row["context_bundle_summary"] is not None:
        yield _told("context:assembled", row, 0, **_picked(row["context_bundle_summary"], "tokens", "categories"))
    if row["outcome"] is not None:
        yield _told("action:verified", row, 0, **row["outcome"])


def _of_feeling(row: Row) -> Iterator[Any]:
    for place, probe in enumerate(row["probe_results"]):
        if probe["severity"] in ("low", "high"):
            yield _told("attention:probe_raised", row, place, **probe)
    if row["pad_before"] != row["pad_after"]:
        payload = {"before": row["pad_before"], "after": row["pad_after"], "emotion": row["primary_emotion"]}
        yield _told("affect:shifted", row, 0, **payload)
    for place, marker in enumerate(row["somatic_markers_fired"]):
        yield _told("affect:somatic_marker", row, place, **marker)


def _of_prediction(row: Row, told_every: int, window: int) -> Iterator[Any]:
    for place, made in enumerate(row["predictions"]):
        yield _told("prediction:registered", row, place, **_picked(made, "quantity", "expected", "low", "high"))
        yield _told("prediction:resolved", row, place, **_picked(made, "quantity", "expected", "actual", "held"))
    for place, judged in enumerate(row["resolutions"]):
        names = ("decision_tick", "action_type", "tool_name", "chosen", "regime", "effect_ppm", "verified",
                 "ground_truth_source")  # fmt: skip
        yield _told("prediction:decision_resolved", row, place, **_picked(judged, *names))
    if row["tick"] % told_every == 0:
        yield _told("AccuracyUpdated", row, 0, accuracy=row["vitality"]["epistemic"], window=window)


def _of_action(row: Row, pipeline: Row) -> Iterator[Any]:
    words = {"executed": "executed", "reverted": "failed", "blocked": "blocked", "deferred": "deferred"}
    for place, action in enumerate(row["actions"]):
        names = ("action_type", "tool_name", "permit_id", "tx_hash", "gas_cost_micros", "slippage_ppm", "value_micros")
        payload = _picked(action, *names) | {"reason": action["block_reason"]}
        yield _told(f"action:{words[action['status']]}", row, place, **payload)
    runs = pipeline.get("tool_runs")
    if runs is None:
        runs = [
            {"tool": a["tool_name"], "params_hash": None, "steps": [], "success": a["status"] == "executed",
             "duration_ms": None, "result_summary": None}
            for a in row["actions"]
        ]  # fmt: skip
    steps = 0
    for place, run in enumerate(runs):
        yield _told("tool:start", row, place, tool_name=run["tool"], params_hash=run["params_hash"], tick=row["tick"])
        payload = {"tool_name": run["tool"], **_picked(run, "success", "duration_ms", "result_summary")}
        yield _told("tool:end", row, place, **payload)
        for step in run["steps"]:
            yield _told("tool:update", row, steps, tool_name=run["tool"], step=step)
            steps += 1


def _of_memory(row: Row, tier: str) -> Iterator[Any]:
    tool = row["actions"][0]["tool_name"] if row["actions"] else None
    for place, episode in enumerate(row["episodes_written"]):
        payload = {"episode_id": episode, "importance": tier, "tool": tool, "chain": row["observation"]["chain"]}
        yield _told("grimoire:episode_stored", row, place, **payload, dream_tag=row["dream_tag"])
    for place, entry in enumerate(row["retrieved_entries"]):
        yield _told("grimoire:retrieved", row, place, **entry)
    for place, mutation in enumerate(row["grimoire_mutations"]):
        yield _told("grimoire:mutation_seen", row, place, **mutation)


def _changes(rows: Sequence[Row], neighbours: Iterable[Row]) -> Iterator[Any]:
    fresh = {(row["golem_id"], row["tick"]) for row in rows}
    known = {(row["golem_id"], row["tick"]): row for row in (*neighbours, *rows)}
    for (golem_id, tick), row in known.items():
        before = known.get((golem_id, tick - 1))
        if before is None or not {(golem_id, tick), (golem_id, tick - 1)} & fresh:
            continue
        for name, column in (("heartbeat:regime_shift", "regime"), ("mortality:phase_transition", "phase")):
            if before[column] != row[column]:
                yield _told(name, row, 0, before=before[column], after=row[column])


def decision_events(rows: Sequence[Row]) -> list[Told]:
    """The events of a commit of decisions, in their order."""
    found = []
    cycles: dict[tuple[str, int, int, int], list[Row]] = {}
    for row in rows:
        stands, turn = row["because"] is None, row["turn"] or 0
        payload = {"entry_type": row["kind"], "category": row["category"], "confidence": row["confidence_ppm"] / 1e6,
                   "source": row["provenance"], "entry_id": row["entry_id"],
                   "operation": row["operation"] if stands else "withdrawn", "cycle": row["cycle"]}  # fmt: skip
        place = f"{row['revision']}.{row['cycle']}.{row['seq']}.{turn}.{'stands' if stands else 'withdrawn'}"
        told = Told(
            f"GrimoireWrite/{place}/{row['golem_id']}", "GrimoireWrite", row["golem_id"], None, row["at"], payload
        )
        found.append((_rank(told, 2 * row["seq"] + stands), told))
        if row["operation"] != "received":
            cycles.setdefault((row["golem_id"], row["revision"], row["cycle"], turn), []).append(row)
    name = "grimoire:consolidation_complete"
    for (golem_id, revision, cycle, turn), own in cycles.items() if all(r["because"] is None for r in rows) else ():
        payload = {
            "episodes_processed": len({tick for row in own for tick in row["cause_ticks"]}),
            "insights_created": sum(row["operation"] == "created" for row in own),
            "insights_reinforced": sum(row["operation"] == "reinforced" for row in own),
            "cycle": cycle,
        }
        told = Told(f"{name}/{revision}.{cycle}.{turn}/{golem_id}", name, golem_id, None, own[0]["at"], payload)
        found.append((_rank(told, (revision, cycle, turn)), told))
    return [told for _, told in sorted(found, key=lambda pair: pair[0])]


def cycle_events(rows: Sequence[Row]) -> list[Told]:
    """The events of a commit of closed cycles, in their order."""
    name, found = "CuratorCycleComplete", []
    for row in rows:
        if row["because"] is None:
            names = ("entries_pruned", "entries_promoted", "heuristics_proposed", "cycle", "record_count")
            event_id = f"{name}/{row['cycle']}.{row['turn'] or 0}/{row['golem_id']}"
            told = Told(event_id, name, row["golem_id"], row["tick_last"], row["closed_at"], _picked(row, *names))
            found.append((_rank(told, row["cycle"]), told))
    return [told for _, told in sorted(found, key=lambda pair: pair[0])]
