"""A golem with a registered key writes through the client: its lines are signed and checked as in the spool."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bardo_pipeline import birth, open_home
from bardo_pipeline.client import AsyncClient, Client, Signer
from bardo_pipeline.errors import ServerError, SignatureError
from bardo_pipeline.events.custody.hash_chain import content_of, verified
from bardo_pipeline.events.life.events import KeyRegistered, life_event
from bardo_pipeline.signing import signed_message
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.log.event_log import EventLog
from tests.conftest import NOW
from tests.support.homes.served_homes import Served, served
from tests.support.homes.spool_homes import Place
from tests.support.records.writer_records import changed, line

OWNER = "me"
SIGNER, STRANGER = (Signer("key-1", Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32)) for n in (1, 2))
PUBLIC = SIGNER.key.public_key().public_bytes_raw().hex()
RATES = {"situation": {"task": "sum"}, "action": "search", "reward": 0.25}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("signed") / "home"
    open_home(root)
    with served(root, OWNER) as running:
        yield running


@pytest.fixture
def golem(server: Served, request: pytest.FixtureRequest) -> str:
    """A golem whose records are signed from the first one on."""
    home = Home.open(server.root)
    golem_id = birth(home, owner=OWNER, lineage=f"{request.node.name}/1", at=NOW - timedelta(days=1))
    with EventLog(home) as log:
        log.record([life_event(golem_id, NOW, KeyRegistered(key_id="key-1", public_key=PUBLIC, tick_from=1))], NOW)
    return golem_id


def agent(server: Served, golem: str, signer: Signer | None = SIGNER) -> Client:
    return Client(server.url, server.tokens[OWNER], golem=golem, signer=signer)


def rows(server: Served, golem: str) -> list[dict[str, Any]]:
    """Records of the golem in the log, after the server's writer committed them."""
    with agent(server, golem, STRANGER) as memory, pytest.raises(ServerError):
        memory.record_events(said(golem, "refused"))  # an event, even a refused one, follows the acknowledged records
    with EventLog(Home.open(server.root)) as log:
        return log.read_cycles(["tick", "payload", "link"], golems=[golem]).sort_by("tick").to_pylist()


def gap(golem: str, first: int, last: int) -> dict[str, Any]:
    return {"kind": "GapAccepted", "golem_id": golem, "observed_at": NOW.isoformat(),
            "gap": {"tick_from": first, "tick_to": last, "why": "the machine was lost"}}  # fmt: skip


def said(golem: str, text: str, **fields: Any) -> dict[str, Any]:
    return {"kind": "TextStored", "golem_id": golem, "observed_at": NOW.isoformat(),
            "text_stored": {"sort": "episode", "text": text, **fields}}  # fmt: skip


def refused(call: Callable[[], Any]) -> ServerError:
    with pytest.raises(ServerError) as caught:
        call()
    return caught.value


@pytest.mark.row("X-9", "X-13")
def test_signed_records_over_http_have_the_bytes_and_links_of_a_spool_file(
    server: Served, golem: str, place: Place
) -> None:
    sent = [changed(line(tick), golem_id=golem) for tick in (1, 2, 3)]
    with agent(server, golem) as memory:
        acknowledged = memory.record(*sent)["acknowledged"]
        again = memory.record(sent[1])["acknowledged"]
    assert [(ack["tick"], ack["link"], ack["repeated"]) for ack in acknowledged] == [
        (1, 1, False), (2, 2, False), (3, 3, False),
    ]  # fmt: skip
    assert [(ack["tick"], ack["repeated"]) for ack in again] == [(2, True)], "a replay changes nothing"
    over_http = rows(server, golem)

    place.log.record([life_event(golem, NOW, KeyRegistered(key_id="key-1", public_key=PUBLIC, tick_from=1))], NOW)
    marks = [SIGNER.signature_line(golem, text).encode() for text in sent]
    (place.home.spool / "a.jsonl.sig").write_bytes(b"\n".join(marks))
    place.drop("a.jsonl", sent)
    place.take()
    spooled = place.log.read_cycles(["tick", "payload", "link"], golems=[golem]).sort_by("tick").to_pylist()
    assert over_http == spooled
    for row in over_http:
        message = signed_message(golem, content_of(row["payload"]))
        assert verified(PUBLIC, row["link"]["signature"], message)


@pytest.mark.row("X-9", "X-13")
def test_a_line_with_another_or_without_a_signature_is_refused_and_changes_nothing(server: Served, golem: str) -> None:
    text = changed(line(1), golem_id=golem)
    with agent(server, golem, STRANGER) as forger, agent(server, golem, None) as plain, agent(server, golem) as own:
        forged = refused(lambda: forger.record(text))
        unsigned = refused(lambda: plain.record(text))
        reported = refused(lambda: plain.experience(**RATES))
        event = refused(lambda: forger.record_events(said(golem, "forged")))
        moved = json.dumps({"line": text.decode(), "signature": SIGNER.signature_line("other", text)})
        elsewhere = refused(lambda: plain.record(moved))
        unreadable = refused(lambda: plain.record(json.dumps({"line": text.decode(), "signature": "key-1 x"})))
        own.record_events(said(golem, "The only event."))
    assert {(error.status, error.error) for error in (forged, unsigned, reported, elsewhere, unreadable)} == {
        (403, "SignatureError")
    }
    assert (event.status, event.error) == (403, "AuthorityError")
    assert unsigned.cure == reported.cure == "give a `signer` to the writer or client, or --key to `bardo report`"
    assert rows(server, golem) == []
    with EventLog(Home.open(server.root)) as log:
        texts = log.texts(columns=["golem_id", "text_stored"])[1].to_pylist()
    assert [row["text_stored"]["text"] for row in texts if row["golem_id"] == golem] == ["The only event."]


@pytest.mark.row("X-9", "X-13")
def test_a_signed_golem_reports_experiences_over_both_clients(server: Served, golem: str) -> None:
    async def report_again() -> Any:
        async with AsyncClient(server.url, server.tokens[OWNER], golem=golem, signer=SIGNER) as memory:
            return await memory.experience(**RATES, tick=2)

    with agent(server, golem) as memory:
        first = memory.experience(**RATES, domain="tools")["acknowledged"]
        second = asyncio.run(report_again())["acknowledged"]
        repeated = memory.record(rows(server, golem)[1]["payload"])["acknowledged"]
    assert [ack["tick"] for ack in first + second] == [1, 2]
    assert repeated[0]["repeated"]
    assert all(row["link"]["key_id"] == "key-1" for row in rows(server, golem))


ALTERED = {
    "another reward": ("250000", "950000"),
    "another value of a condition": ('"value":"sum"', '"value":"product"'),
    "another reward of an alternative": ('"reward_ppm":100000', '"reward_ppm":900000'),
    "an expected reward": ('"verified":true', '"verified":false'),
    "another domain": ('"protocol":"tools"', '"protocol":"lending"'),
    "an outcome": ('"outcome":null', '"outcome":{}'),
    "another entry that was read": ('"entry_id":"e-1"', '"entry_id":"e-2"'),
}


@pytest.mark.row("X-9", "X-13")
def test_the_client_signs_no_record_that_the_server_drafted_otherwise(
    server: Served, golem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = RATES | {"situation": {"task": "sum", "is_long": True, "terms": 3}, "alternatives": {"wait": 0.1},
                     "entries_read": ["e-1"]}  # fmt: skip
    with agent(server, golem) as memory:
        send = memory._send
        for old, new in ALTERED.values():

            def altered(call: Any, old: str = old, new: str = new) -> Any:
                answer = send(call)
                if call.path.endswith("/drafts"):
                    assert old in answer["records"][0]
                    answer["records"] = [text.replace(old, new) for text in answer["records"]]
                return answer

            monkeypatch.setattr(memory, "_send", altered)
            with pytest.raises(SignatureError, match="nothing was signed"):
                memory.experience(**given, domain="tools")
        monkeypatch.undo()
        assert rows(server, golem) == []
        memory.experience(**given, domain="tools")
    assert len(rows(server, golem)) == 1


@pytest.mark.row("MEM-17", "X-9", "X-13")
def test_a_signed_golem_uses_its_tools_by_its_token_and_signs_its_life_events(server: Served, golem: str) -> None:
    execution = {"execution_id": "e-1", "strategy_name": "late", "action_type": "swap", "portfolio_snapshot": {},
                 "market_conditions": {}, "decision_params": {}, "predicted_outcome": {"pnl": 1}}  # fmt: skip
    with agent(server, golem) as memory:
        memory.remember("Swaps at night cost half the gas.", tool="swap")
        memory.record_execution(**execution)
        memory.record_outcome(execution_id="e-1", realized_pnl=1.0, gas_used_usd=0.1)
        memory.record(changed(line(1), golem_id=golem))
        sent = [said(golem, "The bridge was closed at noon."), {**gap(golem, 2, 4)}]
        recorded = memory.record_events(*sent)
        again = memory.record_events(*sent)
        found = [hit["content"] for hit in memory.search("when was the bridge closed?")["results"]]
        late = memory.record(changed(line(5), golem_id=golem))["acknowledged"]
        lost = refused(lambda: memory.record(changed(line(3), golem_id=golem)))
    assert (recorded["written"], recorded["refused"]) == (2, [])
    assert (again["written"], again["repeated"]) == (0, 2)
    assert found[0] == "The bridge was closed at noon."
    assert late[0]["tick"] == 5
    assert lost.error == "RegressionError"
