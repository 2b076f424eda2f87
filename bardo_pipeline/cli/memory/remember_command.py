"""`bardo remember`: stores a text of a golem's runtime in its own words."""

from __future__ import annotations

from typing import Annotated

import orjson
from typer import Argument, Option

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.options import moment_of, now, open_context
from bardo_pipeline.cli.output.tables import print_json, say
from bardo_pipeline.derivation.memory.free_texts import store_texts
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.events.experience.stored_text import stored_text


def remember(
    golem: Annotated[str, Argument(help="Golem id.")],
    text: Annotated[str, Argument(help='Text, for example "the noon swap slipped by 40 bps".')],
    home: opt.Home = None,
    sort: Annotated[str, Option(help="episode, insight or reflection.")] = "episode",
    reflection: Annotated[str | None, Option(help="Reflection on what happened.")] = None,
    tool: Annotated[str | None, Option(help="Tool that was executed.")] = None,
    outcome: Annotated[str | None, Option(help="Outcome as JSON.")] = None,
    importance: Annotated[str, Option(help="routine, notable, critical or emergency.")] = "routine",
    tag: Annotated[list[str] | None, Option(help="Tag; may be given several times.")] = None,
    category: Annotated[str | None, Option(help="Category of an insight.")] = None,
    session: Annotated[str | None, Option(help="Session that the text belongs to.")] = None,
    speaker: Annotated[str | None, Option(help="Speaker of the text.")] = None,
    told_at: Annotated[str | None, Option(help="Date of what is told (ISO 8601, UTC).")] = None,
    chain: Annotated[str | None, Option(help="Chain.")] = None,
    pair: Annotated[str | None, Option(help="Token pair.")] = None,
    dream_tag: Annotated[str | None, Option(help="Tag for the next dream.")] = None,
    at: Annotated[str | None, Option("--at", help="Moment of the text (ISO 8601, UTC; default: now).")] = None,
    json: opt.Json = False,
) -> None:
    """Store a text of a golem, which `bardo search` finds at once."""
    try:
        value = None if outcome is None else orjson.loads(outcome)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"--outcome is no JSON ({error}): for example '{{\"bps\": 40}}'") from None
    payload = stored_text(
        text, sort=sort, reflection=reflection, tool=tool, outcome=value, importance=importance, tags=tuple(tag or ()),
        category=category, session=session, speaker=speaker, chain=chain, pair=pair, dream_tag=dream_tag,
        told_at=None if told_at is None else moment_of(told_at, "--told-at"),
    )  # fmt: skip
    moment = now()
    told = moment if at is None else moment_of(at, "--at")
    if told > moment:  # the age of every other text counts from the newest one
        raise ConfigError(f"--at {at} is ahead of the clock of this machine: give a moment that has passed")
    (stored,) = store_texts(open_context(home), golem, [payload], at=told, now=moment)
    if json:
        print_json(stored)
    elif stored.count_after == stored.count_before:
        say(f"{stored.text_id} was stored before: golem {golem} has {stored.count_after:,} texts")
    else:
        of = "" if stored.upvote_of is None else f", an upvote of {stored.upvote_of}"
        say(f"{stored.text_id}{of}: golem {golem} has {stored.count_after:,} texts")
