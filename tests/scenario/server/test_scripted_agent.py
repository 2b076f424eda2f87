"""An agent of pydantic-ai with a scripted model drives the thirteen memory tools over streamable HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.tools.catalogue import TOOLS
from tests.conftest import copy_home
from tests.support.homes.served_homes import served
from tests.support.homes.two_owners import CORAL, belongings

Results = dict[str, Any]
"""Tool -> result of its newest call."""

_WORDS = "Swaps after 22:00 UTC cost half the gas."
_EXECUTION: dict[str, Any] = {
    "execution_id": "run-1",
    "strategy_name": "late swaps",
    "action_type": "SWAP",
    "portfolio_snapshot": {"usd": 900},
    "market_conditions": {"regime": "volatile", "gas_gwei": 20},
    "decision_params": {"hour": 22},
    "predicted_outcome": {"pnl_usd": 5.0},
}

SCRIPT: tuple[tuple[str, Callable[[Results], dict[str, Any]]], ...] = (
    ("memory_store_episode", lambda _: {"tool": "swap", "outcome": {}, "reflection": _WORDS, "chain": ""}),
    ("memory_search", lambda _: {"query": "swaps after 22:00 cost half", "store": "episodes"}),
    (
        "memory_manage_insight",
        lambda _: {"operation": "ADD", "content": "Swap late in the day.", "category": "gas_timing"},
    ),
    ("memory_get_insights", lambda _: {"min_confidence": 0.0, "limit": 50}),
    ("memory_consolidate", lambda _: {"dry_run": True}),
    (
        "memory_store_strategy",
        lambda _: {
            "strategy_name": "late swaps",
            "parameters": {"hour": 22},
            "description": "swap after 22:00",
            "chains": ["ethereum"],
            "token_pairs": [],
        },
    ),
    ("memory_retrieve_strategies", lambda _: {"strategy_name": "late"}),
    ("memory_record_execution", lambda _: _EXECUTION),
    ("memory_record_outcome", lambda _: {"execution_id": "run-1", "realized_pnl": 1.0, "gas_used_usd": 0.1}),
    ("memory_compare_prediction", lambda _: {"strategy_name": "late swaps"}),
    ("memory_get_failure_patterns", lambda _: {"min_executions": 1}),
    ("memory_export_grimoire", lambda _: {}),
    ("memory_import_grimoire", lambda done: {"path": done["memory_export_grimoire"]["path"], "dry_run": True}),
)


def scripted(results: Results, errors: list[Any]) -> Callable[[list[ModelMessage], AgentInfo], ModelResponse]:
    """Return a model that calls the tools of the script in order, each with what the earlier ones returned."""

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        assert {tool.name for tool in info.function_tools} == set(TOOLS)
        for part in messages[-1].parts:
            if isinstance(part, ToolReturnPart) and part.outcome == "success":
                results[part.tool_name] = part.content
            elif isinstance(part, ToolReturnPart):
                errors.append(part.content)
        done = len(results) + len(errors)
        if done >= len(SCRIPT):
            return ModelResponse([TextPart(f"{done} tools were called")])
        name, arguments = SCRIPT[done]
        return ModelResponse([ToolCallPart(name, arguments(results))])

    return respond


async def run_agent(url: str, token: str, golem: str) -> tuple[str, Results, list[Any]]:
    """Run the agent; return its last words, the results of its calls, and the refusals."""
    results: Results = {}
    errors: list[Any] = []
    headers = {"authorization": f"Bearer {token}", "bardo-golem": golem}
    toolset: MCPToolset[None] = MCPToolset(f"{url}/mcp", headers=headers, init_timeout=60, read_timeout=60)
    agent = Agent(FunctionModel(scripted(results, errors)), toolsets=[toolset])
    async with agent:
        ran = await agent.run("Keep what you learn.")
    return ran.output, results, errors


async def run_correcting_agent(url: str, token: str, golem: str) -> tuple[str, list[ToolReturnPart], list[Any]]:
    """Run an agent that calls a tool without an argument and gives the one that the refusal's cure names.

    Returns its last words, the refusals, and the results.
    """
    refusals: list[ToolReturnPart] = []
    results: list[Any] = []
    arguments: dict[str, Any] = {"operation": "ADD", "content": "Swap late in the day."}

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        for part in messages[-1].parts:
            if isinstance(part, ToolReturnPart) and part.outcome == "success":
                results.append(part.content)
            elif isinstance(part, ToolReturnPart):
                refusals.append(part)
                assert isinstance(part.content, str)
                named = str(json.loads(part.content)["cure"]).removeprefix("give ")
                arguments[named] = "gas_timing"
        if results:
            return ModelResponse([TextPart("stored")])
        return ModelResponse([ToolCallPart("memory_manage_insight", dict(arguments))])

    headers = {"authorization": f"Bearer {token}", "bardo-golem": golem}
    toolset: MCPToolset[None] = MCPToolset(f"{url}/mcp", headers=headers, init_timeout=60, read_timeout=60)
    agent = Agent(FunctionModel(respond), toolsets=[toolset])
    async with agent:
        ran = await agent.run("Keep what you learn.")
    return ran.output, refusals, results


@pytest.mark.full
@pytest.mark.row("MEM-21", "X-13")
def test_an_agent_corrects_a_refused_call_by_its_cure(two_owners_home: Path, tmp_path: Path) -> None:
    home = copy_home(two_owners_home, tmp_path / "home")
    heir = belongings(home, CORAL).heir
    with served(home, CORAL) as server:
        words, refusals, results = asyncio.run(run_correcting_agent(server.url, server.tokens[CORAL], heir))
    assert words == "stored"
    (refusal,) = refusals
    assert (refusal.tool_name, refusal.outcome) == ("memory_manage_insight", "retried")
    refused = json.loads(str(refusal.content))
    assert refused.pop("freshness")["life_version"] > 0
    assert refused == {
        "error": "ToolError",
        "message": "ADD of an insight needs category: give category",
        "cure": "give category",
    }
    assert [result["counts"]["after"] for result in results] == [1]
    stores = DerivationContext.open(home)
    assert stores.life("InsightManaged")["golem_id"].to_pylist() == [heir]
    stores.log.close()


@pytest.mark.full
@pytest.mark.row("MEM-17", "MEM-21", "X-13")
def test_an_agent_drives_the_thirteen_tools_over_http(two_owners_home: Path, tmp_path: Path) -> None:
    home = copy_home(two_owners_home, tmp_path / "home")
    heir = belongings(home, CORAL).heir
    with served(home, CORAL) as server:
        words, results, errors = asyncio.run(run_agent(server.url, server.tokens[CORAL], heir))
    assert errors == []
    assert words == f"{len(TOOLS)} tools were called"
    assert list(results) == [name for name, _ in SCRIPT]
    assert set(results) == set(TOOLS)
    assert results["memory_search"]["results"][0]["content"].startswith(_WORDS)
    assert all(isinstance(result, dict) for result in results.values()), results
    counts = results["memory_manage_insight"]["counts"]
    assert counts["after"] == counts["before"] + 1
    assert "Swap late in the day." in {insight["content"] for insight in results["memory_get_insights"]["insights"]}
    assert results["memory_retrieve_strategies"]["strategies"][0]["parameters"] == {"hour": 22}
    assert results["memory_compare_prediction"]["sample_count"] == 1
    assert results["memory_record_outcome"]["reflection_requested"] is True
    assert results["memory_export_grimoire"]["strategies_exported"] == 1
    assert results["memory_import_grimoire"]["strategies_imported"] == 1

    stores = DerivationContext.open(home)
    for kind in ("InsightManaged", "StrategyStored", "ExecutionRecorded", "OutcomeRecorded"):
        assert heir in stores.life(kind)["golem_id"].to_pylist(), f"no {kind} is in the log"
    stores.log.close()
