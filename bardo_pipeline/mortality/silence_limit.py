"""Selects golems without a tick for longer than the silence limit. Pure, over columns.

Silence is measured up to the newest event in the golem's market, or up to a given moment (the wall clock of a caller).
Source: INH-2; architecture ("death (by silence, too)").
"""

from __future__ import annotations

from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.events.record.arrow_columns import all_required, required
from bardo_pipeline.events.record.arrow_schema import MOMENT

LAST_TICK_SCHEMA = pa.schema(
    [
        *all_required(pa.string(), "golem_id", "market"),
        required("tick", pa.int64()),
        required("at", MOMENT),
        required("lives", pa.bool_()),
    ]
)
"""One row per golem: its market, last tick (0 before the first), moment of that tick (else of the birth), alive."""

SILENT_SCHEMA = pa.schema([*(LAST_TICK_SCHEMA.field(n) for n in ("golem_id", "tick", "at")), pa.field("until", MOMENT)])
"""One row per silent golem, sorted by id: its last tick and moment, and the end of the silence (`until`)."""


def silent_golems(last_ticks: pa.Table, *, silence: timedelta, at: datetime | None = None) -> pa.Table:
    """Return the living golems that were silent for longer than `silence` (SILENT_SCHEMA).

    Parameters
    ----------
    last_ticks : LAST_TICK_SCHEMA, including dead golems, because their last ticks count as events of their market
    at : end of the silence; None: the newest moment in each golem's market
    """
    newest = last_ticks.group_by("market", use_threads=False).aggregate([("at", "max")])
    place = pc.index_in(last_ticks["market"], value_set=newest["market"].combine_chunks())
    until = newest["at_max"].take(place)
    if at is not None:
        until = pa.chunked_array([pa.repeat(pa.scalar(at, MOMENT), last_ticks.num_rows)])
    table = last_ticks.select(["golem_id", "tick", "at"]).append_column("until", until.cast(MOMENT))
    limit = pa.scalar(silence, pa.duration("us"))
    chosen = pc.and_(last_ticks["lives"], pc.greater(pc.subtract(table["until"], table["at"]), limit))
    return table.filter(chosen).sort_by("golem_id").cast(SILENT_SCHEMA)
