"""Scars, shifts of regime and last reflections travel to the siblings of another home, and reach their ticks."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.compute as pc
import pytest

from bardo_pipeline.api import search_texts
from bardo_pipeline.client import Client
from bardo_pipeline.client.relay_client import RelayClient
from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.derivation.clade.clade_exchange import exchange
from bardo_pipeline.derivation.clade.clade_notes import notes_received
from bardo_pipeline.derivation.configuration import record_configuration
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.legacy.bundle_archives import pack_archive
from bardo_pipeline.derivation.legacy.bundle_store import published_bundles
from bardo_pipeline.events.custody.clade_secret import CladeSecret
from bardo_pipeline.events.life.retractions import LeftOut
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS
from bardo_pipeline.heartbeat.fleet import Founding, born
from bardo_pipeline.inheritance.clade_note import Reflection, Scar
from bardo_pipeline.inheritance.clade_parcel import pack_parcel
from bardo_pipeline.policy import Policy
from bardo_pipeline.policy.toml_config import parse
from bardo_pipeline.runtime.run_settings import COMMIT_CHUNKS
from bardo_pipeline.storage.keys.clade_secrets import write_clade_secret
from tests.conftest import NOW
from tests.support.homes.served_homes import served
from tests.support.homes.story_of_g9b2d import FIRST, SECOND, THIRD, story_home
from tests.support.knowledge.handmade_grimoires import grimoire
from tests.support.knowledge.received_knowledge import claim
from tests.support.processes.bardo_command import ROOT, bardo
from tests.support.processes.clade_homes import ENABLED, OWNER, HeldRelay, made
from tests.support.processes.relays import relay

SECRET = b"n" * 32
LIVES = ("--bars", "1500")
TICK_SECONDS = 15
"""Tick interval of INH S6.2: 50 ticks take 12.5 minutes."""


def priors(root: Path) -> Iterator[str]:
    """Yield the id of each scar of another golem that a tick retrieved."""
    rows = DerivationContext.open(root).log.read_cycles(["golem_id", "retrieval"]).to_pylist()
    for row in rows:
        for prior in (row["retrieval"] or {}).get("priors") or []:
            if prior["kind"] == "scar" and not prior["prior_id"].startswith(f"scar-{row['golem_id']}-"):
                yield prior["prior_id"]


def threats(root: Path) -> list[tuple[float | None, float | None]]:
    """Return the value of the probe of threats, and its part of the surprise, of each record."""
    rows = DerivationContext.open(root).log.read_cycles(["probe_results", "prediction_error_sources"]).to_pylist()
    return [
        (probe["value"], row["prediction_error_sources"]["threat"])
        for row in rows
        for probe in row["probe_results"]
        if probe["probe"] == "pheromone_threat"
    ]


def told_scars(root: Path) -> dict[str, Scar]:
    """Return the scars among the received notes by scar id."""
    facts = (heard.note.facts for heard in notes_received(DerivationContext.open(root), OWNER))
    return {scar.failure["scar_id"]: scar for scar in facts if isinstance(scar, Scar)}


def put_all(url: str, secret: bytes, held: HeldRelay) -> None:
    opened = CladeSecret(secret)
    with RelayClient(url, opened.topic, opened.token) as topic:
        for message in held.messages:
            topic.put(message.message_id, message.body)


@pytest.mark.full
@pytest.mark.row("KAT-3", "HB-26")
def test_scars_of_a_life_reach_the_ticks_of_another_home(tmp_path: Path) -> None:
    first = made(tmp_path / "first", *LIVES, "--seed", "7", secret=SECRET)
    context, held = DerivationContext.open(first), HeldRelay()
    scars = {row["scar_id"]: row for row in context.projections.replaceable("scars").read().to_pylist()}
    done = exchange(context, OWNER, CladeSecret(SECRET), held, now=NOW)
    assert set(told_scars(first)) == set(scars)
    assert done.told_notes == done.received_notes >= len(scars) > 0
    assert "residual_digest" in {heard.note.about for heard in notes_received(context, OWNER)}
    assert exchange(context, OWNER, CladeSecret(SECRET), held, now=NOW).told_notes == 0
    with relay(tmp_path / "relay.db") as (url, _):
        put_all(url, SECRET, held)
        second = made(tmp_path / "second", *LIVES, "--seed", "9", secret=SECRET, BARDO_RELAY=url)
    assert set(priors(second)) & set(scars)
    heard = [(value, part) for value, part in threats(second) if value is not None]
    assert heard
    assert all(0.0 <= value <= 1.0 for value, _ in heard)
    weight = context.policy.gate.threat_weight
    assert all(part == pytest.approx(weight * value) for value, part in heard)
    assert len(heard) < len(threats(second)), "before the first note there is no threat"
    assert all(value is None and part is None for value, part in threats(first)), "no sibling told them anything"
    assert not list(priors(first))
    assert "clean" in bardo("verify", home=second)


@pytest.mark.row("KAT-9")
def test_warnings_of_a_sibling_reach_the_next_probes_and_no_context(tmp_path: Path) -> None:
    policy, sent = Policy(), datetime(2026, 1, 1, 1, tzinfo=UTC)
    founding = Founding((OWNER,))
    _, birth = born(
        lineage_id="far", generation=0, owner_id=OWNER, founding=founding, market="m", market_hash="h",
        derivation_id="d", policy=policy,
    )  # fmt: skip
    place = ("pattern", "synthetic", "uniswap_v3", "WETH/USDC", "uniswap_v3_rebalance", "rebalance", "volatile")
    warnings = grimoire(*(claim(Structure(*place, band, "normal"), -1) for band in ANOMALY_BANDS[2:]))
    parcel = pack_parcel(
        warnings, "g-far", birth, cycle=1, at=sent, left_out=LeftOut(), derivation_id="d", policy=policy
    )
    secret = CladeSecret(SECRET)
    with relay(tmp_path / "relay.db") as (url, _):
        with RelayClient(url, secret.topic, secret.token) as topic:
            topic.put(secret.message_id(parcel.bundle_hash), secret.encrypt(pack_archive(parcel)))
        root = made(tmp_path / "home", "--seed", "2", "--bars", "500", secret=SECRET, BARDO_RELAY=url)
    context = DerivationContext.open(root)
    columns = ["golem_id", "tick", "observed_at", "probe_results", "retrieved_entries"]
    rows = [
        row | {"threat": probe}
        for row in context.log.read_cycles(columns).to_pylist()
        for probe in row["probe_results"]
        if probe["probe"] == "pheromone_threat"
    ]
    heard = COMMIT_CHUNKS * policy.curator.cycle_ticks
    assert {row["tick"] > heard for row in rows if row["threat"]["value"] is not None} == {True}
    trusted = policy.reception.import_confidence
    assert max(parcel.entries()["confidence_ppm"].to_pylist()) > 1e6 * trusted
    for row in rows:
        if row["tick"] > heard:
            days = (row["observed_at"] - sent).total_seconds() / 86_400
            assert row["threat"]["value"] == pytest.approx(trusted * 0.5**days)
            assert row["threat"]["severity"] == "low"
    told = context.projections.growing("curation").read(["entry_id", "reason", "status"])
    told = told.filter(pc.ends_with(told["reason"], "clade from g-far"))
    assert told.num_rows
    recalled = {entry["entry_id"] for row in rows for entry in row["retrieved_entries"]}
    assert not recalled & set(told["entry_id"].to_pylist()), "a warning waits in quarantine"


@pytest.mark.row("KAT-12")
def test_the_scars_of_g9b2d_travel_to_another_home(tmp_path: Path) -> None:
    context = story_home(tmp_path / "story")
    record_configuration(context, parse(ENABLED, "bardo.toml"), now=NOW, why="a test")
    write_clade_secret(context.home, OWNER, SECRET)
    other = made(tmp_path / "other", "--seed", "2", "--bars", "100", secret=SECRET)
    with relay(tmp_path / "relay.db") as (url, _):
        bardo("clade", "sync", OWNER, "--relay", url, home=context.home.root)
        bardo("clade", "sync", OWNER, "--relay", url, home=other)
    scars = told_scars(other)
    at_death = {name: scar.death.tick for name, scar in scars.items() if scar.death is not None}
    assert sorted(scars[name].failure["tick"] for name in at_death if SECOND in name) == [287, 296, 309]
    assert set(at_death.values()) == {312}
    assert f"scar-{SECOND}-1" in scars, "the first scar was published in life"
    assert scars[f"scar-{SECOND}-1"].death is None
    heard = DerivationContext.open(other)
    bundles = {
        heard_note.note.from_golem_id: heard_note.note.facts.bundle_hash
        for heard_note in notes_received(heard, OWNER)
        if isinstance(heard_note.note.facts, Reflection)
    }
    assert bundles == published_bundles(context)
    assert set(bundles) == {FIRST, SECOND}
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("relay.db*"))
    texts = [scar.failure["causal_narrative"] for scar in scars.values()]
    assert not any(canary.encode() in stored for canary in (FIRST, SECOND, OWNER, "golem_id", "WETH", *texts))
    found = search_texts(other, "what worked, what failed", sorts=("episode",)).hits
    assert {hit.stored["tags"][1] for hit in found} == {FIRST, SECOND}


@pytest.mark.full
def test_a_watching_home_hears_a_scar_within_three_ticks(tmp_path: Path) -> None:
    context, held = story_home(tmp_path / "story"), HeldRelay()
    record_configuration(context, parse(ENABLED, "bardo.toml"), now=NOW, why="a test")
    exchange(context, OWNER, CladeSecret(SECRET), held, now=NOW)
    other = made(tmp_path / "watching", "--seed", "2", "--bars", "100", secret=SECRET)
    with relay(tmp_path / "relay.db") as (url, _):
        words = [sys.executable, "-m", "bardo_pipeline.cli.app", "clade", "sync", OWNER, "--relay", url, "--watch"]
        environment = {"BARDO_HOME": str(other), "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
        watching = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)
        try:
            assert watching.stdout is not None
            assert watching.stdout.readline(), "the first exchange"
            put_all(url, SECRET, held)
            began = time.monotonic()
            while not told_scars(other):
                assert time.monotonic() - began < 3 * TICK_SECONDS
                time.sleep(0.5)
        finally:
            watching.kill()
            watching.wait()
    rows = json.loads(bardo("clade", "notes", "--json", home=other))
    assert {row["about"] for row in rows} >= {"scar"}
    assert all(row["text"] for row in rows)


def test_a_server_exchanges_for_the_owners_of_its_home(tmp_path: Path) -> None:
    context, held = story_home(tmp_path / "story"), HeldRelay()
    record_configuration(context, parse(ENABLED, "bardo.toml"), now=NOW, why="a test")
    exchange(context, OWNER, CladeSecret(SECRET), held, now=NOW)
    other = made(tmp_path / "served", "--seed", "2", "--bars", "100", secret=SECRET)
    with relay(tmp_path / "relay.db") as (url, _):
        put_all(url, SECRET, held)
        with served(other, BARDO_RELAY=url) as server, Client(home=other, timeout_seconds=60) as client:
            began = time.monotonic()
            while not {FIRST, SECOND, THIRD} <= {row["from_golem_id"] for row in client.report("clade-notes")["rows"]}:
                assert time.monotonic() - began < 60, server.url
                time.sleep(0.5)
