"""Neighbours: the records of the previous and next tick, with which a commit's records are compared.

A change between two ticks is reported by the record that was committed later, so a record needs those neighbours that
were committed before it. Most are in the same batch of commits or are their golem's newest record. The others are
searched in the log in both directions from the batch, because older commits may hold later ticks.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.event_stream.sources import Commit
from bardo_pipeline.derivation.incremental.record_queries import values_by_golem
from bardo_pipeline.events.stream.event_table import NEIGHBOUR_COLUMNS
from bardo_pipeline.grimoire.entry_columns import newest_per_golem
from bardo_pipeline.storage.log.event_log import EventLog

GolemTick = tuple[str, int]
"""A golem's id and a tick."""

_FIRST_SPAN = 8
"""Commits searched first in each direction; each further search covers four times as many."""


class Neighbours:
    """Finds the neighbours of commits' records. Batches must come in ascending order."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._batch: Sequence[Commit] = ()
        self._before: pa.Table | None = None
        self._newest: pa.Table | None = None

    def of(self, commit: Commit, batch: Sequence[Commit]) -> pa.Table:
        """Return records committed before a commit that may adjoin its records (NEIGHBOUR_COLUMNS).

        Parameters
        ----------
        batch : the commits that were read together with this one, itself included, ascending
        """
        if batch is not self._batch:
            self._load_batch(batch)
        earlier = [other.rows.select(NEIGHBOUR_COLUMNS) for other in batch if other.version < commit.version]
        assert self._before is not None, "a batch was loaded"
        return pa.concat_tables([self._before, *earlier])

    def _load_batch(self, batch: Sequence[Commit]) -> None:
        """Read the neighbours committed before a batch, and update each golem's newest record."""
        rows = pa.concat_tables([commit.rows.select(NEIGHBOUR_COLUMNS) for commit in batch])
        newest = rows.slice(0, 0) if self._newest is None else self._newest
        missing = self._missing_keys(pa.concat_tables([rows, newest]), rows)
        self._before = pa.concat_tables([newest, *self._search(missing, batch[0].version, batch[-1].version)])
        self._newest, self._batch = newest_per_golem(pa.concat_tables([newest, rows]), "tick"), batch

    def _missing_keys(self, loaded: pa.Table, rows: pa.Table) -> set[GolemTick]:
        """Return the recorded ticks adjacent to these rows that are not loaded."""
        adjacent = {(golem_id, tick + step) for golem_id, tick in _keys(rows) for step in (-1, 1)} - _keys(loaded)
        highest = values_by_golem(self._log.heads(), "highest")
        return {key for key in adjacent if 0 < key[1] <= highest.get(key[0], 0) and not self._is_missing(*key)}

    def _is_missing(self, golem_id: str, tick: int) -> bool:
        head = self._log.head_of(golem_id)
        return any(first <= tick <= last for first, last in (*head.missing, *head.accepted))

    def _search(self, keys: set[GolemTick], low: int, high: int) -> list[pa.Table]:
        """Return the records of these keys that were committed before version `low`.

        The search widens from the batch (versions low to high) in both directions until each key has been seen.
        """
        parts: list[pa.Table] = []
        unseen, span, newest = set(keys), _FIRST_SPAN, self._log.version
        below, above = low - 1, high
        while unseen and (below > 0 or above < newest):
            lowest, highest = max(below - span, 0), min(above + span, newest)
            parts.append(self._read(unseen, lowest, below))
            unseen -= _keys(parts[-1])
            unseen -= _keys(self._read(unseen, above, highest))
            below, above, span = lowest, highest, span * 4
        return parts

    def _read(self, keys: set[GolemTick], since: int, until: int) -> pa.Table:
        """Return the records of these keys in versions above `since` up to `until`."""
        if since >= until:
            keys = set()
        columns, golems = [*NEIGHBOUR_COLUMNS, "version"], sorted({golem_id for golem_id, _ in keys})
        rows = self._log.read_cycles(columns, since, golems, until_version=max(until, since))
        versions = pc.fill_null(rows["version"], until)
        ticks = pc.is_in(rows["tick"], value_set=pa.array(sorted({tick for _, tick in keys}), pa.int64()))
        is_inside = pc.and_(pc.greater(versions, since), pc.less_equal(versions, until))
        rows = rows.filter(pc.and_(is_inside, ticks))
        is_key = [key in keys for key in zip(rows["golem_id"].to_pylist(), rows["tick"].to_pylist(), strict=True)]
        return rows.filter(pa.array(is_key, pa.bool_())).select(NEIGHBOUR_COLUMNS)


def _keys(rows: pa.Table) -> set[GolemTick]:
    return set(zip(rows["golem_id"].to_pylist(), rows["tick"].to_pylist(), strict=True))
