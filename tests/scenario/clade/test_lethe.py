"""Golems of strangers vote and warn each other through a relay's public board, which does not learn their authors."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path

import httpx
import pytest

from bardo_pipeline.client.lethe_client import BoardPost, LetheClient
from bardo_pipeline.derivation.clade.lethe_exchange import LetheExchange, exchange_posts
from bardo_pipeline.derivation.clade.lethe_posts import due_posts, lethe_golems
from bardo_pipeline.derivation.clade.styx_budget import able_to_pay, styx_spending
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.received_posts import posts_received
from bardo_pipeline.errors import ServerError
from bardo_pipeline.events.custody.clade_secret import CladeSecret
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS, GAS_BANDS
from bardo_pipeline.katabasis.public_posts import Belief, Pheromone
from bardo_pipeline.relay.ticket_office import Quota
from bardo_pipeline.runtime.run_settings import COMMIT_CHUNKS
from tests.conftest import NOW, one_at_a_time
from tests.support.processes.bardo_command import bardo
from tests.support.processes.clade_homes import OWNER, made
from tests.support.processes.public_boards import HeldBoard, belief, pheromone, put, stored_bytes
from tests.support.processes.relays import relay

SECRET, STRANGER, LIAR = CladeSecret(b"o" * 32), CladeSecret(b"s" * 32), CladeSecret(b"l" * 32)
ON = "[styx]\nlethe_enabled = true\n"
STEP = timedelta(minutes=19)
LATELY = datetime(2026, 1, 1, 1, tzinfo=UTC)


def lived(root: Path, *words: str, configuration: str = ON, **variables: str) -> Path:
    return made(root, "--seed", "3", *words, secret=b"o" * 32, configuration=configuration, **variables)


def everywhere(**changes: object) -> list[Belief]:
    """Return one vote of each of three strangers on each situation of re-centring."""
    places = product(REGIMES, ANOMALY_BANDS, GAS_BANDS, "abc")
    return [
        belief(f"{voter}{regime}{band}{gas}", regime=regime, anomaly_band=band, gas_band=gas, **changes)
        for regime, band, gas, voter in places
    ]


def registry(folder: Path, *secrets: CladeSecret) -> Path:
    path = folder / "registry.json"
    path.write_text(json.dumps({secret.identity_name: 60 for secret in secrets}))
    return path


def retrieved(root: Path) -> Counter[int]:
    """Return how many propositions each deliberating tick retrieved."""
    rows = DerivationContext.open(root).log.read_cycles(["golem_id", "tick", "retrieval"]).to_pylist()
    return Counter(
        row["tick"]
        for row in rows
        for prior in (row["retrieval"] or {}).get("priors") or []
        if prior["kind"] == "proposition"
    )


def sent(context: DerivationContext, board: HeldBoard) -> list[LetheExchange]:
    """Exchange at three moments of each hour until no post waits."""
    done = []
    for step in range(400):
        done.append(exchange_posts(context, OWNER, SECRET, board, now=NOW + step * STEP))
        if not done[-1].waiting_posts:
            return done
    raise AssertionError("posts wait for ever")


@pytest.fixture(scope="module")
def voters(session_folder: Path) -> Path:
    """A home whose golems voted. Copy before writing."""
    root = session_folder / "lethe-voters"
    with one_at_a_time(session_folder / "lethe.lock"):
        if not (session_folder / "lethe-done").exists():
            shutil.rmtree(root, ignore_errors=True)
            lived(root, "--bars", "1500")
            (session_folder / "lethe-done").touch()
    return root


@pytest.fixture
def home(voters: Path, tmp_path: Path) -> DerivationContext:
    return DerivationContext.open(Path(shutil.copytree(voters, tmp_path / "home")))


@pytest.mark.full
@pytest.mark.row("KAT-7", "KAT-11")
def test_votes_and_threats_of_strangers_reach_the_ticks_of_a_run(tmp_path: Path) -> None:
    with relay(tmp_path / "relay.db", registry=registry(tmp_path, STRANGER)) as (url, _):
        put(LetheClient(url), STRANGER, [*everywhere(), pheromone(0.8, LATELY)])
        root = lived(tmp_path / "home", "--bars", "900", BARDO_RELAY=url)
    alone = lived(tmp_path / "alone", "--bars", "900")
    heard = COMMIT_CHUNKS * 50
    assert min(retrieved(root)) > heard, "a golem retrieves what it received, not before"
    assert not retrieved(alone)
    context = DerivationContext.open(root)
    columns = ["tick", "observed_at", "probe_results"]
    for row in context.log.read_cycles(columns).to_pylist():
        value = next(p["value"] for p in row["probe_results"] if p["probe"] == "pheromone_threat")
        if row["tick"] <= heard:
            assert value is None
        else:
            days = (row["observed_at"] - LATELY).total_seconds() / 86_400
            assert value == pytest.approx(context.policy.reception.import_confidence * 0.5**days)
    beliefs = json.loads(bardo("clade", "beliefs", "--json", home=root))
    assert {row["vote_count"] for row in beliefs} == {3}
    assert all(row["quorum_met"] and not row["contradicted"] for row in beliefs)
    (field,) = json.loads(bardo("clade", "pheromones", "--json", home=root))
    assert (field["sort"], field["deposit_count"]) == ("threat", 1)
    assert "clean" in bardo("verify", home=root)


@pytest.mark.row("KAT-4")
def test_votes_of_a_home_come_back_once_and_name_nobody(home: DerivationContext, tmp_path: Path) -> None:
    board = HeldBoard(tmp_path, SECRET)
    done = sent(home, board)
    assert len([one for one in done if one.sent_posts]) > 4, "posts leave in batches, not at once"
    assert {len(request.blinded) for request in board.requests} == {home.policy.clade.lethe_tickets}
    assert sum(one.sent_posts for one in done) == sum(one.received_posts for one in done) == len(board.posts) > 0
    assert exchange_posts(home, OWNER, SECRET, board, now=NOW).sent_posts == 0
    heard = [post for one in posts_received(home, OWNER) for post in one.posts]
    assert sorted(post.content.decode() for post in heard) == sorted(post.content for post in board.posts)
    golems = home.golem_ids()
    wire = "".join(post.content for post in board.posts) + str([request.document for request in board.requests])
    assert not any(name in wire for name in (OWNER, *golems, "owner", "golem"))
    ids = {facts.voter_id for facts in (post.facts for post in heard) if isinstance(facts, Belief)}
    votes = home.projections.growing("votes").read(["voter_id"])["voter_id"].to_pylist()
    assert not ids & set(votes), "the voter id of the log can be guessed from known names"
    kinds = {type(post.facts) for post in heard}
    assert kinds == {Belief, Pheromone}
    steps = [facts.confidence_ppm for facts in (post.facts for post in heard) if isinstance(facts, Belief)]
    assert all(step % 50_000 == 0 for step in steps)


@pytest.mark.full
def test_a_home_that_exchanges_every_two_hours_posts(home: DerivationContext, tmp_path: Path) -> None:
    board = HeldBoard(tmp_path, SECRET)
    times = [NOW + number * timedelta(minutes=130) for number in range(24)]
    done = [exchange_posts(home, OWNER, SECRET, board, now=at) for at in times]
    assert sum(one.sent_posts for one in done) > 0
    assert len(board.requests) == 2 * len(times) // 2, "two purposes, in every second exchange"


@pytest.mark.row("KAT-6")
def test_voters_of_two_owners_with_the_same_golems_have_other_names(home: DerivationContext) -> None:
    members = lethe_golems(home, OWNER)
    names = [
        {facts.voter_id for facts in (post.facts for post in due.posts.values()) if isinstance(facts, Belief)}
        for due in (due_posts(home, OWNER, members, secret.lethe_key, ()) for secret in (SECRET, STRANGER))
    ]
    assert all(names)
    assert not names[0] & names[1]


@pytest.mark.full
def test_lost_files_and_lost_answers_double_nothing(home: DerivationContext, tmp_path: Path) -> None:
    class Losing(HeldBoard):
        """A board whose every second answer is lost."""

        calls = 0

        def post(self, *given: object) -> int:  # type: ignore[override]
            number = super().post(*given)  # type: ignore[arg-type]
            self.calls += 1
            if self.calls % 2:
                raise ServerError(502, "RelayError", "the answer is lost", None)
            return number

    board = Losing(tmp_path, SECRET)
    for step in range(400):
        for path in (home.home.root / "clade").rglob("*"):
            if path.is_file() and step % 5 == 0:
                path.unlink()
        try:
            if not exchange_posts(home, OWNER, SECRET, board, now=NOW + step * STEP).waiting_posts:
                break
        except ServerError:
            continue
    heard = [post.content.decode() for one in posts_received(home, OWNER) for post in one.posts]
    assert sorted(heard) == sorted(set(heard)) == sorted(post.content for post in board.posts)


@pytest.mark.row("KAT-4")
def test_a_hostile_board_adds_nothing_and_stops_nothing(home: DerivationContext, tmp_path: Path) -> None:
    board, other = HeldBoard(tmp_path, SECRET, STRANGER), HeldBoard(tmp_path / "..", STRANGER)
    (genuine,) = put(board, STRANGER, [belief("a")])
    (foreign,) = put(other, STRANGER, [belief("b")])
    content, number = genuine.content.decode(), board.posts[0].signature
    altered = content.replace('"sign":-1', '"sign":1')
    board.posts += [
        BoardPost(2, "living", altered, number),
        BoardPost(3, "death", content, number),
        BoardPost(4, "living", foreign.content.decode(), other.posts[0].signature),
        BoardPost(5, "living", "{" * 400, 7),
        BoardPost(6, "living", content + " ", number),
    ]
    done = exchange_posts(home, OWNER, SECRET, board, now=NOW)
    assert done.received_posts >= 1
    assert [place for place, _ in done.refused] == [2, 3, 4, 5, 6]
    heard = {post.content for one in posts_received(home, OWNER) for post in one.posts}
    assert genuine.content in heard
    assert foreign.content not in heard


@pytest.mark.row("KAT-4")
def test_authors_without_a_score_and_beyond_the_quota_are_refused(tmp_path: Path) -> None:
    board = HeldBoard(tmp_path, STRANGER, quota=Quota(living=3, death=2))
    with pytest.raises(ServerError, match="score below 50") as refused:
        put(board, LIAR, [belief("a")])
    assert refused.value.status == 403
    put(board, STRANGER, [belief("a"), belief("b"), belief("c")])
    put(board, STRANGER, [belief("a")])
    with pytest.raises(ServerError, match="3 living signatures a day"):
        put(board, STRANGER, [belief("d")])
    put(board, STRANGER, [belief("x", is_death_vote=True), belief("y", is_death_vote=True)])
    with pytest.raises(ServerError, match="2 death signatures"):
        put(board, STRANGER, [belief("z", is_death_vote=True)])


def test_a_relay_refuses_posts_that_it_did_not_sign(tmp_path: Path) -> None:
    with relay(tmp_path / "relay.db", registry=registry(tmp_path, STRANGER), by_command=True) as (url, _):
        (post,) = put(LetheClient(url), STRANGER, [belief("a")])
        forged = {"purpose": "death", "content": post.content.decode(), "signature": "7"}
        for place, body, status in (
            (f"posts/{'0' * 64}", forged, 400), (f"posts/{post.post_id}", {"purpose": "living"}, 400),
            (f"posts/{post.post_id}", {**forged, "purpose": "living"}, 403), ("posts/zz", forged, 400),
        ):  # fmt: skip
            assert httpx.put(f"{url}/v1/lethe/{place}", json=body).status_code == status, place
        empty = {"identity": "0" * 64, "purpose": "living", "blinded": [], "signature": ""}
        for request in ({}, {"identity": 1}, empty):
            assert httpx.post(f"{url}/v1/lethe/tickets", json=request).status_code == 400
        posts, newest = LetheClient(url).after(0)
        assert ([one.content for one in posts], newest) == ([post.content.decode()], 1)
    with relay(tmp_path / "closed.db") as (url, _), pytest.raises(ServerError, match="no registry"):
        LetheClient(url).keys()
    stored = stored_bytes(tmp_path / "relay.db")
    assert STRANGER.identity_name.encode() in stored, "tickets are counted by identity"


@pytest.mark.row("MEM-15")
def test_a_query_beyond_a_budget_is_not_asked(home: DerivationContext, tmp_path: Path) -> None:
    board = HeldBoard(tmp_path, SECRET, STRANGER)
    golems = exchange_posts(home, OWNER, SECRET, board, now=NOW).members
    price = home.policy.clade.query_micros
    for number in range(10_000 // price):
        assert styx_spending(home, golems)[golems[0]].tick == number * price
        put(board, STRANGER, [belief(str(number))])
        assert exchange_posts(home, OWNER, SECRET, board, now=NOW).received_posts == 1
    assert able_to_pay(home, golems, price) == []
    assert len(able_to_pay(home, golems, 0)) == len(golems)
    put(board, STRANGER, [belief("one more")])
    assert exchange_posts(home, OWNER, SECRET, board, now=NOW).received_posts == 0


@pytest.mark.full
def test_a_golem_lives_the_same_life_without_a_board(tmp_path: Path) -> None:
    def records(root: Path) -> list[dict[str, object]]:
        columns = [name for name in RECORD_SCHEMA.names if name != "recorded_at"]
        rows = DerivationContext.open(root).log.read_cycles(columns).to_pylist()
        return sorted(rows, key=lambda row: (row["golem_id"], row["tick"]))

    off = records(lived(tmp_path / "off", "--bars", "400", configuration=""))
    assert off
    for name, address in (("on", ""), ("unreachable", "http://127.0.0.1:9")):
        variables = {"BARDO_RELAY": address} if address else {}
        assert records(lived(tmp_path / name, "--bars", "400", **variables)) == off
