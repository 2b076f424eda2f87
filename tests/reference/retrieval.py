"""The row-at-a-time twin of retrieval in plain numbers. Source: MEM, KAT and canon 21-24.

It scores every entry, in any order, without an index and without pruning by bounds.
"""

from __future__ import annotations

import math
from typing import Any

from bardo_pipeline.policy import Policy
from tests.reference.learning.confidence import DAY_US, confidence_at, floor_ppm, half_life_us

REGIMES = ("trending_up", "trending_down", "range_bound", "volatile", "unknown")


def cosine(a: list[float], b: list[float]) -> float:
    """Return the cosine of two vectors; 0 if one has length zero."""
    size = math.sqrt(math.fsum(x * x for x in a) * math.fsum(y * y for y in b))
    return math.fsum(x * y for x, y in zip(a, b, strict=True)) / size if size else 0.0


def awake(entry: dict[str, Any], situation: Any, policy: Policy) -> float:
    """Return the dormancy factor of an entry in a situation."""
    own, here = entry["regime"], situation.regime
    if own is None or here is None or own == here:
        return 1.0
    share = policy.retrieval.dormant_unclear if here == "unknown" else 0.0
    if own == situation.regime_before:
        share = max(share, 1.0 - situation.regime_ticks / policy.retrieval.dormant_transition_ticks)
    return share


def contrarian(situation: Any, policy: Policy) -> bool:
    """Return whether a multiple of a hundred ticks has passed since the last deliberation and the golem deliberates
    now.
    """
    span = policy.retrieval.contrarian_ticks
    passed = any(t % span == 0 for t in range(situation.thought_tick + 1, situation.tick + 1))
    return situation.tier not in ("T0", "suppress") and passed


def factors(
    entry: dict[str, Any], vector: list[float], question: list[float], situation: Any, policy: Policy
) -> dict[str, float]:
    """The four factors of one entry. entry: ENTRY_SCHEMA, moments in microseconds, beside `layer`, `modifier`,
    `useful`, `misled` and `used_us`."""
    rules, stained = policy.retrieval, entry["is_bloodstain"]
    evidence = max(entry["own_count"], entry["evidence_count"])
    half = half_life_us(entry["decay_class"], evidence, stained, policy.decay)
    floor = floor_ppm(entry["is_anti_knowledge"], stained, policy.decay)
    confidence = confidence_at(entry["confidence_ppm"], entry["anchor_at"], situation.at_us, half, floor)
    last = max(entry["validated_at"], entry["used_us"])
    slow = half if half is not None else rules.structural_recency_days * DAY_US
    held, failed = entry["validations"] + entry["useful"], entry["contradictions"] + entry["misled"]
    discount = {"vault": 1.0, "clade": 0.80, "marketplace": 0.60, "lethe": 0.50}[entry["layer"]]
    importance = confidence / 10**6 * discount * (held + 1) / (held + failed + 1) * (1.2 if stained else 1.0)
    pad = [float(entry[f"{n}_sum_milli"]) for n in ("pleasure", "arousal", "dominance")]
    mood = [-part if contrarian(situation, policy) else part for part in situation.mood]
    unfelt = not any(pad) or not any(mood)
    return {
        "semantic": min(max(cosine(vector, question), 0.0), 1.0),
        "recency": 2.0 ** (-max(situation.at_us - last, 0) / slow),
        "importance": importance * entry["modifier"],
        "affect": 0.25 if unfelt else min(max(cosine(pad, mood), 0.0), 1.0),
    }


def retrieved(
    entries: list[dict[str, Any]], vectors: list[list[float]], question: list[float], situation: Any, policy: Policy
) -> list[dict[str, Any]]:
    """Return every awake entry with its score parts, best first, ties by entry and golem."""
    weights = {"semantic": 0.40, "recency": 0.20, "importance": 0.25, "affect": 0.15}
    out = []
    for entry, vector in zip(entries, vectors, strict=True):
        share = awake(entry, situation, policy)
        if share <= 0.0:
            continue
        answer = factors(entry, vector, question, situation, policy)
        parts = {n: share * weights[n] * answer[n] for n in weights}
        named = {"entry_id": entry["entry_id"], "golem_id": entry["golem_id"], "factors": answer, "parts": parts}
        out.append(named | {"score": sum(parts.values())})
    return sorted(out, key=lambda hit: (-hit["score"], hit["entry_id"], hit["golem_id"]))
