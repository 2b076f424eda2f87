"""Columns of entries as numpy arrays, confidence of each row, DuckDB queries over tables in memory. Pure.

Decisions have the columns of entries, so these functions accept both.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache, partial
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import BoolArray, Column, Int64Array
from bardo_pipeline.events.record.arrow_columns import contiguous
from bardo_pipeline.grimoire import confidence as conf
from bardo_pipeline.grimoire.entries import DECAY_CLASSES, DREAMT, ENTRY_SCHEMA, MOMENT
from bardo_pipeline.policy import DecayPolicy


def half_life_of(entries: pa.Table, policy: DecayPolicy) -> Int64Array:
    """Return the half-life of each row in microseconds, FOREVER_US for rows that never decay."""
    codes = pc.index_in(entries.column("decay_class"), value_set=pa.array(DECAY_CLASSES)).to_numpy().astype(np.int64)
    evidence = np.maximum(int_column(entries, "own_count"), int_column(entries, "evidence_count"))
    half = conf.half_life_us(codes, evidence, bool_column(entries, "is_bloodstain"), policy)
    dreamt = to_bools(contiguous(pc.equal(entries.column("provenance"), DREAMT)))
    return np.where(dreamt, conf.dreamt_half_life_us(half, policy), half) if dreamt.any() else half


def floor_of(entries: pa.Table, policy: DecayPolicy) -> Int64Array:
    """Return the confidence floor of each row in ppm, 0 without one."""
    anti, stained = bool_column(entries, "is_anti_knowledge"), bool_column(entries, "is_bloodstain")
    return conf.floor_ppm(anti, stained, policy, int_column(entries, "pinned_ppm"))


def confidence_of(entries: pa.Table, at_us: Int64Array | int, policy: DecayPolicy) -> Int64Array:
    """Return the confidence of each row in ppm at a moment (UTC microseconds, one for all or one per row)."""
    held, anchor_us = int_column(entries, "confidence_ppm"), micros(entries, "anchor_at")
    return conf.confidence_at(held, anchor_us, at_us, half_life_of(entries, policy), floor_of(entries, policy))


def int_column(table: pa.Table, name: str) -> Int64Array:
    """Return an integer column as int64."""
    return table.column(name).to_numpy().astype(np.int64)


def to_bools(column: pa.Array | pa.ChunkedArray) -> BoolArray:
    """Return a boolean column without nulls as numpy array."""
    return column.to_numpy(zero_copy_only=False).astype(bool)


def bool_column(table: pa.Table, name: str) -> BoolArray:
    """Return a boolean column by name."""
    return to_bools(contiguous(table.column(name)))


def equals_word(table: pa.Table, name: str, word: str) -> BoolArray:
    """Return for each row whether a string column equals this word; false for null."""
    return to_bools(pc.fill_null(contiguous(pc.equal(table.column(name), word)), False))


def index_of(keys: Int64Array, wanted: Int64Array) -> Int64Array:
    """Return the index of the first equal key of each wanted value, -1 for none. keys: ascending."""
    if not len(keys):
        return np.full(wanted.shape, -1)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, at, -1)


def sorted_by(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Sort rows by these columns, which hold no null. Rows in order are returned as they are: checking is cheaper."""
    return rows if _is_sorted(rows, key) else rows.sort_by([(name, "ascending") for name in key])


def _is_sorted(rows: pa.Table, key: Sequence[str]) -> bool:
    tied = np.ones(max(rows.num_rows - 1, 0), bool)
    for name in key if len(tied) else ():
        column = contiguous(rows[name])
        assert not column.null_count, f"{name}: null in a sort column"
        before, after = column.slice(0, len(tied)), column.slice(1)
        if (tied & to_bools(pc.greater(before, after))).any():
            return False
        tied &= to_bools(pc.equal(before, after))
        if not tied.any():
            return True
    return True


def micros(table: pa.Table, name: str) -> Int64Array:
    """Return a timestamp column as UTC microseconds."""
    return table.column(name).cast(pa.int64()).to_numpy()


def moments(us: Int64Array, null: BoolArray | None = None) -> pa.Array:
    """Return UTC microseconds as a timestamp column."""
    return pa.array(us, pa.int64(), mask=null).cast(MOMENT)


def with_columns(table: pa.Table, **columns: Column | Int64Array | BoolArray) -> pa.Table:
    """Replace some columns of a table, keeping their types."""
    for name, values in columns.items():
        place = table.schema.get_field_index(name)
        field = table.schema.field(place)
        array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
        table = table.set_column(place, field, array.cast(field.type))
    return table


def filled_entries(rows: pa.Table, **constants: str) -> pa.Table:
    """Return rows with some columns of entries as ENTRY_SCHEMA. Constants replace columns; others are null or 0."""
    count = rows.num_rows
    columns = {name: rows[name] for name in ENTRY_SCHEMA.names if name in rows.column_names}
    columns |= {name: pa.array([value] * count, pa.string()) for name, value in constants.items()}
    missing = [f for f in ENTRY_SCHEMA if f.name not in columns]
    columns |= {f.name: pa.nulls(count, f.type) if f.nullable else pa.array([0] * count, f.type) for f in missing}
    return pa.table({name: columns[name] for name in ENTRY_SCHEMA.names}).cast(ENTRY_SCHEMA)


def query_tables(query: str, numbers: Mapping[str, Any] | None = None, **tables: pa.Table) -> pa.Table:
    """Run a DuckDB query over tables in memory. numbers: parameters that the query names by `$`.

    Integer sums are exact (128 bits), so results do not depend on the order of rows. Timestamps keep microseconds.
    """
    few = sum(table.num_rows for table in tables.values()) <= _FEW_ROWS
    with _engine(os.getpid(), few).cursor() as connection, warnings.catch_warnings():
        # The warning concerns an extra copy of prepared results; parsing the query again would cost more.
        warnings.filterwarnings("ignore", "Arrow output on a DB-API result", UserWarning)
        ask = partial(connection.execute, _statement(query), dict(numbers) if numbers else None)
        # DuckDB finds the tables by name in the scope of this call; registering a view costs 0.5 ms each.
        eval("ask()", {"ask": ask}, tables)  # noqa: S307 - constant text
        return connection.to_arrow_table()


_FEW_ROWS = 65_536
_STATEMENTS_KEPT = 256


@cache
def _engine(process: int, few: bool) -> Any:
    """Return the empty database of a process, because a cursor costs 0.01 ms and a new database 12 ms.

    few: use one thread, because for few rows more threads only wait for each other.
    """
    return duckdb.connect(":memory:", config={"threads": 1} if few else {})


@lru_cache(_STATEMENTS_KEPT)
def _statement(query: str) -> duckdb.Statement:
    """Parse a query once; for few rows parsing is a third of its time."""
    (statement,) = _engine(os.getpid(), True).extract_statements(query)
    return statement


def newest_per_golem(rows: pa.Table, by: str) -> pa.Table:
    """Return for each golem the row with the largest value of a column, sorted by golem."""
    ordered = rows.sort_by([("golem_id", "ascending"), (by, "ascending")])
    golem = ordered["golem_id"].to_numpy()
    return ordered.filter(pa.array(np.append(golem[1:] != golem[:-1], np.ones(len(golem[:1]), bool)), pa.bool_()))


def grouped_by_golem(rows: pa.Table) -> Callable[[str], pa.Table]:
    """Group rows by golem. Return a function from a golem to its rows, possibly none, in their original order."""
    encoded = contiguous(rows["golem_id"]).dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    counts = np.bincount(codes, minlength=len(encoded.dictionary))
    grouped = rows.take(pa.array(np.argsort(codes, kind="stable")))
    slices = zip((np.cumsum(counts) - counts).tolist(), counts.tolist(), strict=True)
    slice_of = dict(zip(encoded.dictionary.to_pylist(), slices, strict=True))
    return lambda golem_id: grouped.slice(*slice_of.get(golem_id, (0, 0)))
