"""Fill a log with millions of ticks by repeating a world's cycles at later ticks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.events.record.arrow_schema import MOMENT
from benchmarks.figures import derive_incremental
from benchmarks.world import GOLEMS, NOW, SPAN, World

TOGETHER = 16  # cycles of all golems per commit: 51,200 records of 64 golems
DERIVED = 64  # cycles between derivations


def repeat_cycle(world: World, cycle: int) -> pa.Table:
    """Return the records of a 0-based cycle; past the world's end, an earlier cycle moved to later ticks."""
    turn, at = divmod(cycle, len(world.cycles))
    rows = world.cycles[at]
    ticks = turn * len(world.cycles) * SPAN
    if not ticks:
        return rows
    later_us = ticks * 60_000_000
    moved = {
        "tick": pc.add(rows["tick"], ticks),
        "cycle_seen": pc.add(rows["cycle_seen"], turn * len(world.cycles)),
        "observed_at": pc.add(rows["observed_at"].cast(pa.int64()), later_us).cast(MOMENT),
    }
    return pa.table({n: moved.get(n, rows[n]) for n in rows.column_names}, schema=rows.schema)


def batches(world: World, first: int, last: int, together: int = TOGETHER) -> Iterator[pa.Table]:
    """Yield cycles first to last (0-based, end excluded) in batches."""
    for start in range(first, last, together):
        tables = [repeat_cycle(world, k) for k in range(start, min(start + together, last))]
        yield pa.concat_tables(tables).combine_chunks()


class Grower:
    """A home that `to` extends to a number of cycles of all golems, optionally derived."""

    def __init__(self, world: World, stores: DerivationContext) -> None:
        self.world, self.stores = world, stores
        self.cycles = self._segment = 0

    @property
    def records(self) -> int:
        """Number of records in the log."""
        return self.cycles * self.world.golems * SPAN

    def to(self, cycles: int, *, derive: bool) -> None:
        """Append up to `cycles`; derive every 64 cycles, because one derivation must fit into memory."""
        while self.cycles < cycles:
            stop = min(self.cycles + DERIVED, cycles)
            for batch in batches(self.world, self.cycles, stop):
                self._segment += 1
                self.stores.log.append(batch, writer="bench", segment=self._segment, recorded_at=NOW, simulated=True)
            self.cycles = stop
            if derive:
                derive_incremental(self.stores)


def cycles_for(records: int, golems: int = GOLEMS) -> int:
    """Return the number of cycles of all golems that hold at least `records` records."""
    return int(np.ceil(records / (golems * SPAN)))
