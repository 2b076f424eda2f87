"""Neighbours: what the ticks before and after some records said of themselves, as far as they were on record then.

What changed from one tick to the next is told by whichever of the two records came last. In order, that is the next
record of a golem, and its newest one is kept; only for the first look at a golem, and for a record that came late, is
the log asked, from the newest commits backwards.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.events.fabric_records import NEIGHBOUR_COLUMNS
from bardo_pipeline.storage.log import EventLog


class _Newest(NamedTuple):
    """A golem's newest record, as NEIGHBOUR_COLUMNS after the id."""

    tick: int
    observed_at: object
    regime: str
    phase: str


class Neighbours:
    """What is known of the records before those that are looked at, commit by commit, upwards."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._newest: dict[str, _Newest] = {}

    def of(self, records: pa.Table, version: int) -> pa.Table:
        """The records beside those of one commit (NEIGHBOUR_COLUMNS) that were on record before it."""
        ids = records["golem_id"].combine_chunks().dictionary_encode()
        codes = ids.indices.to_numpy()
        ticks = records["tick"].to_numpy()
        beside: list[tuple[str, _Newest]] = []
        wanted: set[tuple[str, int]] = set()
        order = np.lexsort((ticks, codes))
        bounds = np.searchsorted(codes[order], np.arange(len(ids.dictionary) + 1))
        for code, golem_id in enumerate(ids.dictionary.to_pylist()):
            rows = order[bounds[code] : bounds[code + 1]]
            own, newest = ticks[rows], self._newest.get(golem_id)
            if newest is not None:
                beside.append((golem_id, newest))
            wanted |= {(golem_id, tick) for tick in self._unknown(golem_id, own, newest)}
            if newest is None or own[-1] > newest.tick:
                self._newest[golem_id] = _row(records, int(rows[-1]))
        beside.extend(self._found(wanted, version))
        columns = [[golem_id for golem_id, _ in beside], *zip(*(row for _, row in beside), strict=True)]
        schema = pa.schema([records.schema.field(name) for name in NEIGHBOUR_COLUMNS])
        return pa.table(columns, schema=schema) if beside else schema.empty_table()

    def _unknown(self, golem_id: str, own: np.ndarray, newest: _Newest | None) -> list[int]:
        """Ticks beside these (ascending) that only the log can tell of."""
        starts = own[np.r_[True, np.diff(own) > 1]] - 1
        if newest is None:
            return [int(tick) for tick in starts if tick > 0 and self._is_on_record(golem_id, int(tick))]
        late = own[own < newest.tick]
        beside = np.setdiff1d(np.concatenate([late - 1, late + 1]), np.append(own, newest.tick))
        return [int(tick) for tick in beside if tick > 0 and self._is_on_record(golem_id, int(tick))]

    def _is_on_record(self, golem_id: str, tick: int) -> bool:
        """Whether the log holds this tick now."""
        head = self._log.head_of(golem_id)
        lost = any(first <= tick <= last for first, last in (*head.missing, *head.accepted))
        return tick <= head.highest and not lost

    def _found(self, wanted: set[tuple[str, int]], version: int) -> list[tuple[str, _Newest]]:
        """The records of these golems and ticks that came before a version, asked of older and older commits."""
        found: list[tuple[str, _Newest]] = []
        left, until, span = set(wanted), version - 1, 8
        while left and until >= 0:
            since = max(until - span, -1)
            golems = sorted({golem_id for golem_id, _ in left})
            columns = [*NEIGHBOUR_COLUMNS, "version"]
            rows = self._log.read_cycles_between(columns, since if since >= 0 else None, until, golems=golems)
            asked = pc.is_in(rows["tick"], value_set=pa.array(sorted({tick for _, tick in left})))
            rows = rows.filter(pc.and_(asked, pc.less(pc.fill_null(rows["version"], -1), version)))
            for place, golem_id in enumerate(rows["golem_id"].to_pylist()):
                row = _row(rows, place)
                if (golem_id, row.tick) in left:
                    left.discard((golem_id, row.tick))
                    found.append((golem_id, row))
            until, span = since, span * 4
        return found


def _row(records: pa.Table, place: int) -> _Newest:
    return _Newest(*(records[name][place].as_py() for name in NEIGHBOUR_COLUMNS[1:]))
