"""What each event of the fabric carries: one model a name or a family of names. Fields that the documents give keep
their names; what was added stands behind them. Source: HB S7, S12, S18; TOOLS ("Event Fabric"); MEM.
"""

from __future__ import annotations

from typing import Literal

from bardo_pipeline.events.record.model import (
    Amount,
    ContextCategory,
    Emotion,
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
    Signed,
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
    """Step 1 is complete. anomalies: what they say, in words."""

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
    """The gate has decided how much thought the tick gets."""

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
    """A steer or follow-up of the owner met this tick; null state: the runtime does not say where in the tick."""

    steer_id: Name
    fsm_state: Name | None
    severity: Literal["low", "high"]
    kind: Literal["steer", "follow_up"]


class QueueWarning(Part):
    """So many ticks wait that the next one is dropped."""

    tick: Tick
    queue_depth: Whole


class TickDropped(Part):
    """Ticks that were dropped since the last one that ran; they have no number (canon 35)."""

    tick: Tick
    dropped: Whole
    during_dream: bool


class DroppedInDream(Part):
    """Ticks that were dropped because the golem dreamt."""

    tick: Tick
    dropped: Whole


class RegimeShifted(Part):
    """The market's regime is another than a tick before."""

    before: Regime
    after: Regime


class InferenceCompleted(Part):
    """A model was asked, and what it answered came to. Its reasoning is private and stays in the record."""

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
    """What the workspace held."""

    tokens: Whole
    categories: tuple[ContextCategory, ...]


# attention, affect


class ProbeRaised(Part):
    """A probe asks for attention."""

    probe: ProbeName
    severity: Literal["low", "high"]
    value: Real | None
    threshold: Real | None
    detail: Text | None


class MoodShifted(Part):
    """The appraisal moved the mood."""

    before: Pad
    after: Pad
    emotion: Emotion


class MarkerFired(Part):
    """A situation with an emotional residue was met again."""

    entry_id: Name
    situation: Text
    valence: Signed


# prediction


class PredictionRegistered(Part):
    """A prediction made before observing: an 80 % interval."""

    quantity: Name
    expected: Real
    low: Real
    high: Real


class PredictionResolved(Part):
    """What came of a prediction."""

    quantity: Name
    expected: Real
    actual: Real
    held: bool


class DecisionResolved(Part):
    """An earlier decision judged by what came after: acting less holding, in parts per million."""

    decision_tick: Tick
    action_type: Name
    tool_name: Name
    chosen: Literal["act", "hold"]
    regime: Regime
    effect_ppm: Ppm
    verified: bool
    ground_truth_source: Name


class AccuracyUpdate(Part):
    """The share of the last `window` resolved predictions that held, told every so many ticks."""

    accuracy: Unit
    window: Whole


# action


class ActionTaken(Part):
    """A tool call and what became of it; reason: why it was blocked or put off."""

    action_type: Name
    tool_name: Name
    permit_id: Name | None
    tx_hash: Name | None
    gas_cost_micros: Spent
    slippage_ppm: Ppm | None
    value_micros: Spent
    reason: Text | None


class OutcomeVerified(Outcome):
    """Ground truth for what was done."""


class ToolStarted(Part):
    """A tool begins. Null hash: the runtime does not say with what it was called."""

    tool_name: Name
    params_hash: Name | None
    tick: Tick


class ToolUpdated(Part):
    """A tool took one of its steps."""

    tool_name: Name
    step: Name


class ToolEnded(Part):
    """A tool is done. Null where the runtime does not say."""

    tool_name: Name
    success: bool
    duration_ms: Whole | None
    result_summary: Text | None


# memory


class EpisodeStored(Part):
    """An episode was written. tool: of the tick's first action, null where it did nothing; dream_tag: if it has one."""

    episode_id: Name
    importance: Name
    tool: Name | None
    chain: Name
    dream_tag: Name | None


class EntryRetrieved(Part):
    """A grimoire entry was put before the deliberator, with its score factor by factor."""

    entry_id: Name
    kind: Name
    score: Unit
    semantic: Unit
    recency: Unit
    importance: Amount
    affect: Unit


class MutationSeen(Part):
    """What the last closed cycle did to an entry became visible to the golem."""

    operation: Name
    entry_id: Name
    kind: Name


class GrimoireWritten(Part):
    """A decision of the curator wrote an entry; source: its provenance, confidence as it was left."""

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
    """A cycle's episodes became knowledge. episodes_processed: distinct ticks that its decisions rest on."""

    episodes_processed: Whole
    insights_created: Whole
    insights_reinforced: Whole
    cycle: Whole


class Imported(Part):
    """Knowledge of another life came in. Null counts: its bundle is not in this home. Null override: each entry keeps
    its own confidence, attenuated."""

    episodes: Whole | None
    insights: Whole
    strategies: Whole | None
    confidence_override: Unit | None
    content_hash: Name


class ImportHook(Part):
    """What came in awaits consolidation."""

    content_hash: Name
    insights: Whole


# mortality


class VitalityChanged(Part):
    """The clock of mortality after a tick."""

    vitality: Vitality
    phase: Phase
    credits_micros: Spent
    credit_consumed_micros: Spent


class PhaseChanged(Part):
    """The behavioural phase is another than a tick before, or than before ticks that were given up."""

    before: Phase
    after: Phase
