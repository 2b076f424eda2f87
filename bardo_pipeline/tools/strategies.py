"""Strategy memory: store a version of a strategy, retrieve strategies with their performance.

A version is a life event. The performance of a strategy is derived from its settled executions at each call.
Source: TOOLS (memory_store_strategy, memory_retrieve_strategies), MEM-17.
"""

from __future__ import annotations

import hashlib
from typing import Any

import orjson
from pydantic import Field

from bardo_pipeline.events.life.tool_events import StrategyStored
from bardo_pipeline.tools.definition import Guidance, Tool
from bardo_pipeline.tools.execution_queries import Performance, performance_by_strategy
from bardo_pipeline.tools.schemas import Arguments, Json, Label, Result, Words, WriteCounts
from bardo_pipeline.tools.tool_call import ToolCall, json_text


class StoreStrategyArguments(Arguments):
    """Arguments of memory_store_strategy."""

    strategy_name: Label = Field(description="Name of the strategy; its versions share the name.")
    parameters: Json = Field(description="Strategy parameters as JSON.")
    description: Words = Field(description="Description of the strategy's intent.")
    chains: tuple[Label, ...] = Field(description='Associated chains, for example ["base"]; may be empty.')
    token_pairs: tuple[Label, ...] = Field(
        description='Associated token pairs, for example ["WETH/USDC"]; may be empty.'
    )


class StoreStrategyResult(Result):
    """Result of memory_store_strategy."""

    strategy_id: str = Field(description="Id of the strategy, shared by its versions.")
    strategy_name: str = Field(description="Name of the strategy.")
    version: int = Field(ge=1, description="Version, from 1. Equal content keeps the newest version's number.")
    is_new: bool = Field(
        description="Whether this call stored a version; false if the newest version has this content."
    )
    counts: WriteCounts = Field(description="Stored versions in the log before and after.")


class RetrieveStrategiesArguments(Arguments):
    """Arguments of memory_retrieve_strategies."""

    strategy_name: Label | None = Field(None, description="Part of the name; upper and lower case are equal.")
    chain: Label | None = Field(None, description="Only strategies of this chain.")
    token_pair: Label | None = Field(None, description="Only strategies of this token pair.")
    include_performance: bool = Field(True, description="Include the performance of the settled executions.")


class StrategyPerformance(Result):
    """Performance of a strategy over its settled executions, all versions together."""

    total_executions: int = Field(ge=0, description="Number of recorded executions, settled or not.")
    settled_executions: int = Field(ge=0, description="Number of executions with an outcome.")
    avg_pnl_usd: float = Field(description="Mean realized profit of a settled execution, US dollars; 0 without one.")
    win_rate: float = Field(ge=0, le=1, description="Share of settled executions with a profit; 0 without one.")
    sharpe_ratio: float | None = Field(
        description="Mean over standard deviation of the realized profits; null below two outcomes or without spread."
    )


class StagedAdjustments(Result):
    """Suggested changes from failures of a strategy. They change nothing until a new version is stored."""

    features: Json = Field(description="Features that the failures share.")
    failure_count: int = Field(ge=1, description="Number of failures in the cluster.")
    hypothesis: str = Field(description="Supposed cause of the failures.")
    suggested_adjustments: tuple[str, ...] = Field(description="Suggested changes of parameters or conditions.")
    staged_at: str = Field(description="Time of the consolidation that staged them, ISO 8601, UTC.")


class StoredStrategy(Result):
    """The newest version of a strategy."""

    strategy_id: str = Field(description="Id of the strategy, shared by its versions.")
    strategy_name: str = Field(description="Name of the strategy.")
    version: int = Field(ge=1, description="Newest version.")
    parameters: Json = Field(description="Parameters of the newest version.")
    description: str = Field(description="Description of the strategy's intent.")
    chains: tuple[str, ...] = Field(description="Associated chains.")
    token_pairs: tuple[str, ...] = Field(description="Associated token pairs.")
    created_at: str = Field(description="Time of the first version, ISO 8601, UTC.")
    updated_at: str = Field(description="Time of the newest version, ISO 8601, UTC.")
    from_golem_id: str | None = Field(description="Golem whose archive held the newest version; null for an own one.")
    performance: StrategyPerformance | None = Field(description="Performance; null if it was not requested.")
    staged_adjustments: tuple[StagedAdjustments, ...] = Field(
        description="Suggestions staged for the newest version, newest first; nothing of them is in force."
    )


class RetrieveStrategiesResult(Result):
    """Result of memory_retrieve_strategies."""

    strategies: tuple[StoredStrategy, ...] = Field(description="Newest version of each strategy, by name.")


def strategy_id(golem_id: str, strategy_name: str) -> str:
    """Return the id of a golem's strategy: s- and 16 hex characters of the hash of golem and name."""
    return "s-" + hashlib.sha256(orjson.dumps([golem_id, strategy_name])).hexdigest()[:16]


def newest_versions(call: ToolCall) -> dict[str, dict[str, Any]]:
    """Return the newest version of each strategy of a golem by name, with `created_at` of the first."""
    newest: dict[str, dict[str, Any]] = {}
    for row in sorted(call.contents("StrategyStored"), key=lambda row: row["version"]):
        first = newest.get(row["strategy_name"])
        newest[row["strategy_name"]] = row | {"created_at": first["created_at"] if first else row["at"]}
    return newest


def _store(call: ToolCall, arguments: StoreStrategyArguments) -> StoreStrategyResult:
    newest = newest_versions(call).get(arguments.strategy_name)
    fact = StrategyStored(
        strategy_name=arguments.strategy_name,
        version=1 if newest is None else newest["version"] + 1,
        description=arguments.description,
        parameters=json_text(arguments.parameters, "parameters"),
        chains=arguments.chains,
        token_pairs=arguments.token_pairs,
        from_golem_id=None,
    )
    is_new = newest is None or any(_comparable(newest[name]) != _comparable(getattr(fact, name)) for name in _CONTENT)
    version = fact.version if is_new else newest["version"]  # type: ignore[index]  # an unchanged one has a newest
    summary = f"Stored version {version} of strategy {fact.strategy_name}"
    counts = call.record([fact] if is_new else [], summary, counted="StrategyStored")
    identity = strategy_id(call.golem_id, fact.strategy_name)
    return StoreStrategyResult(
        strategy_id=identity, strategy_name=fact.strategy_name, version=version, is_new=is_new, counts=counts
    )


_CONTENT = ("description", "parameters", "chains", "token_pairs", "from_golem_id")


def _comparable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _retrieve(call: ToolCall, arguments: RetrieveStrategiesArguments) -> RetrieveStrategiesResult:
    performance = performance_by_strategy(call) if arguments.include_performance else None
    staged: dict[tuple[str, int | None], list[StagedAdjustments]] = {}
    for row in reversed(call.contents("AdjustmentStaged")):
        staged.setdefault((row["strategy_name"], row["strategy_version"]), []).append(_staged(row))
    chosen = [row for _, row in sorted(newest_versions(call).items()) if _matches(row, arguments)]
    return RetrieveStrategiesResult(
        strategies=tuple(_stored(call.golem_id, row, performance, staged) for row in chosen)
    )


def _matches(row: dict[str, Any], arguments: RetrieveStrategiesArguments) -> bool:
    part = arguments.strategy_name
    return (
        (part is None or part.casefold() in row["strategy_name"].casefold())
        and arguments.chain in (None, *row["chains"])
        and arguments.token_pair in (None, *row["token_pairs"])
    )


def _staged(row: dict[str, Any]) -> StagedAdjustments:
    return StagedAdjustments(
        features=orjson.loads(row["features"]),
        failure_count=row["failure_count"],
        hypothesis=row["hypothesis"],
        suggested_adjustments=tuple(row["adjustments"]),
        staged_at=row["at"].isoformat(),
    )


def _stored(
    golem_id: str,
    row: dict[str, Any],
    performance: dict[str, Performance] | None,
    staged: dict[tuple[str, int | None], list[StagedAdjustments]],
) -> StoredStrategy:
    name = row["strategy_name"]
    own = None if performance is None else StrategyPerformance(**performance.get(name, Performance())._asdict())
    return StoredStrategy(
        strategy_id=strategy_id(golem_id, name),
        strategy_name=name,
        version=row["version"],
        parameters=orjson.loads(row["parameters"]),
        description=row["description"],
        chains=tuple(row["chains"]),
        token_pairs=tuple(row["token_pairs"]),
        created_at=row["created_at"].isoformat(),
        updated_at=row["at"].isoformat(),
        from_golem_id=row["from_golem_id"],
        performance=own,
        staged_adjustments=tuple(staged.get((name, row["version"]), ())),
    )


STORE_STRATEGY = Tool(
    name="memory_store_strategy",
    summary="Store a strategy configuration for future reference, comparison, and parameter tuning. "
    "Each changed configuration of a name becomes a new version. No on-chain cost.",
    capability="write",
    tick_budget="fast",
    steps=("Writing strategy version",),
    guidance=Guidance(
        thriving="Store new strategies and version updates.",
        cautious="Store with detailed parameters for post-mortem analysis.",
        declining="Store current strategy state for forensics.",
        terminal="Store final strategy state for successor.",
    ),
    arguments=StoreStrategyArguments,
    result=StoreStrategyResult,
    run=_store,
)

RETRIEVE_STRATEGIES = Tool(
    name="memory_retrieve_strategies",
    summary="Retrieve stored strategy configurations and performance history. Evaluate past effectiveness.",
    capability="read",
    tick_budget="fast",
    steps=("Loading strategies", "Computing performance"),
    guidance=Guidance(
        thriving="Review before modifying strategy parameters.",
        cautious="Compare current strategy against historical performance.",
        declining="Analyze which strategies worked and which failed.",
        terminal="Not relevant.",
    ),
    arguments=RetrieveStrategiesArguments,
    result=RetrieveStrategiesResult,
    run=_retrieve,
)
