"""Gate: how surprising this tick is, and how much thought it gets. Pure, elementwise over golems.

Source: HB S3-S5; canon 25 (the sum, the fallback), canon 26 (the threshold).
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bardo_pipeline.events.record.model import TIERS
from bardo_pipeline.heartbeat.probes import fixed
from bardo_pipeline.policy import Policy

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Counts = NDArray[np.integer[Any]]
Codes = NDArray[np.int8]

SOURCES = ("price", "regime", "health", "threat", "interventions", "anomalies")
"""Rows of the sources, in the order of PredictionErrorSources."""

FORCES = ("steer", "phase_transition", "birth", "reorg")
"""Why a tick is deliberated whatever it holds; codes are positions, -1 is nothing."""

UNFORCED, STEER, PHASE_TRANSITION, BIRTH, REORG = -1, 0, 1, 2, 3


def prediction_error(
    price_expected: Floats,
    price: Floats | float,
    regime_changed: Bools,
    health_change: Floats,
    threat: Floats | float,
    intervention_count: Counts,
    anomaly_count: Counts,
    policy: Policy,
) -> tuple[Floats, Floats]:
    """Sum of six weighted sources, capped at 1 (HB S4, canon 25: summed as written).

    price_expected: what the golem predicted, NaN (or not positive) without a prediction. health_change: signed, of the
    position, NaN without one now or before. threat: [0, 1], NaN without a pheromone field. Counts are >= 0.
    Returns the total [N] in [0, 1] and the weighted sources [6, N], NaN where a source is absent.
    """
    rules = policy.gate
    sources = np.empty((len(SOURCES), len(price_expected)))
    expected = np.where(price_expected > 0.0, price_expected, np.nan)
    np.minimum(np.abs((price - expected) / expected), 1.0, out=sources[0])
    sources[0] *= rules.price_weight
    np.multiply(regime_changed, rules.regime_weight, out=sources[1])
    size = np.abs(health_change)
    # Multiplied by the condition, not selected by it, so that NaN stays NaN.
    np.multiply(np.minimum(size, rules.health_delta_max), size > rules.health_delta_min, out=sources[2])
    sources[2] *= rules.health_weight
    np.multiply(threat, rules.threat_weight, out=sources[3])
    np.multiply(np.minimum(intervention_count, rules.intervention_max), rules.intervention_weight, out=sources[4])
    np.multiply(np.minimum(anomaly_count, rules.anomaly_max), rules.anomaly_weight, out=sources[5])
    present = np.fmax(sources, 0.0)
    total = present[0] + present[1] + present[2] + present[3] + present[4] + present[5]
    return np.minimum(total, 1.0, out=total), sources


def prediction_error_fallback(
    regime_changed: Bools, health_change: Floats, threat: Floats | float, anomaly_count: Counts, policy: Policy
) -> tuple[Floats, Floats]:
    """The largest of four signals, for a golem without an oracle (HB S3, canon 25).

    Regime change 0.4; min(d, 0.5) / 0.5 of the position's health; threat; min(n, 5) / 5 of the anomalies.
    Returns as prediction_error does: the total [N], which is the largest source, and the sources [6, N]. Price is
    absent (NaN), and interventions count 0: a steer forces T2 as it is.
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


def adaptive_threshold(vitality: Floats, arousal: Floats, confidence: Floats, policy: Policy) -> Floats:
    """Surprise from which a golem thinks: base x confidence x mortality x arousal, within [0.05, 0.8] (HB S5).

    vitality, confidence in [0, 1]. arousal in [-1, 1]: below zero it counts as zero, so calm never lowers the threshold
    (canon 26; HB took its absolute value).
    """
    rules = policy.gate
    trusting = 1.0 + confidence * rules.confidence_gain
    dying = 1.0 - (1.0 - vitality) * rules.mortality_gain
    alert = 1.0 - arousal.clip(0.0, 1.0) * rules.arousal_gain
    threshold = rules.base_threshold * trusting * dying * alert
    return threshold.clip(rules.threshold_min, rules.threshold_max, out=threshold)


def transition_imminent(composite: Floats, policy: Policy) -> Bools:
    """Whether a golem is about to enter its terminal phase: not in it yet, and within a margin above its bound.

    HB S5 forces full thought on "imminent phase transitions" and gives one reason: "entering Terminal requires full
    deliberation". So the other bounds do not count, though they are crossed too: a golem that hovers around one for
    days would pay for an Opus-class call at every tick, which itself shortens its life. Below the bound nothing is
    imminent any more.
    """
    bound = policy.mortality.declining
    return (composite >= bound) & (composite <= bound + policy.gate.transition_margin)


def gate(
    error: Floats,
    threshold: Floats,
    steer: Bools,
    transition: Bools,
    birth: Bools,
    policy: Policy,
    reorg: Bools | None = None,
) -> tuple[Codes, Codes]:
    """Tier by surprise: T0 below the threshold, T1 below twice of it, T2 from there on or if forced (HB S5).

    steer: the owner waits for an answer. transition: see transition_imminent. birth: the first tick of a life. reorg:
    the chain took back what the golem had seen (HB S10); None: of nobody.
    Returns tier codes [N] (positions in TIERS) and what forced them [N] (positions in FORCES, -1 nothing; a steer is
    named before a reorg, that before a transition, that before a birth).
    """
    tier = (error >= threshold).astype(np.int8)
    tier += error >= threshold * policy.gate.deliberate_ratio
    forced = np.where(transition, PHASE_TRANSITION, np.where(birth, BIRTH, UNFORCED))
    forced = forced if reorg is None else np.where(reorg, REORG, forced)
    forced = np.where(steer, STEER, forced)
    tier[forced != UNFORCED] = TIERS.index("T2")
    return tier, forced.astype(np.int8)


_TIER_WORDS = (
    " is below the threshold ",
    " reaches the threshold ",
    " is far over the threshold ",
    " was suppressed, threshold ",
)
_FORCE_WORDS = (
    "the owner steers; ",
    "the terminal phase is near; ",
    "first tick of a life; ",
    "the chain took back blocks; ",
    "",
)


def gating_reasons(error: Floats, threshold: Floats, tier: Codes, forced: Codes) -> pa.Array:
    """Why each tick got its tier, one sentence each: "T1: surprise 0.4100 reaches the threshold 0.3036".

    A forced tick names what forced it, then where its surprise stood.
    """
    surprise, limit = fixed(error, 4), fixed(threshold, 4)
    tiers = pa.array([f"{name}: " for name in TIERS]).take(pa.array(tier))
    forces = pa.array(_FORCE_WORDS).take(pa.array(np.where(forced == UNFORCED, len(FORCES), forced)))
    stood = np.where(forced == UNFORCED, tier, error >= threshold)
    words = pa.array(_TIER_WORDS).take(pa.array(stood))
    return pc.binary_join_element_wise(tiers, forces, "surprise ", surprise, words, limit, "")
