"""Pure parts of the tools' analyses: fields read from free JSON, patterns of failures."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from bardo_pipeline.tools.failure_patterns import FEATURES, FailurePatternsResult, failure_clusters, find_patterns
from bardo_pipeline.tools.prediction_fields import GAS, REGIME, VOLATILITY, first_number, first_text, prediction_of


@pytest.mark.row("MEM-18")
@pytest.mark.parametrize(
    ("stated", "read"),
    [
        ({"expected_pnl_usd": 10, "confidence_interval": [12, 8]}, (10, 8, 12, 0.8)),
        ({"Expected-Return": 10, "confidence_interval": {"lower": 8, "upper": 12, "level": 90}}, (10, 8, 12, 0.9)),
        ({"expected_return": 10, "low": 8, "high": 12, "confidence_level": 0.95}, (10, 8, 12, 0.95)),
        ({"interval": {"low": 8, "high": 12}}, (10, 8, 12, 0.8)),
        ({"result": {"pnl": -3}}, (-3, None, None, 0.8)),
        ({"fees": 2, "il": 1}, (None, None, None, 0.8)),
        ({"expected_pnl": True, "pnl": "ten"}, (None, None, None, 0.8)),
        ({"expected_pnl_usd": "12.5", "ci": ["8", " 15 "]}, (12.5, 8, 15, 0.8)),
        ({"expected_pnl_usd": "nan", "pnl": "1e400"}, (None, None, None, 0.8)),
        (7.5, (7.5, None, None, 0.8)),
        ([10], (None, None, None, 0.8)),
        ({"expected_pnl": 10, "confidence_interval": [8]}, (10, None, None, 0.8)),
    ],
)
def test_a_prediction_is_read_under_the_names_that_runtimes_use(stated: Any, read: tuple[float | None, ...]) -> None:
    assert tuple(prediction_of(stated, 0.8)) == read


def test_the_outermost_field_of_the_first_name_counts() -> None:
    conditions = {"pool": {"gas": 5, "regime": "calm"}, "base_fee": 9, "Volatility": 0.3, "regime": " volatile "}
    assert first_number(conditions, GAS) == 9
    assert first_number(conditions, VOLATILITY) == 0.3
    assert first_text(conditions, REGIME) == "volatile"
    assert first_number({"gas": float("inf")}, GAS) is None


def cells(*rows: tuple[str | None, str | None, str | None, str | None, int, int]) -> pa.Table:
    """Return cells of executions: the four features, settled and failed executions."""
    return pa.Table.from_pylist([dict(zip((*FEATURES, "settled", "failures"), row, strict=True)) for row in rows])


@pytest.mark.row("MEM-19")
def test_a_pattern_has_the_features_that_its_failures_share_and_no_others() -> None:
    found = find_patterns(
        cells(
            ("volatile", "75-100", "dear", "00:00-06:00", 4, 4), ("volatile", "75-100", "dear", "06:00-12:00", 4, 4),
            ("calm", "0-25", "dear", "00:00-06:00", 10, 0), ("calm", "0-25", "cheap", "06:00-12:00", 10, 1),
        ),
        5,
    )  # fmt: skip
    assert [(p.features, p.settled, p.failures) for p in found] == [
        ({"regime": "volatile", "volatility_percentile": "75-100", "gas_level": "dear"}, 8, 8)
    ]


@pytest.mark.row("MEM-19")
def test_each_execution_counts_in_one_pattern_of_at_least_the_minimum() -> None:
    rows = cells(
        ("volatile", None, "dear", "00:00-06:00", 6, 6), ("calm", None, "dear", "00:00-06:00", 6, 5),
        ("calm", None, "cheap", "12:00-18:00", 20, 2), ("volatile", None, "cheap", "12:00-18:00", 4, 4),
    )  # fmt: skip
    found = find_patterns(rows, 5)
    assert sum(p.failures for p in found) <= 17
    assert all(p.failures >= 5 for p in found)
    assert found[0].features == {"regime": "volatile"}
    assert find_patterns(rows, 18) == []
    assert find_patterns(rows.slice(0, 0), 1) == []


@pytest.mark.row("MEM-19")
def test_executions_that_all_fail_alike_form_one_pattern() -> None:
    (pattern,) = find_patterns(cells(("calm", "50-75", "normal", "00:00-06:00", 6, 6)), 5)
    assert (pattern.settled, pattern.failures, len(pattern.features)) == (6, 6, 4)
    spread = [("volatile", None, "normal", quarter, 3, 3) for quarter in ("00:00-06:00", "06:00-12:00")]
    (pattern,) = find_patterns(cells(*spread), 5)
    assert pattern.features == {"regime": "volatile", "gas_level": "normal"}, "no quarter of the day has five failures"
    assert find_patterns(cells(("calm", None, None, "00:00-06:00", 6, 0)), 5) == []


@pytest.mark.row("MEM-19")
def test_a_feature_with_one_value_in_all_executions_is_in_no_pattern_beside_others() -> None:
    alike = ("calm", "50-75", "normal", "00:00-06:00", 6, 6)
    (pattern,) = find_patterns(cells(alike, ("volatile", "50-75", None, "00:00-06:00", 9, 0)), 5)
    assert pattern.features == {"regime": "calm"}


def clusters(*changes: dict[str, Any]) -> FailurePatternsResult:
    """Return the clusters of at least one failure among executions, which gain a dollar at noon unless changed."""
    execution = {"strategy_name": "narrow", "decision_params": "{}", "realized_micros": 1_000_000, "regime": None,
                 "volatility": 1.0, "gas_level": 20.0, "executed_at": datetime(2026, 3, 1, 12, tzinfo=UTC)}  # fmt: skip
    rows = [execution | {"execution_id": f"e-{place}"} | changed for place, changed in enumerate(changes)]
    return failure_clusters(pa.Table.from_pylist(rows), strategy_name=None, failures_min=1, threshold_usd=0.0)


@pytest.mark.row("MEM-19")
@pytest.mark.parametrize(
    ("hour", "named"),
    [(0, "00:00-06:00"), (5, "00:00-06:00"), (6, "06:00-12:00"), (12, "12:00-18:00"), (18, "18:00-24:00"),
     (23, "18:00-24:00")],
)  # fmt: skip
def test_the_time_of_day_of_a_failure_is_a_quarter_of_the_day(hour: int, named: str) -> None:
    lost, won = (datetime(2026, 3, 1, at, tzinfo=UTC) for at in (hour, (hour + 6) % 24))
    (cluster,) = clusters({"realized_micros": -1, "executed_at": lost}, {"executed_at": won}).clusters
    assert cluster.features["time_of_day"] == named


@pytest.mark.row("MEM-19")
@pytest.mark.parametrize(("lost_at", "stretch"), [((2.0, 2.0), "2"), ((2.0, 2.5), "between 2 and 2.5")])
def test_a_change_names_the_volatility_of_the_failures_once_if_it_is_one(
    lost_at: tuple[float, float], stretch: str
) -> None:
    lost = [{"realized_micros": -1, "volatility": value} for value in lost_at]
    (cluster,) = clusters(*lost, *[{"volatility": value} for value in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)]).clusters
    changes = [change for change in cluster.suggested_adjustments if "volatility" in change]
    assert changes == [f"Reduce the position, or widen its range, while volatility is {stretch}."]


@pytest.mark.row("MEM-19")
@pytest.mark.parametrize(
    ("place", "percentile", "gas"),
    [(1, "0-25", "cheap"), (2, "0-25", "cheap"), (3, "25-50", "normal"), (4, "25-50", "normal"), (5, "50-75", "normal"),
     (6, "50-75", "normal"), (7, "75-100", "dear"), (8, "75-100", "dear")],
)  # fmt: skip
def test_volatility_and_gas_of_a_failure_are_places_among_all_executions(place: int, percentile: str, gas: str) -> None:
    lost = {place: {"realized_micros": -1}}
    found = clusters(*({"volatility": float(n), "gas_level": 10.0 * n} | lost.get(n, {}) for n in range(1, 9)))
    (cluster,) = found.clusters
    assert (cluster.features["volatility_percentile"], cluster.features["gas_level"]) == (percentile, gas)


@pytest.mark.row("MEM-19")
def test_an_execution_at_the_threshold_did_not_fail() -> None:
    found = clusters({"realized_micros": 0}, {"realized_micros": -1})
    assert (found.settled_count, found.failure_count) == (2, 1)


@pytest.mark.row("MEM-19")
@pytest.mark.parametrize(("winner", "count"), [("narrow", 1), ("wide", 0)])
def test_a_parameter_is_compared_with_profits_of_the_same_strategy_only(winner: str, count: int) -> None:
    won = {"strategy_name": winner, "decision_params": '{"width": 9}', "regime": "calm"}
    lost = {"realized_micros": -1, "decision_params": '{"width": 1}', "regime": "volatile"}
    (cluster,) = clusters(won, lost).clusters
    assert sum("Change width from 1 to 9" in change for change in cluster.suggested_adjustments) == count
