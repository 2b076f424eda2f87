"""Conditions of a situation as one text, `gas=dear&health=thin`; equal sets of conditions have equal texts. Pure.

Conditions are sorted by name. `%`, `&` and `=` inside a name or value are percent-encoded, because runtimes choose
both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from urllib.parse import unquote

from bardo_pipeline.errors import QueryError
from bardo_pipeline.events.experience.reported_experience import word_of

Pair = tuple[str, str]

_KEPT = 16_384


def conditions_text(conditions: Iterable[Pair]) -> str:
    """Return the text of (name, value) pairs; empty for none."""
    return "&".join(f"{_escaped(name)}={_escaped(value)}" for name, value in sorted(conditions))


@lru_cache(_KEPT)
def conditions_in(text: str | None) -> tuple[Pair, ...]:
    """Return the (name, value) pairs of a text in its order; none for an empty text.

    Raises QueryError for a text that is no list of conditions.
    """
    pairs = []
    for part in text.split("&") if text else ():
        name, is_pair, value = part.partition("=")
        if not (name and is_pair and value) or "=" in value:
            raise QueryError(f"{part!r} is no condition: write NAME=VALUE, and join conditions by &")
        pairs.append((unquote(name), unquote(value)))
    return tuple(pairs)


def are_conditions(text: str | None) -> bool:
    """Return whether a text is in the form that `conditions_text` writes; None for any situation is."""
    try:
        return text is None or (text != "" and conditions_text(conditions_in(text)) == text)
    except QueryError:
        return False


def holds(text: str | None, situation: Mapping[str, str | bool | int]) -> bool:
    """Return whether each condition of a text has the same value in a situation."""
    given = {name: word_of(value) for name, value in situation.items()}
    return all(given.get(name) == value for name, value in conditions_in(text))


def _escaped(word: str) -> str:
    return word.replace("%", "%25").replace("&", "%26").replace("=", "%3D")
