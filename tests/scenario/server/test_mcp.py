"""The memory tools over the Model Context Protocol, driven by the protocol's own client over both transports."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import StdioServerParameters
from mcp.client import Client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.events.experience.stored_text import stored_text
from bardo_pipeline.events.life.events import life_event
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.tools.catalogue import TOOLS
from tests.conftest import NOW, copy_home
from tests.support.homes.served_homes import served
from tests.support.homes.two_owners import CORAL, PEARL, belongings
from tests.support.records.handmade_births import birth_of

STRATEGY = {
    "strategy_name": "wide range",
    "description": "stay wide",
    "parameters": {"width": 3},
    "chains": ["ethereum"],
    "token_pairs": ["WETH/USDC"],
}

Use = Callable[[Client], Awaitable[Any]]


async def use_over_http(url: str, token: str, use: Use, **headers: str) -> Any:
    sent = {"authorization": f"Bearer {token}", **headers}
    async with (
        httpx2.AsyncClient(headers=sent, trust_env=False, timeout=60) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http)) as client,
    ):
        return await use(client)


async def use_over_stdio(home: Path, golem: str, use: Use) -> Any:
    environment = {**os.environ, "BARDO_MEMORY_ENABLED": "true", "BARDO_OWNER": CORAL}
    command = ["-m", "bardo_pipeline.cli.app", "serve", "--mcp-stdio", "--golem", golem, "--home", str(home)]
    server = StdioServerParameters(command=sys.executable, args=command, env=environment)
    async with Client(stdio_client(server)) as client:
        return await use(client)


async def store_and_read(client: Client) -> dict[str, Any]:
    """List the tools, store a strategy, read it back, and call a tool with a wrong argument."""
    listed = (await client.list_tools()).tools
    assert [tool.name for tool in listed] == list(TOOLS)
    for tool in listed:
        assert "Guidance by phase" in (tool.description or "")
        assert all("description" in field or "$ref" in field for field in tool.input_schema["properties"].values())
    stored = await client.call_tool("memory_store_strategy", STRATEGY)
    assert not stored.is_error, stored
    assert stored.structured_content["counts"]["after"] == stored.structured_content["counts"]["before"] + 1
    found = await client.call_tool("memory_retrieve_strategies", {"strategy_name": "wide"})
    wrong = await client.call_tool("memory_store_strategy", {**STRATEGY, "colour": "red"})
    assert wrong.is_error
    assert wrong.structured_content["error"] == "ToolError"
    number = await client.call_tool("memory_store_strategy", {**STRATEGY, "golem_id": 7})
    assert number.is_error
    assert "golem_id is no text" in number.structured_content["message"]
    unknown = await client.call_tool("memory_forget_everything", {})
    assert unknown.is_error
    for answer in (found, wrong, number, unknown):
        assert answer.structured_content["freshness"].keys() >= {"as_of", "cycle", "log_version", "lag_ticks"}
    return found.structured_content


@pytest.mark.row("MEM-21", "X-13")
def test_tools_over_streamable_http_write_for_the_owner_of_the_token(two_owners_home: Path, tmp_path: Path) -> None:
    home = copy_home(two_owners_home, tmp_path / "home")
    heir = belongings(home, CORAL).heir
    with served(home, CORAL, PEARL) as server:
        found = asyncio.run(use_over_http(server.url, server.tokens[CORAL], store_and_read, **{"bardo-golem": heir}))

        async def store_as_foreigner(client: Client) -> Any:
            return await client.call_tool("memory_store_strategy", {**STRATEGY, "golem_id": heir})

        refused = asyncio.run(use_over_http(server.url, server.tokens[PEARL], store_as_foreigner))
        assert refused.is_error
        assert refused.structured_content["error"] == "UnknownGolemError"
        sent = {"authorization": f"Bearer {server.tokens[CORAL]}", "accept": "text/event-stream"}
        with httpx2.stream("GET", f"{server.url}/mcp", headers=sent) as stream:
            assert stream.status_code == 405, "an open stream would hold one of the server's connections"
        closed = httpx2.post(f"{server.url}/mcp", headers={"authorization": "Bearer bardo_wrong"}, json={})
        assert closed.status_code == 401
    assert found["strategies"][0]["parameters"] == {"width": 3}
    stores = DerivationContext.open(home)
    assert stores.life("StrategyStored")["golem_id"].to_pylist() == [heir]
    stores.log.close()


@pytest.mark.full
@pytest.mark.row("MEM-21", "X-13")
def test_tools_over_stdio_write_for_the_named_golem(two_owners_home: Path, tmp_path: Path) -> None:
    home = copy_home(two_owners_home, tmp_path / "home")
    heir = belongings(home, CORAL).heir
    found = asyncio.run(use_over_stdio(home, heir, store_and_read))
    assert found["strategies"][0]["version"] == 1


SERVE = """
import os, sys
from pathlib import Path
from bardo_pipeline.clock import utc_now
from bardo_pipeline.server.callers import Caller
from bardo_pipeline.server.serve import ServeSettings, serve_stdio
settings = ServeSettings(threads=2, upkeep_seconds=0.5)
serve_stdio(Path(sys.argv[1]), Caller(None, "golem-0"), settings, clock=utc_now, environ=os.environ)
"""


@pytest.mark.full
@pytest.mark.row("MEM-20", "MEM-21")
@pytest.mark.parametrize("memory", ["true", "false"])
def test_a_server_over_stdio_consolidates_stored_episodes_that_are_due(tmp_path: Path, memory: str) -> None:
    home = Home.create(tmp_path / "home", Policy(), NOW)
    with EventLog(home) as log:
        log.record([birth_of("golem-0")], NOW)
        texts = [f"The swap slipped because the pool was {pool}." for pool in ("thin", "shallow", "nearly empty")]
        stored = [stored_text(text, sort="episode", tool="swap", outcome={"pnl_usd": -3}) for text in texts]
        log.record([life_event("golem-0", NOW, text) for text in stored], NOW)

    async def counted() -> int:
        environment = {**os.environ, "BARDO_MEMORY_ENABLED": memory}
        command = StdioServerParameters(command=sys.executable, args=["-c", SERVE, str(home.root)], env=environment)
        async with Client(stdio_client(command)):
            for _ in range(150 if memory == "true" else 15):
                with EventLog(home) as log:
                    if count := log.life("EpisodesConsolidated").num_rows:
                        return count
                await asyncio.sleep(0.2)
        return 0

    assert asyncio.run(counted()) == (memory == "true")


@pytest.mark.full
@pytest.mark.row("MEM-21", "X-13")
def test_each_refusal_names_its_thing_and_its_cure(two_owners_home: Path, tmp_path: Path) -> None:
    home = copy_home(two_owners_home, tmp_path / "home")
    coral, pearl = belongings(home, CORAL), belongings(home, PEARL)
    outcome = {"execution_id": "run-9", "realized_pnl": 1.0, "gas_used_usd": 0.1}
    refusals: list[tuple[str, dict[str, Any], str, str, str]] = [
        ("memory_search", {"query": "gas", "limit": 0}, "ToolError", "limit", "give a valid limit"),
        ("memory_search", {}, "ToolError", "query", "give a valid query"),
        ("memory_search", {"query": "gas", "a: b": 1}, "ToolError", "a: b", "leave out other arguments"),
        ("memory_search", {"query": "gas", "golem_id": 7}, "ToolError", "golem_id", "give the id of a golem"),
        ("memory_search", {"query": "gas", "golem_id": "g-none"}, "UnknownGolemError", "g-none", "leave out golem_id"),
        (
            "memory_search",
            {"query": "gas", "golem_id": pearl.heir},
            "UnknownGolemError",
            pearl.heir,
            "leave out golem_id",
        ),
        ("memory_store_strategy", {**STRATEGY, "golem_id": coral.golem}, "ToolError", coral.golem, "call memory_store"),
        ("memory_forget", {}, "ToolError", "memory_forget", "call one of memory_store_episode"),
        ("memory_manage_insight", {"operation": "ADD", "content": "x"}, "ToolError", "category", "give category"),
        ("memory_manage_insight", {"operation": "UPVOTE", "insight_id": "x"}, "ToolError", "x", "memory_get_insights"),
        ("memory_get_insights", {"category": "red"}, "ToolError", "red", "take one of"),
        ("memory_record_outcome", outcome, "ToolError", "run-9", "call memory_record_execution"),
        ("memory_import_grimoire", {"path": "none.json"}, "ToolError", "none.json", "export one"),
    ]

    async def call_all(client: Client) -> list[Any]:
        return [await client.call_tool(name, given) for name, given, *_ in refusals]

    async def search(client: Client) -> Any:
        return await client.call_tool("memory_search", {"query": "gas"})

    with served(home, CORAL) as server:
        token = server.tokens[CORAL]
        answers = asyncio.run(use_over_http(server.url, token, call_all, **{"bardo-golem": coral.heir}))
        nameless = asyncio.run(use_over_http(server.url, server.tokens[None], search))
    assert nameless.structured_content["error"] == "GolemMissingError"
    assert "golem_id" in nameless.structured_content["cure"]
    for (name, _, error, thing, cure), answer in zip(refusals, answers, strict=True):
        document = answer.structured_content
        assert answer.is_error, name
        assert document["error"] == error, document
        assert thing in document["message"], document
        assert (document["cure"] or "").startswith(cure), document
        assert "`bardo " not in document["message"] + document["cure"], "an agent has no shell"
    stores = DerivationContext.open(home)
    assert stores.life("StrategyStored").num_rows == 0
    stores.log.close()


REPEATED = (
    '{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "memory_search",'
    ' "arguments": {"query": "gas", "query": "tide"}}}'
)


def test_a_message_over_http_with_a_repeated_key_is_refused(two_owners_home: Path, tmp_path: Path) -> None:
    home = copy_home(two_owners_home, tmp_path / "home")
    with served(home, CORAL) as server:
        sent = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
        headers = {**sent, **server.headers(CORAL)}
        refused = httpx2.post(f"{server.url}/mcp", content=REPEATED, headers=headers, trust_env=False)
    assert refused.status_code == 400
    assert refused.json()["message"] == "an object has the key 'query' twice: send each key once"


@pytest.mark.full
def test_a_message_over_stdio_with_a_repeated_key_is_refused_and_the_next_is_answered(
    two_owners_home: Path, tmp_path: Path
) -> None:
    home = copy_home(two_owners_home, tmp_path / "home")
    command = [sys.executable, "-m", "bardo_pipeline.cli.app", "serve", "--mcp-stdio", "--home", str(home)]
    lines = f'{REPEATED}\n{REPEATED.replace("7", "true")}\n{{"jsonrpc": "2.0", "id": 8, "method": "ping"}}\n'
    environment = {**os.environ, "BARDO_MEMORY_ENABLED": "true"}
    ended = subprocess.run(command, input=lines, env=environment, capture_output=True, text=True, check=True)
    first, second, third = (json.loads(line) for line in ended.stdout.splitlines())
    assert (first["id"], second["id"], third["id"]) == (7, None, 8)
    assert first["error"]["message"] == "an object has the key 'query' twice: send each key once"
    assert "result" in third


@pytest.mark.full
@pytest.mark.row("MEM-21")
def test_without_the_capability_no_tool_is_listed_or_called(two_owners_home: Path, tmp_path: Path) -> None:
    home = copy_home(two_owners_home, tmp_path / "home")
    heir = belongings(home, CORAL).heir

    async def listed_and_called(client: Client) -> tuple[list[Any], Any]:
        tools = (await client.list_tools()).tools
        return tools, await client.call_tool("memory_store_strategy", STRATEGY)

    with served(home, CORAL, memory=False) as server:
        use = use_over_http(server.url, server.tokens[CORAL], listed_and_called, **{"bardo-golem": heir})
        tools, called = asyncio.run(use)
    assert tools == []
    assert called.is_error
    assert called.structured_content["error"] == "MemoryGateError"
    assert called.structured_content["cure"] == "ask the owner of the home to set BARDO_MEMORY_ENABLED=true"
