"""Canonical JSON: the column-wise writer gives the bytes of the row-wise writer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from bardo_pipeline.inheritance.canonical_json import canonical, jsonl

pytestmark = pytest.mark.row("INH-8")

MOMENT = pa.timestamp("us", tz="UTC")
FIRST = datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
COLUMNS = {
    "text": pa.array(["plain", "é\u2028\x7f", ""]),
    "quoted": pa.array(['say "no"', "back\\slash", "two\nlines\x01"]),
    "late": pa.array(["plain", "plain", 'said "no"']),
    "slashed": pa.array(["a", "b\\c", "d"]),
    "some": pa.array([None, "a", None]),
    "none": pa.nulls(3, pa.string()),
    "number": pa.array([-1, 0, 2**62]),
    "perhaps": pa.array([None, 7, None]),
    "ratio": pa.array([1e16, float("nan"), -0.0]),
    "whether": pa.array([True, None, False]),
    "at": pa.array([FIRST, FIRST + timedelta(microseconds=1), FIRST + timedelta(days=20_000)], MOMENT),
    "once": pa.array([None, FIRST, None], MOMENT),
    "listed": pa.array([[1, None], [], None], pa.list_(pa.int64())),
    "within": pa.array([{"b": 1, "a": '"'}, None, {"b": None, "a": "x"}]),
    'a "name"': pa.array([1, 2, 3]),
}


def row_by_row(table: pa.Table) -> bytes:
    rows = zip(*(_plain_values(table[name]) for name in table.column_names), strict=True)
    return b"".join(canonical(dict(zip(table.column_names, row, strict=True))) for row in rows)


def _plain_values(column: pa.ChunkedArray) -> list[object]:
    return column.cast(pa.string()).to_pylist() if pa.types.is_timestamp(column.type) else column.to_pylist()


def test_every_column_type_is_written_as_by_the_row_wise_writer() -> None:
    table = pa.table(COLUMNS)
    assert jsonl(table) == row_by_row(table)
    chunks = pa.concat_tables([table.slice(2), table, table.slice(1, 1)])
    assert jsonl(chunks) == row_by_row(chunks)
    for name in COLUMNS:
        assert jsonl(table.select([name])) == row_by_row(table.select([name])), name
        part = table.select([name]).slice(1)
        assert jsonl(part) == row_by_row(part), name


def test_an_empty_table_is_written_as_no_lines() -> None:
    assert jsonl(pa.table(COLUMNS).slice(3)) == b""
