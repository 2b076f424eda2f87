"""Consolidation of episodes into insights, decay, and staged changes of strategies, on a real home."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from bardo_pipeline.tools.call_tool import call_tool
from bardo_pipeline.tools.consolidation import ConsolidateResult
from bardo_pipeline.tools.tool_call import Caller
from tests.support.homes.tool_homes import ToolHome, tool_home

SLIPPED = (
    "The swap slipped because the pool was thin: split large swaps.",
    "Slippage was high since the pool had little depth: split the swap.",
    "The pool was thin and the swap slipped: use smaller swaps.",
)


@pytest.fixture
def home(tmp_path: Path) -> ToolHome:
    """A home with two owners' golems."""
    return tool_home(tmp_path / "home")


def store(home: ToolHome, texts: tuple[str, ...], profit: float, **changed: Any) -> list[str]:
    """Store episodes of swaps on base, an hour apart."""
    ids = []
    for text in texts:
        arguments = {
            "tool": "uniswap_execute_swap",
            "chain": "base",
            "outcome": {"pnl_usd": profit},
            "reflection": text,
        }
        ids.append(home.call("memory_store_episode", **arguments | changed).episode_id)
        home.wait(hours=1)
    return ids


def test_a_cluster_of_episodes_becomes_an_insight_once(home: ToolHome) -> None:
    ids = store(home, SLIPPED, -3.0)
    store(home, ("Gas rose.", "Gas fell."), 1.0, tool="gas_watch")
    dry = home.call("memory_consolidate", dry_run=True)
    assert (dry.insights_created, dry.counts.after) == (1, 0)
    assert "InsightManaged" not in home.kinds()
    done = home.call("memory_consolidate")
    assert (done.episodes_processed, done.clusters_found, done.insights_created) == (3, 1, 1)
    assert (done.counts.before, done.counts.after) == (0, 1)
    assert done.insights == dry.insights
    (insight,) = home.call("memory_get_insights").insights
    assert insight.content.startswith("uniswap_execute_swap on base harms: 0 of 3 runs gained, mean result -3.")
    assert any(text in insight.content for text in SLIPPED)
    assert (insight.category, insight.confidence, insight.source) == ("slippage", 0.6, "consolidation")
    assert sorted(home.context.log.life("EpisodesConsolidated")["consolidated"][0].as_py()["episode_ids"]) == sorted(
        ids
    )
    again = home.call("memory_consolidate")
    assert (again.episodes_processed, again.clusters_found, again.counts.after) == (0, 0, 1)
    found = home.call("memory_search", query="why do swaps on thin pools harm?", store="insights").results
    assert [hit.id for hit in found] == [insight.id]


def test_the_result_states_the_figures_of_its_events(home: ToolHome) -> None:
    store(home, SLIPPED, -3.0)
    store(home, ("Gas rose.",), 1.0, tool="gas_watch")
    clock = (home.at + timedelta(milliseconds=250 * turn) for turn in count())
    done = call_tool(
        home.context,
        Caller(home.golem),
        "memory_consolidate",
        {},
        clock=clock.__next__,
        ids=lambda: "c",
        gate=home.gate,
    )
    (stated,) = home.context.log.life("EpisodesConsolidated")["consolidated"].to_pylist()
    calls = home.context.log.life("ToolCalled")["called"].to_pylist()
    (called,) = (row for row in calls if row["tool_name"] == "memory_consolidate")
    assert isinstance(done, ConsolidateResult)
    assert (done.episodes_processed, done.clusters_found) == (len(stated["episode_ids"]), stated["cluster_count"])
    assert done.duration_ms == called["duration_ms"] > 0


def test_a_cluster_without_a_stated_result_gives_no_insight(home: ToolHome) -> None:
    store(home, SLIPPED, 0.0, outcome={})
    done = home.call("memory_consolidate")
    assert (done.clusters_found, done.insights_created, done.insights) == (1, 0, ())
    assert "InsightManaged" not in home.kinds()


@pytest.mark.full
def test_a_later_cluster_confirms_or_contradicts_the_insight(home: ToolHome) -> None:
    store(home, SLIPPED, -3.0)
    home.call("memory_consolidate")
    store(home, SLIPPED, -1.0)
    assert home.call("memory_consolidate").insights_reinforced == 1
    (insight,) = home.call("memory_get_insights").insights
    assert insight.confidence == pytest.approx(0.7)
    store(home, ("Splitting the swap paid.", "Small swaps paid.", "The split swap did not slip."), 2.0)
    done = home.call("memory_consolidate")
    assert [said.operation for said in done.insights] == ["DOWNVOTE", "ADD"]
    confidence = {i.content.split(":")[0]: i.confidence for i in home.call("memory_get_insights").insights}
    assert confidence == pytest.approx(
        {"uniswap_execute_swap on base harms": 0.55, "uniswap_execute_swap on base pays": 0.6}
    )


@pytest.mark.full
def test_tagged_episodes_are_read_first_and_the_limit_holds(home: ToolHome) -> None:
    store(home, SLIPPED, -3.0)
    tagged = store(home, SLIPPED, 4.0, tool="rebalance", dream_tag="review")
    done = home.call("memory_consolidate", max_episodes=3)
    assert (done.episodes_processed, done.clusters_found) == (3, 1)
    (row,) = home.context.log.life("EpisodesConsolidated")["consolidated"].to_pylist()
    assert sorted(row["episode_ids"]) == sorted(tagged)


@pytest.mark.full
def test_the_decay_pass_names_each_decayed_episode_once_and_search_leaves_it_out(home: ToolHome) -> None:
    routine = store(home, ("An ordinary swap of the morning.",), 1.0)
    store(home, ("A notable swap of the evening.",), 1.0, importance="notable")
    home.wait(days=22)
    assert home.call("memory_consolidate").episodes_decayed == 0  # age counts to the golem's newest text
    store(home, ("A swap three weeks later.",), 1.0)
    assert home.call("memory_consolidate", run_decay=False).episodes_decayed == 0
    query = {"query": "an ordinary swap of the morning"}
    assert routine[0] in {hit.id for hit in home.call("memory_search", **query).results}
    assert home.call("memory_consolidate").episodes_decayed == 1
    assert home.call("memory_consolidate").episodes_decayed == 0
    assert routine[0] not in {hit.id for hit in home.call("memory_search", **query).results}


def settle(home: ToolHome, results: Sequence[tuple[str, float]]) -> None:
    """Record executions of a strategy; those that lost get the reflection that their deviation asks for."""
    for execution_id, result in results:
        home.call(
            "memory_record_execution", execution_id=execution_id, strategy_name="maker", action_type="QUOTE",
            portfolio_snapshot={}, market_conditions={}, decision_params={}, predicted_outcome={"expected_pnl_usd": 3},
        )  # fmt: skip
        home.wait(minutes=1)
        told = {"reflection": "The spread was too tight: widen it."} if result < 0 else {}
        home.call("memory_record_outcome", execution_id=execution_id, realized_pnl=result, gas_used_usd=0, **told)
        home.wait(minutes=1)


@pytest.mark.row("MEM-24")
def test_reflections_on_a_strategy_state_how_all_its_executions_ended(home: ToolHome) -> None:
    settle(home, [(f"e-{n}", -4.0 if n % 4 == 0 else 3.0) for n in range(12)])
    assert home.call("memory_compare_prediction").sample_count == 12
    assert home.call("memory_consolidate").insights_created == 1
    (insight,) = home.call("memory_get_insights").insights
    assert insight.content.startswith("maker pays: 9 of 12 runs gained, mean result 1.25.")
    settle(home, [(f"f-{n}", -4.0 if n % 4 else 3.0) for n in range(4)])
    contents = [said.content for said in home.call("memory_consolidate").insights]
    assert contents[-1].startswith("maker harms: 1 of 4 runs gained, mean result -2.25."), "a run counts in one cluster"


@pytest.mark.row("MEM-24")
@pytest.mark.full
def test_failures_stage_changes_that_no_strategy_takes_over_by_itself(home: ToolHome) -> None:
    stored = {"parameters": {"width": 0.01}, "description": "", "chains": [], "token_pairs": []}
    home.call("memory_store_strategy", strategy_name="narrow", **stored)
    for number in range(8):
        home.call(
            "memory_record_execution", execution_id=f"e-{number}", strategy_name="narrow", action_type="SWAP",
            portfolio_snapshot={}, market_conditions={"regime": "volatile" if number < 5 else "range_bound"},
            decision_params={"width": 0.01}, predicted_outcome={"expected_pnl_usd": 1},
        )  # fmt: skip
        home.call("memory_record_outcome", execution_id=f"e-{number}", realized_pnl=-2.0 if number < 5 else 1.0,
                  gas_used_usd=0)  # fmt: skip
    assert home.call("memory_consolidate").adjustments_staged == 1
    assert home.call("memory_consolidate").adjustments_staged == 0
    (strategy,) = home.call("memory_retrieve_strategies").strategies
    assert (strategy.version, strategy.parameters) == (1, {"width": 0.01})
    (staged,) = strategy.staged_adjustments
    assert (staged.features["regime"], staged.failure_count) == ("volatile", 5)
    assert "while the regime is volatile" in staged.suggested_adjustments[0]
    home.call("memory_store_strategy", strategy_name="narrow", **stored | {"parameters": {"width": 0.05}})
    (strategy,) = home.call("memory_retrieve_strategies").strategies
    assert (strategy.version, strategy.staged_adjustments) == (2, ())
