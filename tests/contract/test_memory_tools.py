"""The memory tools on a real home: each write is an event, verified by counts; a refused call changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from bardo_pipeline.errors import MemoryGateError, QueryError, ToolError
from bardo_pipeline.tools.catalogue import TOOLS
from bardo_pipeline.tools.memory_gate import MemoryGate
from tests.support.tool_homes import ToolHome, tool_home

STRATEGY = {
    "parameters": {"width": 0.04, "fee_tier": 500},
    "description": "Provide liquidity near the price.",
    "chains": ["base"],
    "token_pairs": ["WETH/USDC"],
}


@pytest.fixture
def home(tmp_path: Path) -> ToolHome:
    """A home with two owners' golems."""
    return tool_home(tmp_path / "home")


def test_a_changed_strategy_becomes_a_new_version(home: ToolHome) -> None:
    first = home.call("memory_store_strategy", strategy_name="narrow", **STRATEGY)
    same = home.call("memory_store_strategy", strategy_name="narrow", **STRATEGY)
    home.wait(hours=1)
    second = home.call("memory_store_strategy", strategy_name="narrow", **STRATEGY | {"parameters": {"width": 0.02}})
    assert [first.version, same.version, second.version] == [1, 1, 2]
    assert [(r.counts.before, r.counts.expected, r.counts.after) for r in (first, same, second)] == [
        (0, 1, 1), (1, 1, 1), (1, 2, 2),
    ]  # fmt: skip
    assert first.strategy_id == second.strategy_id
    assert home.kinds() == ["StrategyStored"] * 2 + ["ToolCalled"] * 2
    (stored,) = home.call("memory_retrieve_strategies", strategy_name="NARR").strategies
    assert (stored.version, stored.parameters) == (2, {"width": 0.02})
    assert stored.created_at < stored.updated_at
    assert stored.performance.total_executions == 0
    assert stored.performance.sharpe_ratio is None


def test_strategies_are_found_by_chain_and_pair_and_stay_with_their_golem(home: ToolHome) -> None:
    home.call("memory_store_strategy", strategy_name="narrow", **STRATEGY)
    home.call("memory_store_strategy", strategy_name="wide", **STRATEGY | {"chains": ["ethereum"], "token_pairs": []})
    names = {
        chain: [s.strategy_name for s in home.call("memory_retrieve_strategies", chain=chain).strategies]
        for chain in ("base", "ethereum", "solana")
    }
    assert names == {"base": ["narrow"], "ethereum": ["wide"], "solana": []}
    found = home.call("memory_retrieve_strategies", token_pair="WETH/USDC", include_performance=False).strategies
    assert [(s.strategy_name, s.performance) for s in found] == [("narrow", None)]
    assert home.call("memory_retrieve_strategies", golem=home.other).strategies == ()


@pytest.mark.parametrize(
    ("name", "arguments", "part"),
    [
        ("memory_store_strategy", {"strategy_name": "x"}, "parameters"),
        ("memory_store_strategy", STRATEGY | {"strategy_name": ""}, "strategy_name"),
        ("memory_store_strategy", STRATEGY | {"strategy_name": "x", "colour": 1}, "colour"),
        ("memory_store_strategy", STRATEGY | {"strategy_name": "x", "parameters": "y" * 70_000}, "parameters has"),
        ("memory_forget", {}, "memory_store_strategy"),
    ],
)
def test_an_invalid_call_is_refused_and_records_nothing(
    home: ToolHome, name: str, arguments: dict[str, object], part: str
) -> None:
    with pytest.raises(ToolError, match=part):
        home.call_with(name, arguments)
    assert home.kinds() == []


def test_a_caller_reaches_only_golems_of_its_owner(home: ToolHome) -> None:
    home.call("memory_retrieve_strategies", owner="coral")
    with pytest.raises(QueryError, match="coral"):
        home.call("memory_retrieve_strategies", golem=home.other, owner="coral")
    with pytest.raises(QueryError, match="g-none"):
        home.call("memory_store_strategy", golem="g-none", strategy_name="x", **STRATEGY)
    assert home.kinds() == []


@pytest.mark.parametrize(
    ("environ", "part"),
    [
        ({}, "BARDO_MEMORY_ENABLED=true"),
        ({"BARDO_MEMORY_ENABLED": "false"}, "BARDO_MEMORY_ENABLED=true"),
        ({"BARDO_MEMORY_ENABLED": "true", "BARDO_PROFILE": "trading, vault"}, "needs the profile learning"),
    ],
)
def test_the_tools_are_closed_without_the_capability_or_the_learning_profile(
    home: ToolHome, environ: dict[str, str], part: str
) -> None:
    home.gate = MemoryGate.of(environ)
    assert not home.gate.is_open
    with pytest.raises(MemoryGateError, match=part):
        home.call("memory_store_strategy", strategy_name="narrow", **STRATEGY)
    assert home.kinds() == []


def test_every_field_has_a_description_and_every_tool_guidance_for_each_phase() -> None:
    for tool in TOOLS.values():
        assert all(text in tool.description for text in vars(tool.guidance).values())
        for schema in (tool.input_schema, tool.output_schema):
            models = [schema, *schema.get("$defs", {}).values()]
            fields = [(model["title"], name, f) for model in models for name, f in model.get("properties", {}).items()]
            assert [(title, name) for title, name, f in fields if not f.get("description")] == []
