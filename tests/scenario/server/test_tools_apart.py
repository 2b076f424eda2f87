"""Owners are apart in every memory tool over the Model Context Protocol, by HTTP with an owner's token and by stdio."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
from mcp.client import Client

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.events.life.events import Kind
from bardo_pipeline.tools.catalogue import TOOLS
from tests.scenario.server.test_mcp import use_over_http, use_over_stdio
from tests.support.homes.served_homes import Served
from tests.support.homes.two_owners import CORAL, PEARL, Belongings

NAME, RUN = "late swaps", "run-1"
"""Strategy and execution of both owners: equal names find a tool that reads beyond the owner of its caller."""

OF_TOOLS = ("TextStored", "InsightManaged", "StrategyStored", "ExecutionRecorded", "OutcomeRecorded",
            "EpisodesConsolidated", "ArchiveImported", "ToolCalled")  # fmt: skip
"""Kinds of life events that the calls of an owner leave."""


def arguments(words: str, *, insight: str = "", archive: str = "") -> dict[str, dict[str, Any]]:
    """Return arguments of every tool in the order of the calls; texts hold the words.

    Parameters
    ----------
    insight : id of an insight, to vote on it in place of adding one
    archive : path of an archive
    """
    text = {"text": words}
    added = {"operation": "ADD", "content": f"{words} pays at night", "category": "gas_timing"}
    voted = {"operation": "DOWNVOTE", "insight_id": insight}
    return {
        "memory_store_episode": {"tool": "swap", "outcome": text, "reflection": f"{words} went well", "chain": ""},
        "memory_manage_insight": voted if insight else added,
        "memory_store_strategy": {"strategy_name": NAME, "description": words, "parameters": text, "chains": [],
                                  "token_pairs": []},
        "memory_record_execution": {"execution_id": RUN, "strategy_name": NAME, "action_type": "SWAP",
                                    "portfolio_snapshot": text, "market_conditions": {"regime": words},
                                    "decision_params": text, "predicted_outcome": {"expected_pnl_usd": 9.0}},
        "memory_record_outcome": {"execution_id": RUN, "realized_pnl": -5.0, "gas_used_usd": 0.1, "reflection": words},
        "memory_consolidate": {"min_cluster_size": 1},
        "memory_search": {"query": "swap at night went well", "limit": 50},
        "memory_get_insights": {"limit": 1_000},
        "memory_retrieve_strategies": {"strategy_name": NAME},
        "memory_compare_prediction": {"strategy_name": NAME, "period": "90d"},
        "memory_get_failure_patterns": {"strategy_name": NAME, "min_executions": 1},
        "memory_export_grimoire": {"include_decayed": True},
        "memory_import_grimoire": {"path": archive},
    }  # fmt: skip


async def call_each(client: Client, given: Mapping[str, dict[str, Any]], **more: str) -> dict[str, Any]:
    """Call tools in order; return the answer of each."""
    return {name: await client.call_tool(name, sent | more) for name, sent in given.items()}


def facts_of(home: Path, own: Belongings) -> dict[str, list[dict[str, Any]]]:
    """Return the life events of an owner's golems by kind."""
    stores = DerivationContext.open(home, owner=own.owner)
    rows = {kind: stores.log.life(kind).sort_by("event_id").to_pylist() for kind in get_args(Kind)}
    stores.log.close()
    return rows


@pytest.mark.full
@pytest.mark.row("X-12", "MEM-21")
def test_no_tool_shows_or_changes_a_thing_of_another_owner(
    server: Served, home: Path, coral: Belongings, pearl: Belongings
) -> None:
    def over_http(owner: str, golem: str, given: Mapping[str, dict[str, Any]], **more: str) -> dict[str, Any]:
        called = partial(call_each, given=given, **more)
        return asyncio.run(use_over_http(server.url, server.tokens[owner], called, **{"bardo-golem": golem}))

    given = arguments(PEARL)
    del given["memory_import_grimoire"]
    lived = over_http(PEARL, pearl.heir, given)
    archive = lived["memory_export_grimoire"].structured_content["path"]
    lived |= over_http(PEARL, pearl.heir, {"memory_import_grimoire": {"path": archive}})
    assert lived.keys() == TOOLS.keys(), "a new tool needs a case here"
    assert [name for name, answer in lived.items() if answer.is_error] == [], "these arguments are refused to anybody"
    before = facts_of(home, pearl)
    assert all(before[kind] for kind in OF_TOOLS)

    insight = lived["memory_manage_insight"].structured_content["insight_id"]
    attack = arguments("night", insight=insight, archive=archive)
    for golem in (pearl.heir, pearl.golem):
        doors = {
            "the argument golem_id": over_http(CORAL, coral.heir, attack, golem_id=golem),
            "the header bardo-golem": over_http(CORAL, golem, attack),
            "stdio": asyncio.run(use_over_stdio(home, golem, partial(call_each, given=attack))),
        }
        for door, answers in doors.items():
            for name, answer in answers.items():
                shown = answer.content[0].text
                assert answer.structured_content["error"] == "UnknownGolemError", f"{name} by {door}: {shown}"
                assert pearl.traces(shown, golem) == [], f"{name} by {door} shows another owner: {shown}"

    below = f"../archives/{Path(archive).parent.name}/{Path(archive).name}"
    others = (
        {"memory_record_outcome": attack["memory_record_outcome"]},
        {"memory_import_grimoire": {"path": below}},
        {"memory_import_grimoire": {"path": archive}},
        {"memory_manage_insight": {"operation": "DOWNVOTE", "insight_id": insight}},
        {"memory_manage_insight": {"operation": "EDIT", "insight_id": pearl.entry, "content": "night"}},
    )
    for sent in others:
        for name, answer in over_http(CORAL, coral.heir, sent).items():
            shown = answer.content[0].text
            assert answer.is_error, f"{name} takes what is another owner's: {shown}"
            assert pearl.traces(shown, f"{below} {archive} {pearl.entry}") == [], shown
    del attack["memory_manage_insight"], attack["memory_import_grimoire"]
    answers = over_http(CORAL, coral.heir, attack)
    for name, answer in answers.items():
        shown = answer.content[0].text
        assert not answer.is_error, f"{name}: {shown}"
        assert pearl.traces(shown) == [], f"{name} shows another owner: {shown}"
    exported = Path(answers["memory_export_grimoire"].structured_content["path"]).read_text()
    assert pearl.traces(exported) == []
    assert answers["memory_store_strategy"].structured_content["version"] == 1
    assert answers["memory_compare_prediction"].structured_content["sample_count"] == 1
    assert facts_of(home, pearl) == before
