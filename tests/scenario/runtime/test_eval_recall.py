"""`bardo eval recall`: a small conversation by the tools, questions without evidence, and files of another format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bardo_pipeline.cli.evaluation.evaluate_recall import conversations_in
from bardo_pipeline.errors import ConfigError
from tests.support.processes.bardo_command import bardo

# date, opening, answer to it, remark, news without the subject, remark; question about the answer, and about the news
SESSIONS = (
    ("4 March", "Oren, how was the tango class?", "It went better than I feared.", "Did you stay until the end?",
     "Afterwards I slept for ten hours.", "You deserved it.",
     "How did Oren find the dance lesson?", "What did Oren do after the tango class?"),
    ("11 March", "Tell me about the visit to the dentist!", "Rather well, all things considered.",
     "I am glad to hear it.", "Afterwards I ate a whole pizza.", "Of course you did.",
     "How did Oren cope with the dental appointment?", "What did Oren do after the visit to the dentist?"),
    ("19 March", "And the job interview at the shipyard?", "Not as badly as the last one.", "That is a start.",
     "Afterwards I walked home in the rain.", "Without a coat, I suppose.",
     "How did the talk with the employer go for Oren?", "What did Oren do after the interview at the shipyard?"),
    ("2 April", "You had the chess tournament on Sunday, right?", "It could have been worse, honestly.",
     "Come on, be proud.", "Afterwards I called my mother.", "She must be happy.",
     "How did Oren fare in the chess competition?", "What did Oren do after the chess tournament?"),
    ("15 April", "So, did the old car pass its inspection?", "Just about, to my surprise.", "Miracles happen.",
     "Afterwards I took a very long bath.", "With a book, I hope.",
     "Was Oren's car approved at the check?", "What did Oren do after the inspection of the car?"),
    ("28 April", "How did the choir concert in the cathedral go?", "As well as it possibly could.",
     "I wish I had been there.", "Afterwards I cried a little.", "That is allowed.",
     "How did Oren like the choir's performance?", "What did Oren do after the concert in the cathedral?"),
    ("9 May", "Were the children wild at the birthday party?", "Less than everybody had predicted.", "Lucky you.",
     "Afterwards I cleaned for three hours.", "You poor man.",
     "How did the kids behave at Oren's party?", "What did Oren do after the birthday party?"),
    ("23 May", "And the sailing exam, is it over?", "Yes, and I would do it again.", "Listen to you!",
     "Afterwards I bought a blue cap.", "A captain needs one.",
     "What does Oren think of the sailing test?", "What did Oren do after the sailing exam?"),
)  # fmt: skip

BY_NEIGHBOUR, BY_SESSION = 4, 1
"""Categories of the questions whose evidence only the turn before explains, and only its session."""


def sample() -> dict[str, Any]:
    """The conversation in LoCoMo's format, with a question without evidence and one about a turn that is not there."""
    talk: dict[str, Any] = {"speaker_a": "Ilse", "speaker_b": "Oren"}
    asked: list[dict[str, Any]] = [
        {"question": "Does Oren snore?", "evidence": [], "category": 3},
        {"question": "Does Ilse snore?", "evidence": ["D9:1"], "category": 3},
    ]
    for number, (day, *turns, of_answer, of_news) in enumerate(SESSIONS, 1):
        talk[f"session_{number}_date_time"] = f"6:{10 + number} pm on {day}, 2024"
        talk[f"session_{number}"] = [
            {"speaker": ("Ilse", "Oren")[place % 2], "dia_id": f"D{number}:{place + 1}", "text": text}
            for place, text in enumerate(turns)
        ]
        asked.append({"question": of_answer, "evidence": [f"D{number}:2"], "category": BY_NEIGHBOUR})
        asked.append({"question": of_news, "evidence": [f"D{number}:4", "D9:9"], "category": BY_SESSION})
    return {"sample_id": "ilse-oren", "conversation": talk, "qa": asked}


@pytest.mark.full
@pytest.mark.row("MEM-10")
def test_evidence_is_found_by_the_turn_before_and_by_its_session(tmp_path: Path) -> None:
    file = tmp_path / "told.json"
    file.write_text(json.dumps([sample()]))
    printed = bardo("eval", "recall", str(file), "--json", home=tmp_path / "none")
    assert not (tmp_path / "none").exists(), "the evaluation must use a home of its own"
    rows = {row["category"]: row for row in json.loads(printed[printed.index("[\n") :])}
    assert {name: row["questions"] for name, row in rows.items()} == {"multi-hop": 8, "single-hop": 8, "all": 16}
    assert rows["single-hop"]["recall@5"] >= 0.95, "without neighbours it is 0.75"
    assert rows["multi-hop"]["recall@5"] >= 0.95, "without sessions it is 0.13"
    assert rows["all"]["recall@10"] >= rows["all"]["recall@5"]


@pytest.mark.row("MEM-10")
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        ("{", "unexpected end of data"),
        ("[3]", "not subscriptable"),
        ('{"sample_id": "a", "conversation": {}}', "'qa'"),
        ('{"sample_id": "a", "conversation": {"session_1": [{"text": "hi"}]}, "qa": []}', "'speaker'"),
        ('{"sample_id": "a", "conversation": {}, "qa": []}', "no question names a turn"),
        ("[]", "no question names a turn"),
    ],
)
def test_a_file_of_another_format_is_refused_with_its_name_and_a_cure(
    tmp_path: Path, content: str | None, says: str
) -> None:
    file = tmp_path / "told.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=rf"told\.json: .*{says}.*: give "):
        conversations_in(file)
