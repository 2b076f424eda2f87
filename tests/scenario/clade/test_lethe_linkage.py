"""An observer who sees all that a relay sees tries to find the authors of public posts, and what must not flow."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

from bardo_pipeline.client.lethe_client import LetheClient, TicketRequest
from bardo_pipeline.derivation.clade.lethe_exchange import exchange_posts
from bardo_pipeline.derivation.clade.lethe_outbox import LetheOutbox
from bardo_pipeline.derivation.clade.lethe_posts import DuePosts
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.dreams.derive_lessons import known_entries
from bardo_pipeline.events.custody.blind_signature import BlindKey
from bardo_pipeline.events.custody.clade_secret import CladeSecret
from bardo_pipeline.katabasis.public_posts import Post, post_of
from bardo_pipeline.policy.inheritance import CladePolicy
from tests.conftest import NOW
from tests.support.processes.clade_homes import OWNER, made
from tests.support.processes.public_boards import HeldBoard, belief, put, stored_bytes
from tests.support.processes.relays import relay

AUTHORS = 5
START = datetime(2026, 1, 1, tzinfo=UTC)
RULES = CladePolicy(lethe_tickets=12)


class Seen(NamedTuple):
    """A request that the relay saw. identity: of a request for signatures; content: of a post."""

    at: datetime
    identity: str | None = None
    content: str | None = None


class Wire(HeldBoard):
    """A board that keeps what an observer sees: each request with its time."""

    now = START

    def __init__(self, folder: Path, *secrets: CladeSecret) -> None:
        super().__init__(folder, *secrets)
        self.seen: list[Seen] = []

    def sign(self, request: TicketRequest) -> list[int]:
        """Sign, and note the identity."""
        self.seen.append(Seen(self.now, identity=request.identity))
        return self.office.sign(request, f"{self.now:%Y-%m-%d}")

    def post(self, post_id: str, purpose: str, content: str, signature: int, days: int) -> int:
        """Store, and note the content."""
        self.seen.append(Seen(self.now, content=content))
        return super().post(post_id, purpose, content, signature, days)


def posts_of(author: int, count: int, hours: int, rng: random.Random) -> list[tuple[datetime, Post]]:
    """Return the votes of an author with the times at which they become due; authors vote at hours of their own."""
    centre = rng.uniform(0, hours - 8)
    times = sorted(START + timedelta(hours=rng.triangular(0, hours - 6, centre)) for _ in range(count))
    return [(at, post_of(belief(f"{author} {number}"))) for number, at in enumerate(times)]


def nearest_request(wire: Wire, number: int) -> str | None:
    """Guess the last identity that asked for signatures before a post."""
    asked = [one.identity for one in wire.seen[:number] if one.identity is not None]
    return asked[-1] if asked else None


def next_request(wire: Wire, number: int) -> str | None:
    """Guess the first identity that asks for signatures after a post."""
    return next((one.identity for one in wire.seen[number:] if one.identity is not None), None)


def most_requests(wire: Wire, number: int) -> str | None:
    """Guess the identity with the most requests in the six hours before a post."""
    since = wire.seen[number].at - timedelta(hours=6)
    asked = Counter(one.identity for one in wire.seen[:number] if one.identity is not None and one.at >= since)
    return max(asked, key=lambda name: (asked[name], name)) if asked else None


def accuracy(wire: Wire, authors: dict[str, str], guess: Callable[[Wire, int], str | None]) -> float:
    """Return the share of the posts whose author a guess names."""
    posts = [(number, one.content) for number, one in enumerate(wire.seen) if one.content is not None]
    return sum(guess(wire, number) == authors[content] for number, content in posts) / len(posts)


ATTACKS = (nearest_request, next_request, most_requests)


@pytest.mark.full
@pytest.mark.row("KAT-6")
@pytest.mark.parametrize(("count", "hours", "surplus"), [(20, 10, 0.15), (120, 30, 0.05)])
def test_a_linkage_attack_guesses_authors_no_better_than_by_chance(
    tmp_path: Path, count: int, hours: int, surplus: float
) -> None:
    rng, secrets = random.Random(4), [CladeSecret(bytes([n]) * 32) for n in range(AUTHORS)]
    wire, naive = Wire(tmp_path, *secrets), Wire(tmp_path, *secrets)
    keys = {purpose: BlindKey(purpose, modulus) for purpose, modulus in wire.keys().items()}  # type: ignore[arg-type]
    boxes = [LetheOutbox(tmp_path / str(n), secret, wire, keys, RULES) for n, secret in enumerate(secrets)]
    written = [posts_of(n, count, hours, rng) for n in range(AUTHORS)]
    authors = {post.content.decode(): secrets[n].identity_name for n, posts in enumerate(written) for _, post in posts}
    for step in range(hours * 6 * 4):
        if len(wire.posts) == len(authors):
            break
        wire.now = START + timedelta(minutes=10 * step)
        for n in rng.sample(range(AUTHORS), AUTHORS):
            sent = {post.content for post in wire.posts}
            due = {p.post_id: p for at, p in written[n] if at <= wire.now and p.content.decode() not in sent}
            boxes[n].send(DuePosts(due, frozenset()), wire.now)
    assert len(wire.posts) == len(authors), "every post leaves"
    for at, n, post in sorted((at, n, post) for n, posts in enumerate(written) for at, post in posts):
        naive.now = at
        put(naive, secrets[n], [post.facts])
    chance = 1 / AUTHORS
    found = {attack.__name__: accuracy(wire, authors, attack) for attack in ATTACKS}
    print(f"accuracy {found}, by chance {chance:.2f}; without delays {accuracy(naive, authors, nearest_request):.2f}")
    assert max(found.values()) <= chance + surplus
    assert accuracy(naive, authors, nearest_request) == 1.0, "the attack works on a home that asks and posts at once"


@pytest.mark.row("KAT-6")
def test_no_private_part_reaches_the_bytes_of_a_relay(tmp_path: Path) -> None:
    root = made(tmp_path / "home", "--seed", "3", "--bars", "900", secret=b"o" * 32,
                configuration="[styx]\nlethe_enabled = true\nclade_enabled = true\n")  # fmt: skip
    context, secret = DerivationContext.open(root), CladeSecret(b"o" * 32)
    (tmp_path / "registry.json").write_text(f'{{"{secret.identity_name}": 50}}')
    with relay(tmp_path / "relay.db", registry=tmp_path / "registry.json") as (url, _):
        sent = 0
        for step in range(30):
            now = NOW + step * timedelta(minutes=19)
            sent += exchange_posts(context, OWNER, secret, LetheClient(url), now=now).sent_posts
        assert sent > 4
        posts, _ = LetheClient(url).after(0)
    shutil.copy(tmp_path / "relay.db", tmp_path / "copy.db")
    stored = stored_bytes(tmp_path / "relay.db")
    births = context.life("GolemBorn")["born"].to_pylist()
    numbers = {value for birth in births for value in (*birth["traits"].values(), birth["capital_micros"])}
    texts = known_entries(context)["text"].to_pylist()
    names = (*context.golem_ids(), OWNER, *texts, *(birth["lineage_id"] for birth in births))
    canaries = [*names, *(str(number) for number in numbers if isinstance(number, int) and number > 999)]
    assert canaries
    assert not [canary for canary in canaries if canary.encode() in stored]
    assert all(set(post.content.split('"')) & {"belief", "pheromone"} for post in posts)
