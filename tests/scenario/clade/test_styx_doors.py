"""One door writes an entry to the layers that its golem opened; one asks all of them, within the golem's budgets."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from bardo_pipeline.client import AsyncClient, Client
from bardo_pipeline.derivation.clade.clade_exchange import exchange
from bardo_pipeline.derivation.clade.clade_notes import notes_received
from bardo_pipeline.derivation.clade.lethe_exchange import exchange_posts
from bardo_pipeline.derivation.clade.styx_budget import styx_spending
from bardo_pipeline.derivation.clade.styx_doors import OVER_BUDGET, WrittenWords, open_query, write_entry
from bardo_pipeline.derivation.clade.styx_layers import found_in
from bardo_pipeline.derivation.configuration import record_configuration
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.record_overrides import grimoire_of
from bardo_pipeline.derivation.event_stream.sources import Place
from bardo_pipeline.derivation.event_stream.watch import Fabric
from bardo_pipeline.derivation.legacy.bundle_archives import unpack_archive
from bardo_pipeline.derivation.legacy.bundle_store import load_bundle
from bardo_pipeline.derivation.succession.birth_events import record_founder
from bardo_pipeline.errors import QueryError, ServerError
from bardo_pipeline.events.custody.clade_secret import CladeSecret
from bardo_pipeline.events.experience.stored_text import stored_text
from bardo_pipeline.events.life.events import Withdrawn, life_event
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA
from bardo_pipeline.heartbeat.fleet import Founding
from bardo_pipeline.inheritance.bundle_files import ENTRIES, EPISODES
from bardo_pipeline.inheritance.bundle_inspection import inspected
from bardo_pipeline.inheritance.clade_note import Snapshot, read_note
from bardo_pipeline.inheritance.clade_parcel import kept_days
from bardo_pipeline.policy.toml_config import parse
from tests.conftest import NOW, one_at_a_time
from tests.support.homes.served_homes import served
from tests.support.processes.clade_homes import OWNER, HeldRelay, made
from tests.support.processes.public_boards import HeldBoard, belief, pheromone, put

SECRET, STRANGER = CladeSecret(b"d" * 32), CladeSecret(b"s" * 32)
ON = "[styx]\nvault_enabled = true\nclade_enabled = true\nlethe_enabled = true\n"
STOPS = "the bridge of chain nine stops at night"
QUESTION = "does the bridge of chain nine stop at night?"
WARNING = WrittenWords("warning", STOPS, 0.5)


@pytest.fixture(scope="module")
def lived(session_folder: Path) -> Path:
    """A home with dead golems and living heirs whose layers are open. Copy before writing."""
    root = session_folder / "styx-doors"
    with one_at_a_time(session_folder / "styx.lock"):
        if not (session_folder / "styx-done").exists():
            shutil.rmtree(root, ignore_errors=True)
            made(root, "--seed", "3", "--bars", "450", "--lifespan", "200-210", secret=b"d" * 32, configuration=ON)
            (session_folder / "styx-done").touch()
    return root


@pytest.fixture
def home(lived: Path, tmp_path: Path) -> Iterator[DerivationContext]:
    context = DerivationContext.open(Path(shutil.copytree(lived, tmp_path / "home")))
    yield context
    context.log.close()


def living(context: DerivationContext) -> list[str]:
    dead = set(context.life("DeathDeclared")["golem_id"].to_pylist())
    return sorted(set(context.golem_ids()) - dead)


def asked(context: DerivationContext, golem_id: str, question: str = QUESTION, **wanted: Any) -> dict[str, Any]:
    wanted = {"count": 8, "confidence_min": 0.0} | wanted
    query = open_query(context, golem_id, question, now=NOW, **wanted)
    parts = [found_in(context, layer, query.question, archives=query.archives, now=NOW) for layer in query.layers]
    return query.document([found for part in parts for found in part])


def configure(context: DerivationContext, content: str) -> None:
    """Record a configuration after that of the run, which holds for golems without a run."""
    record_configuration(context, parse(content, "bardo.toml"), now=NOW + timedelta(days=3_650), why="a test")


def reasons(receipt: dict[str, Any]) -> dict[str, str | None]:
    return {layer["layer"]: layer["reason"] for layer in receipt["layers"]}


@pytest.mark.row("KAT-13", "INH-6")
def test_a_runtime_writes_and_asks_through_the_two_doors_of_a_server(home: DerivationContext, tmp_path: Path) -> None:
    writer, *_ = living(home)
    held, board = HeldRelay(), HeldBoard(tmp_path, SECRET, STRANGER)
    votes = [belief(voter, regime="volatile") for voter in "abc"]
    newest = max(home.log.read_cycles(["observed_at"])["observed_at"].to_pylist())
    put(board, STRANGER, [*votes, pheromone(0.9, newest)])
    limits = home.policy.clade
    with served(home.home.root, OWNER, "stranger") as server:
        token = server.tokens[OWNER]
        with Client(server.url, token, golem="runtime-1", timeout_seconds=60) as client:
            client.birth(owner=OWNER, at=newest)
            receipt = client.write_styx(golem=writer, kind="warning", text=STOPS, confidence=0.5, kept_days=30)
            assert reasons(receipt).keys() == {"vault", "clade", "lethe"}
            assert [name for name, reason in reasons(receipt).items() if reason is None] == ["vault", "clade"]
            assert receipt["cost_micros"] == 30 * limits.write_day_micros
            before = client.query_styx(QUESTION)
            assert STOPS not in [found["text"] for found in before["results"]], "the relay has not carried it"
            exchange(home, OWNER, SECRET, held, now=NOW)
            exchange_posts(home, OWNER, SECRET, board, now=NOW)
            after = client.query_styx(QUESTION, k=50)
            best = after["results"][0]
            assert (best["text"], best["layer"], best["golem_id"]) == (STOPS, "clade", writer)
            assert best["trust"] == limits.query_confidence < best["confidence"] <= 0.5
            scores = [found["score"] for found in after["results"]]
            assert scores == sorted(scores, reverse=True)
            assert [found["rank"] for found in after["results"]] == list(range(1, len(scores) + 1))
            deposits = [event for event in Fabric(home, {"social"}).behind(Place()) if "pheromone" in event.name]
            assert {(event.golem_id, event.payload.model_dump()["intensity"]) for event in deposits} == {
                (golem_id, 0.9) for golem_id in [*living(home), "runtime-1"]
            }
            public = {found["kind"]: found for found in after["results"] if found["layer"] == "lethe"}
            assert public.keys() == {"proposition", "threat"}
            assert {found["trust"] for found in public.values()} == {limits.lethe_confidence}
            assert all(found["golem_id"] is None for found in public.values())
            left = [found for found in after["results"] if found["layer"] == "vault"]
            assert left, "the entries of dead siblings"
            assert max(found["trust"] for found in left) <= limits.archive_confidence
            alone, warned = (client.warnings_for("bridge", clade=clade) for clade in (False, True))
            assert (alone["warnings"], alone["siblings_left_out"]) == ([], "the request leaves them out")
            assert [(one["text"], one["layer"]) for one in warned["warnings"]] == [(STOPS, "clade")]
            assert (warned["siblings_left_out"], warned["cost_micros"]) == (None, limits.query_micros)
            own = client.query_styx("gas", golem=writer, layer="vault", k=20)
            assert own["cost_micros"] == 0
            assert any(found["trust"] == found["confidence"] > 0.5 for found in own["results"])
            with pytest.raises(ServerError, match="either an entry, or kind, text and confidence"):
                client.write_styx(kind="warning")

        async def found() -> dict[str, Any]:
            async with AsyncClient(server.url, token, golem="runtime-1", timeout_seconds=60) as far:
                return await far.query_styx(QUESTION, layer="clade", k=1)

        assert [one["text"] for one in asyncio.run(found())["results"]] == [STOPS]
        with Client(server.url, server.tokens[None], timeout_seconds=60) as operator:
            operator.birth("other-1", owner="stranger")
        with Client(server.url, server.tokens["stranger"], golem=writer, timeout_seconds=60) as other:
            for call in (lambda: other.query_styx(QUESTION), lambda: other.write_styx(
                kind="warning", text="mine", confidence=1.0)):  # fmt: skip
                with pytest.raises(ServerError) as refused:
                    call()
                assert refused.value.status == 404
    calls = home.life_fields("StyxCalled", "number", "layers", "cost_micros").to_pylist()
    assert [call["cost_micros"] for call in calls if call["golem_id"] == "runtime-1"] == [limits.query_micros] * 4
    assert styx_spending(home, [writer])[writer].tick == 30 * limits.write_day_micros + limits.query_micros, (
        "and the posts"
    )


@pytest.mark.row("KAT-13")
def test_a_golem_whose_layers_are_off_asks_its_own_memory_and_leaves_no_event(home: DerivationContext) -> None:
    writer, *_ = living(home)
    configure(home, "")
    birth(home, "alone")
    write_entry(home, writer, WARNING, kept_days=30, now=NOW)
    exchange(home, OWNER, SECRET, HeldRelay(), now=NOW)
    events = home.log.life_version
    answer = asked(home, "alone")
    shut = {layer: f"styx.{layer}_enabled is off" for layer in ("clade", "lethe")}
    assert reasons(answer) == {"vault": None, **shut}
    assert answer["cost_micros"] == 0
    assert answer["results"] == []
    receipt = write_entry(home, "alone", WARNING, kept_days=30, now=NOW)
    assert not any(layer.is_reached for layer in receipt.layers)
    assert home.log.life_version == events


def birth(context: DerivationContext, golem_id: str) -> None:
    record_founder(context, golem_id, owner_id=OWNER, lineage_id=golem_id, founding=Founding((OWNER,)), market="-",
                   at=NOW, now=NOW, door="home")  # fmt: skip


@pytest.mark.row("KAT-13", "MEM-15")
def test_a_call_beyond_a_budget_is_not_made(home: DerivationContext) -> None:
    price = home.policy.clade.query_micros
    configure(home, f"{ON}\n[styx.budget]\nmax_per_tick_usd = {3.5 * price / 1e6}\n")
    birth(home, "frugal")
    for _ in range(3):
        assert asked(home, "frugal")["cost_micros"] == price
    over = asked(home, "frugal")
    assert reasons(over) == {"vault": None, "clade": OVER_BUDGET, "lethe": OVER_BUDGET}
    assert over["cost_micros"] == 0
    receipt = write_entry(home, "frugal", WARNING, kept_days=30, now=NOW)
    assert {layer.reason for layer in receipt.layers if layer.layer != "lethe"} == {OVER_BUDGET}
    assert styx_spending(home, ["frugal"])["frugal"].month == 3 * price
    assert write_entry(home, "frugal", WARNING, kept_days=10, now=NOW).cost_micros == price // 2


@pytest.mark.row("KAT-13")
def test_payment_sets_the_time_of_an_entry_and_never_its_decay(home: DerivationContext) -> None:
    writer, reader, *_ = living(home)
    short, long = (WrittenWords("warning", f"{STOPS} {word}", 0.8) for word in ("briefly", "for long"))
    for entry, days in ((short, 2), (long, 200)):
        assert write_entry(home, writer, entry, kept_days=days, now=NOW).is_new
    again = write_entry(home, writer, long, kept_days=200, now=NOW)
    assert (again.is_new, again.cost_micros) == (False, 0)
    held = HeldRelay()
    exchange(home, OWNER, SECRET, held, now=NOW)
    assert sorted(days for days in held.days.values() if days is not None) == [2, 200]

    def confidences() -> dict[str, float]:
        return {one["text"]: one["confidence"] for one in asked(home, reader, layers=("clade",))["results"]}

    now = confidences()
    assert now[short.text] == now[long.text] == pytest.approx(0.8, abs=0.01)
    pass_days(home, reader, 3)
    later = confidences()
    assert short.text not in later
    assert later[long.text] == pytest.approx(now[long.text] * 2 ** (-3 / 7), abs=0.001), "tactical: seven days"


def pass_days(context: DerivationContext, golem_id: str, days: int) -> None:
    """Record one more tick of a golem, so many days after its newest one."""
    head = context.log.head_of(golem_id).highest
    row = context.log.read_stretch(RECORD_SCHEMA.names, [golem_id], head, head).to_pylist()[0]
    row |= {"tick": head + 1, "observed_at": row["observed_at"] + timedelta(days=days)}
    context.log.append(pa.Table.from_pylist([row], RECORD_SCHEMA), writer="test", segment=0, recorded_at=NOW)


@pytest.mark.row("KAT-13")
def test_an_entry_of_the_grimoire_fans_out_by_kind_and_confidence(home: DerivationContext) -> None:
    writer, reader, *_ = living(home)
    entries = grimoire_of(home, writer).entries
    rows = entries.filter(pc.equal(entries["status"], "active")).to_pylist()
    receipts = {row["entry_id"]: write_entry(home, writer, row["entry_id"], kept_days=20, now=NOW) for row in rows}
    taken = {name: {layer.layer for layer in each.layers if layer.is_reached} for name, each in receipts.items()}
    assert {"vault", "clade", "lethe"} in taken.values()
    assert {"vault", "lethe"} in taken.values(), "an entry that no gate of the clade lets pass"
    votes = home.projections.growing("vote_causes").read(["entry_id"], golems=[writer])["entry_id"].to_pylist()
    shared = {e for row in home.life_fields("EntriesShared", "entry_ids").to_pylist() for e in row["entry_ids"]}
    for row in rows:
        assert ("clade" in taken[row["entry_id"]]) == (row["entry_id"] in shared)
        assert ("lethe" in taken[row["entry_id"]]) == (row["entry_id"] in votes)
    held = HeldRelay()
    exchange(home, OWNER, SECRET, held, now=NOW)
    (parcel, *_) = home.life_fields("EntriesShared", "bundle_hash")["bundle_hash"].to_pylist()
    assert kept_days(load_bundle(home.home, parcel)) == 20
    assert held.days[SECRET.message_id(parcel)] == 20
    with pytest.raises(QueryError, match="no entry 'nothing'"):
        write_entry(home, writer, "nothing", kept_days=1, now=NOW)
    rows = home.life_fields("EntriesShared", "entry_ids").to_pylist()
    told = {entry_id for row in rows if row["golem_id"] != reader for entry_id in row["entry_ids"]}
    found = told & told_to(home, reader)
    assert found, "parcels of siblings are found"
    (withdrawn, *_) = sorted(found)
    loss = Withdrawn(because="struck", from_golem_id=writer, tick=1, entry_ids=(withdrawn,))
    home.log.record([life_event(reader, NOW, loss)], NOW)
    assert withdrawn not in told_to(home, reader)


def told_to(context: DerivationContext, golem_id: str) -> set[str]:
    """Return the ids of what a golem finds about gas among its siblings."""
    found = asked(context, golem_id, "what does gas cost?", count=50, layers=("clade",))["results"]
    return {one["entry_id"] for one in found}


@pytest.mark.row("MEM-14")
def test_playbooks_travel_and_no_episode_cache_or_deliberation_does(home: DerivationContext) -> None:
    writer, reader, *_ = living(home)
    thought, met = "THOUGHT-OF-A-GOLEM", "EPISODE-OF-A-GOLEM"
    head = home.log.head_of(writer).highest
    row = home.log.read_stretch(RECORD_SCHEMA.names, [writer], head, head).to_pylist()[0]
    thinking = {"model": "m", "tier": "T2", "input_tokens": 1, "output_tokens": 1, "cache_read_tokens": None,
                "reasoning_summary": thought, "tool_calls": [], "decision": "hold", "confidence": 0.5,
                "latency_ms": None, "cost_micros": 0, "recommends_action": False}  # fmt: skip
    cached = {"pattern": 7, "outcomes": 424_242_424_242, "result": "hit", "wanted_tier": "T1"}
    row |= {"tick": head + 1, "observed_at": row["observed_at"] + timedelta(minutes=1), "deliberation": thinking,
            "cached_decision": cached}  # fmt: skip
    home.log.append(pa.Table.from_pylist([row], RECORD_SCHEMA), writer="test", segment=0, recorded_at=NOW)
    text = stored_text(met, sort="episode", importance="critical", tags=("note",))
    home.log.record([life_event(writer, row["observed_at"], text)], NOW)
    held = HeldRelay()
    exchange(home, OWNER, SECRET, held, now=NOW)
    plain = [SECRET.decrypt(message.body) for message in held.messages]
    for canary in (thought, met, "424242424242", "cached_decision", "reasoning_summary"):
        wire = [message.body for message in held.messages]
        assert not any(canary.encode() in content for content in plain + wire), canary
    parcels = [inspected(unpack_archive(one), home.policy.inheritance) for one in plain if not one.startswith(b"{")]
    assert parcels
    assert all(parcel.rows(EPISODES) == [] for parcel in parcels)
    assert all(set(row) <= {*ENTRY_SCHEMA.names, "selected_by", "rank"} for p in parcels for row in p.rows(ENTRIES))
    notes = [read_note(one, OWNER) for one in plain if one.startswith(b"{")]
    told = {note.from_golem_id: note.facts for note in notes if isinstance(note.facts, Snapshot)}
    assert set(told) == set(living(home))
    for golem_id, facts in told.items():
        assert facts.page == home.home.playbook(golem_id).read_text()
    assert exchange(home, OWNER, SECRET, held, now=NOW).told_notes == 0, "an unchanged playbook is no news"
    assert {n.note.from_golem_id for n in notes_received(home) if isinstance(n.note.facts, Snapshot)} == set(told)
    rules = [line for facts in told.values() for line in facts.page.splitlines() if line.startswith("- (")]
    if rules:
        texts = [rule.partition("%) ")[2] for rule in rules]
        found = {one["text"] for one in asked(home, reader, texts[0], count=50)["results"]}
        assert set(texts) & found
