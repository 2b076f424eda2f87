"""A public board without a network, and strangers that post on it."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bardo_pipeline.client.lethe_client import BoardPost, TicketRequest
from bardo_pipeline.events.custody.blind_signature import BlindKey
from bardo_pipeline.events.custody.clade_secret import CladeSecret
from bardo_pipeline.katabasis.public_posts import Belief, Pheromone, Post, post_of, voter_id
from bardo_pipeline.relay.ticket_office import Quota, TicketOffice

MARKET = {"chain": "synthetic", "protocol": "uniswap_v3", "pair": "WETH/USDC"}
"""The market of the runs of tests."""


class Verified:
    """A registry that knows these identities with a score of 60."""

    def __init__(self, *secrets: CladeSecret) -> None:
        self.names = {secret.identity_name for secret in secrets}

    def score(self, identity: str) -> int:
        """Return 60 for a known identity."""
        return 60 if identity in self.names else 0


class HeldBoard:
    """A board whose tickets a real office signs, and whose posts are a list that a test may alter."""

    def __init__(self, folder: Path, *secrets: CladeSecret, quota: Quota | None = None) -> None:
        self.registry = Verified(*secrets)
        self.office = TicketOffice(folder / "office.db", self.registry, quota)
        self.posts: list[BoardPost] = []
        self.requests: list[TicketRequest] = []

    def keys(self) -> dict[str, int]:
        """Return the moduli of the office."""
        return {purpose: key.modulus for purpose, key in self.office.keys.items()}

    def sign(self, request: TicketRequest) -> list[int]:
        """Sign within the quota of one day."""
        self.requests.append(request)
        return self.office.sign(request, "2026-01-01")

    def post(self, post_id: str, purpose: str, content: str, signature: int, days: int) -> int:
        """Store a post unless it is stored."""
        if content not in [post.content for post in self.posts]:
            self.posts.append(BoardPost(len(self.posts) + 1, purpose, content, signature))
        return len(self.posts)

    def after(self, number: int) -> tuple[list[BoardPost], int]:
        """Return up to 64 posts behind a number, and the newest number."""
        return [post for post in self.posts if post.number > number][:64], len(self.posts)


def put(board: Any, secret: CladeSecret, facts: Iterable[Belief | Pheromone]) -> list[Post]:
    """Let a stranger with this secret post facts at once."""
    posts = [post_of(one) for one in facts]
    keys = {purpose: BlindKey(purpose, modulus) for purpose, modulus in board.keys().items()}
    for post in posts:
        key = keys[post.purpose]
        request = TicketRequest(secret.identity_name, post.purpose, (key.blind(post.content, secret.lethe_key),))
        (signed,) = board.sign(request._replace(signature=secret.identity.sign(request.signed_bytes).hex()))
        signature = key.unblind(post.content, secret.lethe_key, signed)
        board.post(post.post_id, post.purpose, post.content.decode(), signature, 30)
    return posts


def belief(voter: str, *, sign: int = -1, confidence: float = 0.9, **changes: Any) -> Belief:
    """Return a vote on re-centring in a volatile market. voter: any name, which is hashed."""
    facts: dict[str, Any] = {
        **MARKET, "source": "pattern", "domain": "dex_lp", "action_type": "rebalance", "regime": "volatile",
        "anomaly_band": "strained", "gas_band": "normal", "metric": None, "sign": sign, "step": 0,
        "confidence_ppm": round(confidence * 1e6), "is_death_vote": False, "day": "2026-01-01",
    }  # fmt: skip
    return Belief.model_validate({**facts, "voter_id": voter_id(voter.encode(), "g", "q"), **changes})


def pheromone(intensity: float, hour: datetime, sort: str = "threat", **changes: Any) -> Pheromone:
    """Return a deposit at the market of the runs of tests."""
    facts = {**MARKET, "sort": sort, "intensity_ppm": round(intensity * 1e6), "hour": hour.astimezone(UTC)}
    return Pheromone.model_validate({**facts, **changes})


def stored_bytes(database: Path) -> bytes:
    """Return all bytes that a relay stored."""
    with sqlite3.connect(database) as opened:
        opened.execute("pragma wal_checkpoint(truncate)")
    return b"".join(path.read_bytes() for path in database.parent.glob(f"{database.name}*"))


def digest(value: object) -> str:
    """Return the SHA-256 of a value as JSON."""
    return hashlib.sha256(json.dumps(value, default=str, sort_keys=True).encode()).hexdigest()
