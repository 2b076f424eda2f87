"""Retention of texts: age counts from the last tick of their own golem, and only texts before a death cross it."""

from __future__ import annotations

from math import exp

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bardo_pipeline.grimoire.confidence import DAY_US
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.text_index import Doc, TextIndex
from bardo_pipeline.retrieval.text_ranking import crossing, retained_of

POLICY = Policy()


def index_of(days_by_golem: dict[str, list[int]]) -> TextIndex:
    """Return an index of a routine episode of each golem on each of these days."""
    index = TextIndex(8, POLICY.search.similarity)
    for golem, days in days_by_golem.items():
        index.add(
            golem,
            [
                Doc(f"{golem}/{day}", (day, 0, ""), f"day {day}", f"{golem} {day}", "episode",
                    day * DAY_US, 7.0, facets=("episode", *[None] * 5))
                for day in days
            ],
        )  # fmt: skip
    return index


@pytest.mark.row("MEM-9")
@given(st.integers(0, 60), st.integers(0, 60))
def test_age_counts_from_the_last_tick_of_the_own_golem(own: int, other: int) -> None:
    views = index_of({"g-0": [0], "g-1": [0]}).views(["g-0", "g-1"])
    ticks = {"g-0": own * DAY_US, "g-1": other * DAY_US}
    retained = retained_of(views, np.zeros(2, bool), ticks, POLICY)
    assert retained.tolist() == pytest.approx([exp(-own / 7), exp(-other / 7)])


@pytest.mark.row("MEM-9")
@given(st.integers(0, 9), st.integers(0, 9))
def test_texts_after_the_close_of_a_memory_do_not_cross_the_death(died: int, later: int) -> None:
    index, closed = index_of({"g-0": list(range(10))}), min(died + later, 9)
    crossed = crossing(index.views(["g-0"])[0], died * DAY_US, closed * DAY_US, index.code_of, POLICY)
    assert [doc.at_us // DAY_US for doc in crossed] == list(range(closed + 1))


def test_words_that_an_edit_replaced_do_not_cross_a_death() -> None:
    index = index_of({"g-0": [0, 1, 2]})
    index.withdraw("g-0", {"g-0/1": DAY_US, "g-1/1": DAY_US})
    crossed = crossing(index.views(["g-0"])[0], 9 * DAY_US, 9 * DAY_US, index.code_of, POLICY)
    assert [doc.doc_id for doc in crossed] == ["g-0/0", "g-0/2"]
