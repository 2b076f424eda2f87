"""Confidence of entries: decay over event time, floors, attenuation. Pure, elementwise over columns.

An entry stores its confidence in parts per million at an anchor moment; later values are computed from it.
Source: INH S7.4, MEM, KAT, canon 4-9.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from bardo_pipeline.arrays import BoolArray, Float64Array, Int64Array
from bardo_pipeline.policy import DecayPolicy

PPM = 1_000_000
DAY_US = 86_400_000_000
FOREVER_US = 2**62
"""Half-life and expiry moment of entries that never decay."""

_LN_2 = float(np.log(2.0))

CLASSES = 5
CLASS_STRUCTURAL, CLASS_REGIME, CLASS_TACTICAL, CLASS_EPHEMERAL, CLASS_FACT = range(CLASSES)


def ppm(value: float) -> int:
    """Convert a number in [0, 1] to parts per million."""
    return round(value * PPM)


def half_life_us(
    decay_class: Int64Array, evidence: Int64Array, bloodstain: BoolArray, policy: DecayPolicy
) -> Int64Array:
    """Return the half-life in microseconds by class code, FOREVER_US for structural entries.

    A fact's e-fold is scaled by max(1, ln(episodes)) (canon 6). A bloodstain decays three times slower (canon 7).
    """
    days = policy.regime_conditional_days, policy.tactical_days, policy.ephemeral_days
    fixed = _fixed_half_lives(*days, policy.bloodstain_multiplier)
    half_life: Int64Array = fixed[bloodstain.astype(np.int64), decay_class]
    fact = np.flatnonzero(decay_class == CLASS_FACT)
    if len(fact):
        fact_days = policy.fact_e_fold_days * _LN_2 * np.maximum(1.0, np.log(np.maximum(evidence[fact], 1)))
        stained_days = fact_days * policy.bloodstain_multiplier
        half_life[fact] = np.rint(np.where(bloodstain[fact], stained_days, fact_days) * DAY_US)
    return half_life


@cache
def _fixed_half_lives(regime: float, tactical: float, ephemeral: float, stained: float) -> Int64Array:
    """Return the half-life in microseconds without and with a bloodstain, by class. [2, classes]; 0 for facts."""
    days = np.array([0.0, regime, tactical, ephemeral, 0.0]) * np.array([[1.0], [stained]])
    half_life: Int64Array = np.rint(days * DAY_US).astype(np.int64)
    half_life[:, CLASS_STRUCTURAL] = FOREVER_US
    return half_life


def dreamt_half_life_us(half_life: Int64Array, policy: DecayPolicy) -> Int64Array:
    """Return the half-life in microseconds of confirmed dream entries: twice that of their class (canon 5)."""
    longer = np.rint(np.minimum(half_life, FOREVER_US >> 3) * policy.dreamt_multiplier).astype(np.int64)
    return np.where(half_life >= FOREVER_US, FOREVER_US, longer)


def floor_ppm(
    anti_knowledge: BoolArray, bloodstain: BoolArray, policy: DecayPolicy, pinned: Int64Array | int = 0
) -> Int64Array:
    """Return the confidence in ppm below which decay stops; 0 without a floor. pinned: floor set by the owner."""
    floor = np.where(bloodstain, ppm(policy.bloodstain_floor), 0)
    floor = np.where(anti_knowledge, ppm(policy.anti_knowledge_floor), floor).astype(np.int64)
    return np.maximum(floor, pinned)


def confidence_at(
    confidence: Int64Array, anchor_us: Int64Array, at_us: Int64Array | int, half_life: Int64Array, floor: Int64Array
) -> Int64Array:
    """Return the confidence in ppm at a moment: 2^(-t/h) from the anchor, never below min(floor, confidence).

    confidence, floor: ppm. anchor_us, at_us: UTC microseconds. half_life: microseconds or FOREVER_US.
    """
    age = np.maximum(np.asarray(at_us, dtype=np.int64) - anchor_us, 0)
    ratio = np.where(half_life >= FOREVER_US, 1.0, np.exp2(-age / np.maximum(half_life, 1)))
    return np.maximum(np.rint(confidence * ratio).astype(np.int64), np.minimum(floor, confidence))


def fades_at_us(
    confidence: Int64Array, anchor_us: Int64Array, half_life: Int64Array, floor: Int64Array, limit_ppm: int
) -> Int64Array:
    """Return the first moment (microseconds) with a confidence below limit_ppm, or FOREVER_US.

    Confidence is rounded to whole ppm, so it is below the limit from half a ppm under it.
    """
    halvings = np.log2(np.maximum(confidence, 1) / (max(limit_ppm, 1) - 0.5))
    wait = np.ceil(np.maximum(halvings, 0.0) * np.minimum(half_life, FOREVER_US >> 8))
    never = (half_life >= FOREVER_US) | (np.minimum(floor, confidence) >= limit_ppm)
    return np.where(never, FOREVER_US, anchor_us + wait.astype(np.int64))


def retention(age_days: Float64Array, strength_days: Float64Array | float) -> Float64Array:
    """Return Ebbinghaus retention R = exp(-t/S), t and S in days (TOOLS)."""
    return np.exp(-np.asarray(age_days, dtype=np.float64) / strength_days)


def attenuated(confidence: Int64Array, factor: float) -> Int64Array:
    """Return the confidence in ppm after one inheritance (INH S7.2), rounded down so that the factor is a maximum."""
    return np.floor(np.asarray(confidence, dtype=np.float64) * factor + 1e-9).astype(np.int64)
