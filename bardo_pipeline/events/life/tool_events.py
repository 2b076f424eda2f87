"""Facts that a golem records by the memory tools: strategies, executions, outcomes, insights, consolidations, imports.

A fact is recorded together with `ToolCalled`, which describes the call. Free JSON of a caller is stored as canonical
text. Typed fields hold the numbers that the analyses read from it.
Source: TOOLS; MEM-17 to MEM-21, MEM-24.
"""

from __future__ import annotations

from typing import Literal

from bardo_pipeline.events.record.model import Micros, Name, Part, Real, Text, Tick, Unit, Whole

InsightOperation = Literal["ADD", "UPVOTE", "DOWNVOTE", "EDIT"]
"""TOOLS (memory_manage_insight)."""

Source = Literal["self", "consolidation", "import"]
"""Origin of an insight: the golem's own words, a cluster of its episodes, or an archive of another golem."""


class StrategyStored(Part):
    """A version of a strategy, counted from 1 by golem and name. parameters: canonical JSON.

    from_golem_id: the golem whose archive holds it; null for an own strategy.
    """

    strategy_name: Name
    version: Tick
    description: Text
    parameters: Text
    chains: tuple[Name, ...]
    token_pairs: tuple[Name, ...]
    from_golem_id: Name | None


class ExecutionRecorded(Part):
    """An execution of a strategy before it settles. Snapshots, conditions, parameters and prediction: canonical JSON.

    strategy_version: the newest stored version at that time; null for an unknown strategy. predicted_micros,
    interval_low_micros, interval_high_micros, interval_level: the predicted profit in micro-dollars and its interval;
    null if the prediction does not state them. regime, volatility, gas_level: read from the market conditions.
    """

    execution_id: Name
    strategy_name: Name
    strategy_version: Tick | None
    action_type: Name
    portfolio_snapshot: Text
    market_conditions: Text
    decision_params: Text
    predicted_outcome: Text
    predicted_micros: Micros | None
    interval_low_micros: Micros | None
    interval_high_micros: Micros | None
    interval_level: Unit
    regime: Name | None
    volatility: Real | None
    gas_level: Real | None
    reasoning_chain: Text | None
    tx_hash: Name | None
    reflection: Text | None


class OutcomeRecorded(Part):
    """The realized outcome of an execution, in micro-dollars. reflection: stated after the settlement.

    The first outcome of an execution counts. A later one with the same numbers adds a reflection.
    """

    execution_id: Name
    realized_micros: Micros
    fees_micros: Micros | None
    impermanent_loss_micros: Micros | None
    unrealized_micros: Micros | None
    gas_micros: Micros
    slippage_bps: Real | None
    reflection: Text | None


class InsightManaged(Part):
    """An operation on an insight. ADD: content, category, confidence, source; EDIT: content; votes: none of them.

    The content of ADD and EDIT is also a text of the golem (`text_id`), so that searches find it. evidence: ids of the
    episodes that a consolidation took it from. structure: what a consolidation compares (tool, chain, pair, sign).
    crossings: archives that the insight went through. number: of the operation on this golem's insights, from 1.
    """

    number: Tick
    insight_id: Name
    operation: InsightOperation
    content: Text | None
    category: Name | None
    chain: Name | None
    token_pair: Name | None
    confidence: Unit | None
    source: Source
    text_id: Name | None
    structure: Text | None
    evidence: tuple[Name, ...]
    crossings: Whole
    reason: Text | None


class EpisodesConsolidated(Part):
    """A consolidation: the episodes that it read, the number of clusters, and the episodes that had decayed."""

    episode_ids: tuple[Name, ...]
    cluster_count: Whole
    insights_created: Whole
    insights_reinforced: Whole
    decayed_ids: tuple[Name, ...]


class AdjustmentStaged(Part):
    """Suggested changes of a strategy for a cluster of failures. A stage changes no strategy. features: JSON."""

    strategy_name: Name
    strategy_version: Tick | None
    features: Text
    failure_count: Whole
    average_micros: Micros
    hypothesis: Text
    adjustments: tuple[Text, ...]


class ArchiveImported(Part):
    """Another golem's archive was imported; its insights start at this confidence. It waits for a consolidation."""

    content_hash: Name
    from_golem_id: Name
    episode_count: Whole
    insight_count: Whole
    strategy_count: Whole
    confidence: Unit


class ToolCalled(Part):
    """A call of a memory tool that recorded something. params_hash: SHA-256 of the arguments as canonical JSON.

    tick: the golem's newest tick at that time; null before its first record. steps: completed steps in order.
    fact_count: facts that the call recorded beside this one. duration_ms: until the facts were written.
    """

    call_id: Name
    tool_name: Name
    params_hash: Name
    tick: Tick | None
    steps: tuple[Name, ...]
    fact_count: Whole
    duration_ms: Whole
    result_summary: Text
