"""The DecisionCycleRecord: all that a golem observed, felt, thought, did and learned in one tick.

These models stand at the doors; inside, records are Arrow tables whose schema is derived from them (arrow_schema.py).
Money is int64 micro-dollars. `recorded_at` is not here: it belongs to the log and stays outside every hash.
Source: HB S6; the additions (predictions, resolutions, cycle_seen) are named in ARCHITECTURE.md.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

SCHEMA_VERSION = 3
"""The version that this code writes; records of a higher version are refused. What each brought: upcast.py."""

Text = Annotated[str, Field(max_length=65_536)]
Name = Annotated[str, Field(min_length=1, max_length=256)]
Micros = Annotated[int, Field(ge=-(2**62), le=2**62)]
Spent = Annotated[int, Field(ge=0, le=2**62)]
Tick = Annotated[int, Field(ge=1, le=2**53)]
LivedTick = Annotated[int, Field(ge=1, le=2**32 - 1)]
"""A tick that a golem can come to (4,000 years of half minutes): derivation packs golem and tick into one integer."""
Whole = Annotated[int, Field(ge=0, le=2**53)]
Ppm = Annotated[int, Field(ge=-(10**12), le=10**12)]
Real = Annotated[float, Field(allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Unit = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
Signed = Annotated[float, Field(ge=-1.0, le=1.0, allow_inf_nan=False)]


def _utc(moment: datetime) -> datetime:
    if moment.utcoffset() != timedelta(0):
        raise ValueError("needs a UTC moment: give it an offset of +00:00")
    return moment


Moment = Annotated[datetime, AfterValidator(_utc)]

REGIMES = ("trending_up", "trending_down", "range_bound", "volatile", "unknown")
PROBES = (
    "price_delta",
    "tvl_change",
    "position_health",
    "gas_price",
    "credit_balance",
    "rsi_macd",
    "circuit_breaker",
    "kill_switch",
    "pheromone_threat",
    "homeostatic_deviation",
    "world_model_drift",
    "causal_graph",
)
TIERS = ("T0", "T1", "T2", "suppress")
PHASES = ("thriving", "stable", "conservation", "declining", "terminal")
EMOTIONS = ("joy", "trust", "fear", "surprise", "sadness", "disgust", "anger", "anticipation")

Regime = Literal["trending_up", "trending_down", "range_bound", "volatile", "unknown"]
ProbeName = Literal[
    "price_delta", "tvl_change", "position_health", "gas_price", "credit_balance", "rsi_macd",
    "circuit_breaker", "kill_switch", "pheromone_threat", "homeostatic_deviation", "world_model_drift", "causal_graph",
]  # fmt: skip
Severity = Literal["none", "low", "high"]
Tier = Literal["T0", "T1", "T2", "suppress"]
Phase = Literal["thriving", "stable", "conservation", "declining", "terminal"]
Emotion = Literal["joy", "trust", "fear", "surprise", "sadness", "disgust", "anger", "anticipation"]


class Part(BaseModel):
    """A part of a record: immutable, strict about unknown names."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class PositionObservation(Part):
    """One open position as seen this tick. Health is 2 at its range's centre, 1 at the edge, 0 from a width beyond.

    A loan is a position, too, of the protocol that lends: its value is the collateral less the debt, and no less than
    nothing; its health collateral x liquidation threshold / debt; its range the prices at which that is 1 or more; its
    loss interest and lost bonuses so far. It has no liquidity and no fees.
    """

    position_id: Name
    protocol: Name
    pair: Name
    tick_lower: Annotated[int, Field(ge=-887_272, le=887_272)]
    tick_upper: Annotated[int, Field(ge=-887_272, le=887_272)]
    liquidity: Amount
    value_micros: Spent
    fees_owed_micros: Spent
    impermanent_loss_micros: Micros
    in_range: bool
    health_factor: Amount


class Observation(Part):
    """What the golem saw. Prices in quote per base; sigma_ratio is the sigma of returns over its long average."""

    market: Name
    chain: Name
    protocol: Name
    pair: Name
    pool: Name
    block_number: Whole | None
    price: Amount
    price_low: Amount
    price_high: Amount
    price_return: Real
    sma: Amount | None
    sigma_ratio: Amount | None
    rsi: Annotated[float, Field(ge=0.0, le=100.0, allow_inf_nan=False)] | None
    macd: Real | None
    liquidity: Amount
    volume_micros: Spent
    gas_gwei: Amount
    gas_hour_ratio: Amount
    idle_micros: Spent
    net_asset_value_micros: Spent
    anomaly_score: Unit
    positions: tuple[PositionObservation, ...]


class ProbeResult(Part):
    """One of the twelve probes. Null severity and value: its source is absent this tick."""

    probe: ProbeName
    severity: Severity | None
    value: Real | None
    threshold: Real | None
    detail: Text | None


class Anomaly(Part):
    """A probe at high severity."""

    probe: ProbeName
    value: Real
    threshold: Real
    description: Text


class Pad(Part):
    """Pleasure, arousal, dominance, each in [-1, 1]."""

    pleasure: Signed
    arousal: Signed
    dominance: Signed


class SomaticMarker(Part):
    """A situation that left an emotional residue: which knowledge, and how it pulls."""

    entry_id: Name
    situation: Text
    valence: Signed


class PredictionErrorSources(Part):
    """The six weighted sources before their sum is capped; null where the source is absent."""

    price: Unit | None
    regime: Unit
    health: Unit | None
    threat: Unit | None
    interventions: Unit
    anomalies: Unit


class Prediction(Part):
    """A prediction made before observing, and what came: an 80 % interval in the unit of its quantity."""

    quantity: Literal["price", "gas", "health"]
    expected: Real
    low: Real
    high: Real
    actual: Real
    held: bool


class ContextCategory(Part):
    """One category of the workspace: how many items, how many tokens."""

    category: Name
    items: Whole
    tokens: Whole


class ContextBundle(Part):
    """What was put before the deliberator; null when nothing was deliberated."""

    categories: tuple[ContextCategory, ...]
    tokens: Whole


class RetrievedEntry(Part):
    """A grimoire entry that was retrieved, with its score factor by factor, each in [0, 1]."""

    entry_id: Name
    kind: Name
    score: Unit
    semantic: Unit
    recency: Unit
    importance: Amount
    affect: Unit


class Intervention(Part):
    """A steer or a follow-up of the owner that was pending at this tick."""

    intervention_id: Name
    kind: Literal["steer", "follow_up"]
    severity: Literal["low", "high"]
    intent: Text


class ToolCall(Part):
    """A tool call that the deliberation proposed."""

    tool: Name
    action_type: Name


class Deliberation(Part):
    """What was thought, if the gate let it. Null latency: a rule-based deliberator reads no clock."""

    model: Name
    tier: Tier
    input_tokens: Whole
    output_tokens: Whole
    cache_read_tokens: Whole | None
    reasoning_summary: Text
    tool_calls: tuple[ToolCall, ...]
    decision: Name
    confidence: Unit
    latency_ms: Whole | None
    cost_micros: Spent
    recommends_action: bool


class Action(Part):
    """A tool call and what became of it. Null permit and hash: it was not executed, or not on a chain.

    A loan's liquidation is the protocol's doing: it is executed, and nobody permitted it.
    """

    action_type: Name
    tool_name: Name
    permit_id: Name | None
    tx_hash: Annotated[str, Field(pattern=r"^0x[0-9a-f]{64}$")] | None
    status: Literal["executed", "blocked", "deferred", "reverted"]
    block_reason: Text | None
    gas_cost_micros: Spent
    slippage_ppm: Ppm | None
    value_micros: Spent


class Outcome(Part):
    """Ground truth for what was done in this tick: costs now; worth is judged later (Resolution)."""

    verified: bool
    expected: Text
    actual: Text
    pnl_impact_micros: Micros | None
    ground_truth_source: Name
    cause_variable: Name | None
    effect_variable: Name | None


class Resolution(Part):
    """A decision judged by what came after: acting beside not acting, both carried on to this tick.

    effect_ppm: (worth of acting - worth of holding) in parts per million of the position's value at the decision,
    costs included. The situation is that of the decision, so that a resolution explains itself.
    """

    decision_tick: LivedTick
    action_type: Name
    tool_name: Name
    chosen: Literal["act", "hold"]
    regime: Regime
    anomaly_score: Unit
    gas_ratio: Amount
    value_micros: Spent
    effect_ppm: Ppm
    verified: bool
    ground_truth_source: Name
    retrieved_entry_ids: tuple[Name, ...]


class GrimoireMutation(Part):
    """A decision of the curator's last closed cycle, as it became visible to the golem."""

    operation: Name
    entry_id: Name
    kind: Name


class Vitality(Part):
    """Three components in [0, 1]; their product is the vitality; any at zero kills."""

    economic: Unit
    epistemic: Unit
    stochastic: Unit
    composite: Unit


class Cost(Part):
    """What the tick cost, in micro-dollars."""

    inference_micros: Spent
    gas_micros: Spent
    total_micros: Spent


class ToolRun(Part):
    """A run of a tool in this tick, one that only reads or remembers among them (TOOLS, "Event Fabric")."""

    tool: Name
    params_hash: Name | None
    steps: tuple[Name, ...]
    success: bool
    duration_ms: Whole | None
    result_summary: Text | None


class Pipeline(Part):
    """How the heartbeat itself went: what waited, was dropped, how long it took, where a steer met it (HB S7, S12).

    tool_runs: every tool that ran, in order; null where the runtime does not say.
    """

    queue_depth: Whole
    ticks_dropped: Whole
    dropped_while_dreaming: bool
    duration_ms: Whole | None
    steer_state: Name | None
    tool_runs: tuple[ToolRun, ...] | None = None


class Sealed(Part):
    """The private parts of this record, encrypted under the golem's key; they are absent where they stood (X-7)."""

    key_id: Name
    nonce: Annotated[str, Field(pattern=r"^[0-9a-f]{24}$")]
    ciphertext: Annotated[str, Field(min_length=1, max_length=2**20)]


class DecisionCycleRecord(Part):
    """One heartbeat of one golem. dream_tag: why its episode is to be dreamt of soon (TOOLS); null for most."""

    schema_version: Annotated[int, Field(ge=1, le=SCHEMA_VERSION)] = SCHEMA_VERSION
    golem_id: Name
    tick: LivedTick
    observed_at: Moment
    cycle_seen: Whole
    derivation_id: Name | None
    playbook_version: Whole

    observation: Observation
    regime: Regime
    tick_interval_seconds: Whole
    probe_results: tuple[ProbeResult, ...]
    anomalies: tuple[Anomaly, ...]
    predictions: tuple[Prediction, ...]

    pad_before: Pad
    pad_after: Pad
    somatic_markers_fired: tuple[SomaticMarker, ...]
    primary_emotion: Emotion

    prediction_error: Unit
    prediction_error_sources: PredictionErrorSources
    deliberation_threshold: Unit
    tier: Tier
    forced_by: Literal["steer", "phase_transition", "birth", "reorg"] | None
    gating_reason: Text

    context_bundle_summary: ContextBundle | None
    retrieved_entries: tuple[RetrievedEntry, ...]
    active_interventions: tuple[Intervention, ...]

    deliberation: Deliberation | None
    actions: tuple[Action, ...]
    outcome: Outcome | None
    resolutions: tuple[Resolution, ...]

    episodes_written: tuple[Name, ...]
    grimoire_mutations: tuple[GrimoireMutation, ...]

    vitality: Vitality
    phase: Phase
    credits_micros: Spent
    credit_consumed_micros: Spent
    cost: Cost

    pipeline: Pipeline | None = None
    sealed: Sealed | None = None
    dream_tag: Name | None = None
