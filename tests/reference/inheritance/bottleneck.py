"""The row-at-a-time twin of inheritance/bottleneck.py: INH S7.1 with the canon's corrections."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from bardo_pipeline.policy import Policy

Row = Mapping[str, Any]


def bottleneck_by_row(
    entries: list[Row], died_at: Mapping[str, datetime], policy: Policy
) -> list[tuple[str, str, str, int]]:
    """Return (golem, entry, rule, rank) of the crossing entries, by golem and rank."""
    out = []
    for golem in sorted(died_at):
        own_entries = [e for e in entries if e["golem_id"] == golem and e["status"] == "active"]
        confidence = {e["entry_id"]: confidence_by_row(e, died_at[golem], policy) for e in own_entries}
        for rank, (rule, chosen) in enumerate(_chosen(own_entries, confidence, policy), 1):
            out.append((golem, chosen["entry_id"], rule, rank))
    return out


def confidence_by_row(entry: Row, at: datetime, policy: Policy) -> int:
    """Return the confidence in ppm of one entry that is not a fact."""
    days = {"regime_conditional": 14.0, "tactical": 7.0, "ephemeral": 1.0}.get(entry["decay_class"])
    faded = entry["confidence_ppm"]
    if days is not None:
        half_life = days * (policy.decay.bloodstain_multiplier if entry["is_bloodstain"] else 1.0)
        faded = round(faded * 2.0 ** -((at - entry["anchor_at"]).total_seconds() / 86400 / half_life))
    floor = 0.3 if entry["is_anti_knowledge"] else 0.05 if entry["is_bloodstain"] else 0.0
    return max(faded, min(round(floor * 10**6), entry["confidence_ppm"]))


def _chosen(entries: list[Row], confidence: dict[str, int], policy: Policy) -> list[tuple[str, Row]]:
    rules = policy.inheritance
    budget, quarter, half = rules.budget, rules.budget // 4, rules.budget // 2

    def merit(entry: Row) -> tuple[int, float, str]:
        validated, contradicted = entry["validations"], entry["contradictions"]
        quality = confidence[entry["entry_id"]] * (validated + 1) // (validated + contradicted + 2)
        return -quality, -entry["validated_at"].timestamp(), entry["entry_id"]

    best = sorted(entries, key=merit)
    chosen: list[tuple[str, Row]] = []
    taken: set[str] = set()

    def take(rule: str, entry: Row) -> None:
        chosen.append((rule, entry))
        taken.add(entry["entry_id"])

    for rule, flag in (("anti_knowledge", "is_anti_knowledge"), ("bloodstain", "is_bloodstain")):
        for entry in best:
            if entry[flag] and entry["entry_id"] not in taken and len(chosen) < budget:
                take(rule, entry)
    for entry in best:
        is_baldwin = entry["generation"] >= 3 and confidence[entry["entry_id"]] >= 700_000
        if is_baldwin and entry["entry_id"] not in taken and len(chosen) < quarter:
            take("baldwin", entry)

    by_category: dict[str, list[Row]] = {}
    for entry in best:
        if entry["entry_id"] not in taken:
            by_category.setdefault(entry["category"], []).append(entry)
    room = min(half, budget - len(chosen))
    while room and any(by_category.values()):
        turn = sorted((waiting.pop(0) for waiting in by_category.values() if waiting), key=merit)
        for entry in turn[:room]:
            take("diversity", entry)
        room -= min(room, len(turn))

    for entry in best:
        if entry["entry_id"] not in taken and len(chosen) < budget:
            take("fill", entry)
    return chosen
