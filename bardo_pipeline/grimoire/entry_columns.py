"""Columns of entries: confidence of each row at a moment, and questions put to tables in memory. Pure.

Entries and decisions (which carry the entry as it was left) have the same columns, so both may be asked.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache, partial
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import BoolArray, Int64Array
from bardo_pipeline.grimoire import confidence as conf
from bardo_pipeline.grimoire.entries import DECAY_CLASSES, DREAMT, MOMENT
from bardo_pipeline.policy import DecayPolicy


def half_life_of(entries: pa.Table, policy: DecayPolicy) -> Int64Array:
    """Half-life of each row in microseconds, FOREVER_US for what does not fade."""
    codes = pc.index_in(entries.column("decay_class"), value_set=pa.array(DECAY_CLASSES)).to_numpy().astype(np.int64)
    evidence = np.maximum(int_column(entries, "own_count"), int_column(entries, "evidence_count"))
    half = conf.half_life_us(codes, evidence, bool_column(entries, "is_bloodstain"), policy)
    dreamt = to_bools(contiguous(pc.equal(entries.column("provenance"), DREAMT)))
    return np.where(dreamt, conf.dreamt_half_life_us(half, policy), half) if dreamt.any() else half


def floor_of(entries: pa.Table, policy: DecayPolicy) -> Int64Array:
    """Floor of each row in ppm, 0 without one."""
    anti, stained = bool_column(entries, "is_anti_knowledge"), bool_column(entries, "is_bloodstain")
    return conf.floor_ppm(anti, stained, policy, int_column(entries, "pinned_ppm"))


def confidence_of(entries: pa.Table, at_us: Int64Array | int, policy: DecayPolicy) -> Int64Array:
    """Confidence of each row in ppm at a moment (UTC microseconds, one for all or one a row)."""
    return conf.confidence_at(
        int_column(entries, "confidence_ppm"),
        micros(entries, "anchor_at"),
        at_us,
        half_life_of(entries, policy),
        floor_of(entries, policy),
    )


def int_column(table: pa.Table, name: str) -> Int64Array:
    """An integer column as int64."""
    return table.column(name).to_numpy().astype(np.int64)


def to_bools(column: pa.Array | pa.ChunkedArray) -> BoolArray:
    """A boolean array without nulls."""
    return column.to_numpy(zero_copy_only=False).astype(bool)


def bool_column(table: pa.Table, name: str) -> BoolArray:
    """A boolean column."""
    return to_bools(contiguous(table.column(name)))


def equals_word(table: pa.Table, name: str, word: str) -> BoolArray:
    """Whether a column of words has this one; not where it has none."""
    return to_bools(pc.fill_null(contiguous(pc.equal(table.column(name), word)), False))


def contiguous(column: pa.ChunkedArray) -> pa.Array:
    """One array of a column; one that is whole is not copied."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def sorted_by(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The rows in the order of these columns, which hold no null. To see that they lie so costs less than to sort."""
    return rows if _is_sorted(rows, key) else rows.sort_by([(name, "ascending") for name in key])


def _is_sorted(rows: pa.Table, key: Sequence[str]) -> bool:
    tied = np.ones(max(rows.num_rows - 1, 0), bool)
    for name in key if len(tied) else ():
        column = contiguous(rows[name])
        assert not column.null_count, f"{name}: what is null has no place in an order"
        before, after = column.slice(0, len(tied)), column.slice(1)
        if (tied & to_bools(pc.greater(before, after))).any():
            return False
        tied &= to_bools(pc.equal(before, after))
        if not tied.any():
            return True
    return True


def micros(table: pa.Table, name: str) -> Int64Array:
    """A moment column as UTC microseconds."""
    return table.column(name).cast(pa.int64()).to_numpy()


def moments(us: Int64Array, null: BoolArray | None = None) -> pa.Array:
    """UTC microseconds as a moment column."""
    return pa.array(us, pa.int64(), mask=null).cast(MOMENT)


def with_columns(table: pa.Table, **columns: pa.Array | Int64Array | BoolArray) -> pa.Table:
    """The table with some of its columns exchanged, types kept."""
    for name, values in columns.items():
        place = table.schema.get_field_index(name)
        field = table.schema.field(place)
        array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
        table = table.set_column(place, field, array.cast(field.type))
    return table


def query_tables(query: str, numbers: Mapping[str, Any] | None = None, **tables: pa.Table) -> pa.Table:
    """The answer of an in-memory DuckDB to a query over these tables; numbers: what the query names by $.

    Sums of integers are exact there (128 bits), so no order of addition shows. Moments go in and out as microseconds.
    """
    few = sum(table.num_rows for table in tables.values()) <= _FEW_ROWS
    with _engine(os.getpid(), few).cursor() as connection, warnings.catch_warnings():
        # A prepared result is copied once more; to have its query bound and parsed again costs more.
        warnings.filterwarnings("ignore", "Arrow output on a DB-API result", UserWarning)
        ask = partial(connection.execute, _statement(query), dict(numbers) if numbers else None)
        eval(_ASK, {"ask": ask}, tables)  # noqa: S307 - its own words; DuckDB reads the names that its caller sees
        return connection.to_arrow_table()


_ASK = compile("ask()", "<asked>", "eval")
"""A call in sight of tables alone: DuckDB finds them by name. To register one as a view would cost 0.5 ms."""

_FEW_ROWS = 65_536
_STATEMENTS_KEPT = 256


@cache
def _engine(process: int, few: bool) -> Any:
    """An empty database a process: a cursor on it costs 0.01 ms, a new database 12 ms. Cursors share no tables.

    few: of one thread, for questions over few rows, of which more threads would only wait for each other.
    """
    return duckdb.connect(":memory:", config={"threads": 1} if few else {})


@lru_cache(_STATEMENTS_KEPT)
def _statement(query: str) -> duckdb.Statement:
    """A query, parsed once: of a few rows' answer that is a third of the time."""
    (statement,) = _engine(os.getpid(), True).extract_statements(query)
    return statement


def newest_per_golem(rows: pa.Table, by: str) -> pa.Table:
    """The row of each golem that has the most of a column, by golem."""
    ordered = rows.sort_by([("golem_id", "ascending"), (by, "ascending")])
    golem = ordered["golem_id"].to_numpy()
    return ordered.filter(pa.array(np.append(golem[1:] != golem[:-1], np.ones(len(golem[:1]), bool)), pa.bool_()))


class PerGolem:
    """Rows of many golems, to be taken golem by golem: each golem's are one slice, in the order in which they came."""

    def __init__(self, rows: pa.Table) -> None:
        encoded = rows["golem_id"].combine_chunks().dictionary_encode()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.unify_dictionaries().combine_chunks()
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        counts = np.bincount(codes, minlength=len(encoded.dictionary))
        self._rows = rows.take(pa.array(np.argsort(codes, kind="stable")))
        starts = (np.cumsum(counts) - counts).tolist()
        self._places = dict(zip(encoded.dictionary.to_pylist(), zip(starts, counts.tolist(), strict=True), strict=True))

    def of(self, golem_id: str) -> pa.Table:
        """The golem's rows; none where there are none."""
        return self._rows.slice(*self._places.get(golem_id, (0, 0)))
