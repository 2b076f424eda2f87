"""Parts of the tick index: immutable files, each of some ticks in (tick, golem) order, memory-mapped when read.

A tick's categories are packed into one small number, so that a condition on any of them is one comparison over a
column that fits into the cache. Beside the rows lie their positions golem by golem, and each golem's count by phase.
Source: HB S6 (the index's columns).
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bardo_pipeline.errors import StoreError
from bardo_pipeline.events.record.arrow_schema import MOMENT
from bardo_pipeline.events.record.model import EMOTIONS, PHASES, REGIMES, TIERS

SOURCE_COLUMNS = (
    "golem_id",
    "tick",
    "regime",
    "tier",
    "actions",
    "outcome.verified",
    "outcome.pnl_impact_micros",
    "phase",
    "prediction_error",
    "cost.total_micros",
    "primary_emotion",
    "observed_at",
)
"""What of a record a part is made of."""

INDEX_SCHEMA = pa.schema(
    [
        pa.field("golem_id", pa.string(), nullable=False),
        pa.field("tick", pa.int64(), nullable=False),
        pa.field("regime", pa.string(), nullable=False),
        pa.field("tier", pa.string(), nullable=False),
        pa.field("has_action", pa.bool_(), nullable=False),
        pa.field("has_outcome", pa.bool_(), nullable=False),
        pa.field("phase", pa.string(), nullable=False),
        pa.field("prediction_error", pa.float64(), nullable=False),
        pa.field("total_cost_micros", pa.int64(), nullable=False),
        pa.field("pnl_impact_micros", pa.int64()),
        pa.field("primary_emotion", pa.string(), nullable=False),
        pa.field("observed_at", MOMENT, nullable=False),
    ]
)
"""One row per tick. has_action: some tool was called. Money in micro-dollars, pnl null without an outcome."""

FLAGS = (False, True)
FIELDS: Mapping[str, tuple[int, Sequence[object]]] = {
    "tier": (0, TIERS),
    "regime": (2, REGIMES),
    "phase": (5, PHASES),
    "primary_emotion": (8, EMOTIONS),
    "has_action": (11, FLAGS),
    "has_outcome": (12, FLAGS),
}
"""Where each category lies in the packed number (its lowest bit), and its values by code."""

_WIDTH = {name: max(len(values) - 1, 1).bit_length() for name, (_, values) in FIELDS.items()}
_CHUNK = 1 << 18  # rows looked at in one go: their temporary arrays stay in the cache
_SCANNED_SHARE = 8  # golems with more than one row in so many are found by looking at all rows
_FEW = 256  # so many names are looked up one by one
_STORED = pa.schema(
    [
        pa.field("golem", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("tick", pa.int64(), nullable=False),
        pa.field("packed", pa.uint16(), nullable=False),
        pa.field("prediction_error", pa.float64(), nullable=False),
        pa.field("total_cost_micros", pa.int64(), nullable=False),
        pa.field("pnl_impact_micros", pa.int64()),
        pa.field("observed_at", pa.int64(), nullable=False),
        pa.field("by_golem", pa.uint32(), nullable=False),
    ]
)


@dataclass(frozen=True)
class Wanted:
    """A condition on the packed number: a row is wanted if for each pair its masked bits are among the values."""

    tests: tuple[tuple[int, tuple[int, ...]], ...]

    @classmethod
    def of(cls, asked: Mapping[str, Sequence[object]]) -> Self:
        """The condition that each of these categories has one of these values."""
        single = [(n, v[0]) for n, v in asked.items() if len(v) == 1]
        tests: list[tuple[int, tuple[int, ...]]] = []
        if single:
            tests.append((sum(_mask(n) for n, _ in single), (sum(_bits(n, v) for n, v in single),)))
        tests += [(_mask(n), tuple(_bits(n, v) for v in values)) for n, values in asked.items() if len(values) != 1]
        return cls(tuple(tests))

    def among(self, packed: NDArray[np.uint16]) -> NDArray[np.bool_] | None:
        """Which rows are wanted; None for all."""
        found: NDArray[np.bool_] | None = None
        for mask, values in self.tests:
            masked = packed & np.uint16(mask)
            hits = np.zeros(len(packed), np.bool_)
            for value in values:
                hits |= masked == np.uint16(value)
            found = hits if found is None else found & hits
        return found


def _mask(name: str) -> int:
    return ((1 << _WIDTH[name]) - 1) << FIELDS[name][0]


def _bits(name: str, value: object) -> int:
    shift, values = FIELDS[name]
    return values.index(value) << shift


class Part:
    """One part, in memory or mapped from its file."""

    def __init__(self, rows: pa.RecordBatch, offsets: NDArray[np.int64], phases: NDArray[np.int64]) -> None:
        self._rows, self._offsets = rows, offsets
        self.phases = phases
        self.golems: pa.Array = rows.column(0).dictionary
        self.tick: NDArray[np.int64] = rows.column(1).to_numpy()
        self._packed: NDArray[np.uint16] = rows.column(2).to_numpy()
        self._by_golem: NDArray[np.uint32] = rows.column(7).to_numpy()

    def __len__(self) -> int:
        """How many ticks it holds."""
        return int(self._rows.num_rows)

    @cached_property
    def _codes(self) -> NDArray[np.int32]:
        return self._rows.column(0).indices.to_numpy()

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: code for code, name in enumerate(self.golems.to_pylist())}

    # making

    @classmethod
    def of_records(cls, records: pa.Table) -> Self:
        """A part of records (SOURCE_COLUMNS)."""
        packed = np.zeros(records.num_rows, np.uint16)
        for name, values in _categories(records).items():
            packed |= values.astype(np.uint16) << np.uint16(FIELDS[name][0])
        columns = {
            "golem": records["golem_id"],
            "tick": records["tick"],
            "packed": pa.array(packed),
            "prediction_error": records["prediction_error"],
            "total_cost_micros": records["cost.total_micros"],
            "pnl_impact_micros": records["outcome.pnl_impact_micros"],
            "observed_at": records["observed_at"].cast(pa.int64()),
        }
        return cls._made(pa.table(columns))

    @classmethod
    def merged(cls, parts: Sequence[Part]) -> Self:
        """One part of several."""
        names = _STORED.names[:-1]
        tables = [pa.Table.from_batches([part._rows]).select(names) for part in parts]
        plain = [t.set_column(0, "golem", t["golem"].cast(pa.string())) for t in tables]
        return cls._made(pa.concat_tables(plain))

    @classmethod
    def _made(cls, rows: pa.Table) -> Self:
        """Rows in any order, their golems as text, as a part."""
        encoded = rows["golem"].combine_chunks().dictionary_encode()
        given = pa.array(encoded.dictionary)
        order = pc.sort_indices(given)
        rank = np.empty(len(given), np.int32)
        rank[order.to_numpy()] = np.arange(len(given), dtype=np.int32)
        codes = rank[encoded.indices.to_numpy()] if len(given) else np.zeros(0, np.int32)
        ticks = rows["tick"].to_numpy()
        place = np.lexsort((codes, ticks))
        codes = codes[place]
        by_golem = np.argsort(codes, kind="stable").astype(np.uint32)
        offsets = np.searchsorted(codes[by_golem], np.arange(len(given) + 1)).astype(np.int64)
        sorted_rows = rows.drop_columns("golem").take(pa.array(place)).combine_chunks()
        columns = {name: sorted_rows[name].combine_chunks() for name in sorted_rows.column_names}
        columns["golem"] = pa.DictionaryArray.from_arrays(pa.array(codes), given.take(order))
        columns["by_golem"] = pa.array(by_golem)
        batch = pa.RecordBatch.from_arrays([columns[name] for name in _STORED.names], schema=_STORED)
        shift, values = FIELDS["phase"]
        phase = (batch.column(2).to_numpy() >> shift) & ((1 << _WIDTH["phase"]) - 1)
        cell = codes.astype(np.int64) * len(values) + phase
        phases = np.bincount(cell, minlength=len(given) * len(values)).reshape(len(given), len(values))
        return cls(batch, offsets, phases.astype(np.int64))

    def write(self, path: Path) -> int:
        """Put the part into a new file, durably. Returns the checksum of its bytes."""
        facts = {"offsets": self._offsets.tobytes(), "phases": self.phases.tobytes()}
        schema = _STORED.with_metadata(facts)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as out:
            out.write_batch(pa.RecordBatch.from_arrays(self._rows.columns, schema=schema))
        with path.open("rb") as written:
            os.fsync(written.fileno())
        return checksum(path)

    @classmethod
    def open(cls, path: Path, rows: int) -> Self:
        """The part in this file. Raises StoreError for one that has not these rows, OSError for none."""
        try:
            with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as file:
                batches = [file.get_batch(i) for i in range(file.num_record_batches)]
                facts = file.schema.metadata or {}
            (batch,) = batches
            offsets, phases = (np.frombuffer(facts[key], np.int64) for key in (b"offsets", b"phases"))
            golems = len(batch.column(0).dictionary)
            whole = batch.num_rows == rows and len(offsets) == golems + 1 and int(offsets[-1]) == rows
            if not whole or batch.schema.remove_metadata() != _STORED:
                raise StoreError(f"{path} is not the part that its index names")
            return cls(batch, offsets, phases.reshape(golems, len(PHASES)))
        except (pa.ArrowInvalid, KeyError, ValueError) as error:
            raise StoreError(f"{path} is torn: {error}") from error

    # asking

    def newest(
        self, wanted: Wanted, golems: Sequence[str] | None, limit: int, without: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Positions of the last `limit` wanted rows, of all golems or of these, newest first.

        without: positions that do not count, ascending.
        """
        which, chosen = self._candidates(golems)
        found: list[NDArray[np.int64]] = []
        left, end = limit, len(self) if which is None else len(which)
        while left > 0 and end > 0:
            start = max(0, end - _CHUNK)
            hits = self._hits(wanted, chosen, which, start, end)
            if len(without):
                hits = hits[~np.isin(hits, without, assume_unique=True)]
            found.append(hits[::-1][:left])
            left, end = left - len(found[-1]), start
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def _hits(
        self,
        wanted: Wanted,
        chosen: NDArray[np.bool_] | None,
        which: NDArray[np.uint32] | None,
        start: int,
        end: int,
    ) -> NDArray[np.int64]:
        """Positions of the wanted rows among some of the candidates, ascending."""
        if which is not None:
            some = which[start:end]
            mask = wanted.among(self._packed[some])
            return (some if mask is None else some[mask]).astype(np.int64)
        mask = wanted.among(self._packed[start:end])
        hits = np.arange(start, end) if mask is None else np.flatnonzero(mask) + start
        return hits if chosen is None else hits[chosen[self._codes[hits]]]

    def _candidates(self, golems: Sequence[str] | None) -> tuple[NDArray[np.uint32] | None, NDArray[np.bool_] | None]:
        """The positions to look at, ascending (None: all), and which golems count among them (None: all)."""
        if golems is None:
            return None, None
        codes = self._codes_of(golems)
        if int((self._offsets[codes + 1] - self._offsets[codes]).sum()) * _SCANNED_SHARE > len(self) and len(codes) > 1:
            chosen = np.zeros(len(self.golems), np.bool_)
            chosen[codes] = True
            return None, chosen
        runs = [self._by_golem[self._offsets[c] : self._offsets[c + 1]] for c in codes]
        return (np.sort(np.concatenate(runs)) if len(runs) > 1 else runs[0] if runs else np.zeros(0, np.uint32)), None

    def _codes_of(self, golems: Sequence[str]) -> NDArray[np.int64]:
        """The codes of those of these golems that are here."""
        if len(golems) <= _FEW:
            return np.array([code for name in golems if (code := self._places.get(name)) is not None], np.int64)
        found = pc.index_in(pa.array(golems, pa.string()), value_set=self.golems).drop_null()
        return found.to_numpy().astype(np.int64)

    def within(self, golem: str, first: int, last: int) -> NDArray[np.int64]:
        """Positions of a golem's ticks from first to last, ascending."""
        code = self._places.get(golem)
        if code is None:
            return np.zeros(0, np.int64)
        own = self._by_golem[self._offsets[code] : self._offsets[code + 1]]
        ticks = self.tick[own]
        return own[np.searchsorted(ticks, first) : np.searchsorted(ticks, last, side="right")].astype(np.int64)

    def phase_counts(self, golems: Sequence[str] | None, without: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many ticks of all golems, or of these, are in each phase."""
        counts, codes = self.phases, None if golems is None else self._codes_of(golems)
        if codes is not None:
            counts, without = counts[codes], without[np.isin(self._codes[without], codes)]
        shift, values = FIELDS["phase"]
        gone = (self._packed[without] >> shift) & ((1 << _WIDTH["phase"]) - 1)
        return counts.sum(axis=0) - np.bincount(gone, minlength=len(values))

    def rows(self, positions: NDArray[np.int64]) -> pa.Table:
        """These rows (INDEX_SCHEMA), in this order."""
        place = pa.array(positions)
        packed = self._packed[positions]
        columns: dict[str, pa.Array] = {
            name: values.take(pa.array((packed >> FIELDS[name][0]) & ((1 << _WIDTH[name]) - 1)))
            for name, values in _VALUES.items()
        }
        columns["golem_id"] = self.golems.take(self._rows.column(0).indices.take(place))
        for at, name in enumerate(_STORED.names):
            if name in INDEX_SCHEMA.names:
                columns[name] = self._rows.column(at).take(place)
        columns["observed_at"] = columns["observed_at"].cast(MOMENT)
        return pa.table([columns[name] for name in INDEX_SCHEMA.names], schema=INDEX_SCHEMA)


_VALUES = {name: pa.array(list(values)) for name, (_, values) in FIELDS.items()}


def _categories(records: pa.Table) -> dict[str, NDArray[np.int32]]:
    """The code of each category, row by row. Raises StoreError for a value that no record may have."""
    codes: dict[str, NDArray[np.int32]] = {}
    for name in ("tier", "regime", "phase", "primary_emotion"):
        found = pc.index_in(records[name], value_set=_VALUES[name])
        if found.null_count:
            row = records.filter(pc.is_null(found)).slice(0, 1).to_pylist()[0]
            raise StoreError(
                f"golem {row['golem_id']}, tick {row['tick']}: there is no {name} {row[name]!r}: run `bardo verify`"
            )
        codes[name] = found.to_numpy()
    codes["has_action"] = pc.greater(pc.list_value_length(records["actions"]), 0).to_numpy().astype(np.int32)
    codes["has_outcome"] = pc.is_valid(records["outcome.verified"]).to_numpy().astype(np.int32)
    return codes


def checksum(path: Path) -> int:
    """CRC-32 of a file's bytes."""
    found = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            found = zlib.crc32(block, found)
    return found
