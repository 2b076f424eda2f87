"""Payload models of the typed events. Fields of the specification come first, additions after them.

Source: HB S7, S12, S18; TOOLS ("Event Fabric"); MEM.
"""

from __future__ import annotations

from typing import Literal

from bardo_pipeline.events.record.model import (
    Amount,
    ContextCategory,
    Emotion,
    GrimoireMutation,
    Moment,
    Name,
    Outcome,
    Pad,
    Part,
    Phase,
    Ppm,
    ProbeName,
    Real,
    Regime,
    RetrievedEntry,
    SomaticMarker,
    Spent,
    Text,
    Tick,
    Tier,
    Unit,
    Vitality,
    Whole,
)

# cognition


class MarketObserved(Part):
    """Step 1 is complete. anomalies: their descriptions."""

    regime: Regime
    anomaly_count: Whole
    probe_count: Whole
    anomalies: tuple[Text, ...]
    chain: Name
    protocol: Name
    pair: Name
    block_number: Whole | None
    price: Amount
    gas_gwei: Amount
    net_asset_value_micros: Spent


class TickGated(Part):
    """The gate has chosen the cognitive tier of the tick."""

    tick: Tick
    tier: Tier
    prediction_error: Unit
    threshold: Unit
    forced_by: Name | None
    reason: Text


class TickCompleted(Part):
    """The tick is finished. Null duration: the runtime reads no clock."""

    tick: Tick
    duration_ms: Whole | None
    actions_taken: Whole
    cost_micros: Spent


class TickSuppressed(Part):
    """The tick was suppressed (tier `suppress`)."""

    tick: Tick
    reason: Text
    next_scheduled: Moment


class SteerReceived(Part):
    """A steer or follow-up by the owner was received; null state: not reported by the runtime."""

    steer_id: Name
    fsm_state: Name | None
    severity: Literal["low", "high"]
    kind: Literal["steer", "follow_up"]


class QueueWarning(Part):
    """The queue is so long that the next tick may be dropped."""

    tick: Tick
    queue_depth: Whole


class DroppedInDream(Part):
    """Ticks dropped during a dream."""

    tick: Tick
    dropped: Whole


class TickDropped(DroppedInDream):
    """Ticks dropped since the last executed tick; they have no number (canon 35)."""

    during_dream: bool


class RegimeShifted(Part):
    """The regime differs from that of the previous tick."""

    before: Regime
    after: Regime


class InferenceCompleted(Part):
    """A model answered. Its reasoning is private and stays in the record."""

    model: Name
    tier: Tier
    input_tokens: Whole
    output_tokens: Whole
    cache_read_tokens: Whole | None
    latency_ms: Whole | None
    cost_micros: Spent
    decision: Name
    confidence: Unit
    recommends_action: bool


class ContextAssembled(Part):
    """The context was assembled."""

    tokens: Whole
    categories: tuple[ContextCategory, ...]


# attention, affect


class ProbeRaised(Part):
    """A probe has low or high severity."""

    probe: ProbeName
    severity: Literal["low", "high"]
    value: Real | None
    threshold: Real | None
    detail: Text | None


class MoodShifted(Part):
    """The appraisal changed the mood."""

    before: Pad
    after: Pad
    emotion: Emotion


class MarkerFired(SomaticMarker):
    """A situation with a somatic marker occurred again."""


# prediction


class PredictionRegistered(Part):
    """A prediction made before observing: an 80 % interval."""

    quantity: Name
    expected: Real
    low: Real
    high: Real


class PredictionResolved(Part):
    """A prediction was compared with the actual value."""

    quantity: Name
    expected: Real
    actual: Real
    held: bool


class DecisionResolved(Part):
    """An earlier decision was judged. effect_ppm: acting less holding."""

    decision_tick: Tick
    action_type: Name
    tool_name: Name
    chosen: Literal["act", "hold"]
    regime: Regime
    effect_ppm: Ppm
    verified: bool
    ground_truth_source: Name


class AccuracyUpdate(Part):
    """Share of the last `window` resolved predictions that held, reported at fixed intervals."""

    accuracy: Unit
    window: Whole


# action


class ActionTaken(Part):
    """A tool call and its result. reason: for a blocked or deferred call."""

    action_type: Name
    tool_name: Name
    permit_id: Name | None
    tx_hash: Name | None
    gas_cost_micros: Spent
    slippage_ppm: Ppm | None
    value_micros: Spent
    reason: Text | None


class OutcomeVerified(Outcome):
    """The verified result of an action."""


class ToolStarted(Part):
    """A tool starts. Null hash: parameters not reported by the runtime."""

    tool_name: Name
    params_hash: Name | None
    tick: Tick


class ToolUpdated(Part):
    """A tool executed a step."""

    tool_name: Name
    step: Name


class ToolEnded(Part):
    """A tool ended. Null: not reported by the runtime."""

    tool_name: Name
    success: bool
    duration_ms: Whole | None
    result_summary: Text | None


# memory


class EpisodeStored(Part):
    """An episode was written. tool: of the first action of the tick; null without an action."""

    episode_id: Name
    importance: Name
    tool: Name | None
    chain: Name
    dream_tag: Name | None


class EntryRetrieved(RetrievedEntry):
    """A grimoire entry was retrieved, with the factors of its score."""


class MutationSeen(GrimoireMutation):
    """A change of an entry in the last closed cycle became visible to the golem."""


class GrimoireWritten(Part):
    """A curator decision wrote an entry. source: its provenance; confidence: after the decision."""

    entry_type: Name
    category: Name
    confidence: Unit
    source: Name
    entry_id: Name
    operation: Name
    cycle: Whole


class CycleCurated(Part):
    """A curator cycle is complete."""

    entries_pruned: Whole
    entries_promoted: Whole
    heuristics_proposed: Whole
    cycle: Whole
    record_count: Whole


class Consolidated(Part):
    """The episodes of a cycle were consolidated. episodes_processed: distinct evidence ticks of its decisions."""

    episodes_processed: Whole
    insights_created: Whole
    insights_reinforced: Whole
    cycle: Whole


class Imported(Part):
    """Knowledge of another golem was imported. Null counts: the bundle is not in this home. Null override: each entry
    keeps its own attenuated confidence."""

    episodes: Whole | None
    insights: Whole
    strategies: Whole | None
    confidence_override: Unit | None
    content_hash: Name


class ImportHook(Part):
    """Imported knowledge waits for consolidation."""

    content_hash: Name
    insights: Whole


# mortality


class VitalityChanged(Part):
    """Vitality after a tick."""

    vitality: Vitality
    phase: Phase
    credits_micros: Spent
    credit_consumed_micros: Spent


class PhaseChanged(Part):
    """The behavioural phase differs from that of the previous tick, or before ticks that were accepted as lost."""

    before: Phase
    after: Phase
