"""Neighbours: what the ticks before and after some records said of themselves, as far as they were on record then.

What changed from one tick to the next is told by whichever of the two records came last. So each record's neighbours
must be known if they came before it, and only then. Most stand in the same batch of commits, or are a golem's newest
record so far; the log is asked for the rest, from the batch to both sides, since what came behind it was not before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.event_stream.sources import Commit
from bardo_pipeline.events.stream.from_changes import NEIGHBOUR_COLUMNS
from bardo_pipeline.storage.log.event_log import EventLog

Key = tuple[str, int]
"""A golem and a tick."""

_SPAN = 8  # commits that are asked first on either side


class Neighbours:
    """What stands beside the records of commits, batch by batch, upwards."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._batch: Sequence[Commit] = ()
        self._before: pa.Table | None = None
        self._newest: pa.Table | None = None

    def of(self, commit: Commit, batch: Sequence[Commit]) -> pa.Table:
        """The records that may stand beside those of a commit and came before it (NEIGHBOUR_COLUMNS).

        batch: the commits that were read with it, itself among them, ascending.
        """
        if batch is not self._batch:
            self._enter(batch)
        earlier = [other.rows.select(NEIGHBOUR_COLUMNS) for other in batch if other.version < commit.version]
        assert self._before is not None, "a batch was entered"
        return pa.concat_tables([self._before, *earlier])

    def _enter(self, batch: Sequence[Commit]) -> None:
        """Learn what came before a batch, and keep each golem's newest record of all that was seen."""
        rows = pa.concat_tables([commit.rows.select(NEIGHBOUR_COLUMNS) for commit in batch])
        known = rows.slice(0, 0) if self._newest is None else self._newest
        wanted = self._beyond(pa.concat_tables([rows, known]), rows)
        self._before = pa.concat_tables([known, *self._found(wanted, batch[0].version, batch[-1].version)])
        self._newest, self._batch = _newest(pa.concat_tables([known, rows])), batch

    def _beyond(self, known: pa.Table, rows: pa.Table) -> set[Key]:
        """The ticks beside these rows that are on record now, and not known."""
        here = _keys(known)
        beside = {(golem_id, tick + step) for golem_id, tick in _keys(rows) for step in (-1, 1)} - here
        heads = self._log.heads()
        highest = dict(zip(heads["golem_id"].to_pylist(), heads["highest"].to_pylist(), strict=True))
        return {key for key in beside if 0 < key[1] <= highest.get(key[0], 0) and not self._is_missing(*key)}

    def _is_missing(self, golem_id: str, tick: int) -> bool:
        head = self._log.head_of(golem_id)
        return any(first <= tick <= last for first, last in (*head.missing, *head.accepted))

    def _found(self, wanted: set[Key], low: int, high: int) -> list[pa.Table]:
        """The records of these golems and ticks, all on record now, that came before version `low`.

        Commits further and further away from the batch (low to high) are asked, on both sides.
        """
        found: list[pa.Table] = []
        left, span, newest = set(wanted), _SPAN, self._log.version
        below, above = low - 1, high
        while left and (below > 0 or above < newest):
            lowest, highest = max(below - span, 0), min(above + span, newest)
            found.append(self._rows(left, lowest, below))
            left -= _keys(found[-1])
            left -= _keys(self._rows(left, above, highest))
            below, above, span = lowest, highest, span * 4
        return found

    def _rows(self, wanted: set[Key], since: int, until: int) -> pa.Table:
        """The records of these golems and ticks that came after one version and up to another."""
        asked = wanted if since < until else set()
        columns, golems = [*NEIGHBOUR_COLUMNS, "version"], sorted({golem_id for golem_id, _ in asked})
        rows = self._log.read_cycles_between(columns, since, max(until, since), golems=golems)
        versions = pc.fill_null(rows["version"], until)
        ticks = pc.is_in(rows["tick"], value_set=pa.array(sorted({tick for _, tick in asked}), pa.int64()))
        inside = pc.and_(pc.greater(versions, since), pc.less_equal(versions, until))
        rows = rows.filter(pc.and_(inside, ticks))
        mine = [key in asked for key in zip(rows["golem_id"].to_pylist(), rows["tick"].to_pylist(), strict=True)]
        return rows.filter(pa.array(mine, pa.bool_())).select(NEIGHBOUR_COLUMNS)


def _keys(rows: pa.Table) -> set[Key]:
    return set(zip(rows["golem_id"].to_pylist(), rows["tick"].to_pylist(), strict=True))


def _newest(rows: pa.Table) -> pa.Table:
    """Each golem's row of the highest tick."""
    golems = pc.rank(rows["golem_id"], tiebreaker="dense").to_numpy() if rows.num_rows else np.zeros(0)
    order = np.lexsort((rows["tick"].to_numpy(), golems))
    last = np.flatnonzero(np.r_[golems[order][1:] != golems[order][:-1], True]) if len(order) else order
    return rows.take(pa.array(order[last], pa.int64()))
