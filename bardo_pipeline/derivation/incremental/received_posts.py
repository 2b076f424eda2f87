"""Reads the public posts that golems received from the log: anonymous votes and pheromones.

Source: KAT (Lethe); KAT-4, KAT-11.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime
from typing import NamedTuple

import orjson

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.katabasis.public_posts import Belief, Pheromone, Post, post_of


class HeardPosts(NamedTuple):
    """Received posts. at: event time of their receipt; a golem hears them after that time."""

    at: datetime
    owner_id: str
    golem_ids: tuple[str, ...]
    content_hash: str
    posts: tuple[Post, ...]


def posts_received(
    context: DerivationContext, owner_id: str | None = None, *, known: Collection[tuple[str, str]] = ()
) -> list[HeardPosts]:
    """Return the received posts of an owner, or of all, by time of receipt. A post ahead of its receipt gets that time.

    known: (owner, content hash) of events to leave out.
    """
    fields = ("owner_id", "golem_ids", "content_hash", "content")
    rows = context.life_fields("PostsReceived", *fields).to_pylist()
    heard = [
        HeardPosts(at, owner, tuple(golem_ids), content_hash, tuple(_dated(p, at) for p in unpacked_posts(content)))
        for row in rows
        for at, owner, golem_ids, content_hash, content in [[row[name] for name in ("observed_at", *fields)]]
        if owner_id in (None, owner) and (owner, content_hash) not in known
    ]
    return sorted(heard, key=lambda heard: (heard.at, heard.owner_id, heard.content_hash))


def _dated(post: Post, at: datetime) -> Post:
    """Return a post with the time of its receipt if it states a later one, which would keep it from fading."""
    facts = post.facts
    is_at = {"day": min(facts.day, at.date())} if isinstance(facts, Belief) else {"hour": min(facts.hour, at)}
    return post._replace(facts=facts.model_copy(update=is_at))


def unpacked_posts(content: str) -> Iterator[Post]:
    """Yield the posts of an event."""
    for facts in orjson.loads(content):
        ((about, values),) = facts.items()
        yield post_of((Belief if about == "belief" else Pheromone).model_validate(values))
