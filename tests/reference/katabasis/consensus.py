"""The row-at-a-time twin of katabasis/weighted_consensus.py in fractions. Source: KAT and the canon."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from bardo_pipeline.policy import KatabasisPolicy


def consensus_by_row(
    votes: Iterable[Mapping[str, Any]], backed: set[str], policy: KatabasisPolicy
) -> list[dict[str, Any]]:
    """Rows of CONSENSUS_SCHEMA, by proposition."""
    questions: dict[str, list[Mapping[str, Any]]] = {}
    for vote in votes:
        if not vote["is_death_vote"] or vote["vote_id"] in backed:
            questions.setdefault(vote["question_id"], []).append(vote)
    named = {vote["proposition_id"]: question for question, cast in questions.items() for vote in cast}
    counted = (_counted(name, questions[named[name]], policy) for name in sorted(named))
    return [row for row in counted if row["vote_count"]]


def _counted(name: str, votes: list[Mapping[str, Any]], policy: KatabasisPolicy) -> dict[str, Any]:
    latest: dict[str, Mapping[str, Any]] = {}
    for vote in votes:
        known = latest.get(vote["voter_id"])
        if known is None or _age(vote) > _age(known):
            latest[vote["voter_id"]] = vote
    is_band = votes[0]["question_id"] != name
    own = [vote for vote in latest.values() if vote["proposition_id"] == name]
    about = [vote for vote in votes if vote["proposition_id"] == name]
    witnesses: dict[Any, list[tuple[int, Fraction]]] = {}
    for vote in latest.values():
        sure = vote["confidence_ppm"] if vote["proposition_id"] == name else 10**6 - vote["confidence_ppm"]
        witness = vote["at"].date() if is_band else vote["vote_id"]
        witnesses.setdefault(witness, []).append((vote["weight_tenths"], Fraction(sure)))
    heard = []
    for cast in witnesses.values():
        mean = sum(w * c for w, c in cast) / Fraction(sum(w for w, _ in cast))
        heard.append((max(w for w, _ in cast), math.floor(mean + Fraction(1, 2))))
    weight = sum(w for w, _ in heard)
    mean = Fraction(sum(w * c for w, c in heard), weight)
    variance = sum(w * (c - mean) ** 2 for w, c in heard) / weight
    dead = [vote["confidence_ppm"] for vote in own if vote["is_death_vote"]]
    counted = math.floor(mean + Fraction(1, 2))
    standing = {vote["voter_id"] for vote in own}
    days = {vote["at"].date() for vote in about if vote["voter_id"] in standing}
    witness_count = len(days) if is_band else len(own)
    rests_on_death = witness_count < policy.quorum_votes and bool(dead) and len(own) == len(latest)
    floored = rests_on_death and max(dead) >= policy.death_floor_confidence_min * 10**6
    return {
        "proposition_id": name,
        "domain": about[0]["domain"],
        "claim": about[0]["claim"],
        "weighted_mean_ppm": counted,
        "confidence_ppm": max(counted, round(policy.death_floor * 10**6)) if floored else counted,
        "total_weight_tenths": weight,
        "vote_count": len(own),
        "death_vote_count": len(dead),
        "quorum_met": witness_count >= policy.quorum_votes or bool(dead),
        "contradicted": variance > Fraction(str(policy.contradiction_variance)) * 10**12,
        "variance_ppm2": math.floor(variance),
        "first_vote_at": min(vote["at"] for vote in about),
        "last_vote_at": max(vote["at"] for vote in about),
        "votes_hash": hashlib.sha256(",".join(sorted(v["vote_id"] for v in latest.values())).encode()).hexdigest(),
    }


def _age(vote: Mapping[str, Any]) -> tuple[Any, bool, str]:
    return vote["at"], vote["is_death_vote"], vote["vote_id"]
