"""Comparison of predictions with outcomes: errors, calibration, drift, overconfidence.

Source: TOOLS (memory_compare_prediction), MEM-18.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal

import pyarrow as pa
from pydantic import Field

from bardo_pipeline.events.record.arrow_schema import MOMENT
from bardo_pipeline.tools.definition import Guidance, Tool
from bardo_pipeline.tools.execution_queries import run_query, settled_executions
from bardo_pipeline.tools.schemas import Arguments, Label, Result
from bardo_pipeline.tools.tool_call import ToolCall

PERIOD_DAYS = {"7d": 7, "30d": 30, "90d": 90}
"""TOOLS (ComparePredictionParams)."""


class ComparePredictionArguments(Arguments):
    """Arguments of memory_compare_prediction."""

    strategy_name: Label | None = Field(None, description="Only executions of this strategy.")
    period: Literal["7d", "30d", "90d"] = Field("30d", description="Outcomes of the last 7, 30 or 90 days.")


class ErrorStats(Result):
    """Statistics of the relative prediction errors; null without an outcome."""

    mean: float | None = Field(description="Mean.")
    stddev: float | None = Field(description="Standard deviation of the sample; 0 for one outcome.")
    median: float | None = Field(description="Median.")
    p95: float | None = Field(description="95th percentile.")


class PredictionAnalysis(Result):
    """Result of memory_compare_prediction."""

    prediction_error: ErrorStats = Field(
        description="Statistics of abs(realized - predicted) / abs(predicted), the divisor at least one cent."
    )
    calibration_accuracy: float | None = Field(
        description="1 - abs(share of outcomes inside their interval - mean stated level); null without an interval."
    )
    drift_score: float = Field(
        ge=-1, le=1, description="Rank correlation of errors with time; above 0 the errors grow. 0 below 4 outcomes."
    )
    drift_trend: Literal["improving", "stable", "degrading"] = Field(
        description="Whether accuracy improves or degrades significantly over the period."
    )
    overconfidence_detected: bool = Field(
        description="Whether intervals hold fewer outcomes than they state; without intervals, whether most outcomes "
        "fall short of their prediction by more than 20 %. False below 5 outcomes."
    )
    sample_count: int = Field(ge=0, description="Number of settled executions with a prediction in the period.")
    bias: float | None = Field(
        description="Mean of (realized - predicted) / abs(predicted); below 0 predictions are too high. Null without "
        "an outcome."
    )
    overconfidence_by_period: dict[str, bool] = Field(description="overconfidence_detected over 7d, 30d and 90d.")
    reflections_pending: tuple[str, ...] = Field(
        description="Ids of executions in the period that deviate by more than 20 % and have no reflection yet."
    )


_ANALYSIS = """
with judged as (
    select p.period, s.*, s.realized_micros - s.predicted_micros as difference,
        greatest(abs(s.predicted_micros), $floor) as scale, abs(difference) / scale as error,
        s.realized_micros between s.interval_low_micros and s.interval_high_micros as held
    from settled s join periods p on s.settled_at > p.since
    where s.predicted_micros is not null and ($strategy is null or s.strategy_name = $strategy)
), ranked as (
    select *,
        row_number() over (partition by period order by settled_at, execution_id) as place,
        rank() over (partition by period order by error)
            + (count(*) over (partition by period, error) - 1) / 2 as error_rank
    from judged
)
select period, count(*) as sample_count, avg(error) as mean, coalesce(stddev_samp(error), 0) as stddev,
    median(error) as median, quantile_cont(error, 0.95) as p95, avg(difference / scale) as bias,
    case when stddev_pop(error_rank) > 0 then corr(place, error_rank) else 0 end as drift,
    count(held) as interval_count, avg(held::int) as held_share,
    avg(interval_level) filter (where held is not null) as level,
    count_if(difference / scale < -$deviation) as shortfall_count,
    coalesce(list(execution_id order by settled_at, execution_id)
        filter (where error > $deviation and later_reflection is null), []) as pending
from ranked group by period
"""


def _compare(call: ToolCall, arguments: ComparePredictionArguments) -> PredictionAnalysis:
    rules = call.context.policy.tools
    since = pa.array([call.at - timedelta(days=days) for days in PERIOD_DAYS.values()], MOMENT)
    periods = pa.table({"period": list(PERIOD_DAYS), "since": since})
    parameters = {
        "floor": rules.prediction_floor_micros,
        "strategy": arguments.strategy_name,
        "deviation": rules.deviation_max,
    }
    tables = {"settled": settled_executions(call), "periods": periods}
    by_period = {row["period"]: row for row in run_query(_ANALYSIS, tables, parameters).to_pylist()}
    overconfident = {name: _is_overconfident(by_period.get(name), call) for name in PERIOD_DAYS}
    own = by_period.get(arguments.period)
    drift = _drift(own, call)
    return PredictionAnalysis(
        prediction_error=ErrorStats(**{name: own[name] if own else None for name in ErrorStats.model_fields}),
        calibration_accuracy=1 - abs(own["held_share"] - own["level"]) if own and own["interval_count"] else None,
        drift_score=drift,
        drift_trend=_trend(drift, own, call),
        overconfidence_detected=overconfident[arguments.period],
        sample_count=own["sample_count"] if own else 0,
        bias=own["bias"] if own else None,
        overconfidence_by_period=overconfident,
        reflections_pending=tuple(own["pending"]) if own else (),
    )


def _drift(row: dict[str, Any] | None, call: ToolCall) -> float:
    """Return the rank correlation of errors with time, 0 with too few outcomes."""
    if row is None or row["sample_count"] < call.context.policy.tools.drift_samples_min:
        return 0.0
    return min(max(float(row["drift"]), -1.0), 1.0)


def _trend(drift: float, row: dict[str, Any] | None, call: ToolCall) -> Literal["improving", "stable", "degrading"]:
    """Compare the correlation with its standard error under no trend, 1 / sqrt(n - 1)."""
    standard_errors = 0.0 if row is None else drift * (row["sample_count"] - 1) ** 0.5
    if abs(standard_errors) < call.context.policy.tools.drift_z:
        return "stable"
    return "degrading" if drift > 0 else "improving"


def _is_overconfident(row: dict[str, Any] | None, call: ToolCall) -> bool:
    """Whether intervals hold significantly fewer outcomes than stated; without intervals, whether most fall short."""
    rules = call.context.policy.tools
    if row is None:
        return False
    if row["interval_count"] >= rules.overconfidence_samples_min:
        margin = rules.overconfidence_z * (row["level"] * (1 - row["level"]) / row["interval_count"]) ** 0.5
        return bool(row["held_share"] < row["level"] - margin)
    if row["sample_count"] < rules.overconfidence_samples_min:
        return False
    margin = rules.overconfidence_z * 0.5 / row["sample_count"] ** 0.5
    return bool(row["shortfall_count"] / row["sample_count"] > 0.5 + margin)


COMPARE_PREDICTION = Tool(
    name="memory_compare_prediction",
    summary="Analyze prediction accuracy: error stats, calibration, drift detection, overconfidence analysis. "
    "Feeds Pi Reflexion loop. Use to improve future predictions.",
    capability="read",
    tick_budget="medium",
    steps=("Loading execution pairs", "Computing prediction error", "Analyzing drift"),
    guidance=Guidance(
        thriving="Run weekly. Identify systematic prediction biases.",
        cautious="Run more frequently. Watch for overconfidence.",
        declining="Run to understand what the Golem misjudged.",
        terminal="Final analysis for death testament.",
    ),
    arguments=ComparePredictionArguments,
    result=PredictionAnalysis,
    run=_compare,
)
