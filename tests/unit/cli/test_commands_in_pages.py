"""Each command that a page names exists, with the options that it names."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from bardo_pipeline.cli.app import command as bardo
from bardo_pipeline.project_files import IMPORT_ROOT

PAGES = ("README.md", "ARCHITECTURE.md", "docs/guide", "docs/domain")
BARDO: Any = bardo()
LEAST = 150
"""Named commands. A search that finds fewer has lost its way."""


def named_commands() -> Iterator[tuple[str, str]]:
    """Yield the page and the words of each command between backticks; `a | b` names several and is skipped."""
    pages = [found for page in PAGES for found in [IMPORT_ROOT / page, *(IMPORT_ROOT / page).rglob("*.md")]]
    for path in sorted(page for page in pages if page.is_file()):
        for words in re.findall(r"`bardo ([^`\n]+)`", path.read_text()):
            if "|" not in words:
                yield f"{path.relative_to(IMPORT_ROOT)}", words


def fault_of(words: str) -> str | None:
    """Return why the words are no command of `bardo`; None if they are one."""
    command, left = BARDO, shlex.split(words.replace("...", "VALUE"))
    while left and hasattr(command, "commands"):
        if left[0].startswith("-"):
            break
        if left[0] not in command.commands:
            return f"{command.name} has no command {left[0]}"
        command = command.commands[left.pop(0)]
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    for word in left:
        if word.startswith("--") and word.split("=")[0] not in options:
            return f"{command.name} has no option {word}"
    if left and left[-1].startswith("--"):
        return None  # an option named without its value
    _, unused, _ = command.make_parser(command.context_class(command)).parse_args(left)
    return f"{command.name} takes no argument {unused[0]}" if unused else None


def test_each_named_command_exists() -> None:
    named = list(named_commands())
    assert len(named) >= LEAST
    assert [(place, words, fault) for place, words in named if (fault := fault_of(words)) is not None] == []


@pytest.mark.parametrize("words", ["dervie", "golem sucessor G", "derive --all-of-it", "golem due now"])
def test_an_unknown_command_option_or_argument_is_a_fault(words: str) -> None:
    assert fault_of(words) is not None
