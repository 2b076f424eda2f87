"""The text of a runtime in its own words: an episode, an insight or a reflection. Pure.

A text is a life event of its golem, so the spool, the EventWriter, the command line and Python store it alike.
Source: TOOLS (memory_store_episode, memory_manage_insight); canon 17.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, Self, get_args

import orjson
from pydantic import Field, ValidationError, model_validator

from bardo_pipeline.errors import RecordError
from bardo_pipeline.events.record.model import Moment, Name, Part, Whole

TextSort = Literal["episode", "insight", "reflection"]
"""Sort of a text: an episode happened, an insight holds in general, a reflection looks back."""

Importance = Literal["routine", "notable", "critical", "emergency"]
"""Retention tiers of TOOLS: Ebbinghaus S is 7, 30, 90 or 180 days."""

SORTS: tuple[str, ...] = get_args(TextSort)

TEXT_MAX = 16_384
TAGS_MAX = 64
Words = Annotated[str, Field(min_length=1, max_length=TEXT_MAX)]


class StoredText(Part):
    """A text of the golem's runtime.

    outcome: JSON, in any form that the runtime has; its values are found as words. session: stretch of texts that
    belong together, such as a conversation; its texts are neighbours in the order of observed_at, then `place`.
    told_at: moment of the facts that the text tells, if it differs from observed_at. importance: decides how long the
    text is retained.
    dream_tag: flags the text for the next dream.
    """

    sort: TextSort
    text: Words
    reflection: Words | None = None
    tool: Name | None = None
    outcome: Words | None = None
    importance: Importance = "routine"
    tags: tuple[Name, ...] = ()
    category: Name | None = None
    session: Name | None = None
    place: Whole | None = None
    speaker: Name | None = None
    told_at: Moment | None = None
    chain: Name | None = None
    pair: Name | None = None
    dream_tag: Name | None = None

    @model_validator(mode="after")
    def _check_texts(self) -> Self:
        if not self.text.strip():
            raise ValueError("the text is blank")
        if len(self.tags) > TAGS_MAX:
            raise ValueError(f"a text has at most {TAGS_MAX} tags, not {len(self.tags)}")
        if self.outcome is not None:
            try:
                orjson.loads(self.outcome)
            except orjson.JSONDecodeError as error:
                raise ValueError(f"the outcome is no JSON: {error}") from None
        return self


def stored_text(
    text: str,
    *,
    sort: str = "episode",
    reflection: str | None = None,
    tool: str | None = None,
    outcome: Any = None,
    importance: str = "routine",
    tags: tuple[str, ...] = (),
    category: str | None = None,
    session: str | None = None,
    place: int | None = None,
    speaker: str | None = None,
    told_at: datetime | None = None,
    chain: str | None = None,
    pair: str | None = None,
    dream_tag: str | None = None,
) -> StoredText:
    """Build a text from Python values; raise RecordError, which names the field, if one is invalid.

    Parameters
    ----------
    outcome : any value that JSON can hold; None for no outcome
    """
    try:
        packed = None if outcome is None else orjson.dumps(outcome, option=orjson.OPT_SORT_KEYS).decode()
    except (orjson.JSONEncodeError, TypeError) as error:
        raise RecordError(f"the outcome of a text must be a value that JSON can hold: {error}") from None
    fields = {
        "sort": sort, "text": text, "reflection": reflection, "tool": tool, "outcome": packed,
        "importance": importance, "tags": tuple(tags), "category": category, "session": session, "place": place,
        "speaker": speaker, "told_at": told_at, "chain": chain, "pair": pair, "dream_tag": dream_tag,
    }  # fmt: skip
    try:
        return StoredText.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"]) or "text"
        raise RecordError(f"a text of sort {sort!r}: {name}: {first['msg']}") from None
