"""`sorted_by` sorts rows by a key and returns a sorted table unchanged."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from bardo_pipeline.grimoire.entry_columns import sorted_by
from tests.support.example_count import some

KEY = ("golem_id", "structure")
keys = st.tuples(st.sampled_from(["g-1", "g-2", "g-3"]), st.sampled_from(["a", "b", "c", "d"]))


@some(100)
@given(st.lists(keys, max_size=12))
def test_sorted_by_sorts_rows_and_returns_a_sorted_table_unchanged(keys: list[tuple[str, str]]) -> None:
    rows = pa.table({"golem_id": [g for g, _ in keys], "structure": [s for _, s in keys], "at": range(len(keys))})
    rows = rows.cast(pa.schema([("golem_id", pa.string()), ("structure", pa.string()), ("at", pa.int64())]))
    made = sorted_by(rows, KEY)
    assert list(zip(*made.select(KEY).to_pydict().values(), strict=True)) == sorted(keys)
    assert (made is rows) == (keys == sorted(keys))
    assert sorted(made["at"].to_pylist()) == list(range(len(keys)))
