"""Posts of an owner's golems for the public board, computed from derived tables, and posts that they received.

A golem posts its newest vote on each question and the threats and opportunities that it met. A post is due until it
comes back through the relay as `PostsReceived`, so the log is its outbox, as for parcels.
Source: KAT (Lethe, Write Paths); KAT-4, KAT-11; canon 44, 48, 49.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.clade.clade_notes import market_notes, newest_tick_at
from bardo_pipeline.derivation.configuration import in_force_of
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.received_posts import posts_received
from bardo_pipeline.derivation.katabasis.derive_votes import derive_votes
from bardo_pipeline.errors import BundleError
from bardo_pipeline.events.life.clade_events import PostsReceived
from bardo_pipeline.events.life.events import EVERY_GOLEM, life_event
from bardo_pipeline.grimoire.confidence import PPM, ppm
from bardo_pipeline.grimoire.entry_columns import int_column
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


def due_posts(context: DerivationContext, owner_id: str, golems: Mapping[str, bool], key: bytes) -> DuePosts:
    """Derive votes of curated cycles, then return the posts of these golems that are not received.

    Parameters
    ----------
    golems : golem -> whether it lives
    key : of the owner's clade (`CladeSecret.lethe_key`), which hides the golems
    """
    derive_votes(context)
    heard = [post for heard in posts_received(context, owner_id) for post in heard.posts]
    told = {_without_time(post) for post in heard}
    due = DuePosts({}, frozenset())
    at_once = set()
    for belief, is_critical in _beliefs(context, golems, key):
        post = post_of(belief)
        if _without_time(post) not in told:
            due.posts[post.post_id] = post
            if is_critical:
                at_once.add(post.post_id)
    for pheromone in (*_threats(context, owner_id, golems), *_opportunities(due.posts.values())):
        post = post_of(pheromone)
        if _without_time(post) not in told:
            due.posts[post.post_id] = post
    return due._replace(at_once=frozenset(at_once))


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
    if not causes.num_rows:
        return
    votes = projections.growing("votes").read(only=pc.field("vote_id").isin(causes["vote_id"].unique()))
    grimoire = projections.replaceable("grimoire")
    claims = with_claims(grimoire.read(grimoire.buckets(sorted(set(causes["golem_id"].to_pylist())))))
    steps = np.where(pc.equal(claims["source"], "baseline"), level_steps(int_column(claims, "effect_mean_ppm")), 0)
    names = ["golem_id", "entry_id", "proposition_id", "kind", "effect_mean_ppm", "sign", *_PARTS]
    parts = claims.select(names).append_column("step", pa.array(steps))
    of_vote = votes.join(causes, "vote_id").join(parts, ["golem_id", "entry_id", "proposition_id"], join_type="inner",
                                                 right_suffix="_of_entry")  # fmt: skip
    newest: dict[tuple[str, str], dict[str, Any]] = {}
    for row in sorted(of_vote.to_pylist(), key=lambda row: (row["at"], row["is_death_vote"], row["vote_id"])):
        newest[row["golem_id"], row["question_id"]] = row
    for (golem_id, question_id), row in newest.items():
        belief = _belief(row, voter_id(key, golem_id, question_id))
        if belief is not None:
            gate, is_heavy = ppm(rules.vote_confidence_min), row["effect_mean_ppm"] <= -ppm(rules.critical_loss)
            is_critical = row["kind"] == "warning" and is_heavy and row["confidence_ppm"] < gate
            yield belief, is_critical and not row["is_death_vote"]


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


def _threats(context: DerivationContext, owner_id: str, golems: Mapping[str, bool]) -> Iterator[Pheromone]:
    """Yield a threat for each confirmed failure and for the newest turn to a volatile market of these golems."""
    newest = newest_tick_at(context, owner_id)
    if newest is None or not golems:
        return
    since = newest - timedelta(days=context.policy.clade.kept_days)
    scars = context.projections.growing("failures").read(golems=sorted(golems))
    for row in scars.filter(pc.greater_equal(scars["confirmed_at"], pa.scalar(since))).to_pylist():
        if found := _pheromone("threat", row, row["confidence_ppm"], row["confirmed_at"]):
            yield found
    for note in market_notes(context, owner_id, [g for g, lives in golems.items() if lives]):
        if isinstance(note.facts, Shift) and note.facts.regime == VOLATILE and note.at >= since:
            intensity = ppm(context.policy.clade.shift_threat)
            if found := _pheromone("threat", note.facts.model_dump(), intensity, note.at):
                yield found


def _opportunities(posts: Iterable[Post]) -> list[Pheromone]:
    """Return an opportunity for each due vote that entering a market pays."""
    found = []
    for facts in (post.facts for post in posts):
        if isinstance(facts, Belief) and (facts.source, facts.action_type, facts.sign) == (
            "choice",
            "add_liquidity",
            1,
        ):
            at = datetime.fromisoformat(f"{facts.day}T00:00:00+00:00")
            one = _pheromone("opportunity", facts.model_dump(), facts.confidence_ppm, at)
            found += [] if one is None else [one]
    return found


def _pheromone(sort: str, place: Mapping[str, Any], intensity_ppm: int, at: datetime) -> Pheromone | None:
    """Return a deposit, None for one of no intensity."""
    intensity = rounded(intensity_ppm, INTENSITY_STEP_PPM)
    if intensity <= 0:
        return None
    market = {name: place[name] for name in ("chain", "protocol", "pair")}
    hour = at.replace(minute=0, second=0, microsecond=0)
    return Pheromone(sort=sort, intensity_ppm=min(intensity, PPM), hour=hour, **market)


def record_posts(
    context: DerivationContext,
    owner_id: str,
    posts: Iterable[Post],
    *,
    golem_ids: Sequence[str],
    relay_key: str,
    now: datetime,
) -> int:
    """Record the posts that an owner has not received, in one event; return their number.

    golem_ids: golems that hear the posts; each pays for the query.
    """
    known = {post.post_id for heard in posts_received(context, owner_id) for post in heard.posts}
    new = {post.post_id: post for post in posts if post.post_id not in known}
    if not new:
        return 0
    content = b"[" + b",".join(b'["%s",%s]' % (p.purpose.encode(), p.content) for p in new.values()) + b"]"
    payload = PostsReceived(
        owner_id=owner_id, golem_ids=tuple(golem_ids), query_micros=context.policy.clade.query_micros,
        relay_key=relay_key, post_count=len(new), content_hash=hashlib.sha256(content).hexdigest(),
        content=content.decode(),
    )  # fmt: skip
    at = newest_tick_at(context, owner_id) or now
    context.log.record([life_event(EVERY_GOLEM, at, payload)], now)
    return len(new)
