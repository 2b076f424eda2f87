"""A text without its speaker: names and dates in front of texts, and questions that name a speaker."""

from __future__ import annotations

from typing import Any

import pytest

from bardo_pipeline.events.experience.stored_text import stored_text
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.text_docs import doc_of
from bardo_pipeline.retrieval.text_index import STORED, Doc, TextIndex
from bardo_pipeline.retrieval.text_scoring import Scope
from bardo_pipeline.retrieval.words import day_of

POLICY = Policy()
SAID = "We sold the boat."


def doc(text: str, **fields: Any) -> Doc:
    """The text of an event, as the index takes it."""
    stored = stored_text(text, **fields).model_dump()
    return doc_of(text, 1_767_225_600_000_000, tuple(stored[name] for name in STORED), POLICY)


@pytest.mark.row("MEM-9")
@pytest.mark.parametrize(
    "text",
    [
        f"[8 May 2023] Ada: {SAID}",
        f"(1:56 pm on 8 May, 2023) Ada: {SAID}",
        f"Ada (1:56 pm on 8 May, 2023): {SAID}",
        f"1:56 pm on 8 May, 2023 - Ada: {SAID}",
        f"2023-05-08 Ada: {SAID}",
        f"On 8 May 2023, Ada said: {SAID}",
    ],
)
def test_speaker_and_date_in_front_count_beside_the_text(text: str) -> None:
    plain, made = doc(SAID, speaker="Ada", outcome={"date": "8 May 2023"}), doc(text)
    assert (made.text, made.speaker, made.session) == (SAID, "Ada", "2023-05-08")
    assert made.text_hash == plain.text_hash, "the vector knows no speaker and no date"
    assert day_of(made.beside) == "2023-05-08"
    assert doc(text, speaker="Bob").text == text, "the name in front is not the speaker of the text"


@pytest.mark.row("MEM-9")
@pytest.mark.parametrize("text", ["gas doubled at noon: sell", "The swap slipped by 40 bps.", "Ada:", "Ada: "])
def test_a_text_without_a_speaker_in_front_stays_whole(text: str) -> None:
    assert (doc(text).text, doc(text).speaker) == (text, "")


@pytest.mark.row("MEM-10")
@pytest.mark.parametrize(
    ("question", "embedded"),
    [
        ("What did Ada sell?", "What did sell?"),
        ("What is Ada’s boat called?", "What is boat called?"),
        ("What did Carol sell?", "What did Carol sell?"),
        ("Ada and Bob?", "Ada and Bob?"),
        ("Ada?", "Ada?"),
        ("Ada-boat?", "Ada-boat?"),
    ],
)
def test_a_question_is_embedded_without_the_speakers_in_scope(question: str, embedded: str) -> None:
    index = TextIndex(8, POLICY.search.similarity)
    index.add("g-1", [doc(f"Ada: {SAID}"), doc("Bob: Carol will miss it.")])
    assert Scope.of(index.views(["g-1"]), POLICY).unnamed(question, index.number_of) == embedded
    assert Scope.of(index.views(["g-2"]), POLICY).unnamed(question, index.number_of) == question, "out of scope"
