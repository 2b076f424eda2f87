"""The row-at-a-time twin of search: published BM25 and reciprocal rank fusion."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any

from bardo_pipeline.policy import Policy
from tests.reference.confidence import confidence_at, floor_ppm, half_life_us


def tokens(text: str) -> list[str]:
    """Return the runs of letters and digits in lower case."""
    return [w for w in re.split(r"[^0-9a-zäöüß]+", text.lower()) if w]


def bm25(texts: list[str], question: str, policy: Policy) -> list[float]:
    """BM25 of each text, 0 without a word in common."""
    held = [Counter(tokens(text)) for text in texts]
    mean = max(sum(sum(h.values()) for h in held) / len(held), 1.0)
    k1, b, out = policy.retrieval.words_saturation, policy.retrieval.words_length, []
    for own in held:
        score = 0.0
        for word in set(tokens(question)):
            there = sum(word in other for other in held)
            rarity = math.log(1.0 + (len(held) - there + 0.5) / (there + 0.5))
            slow = k1 * (1.0 - b + b * sum(own.values()) / mean)
            score += rarity * own[word] * (k1 + 1.0) / (own[word] + slow)
        out.append(score)
    return out


def fused(rankings: list[list[float]], k: int) -> list[float]:
    """Return the sum of 1 / (k + rank); ties share the better rank, and a text without a score is not ranked."""
    out = []
    for at in range(len(rankings[0])):
        ranks = [1 + sum(round(other - scores[at], 9) > 0 for other in scores) for scores in rankings if scores[at] > 0]
        out.append(sum(1.0 / (k + rank) for rank in ranks))
    return out


def searched(
    rows: list[dict[str, Any]], vectors: dict[str, list[float]], question: str, asked: list[float], at_us: int,
    policy: Policy,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return every text with its best row, best first. rows: entries that pass the filters, times in microseconds."""
    texts = sorted({row["text"] for row in rows})
    near = [max(math.fsum(a * b for a, b in zip(vectors[t], asked, strict=True)), 0.0) for t in texts]
    near = [round(x, 6) for x in near]
    relevance = dict(zip(texts, fused([bm25(texts, question, policy), near], policy.retrieval.fusion_k), strict=True))
    best: dict[str, tuple[float, str, str]] = {}
    for row in rows:
        stained = row["is_bloodstain"]
        half = half_life_us(row["decay_class"], max(row["own_count"], row["evidence_count"]), stained, policy.decay)
        floor = floor_ppm(row["is_anti_knowledge"], stained, policy.decay)
        sure = confidence_at(row["confidence_ppm"], row["anchor_at"], at_us, half, floor) / 10**6
        own = (-relevance[row["text"]] * sure, row["entry_id"], row["golem_id"])
        best[row["text"]] = min(best.get(row["text"], own), own)
    expected_rows = [
        {"text": text, "score": -score, "id": entry, "golem_id": golem, "relevance": relevance[text]}
        for text, (score, entry, golem) in best.items()
        if relevance[text] > 0
    ]
    return sorted(expected_rows, key=lambda hit: (-hit["score"], hit["id"], hit["golem_id"]))
