"""Confidence: how it fades, and the moment at which it will have. Pure, elementwise over columns.

Confidence is kept in parts per million at an anchor; nothing is ever multiplied in. Half-lives are event time.
Source: INH S7.4, MEM, KAT, canon 4-9.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from bardo_pipeline.policy import DecayPolicy

PPM = 1_000_000
DAY_US = 86_400_000_000
FOREVER_US = 2**62
"""Half-life and fading moment of what does not fade."""

_LN_2 = float(np.log(2.0))

CLASSES = 5
CLASS_STRUCTURAL, CLASS_REGIME, CLASS_TACTICAL, CLASS_EPHEMERAL, CLASS_FACT = range(CLASSES)


def ppm(value: float) -> int:
    """A number in [0, 1] as parts per million."""
    return round(value * PPM)


def half_life_us(
    decay_class: np.ndarray, evidence: np.ndarray, bloodstain: np.ndarray, policy: DecayPolicy
) -> np.ndarray:
    """Half-life in microseconds by class code; FOREVER_US for what does not fade.

    A fact's e-fold is scaled by max(1, ln(episodes)) (canon 6). A bloodstain fades three times slower (canon 7).
    """
    known = _known_half_lives(
        policy.regime_conditional_days, policy.tactical_days, policy.ephemeral_days, policy.bloodstain_multiplier
    )
    half_life: np.ndarray = known[decay_class + CLASSES * bloodstain]
    fact = decay_class == CLASS_FACT
    if fact.any():
        lasts = policy.fact_e_fold_days * _LN_2 * np.maximum(1.0, np.log(np.maximum(evidence[fact], 1)))
        stained = lasts * policy.bloodstain_multiplier
        half_life[fact] = np.rint(np.where(bloodstain[fact], stained, lasts) * DAY_US)
    return half_life


@lru_cache(maxsize=8)
def _known_half_lives(regime_days: float, tactical_days: float, ephemeral_days: float, longer: float) -> np.ndarray:
    """Half-lives in microseconds by class code, and after them those of bloodstains; a fact's is its own."""
    days = (0.0, regime_days, tactical_days, ephemeral_days, 0.0)
    known: np.ndarray = np.rint(np.array([*days, *(d * longer for d in days)]) * DAY_US).astype(np.int64)
    known[[CLASS_STRUCTURAL, CLASS_STRUCTURAL + CLASSES]] = FOREVER_US
    return known


def dreamt_half_life_us(half_life: np.ndarray, policy: DecayPolicy) -> np.ndarray:
    """Half-life in microseconds of what was dreamt and confirmed, from that of its class: twice as long (canon 5)."""
    longer = np.rint(np.minimum(half_life, FOREVER_US >> 3) * policy.dreamt_multiplier).astype(np.int64)
    return np.where(half_life >= FOREVER_US, FOREVER_US, longer)


def floor_ppm(
    anti_knowledge: np.ndarray, bloodstain: np.ndarray, policy: DecayPolicy, pinned: np.ndarray | int = 0
) -> np.ndarray:
    """The confidence below which decay does not go, in ppm; 0 without a floor. pinned: what its owner pinned it at."""
    floor = np.where(bloodstain, ppm(policy.bloodstain_floor), 0)
    floor = np.where(anti_knowledge, ppm(policy.anti_knowledge_floor), floor).astype(np.int64)
    return np.maximum(floor, pinned)


def confidence_at(
    confidence: np.ndarray, anchor_us: np.ndarray, at_us: np.ndarray | int, half_life: np.ndarray, floor: np.ndarray
) -> np.ndarray:
    """Confidence in ppm at a moment: 2^(-t/h) from the anchor, never below min(floor, what it was).

    confidence, floor: int64 ppm; anchor_us, at_us: UTC microseconds; half_life: microseconds or FOREVER_US.
    """
    age = np.maximum(np.asarray(at_us, dtype=np.int64) - anchor_us, 0)
    ratio = np.where(half_life >= FOREVER_US, 1.0, np.exp2(-age / np.maximum(half_life, 1)))
    return np.maximum(np.rint(confidence * ratio).astype(np.int64), np.minimum(floor, confidence))


def fades_at_us(
    confidence: np.ndarray, anchor_us: np.ndarray, half_life: np.ndarray, floor: np.ndarray, limit_ppm: int
) -> np.ndarray:
    """The first moment (microseconds) at which confidence is below limit_ppm; FOREVER_US if that never comes.

    Confidence is rounded to whole ppm, so it is below the limit from half a ppm under it on.
    """
    halvings = np.log2(np.maximum(confidence, 1) / (max(limit_ppm, 1) - 0.5))
    wait = np.ceil(np.maximum(halvings, 0.0) * np.minimum(half_life, FOREVER_US >> 8))
    never = (half_life >= FOREVER_US) | (np.minimum(floor, confidence) >= limit_ppm)
    return np.where(never, FOREVER_US, anchor_us + wait.astype(np.int64))


def retention(age_days: np.ndarray, strength_days: np.ndarray | float) -> np.ndarray:
    """Ebbinghaus: R = exp(-t/S), t and S in days (TOOLS)."""
    return np.exp(-np.asarray(age_days, dtype=np.float64) / strength_days)


def attenuated(confidence: np.ndarray, factor: float) -> np.ndarray:
    """One crossing of the Weismann barrier (INH S7.2): ppm, rounded down so as never to exceed the factor."""
    return np.floor(np.asarray(confidence, dtype=np.float64) * factor + 1e-9).astype(np.int64)
