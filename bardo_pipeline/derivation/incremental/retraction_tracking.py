"""Repairing: which strikes, reorgs and withdrawals each consumer of the log has still to heed.

A consumer that has derived cycles which rest on something that is left out since derives them again, and takes back
what no longer follows. Until it has said that it heeded a cause, it does so again, which changes nothing: what is
written is the difference between what stands and what should. Source: canon 20; architecture ("Projections").
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.state.evidence import flatten_lists
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.events.life.retractions import Cause, LeftOut
from bardo_pipeline.grimoire.entry_columns import contiguous


class RetractionCursor:
    """The causes that one consumer of one derivation has heeded."""

    def __init__(self, context: DerivationContext, name: str) -> None:
        self._file = context.projections.root / "readers" / name / "heeded.json"

    def known(self) -> set[str]:
        """Ids of the heeded events; none where the file is gone or cannot be read, and all are heeded once more."""
        try:
            return set(orjson.loads(self._file.read_bytes()))
        except (FileNotFoundError, orjson.JSONDecodeError):
            return set()

    def due(self, left: LeftOut, after: Sequence[RetractionCursor] = ()) -> tuple[Cause, ...]:
        """Causes to heed now: those that all others, whose tables this consumer reads, have heeded and it has not."""
        if not left.causes:
            return ()
        mine = self.known()
        due = tuple(c for c in left.causes if c.event_id not in mine)
        before = [other.known() for other in after] if due else []
        return tuple(c for c in due if all(c.event_id in known for known in before))

    def keep(self, ids: Iterable[str]) -> None:
        """Keep that these events are heeded, at once."""
        fresh = set(ids)
        if fresh:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            draft = self._file.with_name(".heeded.json")
            draft.write_bytes(orjson.dumps(sorted(self.known() | fresh)))
            os.replace(draft, self._file)


def pending_retraction_count(context: DerivationContext) -> int:
    """How many strikes, reorgs and withdrawals the curator has still to heed."""
    return len(RetractionCursor(context, "curation").due(context.left_out()))


def handled_retractions(context: DerivationContext, names: Iterable[str]) -> LeftOut:
    """What is left out of the tables of all these consumers."""
    left = context.left_out()
    known = [RetractionCursor(context, name).known() for name in names] if left.causes else []
    return left.only(cause for cause in left.causes if all(cause.event_id in ids for ids in known))


def first_touched_cycles(causes: Iterable[Cause], cycle_ticks: int) -> dict[str, int]:
    """Golem to the first cycle that any of these causes touches (0: its birth)."""
    out: dict[str, int] = {}
    for cause in causes:
        cycle = cause.cycle(cycle_ticks)
        out[cause.golem_id] = min(cycle, out.get(cause.golem_id, cycle))
    return out


def retraction_event_ids(rows: pa.Table, causes: Iterable[Cause], cycle_ticks: int) -> pa.Array:
    """For each row (golem_id, cycle) the event that is named as the reason of its repair.

    Of several that touch what it rests on, the one that was observed last. A row without a cycle rests on the whole
    life of its golem.
    """
    golems = rows["golem_id"].combine_chunks().dictionary_encode()
    place = {g: i for i, g in enumerate(golems.dictionary.to_pylist())}
    codes = golems.indices.to_numpy(zero_copy_only=False)
    cycles = rows["cycle"].to_numpy() if "cycle" in rows.column_names else np.full(rows.num_rows, 2**62)
    chosen = np.full(rows.num_rows, -1)
    ordered = sorted(causes, key=lambda c: (c.at, c.event_id))
    for number, cause in enumerate(ordered):
        chosen[(codes == place.get(cause.golem_id, -1)) & (cycles >= cause.cycle(cycle_ticks))] = number
    ids = pa.array([cause.event_id for cause in ordered], pa.string())
    return ids.take(pa.array(chosen, mask=chosen < 0))


def without_retracted(records: pa.Table, left: LeftOut) -> pa.Table:
    """Records without those that are left out, and without what the others say of decisions in them."""
    if not left.causes:
        return records
    out = left.records(records["golem_id"], records["tick"].to_numpy())
    kept = records.filter(pa.array(~out)) if out.any() else records
    return _without_resolutions(kept, left) if "resolutions" in kept.column_names else kept


def _without_resolutions(records: pa.Table, left: LeftOut) -> pa.Table:
    """Records whose judgements of decisions in left-out ticks are gone: what was not decided was not judged."""
    column = records.schema.get_field_index("resolutions")
    lists = contiguous(records.column(column))
    row, parts = flatten_lists(lists)
    decided = pc.struct_field(parts, "decision_tick").to_numpy(zero_copy_only=False)
    golems = records["golem_id"].take(pa.array(row))
    out = left.records(golems, decided) if len(row) else np.zeros(0, np.bool_)
    if not out.any():
        return records
    counts = np.bincount(row[~out], minlength=len(lists))
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    kept = pa.ListArray.from_arrays(offsets, parts.filter(pa.array(~out)), type=lists.type)
    return records.set_column(column, records.schema.field(column), kept)


def is_from_cycle(rows: pa.Table, first: Mapping[str, int]) -> pa.Array:
    """Which rows (golem_id, cycle) lie in or after their golem's first cycle; a golem that is not named has none."""
    golems = rows["golem_id"].to_pylist()
    limit = np.array([first.get(g, 2**62) for g in golems], np.int64)
    return pa.array(rows["cycle"].to_numpy() >= limit, pa.bool_())
