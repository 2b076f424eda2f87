"""Posts of an owner's golems for the public board, computed from derived tables, and posts that they received.

A golem posts its newest vote on each question and the threats and opportunities that it met. A post is due until it
comes back through the relay as `PostsReceived`, so the log is its outbox, as for parcels.
Source: KAT (Lethe, Write Paths); KAT-4, KAT-11; canon 44, 48, 49.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, time, timedelta
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.clade.clade_notes import market_notes, newest_tick_at
from bardo_pipeline.derivation.configuration import in_force_of
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.katabasis.derive_votes import derive_votes
from bardo_pipeline.errors import BundleError
from bardo_pipeline.events.life.clade_events import PostsReceived
from bardo_pipeline.events.life.events import EVERY_GOLEM, life_event
from bardo_pipeline.grimoire.confidence import PPM, ppm
from bardo_pipeline.grimoire.entry_columns import int_column, query_tables
from bardo_pipeline.inheritance.clade_note import VOLATILE, Shift
from bardo_pipeline.katabasis.propositions import level_steps, with_claims
from bardo_pipeline.katabasis.public_posts import (
    CONFIDENCE_STEP_PPM,
    INTENSITY_STEP_PPM,
    Belief,
    Pheromone,
    Post,
    post_of,
    read_post,
    rounded,
    voter_id,
)  # fmt: skip

_PARTS = (
    "source", "domain", "chain", "protocol", "pair", "action_type", "regime", "anomaly_band", "gas_band", "metric",
)  # fmt: skip


class DuePosts(NamedTuple):
    """Posts that are not received, by id. at_once: ids of critical votes."""

    posts: dict[str, Post]
    at_once: frozenset[str]


def lethe_golems(context: DerivationContext, owner_id: str) -> dict[str, bool]:
    """Return the golems of an owner here whose configuration opens Lethe, and whether each lives, by id."""
    dead = set(context.life("DeathDeclared")["golem_id"].to_pylist())
    golems = sorted(context.ownership().golems_of(owner_id))
    return {g: g not in dead for g, now in in_force_of(context, golems).items() if now.configuration.styx.lethe_enabled}


def due_posts(
    context: DerivationContext, owner_id: str, golems: Mapping[str, bool], key: bytes, received: Iterable[Post]
) -> DuePosts:
    """Derive votes of curated cycles, then return the posts of these golems that are not received.

    Parameters
    ----------
    golems : golem -> whether it lives
    key : of the owner's clade (`CladeSecret.lethe_key`), which hides the golems
    received : posts that the owner received
    """
    derive_votes(context)
    newest = newest_tick_at(context, owner_id)
    if newest is None or not golems:
        return DuePosts({}, frozenset())
    since = newest - timedelta(days=context.policy.clade.kept_days)
    beliefs = dict(_beliefs(context, golems, key))
    told = {_without_time(post) for post in received}
    facts: list[Belief | Pheromone] = [*beliefs, *_threats(context, owner_id, golems, since)]
    facts.extend(_opportunities(beliefs, since))
    posts = {post.post_id: post for post in map(post_of, facts) if _without_time(post) not in told}
    at_once = (post_of(belief).post_id for belief, is_critical in beliefs.items() if is_critical)
    return DuePosts(posts, frozenset(at_once) & posts.keys())


def _without_time(post: Post) -> tuple[object, ...]:
    """Return what makes a post news: a vote is repeated with another confidence only, a deposit after another hour."""
    facts = post.facts
    if isinstance(facts, Belief):
        return facts.voter_id, facts.proposition_id, facts.confidence_ppm, facts.is_death_vote
    return (post.post_id,)


def _beliefs(context: DerivationContext, golems: Collection[str], key: bytes) -> Iterator[tuple[Belief, bool]]:
    """Yield (vote, whether it is critical): the newest vote of each golem on each question, as a belief.

    A vote whose entry no longer makes its claim is left out: a newer vote or none replaces it.
    """
    projections, rules = context.projections, context.policy.katabasis
    causes = projections.growing("vote_causes").read(["vote_id", "golem_id", "entry_id"], golems=sorted(golems))
    votes = projections.growing("votes").read(_OF_VOTE, only=pc.field("vote_id").isin(causes["vote_id"].unique()))
    grimoire = projections.replaceable("grimoire")
    claims = with_claims(grimoire.read(grimoire.buckets(sorted(golems))))
    step = np.where(pc.equal(claims["source"], "baseline"), level_steps(int_column(claims, "effect_mean_ppm")), 0)
    names = ["golem_id", "entry_id", "proposition_id", "kind", "effect_mean_ppm", "sign", *_PARTS]
    parts = claims.select(names).append_column("step", pa.array(step, pa.int64()))
    critical = {"effect": -ppm(rules.critical_loss), "gate": ppm(rules.vote_confidence_min)}
    for row in query_tables(_NEWEST, critical, votes=votes, causes=causes, parts=parts).to_pylist():
        belief = _belief(row, voter_id(key, row["golem_id"], row["question_id"]))
        if belief is not None:
            yield belief, row["is_critical"]


_OF_VOTE = ["vote_id", "proposition_id", "question_id", "confidence_ppm", "is_death_vote", "at"]

_NEWEST = """
    with newest as (
        select * from votes join causes using (vote_id)
        qualify row_number() over (
            partition by golem_id, question_id order by "at" desc, is_death_vote desc, vote_id desc
        ) = 1
    )
    select *, kind = 'warning' and not is_death_vote and effect_mean_ppm <= $effect
        and confidence_ppm < $gate as is_critical
    from newest join parts using (golem_id, entry_id, proposition_id) order by golem_id, question_id
"""


def _belief(row: Mapping[str, Any], voter: str) -> Belief | None:
    """Return a vote as a belief, None for an act that only its own runtime knows."""
    facts = {name: row[name] for name in _PARTS}
    if row["source"] == "baseline":
        facts |= dict.fromkeys(("action_type", "regime", "anomaly_band", "gas_band"))
    try:
        belief = Belief(
            **facts, sign=0 if row["source"] == "baseline" else row["sign"], step=row["step"], voter_id=voter,
            confidence_ppm=rounded(row["confidence_ppm"], CONFIDENCE_STEP_PPM), day=row["at"].date(),
            is_death_vote=row["is_death_vote"],
        )  # fmt: skip
        post = post_of(belief)
        read_post(post.purpose, post.content)
    except (ValueError, BundleError):
        return None
    return belief


def _threats(
    context: DerivationContext, owner_id: str, golems: Mapping[str, bool], since: datetime
) -> Iterator[Pheromone]:
    """Yield a threat for each confirmed failure and for the newest turn to a volatile market of these golems."""
    scars = context.projections.growing("failures").read(golems=sorted(golems))
    for row in scars.filter(pc.greater_equal(scars["confirmed_at"], pa.scalar(since))).to_pylist():
        yield from _pheromone("threat", row, row["confidence_ppm"], row["confirmed_at"])
    for note in market_notes(context, owner_id, [g for g, lives in golems.items() if lives]):
        if isinstance(note.facts, Shift) and note.facts.regime == VOLATILE and note.at >= since:
            intensity = ppm(context.policy.clade.shift_threat)
            yield from _pheromone("threat", note.facts.model_dump(), intensity, note.at)


def _opportunities(beliefs: Iterable[Belief], since: datetime) -> Iterator[Pheromone]:
    """Yield an opportunity for each vote that entering a market pays."""
    for belief in beliefs:
        at = datetime.combine(belief.day, time(), UTC)
        if (belief.source, belief.action_type, belief.sign) == ("choice", "add_liquidity", 1) and at >= since:
            yield from _pheromone("opportunity", belief.model_dump(), belief.confidence_ppm, at)


def _pheromone(
    sort: Literal["threat", "opportunity"], place: Mapping[str, Any], intensity_ppm: int, at: datetime
) -> Iterator[Pheromone]:
    """Yield a deposit, unless its intensity rounds to nothing."""
    intensity = rounded(intensity_ppm, INTENSITY_STEP_PPM)
    if intensity > 0:
        market = {name: place[name] for name in ("chain", "protocol", "pair")}
        hour = at.replace(minute=0, second=0, microsecond=0)
        yield Pheromone(sort=sort, intensity_ppm=min(intensity, PPM), hour=hour, **market)


def record_posts(
    context: DerivationContext, owner_id: str, posts: Sequence[Post], *, golem_ids: Sequence[str], relay_key: str,
    now: datetime,
) -> None:  # fmt: skip
    """Record posts that an owner has not received, in one event.

    golem_ids: golems that hear the posts; each pays for the query.
    """
    content = b"[" + b",".join(post.content for post in posts) + b"]"
    payload = PostsReceived(
        owner_id=owner_id, golem_ids=tuple(golem_ids), query_micros=context.policy.clade.query_micros,
        relay_key=relay_key, post_count=len(posts), content_hash=hashlib.sha256(content).hexdigest(),
        content=content.decode(),
    )  # fmt: skip
    at = newest_tick_at(context, owner_id) or now
    context.log.record([life_event(EVERY_GOLEM, at, payload)], now)
