"""The DecisionCycleRecord: observation, affect, deliberation, actions and learning of a golem in one tick.

These models validate input; internally, records are Arrow tables with a derived schema (arrow_schema.py). Amounts of
money are int64 micro-dollars. `recorded_at` is a column of the log and not part of any hash.
Source: HB S6; the additions (predictions, resolutions, cycle_seen) are named in ARCHITECTURE.md.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

SCHEMA_VERSION = 10
"""Version of written records; records of a higher version are refused. ADDED_LATER lists the changes."""

Text = Annotated[str, Field(max_length=65_536)]
Name = Annotated[str, Field(min_length=1, max_length=256)]
Micros = Annotated[int, Field(ge=-(2**62), le=2**62)]
Spent = Annotated[int, Field(ge=0, le=2**62)]
Tick = Annotated[int, Field(ge=1, le=2**53)]
LivedTick = Annotated[int, Field(ge=1, le=2**32 - 1)]
"""Tick of a record. The limit lets derivations pack golem and tick into one integer (4,000 years of half minutes)."""
Whole = Annotated[int, Field(ge=0, le=2**53)]
Ppm = Annotated[int, Field(ge=-(10**12), le=10**12)]
Real = Annotated[float, Field(allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Unit = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
Route = Literal["escalate", "emit", "count", "discard"]
RewardPpm = Annotated[int, Field(ge=-1_000_000, le=1_000_000)]
Signed = Annotated[float, Field(ge=-1.0, le=1.0, allow_inf_nan=False)]


def _utc(moment: datetime) -> datetime:
    if moment.utcoffset() != timedelta(0):
        raise ValueError("needs a UTC moment: give it an offset of +00:00")
    return moment


Moment = Annotated[datetime, AfterValidator(_utc)]

Regime = Literal["trending_up", "trending_down", "range_bound", "volatile", "unknown"]
ProbeName = Literal[
    "price_delta", "tvl_change", "position_health", "gas_price", "credit_balance", "rsi_macd",
    "circuit_breaker", "kill_switch", "pheromone_threat", "homeostatic_deviation", "world_model_drift", "causal_graph",
]  # fmt: skip
Severity = Literal["none", "low", "high"]
Tier = Literal["T0", "T1", "T2", "suppress"]
Phase = Literal["thriving", "stable", "conservation", "declining", "terminal"]
Emotion = Literal["joy", "trust", "fear", "surprise", "sadness", "disgust", "anger", "anticipation"]

REGIMES: tuple[str, ...] = get_args(Regime)
PROBES: tuple[str, ...] = get_args(ProbeName)
TIERS: tuple[str, ...] = get_args(Tier)
PHASES: tuple[str, ...] = get_args(Phase)
EMOTIONS: tuple[str, ...] = get_args(Emotion)


class Part(BaseModel):
    """Base class: immutable, refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class PositionObservation(Part):
    """An open position. Health is 2 at the centre of its range, 1 at the edge, 0 one width outside.

    A loan is a position in the lending protocol: value = max(collateral - debt, 0), health = collateral x liquidation
    threshold / debt, range = prices with health >= 1, loss = interest and lost bonuses. It has no liquidity or fees.
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
    """Observation of the market. Prices in quote per base; sigma_ratio: sigma of returns over its long average."""

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
    """Result of one of the twelve probes. Null severity and value: the source is missing in this tick."""

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
    """A somatic marker: the entry of a past situation and its emotional valence."""

    entry_id: Name
    situation: Text
    valence: Signed


class PredictionErrorSources(Part):
    """The six weighted sources before the cap on their sum; null if the source is missing."""

    price: Unit | None
    regime: Unit
    health: Unit | None
    threat: Unit | None
    interventions: Unit
    anomalies: Unit


class Prediction(Part):
    """A prediction made before the observation (80 % interval, unit of the quantity) and the actual value."""

    quantity: Literal["price", "gas", "health"]
    expected: Real
    low: Real
    high: Real
    actual: Real
    held: bool


class ContextCategory(Part):
    """A category of the workspace: number of items and of tokens."""

    category: Name
    items: Whole
    tokens: Whole


class ContextBundle(Part):
    """Context of the deliberation; null without one."""

    categories: tuple[ContextCategory, ...]
    tokens: Whole


class RetrievedEntry(Part):
    """A retrieved grimoire entry with the factors of its score, each in [0, 1]."""

    entry_id: Name
    kind: Name
    score: Unit
    semantic: Unit
    recency: Unit
    importance: Amount
    affect: Unit


class Intervention(Part):
    """A steer or follow-up by the owner that was pending at this tick."""

    intervention_id: Name
    kind: Literal["steer", "follow_up"]
    severity: Literal["low", "high"]
    intent: Text


class ToolCall(Part):
    """A tool call proposed by the deliberation."""

    tool: Name
    action_type: Name


class Deliberation(Part):
    """The deliberation, if the gate allowed one. Null latency: a rule-based deliberator reads no clock."""

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
    """A tool call and its result. Null permit and hash: not executed, or not on a chain.

    A liquidation of a loan is executed by the protocol, without a permit.
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
    """Verified result of the actions of this tick. It has costs; a later Resolution has the effect."""

    verified: bool
    expected: Text
    actual: Text
    pnl_impact_micros: Micros | None
    ground_truth_source: Name
    cause_variable: Name | None
    effect_variable: Name | None


class Resolution(Part):
    """Judgement of an earlier decision: acting compared with holding, both valued at this tick.

    effect_ppm: worth of acting less worth of holding, costs included, in parts per million of the position's value at
    the decision. The situation is that of the decision.
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
    """A decision of the curator in the last closed cycle, as visible to the golem."""

    operation: Name
    entry_id: Name
    kind: Name


class Vitality(Part):
    """Three components in [0, 1] and their product; a component at 0 means death."""

    economic: Unit
    epistemic: Unit
    stochastic: Unit
    composite: Unit


class Cost(Part):
    """Cost of the tick, in micro-dollars."""

    inference_micros: Spent
    gas_micros: Spent
    total_micros: Spent


class ToolRun(Part):
    """A run of a tool in this tick, including tools that only read (TOOLS, "Event Fabric")."""

    tool: Name
    params_hash: Name | None
    steps: tuple[Name, ...]
    success: bool
    duration_ms: Whole | None
    result_summary: Text | None


class Pipeline(Part):
    """Figures of the heartbeat: queued and dropped ticks, duration, state at a steer (HB S7, S12).

    tool_runs: all tools that ran, in order; null if the runtime does not report them.
    """

    queue_depth: Whole
    ticks_dropped: Whole
    dropped_while_dreaming: bool
    duration_ms: Whole | None
    steer_state: Name | None
    tool_runs: tuple[ToolRun, ...] | None = None


class Sealed(Part):
    """The private parts of the record, encrypted with the golem's key; their fields are empty (X-7)."""

    key_id: Name
    nonce: Annotated[str, Field(pattern=r"^[0-9a-f]{24}$")]
    ciphertext: Annotated[str, Field(min_length=1, max_length=2**20)]


class Attention(Part):
    """Figures by which attention judged a tick at T1; null if it judged none.

    thoughts, vain_thoughts: discounted deliberations in this situation (regime and anomaly band), and those without an
    executed action. The tick is suppressed if draw < chance.
    """

    thoughts: Amount
    vain_thoughts: Amount
    chance: Unit
    draw: Unit


class ExpertSignals(Part):
    """Signals of the learned gate's experts; null if the source is absent, so that the expert sleeps."""

    oracle: Unit | None
    surprise: Unit | None
    topology: Unit | None
    contradiction: Unit | None
    risk: Unit | None


class ExpertWeights(Part):
    """Weights of the experts, which sum to 1; the composite counts those that are awake."""

    oracle: Unit
    surprise: Unit
    topology: Unit
    contradiction: Unit
    risk: Unit


class Boundary(Part):
    """A boundary between two tiers: its Beta distribution, and the threshold of this tick that was drawn from it.

    threshold: shifted by arousal and dominance; null if the fixed gate decided the tick.
    """

    alpha: Amount
    beta: Amount
    threshold: Unit | None


class Gating(Part):
    """Figures of the learned gate; null without it. They are those before the judgement at the end of this tick.

    Parameters
    ----------
    composite : mean of the signals by weight; null if all experts sleep
    boundary_t2, boundary_t1, boundary_t0 : the tier of a composite above the threshold, taken from the highest one;
        `suppress` below all
    explored : a discarded tick deliberated all the same, at T1
    found : the deliberation found something to do: an executed action, or a decision that priors changed
    """

    signals: ExpertSignals
    weights: ExpertWeights
    composite: Unit | None
    boundary_t2: Boundary
    boundary_t1: Boundary
    boundary_t0: Boundary
    explored: bool
    found: bool


class EventScores(Part):
    """Scores of a chain event; null if the source is absent, so that the score does not count."""

    heuristic: Unit | None
    surprise: Unit | None
    error: Unit | None
    anomaly: Unit | None
    novelty: Unit | None


class RoutedEvent(Part):
    """A chain event since the tick before, and its route.

    Parameters
    ----------
    value_micros : swapped value; 0 for loans, whose amounts a trace does not record
    score : mean of the scores by weight; null if none has a source
    decider : what decided the route: thresholds of the arm, LinUCB, or the baseline if neither is usable
    shadow_route : what the epsilon-greedy baseline would have done
    """

    kind: Literal["swap", "loan_usdc", "loan_weth"]
    value_micros: Spent
    scores: EventScores
    score: Unit | None
    route: Route
    decider: Literal["threshold", "context", "baseline"]
    shadow_route: Route


class Router(Part):
    """Learning state of the router of chain events, before this tick.

    Parameters
    ----------
    log_weights, rule_log_weights : logarithms of the weights of scores and of rules beside the heaviest
    arms : alpha of each arm by regime of arousal, then beta
    inverse : upper triangle of LinUCB's A^-1, row by row, by route but the last
    theta : LinUCB's coefficients by route but the last
    route_means, route_counts : mean reward and number of judged events by route
    rounds : number of judged events
    """

    log_weights: tuple[Real, ...]
    rule_log_weights: tuple[Real, ...]
    arms: tuple[Amount, ...]
    inverse: tuple[Real, ...]
    theta: tuple[Real, ...]
    route_means: tuple[Unit, ...]
    route_counts: tuple[Amount, ...]
    rounds: tuple[Amount, ...]


class Triage(Part):
    """Chain events since the tick before, as the router routed them; null without the router.

    Parameters
    ----------
    arm : position of the arm whose thresholds counted
    arousal_regime : regime of arousal that chose it
    woke : an escalated event let a discarded tick deliberate, at T1
    state : learning state at the first tick of a delta, else null
    """

    events: tuple[RoutedEvent, ...]
    arm: Whole
    arousal_regime: Literal["low", "medium", "high"]
    woke: bool
    state: Router | None


class Spending(Part):
    """Spending of the UTC day before this tick, once it limits the tier; null below the first band.

    Parameters
    ----------
    day_spent_micros : inference and gas of the golem's earlier ticks of this UTC day
    day_cap_micros : its daily budget
    band : `no_large_model`: T2 falls to T1; `no_model`: T1 and T2 fall to T0; `no_query`: nothing is queried either
    wanted_tier : tier that the gate chose, if the band lowered it; null if it lowered none
    """

    day_spent_micros: Spent
    day_cap_micros: Spent
    band: Literal["no_large_model", "no_model", "no_query"]
    wanted_tier: Tier | None


class Permit(Part):
    """Permission to execute one action, issued by the accuracy gate.

    Parameters
    ----------
    action_type : the one action that it permits
    market_state : hash of the market on which the action was decided; the permit is void in any other state
    expires_us : end of its validity, in microseconds since the epoch
    accuracy : share of the golem's latest predictions that held
    simulated : the action was simulated before it was sent
    """

    permit_id: Name
    action_type: Name
    market_state: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    expires_us: Whole
    accuracy: Unit
    simulated: bool


class CachedDecision(Part):
    """Lookup in the decision cache at a tick that would deliberate; null without one.

    Parameters
    ----------
    pattern : position of the situation: anomaly band, gas band, and whether a position is open
    outcomes : consistent outcomes of deliberations in this situation
    result : `hit` if the cache answered with holding; else why it did not
    wanted_tier : tier at which the golem would have deliberated
    """

    pattern: Whole
    outcomes: Whole
    result: Literal["hit", "unknown", "unproven", "acts", "expired", "regime", "context", "playbook", "drift"]
    wanted_tier: Tier


class AttentionChange(Part):
    """Change of the attention that an item of the environment gets.

    Parameters
    ----------
    cause : `discovered` by a scan; `violation`: its change left the expected interval; `dull`: no violation in a delta
    residual : the change that violated, as a logarithm; null without a violation
    """

    item: Name
    level: Literal["active", "watched", "dormant"]
    cause: Literal["discovered", "violation", "dull"]
    residual: Real | None


class ItemResiduals(Part):
    """Residuals of an item since the last digest: changes of its logarithm beside a random walk."""

    item: Name
    resolved: Whole
    violations: Whole
    mean: Real
    variance: Amount


class FailedSubsystem(Part):
    """A subsystem of the chain after a turn that failed, with its error; the later ones ran."""

    subsystem: Literal[
        "heartbeat", "lifespan", "daimon", "memory", "risk", "dream", "cybernetics", "clade", "telemetry"
    ]
    error: Text


class CreditPartitions(Part):
    """The credit partitions before the actions of this tick: what birth allotted, balance, average hourly cost."""

    inference_allotted_micros: Spent
    inference_available_micros: Spent
    inference_hourly_micros: Spent
    gas_allotted_micros: Spent
    gas_available_micros: Spent
    gas_hourly_micros: Spent


class Trial(Part):
    """Judgement of an earlier choice: an alternative compared with another by two shadow positions.

    Both positions start at the decision and pay symmetric costs: fee and impact of a swap, and gas. The golem's own act
    moves neither. The situation is that of the decision.

    Parameters
    ----------
    choice : half-width of a new range, presence in the market, re-centring, or a loan
    taken : state that the golem chose: a half-width in pool ticks ("range_250"), or "out"; of a loan, "levered" or
        "unlevered"
    alternative : judged act: a half-width, "enter", "leave", "recenter", "borrow" or "repay"
    beside : what the alternative is compared with: a half-width, "hold" for no act, "stay" for the position as it is,
        "unlevered" for no loan, or "keep" for the debt as it is
    effect_ppm : worth of `alternative` less worth of `beside` at the horizon, in ppm of the value at the decision
    """

    decision_tick: LivedTick
    choice: Literal["width", "presence", "recentring", "loan"]
    taken: Name
    alternative: Name
    beside: Name
    horizon: Literal["30_ticks", "4_hours", "24_hours"]
    regime: Regime
    anomaly_score: Unit
    gas_ratio: Amount
    value_micros: Spent
    effect_ppm: Ppm
    verified: bool
    ground_truth_source: Name


class RetrievedPrior(Part):
    """A retrieved scar, proposition or lesson of a dream with the factors of its score.

    importance includes KAT's modifiers. sign: 1 acting pays, -1 it harms.
    """

    prior_id: Name
    kind: Literal["scar", "proposition", "lesson"]
    sign: Annotated[int, Field(ge=-1, le=1)]
    confidence: Unit
    score: Unit
    semantic: Unit
    recency: Unit
    importance: Amount
    affect: Unit


class Retrieval(Part):
    """How a deliberation retrieved; null without one, or from a runtime that does not report it.

    reason: the rule that decided, with its numbers. contrarian: entries of the opposite mood were preferred. coverage:
    known share of the protocol's levels. awake, asleep: entries that could be retrieved, and those that are dormant or
    below the least confidence. regime_before_weight: weight of the fading knowledge of the regime before. priors:
    scars, propositions, then lessons of dreams. prior_weight: weight of the priors about exactly this situation,
    positive for re-centring, negative against it.
    """

    skipped: bool
    contrarian: bool
    reason: Text
    coverage: Unit
    awake: Whole
    asleep: Whole
    regime_before: Regime | None
    regime_before_weight: Unit
    priors: tuple[RetrievedPrior, ...]
    prior_weight: Real


class Condition(Part):
    """A condition of a situation: a name and its value, in the runtime's own words."""

    name: Name
    value: Name


class AlternativeAction(Part):
    """An action that was considered and not taken, with the reward that it would have earned, null if unknown."""

    action: Name
    reward_ppm: RewardPpm | None


class Experience(Part):
    """A situation, the action that the runtime took in it, and the reward of that action, in any domain.

    Parameters
    ----------
    decision_tick : tick at which the action was chosen
    conditions : the situation; of a repeated name, the last value counts
    reward_ppm : millionths of the best possible reward; negative for harm
    alternatives : other actions that were considered
    verified : the reward was measured, not expected; only a measured reward is evidence
    """

    decision_tick: LivedTick
    action: Name
    conditions: tuple[Condition, ...]
    reward_ppm: RewardPpm
    alternatives: tuple[AlternativeAction, ...]
    verified: bool
    ground_truth_source: Name


NO_MARKET = "none"
"""Market, chain and pair in the observation of a runtime without a market; its other figures then mean nothing."""


class DecisionCycleRecord(Part):
    """One heartbeat of a golem. dream_tag: reason to replay its episode in a dream soon (TOOLS); usually null."""

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
    attention: Attention | None = None
    credit_partitions: CreditPartitions | None = None
    trials: tuple[Trial, ...] | None = None
    retrieval: Retrieval | None = None
    experiences: tuple[Experience, ...] | None = None
    gating: Gating | None = None
    triage: Triage | None = None
    spending: Spending | None = None
    permits: tuple[Permit, ...] | None = None
    cached_decision: CachedDecision | None = None
    attention_changes: tuple[AttentionChange, ...] | None = None
    residual_digest: tuple[ItemResiduals, ...] | None = None
    failed_subsystems: tuple[FailedSubsystem, ...] | None = None
