"""The bardo.toml of a new home: every key is a comment, and each comment is a valid line."""

from __future__ import annotations

import pytest

from bardo_pipeline.policy import Policy
from bardo_pipeline.policy.golem_configuration import keys, sections
from bardo_pipeline.policy.toml_config import commented_toml, flat, parse

pytestmark = pytest.mark.row("P-7")

LINES = commented_toml().splitlines()
COMMENTS = [number for number, line in enumerate(LINES) if line.startswith("#")]


def uncommented(*numbers: int) -> str:
    return "\n".join(line[1:] if number in numbers else line for number, line in enumerate(LINES))


def test_the_file_states_nothing_and_names_every_section_and_key() -> None:
    stated = parse(commented_toml(), "bardo.toml")
    assert stated.values == {}
    assert {line[1:-1] for line in LINES if line.startswith("[")} == set(sections())
    assert parse(uncommented(*COMMENTS), "bardo.toml").values == {key: field.default for key, field in keys().items()}


@pytest.mark.parametrize("number", COMMENTS)
def test_each_uncommented_line_is_valid_and_states_the_default(number: int) -> None:
    stated = parse(uncommented(number), "bardo.toml")
    assert flat(stated.complete(Policy())) == flat(parse("", "bardo.toml").complete(Policy()))
    assert len(stated.values) == (0 if LINES[number].startswith("##") else 1)


def test_each_key_has_its_meaning_on_its_line() -> None:
    for key, field in keys().items():
        assert any(line.endswith(f"  # {field.description}") for line in LINES), key
        assert field.description
