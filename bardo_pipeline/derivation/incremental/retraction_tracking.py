"""Which retractions each consumer of the log has handled, and which rows a retraction touches.

A retraction is a life event that leaves something out of the log: a struck record, a reorg, or entries withdrawn from
an heir. A consumer that has derived rows from it derives them again. Handling a retraction twice changes nothing,
because only the difference between the standing and the wanted rows is written.

Source: canon 20; architecture ("Projections").
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.state.evidence import flatten_lists
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.checkpoints import consumer_folder
from bardo_pipeline.errors import DamagedError
from bardo_pipeline.events.life.retractions import Cause, LeftOut
from bardo_pipeline.events.record.arrow_columns import contiguous
from bardo_pipeline.storage.checksums import checked_json, json_with_checksum
from bardo_pipeline.storage.locks import held


class RetractionCursor:
    """Ids of the retraction events that one consumer of one derivation has handled."""

    def __init__(self, context: DerivationContext, consumer: str) -> None:
        self._context = context
        self._file = consumer_folder(context, consumer) / "heeded.json"

    def handled_ids(self) -> set[str]:
        """Return the handled event ids; none if the file is missing or unreadable, so all are handled again."""
        try:
            handled = checked_json(self._file)
            return set(handled["event_ids"] if isinstance(handled, dict) else handled)  # earlier versions: a list
        except (FileNotFoundError, DamagedError):
            return set()

    def pending(self, left_out: LeftOut, after: Sequence[str] = ()) -> tuple[Cause, ...]:
        """Return the retractions to handle now: unhandled here, but handled by all consumers named in `after`."""
        handled_ids, holds = self.handled_ids() if left_out.causes else set(), self._context.holds
        causes = tuple(c for c in left_out.causes if c.event_id not in handled_ids and holds(c.golem_id))
        return handled_retractions(self._context, after).only(causes).causes if causes else ()

    def mark_handled(self, event_ids: Iterable[str]) -> None:
        """Add event ids to the handled ones, atomically."""
        event_ids = set(event_ids)
        if not event_ids:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with held(self._file.parent):
            draft = self._file.with_name(f".{self._file.name}")
            draft.write_bytes(json_with_checksum({"event_ids": sorted(self.handled_ids() | event_ids)}))
            os.replace(draft, self._file)


def pending_retraction_count(context: DerivationContext) -> int:
    """Count the retractions that the curator has not handled."""
    return len(RetractionCursor(context, "curation").pending(context.left_out()))


def handled_retractions(context: DerivationContext, consumers: Iterable[str]) -> LeftOut:
    """Return the retractions that all these consumers have handled."""
    left_out = context.left_out()
    handled = [RetractionCursor(context, consumer).handled_ids() for consumer in consumers] if left_out.causes else []
    return left_out.only(cause for cause in left_out.causes if all(cause.event_id in ids for ids in handled))


def first_touched_cycles(causes: Iterable[Cause], cycle_ticks: int) -> dict[str, int]:
    """Map each golem to the first cycle that these retractions touch; 0 is its birth."""
    first: dict[str, int] = {}
    for cause in causes:
        cycle = cause.cycle(cycle_ticks)
        first[cause.golem_id] = min(cycle, first.get(cause.golem_id, cycle))
    return first


def retraction_event_ids(rows: pa.Table, causes: Iterable[Cause], cycle_ticks: int) -> pa.Array:
    """Return, for each row (golem_id, cycle), the newest retraction event at or before its cycle, else null.

    A row without a cycle depends on its golem's whole life.
    """
    golems = rows["golem_id"].combine_chunks().dictionary_encode()
    codes_by_golem = {golem_id: code for code, golem_id in enumerate(golems.dictionary.to_pylist())}
    codes = golems.indices.to_numpy(zero_copy_only=False)
    cycles = rows["cycle"].to_numpy() if "cycle" in rows.column_names else np.full(rows.num_rows, 2**62)
    chosen = np.full(rows.num_rows, -1)
    ordered = sorted(causes, key=lambda cause: (cause.at, cause.event_id))
    for number, cause in enumerate(ordered):
        is_golem = codes == codes_by_golem.get(cause.golem_id, -1)
        chosen[is_golem & (cycles >= cause.cycle(cycle_ticks))] = number
    ids = pa.array([cause.event_id for cause in ordered], pa.string())
    return ids.take(pa.array(chosen, mask=chosen < 0))


def without_retracted(records: pa.Table, left_out: LeftOut) -> pa.Table:
    """Drop retracted records, and what the other records judge or report about retracted decisions."""
    if not left_out.causes:
        return records
    retracted = left_out.records(records["golem_id"], records["tick"].to_numpy())
    kept = records.filter(pa.array(~retracted)) if retracted.any() else records
    for name in ("resolutions", "trials", "experiences"):
        if name in kept.column_names:
            kept = _without_judgements(kept, name, left_out)
    return kept


def _without_judgements(records: pa.Table, name: str, left_out: LeftOut) -> pa.Table:
    """Drop the elements of a column (resolutions, trials, experiences) about decisions made in retracted ticks."""
    column = records.schema.get_field_index(name)
    lists = contiguous(records.column(column))
    row, resolutions = flatten_lists(lists)
    decision_ticks = pc.struct_field(resolutions, "decision_tick").to_numpy(zero_copy_only=False)
    golems = records["golem_id"].take(pa.array(row))
    retracted = left_out.records(golems, decision_ticks) if len(row) else np.zeros(0, np.bool_)
    if not retracted.any():
        return records
    counts = np.bincount(row[~retracted], minlength=len(lists))
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    judged = resolutions.filter(pa.array(~retracted))
    mask = lists.is_null() if lists.null_count else None
    kept = pa.ListArray.from_arrays(offsets, judged, type=lists.type, mask=mask)
    return records.set_column(column, records.schema.field(column), kept)


def is_from_cycle(rows: pa.Table, first: Mapping[str, int]) -> pa.Array:
    """Return which rows (golem_id, cycle) are of their golem's first cycle or later; false for unnamed golems."""
    first_cycles = np.array([first.get(golem_id, 2**62) for golem_id in rows["golem_id"].to_pylist()], np.int64)
    return pa.array(rows["cycle"].to_numpy() >= first_cycles, pa.bool_())
