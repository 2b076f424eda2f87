"""Two homes of one owner and a relay, which exchange parcels, notes and posts, and what they must hold at the end."""

from __future__ import annotations

import hashlib
import json
import resource
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bardo_pipeline.client.lethe_client import LetheClient
from bardo_pipeline.client.relay_client import RelayClient
from bardo_pipeline.derivation.clade.clade_exchange import Exchange, exchange
from bardo_pipeline.derivation.clade.lethe_exchange import LetheExchange, exchange_posts
from bardo_pipeline.derivation.configuration import record_configuration
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.received_posts import posts_received
from bardo_pipeline.derivation.versions.rebuild import derive_everything
from bardo_pipeline.events.custody.clade_secret import CladeSecret
from bardo_pipeline.heartbeat.fleet import Founding
from bardo_pipeline.market.synthetic import synthetic_market
from bardo_pipeline.policy import Policy
from bardo_pipeline.policy.inheritance import CladePolicy
from bardo_pipeline.policy.toml_config import parse
from bardo_pipeline.relay import message_store, ticket_office
from bardo_pipeline.relay.relay_application import RelayApplication  # noqa: F401 (loads what a forked relay needs)
from bardo_pipeline.relay.serve_relay import RelaySettings, serve_relay
from bardo_pipeline.runtime.fleet_run import FleetRun
from bardo_pipeline.runtime.run_settings import Run
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.operations.maintenance import merge_life_files
from bardo_pipeline.storage.verification.verify import verify
from tests.crash.command_kills import NOW, State, state_of

OWNER, SECRET = "owner-1", CladeSecret(b"o" * 32)
HOMES = {"first": 7, "second": 11}
"""Homes, and the seed of the market of each."""

_START = datetime(2026, 1, 1, tzinfo=UTC)
_LATE_IN_WINDOW = timedelta(minutes=59, seconds=50)
_ON = "[styx]\nclade_enabled = true\nlethe_enabled = true\n"
_POLICY = Policy(clade=CladePolicy(lethe_release_share=1.0, pheromone_release_share=1.0))
"""Each window releases all posts, so that few exchanges send them."""


_MERGING = _POLICY.model_copy(update={"care": _POLICY.care.model_copy(update={"life_files_max": 1})})


def furnish(folder: Path) -> None:
    """Make both homes with living and dead golems that have something to tell, and the registry of the relay."""
    for name, seed in HOMES.items():
        Home.create(folder / name, _POLICY, _START)
        context = opened(folder / name)
        record_configuration(context, parse(_ON, "bardo.toml"), now=_START, why="to exchange", at=_START)
        market = synthetic_market(seed=seed, bars=300, start=_START)
        founding = Founding(owners=(OWNER,), lifespan_ticks=(100, 500))
        FleetRun(context, Run(name, market, golems=2, generations=2, founding=founding), lambda: NOW).live()
        derive_everything(context, now=NOW)
        merge_life_files(context.home, _MERGING, now=NOW)
    (folder / "registry.json").write_text(json.dumps({SECRET.identity_name: 60}))


def opened(root: Path) -> DerivationContext:
    """Open a home under the policy of this module."""
    return DerivationContext.open(root, policy=_POLICY)


def moment(window: int) -> datetime:
    """Return a moment near the end of a window of public posts, so that the posts of that window may leave."""
    return NOW + window * timedelta(hours=1) + _LATE_IN_WINDOW


def serve(folder: Path, on_ready: Callable[[str], None]) -> None:
    """Serve the relay of a folder, as `bardo relay` does, until the process is killed."""
    opened = _stated(message_store.open_database)
    message_store.open_database = ticket_office.open_database = opened
    settings = RelaySettings(port=0, registry=folder / "registry.json")
    serve_relay(folder / "relay.db", settings, clock=lambda: NOW, on_ready=on_ready)


def statement() -> None:
    """Do nothing. A trap at this function kills the relay before a statement that changes its database."""


def _stated(opened: Callable[[Path], sqlite3.Connection]) -> Callable[[Path], sqlite3.Connection]:
    """Return a function that opens a database whose changing statements call `statement`."""

    def traced(path: Path) -> sqlite3.Connection:
        database = opened(path)
        database.set_trace_callback(lambda words: None if words.startswith("select") else statement())
        return database

    return traced


def exchange_once(context: DerivationContext, address: str, window: int) -> tuple[Exchange, LetheExchange]:
    """Exchange parcels, notes and posts once, as `bardo clade sync` does."""
    with RelayClient(address, SECRET.topic, SECRET.token) as topic:
        done = exchange(context, OWNER, SECRET, topic, now=moment(window))
    return done, exchange_posts(context, OWNER, SECRET, LetheClient(address), now=moment(window))


def is_quiet(done: Exchange, public: LetheExchange) -> bool:
    """Whether an exchange sent nothing and leaves nothing to send: it then received all that the relay has."""
    told = done.shared_entries, done.sent_parcels, done.told_notes, public.sent_posts
    return not any((*told, public.waiting_posts, done.waiting_parcels))


def refusals(done: Exchange, public: LetheExchange) -> list[str]:
    """Return a sentence for each message that a home refused: no message of these homes is wrong."""
    told = [*done.refused, *public.refused, *(("posts", public.refusal) for _ in (1,) if public.refusal)]
    return [f"message {name} was refused: {reason}" for name, reason in told]


def state_of_home(context: DerivationContext) -> tuple[State, list[str]]:
    """Derive and verify a home; return what it holds, each event with its number, and the sentences of its faults."""
    root = context.home.root
    state = state_of(root, context)
    rows = context.log.life().select(["event_id", "kind"]).to_pylist()
    paged = {f"event {row['event_id']}" for row in rows if row["kind"] == "PostsReceived"}
    state = {part: value for part, value in state.items() if part not in paged}  # a kill divides a page of posts
    state |= {part: str(number) for part, number in Counter(_exchanged(context)).items()}
    return state, [f"verify: {each.sentence()}" for each in verify(Home.open(root)).breaks]


def _exchanged(context: DerivationContext) -> Iterator[str]:
    """Name each parcel, note and post that a home shared or received, as often as an event states it."""
    for kind, field in (
        ("EntriesShared", "bundle_hash"), ("BundleImported", "bundle_hash"), ("KnowledgeReceived", "content_hash"),
        ("NoteReceived", "content_hash"),
    ):  # fmt: skip
        for row in context.life_fields(kind, field).to_pylist():
            yield f"{kind} {row['golem_id']} {row[field]}"
    for heard in posts_received(context, OWNER):
        for post in heard.posts:
            yield f"PostsReceived {post.post_id}"


def state_of_relay(database: Path) -> tuple[State, list[str]]:
    """Read the database of a relay that has ended; return its messages with their numbers, and its faults."""
    connection = sqlite3.connect(database)
    faults = [f"the database is damaged: {row}" for (row,) in connection.execute("pragma integrity_check")]
    faults = [fault for fault in faults if not fault.endswith(": ok")]
    told: Counter[str] = Counter()
    topics: dict[str, Any] = dict(connection.execute("select topic, newest from topics").fetchall())
    for topic, newest in topics.items():
        rows = connection.execute("select number, body from messages where topic = ? order by number", (topic,))
        numbers = []
        for number, body in rows.fetchall():
            numbers.append(number)
            content = SECRET.decrypt(body) if topic == SECRET.topic else json.loads(body)["content"].encode()
            told[f"message {content[:48]!r} {hash_of(content)}"] += 1
        if numbers != list(range(1, newest + 1)):
            faults.append(f"topic {topic} counts to {newest} and has the messages {numbers}")
    connection.close()
    return {part: str(number) for part, number in told.items()}, faults


def hash_of(content: bytes) -> str:
    """Return the name of a content."""
    return hashlib.sha256(content).hexdigest()[:16]


def die_at_size(size: int) -> None:
    """Let the kernel end this process at its first write behind this offset of a file."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
