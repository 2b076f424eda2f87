"""The row-at-a-time twin of inheritance/divergence.py; its docstring has the formula."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from bardo_pipeline.grimoire.gas_bands import band_keys
from bardo_pipeline.policy import Policy
from tests.reference.inheritance.bottleneck import confidence_by_row

Row = Mapping[str, Any]


def divergence_by_row(
    entries: list[Row], decisions: list[Row], died_at: Mapping[str, datetime], by_key: Mapping[str, Row], policy: Policy
) -> dict[str, dict[str, Any]]:
    """Return a row of DIVERGENCE_SCHEMA by golem; an invalidated entry is (entry, how, cycle, seq)."""
    return {g: _of_one(g, entries, decisions, died_at[g], by_key.get(g, {}), policy) for g in died_at}


def _of_one(golem: str, entries: list[Row], decisions: list[Row], at: datetime, row: Row, policy: Policy) -> Any:
    own = sorted((d for d in decisions if d["golem_id"] == golem), key=lambda d: (d["revision"], d["cycle"], d["seq"]))
    given = [d for d in own if d["operation"] == "received"]
    left = [e for e in entries if e["golem_id"] == golem and e["status"] == "active"]
    before = _rules(given, lambda d: confidence_by_row(d, d["at"], policy))
    after = _rules(left, lambda e: confidence_by_row(e, at, policy))
    whole = apart = 0
    for structure in before.keys() | after.keys():
        first, other = before.get(structure), after.get(structure)
        weight = max(c for side in (first, other) if side for c in [max(side[0], 1)])
        whole += weight
        if first is None or other is None or first[2] != other[2]:
            apart += weight
    keys = {(part, d["sign"]) for d in given for part in band_keys(d["structure"]) or (d["structure"],)}
    novel = [
        e for e in left
        if any((part, e["sign"]) not in keys for part in band_keys(e["structure"]) or (e["structure"],))
    ]  # fmt: skip
    invalidated, forgotten = [], 0
    for entry in given:
        story = [d for d in own if d["entry_id"] == entry["entry_id"]]
        last = story[-1]
        against = [
            d for d in story
            if d["operation"] in ("contradicted", "demoted", "retracted")
            or (d["operation"] == "corrected" and d["sign"] != entry["sign"])
        ]  # fmt: skip
        how = None
        if last["status"] in ("retracted", "pruned"):
            how = last["status"]
        elif last["sign"] != entry["sign"]:
            how = "turned"
        elif last["contradictions"] > last["validations"]:
            how = "contradicted"
        if how and against:
            invalidated.append((entry["entry_id"], how, against[-1]["cycle"], against[-1]["seq"]))
        forgotten += last["status"] == "pruned" and not against
    share = None if not given else apart * 1_000_000 // whole if whole else 0
    return {
        "inherited_count": len(given),
        "left_count": len(left),
        "novel_count": len(novel),
        "invalidated": sorted(invalidated),
        "forgotten_count": forgotten,
        "divergence_ppm": share,
        "gap_count": row.get("gaps", 0),
        "question_ratio_ppm": row.get("questions", 0) * 1_000_000 // (row.get("items", 0) or 1),
        "low_divergence": share is not None and share < 150_000,
    }


def _rules(rows: list[Row], trusted: Any) -> dict[str, tuple[int, str, int]]:
    """Structure to (confidence, entry, sign) of the surest entry with that rule."""
    out: dict[str, tuple[int, str, int]] = {}
    for row in rows:
        if row["source"] != "pattern":
            continue
        for structure in band_keys(row["structure"]) or (row["structure"],):
            own = (trusted(row), row["entry_id"], row["sign"])
            held = out.get(structure)
            if held is None or (-own[0], own[1]) < (-held[0], held[1]):
                out[structure] = own
    return out
