"""Marts of executions and strategies equal what the memory tools say."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from bardo_pipeline.storage.warehouse.build import build_warehouse, query
from tests.support.homes.tool_homes import tool_home

pytestmark = [pytest.mark.full, pytest.mark.row("P-4", "MEM-17", "MEM-18")]


def test_executions_and_strategies_are_marts(tmp_path: Path) -> None:
    home = tool_home(tmp_path / "home")
    for width in (0.04, 0.02):
        home.call(
            "memory_store_strategy", strategy_name="narrow", parameters={"width": width}, description="",
            chains=["base"], token_pairs=[],
        )  # fmt: skip
    for number, realized in enumerate((3.0, -1.0, None)):
        home.call(
            "memory_record_execution", execution_id=f"e-{number}", strategy_name="narrow", action_type="SWAP",
            portfolio_snapshot={}, market_conditions={"regime": "volatile"}, decision_params={},
            predicted_outcome={"expected_pnl": 2, "low": 1, "high": 4},
        )  # fmt: skip
        if realized is not None:
            outcome = {"execution_id": f"e-{number}", "realized_pnl": realized, "gas_used_usd": 0.1,
                       "impermanent_loss": 0.5, "unrealized_pnl": 4.0}  # fmt: skip
            error = home.call("memory_record_outcome", **outcome).prediction_error
            home.wait(hours=1)
            home.call("memory_record_outcome", **outcome, reflection="Wait for a calm hour.")
    build_warehouse(home.context.home, home.context.derivation_id, home.context.policy)
    names = "golem_id, owner_id, execution_id, strategy_version, regime, realized_usd, impermanent_loss_usd, "
    names += "unrealized_usd, held, has_reflection"
    rows = query(home.context.home, f"select {names} from fct_executions order by execution_id")[1]
    common = (home.golem, "coral")
    assert rows == [
        (*common, "e-0", 2, "volatile", 3.0, 0.5, 4.0, True, True),
        (*common, "e-1", 2, "volatile", -1.0, 0.5, 4.0, False, True),
        (*common, "e-2", 2, "volatile", None, None, None, None, False),
    ]
    errors = query(home.context.home, "select prediction_error from fct_executions where execution_id = 'e-1'")[1]
    assert errors == [(error,)]
    names = "version, is_newest, execution_count, settled_count, pnl_mean_usd, win_rate, sharpe_ratio"
    rows = query(home.context.home, f"select {names} from fct_strategies order by version")[1]
    performance = home.call("memory_retrieve_strategies").strategies[0].performance
    newest = (performance.avg_pnl_usd, performance.win_rate, pytest.approx(performance.sharpe_ratio))
    assert rows == [(1, False, 0, 0, None, None, None), (2, True, 3, 2, *newest)]


def test_texts_that_a_runtime_stored_are_episodes_in_the_mart(tmp_path: Path) -> None:
    home = tool_home(tmp_path / "home")
    told = home.call(
        "memory_store_episode", tool="swap", outcome={"bps": 40}, reflection="It slipped.", chain="",
        importance="notable",
    )  # fmt: skip
    home.call("memory_manage_insight", operation="ADD", content="Noon is dear.", category="gas_timing")
    build_warehouse(home.context.home, home.context.derivation_id, home.context.policy)
    names = "episode_id, sort, owner_id, tool, outcome, text, tick, importance_tier, may_go_at"
    (row,) = query(home.context.home, f"select {names} from fct_episodes")[1]
    *shown, may_go_at = row
    assert shown == [told.episode_id, "episode", "coral", "swap", '{"bps":40}', "It slipped.", None, "notable"]
    assert may_go_at.replace(tzinfo=UTC) == datetime.fromisoformat(told.estimated_retention_until)
