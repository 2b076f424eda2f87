"""Makes texts to index from the events of runtimes. Pure.

A runtime that names speaker, session or date in the outcome or in front of its text, and not in the fields, is
understood likewise. Without a session the day of the told facts is the session. Speaker and date in front of a text
count as words, and its vector leaves them out.
Source: TOOLS (memory_store_episode); ADR 0080, 0095.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import orjson

from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.embedder_interface import text_hash
from bardo_pipeline.retrieval.text_index import FACETS, Doc
from bardo_pipeline.retrieval.words import date_words, day_of

SPEAKER_NAMES = ("speaker", "author", "sender", "from", "user", "role", "name")
SESSION_NAMES = ("session", "session_id", "conversation", "conversation_id", "thread", "thread_id")
DATE_NAMES = ("date", "datetime", "date_time", "session_date", "session_date_time", "timestamp", "when", "time")
"""Names in an outcome that state speaker, session and date, the first that is there."""

_VALUES_MAX = 64
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_IS_ID = re.compile(r"(^|_)(id|ids|index|idx|hash|turn|key)$")
_SAYS = re.compile(
    r"^\s*(?:[\[(](?P<note>[^\])\n]{3,60})[\])][\s,|–-]*|(?P<date>[^\n\[(]{3,50}\d)[\s,|–-]+)?"
    r"(?P<name>[A-Z][\w.'-]*(?: [A-Z][\w.'-]*){0,2})(?: ?[\[(](?P<aside>[^\])\n]{3,60})[\])]| said| says)?:\s+(?=\S)"
)
"""A text that begins with the name of its speaker, with a date before or behind the name at most."""


def doc_of(row: Mapping[str, Any], policy: Policy) -> Doc:
    """Return the text of an event (columns event_id, golem_id, observed_at and text_stored)."""
    stored = row["text_stored"]
    outcome = orjson.loads(stored["outcome"]) if stored["outcome"] is not None else None
    named = {str(k).lower(): v for k, v in outcome.items()} if isinstance(outcome, dict) else {}
    quoted = _SAYS.match(stored["text"])
    speaker = stored["speaker"] or _named(named, SPEAKER_NAMES) or (quoted["name"] if quoted else "")
    in_front, spoken = "", stored["text"]
    if quoted and quoted["name"] == speaker:
        in_front = " ".join(part for part in quoted.group("note", "date", "aside") if part)
        spoken = stored["text"][quoted.end() :]
    date = date_words(stored["told_at"]) if stored["told_at"] is not None else _named(named, DATE_NAMES)
    session = stored["session"] or _named(named, SESSION_NAMES) or day_of(date or in_front)
    text = spoken if stored["reflection"] is None else f"{spoken} {stored['reflection']}"
    beside = [date, in_front, *stored["tags"], *(stored[n] for n in ("tool", "category", "chain", "pair") if stored[n])]
    at_us = micros_of(row["observed_at"])
    return Doc(
        doc_id=row["event_id"],
        order=(at_us, stored["place"] or 0, row["event_id"]),
        text=text,
        text_hash=text_hash(text),
        sort=stored["sort"],
        at_us=at_us,
        strength_days=getattr(policy.decay, f"{stored['importance']}_days"),
        beside=" ".join([*beside, *_values(outcome, speaker)]),
        speaker=speaker,
        session=session,
        upserts=stored["sort"] != "episode",
        worth=policy.curator.confidence_insight if stored["sort"] == "insight" else 1.0,
        facets=tuple(stored[name] if name != "session" else session for name in FACETS),
        payload=stored,
    )


def lone_doc(doc_id: str, text: str, place: int, sort: str) -> Doc:
    """Return a text without neighbours, such as an entry of a grimoire."""
    facets = (sort, *(None,) * (len(FACETS) - 1))
    return Doc(doc_id, (place, 0, doc_id), text, text_hash(text), sort, 0, 1.0, session=None, facets=facets)


def micros_of(moment: datetime) -> int:
    """Return a moment as UTC microseconds."""
    delta = moment - _EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def _named(outcome: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """Return the value of the first of these names, if it is a word or a number."""
    values = (outcome.get(name) for name in names)
    return next((str(value) for value in values if isinstance(value, str | int | float) and str(value).strip()), "")


def _values(outcome: Any, speaker: str) -> list[str]:
    """Return the words of an outcome: names and values, without ids and the speaker."""
    words = (word for word in _leaves(outcome) if word != speaker)
    return list(islice(words, _VALUES_MAX))


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, part in value.items():
            if not _IS_ID.search(str(name).lower()):
                yield str(name)
                yield from _leaves(part)
    elif isinstance(value, list):
        for part in value:
            yield from _leaves(part)
    elif value is not None:
        yield str(value)
