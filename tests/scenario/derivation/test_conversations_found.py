"""Long conversations of two people, stored turn by turn: answers are among the first results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from bardo_pipeline.api import birth, open_home
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.memory.free_texts import search_texts, store_texts
from bardo_pipeline.events.experience.stored_text import StoredText, stored_text
from tests.conftest import NOW
from tests.support.homes.long_conversations import Conversation, Turn, conversation


def by_fields(turn: Turn) -> StoredText:
    return stored_text(turn.text, speaker=turn.speaker, session=turn.session, told_at=turn.at)


def by_outcome(turn: Turn) -> StoredText:
    outcome = {"speaker": turn.speaker, "date": f"{turn.at:%I:%M %p on %d %B, %Y}"}
    return stored_text(turn.text, tool="chat", outcome=outcome)


def in_front(turn: Turn) -> StoredText:
    return stored_text(f"[{turn.at:%d %B %Y}] {turn.speaker}: {turn.text}", tool="chat")


def ranks(context: DerivationContext, asked: Conversation, form: object = by_fields) -> list[int]:
    """Store the turns for a golem of its own; return the place of the answer to each question, 11 for none of ten."""
    golem = birth(context.home, owner="owner-1", at=NOW)
    stored = store_texts(context, golem, [form(turn) for turn in asked.turns], at=NOW, now=NOW)  # type: ignore[operator]
    places = []
    for question, answer in asked.questions:
        ids = [hit.text_id for hit in search_texts(context, question, now=NOW, golem_ids=[golem]).hits]
        places.append(ids.index(stored[answer].text_id) + 1 if stored[answer].text_id in ids else 11)
    return places


def recall(places: list[int], k: int) -> float:
    return sum(place <= k for place in places) / len(places)


@pytest.fixture
def context(tmp_path: Path) -> DerivationContext:
    home = open_home(tmp_path / "home")
    birth(home, owner="owner-1", lineage="first", at=NOW)
    return DerivationContext.open(home.root)


@pytest.mark.parametrize("form", [by_fields, by_outcome, in_front])
def test_the_answers_of_a_conversation_are_found_in_any_form_of_speaker_and_date(
    context: DerivationContext, form: object
) -> None:
    places = ranks(context, conversation(107, sessions=6, small_talk=6), form)
    assert recall(places, 10) >= 0.75
    assert recall(places, 5) >= 0.65


@pytest.mark.full
@pytest.mark.row("MEM-10")
def test_the_answers_of_long_conversations_are_found_and_the_order_of_turns_helps(context: DerivationContext) -> None:
    drawn = [conversation(seed) for seed in (101, 102, 103, 104)]
    places = [place for asked in drawn for place in ranks(context, asked)]
    assert recall(places, 10) >= 0.75
    assert recall(places, 5) >= 0.65
    mixed = [place for asked in drawn for place in ranks(context, _mixed(asked))]
    assert recall(mixed, 5) < recall(places, 5) - 0.05, "neighbours by chance do not help"


def _mixed(asked: Conversation) -> Conversation:
    """The same turns in another order, each in its session."""
    order = list(range(len(asked.turns)))
    Random(7).shuffle(order)
    place = {old: new for new, old in enumerate(order)}
    questions = tuple((question, place[answer]) for question, answer in asked.questions)
    return replace(asked, turns=tuple(asked.turns[old] for old in order), questions=questions)
