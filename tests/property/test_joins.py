"""A join over numbered columns finds the pairs that a look at every pair finds."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from bardo_pipeline.grimoire.integer_joins import codes, matched, places
from tests.support.example_count import times

examples = settings(max_examples=times(60), deadline=None, derandomize=True)
words = st.lists(st.sampled_from(["a", "b", "c", None]), max_size=8)


@examples
@given(
    st.integers(1, 4).flatmap(
        lambda wide: st.tuples(
            *[st.lists(st.tuples(*[st.one_of(st.integers(-1, 2), st.sampled_from([2**20, 2**21]))] * wide), max_size=8)]
            * 2,
            st.just(wide),
        )
    )
)
def test_what_is_matched_is_alike_in_every_column_and_nothing_is_missed(
    sides: tuple[list[tuple[int, ...]], list[tuple[int, ...]], int],
) -> None:
    left, right, wide = sides
    columns = [[np.array([row[k] for row in side], np.int64) for k in range(wide)] for side in (left, right)]
    pairs = matched(*columns)
    alike = [(i, j) for i, a in enumerate(left) for j, b in enumerate(right) if a == b and min(a) >= 0]
    assert sorted(zip(pairs.left.tolist(), pairs.right.tolist(), strict=True)) == alike


@examples
@given(words, words)
def test_codes_and_places_tell_words_apart_and_say_where_there_is_none(some: list[str | None], of: list[str]) -> None:
    column, known = pa.chunked_array([some[:3], some[3:]], pa.string()), list(dict.fromkeys(of))
    told = codes(column).tolist()
    assert [k == -1 for k in told] == [word is None for word in some]
    assert [[a == b for b in told] for a in told] == [[a == b for b in some] for a in some]
    found = places(column, pa.array(known, pa.string())).tolist()
    assert found == [known.index(w) if w is not None and w in known else -1 for w in some]
