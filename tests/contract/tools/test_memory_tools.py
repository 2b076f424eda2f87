"""The memory tools on a real home: each write is an event, verified by counts; a refused call changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from bardo_pipeline.derivation.event_stream.sources import Place
from bardo_pipeline.derivation.event_stream.watch import Fabric
from bardo_pipeline.errors import ConfigError, MemoryGateError, QueryError, ToolError
from bardo_pipeline.server.error_responses import document_of
from bardo_pipeline.tools.catalogue import TOOLS
from bardo_pipeline.tools.memory_gate import MemoryGate
from bardo_pipeline.tools.tool_call import hash_of
from tests.support.homes.tool_homes import ToolHome, tool_home
from tests.support.records.log_queries import died

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


@pytest.mark.row("MEM-17")
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
    with pytest.raises(ToolError, match=part) as refused:
        home.call_with(name, arguments)
    assert document_of(refused.value)["cure"].startswith(("give ", "leave out ", "call one of "))
    assert home.kinds() == []


def test_a_caller_reaches_only_golems_of_its_owner(home: ToolHome) -> None:
    home.call("memory_retrieve_strategies", owner="coral")
    with pytest.raises(QueryError, match="coral"):
        home.call("memory_retrieve_strategies", golem=home.other, owner="coral")
    with pytest.raises(QueryError, match="g-none"):
        home.call("memory_store_strategy", golem="g-none", strategy_name="x", **STRATEGY)
    assert home.kinds() == []


@pytest.mark.row("MEM-21")
def test_the_memory_of_a_dead_golem_is_read_and_no_longer_written(home: ToolHome) -> None:
    home.call("memory_store_strategy", strategy_name="narrow", **STRATEGY)
    home.context.log.record([died(9, home.golem)], home.at)
    before = home.kinds()
    with pytest.raises(ToolError, match="died at tick 9"):
        home.call("memory_store_strategy", strategy_name="wide", **STRATEGY)
    assert home.kinds() == before
    assert [s.strategy_name for s in home.call("memory_retrieve_strategies").strategies] == ["narrow"]


@pytest.mark.row("MEM-21")
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


@pytest.mark.row("MEM-21")
def test_the_gate_reads_truth_values_and_refuses_others() -> None:
    assert MemoryGate.of({"BARDO_MEMORY_ENABLED": " Yes ", "BARDO_PROFILE": "Vault, LEARNING"}).is_open
    assert not MemoryGate.of({"BARDO_MEMORY_ENABLED": "", "BARDO_PROFILE": ""}).is_open
    with pytest.raises(ConfigError, match=r"BARDO_MEMORY_ENABLED 'perhaps': .*correct or unset it"):
        MemoryGate.of({"BARDO_MEMORY_ENABLED": "perhaps"})


@pytest.mark.row("MEM-21")
def test_every_field_has_a_description_and_every_tool_guidance_for_each_phase() -> None:
    for tool in TOOLS.values():
        assert all(text in tool.description for text in vars(tool.guidance).values())
        for schema in (tool.input_schema, tool.output_schema):
            models = [schema, *schema.get("$defs", {}).values()]
            fields = [(model["title"], name, f) for model in models for name, f in model.get("properties", {}).items()]
            assert [(title, name) for title, name, f in fields if not f.get("description")] == []


@pytest.mark.row("MEM-21")
def test_the_table_holds_the_thirteen_tools_of_which_seven_write() -> None:
    by_capability = {
        "write": [
            "memory_store_episode", "memory_manage_insight", "memory_consolidate", "memory_store_strategy",
            "memory_record_execution", "memory_record_outcome", "memory_import_grimoire",
        ],
        "read": [
            "memory_search", "memory_get_insights", "memory_retrieve_strategies", "memory_compare_prediction",
            "memory_get_failure_patterns", "memory_export_grimoire",
        ],
    }  # fmt: skip
    assert {c: [name for name, tool in TOOLS.items() if tool.capability == c] for c in by_capability} == by_capability


@pytest.mark.row("MEM-21")
def test_defaults_of_the_arguments_are_those_of_the_specification() -> None:
    defaults = {
        name: {f: field.default for f, field in tool.arguments.model_fields.items() if not field.is_required()}
        for name, tool in TOOLS.items()
    }
    added = {"sort": "episode", "tags": ()}  # fields of TextStored that TOOLS does not name
    assert {name: defaults["memory_store_episode"].pop(name) for name in added} == added
    none = dict.fromkeys
    assert defaults == {
        "memory_store_episode": {"token_pair": None, "importance": "routine", "dream_tag": None},
        "memory_search": none(("chain", "token_pair", "tool"))
        | {"store": "both", "min_confidence": 0.0, "limit": 10, "apply_decay": True},
        "memory_get_insights": none(("category", "chain", "token_pair"))
        | {"min_confidence": 0.0, "sort_by": "confidence", "limit": 20},
        "memory_manage_insight": none(("insight_id", "content", "category", "chain", "token_pair", "reason")),
        "memory_consolidate": {"max_episodes": 100, "min_cluster_size": 3, "run_decay": True, "dry_run": False},
        "memory_store_strategy": {},
        "memory_retrieve_strategies": none(("strategy_name", "chain", "token_pair")) | {"include_performance": True},
        "memory_record_execution": none(("reasoning_chain", "tx_hash", "reflection")),
        "memory_record_outcome": none(
            ("fees_earned", "impermanent_loss", "unrealized_pnl", "slippage_actual", "reflection")
        ),
        "memory_compare_prediction": {"strategy_name": None, "period": "30d"},
        "memory_get_failure_patterns": {"strategy_name": None, "min_executions": 5, "failure_threshold": 0.0},
        "memory_export_grimoire": {"include_decayed": False, "min_confidence": 0.0},
        "memory_import_grimoire": {"import_confidence": 0.4, "dry_run": False},
    }


@pytest.mark.row("MEM-21")
def test_a_call_that_writes_is_streamed_from_start_to_end(home: ToolHome) -> None:
    home.call("memory_store_strategy", strategy_name="narrow", **STRATEGY)
    home.call("memory_retrieve_strategies")
    events = [e for e in Fabric(home.context).behind(Place()) if e.name.startswith("tool:")]
    assert [event.name for event in events] == ["tool:start", "tool:update", "tool:end"]
    start, update, end = (event.payload.model_dump() for event in events)
    arguments = TOOLS["memory_store_strategy"].arguments.model_validate(STRATEGY | {"strategy_name": "narrow"})
    assert start == {
        "tool_name": "memory_store_strategy", "params_hash": hash_of(arguments.model_dump(mode="json")), "tick": None,
    }  # fmt: skip
    assert update == {"tool_name": "memory_store_strategy", "step": "Writing strategy version"}
    assert end == {
        "tool_name": "memory_store_strategy", "success": True, "duration_ms": 0,
        "result_summary": "Stored version 1 of strategy narrow",
    }  # fmt: skip
    assert {event.golem_id for event in events} == {home.golem}
    assert len({event.event_id for event in events}) == 3


@pytest.mark.row("MEM-21")
def test_a_stored_episode_is_streamed_with_its_dream_tag_and_an_insight_is_not(home: ToolHome) -> None:
    given = {"tool": "swap", "outcome": {}, "reflection": "It slipped.", "chain": "", "importance": "critical"}
    stored = home.call("memory_store_episode", **given, dream_tag="slippage")
    home.call("memory_manage_insight", operation="ADD", content="Noon is dear.", category="gas_timing")
    (event,) = [e for e in Fabric(home.context).behind(Place()) if e.name == "grimoire:episode_stored"]
    expected = {"episode_id": stored.episode_id, "importance": "critical", "tool": "swap", "chain": None}
    assert event.payload.model_dump() == expected | {"dream_tag": "slippage"}
    assert event.golem_id == home.golem


@pytest.mark.row("MEM-21")
@pytest.mark.full
def test_consolidation_and_import_raise_the_hooks_of_the_dream_cycle(home: ToolHome) -> None:
    for number in range(3):
        slipped = {"tool": "swap", "outcome": {"success": False}, "chain": "base"}
        home.call("memory_store_episode", reflection=f"Run {number} slipped.", **slipped)
        home.wait(minutes=1)
    home.call("memory_consolidate")
    path = home.call("memory_export_grimoire").path
    home.call("memory_import_grimoire", golem=home.other, path=path)
    events = [e for e in Fabric(home.context).behind(Place()) if e.name.startswith(("dream:", "grimoire:"))]
    hooks = {e.name: (e.golem_id, e.payload.model_dump()) for e in events if e.name.startswith("dream:")}
    done = {"episodes_processed": 3, "insights_created": 1, "insights_reinforced": 0, "episodes_decayed": 0}
    assert hooks["dream:consolidation_hook"] == (home.golem, done | {"clusters_found": 1})
    golem, imported = hooks["dream:import_hook"]
    assert (golem, imported["insights"]) == (home.other, 1)
    ends = {e.name: e.payload.model_dump() for e in events if e.name.startswith("grimoire:") and "complete" in e.name}
    assert ends["grimoire:consolidation_complete"] == done | {"cycle": None}
    assert ends["grimoire:import_complete"] == {
        "episodes": 3, "insights": 1, "strategies": 0, "confidence_override": 0.4,
        "content_hash": imported["content_hash"],
    }  # fmt: skip
