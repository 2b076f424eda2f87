"""Record field of routed chain events and of the router's learning state. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from bardo_pipeline.events.record.model import Router
from bardo_pipeline.heartbeat.fleet import EVENT_SCORES, ROUTES
from bardo_pipeline.heartbeat.gating.event_router import DECIDERS
from bardo_pipeline.heartbeat.records import arrow_builders as arrow
from bardo_pipeline.heartbeat.records.chunk_rows import Rows, record_type
from bardo_pipeline.market.chain_events import EVENT_KINDS

AROUSAL_REGIMES = ("low", "medium", "high")


def triage(rows: Rows) -> pa.Array | None:
    """Build the events of each record with their routes; None without the router."""
    if not rows.has("triage_route"):
        return None
    type_, tape = record_type("triage"), rows.chunk.tape
    route = rows["triage_route"]
    row, kind = np.nonzero(route >= 0)
    scores = rows["triage_scores"][row, :, kind].T
    parts: dict[str, Any] = {
        "kind": arrow.text_of(EVENT_KINDS, kind),
        "value_micros": tape.events.value_micros[kind, rows.t[row]],
        "scores": dict(zip(EVENT_SCORES, scores, strict=True)),
        "score": rows["triage_score"][row, kind],
        "route": arrow.text_of(ROUTES, route[row, kind]),
        "decider": arrow.text_of(DECIDERS, rows["triage_decider"][row, kind]),
        "shadow_route": arrow.text_of(ROUTES, rows["triage_shadow"][row, kind]),
    }
    events = type_.field("events").type
    columns = {
        "events": arrow.list_array(events, (route >= 0).sum(axis=1), arrow.struct(events.value_type, parts)),
        "arm": rows["triage_arm"],
        "arousal_regime": arrow.text_of(AROUSAL_REGIMES, rows["triage_arousal_regime"]),
        "woke": rows["triage_woke"],
        "state": _state(rows, type_.field("state").type),
    }
    return arrow.struct(type_, columns)


def _state(rows: Rows, type_: pa.DataType) -> pa.Array:
    """Build the learning state of the records that begin a delta; null in others."""
    where = np.flatnonzero(rows["triage_begins"])
    begun, place = rows.take(where), np.full(rows.count, -1)
    place[where] = np.arange(len(where))
    parts = {}
    for name in Router.model_fields:
        values = begun[f"triage_{name}"]
        counts = np.full(len(where), values.shape[1])
        parts[name] = arrow.list_array(type_.field(name).type, counts, pa.array(values.reshape(-1)))
    return arrow.scattered(arrow.struct(type_, parts), place)
