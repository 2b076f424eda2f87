"""The row-at-a-time twin of grimoire/confidence.py in plain numbers. Source: INH S7.4, canon 4-9.

Knowledge that does not fade has None as half-life and as fade time.
"""

from __future__ import annotations

import math

from bardo_pipeline.policy import DecayPolicy

DAY_US = 86_400 * 10**6


def half_life_us(decay_class: str, evidence: int, is_bloodstain: bool, policy: DecayPolicy) -> int | None:
    """Half-life in microseconds; None for structural knowledge."""
    if decay_class == "structural":
        return None
    if decay_class == "fact":
        days = policy.fact_e_fold_days * math.log(2.0) * max(1.0, math.log(max(evidence, 1)))
    else:
        days = {
            "regime_conditional": policy.regime_conditional_days,
            "tactical": policy.tactical_days,
            "ephemeral": policy.ephemeral_days,
        }[decay_class]
    if is_bloodstain:
        days *= policy.bloodstain_multiplier
    return round(days * DAY_US)


def floor_ppm(is_anti_knowledge: bool, is_bloodstain: bool, policy: DecayPolicy, pinned: int = 0) -> int:
    """Return the confidence after decay, in ppm."""
    if is_anti_knowledge:
        return max(pinned, round(policy.anti_knowledge_floor * 10**6))
    return max(pinned, round(policy.bloodstain_floor * 10**6) if is_bloodstain else 0)


def confidence_at(confidence: int, anchor_us: int, at_us: int, half_life: int | None, floor: int) -> int:
    """Return the confidence in ppm: halved per half-life since the anchor, but not below the floor."""
    age = max(at_us - anchor_us, 0)
    faded = confidence if half_life is None else round(confidence * 2.0 ** (-age / half_life))
    return max(faded, min(floor, confidence))


def fades_at_us(confidence: int, anchor_us: int, half_life: int | None, floor: int, limit: int) -> int | None:
    """Return the first moment at which `confidence_at` is below the limit, by bisection; None without one."""
    if half_life is None or min(floor, confidence) >= limit:
        return None
    early, late = anchor_us - 1, anchor_us + 64 * half_life
    while late - early > 1:
        middle = (early + late) // 2
        if confidence_at(confidence, anchor_us, middle, half_life, floor) < limit and middle >= anchor_us:
            late = middle
        else:
            early = middle
    return late
