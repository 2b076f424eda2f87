"""Payload models of the typed events. Fields of the specification come first, additions after them.

Source: HB S7, S12, S18; TOOLS ("Event Fabric"); MEM.
"""

from __future__ import annotations

from typing import Literal

from bardo_pipeline.events.record import model as record

# cognition


class MarketObserved(record.Part):
    """Step 1 is complete. anomalies: their descriptions."""

    regime: record.Regime
    anomaly_count: record.Whole
    probe_count: record.Whole
    anomalies: tuple[record.Text, ...]
    chain: record.Name
    protocol: record.Name
    pair: record.Name
    block_number: record.Whole | None
    price: record.Amount
    gas_gwei: record.Amount
    net_asset_value_micros: record.Spent


class TickGated(record.Part):
    """The gate has chosen the cognitive tier of the tick."""

    tick: record.Tick
    tier: record.Tier
    prediction_error: record.Unit
    threshold: record.Unit
    forced_by: record.Name | None
    reason: record.Text


class TickCompleted(record.Part):
    """The tick is finished. Null duration: the runtime reads no clock."""

    tick: record.Tick
    duration_ms: record.Whole | None
    actions_taken: record.Whole
    cost_micros: record.Spent


class TickSuppressed(record.Part):
    """The tick was suppressed (tier `suppress`)."""

    tick: record.Tick
    reason: record.Text
    next_scheduled: record.Moment


class SteerReceived(record.Part):
    """A steer or follow-up by the owner was received; null state: not reported by the runtime."""

    steer_id: record.Name
    fsm_state: record.Name | None
    severity: Literal["low", "high"]
    kind: Literal["steer", "follow_up"]


class QueueWarning(record.Part):
    """The queue is so long that the next tick may be dropped."""

    tick: record.Tick
    queue_depth: record.Whole


class DroppedInDream(record.Part):
    """Ticks dropped during a dream."""

    tick: record.Tick
    dropped: record.Whole


class TickDropped(DroppedInDream):
    """Ticks dropped since the last executed tick; they have no number (canon 35)."""

    during_dream: bool


class RegimeShifted(record.Part):
    """The regime differs from that of the previous tick."""

    before: record.Regime
    after: record.Regime


class InferenceCompleted(record.Part):
    """A model answered. Its reasoning is private and stays in the record."""

    model: record.Name
    tier: record.Tier
    input_tokens: record.Whole
    output_tokens: record.Whole
    cache_read_tokens: record.Whole | None
    latency_ms: record.Whole | None
    cost_micros: record.Spent
    decision: record.Name
    confidence: record.Unit
    recommends_action: bool


class ContextAssembled(record.Part):
    """The context was assembled."""

    tokens: record.Whole
    categories: tuple[record.ContextCategory, ...]


# attention, affect


class ProbeRaised(record.Part):
    """A probe has low or high severity."""

    probe: record.ProbeName
    severity: Literal["low", "high"]
    value: record.Real | None
    threshold: record.Real | None
    detail: record.Text | None


class AttentionChanged(record.Part):
    """An item of the environment was discovered, promoted by a violation, or demoted because it is dull."""

    item: record.Name
    level: Literal["active", "watched", "dormant"]
    cause: Literal["discovered", "violation", "dull"]
    residual: record.Real | None


class ChainEvent(record.Part):
    """The router escalated or emitted a chain event."""

    kind: Literal["swap", "loan_usdc", "loan_weth"]
    value_micros: record.Spent
    score: record.Unit | None
    route: record.Route


class MoodShifted(record.Part):
    """The appraisal changed the mood."""

    before: record.Pad
    after: record.Pad
    emotion: record.Emotion


class MarkerFired(record.SomaticMarker):
    """A situation with a somatic marker occurred again."""


# prediction


class PredictionRegistered(record.Part):
    """A prediction made before observing: an 80 % interval."""

    quantity: record.Name
    expected: record.Real
    low: record.Real
    high: record.Real


class PredictionResolved(record.Part):
    """A prediction was compared with the actual value."""

    quantity: record.Name
    expected: record.Real
    actual: record.Real
    held: bool


class DecisionResolved(record.Part):
    """An earlier decision was judged. effect_ppm: acting less holding."""

    decision_tick: record.Tick
    action_type: record.Name
    tool_name: record.Name
    chosen: Literal["act", "hold"]
    regime: record.Regime
    effect_ppm: record.Ppm
    verified: bool
    ground_truth_source: record.Name


class AccuracyUpdate(record.Part):
    """Share of the last `window` resolved predictions that held, reported at fixed intervals."""

    accuracy: record.Unit
    window: record.Whole


# action


class ActionTaken(record.Part):
    """A tool call and its result. reason: for a blocked or deferred call."""

    action_type: record.Name
    tool_name: record.Name
    permit_id: record.Name | None
    tx_hash: record.Name | None
    gas_cost_micros: record.Spent
    slippage_ppm: record.Ppm | None
    value_micros: record.Spent
    reason: record.Text | None


class OutcomeVerified(record.Outcome):
    """The verified result of an action."""


class ToolStarted(record.Part):
    """A tool starts. Null hash: parameters not reported by the runtime. Null tick: before the golem's first record."""

    tool_name: record.Name
    params_hash: record.Name | None
    tick: record.Tick | None


class ToolUpdated(record.Part):
    """A tool executed a step."""

    tool_name: record.Name
    step: record.Name


class ToolEnded(record.Part):
    """A tool ended. Null: not reported by the runtime."""

    tool_name: record.Name
    success: bool
    duration_ms: record.Whole | None
    result_summary: record.Text | None


# memory


class EpisodeStored(record.Part):
    """An episode was written. tool: of the first action of the tick, or of the text; null without one."""

    episode_id: record.Name
    importance: record.Name
    tool: record.Name | None
    chain: record.Name | None
    dream_tag: record.Name | None


class EntryRetrieved(record.RetrievedEntry):
    """A grimoire entry was retrieved, with the factors of its score."""


class MutationSeen(record.GrimoireMutation):
    """A change of an entry in the last closed cycle became visible to the golem."""


class GrimoireWritten(record.Part):
    """A curator decision wrote an entry. source: its provenance; confidence: after the decision."""

    entry_type: record.Name
    category: record.Name
    confidence: record.Unit
    source: record.Name
    entry_id: record.Name
    operation: record.Name
    cycle: record.Whole


class CycleCurated(record.Part):
    """A curator cycle is complete."""

    entries_pruned: record.Whole
    entries_promoted: record.Whole
    heuristics_proposed: record.Whole
    cycle: record.Whole
    record_count: record.Whole


class Consolidated(record.Part):
    """Episodes were consolidated: of a cycle by the curator, or those that a call of memory_consolidate read.

    episodes_processed: of a cycle, the distinct evidence ticks of its decisions. cycle: null for a call.
    episodes_decayed: null for a cycle.
    """

    episodes_processed: record.Whole
    insights_created: record.Whole
    insights_reinforced: record.Whole
    episodes_decayed: record.Whole | None
    cycle: record.Whole | None


class ConsolidationHook(record.Part):
    """A call of memory_consolidate ended; the golem's imported knowledge and tagged episodes wait no longer."""

    episodes_processed: record.Whole
    clusters_found: record.Whole
    insights_created: record.Whole
    insights_reinforced: record.Whole
    episodes_decayed: record.Whole


class Imported(record.Part):
    """Knowledge of another golem was imported. Null counts: the bundle is not in this home. Null override: each entry
    keeps its own attenuated confidence."""

    episodes: record.Whole | None
    insights: record.Whole
    strategies: record.Whole | None
    confidence_override: record.Unit | None
    content_hash: record.Name


class ImportHook(record.Part):
    """Imported knowledge waits for consolidation."""

    content_hash: record.Name
    insights: record.Whole


# dream, social


class DreamBegan(record.Part):
    """A dream began at the close of a cycle. began_by: reason; budgets: episodes and failures at most."""

    cycle: record.Whole
    began_by: record.Name
    replay_budget: record.Whole
    counterfactual_budget: record.Whole


class DreamFragment(record.Part):
    """A dream replayed the episode of a tick. arousal: before and after REM."""

    cycle: record.Whole
    replayed_tick: record.Tick
    salience: record.Real
    arousal_before: record.Real
    arousal_after: record.Real


class DreamIntegration(record.Part):
    """A dream changed a hypothesis. state: imagined, staged, confirmed or gone; confidence: after the change."""

    cycle: record.Whole
    hypothesis_id: record.Name
    operation: record.Name
    state: record.Name
    text: record.Text
    confidence: record.Unit


class DreamEnded(record.Part):
    """A dream ended. Counts: replayed episodes, simulated failures and branches, and changed hypotheses."""

    cycle: record.Whole
    episodes_replayed: record.Whole
    failure_count: record.Whole
    branch_count: record.Whole
    staged_count: record.Whole
    confirmed_count: record.Whole
    gone_count: record.Whole


class PheromoneDeposited(record.Part):
    """A golem heard a deposit of a stranger at a market. hour: of the deposit; intensity: then."""

    sort: Literal["threat", "opportunity"]
    chain: record.Name
    protocol: record.Name
    pair: record.Name
    intensity: record.Unit
    hour: record.Moment


# mortality


class VitalityChanged(record.Part):
    """Vitality after a tick."""

    vitality: record.Vitality
    phase: record.Phase
    credits_micros: record.Spent
    credit_consumed_micros: record.Spent


class PhaseChanged(record.Part):
    """The behavioural phase differs from that of the previous tick, or before ticks that were accepted as lost."""

    before: record.Phase
    after: record.Phase
