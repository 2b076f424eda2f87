"""Typed events of curator decisions, closed cycles, dreams, their hypotheses, and life events. Pure. Source: EV-7."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.events.life.events import ATTRIBUTE_OF
from bardo_pipeline.events.record.arrow_columns import contiguous
from bardo_pipeline.events.record.arrow_schema import MOMENT, arrow_schema
from bardo_pipeline.events.stream.catalogue import EVENTS
from bardo_pipeline.events.stream.event_table import Emitted, Steps, add_change_events, flat

DECISION_COLUMNS = (
    "golem_id", "revision", "cycle", "seq", "at", "operation", "entry_id", "kind", "category", "confidence_ppm",
    "provenance", "cause_ticks", "turn", "because",
)  # fmt: skip
CYCLE_COLUMNS = (
    "golem_id", "cycle", "tick_last", "closed_at", "record_count", "entries_pruned", "entries_promoted",
    "heuristics_proposed", "turn", "because",
)  # fmt: skip
DREAM_COLUMNS = (
    "golem_id", "cycle", "tick", "at", "began_by", "replay_budget", "counterfactual_budget", "replayed",
    "failure_count", "branch_count", "staged_count", "confirmed_count", "gone_count", "turn", "because",
)  # fmt: skip
HYPOTHESIS_COLUMNS = (
    "golem_id", "hypothesis_id", "cycle", "seq", "at", "operation", "state", "text", "confidence_ppm", "turn",
    "because",
)  # fmt: skip
"""turn, because: bookkeeping columns of a projection; a row with `because` retracts another (projections.py)."""


def decision_events(decisions: pa.Table) -> Emitted:
    """Return the events of one commit of curator decisions (DECISION_COLUMNS): writes, and sums by cycle."""
    out = Emitted()
    columns = {name: contiguous(decisions.column(name)) for name in DECISION_COLUMNS}
    is_valid = columns["because"].is_null()
    confidence = pa.array(columns["confidence_ppm"].to_numpy() / 1e6)
    payload = {"entry_type": columns["kind"], "source": columns["provenance"], "confidence": confidence}
    payload |= {name: columns[name] for name in ("category", "entry_id", "cycle")}
    payload["operation"] = pc.if_else(is_valid, columns["operation"], "withdrawn")
    numbers = [*_numbers(columns, "revision", "cycle", "seq"), pc.if_else(is_valid, "stands", "withdrawn")]
    order = columns["seq"].to_numpy() * 2 + is_valid.to_numpy(zero_copy_only=False)
    no_tick = pa.nulls(decisions.num_rows, pa.int64())
    out.add("GrimoireWrite", columns["golem_id"], no_tick, columns["at"], numbers, payload, order)
    if pc.all(is_valid, min_count=0).as_py():  # a commit with retractions is a repair, not a consolidation
        _consolidations(columns, out)
    return out


def _numbers(columns: Mapping[str, pa.Array], *names: str) -> list[pa.Array]:
    """Return the columns that identify a row as texts, with `turn` added."""
    return [pc.cast(pc.fill_null(columns[name], 0), pa.string()) for name in (*names, "turn")]


def _consolidations(columns: Mapping[str, pa.Array], out: Emitted) -> None:
    golem = columns["golem_id"].dictionary_encode().indices.to_numpy()
    row_numbers = [pc.fill_null(columns[name], 0).to_numpy() for name in ("revision", "cycle", "turn")]
    is_own = pc.and_(pc.not_equal(columns["operation"], "received"), pc.greater(columns["cycle"], 0))
    own = np.flatnonzero(np.asarray(is_own))
    keys, first, group = np.unique(
        np.stack([golem, *row_numbers], axis=1)[own], axis=0, return_index=True, return_inverse=True
    )
    group = group.reshape(-1)
    created, reinforced = (
        np.bincount(group[np.asarray(pc.equal(columns["operation"].take(pa.array(own)), word))], minlength=len(keys))
        for word in ("created", "reinforced")
    )
    cause, _, ticks = flat(columns["cause_ticks"].take(pa.array(own)))
    pairs = np.unique(np.stack([group[cause], ticks.to_numpy()], axis=1), axis=0)
    episodes = np.bincount(pairs[:, 0], minlength=len(keys)) if len(pairs) else np.zeros(len(keys), np.int64)
    taken = {name: column.take(pa.array(own[first])) for name, column in columns.items()}
    payload = {
        "episodes_processed": pa.array(episodes),
        "insights_created": pa.array(created),
        "insights_reinforced": pa.array(reinforced),
        "episodes_decayed": pa.nulls(len(keys), pa.int64()),
        "cycle": taken["cycle"],
    }
    numbers, no_tick = _numbers(taken, "revision", "cycle"), pa.nulls(len(keys), pa.int64())
    name, order = "grimoire:consolidation_complete", np.arange(len(keys))
    out.add(name, taken["golem_id"], no_tick, taken["at"], numbers, payload, order)


def cycle_events(cycles: pa.Table) -> Emitted:
    """Return the events of one commit of closed cycles (CYCLE_COLUMNS); retracted cycles have none."""
    out = Emitted()
    cycles = cycles.filter(cycles["because"].is_null())
    columns = {name: contiguous(cycles.column(name)) for name in CYCLE_COLUMNS}
    golems, ticks, at = (columns[name] for name in ("golem_id", "tick_last", "closed_at"))
    out.add("CuratorCycleComplete", golems, ticks, at, _numbers(columns, "cycle"), columns, columns["cycle"].to_numpy())
    return out


def dream_events(dreams: pa.Table) -> Emitted:
    """Return the events of one commit of dreams (DREAM_COLUMNS); retracted dreams have none."""
    out = Emitted()
    dreams = dreams.filter(dreams["because"].is_null())
    columns = {name: contiguous(dreams.column(name)) for name in DREAM_COLUMNS}
    golems, ticks, at = (columns[name] for name in ("golem_id", "tick", "at"))
    numbers = _numbers(columns, "cycle")
    out.add("dream:cycle_start", golems, ticks, at, numbers, columns)
    row, place, replayed = flat(columns["replayed"])
    of_row = pa.array(row)
    fragments = {
        "cycle": columns["cycle"].take(of_row), "replayed_tick": pc.struct_field(replayed, "tick"),
        **{name: pc.divide(pc.struct_field(replayed, f"{name}_ppm"), 1e6)
           for name in ("salience", "arousal_before", "arousal_after")},
    }  # fmt: skip
    placed = [*(column.take(of_row) for column in numbers), pc.cast(pa.array(place), pa.string())]
    where = golems.take(of_row), ticks.take(of_row), at.take(of_row)
    out.add("dream:fragment", *where, placed, fragments, place)
    counts = {**columns, "episodes_replayed": pc.list_value_length(columns["replayed"])}
    out.add("dream:cycle_end", golems, ticks, at, numbers, counts)
    return out


def hypothesis_events(hypotheses: pa.Table) -> Emitted:
    """Return the events of one commit of changed hypotheses (HYPOTHESIS_COLUMNS); retracted changes have none."""
    out = Emitted()
    hypotheses = hypotheses.filter(hypotheses["because"].is_null())
    columns = {name: contiguous(hypotheses.column(name)) for name in HYPOTHESIS_COLUMNS}
    payload = {**columns, "confidence": pc.divide(columns["confidence_ppm"], 1e6)}
    numbers = [columns["hypothesis_id"], *_numbers(columns, "cycle", "seq")]
    no_tick, order = pa.nulls(hypotheses.num_rows, pa.int64()), columns["seq"].to_numpy()
    out.add("dream:integration", columns["golem_id"], no_tick, columns["at"], numbers, payload, order)
    return out


def life_events(
    events: pa.Table,
    imports: Sequence[Mapping[str, Any]],
    across: Steps | None = None,
    deposits: Sequence[Mapping[str, Any]] = (),
) -> Emitted:
    """Return the typed events of life events (LIFE_SCHEMA): one each, and more for knowledge received and tools called.

    Parameters
    ----------
    imports : payload of `grimoire:import_complete` for each `KnowledgeReceived`, in order
    across : pairs of records around ticks that were accepted as lost by these events
    deposits : pheromones among `PostsReceived`, each with event_id, place, golem_id that heard it, at, and its payload
    """
    out = Emitted()
    for kind, attribute in ATTRIBUTE_OF.items():
        chosen = events.filter(pc.equal(events["kind"], kind))
        golems, at, ids = (contiguous(chosen[name]) for name in ("golem_id", "observed_at", "event_id"))
        payload = contiguous(chosen[attribute])
        fields = {name: payload.field(name) for name in EVENTS[kind].payload.model_fields}
        ticks = fields.get("tick", fields.get("due_tick", pa.nulls(chosen.num_rows, pa.int64())))
        out.add(kind, golems, ticks, at, [ids], fields)
        if kind == "KnowledgeReceived":
            schema = arrow_schema(EVENTS["grimoire:import_complete"].payload)
            details = pa.Table.from_pylist(list(imports), schema=schema)
            columns = {name: contiguous(details[name]) for name in schema.names}
            for name in ("grimoire:import_complete", "dream:import_hook"):
                out.add(name, golems, ticks, at, [ids], columns)
        elif kind in _OF_TOOLS:
            _OF_TOOLS[kind](out, (golems, ticks, at), ids, fields)
    _deposits(deposits, out)
    if across is not None:
        add_change_events(across, out)
    return out


def _deposits(deposits: Sequence[Mapping[str, Any]], out: Emitted) -> None:
    """Add an event for each pheromone that a golem heard."""
    if not deposits:
        return
    texts = {name: pa.array([row[name] for row in deposits], pa.string()) for name in ("golem_id", "event_id")}
    places = pa.array([row["place"] for row in deposits], pa.int64())
    at, no_tick = pa.array([row["at"] for row in deposits], MOMENT), pa.nulls(len(deposits), pa.int64())
    fields = arrow_schema(EVENTS["pheromone:deposited"].payload)
    payload = {field.name: pa.array([row[field.name] for row in deposits], field.type) for field in fields}
    numbers = [texts["event_id"], pc.cast(places, pa.string())]
    out.add("pheromone:deposited", texts["golem_id"], no_tick, at, numbers, payload, places.to_numpy())


_Where = tuple[pa.Array, pa.Array, pa.Array]
"""Golem, tick and time of each event."""


def _tool_runs(out: Emitted, where: _Where, ids: pa.Array, called: Mapping[str, pa.Array]) -> None:
    """Add start, steps and end of each call of a memory tool."""
    row, place, steps = flat(called["steps"])
    at_step = pa.array(row)
    numbers = [ids.take(at_step), pc.cast(pa.array(place), pa.string())]
    payload = {"tool_name": called["tool_name"].take(at_step), "step": steps}
    out.add("tool:start", *where, [ids], called)
    golems, ticks, at = (column.take(at_step) for column in where)
    out.add("tool:update", golems, ticks, at, numbers, payload, place)
    is_done = pa.array(np.ones(len(ids), np.bool_))
    out.add("tool:end", *where, [ids], {"success": is_done, **called})


def _tool_consolidations(out: Emitted, where: _Where, ids: pa.Array, done: Mapping[str, pa.Array]) -> None:
    """Add the end of each consolidation by a tool, and the hook of the dream monitor."""
    counts = {"clusters_found": done["cluster_count"], "cycle": pa.nulls(len(ids), pa.int64()), **done}
    counts |= {"episodes_processed": pc.list_value_length(done["episode_ids"])}
    counts |= {"episodes_decayed": pc.list_value_length(done["decayed_ids"])}
    for name in ("grimoire:consolidation_complete", "dream:consolidation_hook"):
        out.add(name, *where, [ids], counts)


def _tool_imports(out: Emitted, where: _Where, ids: pa.Array, archive: Mapping[str, pa.Array]) -> None:
    """Add the end of each import of an archive, and the hook that schedules its consolidation."""
    payload = {"episodes": archive["episode_count"], "insights": archive["insight_count"]}
    payload |= {"strategies": archive["strategy_count"], "confidence_override": archive["confidence"]}
    for name in ("grimoire:import_complete", "dream:import_hook"):
        out.add(name, *where, [ids], payload | {"content_hash": archive["content_hash"]})


def _stored_episodes(out: Emitted, where: _Where, ids: pa.Array, text: Mapping[str, pa.Array]) -> None:
    """Add an event for each stored text that is an episode or a reflection on one."""
    is_episode = pc.not_equal(text["sort"], "insight")
    golems, ticks, at, ids = (column.filter(is_episode) for column in (*where, ids))
    payload = {name: text[name].filter(is_episode) for name in ("importance", "tool", "chain", "dream_tag")}
    out.add("grimoire:episode_stored", golems, ticks, at, [ids], payload | {"episode_id": ids})


_OF_TOOLS = {
    "ToolCalled": _tool_runs,
    "EpisodesConsolidated": _tool_consolidations,
    "ArchiveImported": _tool_imports,
    "TextStored": _stored_episodes,
}
"""Kinds of facts of the memory tools that are more than one event in the stream."""
