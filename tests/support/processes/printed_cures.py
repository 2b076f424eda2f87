"""Cures that a command printed: the words of a command, or a value that the text gives."""

from __future__ import annotations

import re
import shlex

CURE = re.compile(r"`bardo ([^`]+)`")


def cure_in(printed: str, beginning: str = "", **values: str) -> list[str]:
    """Return the words of the first printed cure that begins so, with values for its placeholders."""
    cures = [words for words in CURE.findall(printed) if words.startswith(beginning)]
    assert cures, f"no cure `bardo {beginning}` in {printed}"
    return [values.get(word.strip("."), word) for word in shlex.split(cures[0])]


def value_in(printed: str, cure: str) -> str:
    """Return the group of a pattern that has to match the printed text."""
    found = re.search(cure, " ".join(printed.split()))
    assert found is not None, f"no cure {cure} in {printed}"
    return found[1]


def ids(printed: str) -> list[str]:
    """Return the first column of a piped table."""
    _, *rows = [line.split("\t") for line in printed.splitlines() if "\t" in line]
    return [row[0] for row in rows]
