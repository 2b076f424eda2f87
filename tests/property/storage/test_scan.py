"""`scan` reads the same rows as a plain Arrow dataset, and files as they are on disk now."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bardo_pipeline.storage.delta.parquet_io import scan, write_parquet
from tests.support.example_count import times

PART = pa.struct([pa.field("always", pa.int64(), nullable=False), pa.field("perhaps", pa.string())])
LOOSE = pa.struct([pa.field("perhaps", pa.string()), pa.field("deep", PART)])
SCHEMA = pa.schema(
    [
        pa.field("tick", pa.int64(), nullable=False),
        pa.field("word", pa.string()),
        pa.field("part", PART),
        pa.field("loose", LOOSE),
        pa.field("many", pa.list_(PART)),
    ]
)
words, numbers = st.none() | st.sampled_from(("", "a", "b")), st.integers(0, 3)
parts = st.none() | st.fixed_dictionaries({"always": numbers, "perhaps": words})
rows = st.fixed_dictionaries(
    {
        "tick": numbers, "word": words, "part": parts, "many": st.none() | st.lists(parts, max_size=2),
        "loose": st.none() | st.fixed_dictionaries({"perhaps": words, "deep": parts}),
    }
)  # fmt: skip
nothing = st.fixed_dictionaries({"tick": numbers})
files = st.lists(st.lists(rows, max_size=3) | st.lists(nothing, max_size=3), min_size=1, max_size=4)
asked = st.none() | st.lists(
    st.sampled_from((*SCHEMA.names, "part.always", "loose.deep.perhaps")), min_size=1, unique=True
)
filters = st.sampled_from(
    [
        None,
        ds.field("tick") < 1,
        ds.field("tick") < 9,
        ds.field("word").isin(["a", "tick"]),
        (ds.field("loose", "deep", "always") > 1) | ds.field("part").is_valid(),
    ]
)
fresh = itertools.count()


@pytest.mark.row("EV-6")
@settings(max_examples=times(40), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(files, asked, filters)
def test_scan_equals_an_arrow_dataset(
    tmp_path: Path, groups: list[list[dict[str, Any]]], columns: list[str] | None, only: ds.Expression | None
) -> None:
    tables = (pa.Table.from_pylist(bounds, schema=SCHEMA) for bounds in groups)
    paths = [str(write_parquet(tmp_path / f"{next(fresh)}.parquet", rows, SCHEMA, stats=["tick"])) for rows in tables]
    wanted = {name: ds.field(*name.split(".")) for name in columns or SCHEMA.names}
    plain = ds.dataset(paths, schema=SCHEMA, format="parquet").to_table(columns=wanted, filter=only)
    for _ in range(2):
        result = scan(paths, SCHEMA, columns, only)
        assert result.schema.equals(plain.schema)
        assert result.to_pylist() == plain.to_pylist()
        result.validate(full=True)


def test_scan_reads_a_rewritten_file_and_fails_on_a_deleted_file(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist([{"tick": 1}], schema=SCHEMA), path)
    assert scan([str(path)], SCHEMA, ["word"])["word"].to_pylist() == [None]
    pq.write_table(pa.Table.from_pylist([{"tick": 1, "word": "a longer word"}], schema=SCHEMA), path)
    assert scan([str(path)], SCHEMA, ["word"])["word"].to_pylist() == ["a longer word"]
    path.unlink()
    with pytest.raises(FileNotFoundError):
        scan([str(path)], SCHEMA)


def test_a_parquet_file_has_statistics_of_the_given_columns_only(tmp_path: Path) -> None:
    rows = [{"tick": tick, "word": "ab"[tick], "part": {"always": tick, "perhaps": "ab"[tick]}} for tick in range(2)]
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    path = write_parquet(tmp_path / "a.parquet", table, SCHEMA, stats=["tick", "word"])
    footer = pq.read_metadata(path).row_group(0)
    columns = {column.path_in_schema: column for column in map(footer.column, range(footer.num_columns))}
    statistics = {name: column.statistics for name, column in columns.items() if column.statistics}
    assert {name: (result.min, result.max) for name, result in statistics.items()} == {
        "tick": (0, 1),
        "word": ("a", "b"),
    }
    compressed = {name for name, column in columns.items() if column.compression == "ZSTD"}
    assert compressed == {"tick", "word", "part.always", "part.perhaps"}  # the other columns have no value
