"""Words of texts: stems, stop words, dates, and few texts as many."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bardo_pipeline.retrieval import words
from bardo_pipeline.retrieval.words import date_words, day_of, stems


def stems_of(text: str) -> list[str]:
    _, distinct, stem = stems([text])
    return [distinct[place] for place in stem]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The agencies were adopting", ["agenc", "adopt"]),
        ("Caroline's and Caroline’s", ["carolin", "carolin"]),
        ("I don't, I didn’t, she'll", []),
        ("on 2023-05-08", ["2023", "may", "8"]),
        ("2023-05-08T10:00", ["2023", "may", "8", "t10", "0"]),
        ("the 7th of Sept 2023", ["7", "septemb", "2023"]),
        ("uniswap_execute_swap", ["uniswap", "execut", "swap"]),
        ("José", ["jose"]),
        ("2023-13-08", ["2023", "13", "8"]),
        ("", []),
    ],
)
def test_a_text_is_split_into_stems(text: str, expected: list[str]) -> None:
    assert stems_of(text) == expected


def test_a_moment_has_the_words_of_a_question() -> None:
    assert set(stems_of("Monday, May 8, 2023")) == set(stems_of(date_words(datetime(2023, 5, 8, tzinfo=UTC))))


@given(st.lists(st.text(st.sampled_from("aZs07-'_ .\n") | st.characters(codec="ascii")) | st.sampled_from(
    ["2023-05-08", "it's 3rd", "2023-05-08t1"]), max_size=4))  # fmt: skip
def test_few_texts_have_the_words_of_many(texts: list[str]) -> None:
    few = stems(texts)
    many = stems([*texts, *[""] * words._FEW])
    assert few[1] == many[1]
    assert few[0].tolist() == many[0].tolist()
    assert few[2].tolist() == many[2].tolist()


@pytest.mark.parametrize(
    "text",
    ["1:56 pm on 8 May, 2023", "Monday 8th of May 2023", "May 8, 2023", "2023-05-08T10:00", "Mon 8 may 2023 at noon",
     date_words(datetime(2023, 5, 8, tzinfo=UTC))],
)  # fmt: skip
def test_the_day_of_a_date_is_found_in_its_usual_forms(text: str) -> None:
    assert day_of(text) == "2023-05-08"
    assert day_of("may 8 and 2023 march") == day_of("") == ""
