"""Executions, outcomes, comparison of predictions and failure patterns, on a real home."""

from __future__ import annotations

import random
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bardo_pipeline.errors import ToolError
from bardo_pipeline.tools.executions import RecordOutcomeResult
from tests.support.homes.tool_homes import ToolHome, tool_home


@pytest.fixture
def home(tmp_path: Path) -> ToolHome:
    """A home with two owners' golems."""
    return tool_home(tmp_path / "home")


def record(home: ToolHome, execution_id: str, predicted: Any = 10.0, **changed: Any) -> Any:
    """Record an execution that predicts a profit between 8 and 12 dollars."""
    outcome = {"expected_pnl_usd": predicted, "confidence_interval": [predicted - 2, predicted + 2]}
    arguments = {
        "execution_id": execution_id, "strategy_name": "narrow", "action_type": "REBALANCE",
        "portfolio_snapshot": {"WETH": 1.5}, "market_conditions": {"regime": "range_bound", "gas_gwei": 12},
        "decision_params": {"width": 0.04}, "predicted_outcome": outcome,
    }  # fmt: skip
    return home.call("memory_record_execution", **arguments | changed)


def settle(home: ToolHome, execution_id: str, realized: float, **changed: Any) -> RecordOutcomeResult:
    """Record the outcome of an execution."""
    result: RecordOutcomeResult = home.call(
        "memory_record_outcome", execution_id=execution_id, realized_pnl=realized, **{"gas_used_usd": 0.3} | changed
    )
    return result


@pytest.mark.row("MEM-18")
def test_an_execution_is_recorded_before_its_outcome_and_linked_to_it(home: ToolHome) -> None:
    with pytest.raises(ToolError, match=r"e-1 of golem .* is not on record: call memory_record_execution"):
        settle(home, "e-1", 9.0)
    assert home.kinds() == []
    recorded = record(home, "e-1")
    assert (recorded.predicted_pnl_usd, recorded.strategy_version, recorded.counts.after) == (10.0, None, 1)
    home.wait(hours=2)
    settled = settle(home, "e-1", 9.0)
    assert settled.prediction_error == pytest.approx(0.1)
    assert (settled.counts.before, settled.counts.after) == (0, 1)
    assert home.kinds() == ["ExecutionRecorded", "OutcomeRecorded", "ToolCalled", "ToolCalled"]


def test_a_repeated_record_changes_nothing_and_a_contradicting_one_is_refused(home: ToolHome) -> None:
    first = record(home, "e-1")
    settle(home, "e-1", 9.0)
    home.wait(hours=1)
    again = record(home, "e-1")
    assert (again.recorded_at, again.counts.before, again.counts.after) == (first.recorded_at, 1, 1)
    assert settle(home, "e-1", 9.0).counts.after == 1
    with pytest.raises(ToolError, match=r"e-1 is on record .* predicted_micros, predicted_outcome: record another"):
        record(home, "e-1", predicted_outcome={"expected_pnl_usd": 11})
    with pytest.raises(ToolError, match=r"e-1 is on record .* with another realized_micros"):
        settle(home, "e-1", 9.5)
    assert home.kinds() == ["ExecutionRecorded", "OutcomeRecorded", "ToolCalled", "ToolCalled"]


@pytest.mark.row("MEM-17")
def test_performance_of_a_strategy_is_derived_from_its_settled_executions(home: ToolHome) -> None:
    stored = {"parameters": {}, "description": "", "chains": [], "token_pairs": []}
    home.call("memory_store_strategy", strategy_name="narrow", **stored)
    realized = [3.0, -1.0, 2.0, 4.0, 0.0]
    for number, profit in enumerate(realized):
        assert record(home, f"e-{number}").strategy_version == 1
        settle(home, f"e-{number}", profit)
    record(home, "open")
    record(home, "other", strategy_name="wide")
    (strategy,) = home.call("memory_retrieve_strategies").strategies
    performance = strategy.performance
    assert (performance.total_executions, performance.settled_executions) == (6, 5)
    assert performance.avg_pnl_usd == pytest.approx(1.6)
    assert performance.win_rate == pytest.approx(0.6)
    assert performance.sharpe_ratio == pytest.approx(statistics.mean(realized) / statistics.stdev(realized))


@pytest.mark.row("MEM-24")
def test_a_deviation_above_a_fifth_asks_for_a_reflection_until_one_is_recorded(home: ToolHome) -> None:
    for number, (realized, requested) in enumerate([(8.0, False), (7.9, True), (12.1, True)]):
        record(home, f"e-{number}")
        settled = settle(home, f"e-{number}", realized)
        assert (settled.reflection_requested, settled.reflection_request is not None) == (requested, requested)
    assert "Expected: 10.00 USD, between 8.00 and 12.00. Happened: 12.10 USD" in str(settled.reflection_request)
    assert home.call("memory_compare_prediction").reflections_pending == ("e-1", "e-2")
    home.wait(hours=1)
    reflected = settle(home, "e-1", 7.9, reflection="The range was too narrow: widen it before a trend.")
    assert not reflected.reflection_requested
    (hit, *_) = home.call("memory_search", query="was the range too narrow before a trend?").results
    assert hit.content.startswith("Expected: 10.00 USD. Happened: 7.90 USD. The range was too narrow")
    assert hit.metadata["importance"] == "notable", "a deviation is kept longer"
    assert home.call("memory_compare_prediction").reflections_pending == ("e-2",)
    record(home, "e-3")
    assert not settle(home, "e-3", 1.0, reflection="Gas rose: wait for a calm hour.").reflection_requested
    analysis = home.call("memory_compare_prediction")
    assert (analysis.sample_count, analysis.reflections_pending) == (4, ("e-2",))


@pytest.mark.row("MEM-18", "MEM-24")
def test_a_reflection_before_the_settlement_is_found_at_once_and_stored_once(home: ToolHome) -> None:
    for _ in range(2):
        record(home, "e-1", reflection="The zebra pool is deep, so it will fill.")
    record(home, "e-2", reflection=" ")
    (hit,) = home.call("memory_search", query="is the zebra pool deep?").results
    assert (hit.content, hit.metadata["tool"]) == ("The zebra pool is deep, so it will fill.", "narrow")
    assert (hit.metadata["sort"], hit.metadata["outcome"]) == ("reflection", '{"execution_id":"e-1"}')


@pytest.mark.row("MEM-18")
@pytest.mark.full
def test_errors_calibration_and_bias_equal_those_computed_by_hand(home: ToolHome) -> None:
    draw = random.Random(5)
    errors, shortfalls, held = [], [], []
    for number in range(24):
        predicted, realized = draw.uniform(-5, 20), draw.uniform(-10, 25)
        record(home, f"e-{number}", predicted)
        settle(home, f"e-{number}", realized)
        scale = max(abs(round(predicted * 1e6)), 10_000) / 1e6
        errors.append(abs(realized - predicted) / scale)
        shortfalls.append((realized - predicted) / scale)
        held.append(abs(realized - predicted) <= 2)
        home.wait(hours=3)
    analysis = home.call("memory_compare_prediction", period="7d", strategy_name="narrow")
    stats = analysis.prediction_error
    assert analysis.sample_count == 24
    assert stats.mean == pytest.approx(statistics.mean(errors), rel=1e-5)
    assert stats.stddev == pytest.approx(statistics.stdev(errors), rel=1e-5)
    assert stats.median == pytest.approx(statistics.median(errors), rel=1e-5)
    assert stats.p95 == pytest.approx(float(np.quantile(errors, 0.95)), rel=1e-5)
    assert analysis.bias == pytest.approx(statistics.mean(shortfalls), rel=1e-4)
    assert analysis.calibration_accuracy == pytest.approx(1 - abs(sum(held) / 24 - 0.8))
    assert home.call("memory_compare_prediction", strategy_name="wide").sample_count == 0


@pytest.mark.row("MEM-18")
@pytest.mark.parametrize(
    ("first", "last", "trend"), [(0.1, 4.0, "degrading"), (4.0, 0.1, "improving"), (1.0, 1.0, "stable")]
)
def test_a_trend_of_the_errors_is_found(home: ToolHome, first: float, last: float, trend: str) -> None:
    for number in range(10):
        record(home, f"e-{number}")
        settle(home, f"e-{number}", 10 + first + (last - first) * number / 9)
        home.wait(hours=1)
    analysis = home.call("memory_compare_prediction")
    assert analysis.drift_trend == trend
    assert analysis.drift_score == pytest.approx({"degrading": 1, "improving": -1, "stable": 0}[trend])


@pytest.mark.row("MEM-18")
def test_few_outcomes_show_neither_drift_nor_overconfidence(home: ToolHome) -> None:
    seen = []
    for number in range(5):
        record(home, f"e-{number}", predicted_outcome={"expected_return": 10})
        settle(home, f"e-{number}", 4 - number)
        home.wait(hours=1)
        analysis = home.call("memory_compare_prediction")
        seen.append((analysis.drift_score, analysis.overconfidence_detected))
    assert seen == [(0.0, False)] * 3 + [(pytest.approx(1.0), False), (pytest.approx(1.0), True)]


@pytest.mark.row("MEM-18")
@pytest.mark.full
def test_narrow_intervals_are_overconfident_over_each_period_that_holds_their_outcomes(home: ToolHome) -> None:
    for number in range(6):
        record(home, f"old-{number}")
        settle(home, f"old-{number}", 10 + 9 * (-1) ** number)
    home.wait(days=20)
    for number in range(6):
        record(home, f"new-{number}")
        settle(home, f"new-{number}", 10.5)
    by_period = {p: home.call("memory_compare_prediction", period=p) for p in ("7d", "30d", "90d")}
    assert {p: a.sample_count for p, a in by_period.items()} == {"7d": 6, "30d": 12, "90d": 12}
    assert {p: a.overconfidence_detected for p, a in by_period.items()} == {"7d": False, "30d": True, "90d": True}
    assert by_period["7d"].overconfidence_by_period == {"7d": False, "30d": True, "90d": True}
    home.wait(days=85)
    assert home.call("memory_compare_prediction", period="90d").sample_count == 6


def test_predictions_without_interval_are_overconfident_if_most_fall_short(home: ToolHome) -> None:
    for number in range(6):
        record(home, f"e-{number}", predicted_outcome={"expected_return": 10})
        settle(home, f"e-{number}", 4)
    analysis = home.call("memory_compare_prediction")
    assert analysis.calibration_accuracy is None
    assert analysis.overconfidence_detected
    assert analysis.bias == pytest.approx(-0.6)


@pytest.mark.row("MEM-19")
@pytest.mark.full
def test_failures_are_clustered_by_the_features_that_they_share(home: ToolHome) -> None:
    for number in range(40):
        dear = number % 4 == 0
        conditions = {"regime": "volatile" if dear else "range_bound", "gas_gwei": 90 if dear else 10}
        record(home, f"e-{number}", market_conditions=conditions, decision_params={"width": 0.01 if dear else 0.04})
        settle(home, f"e-{number}", -3.0 if dear else 2.0 if number % 10 else -1.0)
        home.wait(hours=1)
    result = home.call("memory_get_failure_patterns")
    assert (result.settled_count, result.failure_count) == (40, 12)
    (cluster,) = result.clusters
    assert cluster.features == {"regime": "volatile", "gas_level": "dear"}
    assert (cluster.execution_count, cluster.settled_count, cluster.strategies) == (10, 10, ("narrow",))
    assert cluster.avg_pnl == pytest.approx(-3.0)
    assert "10 of 10 failed" in cluster.hypothesis
    assert "of the other 30 executions 2 failed" in cluster.hypothesis
    changes = " ".join(cluster.suggested_adjustments)
    assert "while the regime is volatile" in changes
    assert "while gas is at 90 or above" in changes
    assert "Change width from 0.01 to 0.04" in changes
    assert home.call("memory_get_failure_patterns", min_executions=11).clusters == ()
    assert home.call("memory_get_failure_patterns", strategy_name="wide").settled_count == 0
    assert home.call("memory_get_failure_patterns", failure_threshold=-2.0).failure_count == 10


@pytest.mark.row("MEM-19")
def test_no_cluster_is_smaller_than_the_minimum(home: ToolHome) -> None:
    for number in range(8):
        regime = "volatile" if number < 4 else "trending_up"
        record(home, f"e-{number}", market_conditions={"regime": regime})
        settle(home, f"e-{number}", -1.0 if number < 4 else 1.0)
    assert home.call("memory_get_failure_patterns").clusters == ()
    (cluster,) = home.call("memory_get_failure_patterns", min_executions=4).clusters
    assert cluster.features["regime"] == "volatile"
