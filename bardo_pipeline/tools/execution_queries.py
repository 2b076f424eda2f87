"""Queries over the executions and outcomes of a golem, in DuckDB over the life events of its log.

Source: TOOLS (StrategyPerformance, memory_compare_prediction, memory_get_failure_patterns), MEM-17 to MEM-19.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.tools.tool_call import ToolCall


class Performance(NamedTuple):
    """Performance of the executions of a strategy; amounts in US dollars."""

    total_executions: int = 0
    settled_executions: int = 0
    avg_pnl_usd: float = 0.0
    win_rate: float = 0.0
    sharpe_ratio: float | None = None


_SETTLED = """
with first_execution as (
    select * from executions
    qualify row_number() over (partition by execution_id order by recorded_at, event_id) = 1
), first_outcome as (
    select *, last_value(reflection ignore nulls) over (
            partition by execution_id order by recorded_at, event_id
            rows between unbounded preceding and unbounded following
        ) as later_reflection
    from outcomes
    qualify row_number() over (partition by execution_id order by recorded_at, event_id) = 1
)
select e.execution_id, e.strategy_name, e.strategy_version, e.action_type, e.regime, e.volatility, e.gas_level,
    e.decision_params, e.predicted_micros, e.interval_low_micros, e.interval_high_micros, e.interval_level,
    e.observed_at as executed_at, e.reflection as first_reflection,
    o.realized_micros, o.gas_micros, o.slippage_bps, o.later_reflection, o.observed_at as settled_at
from first_execution e left join first_outcome o using (execution_id)
order by e.recorded_at, e.execution_id
"""


def settled_executions(call: ToolCall) -> pa.Table:
    """Return the golem's executions in order of recording, each with its outcome (null columns before it settles)."""
    tables = {
        "executions": _flat(call, "ExecutionRecorded", "execution"),
        "outcomes": _flat(call, "OutcomeRecorded", "settled_outcome"),
    }
    return run_query(_SETTLED, tables)


def run_query(sql: str, tables: Mapping[str, pa.Table], parameters: Mapping[str, Any] | None = None) -> pa.Table:
    """Run SQL over Arrow tables by name, on one thread so that sums keep their order."""
    with _database().cursor() as connection:
        connection.execute("set timezone = 'UTC'")
        for name, table in tables.items():
            connection.register(name, table)
        return connection.sql(sql, params=dict(parameters or {})).to_arrow_table()


@cache
def _database() -> duckdb.DuckDBPyConnection:
    """Return the process's empty database; each query has a cursor of its own."""
    return duckdb.connect(":memory:", config={"threads": 1})


def _flat(call: ToolCall, kind: str, attribute: str) -> pa.Table:
    """Return the golem's life events of a kind with one column per field of their content."""
    rows = call.facts(kind)
    content = rows[attribute].combine_chunks()
    columns = {name: rows[name] for name in ("event_id", "observed_at", "recorded_at")}
    return pa.table(columns | {field.name: pc.struct_field(content, field.name) for field in content.type})


_PERFORMANCE = """
select strategy_name, count(*) as total_executions, count(realized_micros) as settled_executions,
    coalesce(sum(realized_micros) / count(realized_micros) / 1e6, 0) as avg_pnl_usd,
    coalesce(count_if(realized_micros > 0) / nullif(count(realized_micros), 0), 0) as win_rate,
    avg(realized_micros) / nullif(stddev_samp(realized_micros), 0) as sharpe_ratio
from settled group by strategy_name
"""


def performance_by_strategy(call: ToolCall) -> dict[str, Performance]:
    """Return the performance of each strategy that has executions, by name."""
    settled = settled_executions(call)
    if not settled.num_rows:
        return {}
    rows = run_query(_PERFORMANCE, {"settled": settled}).to_pylist()
    return {row.pop("strategy_name"): Performance(**row) for row in rows}
