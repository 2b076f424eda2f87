"""Silence: which golems have left no tick for longer than is borne. Pure, over columns.

Silence is measured against the newest event of the golem's own market, whose other golems lived on; or, where the
moment is given, against that (a wall clock read at a door). Source: INH-2; architecture ("death (by silence, too)").
"""

from __future__ import annotations

from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.events.record.arrow_schema import MOMENT

HEARD_SCHEMA = pa.schema(
    [
        pa.field("golem_id", pa.string(), nullable=False),
        pa.field("market", pa.string(), nullable=False),
        pa.field("tick", pa.int64(), nullable=False),
        pa.field("at", MOMENT, nullable=False),
        pa.field("lives", pa.bool_(), nullable=False),
    ]
)
"""One row per golem: its market, its last tick (0 before the first), when it was heard of last (its birth, without a
tick), whether it lives; in the time that silence is measured in."""

SILENT_SCHEMA = pa.schema([*(HEARD_SCHEMA.field(n) for n in ("golem_id", "tick", "at")), pa.field("until", MOMENT)])
"""One row per silent golem, by id: its last tick and moment, and the moment up to which nothing was heard of it."""


def silent(heard: pa.Table, *, silence: timedelta, at: datetime | None = None) -> pa.Table:
    """The living golems that were silent for longer than this (SILENT_SCHEMA).

    heard: HEARD_SCHEMA, the dead included, since their last moments are their market's, too. at: the moment up to which
    nothing was heard; None for the newest moment of each golem's market. Exactly as long is not longer.
    """
    newest = heard.group_by("market", use_threads=False).aggregate([("at", "max")])
    place = pc.index_in(heard["market"], value_set=newest["market"].combine_chunks())
    until = newest["at_max"].take(place)
    if at is not None:
        until = pa.chunked_array([pa.repeat(pa.scalar(at, MOMENT), heard.num_rows)])
    table = heard.select(["golem_id", "tick", "at"]).append_column("until", until.cast(MOMENT))
    borne = pa.scalar(silence, pa.duration("us"))
    chosen = pc.and_(heard["lives"], pc.greater(pc.subtract(table["until"], table["at"]), borne))
    return table.filter(chosen).sort_by("golem_id").cast(SILENT_SCHEMA)
