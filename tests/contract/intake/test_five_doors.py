"""A text and a reported experience enter the log by five doors, and each door stores the same facts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from bardo_pipeline import EventWriter, birth, open_home, record_of, report, search_texts, store_episode
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.memory.free_texts import texts_of_golem
from bardo_pipeline.errors import ServerError, SignatureError
from bardo_pipeline.events.life.events import KeyRegistered, life_event
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.log.event_log import EventLog
from tests.conftest import NOW
from tests.contract.intake.test_signed_lines import OWNER, PUBLIC, SIGNER, agent, said
from tests.scenario.server.test_mcp import use_over_http
from tests.support.homes.served_homes import Served, served
from tests.support.processes.bardo_command import bardo

TEXT, TAG = "The bridge to the north was closed at noon.", "harbour"
REPORT: dict[str, Any] = {"situation": {"task": "sum"}, "action": "search", "reward": 0.25,
                          "alternatives": {"wait": None}}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("doors") / "home"
    open_home(root)
    with served(root, OWNER) as running:
        yield running


def newborn(root: Path, name: str, *, is_signed: bool) -> str:
    home = Home.open(root)
    golem = birth(home, owner=OWNER, lineage=f"{name}/1", at=NOW - timedelta(days=1))
    if is_signed:
        with EventLog(home) as log:
            log.record([life_event(golem, NOW, KeyRegistered(key_id="key-1", public_key=PUBLIC, tick_from=1))], NOW)
    return golem


def take(root: Path, name: str, line: bytes, golem: str) -> None:
    spool = Home.open(root).spool
    spool.mkdir(exist_ok=True)
    (spool / f"{name}.sig").write_text(SIGNER.signature_line(golem, line))
    (spool / name).write_bytes(line)
    bardo("spool", "take", home=root)


def call_tool(server: Served, golem: str, **experience: Any) -> Any:
    episode = {"tool": "note", "outcome": {}, "reflection": TEXT, "chain": "", **experience}
    token = server.tokens[OWNER]

    async def store(client: Any) -> Any:
        return await client.call_tool("memory_store_episode", episode)

    return asyncio.run(use_over_http(server.url, token, store, **{"bardo-golem": golem}))


# texts


def text_by_spool(server: Served, golem: str, folder: Path) -> None:
    take(
        server.root, f"{golem}.life.jsonl", json.dumps(said(golem, TEXT, sort="reflection", tags=[TAG])).encode(), golem
    )


def text_by_python(server: Served, golem: str, folder: Path) -> None:
    store_episode(Home.open(server.root), golem, TEXT, at=NOW, tags=(TAG,), sort="reflection")


def text_by_command(server: Served, golem: str, folder: Path) -> None:
    bardo("remember", golem, TEXT, "--tag", TAG, "--sort", "reflection", home=server.root)


def text_by_http(server: Served, golem: str, folder: Path) -> None:
    with agent(server, golem) as memory:
        memory.remember(TEXT, tags=[TAG], sort="reflection")


def text_by_mcp(server: Served, golem: str, folder: Path) -> None:
    assert not call_tool(server, golem, tags=[TAG], sort="reflection").is_error


@pytest.mark.row("MEM-17", "X-13")
@pytest.mark.parametrize("door", [text_by_spool, text_by_python, text_by_command, text_by_http, text_by_mcp])
def test_a_text_of_a_signed_golem_is_found_whichever_door_it_took(
    server: Served, tmp_path: Path, door: Callable[[Served, str, Path], None]
) -> None:
    golem = newborn(server.root, door.__name__, is_signed=True)
    door(server, golem, tmp_path)
    hits = search_texts(Home.open(server.root), "when was the bridge closed?", golem_id=golem).hits
    assert [(hit.text, hit.sort) for hit in hits] == [(TEXT, "reflection")]
    stores = DerivationContext.open(server.root)
    stored = texts_of_golem(stores, golem, now=NOW)
    stores.log.close()
    assert [text.stored["tags"] for text in stored] == [[TAG]]


# experiences


def experience_by_spool(server: Served, golem: str, folder: Path) -> None:
    timed = {"golem_id": golem, "tick": 1, "observed_at": NOW.isoformat()}
    spool = Home.open(server.root).spool
    spool.mkdir(exist_ok=True)
    (spool / f"{golem}.experience.jsonl").write_text(json.dumps({**REPORT, **timed}))
    bardo("spool", "take", home=server.root)


def experience_by_python(server: Served, golem: str, folder: Path) -> None:
    with EventWriter.open(Home.open(server.root), golem, drain="none") as writer:
        writer.append(record_of(golem, 1, NOW, [report(**REPORT)]))


def command_words(golem: str) -> list[str]:
    return ["report", golem, REPORT["action"], str(REPORT["reward"]), "--situation", json.dumps(REPORT["situation"]),
            "--alternatives", json.dumps(REPORT["alternatives"])]  # fmt: skip


def experience_by_command(server: Served, golem: str, folder: Path) -> None:
    assert "tick 1 is recorded" in bardo(*command_words(golem), home=server.root)


def experience_by_http(server: Served, golem: str, folder: Path) -> None:
    with agent(server, golem, None) as memory:
        memory.experience(**REPORT)


def experience_by_mcp(server: Served, golem: str, folder: Path) -> None:
    answer = call_tool(server, golem, experience=REPORT)
    assert not answer.is_error, answer
    assert answer.structured_content["experience"] == {"tick": 1, "repeated": False, "durable": True}


def experiences(server: Served, golem: str) -> list[dict[str, Any]]:
    """Reported experiences in the log, after the server released the golem."""
    with agent(server, golem) as memory, pytest.raises(ServerError, match="no such key"):
        memory.record_events(said(golem, "refused"))
    with EventLog(Home.open(server.root)) as log:
        rows = log.read_cycles(["tick", "experiences"], golems=[golem]).to_pylist()
    return [experience for row in rows for experience in row["experiences"]]


@pytest.mark.row("EV-4", "X-13")
@pytest.mark.parametrize(
    "door",
    [experience_by_spool, experience_by_python, experience_by_command, experience_by_http, experience_by_mcp],
)
def test_an_experience_is_the_same_record_whichever_door_it_took(
    server: Served, tmp_path: Path, door: Callable[[Served, str, Path], None]
) -> None:
    golem = newborn(server.root, door.__name__, is_signed=False)
    door(server, golem, tmp_path)
    assert experiences(server, golem) == [
        {"decision_tick": 1, "action": "search", "conditions": [{"name": "task", "value": "sum"}],
         "reward_ppm": 250_000, "alternatives": [{"action": "wait", "reward_ppm": None}], "verified": True,
         "ground_truth_source": "runtime"}
    ]  # fmt: skip


@pytest.mark.row("MEM-17", "X-13")
def test_an_experience_beside_a_refused_text_is_recorded_once_by_the_corrected_call(server: Served) -> None:
    golem = newborn(server.root, "corrected", is_signed=False)
    refused = call_tool(server, golem, experience=REPORT, importance="immense")
    assert refused.is_error, refused
    corrected = call_tool(server, golem, experience=REPORT)
    assert corrected.structured_content["experience"]["tick"] == 1
    assert len(experiences(server, golem)) == 1


@pytest.mark.row("X-9", "X-13")
def test_a_signed_golem_reports_by_the_command_and_not_over_mcp(server: Served, tmp_path: Path) -> None:
    golem = newborn(server.root, "signed-report", is_signed=True)
    refused = call_tool(server, golem, experience=REPORT)
    assert refused.structured_content["error"] == SignatureError.__name__
    assert "client with a signer or the spool" in refused.structured_content["cure"]
    wrong = call_tool(server, golem, experience={"action": "a", "reward": 7})
    assert "divide rewards by the largest possible one" in wrong.structured_content["message"]
    assert not search_texts(Home.open(server.root), TEXT, golem_id=golem).hits, "a refused report stores no text"
    with agent(server, golem) as memory:
        memory.record_events(said(golem, "This event releases the golem."))
    key = tmp_path / "key.pem"
    key.write_bytes(SIGNER.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    bardo(*command_words(golem), "--key", str(key), home=server.root)
    with EventLog(Home.open(server.root)) as log:
        assert log.read_cycles(["tick"], golems=[golem])["tick"].to_pylist() == [1]
    assert search_texts(Home.open(server.root), "releases", golem_id=golem).hits[0].text.startswith("This event")
