"""Reports of Lethe: the consensus of received votes, and the pheromones of each market.

Source: KAT (Lethe); KAT-4, KAT-11; canon 49.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.received_posts import posts_received
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.katabasis.public_consensus import public_consensus
from bardo_pipeline.katabasis.public_posts import Pheromone, strongest


class BeliefRow(NamedTuple):
    """The consensus of strangers on a claim. confidence: in [0, 1]."""

    claim: str
    confidence: float
    vote_count: int
    death_vote_count: int
    quorum_met: bool
    contradicted: bool
    last_vote_at: datetime


class PheromoneRow(NamedTuple):
    """The pheromones of one market. intensity: at the time of the newest received post, in [0, 1]."""

    sort: str
    chain: str
    protocol: str
    pair: str
    intensity: float
    deposit_count: int
    last_deposit_at: datetime


def belief_rows(context: DerivationContext) -> list[dict[str, Any]]:
    """Return the consensus of the votes that the owners of a view received, the surest first (BeliefRow)."""
    posts = {post.post_id: post for heard in posts_received(context) for post in heard.posts}
    counted = public_consensus(posts.values(), context.policy)
    rows = [
        BeliefRow(
            row["claim"], row["confidence_ppm"] / PPM, row["vote_count"], row["death_vote_count"], row["quorum_met"],
            row["contradicted"], row["last_vote_at"],
        )
        for row in counted.to_pylist()
    ]  # fmt: skip
    return [row._asdict() for row in sorted(rows, key=lambda row: (-row.confidence, row.claim))]


def pheromone_rows(context: DerivationContext) -> list[dict[str, Any]]:
    """Return the pheromones that the owners of a view received, by market (PheromoneRow)."""
    return [row._asdict() for row in sorted(_pheromones(context))]


def _pheromones(context: DerivationContext) -> Iterator[PheromoneRow]:
    heard = posts_received(context)
    posts = {post.post_id: post for one in heard for post in one.posts}
    places: dict[tuple[Any, ...], list[datetime]] = {}
    for facts in (post.facts for post in posts.values()):
        if isinstance(facts, Pheromone):
            places.setdefault((facts.sort, facts.chain, facts.protocol, facts.pair), []).append(facts.hour)
    for (sort, *market), hours in places.items():
        now = max(*hours, *(one.at for one in heard))
        intensity = strongest(posts.values(), sort, market, now, context.policy)
        chain, protocol, pair = market
        yield PheromoneRow(sort, chain, protocol, pair, round(intensity, 3), len(hours), max(hours))
