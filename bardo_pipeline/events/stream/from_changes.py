"""Changes: what is another than it was a tick before, as events of the later tick. Pure. Source: EV-7."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.events.stream.event_table import Emitted, event_ids, frame_of, one

NEIGHBOUR_COLUMNS = ("golem_id", "tick", "observed_at", "regime", "phase")
"""What a record's neighbours say of themselves, for what changed from one tick to the next."""

_TOLD = (("heartbeat:regime_shift", "regime"), ("mortality:phase_transition", "phase"))


class Steps(NamedTuple):
    """Records with nothing between them, pair by pair: before and after, NEIGHBOUR_COLUMNS each."""

    before: pa.Table
    after: pa.Table

    @classmethod
    def of(cls, *some: Steps) -> Steps:
        """All of these, one after the other."""
        return cls(*(pa.concat_tables(tables) for tables in zip(*some, strict=True)))


def steps_within(records: pa.Table, neighbours: pa.Table) -> Steps:
    """From one tick to the next where either is among these records and what is told of changes."""
    both = pa.concat_tables([table.select(NEIGHBOUR_COLUMNS) for table in (records, neighbours)])
    tick, code = both["tick"].to_numpy(), one(both["golem_id"]).dictionary_encode().indices.to_numpy()
    order = np.lexsort((tick, code))
    follows = (code[order][1:] == code[order][:-1]) & (tick[order][1:] == tick[order][:-1] + 1)
    news = order < records.num_rows
    follows &= news[1:] | news[:-1]
    earlier, later = order[:-1][follows], order[1:][follows]
    changed = np.zeros(len(earlier), np.bool_)
    for _, column in _TOLD:
        values = one(both[column])
        changed |= np.asarray(pc.not_equal(values.take(pa.array(earlier)), values.take(pa.array(later))), np.bool_)
    return Steps(both.take(pa.array(earlier[changed])), both.take(pa.array(later[changed])))


def tell_changes(steps: Steps, out: Emitted) -> None:
    """An event of each step's later tick for each thing that is another than before."""
    for name, column in _TOLD:
        before, after = one(steps.before[column]), one(steps.after[column])
        at = pa.array(np.flatnonzero(pc.not_equal(before, after)))
        rows = steps.after.take(at)
        golems, ticks, place = one(rows["golem_id"]), one(rows["tick"]), np.zeros(rows.num_rows, np.int64)
        ids = event_ids(name, golems, pc.cast(ticks, pa.string()), pc.cast(pa.array(place), pa.string()))
        payload = {"before": before.take(at), "after": after.take(at)}
        out.add(name, frame_of(name, ids, golems, ticks, one(rows["observed_at"]), place, payload))
