"""Makes texts to index from the events of runtimes. Pure.

Speaker, session and date are read from the fields of the event, else from the outcome, else from the beginning of the
text. Without a session, the day of the told facts is the session. Speaker and date at the beginning of a text count as
words, and its vector leaves them out.
Source: TOOLS (memory_store_episode); ADR 0080, 0095.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Any

import orjson
import pyarrow as pa

from bardo_pipeline.grimoire.entry_columns import micros
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.embedder_interface import text_hash
from bardo_pipeline.retrieval.text_index import FACETS, STORED, Doc
from bardo_pipeline.retrieval.words import date_words, day_of

SPEAKER_NAMES = ("speaker", "author", "sender", "from", "user", "role", "name")
SESSION_NAMES = ("session", "session_id", "conversation", "conversation_id", "thread", "thread_id")
DATE_NAMES = ("date", "datetime", "date_time", "session_date", "session_date_time", "timestamp", "when", "time")
"""Fields of an outcome that may state speaker, session and date; of each list the first present one counts."""

_VALUES_MAX = 64
_IS_ID = re.compile(r"(^|_)(id|ids|index|idx|hash|turn|key)$")
_SAYS = re.compile(
    r"^\s*(?:[\[(](?P<note>[^\])\n]{3,60})[\])][\s,|–-]*|(?P<date>[^\n\[(]{3,50}\d)[\s,|–-]+)?"
    r"(?P<name>[A-Z][\w.'-]*(?: [A-Z][\w.'-]*){0,2})(?: ?[\[(](?P<aside>[^\])\n]{3,60})[\])]| said| says)?:\s+(?=\S)"
)
"""A text that begins with the name of its speaker, with a date before or behind the name at most."""


def docs_of(rows: pa.Table, policy: Policy, stated: Collection[str] = ()) -> list[tuple[str, Doc]]:
    """Return golem and text of each event (columns event_id, golem_id, observed_at and text_stored)."""
    fields = rows["text_stored"].combine_chunks()
    columns = [fields.field(name).to_pylist() for name in STORED]
    names = rows["event_id"].to_pylist(), rows["golem_id"].to_pylist(), micros(rows, "observed_at").tolist()
    return [
        (golem_id, doc_of(event_id, at_us, values, policy, stated))
        for event_id, golem_id, at_us, values in zip(*names, zip(*columns, strict=True), strict=True)
    ]


def doc_of(event_id: str, at_us: int, values: tuple[Any, ...], policy: Policy, stated: Collection[str] = ()) -> Doc:
    """Return the text of an event. at_us: moment in UTC microseconds. values: its fields, in the order of STORED."""
    sort, said, reflection, tool, result, importance, tags, category, session, place, speaker, *rest = values
    told_at, chain, pair, _ = rest
    outcome = orjson.loads(result) if result is not None else None
    named = {str(k).lower(): v for k, v in outcome.items()} if isinstance(outcome, dict) else {}
    quoted = _SAYS.match(said) if ":" in said else None  # no speaker without a colon, and the search costs time
    speaker = speaker or _named(named, SPEAKER_NAMES) or (quoted["name"] if quoted else "")
    in_front, spoken = "", said
    if quoted and quoted["name"] == speaker:
        in_front = " ".join(part for part in quoted.group("note", "date", "aside") if part)
        spoken = said[quoted.end() :]
    date = date_words(told_at) if told_at is not None else _named(named, DATE_NAMES)
    session = session or _named(named, SESSION_NAMES) or day_of(date or in_front)
    text = spoken if reflection is None else f"{spoken} {reflection}"
    words = [word for word in (tool, category, chain, pair) if word]
    beside = [date, in_front, *tags, *words, *_values(outcome, speaker)]
    return Doc(
        doc_id=event_id,
        order=(at_us, place or 0, event_id),
        text=text,
        text_hash=text_hash(text),
        sort=sort,
        at_us=at_us,
        strength_days=getattr(policy.decay, f"{importance}_days"),
        beside=" ".join(beside),
        speaker=speaker,
        session=session,
        upserts=sort != "episode",
        stated=event_id in stated,
        worth=policy.curator.confidence_insight if sort == "insight" else 1.0,
        facets=(sort, tool, category, chain, pair, session),
        values=values,
    )


def lone_doc(doc_id: str, text: str, place: int, sort: str) -> Doc:
    """Return a text without neighbours, such as an entry of a grimoire."""
    facets = (sort, *(None,) * (len(FACETS) - 1))
    return Doc(doc_id, (place, 0, doc_id), text, text_hash(text), sort, 0, 1.0, session=None, facets=facets)


def _named(outcome: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """Return the value of the first of these names, if it is a word or a number."""
    for name in names if outcome else ():
        value = outcome.get(name)
        if isinstance(value, str | int | float) and (word := str(value)).strip():
            return word
    return ""


def _values(outcome: Any, speaker: str) -> list[str]:
    """Return the words of an outcome: names and values, without ids and the speaker."""
    if outcome is None:
        return []
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
