"""Gate: surprise of a tick, and the tier of deliberation that it gets. Pure, elementwise over golems.

Attention is learned: golems deliberate less often in situations where deliberation led to no action.
Source: HB S3-S5; canon 25 (the sum, the fallback), canon 26 (the threshold).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bardo_pipeline.arrays import BoolArray, Float64Array, Int8Array, Int64Array
from bardo_pipeline.curator.choice_rules import STAY_OUT
from bardo_pipeline.events.record.model import TIERS
from bardo_pipeline.heartbeat.fleet import Fleet
from bardo_pipeline.heartbeat.observe import Sight
from bardo_pipeline.heartbeat.probes import fixed
from bardo_pipeline.inheritance.learning_state import BANDS
from bardo_pipeline.mortality.random_streams import STREAM_ATTENTION, uniform
from bardo_pipeline.policy import Policy

Counts = NDArray[np.integer[Any]]

SOURCES = ("price", "regime", "health", "threat", "interventions", "anomalies")
"""Rows of the sources, in the order of PredictionErrorSources."""

FORCES = ("steer", "phase_transition", "birth", "reorg")
"""Reasons that force T2; codes are positions, -1 is none."""

UNFORCED, STEER, PHASE_TRANSITION, BIRTH, REORG = -1, 0, 1, 2, 3


def prediction_error(
    price_expected: Float64Array,
    price: Float64Array | float,
    regime_changed: BoolArray,
    health_change: Float64Array,
    threat: Float64Array | float,
    intervention_count: Counts,
    anomaly_count: Counts,
    policy: Policy,
) -> tuple[Float64Array, Float64Array]:
    """Return the sum of six weighted sources, capped at 1, and the sources (HB S4, canon 25).

    Parameters
    ----------
    price_expected : the golem's prediction; NaN or not positive without one
    health_change : signed change of the position's health, NaN without a position now or before
    threat : in [0, 1], NaN without a pheromone field

    Returns
    -------
    total [N] in [0, 1]; weighted sources [6, N], NaN for an absent source
    """
    rules = policy.gate
    sources = np.empty((len(SOURCES), len(price_expected)))
    expected = np.where(price_expected > 0.0, price_expected, np.nan)
    np.minimum(np.abs((price - expected) / expected), 1.0, out=sources[0])
    sources[0] *= rules.price_weight
    np.multiply(regime_changed, rules.regime_weight, out=sources[1])
    change = np.abs(health_change)
    # Multiplied by the condition, not selected by it, so that NaN stays NaN.
    np.multiply(np.minimum(change, rules.health_delta_max), change > rules.health_delta_min, out=sources[2])
    sources[2] *= rules.health_weight
    np.multiply(threat, rules.threat_weight, out=sources[3])
    np.multiply(np.minimum(intervention_count, rules.intervention_max), rules.intervention_weight, out=sources[4])
    np.multiply(np.minimum(anomaly_count, rules.anomaly_max), rules.anomaly_weight, out=sources[5])
    present = np.fmax(sources, 0.0)
    total = present[0] + present[1] + present[2] + present[3] + present[4] + present[5]
    return np.minimum(total, 1.0, out=total), sources


def prediction_error_fallback(
    regime_changed: BoolArray,
    health_change: Float64Array,
    threat: Float64Array | float,
    anomaly_count: Counts,
    policy: Policy,
) -> tuple[Float64Array, Float64Array]:
    """Return the largest of four signals, for a golem without an oracle (HB S3, canon 25).

    Signals: regime change 0.4; min(d, 0.5) / 0.5 of the position's health; threat; min(n, 5) / 5 of the anomalies.
    Returns total and sources as `prediction_error` does. Price is NaN; interventions are 0, because a steer forces T2.
    """
    rules = policy.gate
    sources = np.empty((len(SOURCES), len(health_change)))
    sources[0] = np.nan
    np.multiply(regime_changed, rules.regime_weight, out=sources[1])
    np.divide(np.minimum(np.abs(health_change), rules.health_delta_max), rules.health_delta_max, out=sources[2])
    sources[3] = threat
    sources[4] = 0.0
    np.divide(np.minimum(anomaly_count, rules.anomaly_max), max(rules.anomaly_max, 1), out=sources[5])
    total = np.fmax(np.fmax(sources[1], sources[5]), np.fmax(sources[2], sources[3]))
    return np.minimum(total, 1.0, out=total), sources


def adaptive_threshold(
    vitality: Float64Array, arousal: Float64Array, confidence: Float64Array, policy: Policy
) -> Float64Array:
    """Return the surprise from which a golem deliberates, within [0.05, 0.8] (HB S5).

    The threshold is base x confidence x mortality x arousal. Negative arousal counts as zero, so calm does not lower
    the threshold (canon 26; HB took its absolute value).
    """
    rules = policy.gate
    trusting = 1.0 + confidence * rules.confidence_gain
    dying = 1.0 - (1.0 - vitality) * rules.mortality_gain
    alert = 1.0 - arousal.clip(0.0, 1.0) * rules.arousal_gain
    threshold = rules.base_threshold * trusting * dying * alert
    return threshold.clip(rules.threshold_min, rules.threshold_max, out=threshold)


def transition_imminent(composite: Float64Array, policy: Policy) -> BoolArray:
    """Whether a golem's vitality is at most a margin above the bound of the terminal phase.

    HB S5 forces T2 on imminent phase transitions because "entering Terminal requires full deliberation". Other bounds
    are excluded: a golem hovering around one for days would pay for T2 at every tick, which shortens its life.
    """
    bound = policy.mortality.declining
    return (composite >= bound) & (composite <= bound + policy.gate.transition_margin)


def gate(
    error: Float64Array,
    threshold: Float64Array,
    steer: BoolArray,
    transition: BoolArray,
    birth: BoolArray,
    policy: Policy,
    reorg: BoolArray | None = None,
) -> tuple[Int8Array, Int8Array]:
    """Assign tiers: T0 below the threshold, T1 below twice the threshold, else T2; forced golems get T2 (HB S5).

    Parameters
    ----------
    steer : the owner awaits an answer
    transition : result of transition_imminent
    birth : first tick of a life
    reorg : the chain took back observed blocks (HB S10); None: of no golem

    Returns
    -------
    positions in TIERS; positions in FORCES, -1 unforced (precedence: steer, reorg, transition, birth)
    """
    tier = (error >= threshold).astype(np.int8)
    tier += error >= threshold * policy.gate.deliberate_ratio
    forced = np.where(transition, PHASE_TRANSITION, np.where(birth, BIRTH, UNFORCED))
    forced = forced if reorg is None else np.where(reorg, REORG, forced)
    forced = np.where(steer, STEER, forced)
    tier[forced != UNFORCED] = TIERS.index("T2")
    return tier, forced.astype(np.int8)


def _situations(regime: int, score: Float64Array, policy: Policy) -> Int64Array:
    """Return each golem's situation: regime x 5 + anomaly band."""
    band: Int64Array = np.searchsorted(policy.curator.anomaly_edges, score, side="right")
    return regime * BANDS + band


@dataclass
class Attention:
    """Attention's judgement of a tick, [golems]; the figures are valid where `judged`."""

    judged: BoolArray
    thoughts: Float64Array
    vain: Float64Array
    chance: Float64Array
    draw: Float64Array

    @property
    def suppressed(self) -> BoolArray:
        """The golems that pass over their surprise."""
        return self.judged & (self.draw < self.chance)


def attention(fleet: Fleet, regime: int, sight: Sight, judged: BoolArray, policy: Policy) -> Attention:
    """Draw which golems pass over a surprise; the chance grows with the share of vain thoughts in their situation.

    The share is shrunk towards zero. Older thoughts count less, so the chance stays below one and changes are noticed.
    Golems in their first 100 ticks, those without a position, and those with a high drawdown are not judged. Heirs
    inherit the counts (inheritance/learning_state.py). Source: HB S5 (learned gating after the cold start; discount
    0.99), HB-9, HB-10.

    judged: golems whose tick the fixed gate put at T1.
    """
    situation, golem = _situations(regime, sight.score, policy), np.arange(fleet.size)
    thoughts, vain = fleet.thoughts[situation, golem], fleet.vain[situation, golem]
    learned = fleet.tick > policy.gate.attention_after_ticks
    calm = sight.open & (sight.drawdown < policy.probes.nav_high)
    return Attention(
        judged=judged & learned & calm,
        thoughts=thoughts,
        vain=vain,
        chance=vain / (thoughts + policy.gate.attention_prior_weight),
        draw=uniform(fleet.seed, fleet.tick, STREAM_ATTENTION),
    )


class Gated(NamedTuple):
    """Figures of the learned gate that reasons state: composite [ticks], thresholds of T2, T1 and T0 [3, ticks].

    decided: ticks whose tier it chose. explored, woke: discarded ticks that deliberated, woke by a chain event.
    """

    composite: Float64Array
    thresholds: Float64Array
    decided: BoolArray
    explored: BoolArray
    woke: BoolArray


class Lowered(NamedTuple):
    """Tiers before the decision cache or the daily budget lowered them, with the reasons' figures, [ticks].

    spent: micro-dollars of the day. outcomes: like outcomes behind an answer of the cache, 0 without one.
    """

    wanted: Int8Array
    spent: Int64Array
    outcomes: Int64Array


def settled_out(fleet: Fleet, regime: int, sight: Sight, judged: BoolArray, policy: Policy) -> BoolArray:
    """Return the golems without position or loan whose playbook stays out of this regime: nothing is to be decided.

    The trials of their choices go on without deliberation, so the rule can still change. As with attention, no golem is
    suppressed in its first `attention_after_ticks` ticks.

    judged: golems whose tick the fixed gate put at T1.
    """
    away = ~sight.open & (fleet.debt_shares == 0.0) & (fleet.presence[regime] >= STAY_OUT)
    return judged & away & (policy.gate.attention_after_ticks < fleet.tick)


def count_thoughts(
    fleet: Fleet, regime: int, sight: Sight, golem: Int64Array, acted: BoolArray, policy: Policy
) -> None:
    """Count the thoughts of these golems (positions), and those without an action as vain."""
    situation, memory = _situations(regime, sight.score[golem], policy), policy.gate.attention_memory
    fleet.thoughts[situation, golem] = memory * fleet.thoughts[situation, golem] + 1.0
    fleet.vain[situation, golem] = memory * fleet.vain[situation, golem] + ~acted


_FORCE_WORDS = (
    "the owner steers; ",
    "the terminal phase is near; ",
    "first tick of a life; ",
    "the chain took back blocks; ",
    "",
)


def gating_reasons(
    error: Float64Array, threshold: Float64Array, tier: Int8Array, forced: Int8Array, policy: Policy,
    judgement: Attention | None = None, settling_rules: pa.Array | None = None, gated: Gated | None = None,
    needless: Lowered | None = None,
) -> pa.Array:  # fmt: skip
    """Return one sentence per tick: "T1: surprise 0.4100 reaches the threshold 0.3036".

    A forced tick names the force first. A suppressed tick ends with attention's figures, or with the rule by which the
    playbook stays out. settling_rules: ids of these rules, null elsewhere. gated: figures of the learned gate, whose
    ticks state the composite against the threshold that it exceeds, or against the lowest one. needless: ticks that the
    decision cache answered or the daily budget lowered, which state this last.
    """
    wanted = tier if needless is None else needless.wanted
    by_rule = np.ones(len(tier), bool) if gated is None else ~gated.decided
    sentence = _fixed_reasons(
        error[by_rule], threshold[by_rule], tier[by_rule], forced[by_rule], wanted[by_rule], policy
    )
    if gated is not None and gated.decided.any():
        where = gated.decided
        learned = _learned_reasons(tier[where], gated.composite[where], gated.thresholds[:, where],
                                   gated.explored[where], gated.woke[where])  # fmt: skip
        place = np.where(where, len(sentence) - 1 + np.cumsum(where), np.cumsum(by_rule) - 1)
        sentence = pa.concat_arrays([sentence, learned]).take(pa.array(place))
    if settling_rules is not None and settling_rules.null_count < len(settling_rules):
        rules = "; the playbook stays out of this regime, rule ", settling_rules.drop_null()
        sentence = _with_ends(sentence, settling_rules.is_valid(), *rules)
    if needless is not None and (wanted != tier).any():
        sentence = _needless_ends(sentence, tier, needless, policy)
    if judgement is None or not (suppressed := judgement.suppressed).any():
        return sentence
    figures = (judgement.vain, 2), (judgement.thoughts, 2), (judgement.draw, 4), (judgement.chance, 4)
    vain, thoughts, draw, chance = (fixed(values[suppressed], decimals) for values, decimals in figures)
    return _with_ends(
        sentence, pa.array(suppressed), "; attention passes over it: ", vain, " of ", thoughts,
        " thoughts here led to no action, draw ", draw, " is below the chance ", chance,
    )  # fmt: skip


def _fixed_reasons(
    error: Float64Array, threshold: Float64Array, tier: Int8Array, forced: Int8Array, wanted: Int8Array, policy: Policy
) -> pa.Array:
    """Return "T1: surprise 0.4100 reaches the threshold 0.3036", which names a force first."""
    forces = pa.array(_FORCE_WORDS).take(pa.array(np.where(forced == UNFORCED, len(FORCES), forced)))
    verbs = ("is below", "reaches", f"reaches {policy.gate.deliberate_ratio:g} times")
    word_codes = (error >= threshold).astype(np.int64)
    word_codes[(forced == UNFORCED) & (wanted == TIERS.index("T2"))] = 2
    words = pa.array([f" {verb} the threshold " for verb in verbs]).take(pa.array(word_codes))
    surprise, limit = fixed(error, 4), fixed(threshold, 4)
    return pc.binary_join_element_wise(_tier_words(tier), forces, "surprise ", surprise, words, limit, "")


def _tier_words(tier: Int8Array) -> pa.Array:
    return pa.array([f"{name}: " for name in TIERS]).take(pa.array(tier))


def _needless_ends(sentence: pa.Array, tier: Int8Array, needless: Lowered, policy: Policy) -> pa.Array:
    """Append what made a deliberation needless or impossible: an answer of the decision cache, or the daily budget."""
    names, answered = pa.array(TIERS).take(pa.array(needless.wanted)), needless.outcomes > 0
    hit, low = pa.array(answered), pa.array((needless.wanted != tier) & ~answered)
    outcomes, spent = (pa.array(values).cast(pa.string()) for values in (needless.outcomes, needless.spent))
    if answered.any():
        words = "; the decision cache answers ", names.filter(hit), ": hold, after "
        sentence = _with_ends(sentence, hit, *words, outcomes.filter(hit), " like outcomes")
    cap = f" of {policy.gateway.daily_budget_micros} micro-dollars are spent"
    return _with_ends(sentence, low, "; the daily budget lowers ", names.filter(low), ": ", spent.filter(low), cap)


def _learned_reasons(
    tier: Int8Array, composite: Float64Array, thresholds: Float64Array, explored: BoolArray, woke: BoolArray
) -> pa.Array:
    """Return "T1: composite 0.5321 exceeds the threshold of T1, 0.4411", the highest threshold that it exceeds.

    A tick that was explored or woken by an event states the threshold of T1, and a suppressed one that of T0, as not
    exceeded.
    """
    exceeded = (composite <= thresholds).sum(axis=0)  # positions descend from T2
    stated = np.where(explored | woke, 1, np.minimum(exceeded, 2))
    words = np.select([explored, woke], [2, 3], (exceeded == len(thresholds)).astype(np.int64))
    verb = pa.array(LEARNED_WORDS).take(pa.array(words))
    names = pa.array(["T2, ", "T1, ", "T0, "]).take(pa.array(stated))
    limit = fixed(thresholds[stated, np.arange(len(stated))], 4)
    return pc.binary_join_element_wise(_tier_words(tier), "composite ", fixed(composite, 4), verb, names, limit, "")


LEARNED_WORDS = (
    " exceeds the threshold of ", " does not exceed the threshold of ",
    " explores a discarded tick; it does not exceed the threshold of ",
    " belongs to a tick that a chain event woke; it does not exceed the threshold of ",
)  # fmt: skip


def _with_ends(sentences: pa.Array, where: pa.Array, *end: pa.Array | str) -> pa.Array:
    """Append an end to the sentences at `where`; its parts have one value per such sentence."""
    return pc.replace_with_mask(sentences, where, pc.binary_join_element_wise(sentences.filter(where), *end, ""))
