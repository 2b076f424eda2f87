"""Executions of strategies: recorded before they settle, and their outcomes after.

Together with reflections these are the first two steps of the loop record, reflect, analyse, consolidate, tune. An
outcome that deviates from its prediction by more than 20 % asks for a reflection.
Source: TOOLS (memory_record_execution, memory_record_outcome), MEM-18, MEM-24.
"""

from typing import Any

from pydantic import Field

from bardo_pipeline.errors import ToolError
from bardo_pipeline.events.experience.stored_text import TEXT_MAX, Importance, StoredText
from bardo_pipeline.events.life.tool_events import ExecutionRecorded, OutcomeRecorded
from bardo_pipeline.tools import prediction_fields as fields
from bardo_pipeline.tools.definition import Guidance, Tool
from bardo_pipeline.tools.schemas import Arguments, Dollars, Json, Label, Result, Words, WriteCounts, dollars, micros
from bardo_pipeline.tools.strategies import newest_versions
from bardo_pipeline.tools.tool_call import ToolCall, json_text, text_fact

ACTION_TYPES = ("SWAP", "ADD_LIQUIDITY", "REMOVE_LIQUIDITY", "REBALANCE", "DEPOSIT", "WITHDRAW")
"""TOOLS (RecordExecutionParams). A runtime of another domain names its own action types."""


class RecordExecutionArguments(Arguments):
    """Arguments of memory_record_execution."""

    execution_id: Label = Field(description="Unique id of the execution, chosen by the caller.")
    strategy_name: Label = Field(description="Name of the executed strategy.")
    action_type: Label = Field(
        description=f"{', '.join(ACTION_TYPES)}, or an action type of another domain in the caller's words."
    )
    portfolio_snapshot: Json = Field(description="Portfolio state at execution time (JSON).")
    market_conditions: Json = Field(
        description="Market conditions: prices, volatility, TVL, tick, fee, gas (JSON). Failure patterns use the "
        "fields `regime` (text), `volatility` and `gas_gwei` (numbers)."
    )
    decision_params: Json = Field(description="Parameters driving the decision (JSON).")
    predicted_outcome: Json = Field(
        description="Expected return, fees, IL, confidence interval (JSON). The comparison uses `expected_pnl_usd` (or "
        "expected_return, expected_pnl, pnl, ...), `confidence_interval` ([low, high] or {low, high}) in US dollars, "
        "and `confidence_level` (default 0.8)."
    )
    reasoning_chain: Words | None = Field(None, description="Natural-language reasoning trace.")
    tx_hash: Label | None = Field(None, description="Transaction hash, if already submitted.")
    reflection: Words | None = Field(
        None, description="Self-reflection: what is expected, what happened before, what would be done differently."
    )


class RecordExecutionResult(Result):
    """Result of memory_record_execution."""

    execution_id: str = Field(description="Id of the execution.")
    recorded_at: str = Field(description="Time of the record, ISO 8601, UTC.")
    strategy_version: int | None = Field(description="Newest stored version of the strategy; null if it is not stored.")
    predicted_pnl_usd: float | None = Field(
        description="The prediction that comparisons use, US dollars; null if predicted_outcome states none."
    )
    counts: WriteCounts = Field(description="Recorded executions in the log before and after.")


class RecordOutcomeArguments(Arguments):
    """Arguments of memory_record_outcome."""

    execution_id: Label = Field(description="From memory_record_execution.")
    realized_pnl: Dollars = Field(description="Realized P&L in US dollars.")
    fees_earned: Dollars | None = Field(None, description="Earned fees in US dollars.")
    impermanent_loss: Dollars | None = Field(None, description="Impermanent loss in US dollars.")
    unrealized_pnl: Dollars | None = Field(None, description="Unrealized P&L in US dollars.")
    gas_used_usd: Dollars = Field(description="Gas cost in US dollars.")
    slippage_actual: float | None = Field(None, allow_inf_nan=False, description="Actual slippage in basis points.")
    reflection: Words | None = Field(
        None, description="Self-reflection after the settlement. A second call with the same numbers can add it."
    )


class RecordOutcomeResult(Result):
    """Result of memory_record_outcome."""

    execution_id: str = Field(description="Id of the execution.")
    prediction_error: float | None = Field(
        description="abs(realized - predicted) / abs(predicted), the divisor at least one cent; null without a "
        "prediction."
    )
    recorded_at: str = Field(description="Time of the record, ISO 8601, UTC.")
    reflection_requested: bool = Field(
        description="Whether the outcome deviates by more than 20 % and no reflection is recorded yet."
    )
    reflection_request: str | None = Field(
        description="What a reflection states: what was expected, what happened, what to do differently; null if none "
        "is requested."
    )
    counts: WriteCounts = Field(description="Recorded outcomes in the log before and after.")


def _record_execution(call: ToolCall, arguments: RecordExecutionArguments) -> RecordExecutionResult:
    rules = call.context.policy.tools
    prediction = fields.prediction_of(arguments.predicted_outcome, rules.interval_level)
    newest = newest_versions(call).get(arguments.strategy_name)
    conditions = arguments.market_conditions
    texts = ("portfolio_snapshot", "market_conditions", "decision_params", "predicted_outcome")
    fact = ExecutionRecorded(
        execution_id=arguments.execution_id,
        strategy_name=arguments.strategy_name,
        strategy_version=None if newest is None else newest["version"],
        action_type=arguments.action_type,
        **{name: json_text(getattr(arguments, name), name) for name in texts},
        predicted_micros=micros(prediction.profit),
        interval_low_micros=micros(prediction.low),
        interval_high_micros=micros(prediction.high),
        interval_level=prediction.level,
        regime=fields.first_text(conditions, fields.REGIME),
        volatility=fields.first_number(conditions, fields.VOLATILITY),
        gas_level=fields.first_number(conditions, fields.GAS),
        reasoning_chain=arguments.reasoning_chain,
        tx_hash=arguments.tx_hash,
        reflection=arguments.reflection,
    )
    known = execution_of(call, arguments.execution_id)
    if known is not None:
        _check_repeated(fact.model_dump(exclude={"strategy_version"}), known)
    summary = f"Recorded execution {fact.execution_id} of {fact.strategy_name}"
    words = (fact.reflection or "").strip()
    reflections = [_text_about(fact.execution_id, fact.strategy_name, words)] if words else []
    counts = call.record([fact, *reflections] if known is None else [], summary, counted="ExecutionRecorded")
    return RecordExecutionResult(
        execution_id=fact.execution_id,
        recorded_at=(call.at if known is None else known["at"]).isoformat(),
        strategy_version=fact.strategy_version if known is None else known["strategy_version"],
        predicted_pnl_usd=dollars(fact.predicted_micros),
        counts=counts,
    )


def execution_of(call: ToolCall, execution_id: str) -> dict[str, Any] | None:
    """Return the first recorded execution with an id, None without one."""
    return next(iter(call.contents("ExecutionRecorded", execution_id=execution_id)), None)


def _check_repeated(content: dict[str, Any], known: dict[str, Any]) -> None:
    """Raise ToolError if an execution or outcome is on record with other content."""
    differing = sorted(name for name, value in content.items() if known[name] != value)
    if differing:
        raise ToolError(
            f"execution {known['execution_id']} is on record since {known['at'].isoformat()} with another "
            f"{', '.join(differing)}: record another execution under another id"
        )


def _record_outcome(call: ToolCall, arguments: RecordOutcomeArguments) -> RecordOutcomeResult:
    execution = execution_of(call, arguments.execution_id)
    if execution is None:
        raise ToolError(
            f"execution {arguments.execution_id} of golem {call.golem_id} is not on record: call "
            "memory_record_execution before it settles"
        )
    fact = OutcomeRecorded(
        execution_id=arguments.execution_id,
        realized_micros=round(arguments.realized_pnl * 1e6),
        fees_micros=micros(arguments.fees_earned),
        impermanent_loss_micros=micros(arguments.impermanent_loss),
        unrealized_micros=micros(arguments.unrealized_pnl),
        gas_micros=round(arguments.gas_used_usd * 1e6),
        slippage_bps=arguments.slippage_actual,
        reflection=arguments.reflection or None,
    )
    outcomes = call.contents("OutcomeRecorded", execution_id=fact.execution_id)
    if outcomes:
        _check_repeated(fact.model_dump(exclude={"reflection"}), outcomes[0])
    reflections = [row["reflection"] for row in outcomes if row["reflection"]]
    is_new = not outcomes or (fact.reflection is not None and fact.reflection not in reflections)
    error = prediction_error(call, execution["predicted_micros"], fact.realized_micros)
    summary = f"Recorded outcome of execution {fact.execution_id}"
    reflected = [_reflection(execution, fact, _deviates(call, error))] if is_new and fact.reflection else []
    counts = call.record([fact, *reflected] if is_new else [], summary, counted="OutcomeRecorded")
    requested = _deviates(call, error) and not reflections and fact.reflection is None
    return RecordOutcomeResult(
        execution_id=fact.execution_id,
        prediction_error=error,
        recorded_at=(call.at if is_new else outcomes[-1]["at"]).isoformat(),
        reflection_requested=requested,
        reflection_request=_reflection_request(execution, fact, error) if requested else None,
        counts=counts,
    )


def prediction_error(call: ToolCall, predicted_micros: int | None, realized_micros: int) -> float | None:
    """Return the relative error of a prediction; None without a prediction."""
    if predicted_micros is None:
        return None
    scale = max(abs(predicted_micros), call.context.policy.tools.prediction_floor_micros)
    return abs(realized_micros - predicted_micros) / scale


def _deviates(call: ToolCall, error: float | None) -> bool:
    return error is not None and error > call.context.policy.tools.deviation_max


def _reflection_request(execution: dict[str, Any], fact: OutcomeRecorded, error: float | None) -> str:
    """Return what a reflection on an outcome states."""
    low, high = execution["interval_low_micros"], execution["interval_high_micros"]
    interval = "" if low is None else f", between {low / 1e6:.2f} and {high / 1e6:.2f}"
    return (
        f"Expected: {execution['predicted_micros'] / 1e6:.2f} USD{interval}. "
        f"Happened: {fact.realized_micros / 1e6:.2f} USD, an error of {error:.0%}. "
        "State what caused the difference and what to do differently: call memory_record_outcome again for "
        f"{fact.execution_id} with the same numbers and a reflection."
    )


def _reflection(execution: dict[str, Any], fact: OutcomeRecorded, deviates: bool) -> StoredText:
    """Return a reflection as a text that searches find: what was expected, what happened, what to do differently."""
    expected = execution["predicted_micros"]
    stated = "" if expected is None else f"Expected: {expected / 1e6:.2f} USD. "
    text = f"{stated}Happened: {fact.realized_micros / 1e6:.2f} USD. {fact.reflection}"
    importance: Importance = "notable" if deviates else "routine"
    name = execution["strategy_name"]
    return _text_about(fact.execution_id, name, text, importance, realized_pnl_usd=fact.realized_micros / 1e6)


def _text_about(
    execution_id: str, strategy_name: str, text: str, importance: Importance = "routine", **outcome: float
) -> StoredText:
    """Return a text about an execution as a reflection that searches find."""
    return text_fact(
        f"the reflection on execution {execution_id}",
        text[:TEXT_MAX],
        sort="reflection",
        tool=strategy_name,
        outcome={"execution_id": execution_id, **outcome},
        importance=importance,
    )


RECORD_EXECUTION = Tool(
    name="memory_record_execution",
    summary="Record strategy execution with portfolio snapshot and market conditions before outcome settles. "
    "Pi on_mount hook. Required for predicted-vs-actual analysis. No on-chain cost.",
    capability="write",
    tick_budget="fast",
    steps=("Recording execution context",),
    guidance=Guidance(
        thriving="Record every execution. Submit reflections for outcomes deviating > 20% from prediction.",
        cautious="Record everything. Reflect on all negative outcomes.",
        declining="Record outcomes. Reflect on what caused the decline.",
        terminal="Submit final reflections on overall strategy. This feeds the death testament.",
    ),
    arguments=RecordExecutionArguments,
    result=RecordExecutionResult,
    run=_record_execution,
)

RECORD_OUTCOME = Tool(
    name="memory_record_outcome",
    summary="Record realized outcome of a previously recorded execution. Pi on_unmount hook. Links to execution_id. "
    "An outcome that deviates from its prediction by more than 20 % asks for a reflection.",
    capability="write",
    tick_budget="fast",
    steps=("Recording outcome", "Computing prediction error"),
    guidance=Guidance(
        thriving="Record after every execution settles.",
        cautious="Record after every execution settles. Include reflection for negative outcomes.",
        declining="Record after every execution settles. Include reflection for negative outcomes.",
        terminal="Record final outcomes.",
    ),
    arguments=RecordOutcomeArguments,
    result=RecordOutcomeResult,
    run=_record_outcome,
)
