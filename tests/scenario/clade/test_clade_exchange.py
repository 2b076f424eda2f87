"""Golems of two homes share what they know through a relay, and nothing else reaches it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from bardo_pipeline.client.relay_client import RelayClient
from bardo_pipeline.derivation.clade.clade_exchange import clade_folder, exchange
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.dreams.derive_lessons import known_entries
from bardo_pipeline.derivation.legacy.bundle_archives import pack_archive
from bardo_pipeline.derivation.legacy.death_queries import births_of
from bardo_pipeline.events.custody.clade_secret import CladeSecret
from bardo_pipeline.events.life.retractions import LeftOut
from bardo_pipeline.inheritance.clade_parcel import is_urgent, pack_parcel
from bardo_pipeline.policy import Policy
from bardo_pipeline.policy.inheritance import CladePolicy
from bardo_pipeline.storage.keys.clade_secrets import clade_secret_path, read_clade_secret
from tests.conftest import NOW
from tests.support.knowledge.handmade_grimoires import grimoire
from tests.support.knowledge.received_knowledge import claim
from tests.support.processes.bardo_command import ROOT, bardo
from tests.support.processes.clade_homes import OWNER, HeldRelay, made, sync
from tests.support.processes.relays import relay
from tests.support.records.handmade_records import GALE, SQUALL, STORM

LATELY = datetime(2026, 1, 1, 20, tzinfo=UTC)
"""A time near the end of the lives in both homes."""


class Nonsense(BaseHTTPRequestHandler):
    """A relay whose answers have no meaning."""

    def do_GET(self) -> None:
        """Answer JSON of another form."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"newest": "many", "messages": [7]}')


def receipts(root: Path) -> Counter[tuple[str, str]]:
    """Return how often each golem received each parcel of its clade."""
    rows = DerivationContext.open(root).life_fields("KnowledgeReceived", "source", "content_hash").to_pylist()
    return Counter((r["golem_id"], r["content_hash"]) for r in rows if r["source"] == "clade")


def shared(root: Path) -> dict[str, str]:
    """Return parcel -> golem of the parcels that golems of a home shared."""
    rows = DerivationContext.open(root).life_fields("EntriesShared", "bundle_hash").to_pylist()
    return {row["bundle_hash"]: row["golem_id"] for row in rows}


def golems(root: Path) -> set[str]:
    return set(DerivationContext.open(root).golem_ids())


def is_complete(first: Path, second: Path) -> bool:
    """Whether each golem of both homes received each parcel of every other golem once, and nothing else."""
    parcels = shared(first) | shared(second)
    for root in (first, second):
        wanted = {(golem, parcel) for golem in golems(root) for parcel, author in parcels.items() if author != golem}
        found = receipts(root)
        if set(found) != wanted or set(found.values()) != {1}:
            return False
    return bool(shared(first)) and bool(shared(second))


def test_golems_of_two_homes_receive_what_their_siblings_share(homes: tuple[Path, Path], address: str) -> None:
    first, second = homes
    done = sync(first, address)
    assert done["shared_entries"] > 0
    assert done["refused"] == []
    sync(second, address)
    sync(first, address)
    assert is_complete(first, second)
    assert sync(first, address) | {"members": []} == {
        "members": [], "shared_entries": 0, "sent_parcels": 0, "received_parcels": 0, "told_notes": 0,
        "received_notes": 0, "delivered_entries": {}, "waiting_parcels": 0, "refused": [], "throttled": {},
        "lethe": {"members": [], "sent_posts": 0, "waiting_posts": 0, "received_posts": 0, "refused": [],
                  "refusal": None},
    }  # fmt: skip
    stored = b"".join(path.read_bytes() for path in first.parent.glob("relay.db*"))
    context = DerivationContext.open(first)
    texts = known_entries(context)["text"].to_pylist()
    for canary in (*golems(first), *golems(second), OWNER, "WETH", "clade_sibling", "confidence", *texts):
        assert canary.encode() not in stored, canary
    assert "BundleImported" in {event["kind"] for event in context.life("BundleImported").to_pylist()}


@pytest.mark.full
def test_a_golem_of_a_run_learns_from_another_home_while_it_lives(
    homes: tuple[Path, Path], address: str, tmp_path: Path
) -> None:
    first, _ = homes
    sync(first, address)
    secret = clade_secret_path(DerivationContext.open(first).home, OWNER).read_bytes()
    third = made(tmp_path / "third", "--seed", "3", secret=secret, BARDO_RELAY=address)
    context = DerivationContext.open(third)
    reasons = context.projections.growing("curation").read(["reason"])["reason"].to_pylist()
    assert any(reason.endswith(f"; clade from {author}") for reason in reasons for author in shared(first).values())
    assert "clean" in bardo("verify", home=third)


@pytest.mark.full
@pytest.mark.parametrize("hostile", [False, True])
def test_a_silent_or_hostile_relay_changes_no_record(tmp_path: Path, hostile: bool) -> None:
    address = "http://127.0.0.1:9"
    with HTTPServer(("127.0.0.1", 0), Nonsense) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        if hostile:
            address = f"http://127.0.0.1:{server.server_port}"
        with_relay = made(tmp_path / "with", "--seed", "4", "--bars", "450", secret=b"s" * 32, BARDO_RELAY=address)
        server.shutdown()
    without = made(tmp_path / "without", "--seed", "4", "--bars", "450")
    key = [("golem_id", "ascending"), ("tick", "ascending")]
    first, second = (
        DerivationContext.open(root).log.read_cycles().sort_by(key).drop_columns(["recorded_at"])
        for root in (with_relay, without)
    )
    assert first.equals(second)
    assert not shared(with_relay), "nothing is shared unless the relay answers"


@pytest.mark.full
def test_killed_exchanges_lose_and_double_nothing(homes: tuple[Path, Path], tmp_path: Path) -> None:
    first, second = homes
    drawn, port, process = random.Random(26), 0, None
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with relay(tmp_path / "relay.db") as (url, started):
        port, process = int(url.rsplit(":", 1)[1]), started
    for turn in range(12):
        with relay(tmp_path / "relay.db", port) as (url, process):
            words = [sys.executable, "-m", "bardo_pipeline.cli.app", "clade", "sync", OWNER, "--relay", url]
            home = homes[turn % 2]
            syncing = subprocess.Popen(words, env=environment | {"BARDO_HOME": str(home)}, stderr=subprocess.DEVNULL)
            time.sleep(drawn.uniform(1.0, 6.0))
            victim = process if turn % 3 == 2 else syncing
            victim.send_signal(signal.SIGKILL)
            syncing.kill()
            syncing.wait()
    with relay(tmp_path / "relay.db", port) as (url, _):
        for root in (first, second, first, second):
            sync(root, url)
    assert is_complete(first, second)
    assert "clean" in bardo("verify", home=first)


def test_messages_of_a_hostile_relay_are_refused_and_change_nothing(homes: tuple[Path, Path], address: str) -> None:
    first, second = homes
    context = DerivationContext.open(first)
    secret = read_clade_secret(context.home, OWNER)
    held = HeldRelay()
    exchange(context, OWNER, secret, held, now=NOW)
    genuine = held.messages[0]
    with RelayClient(address, secret.topic, secret.token) as topic:
        topic.put("a" * 64, genuine.body[:-1] + bytes([genuine.body[-1] ^ 1]))
        topic.put("b" * 64, b"short")
        topic.put("c" * 64, CladeSecret(b"x" * 32).encrypt(b"of another clade"))
        topic.put("d" * 64, secret.encrypt(b"no archive"))
        topic.put("e" * 64, genuine.body)
        topic.put("f" * 64, genuine.body)
    before = DerivationContext.open(second).log.life().num_rows
    done = sync(second, address)
    assert sorted(message_id[0] for message_id, _ in done["refused"]) == ["a", "b", "c", "d"]
    assert done["received_parcels"] == 1 + done["sent_parcels"], "a replayed parcel is received once"
    kept = list((clade_folder(DerivationContext.open(second).home, OWNER) / "refused").iterdir())
    assert len(kept) == 4
    assert all(json.loads(path.read_text())["reason"] for path in kept)
    assert set(receipts(second).values()) == {1}
    assert DerivationContext.open(second).log.life().num_rows > before
    assert "clean" in bardo("verify", home=second)


def test_a_bundle_of_another_owner_is_refused(homes: tuple[Path, Path]) -> None:
    first, second = homes
    secret = read_clade_secret(DerivationContext.open(first).home, OWNER)
    held = HeldRelay()
    exchange(DerivationContext.open(first), OWNER, secret, held, now=NOW)
    done = exchange(DerivationContext.open(second), "owner-2", secret, held, now=NOW)
    assert done.received_parcels == 0
    assert done.received_notes == 0
    assert len(done.refused) == len(held.messages)
    assert all(" of the clade of 'owner-2'" in reason for _, reason in done.refused)
    assert receipts(second) == Counter()


def test_limits_of_an_hour_put_deliveries_off(homes: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (DerivationContext.open(root) for root in homes)
    secret, held = read_clade_secret(first.home, OWNER), HeldRelay()
    for context in (first, second):
        monkeypatch.setattr(context, "policy", Policy(clade=CladePolicy(hour_out=1, hour_in=1, hour_source=1)))
    exchange(first, OWNER, secret, held, now=NOW)
    rows = first.life_fields("EntriesShared", "entry_ids").to_pylist()
    assert {len(row["entry_ids"]) for row in rows} == {1}
    assert exchange(first, OWNER, secret, held, now=NOW).shared_entries == 0, "the rest waits for an hour"
    done = exchange(second, OWNER, secret, held, now=NOW)
    assert set(done.delivered_entries.values()) == {1}
    authors = len(shared(homes[0]) | shared(homes[1]))
    assert done.waiting_parcels == sum(authors - (golem in shared(homes[1]).values()) - 1 for golem in done.members)
    assert exchange(second, OWNER, secret, held, now=NOW).delivered_entries == {}


def test_warnings_are_exempt_from_the_limits(homes: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (DerivationContext.open(root) for root in homes)
    secret, held = read_clade_secret(first.home, OWNER), HeldRelay()
    monkeypatch.setattr(second, "policy", Policy(clade=CladePolicy(hour_in=1, hour_source=1)))
    ((golem_id, (birth, _)), *_) = sorted(births_of(first).items())
    parcels = {}
    for sign in (1, -1):
        parcels[sign] = pack_parcel(
            grimoire(*(claim(when, sign) for when in (STORM, SQUALL, GALE))), golem_id, birth, cycle=3, at=LATELY,
            left_out=LeftOut(), derivation_id=first.derivation_id, policy=first.policy,
        )  # fmt: skip
        assert is_urgent(parcels[sign]) == (sign < 0)
        held.put(secret.message_id(parcels[sign].bundle_hash), secret.encrypt(pack_archive(parcels[sign])))
    done = exchange(second, OWNER, secret, held, now=NOW)
    assert done.refused == ()
    members = set(done.members)
    assert {golem for golem, parcel in receipts(homes[1]) if parcel == parcels[-1].bundle_hash} == members
    assert not {golem for golem, parcel in receipts(homes[1]) if parcel == parcels[1].bundle_hash}
    assert done.waiting_parcels >= len(members)


@pytest.mark.row("KAT-9")
@pytest.mark.parametrize(("days", "paid"), [(6, None), (8, None), (8, 9)])
def test_a_parcel_waits_seven_days_or_as_paid_for_a_sibling(
    homes: tuple[Path, Path], days: int, paid: int | None
) -> None:
    first, second = (DerivationContext.open(root) for root in homes)
    secret, held = read_clade_secret(first.home, OWNER), HeldRelay()
    ((golem_id, (birth, _)), *_) = sorted(births_of(first).items())
    parcel = pack_parcel(
        grimoire(claim(STORM, 1)), golem_id, birth, cycle=3, at=LATELY - timedelta(days=days), left_out=LeftOut(),
        derivation_id=first.derivation_id, policy=first.policy, kept=paid,
    )  # fmt: skip
    held.put(secret.message_id(parcel.bundle_hash), secret.encrypt(pack_archive(parcel)))
    done = exchange(second, OWNER, secret, held, now=NOW)
    received = {golem for golem, content_hash in receipts(homes[1]) if content_hash == parcel.bundle_hash}
    assert received == (set(done.members) if days < (paid or 7) else set())
