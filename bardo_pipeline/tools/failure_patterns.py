"""Failure patterns: clusters of failed executions by market regime, volatility, gas and time of day.

A pattern is a set of features. Patterns are taken one after the other, by the lower bound of their failure rate; the
executions of a taken pattern do not count for the next. A pattern fails at least as often as all executions do.
A feature with a single known value among all executions separates nothing. So it is in a pattern only if the other
features give none: then failures that are alike still have their pattern.
Source: TOOLS (memory_get_failure_patterns), MEM-19.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
from pydantic import Field

from bardo_pipeline.arrays import BoolArray, Float64Array
from bardo_pipeline.tools.definition import Guidance, Tool
from bardo_pipeline.tools.execution_queries import run_query, settled_executions
from bardo_pipeline.tools.prediction_fields import numbers_of
from bardo_pipeline.tools.schemas import Arguments, Dollars, Label, Result
from bardo_pipeline.tools.tool_call import ToolCall

FEATURES = ("regime", "volatility_percentile", "gas_level", "time_of_day")
"""TOOLS (FailureCluster)."""

_WILSON_Z = 1.96
_PARAMETERS_MAX = 3
"""Most suggested changes of parameters per cluster."""


class GetFailurePatternsArguments(Arguments):
    """Arguments of memory_get_failure_patterns."""

    strategy_name: Label | None = Field(None, description="Only executions of this strategy.")
    min_executions: int = Field(5, ge=1, le=1_000_000, description="Fewest failures of a cluster.")
    failure_threshold: Dollars = Field(0.0, description="Executions with a realized P&L below this failed, USD.")


class FailureCluster(Result):
    """A cluster of failures."""

    features: dict[str, str] = Field(
        description="Features that the failures share, of `regime`, `volatility_percentile` (0-25, 25-50, 50-75, "
        "75-100), `gas_level` (cheap, normal, dear) and `time_of_day` (six hours, UTC)."
    )
    execution_count: int = Field(ge=1, description="Number of failures in the cluster.")
    avg_pnl: float = Field(description="Mean realized P&L of the failures, US dollars.")
    hypothesis: str = Field(description="Supposed cause of the failures, with the counts behind it.")
    suggested_adjustments: tuple[str, ...] = Field(description="Suggested changes; nothing of them is in force.")
    settled_count: int = Field(ge=1, description="Number of settled executions with these features, failed or not.")
    strategies: tuple[str, ...] = Field(description="Strategies of the failures, by name.")


class FailurePatternsResult(Result):
    """Result of memory_get_failure_patterns."""

    clusters: tuple[FailureCluster, ...] = Field(description="Clusters, the most certain first.")
    settled_count: int = Field(ge=0, description="Number of settled executions that were compared.")
    failure_count: int = Field(ge=0, description="Number of failures among them.")


_FEATURED = """
with placed as (
    select *,
        (rank() over (order by volatility) + (count(*) over (partition by volatility) - 1) / 2 - 0.5)
            / nullif(count(volatility) over (), 0) as volatility_place,
        (rank() over (order by gas_level) + (count(*) over (partition by gas_level) - 1) / 2 - 0.5)
            / nullif(count(gas_level) over (), 0) as gas_place
    from settled where realized_micros is not null and ($strategy is null or strategy_name = $strategy)
)
select execution_id, strategy_name, decision_params, realized_micros, realized_micros < $threshold as failed, regime,
    case when volatility is null then null when volatility_place < 0.25 then '0-25' when volatility_place < 0.5
        then '25-50' when volatility_place < 0.75 then '50-75' else '75-100' end as volatility_percentile,
    case when gas_level is null then null when gas_place < 0.25 then 'cheap' when gas_place < 0.75
        then 'normal' else 'dear' end as gas_level,
    ['00:00-06:00', '06:00-12:00', '12:00-18:00', '18:00-24:00'][hour(executed_at) // 6 + 1] as time_of_day,
    volatility as volatility_value, gas_level as gas_value
from placed order by execution_id
"""

_CELLS = """
select regime, volatility_percentile, gas_level, time_of_day, count(*) as settled, count_if(failed) as failures
from featured group by all order by all
"""


class Pattern(NamedTuple):
    """A set of features, and the numbers of settled and failed executions that have them."""

    features: dict[str, str]
    settled: int
    failures: int


def find_patterns(cells: pa.Table, failures_min: int) -> list[Pattern]:
    """Return the patterns of failures, the most certain first.

    Parameters
    ----------
    cells : columns FEATURES (null: unknown), `settled` and `failures`; one row per combination of features
    failures_min : fewest failures of a pattern
    """
    rows = cells.to_pylist()
    varied = [name for name in FEATURES if len({row[name] for row in rows} - {None}) > 1]
    return _patterns_of(cells, rows, varied, failures_min) or _patterns_of(cells, rows, FEATURES, failures_min)


def _patterns_of(
    cells: pa.Table, rows: Sequence[Mapping[str, Any]], names: Sequence[str], failures_min: int
) -> list[Pattern]:
    """Return the patterns of these features. rows: the cells as dictionaries."""
    settled, failures = (cells[name].to_numpy().astype(np.float64) for name in ("settled", "failures"))
    keys = sorted({key for row in rows for key in _keys(row, names)}, key=lambda key: (-len(key), key))
    if not failures.sum() or not keys:
        return []
    base_rate = failures.sum() / settled.sum()
    features = [{(name, row[name]) for name in FEATURES} for row in rows]
    matches = np.array([[of_row.issuperset(key) for of_row in features] for key in keys], np.bool_)
    is_open: BoolArray = np.ones(len(rows), np.bool_)
    patterns: list[Pattern] = []
    while True:
        inside = matches & is_open
        n, f = inside @ settled, inside @ failures
        fits = (f >= failures_min) & (f >= base_rate * n - 1e-9)
        if not fits.any():
            return patterns
        certainty = np.where(fits, np.round(_lower_bound(f, n), 9), -1.0)
        best = max(range(len(keys)), key=lambda i: (certainty[i], f[i], len(keys[i]), -i))
        patterns.append(Pattern(dict(keys[best]), int(n[best]), int(f[best])))
        is_open &= ~matches[best]


def _keys(row: Mapping[str, Any], names: Sequence[str]) -> Iterator[tuple[tuple[str, str], ...]]:
    """Yield each non-empty set of the known ones of these features of a cell."""
    known = [(name, row[name]) for name in names if row[name] is not None]
    for size in range(1, len(known) + 1):
        yield from combinations(known, size)


def _lower_bound(successes: Float64Array, count: Float64Array) -> Float64Array:
    """Return the lower bound of a share (Wilson, 95 %)."""
    n = np.maximum(count, 1.0)
    share, z2 = successes / n, _WILSON_Z**2
    spread = _WILSON_Z * np.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    bound: Float64Array = (share + z2 / (2 * n) - spread) / (1 + z2 / n)
    return bound


def failure_clusters(
    settled: pa.Table, *, strategy_name: str | None, failures_min: int, threshold_usd: float
) -> FailurePatternsResult:
    """Return the clusters of failures among executions (`settled_executions`), of all strategies or of one."""
    parameters = {"strategy": strategy_name, "threshold": round(threshold_usd * 1e6)}
    featured = run_query(_FEATURED, {"settled": settled}, parameters)
    patterns = find_patterns(run_query(_CELLS, {"featured": featured}), failures_min)
    executions, taken = featured.to_pylist(), set[str]()
    failed_count = sum(row["failed"] for row in executions)
    clusters = []
    for pattern in patterns:
        inside = [
            row for row in executions if row["execution_id"] not in taken and pattern.features.items() <= row.items()
        ]
        taken |= {row["execution_id"] for row in inside}
        clusters.append(_cluster(pattern, inside, executions, failed_count))
    return FailurePatternsResult(clusters=tuple(clusters), settled_count=len(executions), failure_count=failed_count)


def _cluster(
    pattern: Pattern, inside: list[dict[str, Any]], executions: list[dict[str, Any]], failed_count: int
) -> FailureCluster:
    failed = [row for row in inside if row["failed"]]
    average = sum(row["realized_micros"] for row in failed) / len(failed) / 1e6
    outside, outside_failed = len(executions) - pattern.settled, failed_count - pattern.failures
    elsewhere = f"; of the other {outside} executions {outside_failed} failed" if outside else ""
    conditions = " and ".join(_CONDITIONS[name].format(value) for name, value in pattern.features.items())
    won = [row for row in executions if not row["failed"]]
    return FailureCluster(
        features=pattern.features,
        execution_count=pattern.failures,
        avg_pnl=average,
        hypothesis=f"Executions fail {conditions}: {pattern.failures} of {pattern.settled} failed with a mean of "
        f"{average:.2f} USD{elsewhere}.",
        suggested_adjustments=(*_condition_changes(pattern, failed), *_parameter_changes(failed, won)),
        settled_count=pattern.settled,
        strategies=tuple(sorted({row["strategy_name"] for row in failed})),
    )


_CONDITIONS = {
    "regime": "in the regime {}",
    "volatility_percentile": "at a volatility in the percentiles {}",
    "gas_level": "while gas is {}",
    "time_of_day": "between {} UTC",
}


def _condition_changes(pattern: Pattern, failed: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a change for each feature of a pattern."""
    for name, value in pattern.features.items():
        match name:
            case "regime":
                yield f"Pause the strategy, or reduce its position, while the regime is {value}."
            case "volatility_percentile":
                low, high = (f"{f(row['volatility_value'] for row in failed):g}" for f in (min, max))
                stretch = f"between {low} and {high}" if low != high else low
                yield f"Reduce the position, or widen its range, while volatility is {stretch}."
            case "gas_level" if value == "dear":
                yield f"Defer executions while gas is at {min(row['gas_value'] for row in failed):g} or above."
            case "gas_level":
                yield f"Gas is {value} in these failures: look for another cause than gas."
            case "time_of_day":
                yield f"Avoid executions between {value} UTC."


def _parameter_changes(failed: list[dict[str, Any]], won: list[dict[str, Any]]) -> list[str]:
    """Return changes of the numeric parameters whose medians differ most between failures and profits."""
    names = {row["strategy_name"] for row in failed}
    losing, winning = (_medians(rows) for rows in (failed, [row for row in won if row["strategy_name"] in names]))
    ratios = {
        name: abs(winning[name] - losing[name]) / max(abs(winning[name]), abs(losing[name]))
        for name in losing.keys() & winning.keys()
        if winning[name] != losing[name]
    }
    chosen = sorted(ratios, key=lambda name: (-ratios[name], name))[:_PARAMETERS_MAX]
    return [
        f"Change {name} from {losing[name]:g} to {winning[name]:g}, the median of the executions that did not fail."
        for name in chosen
    ]


def _medians(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the median of each numeric decision parameter."""
    values: dict[str, list[float]] = {}
    for row in rows:
        for name, value in numbers_of(orjson.loads(row["decision_params"])).items():
            values.setdefault(name, []).append(value)
    return {name: float(np.median(numbers)) for name, numbers in values.items()}


def _get_failure_patterns(call: ToolCall, arguments: GetFailurePatternsArguments) -> FailurePatternsResult:
    return failure_clusters(
        settled_executions(call),
        strategy_name=arguments.strategy_name,
        failures_min=arguments.min_executions,
        threshold_usd=arguments.failure_threshold,
    )


GET_FAILURE_PATTERNS = Tool(
    name="memory_get_failure_patterns",
    summary="Cluster failed executions by features: regime, volatility, gas, time-of-day. "
    "Generates failure hypotheses.",
    capability="read",
    tick_budget="medium",
    steps=("Loading failure data", "Clustering", "Generating hypotheses"),
    guidance=Guidance(
        thriving="Run monthly to detect systematic issues.",
        cautious="Run weekly.",
        declining="Run to understand what went wrong.",
        terminal="Final analysis for death testament.",
    ),
    arguments=GetFailurePatternsArguments,
    result=FailurePatternsResult,
    run=_get_failure_patterns,
)
