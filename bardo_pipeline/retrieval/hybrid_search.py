"""Filters of a search, and its result: the best rows of all stores, one for each text. Pure.

Source: TOOLS (memory_search), MEM-10, canon 23; ADR 0080.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import BoolArray, Float64Array, Int64Array
from bardo_pipeline.errors import QueryError
from bardo_pipeline.events.record.arrow_columns import all_required, required
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.confidence import ppm
from bardo_pipeline.grimoire.entries import CATEGORIES, DREAMT, ENTRY_KINDS, STATUSES
from bardo_pipeline.grimoire.entry_columns import int_column

OWN = ("self", DREAMT)
"""Provenances of entries that a golem learned itself."""

SEARCH_SCHEMA = pa.schema(
    [
        required("rank", pa.int64()),
        *all_required(pa.string(), "store", "id", "golem_id", "kind", "text"),
        *all_required(pa.float64(), "relevance", "retained", "score"),
        required("holders", pa.int64()),
    ]
)
"""One row per text found, best first; ties by store, id and golem. relevance: before age and confidence, in [0, 1].
retained: an episode's retention or an entry's confidence at the time of the question, in [0, 1]. score: relevance less
a bounded share for a low retention, without decay the relevance. holders: number of golems whose rows share the text,
of which the best row is shown."""


@dataclass(frozen=True)
class Filters:
    """Conditions on entries in a search; None matches everything.

    confidence_min in [0, 1] applies to the current confidence of own entries, and to the confidence at origin of
    received entries (canon 23). Raises QueryError for an unknown value and for a confidence outside of [0, 1]. Any
    domain is valid, because a runtime chooses that of its reports.
    """

    kind: str | None = None
    category: str | None = None
    domain: str | None = None
    regime: str | None = None
    status: str | None = "active"
    chain: str | None = None
    pair: str | None = None
    tool: str | None = None
    confidence_min: float = 0.0

    def __post_init__(self) -> None:
        choices = {"kind": ENTRY_KINDS, "category": CATEGORIES, "regime": REGIMES}
        for name, valid_values in (choices | {"status": STATUSES}).items():
            value = getattr(self, name)
            if value is not None and value not in valid_values:
                raise QueryError(f"no {name} is called {value!r}: there are {', '.join(valid_values)}")
        if not 0.0 <= self.confidence_min <= 1.0:
            raise QueryError(f"a confidence is between 0 and 1, not {self.confidence_min}")

    def of(self, entries: pa.Table, confidence: Int64Array) -> BoolArray:
        """Return which entries (ENTRY_SCHEMA) pass. confidence: current, in ppm."""
        own = pc.is_in(entries["provenance"], value_set=pa.array(OWN)).to_numpy()
        published = np.where(own, confidence, int_column(entries, "confidence_origin_ppm"))
        passed = published >= ppm(self.confidence_min)
        for name in ("kind", "category", "domain", "regime", "status", "chain", "pair", "tool"):
            if (value := getattr(self, name)) is not None:
                passed &= pc.fill_null(pc.equal(entries[name], value), False).to_numpy()
        return passed


class Rows(NamedTuple):
    """Rows of a store that share the texts of a snapshot.

    doc: place of each row's text among all texts in scope. text: number of the text, equal for equal texts. passed:
    whether the row passes the filters. describe: row -> id, golem, kind and text. holder: golem that holds the rows.
    """

    store: str
    doc: Int64Array
    text: Int64Array
    passed: BoolArray
    retained: Float64Array
    describe: Callable[[int], tuple[str, str, str, str]]
    holder: str


def highest(scores: Float64Array, count: int) -> tuple[Int64Array, Float64Array]:
    """Return the rows of the highest scores above 0, in order, and these scores, rounded to 9 decimals.

    There are `count` of them and all ties of the last one, or fewer if fewer are above 0. The maxima of blocks give a
    bound below which no row is wanted, so few rows are rounded and sorted.
    """
    width = max(1, len(scores) // (8 * count))
    maxima = np.maximum.reduceat(scores, np.arange(0, len(scores), width))
    rows = np.flatnonzero(scores >= _at_place(maxima, count) - 2e-9)  # lower scores may be equal after rounding
    rounded = np.round(scores[rows], 9)
    is_high = (rounded >= _at_place(rounded, count)) & (rounded > 0.0)
    return rows[is_high], rounded[is_high]


def highest_of_each(scores: Float64Array, text: Int64Array, count: int) -> tuple[Int64Array, Float64Array]:
    """Return the highest rows that have `count` texts together, with all ties of the last one, and their scores.

    text: number of each row's text; many rows may share one.
    """
    wanted = 4 * count
    while True:
        rows, rounded = highest(scores, wanted)
        if len(rows) < wanted or len(np.unique(text[rows])) >= count:
            break
        wanted *= 8
    order = np.argsort(-rounded, kind="stable")
    first = np.sort(np.unique(text[rows[order]], return_index=True)[1])
    is_wanted = rounded >= (rounded[order[first[:count][-1]]] if len(first) else 0.0)
    return rows[is_wanted], rounded[is_wanted]


def _at_place(scores: Float64Array, place: int) -> float:
    """Return the score at this place from the top, or the least one if there are fewer."""
    at = max(len(scores) - place, 0)
    return float(np.partition(scores, at)[at]) if len(scores) else 0.0


class SearchRow(NamedTuple):
    """A text found, with the columns of SEARCH_SCHEMA."""

    rank: int
    store: str
    id: str
    golem_id: str
    kind: str
    text: str
    relevance: float
    retained: float
    score: float
    holders: int


class Candidates:
    """The rows of all stores that pass a search's filters, with all values that do not depend on the question.

    Parameters
    ----------
    penalty : share of the score that a retention of 0 takes
    """

    def __init__(self, parts: Sequence[Rows], penalty: float) -> None:
        self._parts = [part for part in parts if part.passed.any()]
        self._places = [np.flatnonzero(part.passed) for part in self._parts]
        counts = [len(place) for place in self._places]
        self._starts = np.cumsum([0, *counts])
        self.size = int(self._starts[-1])
        if not self.size:
            return
        self._doc, text, self._retained = (
            np.concatenate([getattr(part, name)[place] for part, place in zip(self._parts, self._places, strict=True)])
            for name in ("doc", "text", "retained")
        )
        self._is_all = len(self._doc) == self._doc[-1] + 1 and bool((np.diff(self._doc) == 1).all())
        self._weight = 1.0 - penalty * (1.0 - self._retained)
        stores = sorted({part.store for part in self._parts})
        key = text * len(stores) + np.repeat([stores.index(part.store) for part in self._parts], counts)
        _, self._key = np.unique(key, return_inverse=True)
        golems = sorted({part.holder for part in self._parts})
        holder = np.repeat([golems.index(part.holder) for part in self._parts], counts)
        self._holders = np.bincount(np.unique(self._key * len(golems) + holder) // len(golems))

    def best(self, relevance: Float64Array, count: int) -> list[SearchRow]:
        """Return the best row of each text, at most `count`. relevance: of all texts in scope."""
        if not self.size:
            return []
        relevant = relevance[: len(self._doc)] if self._is_all else relevance[self._doc]
        best: dict[int, tuple[float, str, str, str, str, str, int]] = {}
        rows, scores = highest_of_each(relevant * self._weight, self._key, count)
        for ranked in sorted(map(self._described, rows.tolist(), scores.tolist())):
            best.setdefault(int(self._key[ranked[-1]]), ranked)
        return [
            SearchRow(rank, *ranked[1:6], float(relevant[row]), float(self._retained[row]), -ranked[0],
                  int(self._holders[key]))
            for rank, (key, ranked) in enumerate(list(best.items())[:count], 1)
            for row in [ranked[-1]]
        ]  # fmt: skip

    def _described(self, row: int, score: float) -> tuple[float, str, str, str, str, str, int]:
        part = int(np.searchsorted(self._starts, row, side="right")) - 1
        described = self._parts[part].describe(int(self._places[part][row - self._starts[part]]))
        return (-score, self._parts[part].store, *described, row)
