"""Rows compared and exchanged where they lie, held against what the same rows come to one by one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bardo_pipeline.grimoire.entry_columns import sorted_by
from bardo_pipeline.storage.delta.row_diff import amended, chosen, differing
from tests.support.example_count import some

SCHEMA = pa.schema(
    [
        pa.field("golem_id", pa.string(), nullable=False),
        pa.field("structure", pa.string(), nullable=False),
        pa.field("mean", pa.int64()),
        pa.field("share", pa.float64()),
        pa.field("word", pa.string()),
        pa.field("ticks", pa.list_(pa.int64())),
    ]
)
KEY = ("golem_id", "structure")
keys = st.tuples(st.sampled_from(["g-1", "g-2", "g-3"]), st.sampled_from(["a", "b", "c", "d"]))
said = st.fixed_dictionaries(
    {
        "mean": st.none() | st.integers(0, 1),
        "share": st.none() | st.sampled_from([0.0, -0.0, 0.5]),
        "word": st.none() | st.sampled_from(["", "dear"]),
        "ticks": st.none() | st.lists(st.integers(0, 1), max_size=1),
    }
)
told = st.dictionaries(keys, said, max_size=9)


def rows_of(known: dict[tuple[str, str], dict[str, Any]], order: list[tuple[str, str]] | None = None) -> pa.Table:
    places = sorted(known) if order is None else order
    return pa.Table.from_pylist([{"golem_id": g, "structure": s, **known[g, s]} for g, s in places], schema=SCHEMA)


@some(200)
@given(told, told, st.data())
def test_what_differs_is_found_by_its_key(
    known: dict[tuple[str, str], dict[str, Any]], more: dict[tuple[str, str], dict[str, Any]], data: st.DataObject
) -> None:
    kept = {key: value for key, value in known.items() if not more or data.draw(st.booleans())}
    again = {key: data.draw(st.just(value) | said) for key, value in kept.items()}
    after = {**{key: value for key, value in more.items() if key not in known}, **again}
    held, rows = rows_of(known), rows_of(after)
    found = differing(held, rows, KEY)
    if [known[key]["ticks"] for key in sorted(again)] != [value["ticks"] for _, value in sorted(again.items())]:
        assert found is None
    else:
        assert found is not None
        assert found.gone.tolist() == [after.get(key) != known[key] for key in sorted(known)]
        assert found.come.tolist() == [known.get(key) != after[key] for key in sorted(after)]


def test_what_is_no_number_is_like_nothing_and_zero_is_zero() -> None:
    row = {"mean": None, "word": None, "ticks": None}
    held = rows_of({("g", str(n)): {**row, "share": share} for n, share in enumerate((float("nan"), 0.0, None, 0.5))})
    rows = rows_of({("g", str(n)): {**row, "share": share} for n, share in enumerate((float("nan"), -0.0, 0.0, None))})
    for others, gone in ((held, [True, False, False, False]), (rows, [True, False, True, True])):
        found = differing(held, others, KEY)
        assert found is not None
        assert (found.gone.tolist(), found.come.tolist()) == (gone, gone)


def test_of_a_key_that_stands_there_twice_nothing_is_said() -> None:
    held = rows_of({("g-1", "a"): {}, ("g-1", "b"): {}})
    assert differing(held, pa.concat_tables([held.slice(0, 1), held.slice(0, 1), held.slice(1)]), KEY) is None


@some(200)
@given(told, told, st.randoms(use_true_random=False))
def test_amended_rows_stand_for_those_like_them(
    known: dict[tuple[str, str], dict[str, Any]], put: dict[tuple[str, str], dict[str, Any]], random: Any
) -> None:
    order = sorted(put)
    random.shuffle(order)
    made = amended(rows_of(known), rows_of(put, order), KEY)
    assert sorted_by(made.rows, KEY).equals(rows_of({**known, **put}))
    assert made.rows.schema == SCHEMA
    assert sorted_by(made.gone, KEY).equals(rows_of({key: known[key] for key in known if key in put}))
    if set(put) <= set(known):
        assert made.rows.select(KEY).equals(rows_of(known).select(KEY)), "each lies where the one before it lay"


def test_one_row_may_stand_for_several_and_several_for_one() -> None:
    known = {("g-1", "a"): {"mean": 1}, ("g-1", "b"): {"mean": 2}, ("g-2", "a"): {"mean": 3}}
    held = rows_of({key: {"share": None, "word": None, "ticks": None, **value} for key, value in known.items()})
    row = held.slice(0, 1)
    assert amended(held, row, ("golem_id",)).gone.num_rows == 2
    assert amended(held, row, ("golem_id",)).rows.equals(pa.concat_tables([held.slice(2), row]))
    elsewhere = rows_of({("g-9", "z"): {}})
    unlike = pa.concat_tables([row, elsewhere])
    assert amended(held, unlike, ("golem_id",)).rows.equals(pa.concat_tables([held.slice(2), unlike]))
    twice = pa.concat_tables([row, row])
    assert amended(held, twice, KEY).rows.num_rows == 4


@some(100)
@given(st.lists(keys, max_size=12))
def test_rows_in_order_are_as_sorting_leaves_them(found: list[tuple[str, str]]) -> None:
    rows = pa.table({"golem_id": [g for g, _ in found], "structure": [s for _, s in found], "at": range(len(found))})
    rows = rows.cast(pa.schema([("golem_id", pa.string()), ("structure", pa.string()), ("at", pa.int64())]))
    made = sorted_by(rows, KEY)
    assert list(zip(*made.select(KEY).to_pydict().values(), strict=True)) == sorted(found)
    assert (made is rows) == (found == sorted(found))
    assert sorted(made["at"].to_pylist()) == list(range(len(found)))


@pytest.mark.parametrize("words", [[], ["g-2"], ["g-1", "g-2"], ["nobody"]])
def test_only_what_is_asked_for_is_chosen(words: list[str]) -> None:
    rows = rows_of({(g, s): {} for g in ("g-1", "g-2") for s in "ab"})
    made = chosen(rows, "golem_id", pa.array(words, pa.string()))
    assert made["golem_id"].to_pylist() == [g for g in rows["golem_id"].to_pylist() if g in words]
    assert (made is rows) == (words == ["g-1", "g-2"])
