"""The row-at-a-time twin of inheritance/library/library_entries.py. Source: INH S14 and the canon."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from bardo_pipeline.grimoire.gas_bands import band_keys
from bardo_pipeline.inheritance.library.deposits import CHANNELS, CONTENT
from bardo_pipeline.policy import Policy

Row = Mapping[str, Any]


def side_of(row: Row) -> int:
    """Return the sign of a claim, or for a baseline the number of steps 0, 1, 2, 5, 10, 20, ... that it reached."""
    if row["source"] != "baseline":
        return int(row["sign"])
    steps = [m * 10**e for e in range(8) for m in (1, 2, 5)]
    return sum(max(row["effect_mean_ppm"], 0) >= step for step in steps)


def validates(row: Row) -> bool:
    """Return whether its golem's own outcomes confirm an entry."""
    if row["status"] != "active" or not row["own_count"]:
        return False
    if row["golem_id"] == row["origin_golem_id"]:
        return bool(row["validations"] >= row["contradictions"])
    return bool(row["validations"] > row["contradictions"])


class Clade:
    """One owner's golems and their entries."""

    def __init__(self, owner_id: str, entries: Iterable[Row], lives: Iterable[Row], equipped: Iterable[Row]) -> None:
        self.lineage = {life["golem_id"]: life["lineage_id"] for life in lives if life["owner_id"] == owner_id}
        self.entries = [e for e in entries if e["golem_id"] in self.lineage and e["status"] == "active"]
        self.equipped = {(e["golem_id"], e["structure"]) for e in equipped}
        self.values: dict[tuple[str, str], dict[int, Any]] = {}
        for entry in self.entries:
            if validates(entry):
                for part in band_keys(entry["structure"]) or (entry["structure"],):
                    sides = self.values.setdefault((entry["golem_id"], part), {})
                    sides[side_of(entry)] = max(entry["validated_at"], sides.get(side_of(entry), entry["validated_at"]))

    def validators(self, row: Row) -> dict[str, Any]:
        """Map each golem that confirms every part of a rule to the time of its newest outcome."""
        parts, result = band_keys(row["structure"]) or (row["structure"],), {}
        for golem in self.lineage:
            moments = [self.values.get((golem, part), {}).get(side_of(row)) for part in parts]
            if all(moment is not None for moment in moments):
                result[golem] = max(moments)
        return result

    def refuters(self, row: Row) -> set[str]:
        """Return the golems whose outcomes contradict any part of a rule."""
        parts, side = band_keys(row["structure"]) or (row["structure"],), side_of(row)
        return {g for g in self.lineage for part in parts if set(self.values.get((g, part), {})) - {side}}


def libraries_by_row(
    deposits: Iterable[Row], entries: Iterable[Row], lives: Iterable[Row], equipped: Iterable[Row], policy: Policy
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of LIBRARY_SCHEMA and of KIT_SCHEMA, each by its key."""
    deposits, entries, lives, equipped = list(deposits), list(entries), list(lives), list(equipped)
    library: list[dict[str, Any]] = []
    kits: list[dict[str, Any]] = []
    for owner_id in sorted({life["owner_id"] for life in lives} | {d["owner_id"] for d in deposits}):
        clade = Clade(owner_id, entries, lives, equipped)
        rows = [d for d in deposits if d["owner_id"] == owner_id] + _flowing(clade, owner_id, policy)
        shelf = [_row(clade, [d for d in rows if d["structure"] == s], policy) for s in {d["structure"] for d in rows}]
        library += shelf
        kits += _kits(clade, owner_id, shelf, policy)
    return (
        sorted(library, key=lambda r: (r["owner_id"], r["entry_id"])),
        sorted(kits, key=lambda r: (r["owner_id"], r["kit_id"])),
    )


def witnesses(row: Row, validators: dict[str, Any]) -> int:
    """Count golems; of a baseline, the market days of their newest outcomes."""
    return len({at.date() for at in validators.values()} if row["source"] == "baseline" else validators)


def _flowing(clade: Clade, owner_id: str, policy: Policy) -> list[Row]:
    out = []
    for entry in clade.entries:
        siblings = {g: at for g, at in clade.validators(entry).items() if g != entry["origin_golem_id"]}
        if witnesses(entry, siblings) >= policy.library.overflow_siblings:
            evidence = max(entry["own_count"], entry["evidence_count"])
            more = {"owner_id": owner_id, "channel": "overflow", "event_id": "", "at": entry["anchor_at"]}
            out.append({**entry, **more, "evidence_count": evidence})
    return out


def _row(clade: Clade, alike: list[Row], policy: Policy) -> dict[str, Any]:
    rules = policy.library

    def order(row: Row) -> tuple[Any, ...]:
        newest = -row["at"].timestamp()
        rank = CHANNELS.index(row["channel"])
        return -len(clade.validators(row)), rank, newest, row["golem_id"], row["entry_id"], -row["confidence_ppm"]

    stands = min(alike, key=order)
    same = [row for row in alike if side_of(row) == side_of(stands)]
    borne = clade.validators(stands)
    lines = {clade.lineage[g] for g in borne if (g, stands["structure"]) in clade.equipped}
    tested, confidence = witnesses(stands, borne) >= rules.battle_tested_golems, stands["confidence_ppm"]
    if tested:
        factor, most = round(rules.battle_tested_factor * 10**6), round(rules.battle_tested_confidence_max * 10**6)
        confidence = max(confidence, min((confidence * factor + 500_000) // 10**6, most))
    return {name: stands[name] for name in ("owner_id", "entry_id", *CONTENT)} | {
        "archetype": f"{stands['protocol']} {stands['pair']}",
        "confidence_ppm": confidence,
        "deposited_ppm": stands["confidence_ppm"],
        "channel": stands["channel"],
        "channels": sorted({row["channel"] for row in same}, key=CHANNELS.index),
        "golem_ids": sorted({row["golem_id"] for row in same}),
        "entry_ids": sorted({row["entry_id"] for row in same}),
        "event_ids": sorted({row["event_id"] for row in same} - {""}),
        "first_at": min(row["at"] for row in same),
        "last_at": max(row["at"] for row in same),
        "validator_ids": sorted(borne),
        "validator_count": len(borne),
        "refuter_count": len(clade.refuters(stands)),
        "equipped_lineage_count": len(lines),
        "is_battle_tested": tested,
        "is_default": len(lines) >= rules.default_lineages,
    }


def _kits(clade: Clade, owner_id: str, shelf: list[dict[str, Any]], policy: Policy) -> list[dict[str, Any]]:
    rules, result = policy.library, dict[tuple[str, str], list[tuple[Row, Any, bool, set[str]]]]()
    for row in shelf:
        made = sorted(
            (e["created_at"], e["golem_id"])
            for e in clade.entries
            if e["golem_id"] == e["origin_golem_id"]
            and (e["structure"], side_of(e)) == (row["structure"], side_of(row))
        )
        last = rules.kit_golems - 1
        repeated = [
            made[i + last][0]
            for i in range(len(made) - last)
            if made[i + last][0] - made[i][0] <= timedelta(days=rules.kit_days)
        ]
        if repeated:
            proposed = min(repeated)
            proven = sum(moment > proposed for moment in clade.validators(row).values()) >= rules.kit_validators
            about = row["archetype"], row["domain"]
            result.setdefault(about, []).append((row, proposed, proven, {golem for _, golem in made}))
    return [
        {
            "owner_id": owner_id,
            "kit_id": hashlib.sha256("|".join([owner_id, *about]).encode()).hexdigest()[:12],
            "name": f"{about[1]} on {about[0]}",
            "archetype": about[0],
            "domain": about[1],
            "is_published": any(proven for _, _, proven, _ in held),
            "entry_ids": sorted(row["entry_id"] for row, _, proven, _ in held if proven),
            "proposed_ids": sorted(row["entry_id"] for row, _, proven, _ in held if not proven),
            "golem_ids": sorted(set().union(*(golems for *_, golems in held))),
            "proposed_at": min(proposed for _, proposed, _, _ in held),
        }
        for about, held in result.items()
    ]
