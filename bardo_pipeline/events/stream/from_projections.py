"""Typed events of curator decisions, closed cycles and life events. Pure. Source: EV-7."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.events.life.events import _ATTRIBUTE_OF
from bardo_pipeline.events.record.arrow_columns import one
from bardo_pipeline.events.record.arrow_schema import arrow_schema
from bardo_pipeline.events.stream.catalogue import EVENTS
from bardo_pipeline.events.stream.event_table import Emitted, event_ids, flat, frame_of
from bardo_pipeline.events.stream.from_changes import Steps, add_change_events

DECISION_COLUMNS = (
    "golem_id", "revision", "cycle", "seq", "at", "operation", "entry_id", "kind", "category", "confidence_ppm",
    "provenance", "cause_ticks", "turn", "because",
)  # fmt: skip
CYCLE_COLUMNS = (
    "golem_id", "cycle", "tick_last", "closed_at", "record_count", "entries_pruned", "entries_promoted",
    "heuristics_proposed", "turn", "because",
)  # fmt: skip
"""turn, because: bookkeeping columns of a projection; a row with `because` retracts another (projections.py)."""


def decision_events(decisions: pa.Table) -> Emitted:
    """Return the events of one commit of curator decisions (DECISION_COLUMNS): writes, and sums by cycle."""
    out = Emitted()
    columns = {name: one(decisions.column(name)) for name in DECISION_COLUMNS}
    is_valid = columns["because"].is_null()
    confidence = pa.array(columns["confidence_ppm"].to_numpy() / 1e6)
    payload = {"entry_type": columns["kind"], "source": columns["provenance"], "confidence": confidence}
    payload |= {name: columns[name] for name in ("category", "entry_id", "cycle")}
    payload["operation"] = pc.if_else(is_valid, columns["operation"], "withdrawn")
    name, golems, none = "GrimoireWrite", columns["golem_id"], pa.nulls(decisions.num_rows, pa.int64())
    ids = event_ids(
        name, golems, *_numbers(columns, "revision", "cycle", "seq"), pc.if_else(is_valid, "stands", "withdrawn")
    )
    order = columns["seq"].to_numpy() * 2 + is_valid.to_numpy(zero_copy_only=False)
    out.add(name, frame_of(name, ids, golems, none, columns["at"], order, payload))
    if pc.all(is_valid, min_count=0).as_py():  # a commit with retractions is a repair, not a consolidation
        _consolidations(columns, out)
    return out


def _numbers(columns: Mapping[str, pa.Array], *names: str) -> list[pa.Array]:
    """Return the columns that identify a row as texts, with `turn` added."""
    return [pc.cast(pc.fill_null(columns[name], 0), pa.string()) for name in (*names, "turn")]


def _consolidations(columns: Mapping[str, pa.Array], out: Emitted) -> None:
    golem = columns["golem_id"].dictionary_encode().indices.to_numpy()
    numbers = [pc.fill_null(columns[name], 0).to_numpy() for name in ("revision", "cycle", "turn")]
    own = np.flatnonzero(np.asarray(pc.not_equal(columns["operation"], "received")))
    keys, first, group = np.unique(
        np.stack([golem, *numbers], axis=1)[own], axis=0, return_index=True, return_inverse=True
    )
    group = group.reshape(-1)
    created, reinforced = (
        np.bincount(group[np.asarray(pc.equal(columns["operation"].take(pa.array(own)), word))], minlength=len(keys))
        for word in ("created", "reinforced")
    )
    cause, _, ticks = flat(columns["cause_ticks"].take(pa.array(own)))
    pairs = np.unique(np.stack([group[cause], ticks.to_numpy()], axis=1), axis=0)
    episodes = np.bincount(pairs[:, 0], minlength=len(keys)) if len(pairs) else np.zeros(len(keys), np.int64)
    at = pa.array(own[first])
    name, golems, none = (
        "grimoire:consolidation_complete",
        columns["golem_id"].take(at),
        pa.nulls(len(keys), pa.int64()),
    )
    ids = event_ids(name, golems, *(number.take(at) for number in _numbers(columns, "revision", "cycle")))
    payload = {
        "episodes_processed": pa.array(episodes),
        "insights_created": pa.array(created),
        "insights_reinforced": pa.array(reinforced),
        "cycle": columns["cycle"].take(at),
    }
    out.add(name, frame_of(name, ids, golems, none, columns["at"].take(at), np.arange(len(keys)), payload))


def cycle_events(cycles: pa.Table) -> Emitted:
    """Return the events of one commit of closed cycles (CYCLE_COLUMNS); retracted cycles have none."""
    out = Emitted()
    cycles = cycles.filter(cycles["because"].is_null())
    columns = {name: one(cycles.column(name)) for name in CYCLE_COLUMNS}
    name, golems = "CuratorCycleComplete", columns["golem_id"]
    payload = {n: columns[n] for n in EVENTS[name].payload.model_fields}
    ids, place = event_ids(name, golems, *_numbers(columns, "cycle")), columns["cycle"].to_numpy()
    out.add(name, frame_of(name, ids, golems, columns["tick_last"], columns["closed_at"], place, payload))
    return out


def life_events(events: pa.Table, imports: Sequence[Mapping[str, Any]], across: Steps | None = None) -> Emitted:
    """Return the typed events of life events (LIFE_SCHEMA): one each, and two more for received knowledge.

    Parameters
    ----------
    imports : payload of `grimoire:import_complete` for each `KnowledgeReceived`, in order
    across : pairs of records around ticks that were accepted as lost by these events
    """
    out = Emitted()
    for kind, attribute in _ATTRIBUTE_OF.items():
        chosen = events.filter(pc.equal(events["kind"], kind))
        if not chosen.num_rows:
            continue
        golems, at = one(chosen["golem_id"]), one(chosen["observed_at"])
        payload = one(chosen[attribute])
        ids, place = one(chosen["event_id"]), np.zeros(chosen.num_rows, np.int64)
        tick_fields = [name for name in ("tick", "due_tick") if name in EVENTS[kind].payload.model_fields]
        ticks = payload.field(tick_fields[0]) if tick_fields else pa.nulls(chosen.num_rows, pa.int64())
        fields = {name: payload.field(name) for name in EVENTS[kind].payload.model_fields}
        out.add(kind, frame_of(kind, event_ids(kind, golems, ids), golems, ticks, at, place, fields))
        if kind == "KnowledgeReceived":
            details = pa.Table.from_pylist(
                list(imports), schema=arrow_schema(EVENTS["grimoire:import_complete"].payload)
            )
            for name in ("grimoire:import_complete", "dream:import_hook"):
                own = {n: one(details[n]) for n in EVENTS[name].payload.model_fields}
                out.add(name, frame_of(name, event_ids(name, golems, ids), golems, ticks, at, place, own))
    if across is not None:
        add_change_events(across, out)
    return out
