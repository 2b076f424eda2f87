"""The row-at-a-time twin of katabasis/weighted_consensus.py in fractions. Source: KAT and the canon."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from bardo_pipeline.policy import KatabasisPolicy


def consensus_by_row(
    votes: Iterable[Mapping[str, Any]], backed: set[str], policy: KatabasisPolicy
) -> list[dict[str, Any]]:
    """Rows of CONSENSUS_SCHEMA, by proposition."""
    propositions: dict[str, list[Mapping[str, Any]]] = {}
    for vote in votes:
        if not vote["is_death_vote"] or vote["vote_id"] in backed:
            propositions.setdefault(vote["proposition_id"], []).append(vote)
    return [_counted(name, propositions[name], policy) for name in sorted(propositions)]


def _counted(name: str, votes: list[Mapping[str, Any]], policy: KatabasisPolicy) -> dict[str, Any]:
    latest: dict[str, Mapping[str, Any]] = {}
    for vote in votes:
        known = latest.get(vote["voter_id"])
        if known is None or _age(vote) > _age(known):
            latest[vote["voter_id"]] = vote
    weight = total = Fraction(0)
    for vote in latest.values():
        weight += Fraction(vote["weight_tenths"], 10)
        total += Fraction(vote["weight_tenths"], 10) * Fraction(vote["confidence_ppm"], 10**6)
    mean = total / weight
    variance = Fraction(0)
    for vote in latest.values():
        variance += Fraction(vote["weight_tenths"], 10) * (Fraction(vote["confidence_ppm"], 10**6) - mean) ** 2
    variance /= weight
    dead = [vote["confidence_ppm"] for vote in latest.values() if vote["is_death_vote"]]
    counted = int(mean * 10**6 + Fraction(1, 2))
    rests_on_death = len(latest) < policy.quorum_votes and bool(dead)
    floored = rests_on_death and max(dead) >= policy.death_floor_confidence_min * 10**6
    return {
        "proposition_id": name,
        "domain": votes[0]["domain"],
        "claim": votes[0]["claim"],
        "weighted_mean_ppm": counted,
        "confidence_ppm": max(counted, round(policy.death_floor * 10**6)) if floored else counted,
        "total_weight_tenths": int(weight * 10),
        "vote_count": len(latest),
        "death_vote_count": len(dead),
        "quorum_met": len(latest) >= policy.quorum_votes or bool(dead),
        "contradicted": variance > Fraction(str(policy.contradiction_variance)),
        "variance_ppm2": int(variance * 10**12),
        "first_vote_at": min(vote["at"] for vote in votes),
        "last_vote_at": max(vote["at"] for vote in votes),
        "votes_hash": hashlib.sha256(",".join(sorted(v["vote_id"] for v in latest.values())).encode()).hexdigest(),
    }


def _age(vote: Mapping[str, Any]) -> tuple[Any, bool, str]:
    return vote["at"], vote["is_death_vote"], vote["vote_id"]
