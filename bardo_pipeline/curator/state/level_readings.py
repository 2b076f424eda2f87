"""Level readings: exact histograms of a metric's readings by golem and structure, and their quantiles. Pure.

A bin holds one value below 64, and 1/32 of an octave above, so that a quantile of a histogram differs from the quantile
of its readings by at most 1.6 %. Counts are integers, so neither order nor batches of readings matter. A histogram is a
function of the log and of the cycle from which the entry's readings count; it is no part of a decision.
Source: MEM-2 (baseline facts); docs/adr/0074 (a level states quantiles).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.events.record.arrow_columns import all_required

QUANTILES_PERCENT = (10, 25, 50, 75, 90)
"""The quantiles that a level states."""

LEVEL_MAX = 100_000_000
"""Cap of a reading: a hundred dollars of gas, a hundred million dollars of volume per tick."""

READINGS_SCHEMA = pa.schema(
    [
        *all_required(pa.string(), "golem_id", "structure"),
        *all_required(pa.int64(), "day_last"),
        *all_required(pa.list_(pa.int64()), "bins", "counts"),
    ]
)
"""One row per golem and structure: last market day, filled bins and their counts."""

_EXACT_BITS = 6
_PER_OCTAVE = 1 << (_EXACT_BITS - 1)

Key = tuple[str, str]
"""Golem id, structure key."""


def bins_of(readings: Int64Array) -> Int64Array:
    """Return the bin of each reading in [0, LEVEL_MAX]."""
    shift = np.maximum(np.frexp(readings.astype(np.float64))[1] - _EXACT_BITS, 0).astype(np.int64)
    return shift * _PER_OCTAVE + (readings >> shift)


def middles() -> Int64Array:
    """Return the middle value of each bin, rounded down."""
    bins = np.arange(_BINS, dtype=np.int64)
    shift = np.maximum(bins // _PER_OCTAVE - 1, 0)
    return ((bins - shift * _PER_OCTAVE) << shift) + ((1 << shift) - 1) // 2


_BINS = int(bins_of(np.array([LEVEL_MAX]))[0]) + 1
MIDDLES = middles()


def quantiles_of(histograms: Int64Array) -> Int64Array:
    """Return QUANTILES_PERCENT of histograms [rows, bins] with at least one reading. [rows, quantiles].

    The quantile between two readings is interpolated linearly, rounded half up.
    """
    filled = np.flatnonzero(histograms.any(axis=0))
    first, stop = filled[0], filled[-1] + 1
    reached = np.cumsum(histograms[:, first:stop], axis=1)
    place = (reached[:, -1:] - 1) * np.array(QUANTILES_PERCENT)
    rank, rest = np.divmod(place, 100)
    low, high = MIDDLES[first + _bin_at(reached, np.minimum(np.stack([rank, rank + 1]), reached[:, -1:] - 1))]
    return np.asarray((low * (100 - rest) + high * rest + 50) // 100)


def _bin_at(reached: Int64Array, rank: Int64Array) -> Int64Array:
    """Return the bin of the readings at these ranks [..., rows, ranks], from 0. reached: cumulative [rows, bins]."""
    row = np.arange(len(reached))[:, None] * (int(reached[:, -1].max(initial=0)) + 1)
    flat = (reached + row).reshape(-1)  # ascending, because a row's offset exceeds every count of the row before
    return np.searchsorted(flat, rank + row, side="right") - np.arange(len(reached))[:, None] * reached.shape[1]


def medians(readings: Int64Array, spans: Int64Array) -> Int64Array:
    """Return the median, at the bins' middles, of each non-empty span [first, stop) of readings."""
    count = spans[:, 1] - spans[:, 0]
    owner = np.repeat(np.arange(len(spans)), count)
    start = np.cumsum(count) - count
    flat = readings[np.repeat(spans[:, 0] - start, count) + np.arange(len(owner))]
    ordered = MIDDLES[bins_of(flat)][np.lexsort((flat, owner))]
    return np.asarray((ordered[start + (count - 1) // 2] + ordered[start + count // 2]) // 2)


@dataclass
class LevelReadings:
    """Histograms of some golems' levels. counts: [slots, bins]; day_last: newest market day by slot, -1 for none."""

    slots: dict[Key, int] = field(default_factory=dict)
    counts: Int64Array = field(default_factory=lambda: np.zeros((0, _BINS), np.int64))
    day_last: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))

    def slot(self, keys: Sequence[Key]) -> Int64Array:
        """Return the slot of each key; a new key gets an empty histogram."""
        numbers = np.array([self.slots.setdefault(key, len(self.slots)) for key in keys], np.int64)
        missing = len(self.slots) - len(self.counts)
        if missing > 0:  # spare slots make it negative
            spare = max(missing, len(self.counts) // 2)
            self.counts = np.concatenate([self.counts, np.zeros((spare, _BINS), np.int64)])
            self.day_last = np.concatenate([self.day_last, np.full(spare, -1)])
        return numbers

    def clear(self, slots: Int64Array) -> None:
        """Empty these histograms."""
        self.counts[slots], self.day_last[slots] = 0, -1

    def add(self, slots: Int64Array, spans: Int64Array, readings: Int64Array, days: Int64Array) -> Int64Array:
        """Add a span [first, stop) of readings, ascending in days, to each slot; return the number of new days."""
        count = spans[:, 1] - spans[:, 0]
        start = np.cumsum(count) - count
        at = np.repeat(spans[:, 0] - start, count) + np.arange(int(count.sum()))
        np.add.at(self.counts.reshape(-1), np.repeat(slots * _BINS, count) + bins_of(readings[at]), 1)
        day = days[at]
        before = np.r_[-1, day[:-1]]
        before[start] = self.day_last[slots]
        fresh = np.add.reduceat((day > before).astype(np.int64), start)
        self.day_last[slots] = np.maximum(self.day_last[slots], day[start + count - 1])
        return fresh

    def quantiles(self, slots: Int64Array) -> Int64Array:
        """Return QUANTILES_PERCENT of these histograms. [slots, quantiles]."""
        return quantiles_of(self.counts[slots])

    def without_golems(self, golem_ids: set[str]) -> LevelReadings:
        """Return the histograms of all other golems."""
        kept = [(key, slot) for key, slot in self.slots.items() if key[0] not in golem_ids]
        slots = np.array([slot for _, slot in kept], np.int64)
        numbered = {key: place for place, (key, _) in enumerate(kept)}
        return LevelReadings(numbered, self.counts[slots], self.day_last[slots])

    def absorb(self, other: LevelReadings) -> None:
        """Add another's histograms, replacing those of the same golems."""
        rest = self.without_golems({golem_id for golem_id, _ in other.slots})
        count, added = len(rest.slots), np.fromiter(other.slots.values(), np.int64, len(other.slots))
        self.slots = rest.slots | {key: count + place for place, key in enumerate(other.slots)}
        self.counts = np.concatenate([rest.counts[:count], other.counts[added]])
        self.day_last = np.concatenate([rest.day_last[:count], other.day_last[added]])

    def table(self, golem_ids: set[str]) -> pa.Table:
        """Return the filled histograms of these golems as READINGS_SCHEMA."""
        rows = []
        for (golem_id, structure), slot in sorted(self.slots.items()):
            if golem_id in golem_ids and self.day_last[slot] >= 0:
                filled = np.flatnonzero(self.counts[slot])
                rows.append(
                    {
                        "golem_id": golem_id, "structure": structure, "day_last": int(self.day_last[slot]),
                        "bins": filled, "counts": self.counts[slot, filled],
                    }
                )  # fmt: skip
        return pa.Table.from_pylist(rows, READINGS_SCHEMA)


def from_table(table: pa.Table) -> LevelReadings:
    """Convert READINGS_SCHEMA to histograms."""
    readings = LevelReadings()
    slots = readings.slot(list(zip(table["golem_id"].to_pylist(), table["structure"].to_pylist(), strict=True)))
    for place, slot in enumerate(slots.tolist()):
        bins, counts = (table[name][place].values.to_numpy() for name in ("bins", "counts"))
        readings.counts[slot, bins] = counts
    readings.day_last[slots] = table["day_last"].to_numpy()
    return readings
