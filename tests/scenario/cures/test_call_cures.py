"""A message of a Python call names the value or the step with which the same call succeeds."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta, timezone
from pathlib import Path
from typing import Any

import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bardo_pipeline import birth, open_home
from bardo_pipeline.client import Client
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.errors import BardoError
from bardo_pipeline.events.custody.blind_signature import BlindSigner, new_key
from bardo_pipeline.events.custody.hash_chain import KeyRing, rotation_message
from bardo_pipeline.events.custody.sealing import SealKey
from bardo_pipeline.events.life.events import KeyRegistered, KeyRotated, life_event
from bardo_pipeline.gateway import model_request
from bardo_pipeline.gateway.model_request import ModelSettings
from bardo_pipeline.grimoire.conditions import conditions_in
from bardo_pipeline.market.market import Market
from bardo_pipeline.market.synthetic import synthetic_market
from bardo_pipeline.market.synthetic_spec import START
from bardo_pipeline.server.warm_home import WarmHome
from bardo_pipeline.storage.conversations.conversations import Conversations
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.index.tick_index import TickIndex
from bardo_pipeline.storage.intake.accept_or_refuse import life_event_of
from bardo_pipeline.tools.catalogue import tool_named
from bardo_pipeline.tools.store_episodes import store_episodes
from bardo_pipeline.tools.tool_call import Caller
from tests.conftest import NOW
from tests.support.fleets.live_fleets import lived as live_through
from tests.support.fleets.live_fleets import market_of, opened, run_of
from tests.support.homes.served_homes import served
from tests.support.homes.tool_homes import OPEN, ToolHome, tool_home
from tests.support.homes.two_owners import CORAL, belongings
from tests.support.processes.bardo_command import bardo
from tests.support.processes.printed_cures import cure_in, value_in
from tests.support.records.handmade_births import birth_of

pytestmark = pytest.mark.row("P-4")

KEYS = [Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in range(2)]
PUBLIC = [key.public_key().public_bytes_raw().hex() for key in KEYS]


@contextmanager
def refused(cure: str) -> Iterator[list[str]]:
    """Check that the block raises a message with this cure; the list then holds the group of the pattern."""
    groups: list[str] = []
    with pytest.raises(BardoError) as error:
        yield groups
    groups.append(value_in(str(error.value), cure))


@pytest.fixture
def tools(tmp_path: Path) -> ToolHome:
    """A home with two owners' golems, on which memory tools are called."""
    return tool_home(tmp_path / "home")


def test_a_golem_is_born_in_a_home_that_was_opened_for_its_owner(tmp_path: Path) -> None:
    opened = open_home(tmp_path / "home")
    with refused("open it (for that owner)"):
        birth(open_home(opened.root, owner="ann"), lineage="l/1", owner="bob")
    assert birth(open_home(opened.root, owner="bob"), lineage="l/1", owner="bob")


def test_a_call_of_a_client_names_its_golem(owned: Path) -> None:
    heir = belongings(owned, CORAL).heir
    with served(owned, CORAL) as server:
        token = server.tokens[CORAL]
        with refused("give (`golem`), here or to the client"):
            Client(server.url, token=token).ask("gas")
        assert Client(server.url, token=token).ask("gas", golem=heir)
        assert Client(server.url, token=token, golem=heir).ask("gas")


def test_a_message_of_a_conversation_has_the_stated_length(tools: ToolHome) -> None:
    conversations = Conversations(Home.open(tools.root), tools.context.log)
    for content in ("", "x" * 70_000):
        with refused(r"a message has 1 to ([\d,]+) characters") as most:
            conversations.append(tools.golem, "owner", content, at=NOW)
    assert conversations.append(tools.golem, "owner", "x" * int(most[0].replace(",", "")), at=NOW)


def test_a_list_of_ticks_has_at_least_one(lived: Path) -> None:
    context = DerivationContext.open(lived)
    index = TickIndex.open(context.home, context.log)
    with refused("must be at least (one) tick"):
        index.ticks(limit=0)
    assert index.ticks(limit=1).num_rows == 1


def test_an_owner_without_a_key_gets_one_before_it_is_revoked(founded: Path) -> None:
    words = ("keys", "revoke-owner", "ann", "--why", "x")
    cure = cure_in(bardo(*words, home=founded, expect=2), "keys owner")
    bardo(*cure, "ann", home=founded)
    assert "revoked" in bardo(*words, home=founded)


def test_an_event_is_recorded_at_a_moment_in_utc(tools: ToolHome) -> None:
    event = life_event("g-9", NOW, birth_of("g-9").payload)
    there = timezone(timedelta(hours=2))
    with refused("give a (UTC) moment"):
        tools.context.log.record([event], NOW.astimezone(there))
    assert tools.context.log.record([event], NOW) == 1


def test_an_id_of_an_event_that_is_not_of_its_content_is_left_out() -> None:
    line = {name: value for name, value in birth_of("g-1").model_dump(mode="json").items() if value is not None}
    with refused("not that of its content: (leave it out)"):
        life_event_of(orjson.dumps(line | {"event_id": "mine"}))
    del line["event_id"]
    assert life_event_of(orjson.dumps(line)).event_id == birth_of("g-1").event_id


def test_a_seal_is_opened_with_the_named_key() -> None:
    keys = {key.key_id: key for key in (SealKey(b"a" * 32), SealKey(b"b" * 32))}
    first, second = keys.values()
    sealed = first.seal("g-1", b"tick 1", b"secret")
    with refused(r"is sealed under (\S+), not under \S+: give that key") as named:
        second.open("g-1", b"tick 1", sealed)
    assert keys[named[0]].open("g-1", b"tick 1", sealed) == b"secret"


def test_a_seal_key_has_the_stated_number_of_bytes() -> None:
    with refused(r"a seal key has (\d+) bytes, not 5") as size:
        SealKey(b"short")
    assert SealKey(b"k" * int(size[0]))


def test_a_digest_is_blinded_with_the_keys_of_the_relay() -> None:
    signer, other = (BlindSigner(new_key(), "living") for _ in range(2))
    with refused("(fetch the relay's keys) again"):
        signer.sign(signer.public.modulus)
    key = signer.public
    signed = signer.sign(key.blind(b"a post", b"b" * 32))
    signature = key.unblind(b"a post", b"b" * 32, signed)
    assert key.verifies(b"a post", signature)
    assert not other.public.verifies(b"a post", signature)


def test_a_busy_server_answers_a_second_later(owned: Path) -> None:
    async def ask() -> list[object]:
        warm, gate = WarmHome(owned, threads=1, waiting_max=1), threading.Event()
        first = asyncio.ensure_future(warm.run(gate.wait))
        await asyncio.sleep(0)
        with refused("1 requests wait: (try again) in a second"):
            await warm.run(lambda: "answer")
        gate.set()
        return [await first, await warm.run(lambda: "answer")]

    assert asyncio.run(ask()) == [True, "answer"]


def test_a_live_run_gets_no_steers_of_a_script(tmp_path: Path) -> None:
    stores, run = opened(tmp_path / "home"), run_of(market_of(60), generations=1)
    with refused("takes its steers while it lives and sends no replicants: (leave both out)"):
        live_through(stores, dataclasses.replace(run, steers={("*", 5): ("high", "hold")}))
    assert live_through(stores, run)[0].num_rows


def test_a_model_of_a_provider_with_one_address_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPSEEK_API_KEY", "the provider's key")
    environment = {"BARDO_MODEL": "deepseek:deepseek-chat", "BARDO_MODEL_URL": "http://127.0.0.1:9/"}
    with refused(r"deepseek takes no other address: unset (\w+)") as name:
        model_request._model(ModelSettings.wanted(environment))
    del environment[name[0]]
    assert model_request._model(ModelSettings.wanted(environment)).model_name == "deepseek-chat"


def test_a_rotation_is_signed_by_the_named_key_under_an_id_of_its_own() -> None:
    registered = life_event("g-1", NOW, KeyRegistered(key_id="k0", public_key=PUBLIC[0], tick_from=1))
    ring = KeyRing("g-1").after(registered)

    def rotated(key_id: str, signature: bytes | None) -> KeyRing:
        payload = KeyRotated(
            key_id=key_id, public_key=PUBLIC[1], previous_key_id="k0", tick_from=5, why="age",
            signature=None if signature is None else signature.hex(),
        )  # fmt: skip
        return ring.after(life_event("g-1", NOW, payload))

    def signed_by(key: Ed25519PrivateKey, key_id: str) -> bytes:
        return key.sign(rotation_message("g-1", key_id, PUBLIC[1], 5))

    with refused("was used before: give the new one (its own id)"):
        rotated("k0", signed_by(KEYS[0], "k0"))
    with refused(r"key (\S+) is not revoked, so it must sign the rotation"):
        rotated("k1", None)
    with refused(r"key (\S+) did not sign this rotation"):
        rotated("k1", signed_by(KEYS[1], "k1"))
    assert rotated("k1", signed_by(KEYS[0], "k1")).keys[-1].key_id == "k1"


def test_a_condition_is_written_as_in_the_message() -> None:
    with refused("write (NAME=VALUE), and join conditions by &") as form:
        conditions_in("regime")
    assert conditions_in(f"{form[0]}&regime=volatile") == (("NAME", "VALUE"), ("regime", "volatile"))


def test_an_unknown_tool_gives_way_to_a_named_one() -> None:
    with refused(r"call one of (\w+),") as named:
        tool_named("memory_forget_everything")
    assert tool_named(named[0]).name == named[0]


def test_wrong_arguments_of_a_tool_are_named(tools: ToolHome) -> None:
    with refused(r"the tool takes (.+)$") as taken:
        tools.call("memory_search", question="gas")
    assert "query" in taken[0].split(", ")
    tools.call("memory_search", query="gas")
    with refused("give a valid (query)"):
        tools.call("memory_search", query=7)
    with refused("(leave out other arguments)"):
        tools.call("memory_search", query="gas", colour="red")


def test_an_argument_of_a_tool_is_json_of_the_stated_size(tools: ToolHome) -> None:
    strategy: dict[str, Any] = {
        "strategy_name": "narrow", "description": "x", "chains": ["base"], "token_pairs": ["WETH/USDC"],
    }  # fmt: skip
    with refused("give (integers of 64 bits) and valid Unicode"):
        tools.call("memory_store_strategy", **strategy, parameters={"width": 2**70})
    with refused(r"give at most ([\d,]+)") as most:
        tools.call("memory_store_strategy", **strategy, parameters={"note": "x" * 70_000})
    fitting = "x" * (int(most[0].replace(",", "")) - len(orjson.dumps({"note": ""})))
    assert tools.call("memory_store_strategy", **strategy, parameters={"note": fitting}).version == 1


def test_episodes_are_stored_in_the_stated_number(tools: ToolHome) -> None:
    def stored(count: int) -> int:
        episodes = [{"text": f"episode {number}"} for number in range(count)]
        done = store_episodes(
            tools.context, Caller(tools.golem), episodes, clock=lambda: tools.at, ids=lambda: "c", gate=OPEN
        )
        return len(done.stored) + len(done.refused)

    for count in (0, 1_001):
        with refused(r"give 1 to ([\d,]+)") as most:
            stored(count)
    assert stored(int(most[0].replace(",", ""))) == 1_000


@pytest.mark.parametrize(
    ("cure", "wrong", "right"),
    [
        ("a market needs bars >= (1), not 0", {"bars": 0}, {"bars": 1}),
        ("a market starts on a (minute with a time zone)", {"start": START.replace(second=5)}, {"start": START}),
        ("a synthetic market needs seed >= (0)", {"seed": -1}, {"seed": 0}),
    ],
)
def test_a_synthetic_market_has_the_stated_bounds(
    cure: str, wrong: dict[str, object], right: dict[str, object]
) -> None:
    def market(**changed: object) -> Market:
        return synthetic_market(**{"seed": 1, "bars": 60, "start": START} | changed)  # type: ignore[arg-type]

    with refused(cure):
        market(**wrong)
    assert market(**right).bars
