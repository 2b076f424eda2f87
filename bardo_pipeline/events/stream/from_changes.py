"""Events of changes between consecutive ticks. Pure. Source: EV-7."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.events.record.arrow_columns import one
from bardo_pipeline.events.stream.event_table import Emitted, event_ids, frame_of

NEIGHBOUR_COLUMNS = ("golem_id", "tick", "observed_at", "regime", "phase")
"""Columns of neighbouring records that are needed to detect changes."""

_WATCHED = (("heartbeat:regime_shift", "regime"), ("mortality:phase_transition", "phase"))


class Steps(NamedTuple):
    """Pairs of consecutive records, NEIGHBOUR_COLUMNS each."""

    before: pa.Table
    after: pa.Table

    @classmethod
    def of(cls, *parts: Steps) -> Steps:
        """Concatenate pairs."""
        return cls(*(pa.concat_tables(tables) for tables in zip(*parts, strict=True)))


def steps_within(records: pa.Table, neighbours: pa.Table) -> Steps:
    """Return the pairs with a watched change in which at least one record is new."""
    both = pa.concat_tables([table.select(NEIGHBOUR_COLUMNS) for table in (records, neighbours)])
    tick, code = both["tick"].to_numpy(), one(both["golem_id"]).dictionary_encode().indices.to_numpy()
    order = np.lexsort((tick, code))
    follows = (code[order][1:] == code[order][:-1]) & (tick[order][1:] == tick[order][:-1] + 1)
    is_new = order < records.num_rows
    follows &= is_new[1:] | is_new[:-1]
    earlier, later = order[:-1][follows], order[1:][follows]
    changed = np.zeros(len(earlier), np.bool_)
    for _, column in _WATCHED:
        values = one(both[column])
        changed |= np.asarray(pc.not_equal(values.take(pa.array(earlier)), values.take(pa.array(later))), np.bool_)
    return Steps(both.take(pa.array(earlier[changed])), both.take(pa.array(later[changed])))


def add_change_events(steps: Steps, out: Emitted) -> None:
    """Add an event at the later tick for each watched column that changed."""
    for name, column in _WATCHED:
        before, after = one(steps.before[column]), one(steps.after[column])
        at = pa.array(np.flatnonzero(pc.not_equal(before, after)))
        rows = steps.after.take(at)
        golems, ticks, place = one(rows["golem_id"]), one(rows["tick"]), np.zeros(rows.num_rows, np.int64)
        ids = event_ids(name, golems, pc.cast(ticks, pa.string()), pc.cast(pa.array(place), pa.string()))
        payload = {"before": before.take(at), "after": after.take(at)}
        out.add(name, frame_of(name, ids, golems, ticks, one(rows["observed_at"]), place, payload))
