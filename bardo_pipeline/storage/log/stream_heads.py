"""Stream heads: highest tick, missing ticks and accepted gaps of each golem. Pure.

A head is a function of two sets, the recorded ticks and the ticks accepted as lost; order and repetition of updates do
not matter. Ticks start at 1. Source: architecture ("Time and order").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bardo_pipeline.errors import DeclaredDeadError, RecordError, RegressionError
from bardo_pipeline.events.custody.hash_chain import Tip
from bardo_pipeline.events.life.events import LifeEvent
from bardo_pipeline.events.life.thanatopsis_events import SILENCE
from bardo_pipeline.events.record.arrow_columns import all_required, contiguous, required

Ticks = NDArray[np.int64]
Span = tuple[int, int]
"""First and last tick of a run, inclusive."""

_SPAN = pa.struct(all_required(pa.int64(), "tick_from", "tick_to"))
HEADS_SCHEMA = pa.schema(
    [required("golem_id", pa.string()), *all_required(pa.int64(), "contiguous", "highest", "missing_count")]
)
"""One row per golem, by id. contiguous: last tick before the first missing one; highest: highest recorded tick."""

_INDEX_SCHEMA = pa.schema(
    [
        HEADS_SCHEMA.field("golem_id"),
        HEADS_SCHEMA.field("highest"),
        pa.field("missing", pa.list_(_SPAN)),
        required("link_number", pa.int64()),
        required("link_hash", pa.binary()),
    ]
)


class TickRange(NamedTuple):
    """A run of one golem's ticks, inclusive."""

    golem_id: str
    tick_from: int
    tick_to: int


@dataclass
class Head:
    """Highest recorded tick of a golem, missing runs below it, runs accepted as lost, and newest link."""

    highest: int = 0
    missing: list[Span] = field(default_factory=list)
    accepted: list[Span] = field(default_factory=list)
    tip: Tip = field(default_factory=Tip)

    @property
    def contiguous(self) -> int:
        """Last tick up to which every tick is recorded or accepted as lost."""
        if self.missing:
            return self.missing[0][0] - 1
        reached = self.highest
        for first, last in self.accepted:
            if first <= reached + 1:
                reached = max(reached, last)
        return reached

    def covered(self, ticks: Ticks) -> NDArray[np.bool_]:
        """Return a mask of the ticks that are recorded or accepted as lost."""
        return (ticks <= self.highest) & ~_inside(ticks, self.missing) | _inside(ticks, self.accepted)

    def record(self, ticks: Ticks) -> tuple[list[Span], list[Span]]:
        """Record ticks (ascending, unique); return the gaps that they open and the missing runs that they fill."""
        if len(ticks) == 0:
            return [], []
        if ticks[0] == self.highest + 1 and ticks[-1] - ticks[0] + 1 == len(ticks):
            self.highest = int(ticks[-1])
            return [], []
        late = ticks[_inside(ticks, self.missing)]
        for span in runs(late):
            self.missing = _without(self.missing, span)
        opened: list[Span] = []
        for first, last in runs(ticks[ticks > self.highest]):
            gap = [(self.highest + 1, first - 1)] if first > self.highest + 1 else []
            opened.extend(without_spans(gap, self.accepted))
            self.highest = last
        self.missing.extend(opened)
        return opened, runs(late)

    def accept(self, span: Span) -> None:
        """Accept a run of ticks as lost; recorded ticks stay recorded."""
        self.accepted = sorted({*self.accepted, span})
        self.missing = _without(self.missing, span)


class Heads:
    """Stream heads of all golems by id."""

    def __init__(self) -> None:
        self.of: dict[str, Head] = {}

    def head(self, golem_id: str) -> Head:
        """The golem's head; a new one for a golem that was never seen."""
        return self.of.setdefault(golem_id, Head())

    def record(self, golem_ids: pa.Array, ticks: Ticks) -> tuple[tuple[TickRange, ...], tuple[TickRange, ...]]:
        """Record rows in any order; return opened gaps and filled runs, by golem and tick."""
        gaps: list[TickRange] = []
        late: list[TickRange] = []
        for golem_id, rows in grouped(golem_ids, ticks):
            opened, filled = self.head(golem_id).record(np.unique(ticks[rows]))
            gaps.extend(TickRange(golem_id, *span) for span in opened)
            late.extend(TickRange(golem_id, *span) for span in filled)
        return tuple(sorted(gaps)), tuple(sorted(late))

    def follow(self, golem_ids: pa.Array, numbers: pa.ChunkedArray, hashes: pa.ChunkedArray) -> None:
        """Update the newest link of each golem from links in any order; rows without a link are null."""
        encoded = golem_ids.dictionary_encode()
        codes, given = encoded.indices.to_numpy(), pc.fill_null(numbers, 0).to_numpy()
        newest = np.zeros(len(encoded.dictionary), dtype=np.int64)
        np.maximum.at(newest, codes, given)
        rows = np.flatnonzero(given == newest[codes])
        last = np.zeros(len(newest), dtype=np.int64)
        last[codes[rows]] = rows
        links = hashes.take(pa.array(last)).to_pylist()
        for golem_id, number, link in zip(encoded.dictionary.to_pylist(), newest.tolist(), links, strict=True):
            head = self.head(golem_id)
            if number > head.tip.number:
                head.tip = Tip(number, link)

    def missing(self) -> tuple[TickRange, ...]:
        """Return all missing runs, by golem and tick."""
        return tuple(TickRange(g, *span) for g in sorted(self.of) for span in self.of[g].missing)

    def table(self) -> pa.Table:
        """Return the heads as a table (HEADS_SCHEMA)."""
        rows = sorted(self.of.items())
        columns = {
            "golem_id": [golem_id for golem_id, _ in rows],
            "contiguous": [head.contiguous for _, head in rows],
            "highest": [head.highest for _, head in rows],
            "missing_count": [sum(last - first + 1 for first, last in head.missing) for _, head in rows],
        }
        return pa.table(columns, schema=HEADS_SCHEMA)

    def to_index(self) -> pa.Table:
        """Return the table for `from_index`, without accepted gaps, which are life events."""
        rows = sorted((g, head) for g, head in self.of.items() if head.highest)
        columns = {
            "golem_id": [golem_id for golem_id, _ in rows],
            "highest": [head.highest for _, head in rows],
            "missing": [[{"tick_from": a, "tick_to": b} for a, b in head.missing] for _, head in rows],
            "link_number": [head.tip.number for _, head in rows],
            "link_hash": [head.tip.hash for _, head in rows],
        }
        return pa.table(columns, schema=_INDEX_SCHEMA)

    @classmethod
    def from_index(cls, index: pa.Table) -> Heads:
        """Build the heads from the table of `to_index`."""
        heads = cls()
        for row in index.to_pylist():
            missing = [(span["tick_from"], span["tick_to"]) for span in row["missing"]]
            heads.of[row["golem_id"]] = Head(row["highest"], missing, tip=Tip(row["link_number"], row["link_hash"]))
        return heads


@dataclass(frozen=True)
class Groups:
    """Rows grouped by golem: names, code of each row, row order by golem and tick, offsets of the golems."""

    names: list[str]
    codes: NDArray[np.int32]
    order: NDArray[np.intp]
    bounds: NDArray[np.intp]

    def __iter__(self) -> Iterator[tuple[str, NDArray[np.intp]]]:
        """Yield each golem with its rows by tick; rows of one tick keep their order."""
        for golem_id, first, last in zip(self.names, self.bounds[:-1], self.bounds[1:], strict=True):
            yield golem_id, self.order[first:last]


def grouped(golem_ids: pa.Array, ticks: Ticks) -> Groups:
    """Group rows by golem and sort them by tick."""
    encoded = golem_ids.dictionary_encode()
    codes = encoded.indices.to_numpy()
    is_sorted = (codes[1:] > codes[:-1]) | (codes[1:] == codes[:-1]) & (ticks[1:] >= ticks[:-1])
    order = np.arange(len(codes)) if is_sorted.all() else np.lexsort((ticks, codes))
    bounds = np.searchsorted(codes[order], np.arange(len(encoded.dictionary) + 1))
    return Groups(encoded.dictionary.to_pylist(), codes, order, bounds)


def past_death(golem_id: str, tick: int, death: int, cause: str | None) -> RegressionError:
    """Return the error for a tick after the golem's recorded death of this cause."""
    if cause == SILENCE:
        return DeclaredDeadError(golem_id, tick, death)
    return RegressionError(golem_id, tick, f"comes after its death at tick {death}")


def check_deaths(events: Sequence[LifeEvent], highest: Callable[[str], int]) -> None:
    """Raise RecordError for a death before the golem's highest recorded tick (0 without a record)."""
    for event in events:
        if event.died is not None and event.died.tick < (last := highest(event.golem_id)):
            raise RecordError(
                f"golem {event.golem_id}: a death at tick {event.died.tick} lies below tick {last}, the highest on "
                f"record: declare it at tick {last} or later"
            )


def runs(ticks: Ticks) -> list[Span]:
    """Split ascending ticks into contiguous runs."""
    if len(ticks) == 0:
        return []
    breaks = np.flatnonzero(np.diff(ticks) > 1)
    firsts, lasts = ticks[np.r_[0, breaks + 1]], ticks[np.r_[breaks, len(ticks) - 1]]
    return [(int(first), int(last)) for first, last in zip(firsts, lasts, strict=True)]


def _inside(ticks: Ticks, spans: Iterable[Span]) -> NDArray[np.bool_]:
    inside = np.zeros(len(ticks), dtype=np.bool_)
    for first, last in spans:
        inside |= (ticks >= first) & (ticks <= last)
    return inside


def without_spans(spans: list[Span], removed: Iterable[Span]) -> list[Span]:
    """Return the ticks of runs that are in no removed run, as runs."""
    for span in removed:
        spans = _without(spans, span)
    return spans


def _without(spans: list[Span], removed: Span) -> list[Span]:
    parts: list[Span] = []
    for first, last in spans:
        both_sides = ((first, min(last, removed[0] - 1)), (max(first, removed[1] + 1), last))
        parts.extend(span for span in both_sides if span[0] <= span[1])
    return parts


def golem_column(table: pa.Table) -> pa.Array:
    """Return the golem ids as one Arrow array of strings."""
    column = contiguous(table.column("golem_id"))
    return pc.cast(column, pa.string()) if not pa.types.is_string(column.type) else column
