"""The row-at-a-time twins of curator/views/crossings.py: they compare every pair of entries, and expand every folded
entry.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from bardo_pipeline.grimoire.entries import ANOMALY_BANDS
from bardo_pipeline.policy import Policy

Row = Mapping[str, Any]
WHOLE = 10**6
WIDE = {"not_dear": ("cheap", "normal"), "not_cheap": ("normal", "dear"), "any": ("cheap", "normal", "dear")}


def links_by_row(entries: Iterable[Row]) -> list[dict[str, Any]]:
    """Return every pair of related active entries, and every folded entry with the entry that replaces it."""
    entries = list(entries)
    held = [e for e in entries if e["status"] == "active" and e["sign"]]
    rows = []
    for item in held:
        for other in held:
            if item is other or any(item[n] != other[n] for n in ("golem_id", "chain", "protocol", "pair")):
                continue
            strength = min(item["confidence_ppm"], other["confidence_ppm"])
            pair = {n: item[n] for n in ("golem_id", "entry_id")} | {"other_id": other["entry_id"]}
            if item["effect"] is not None and item["effect"] == other["cause"]:
                rows.append(pair | {"relation": "leads_to", "across": "cause", "strength_ppm": strength})
            across = _across(item, other)
            if across and item["entry_id"] < other["entry_id"]:
                relation = "agrees" if item["sign"] == other["sign"] else "differs"
                rows.append(pair | {"relation": relation, "across": across, "strength_ppm": strength})
    for item in (e for e in entries if e["status"] == "folded"):
        for other in (e for e in entries if e["status"] == "active" and e["source"] == "pattern"):
            scene = ("golem_id", "chain", "protocol", "pair", "tool", "action_type", "regime", "anomaly_band")
            if all(item[n] == other[n] for n in scene) and item["gas_band"] in WIDE.get(other["gas_band"], ()):
                pair = {n: item[n] for n in ("golem_id", "entry_id")} | {"other_id": other["entry_id"]}
                fields = {"relation": "told_by", "across": "gas", "strength_ppm": other["confidence_ppm"]}
                rows.append(pair | fields)
    return sorted(rows, key=lambda row: (row["golem_id"], row["entry_id"], row["other_id"]))


def _across(row: Row, other: Row) -> str | None:
    """Return the only field in which the situations of two rules about the same act differ."""
    if {row["source"], other["source"]} != {"pattern"}:
        return None
    if (row["tool"], row["action_type"]) != (other["tool"], other["action_type"]):
        return None
    apart = [n for n in ("regime", "anomaly_band", "gas_band") if row[n] != other[n]]
    if len(apart) != 1:
        return None
    if apart == ["anomaly_band"]:
        steps = ANOMALY_BANDS.index(row["anomaly_band"]) - ANOMALY_BANDS.index(other["anomaly_band"])
        return "anomaly" if abs(steps) == 1 else None
    return {"regime": "regime", "gas_band": "gas"}[apart[0]]


def crossings_by_row(entries: Iterable[Row], policy: Policy, elders: Collection[str] = ()) -> list[dict[str, Any]]:
    """Return every entry with own evidence, and whether it may cross; old golems push more."""
    held = list(entries)
    links = links_by_row(held)
    rows = [
        _crossing(e, links, policy, e["golem_id"] in elders)
        for e in held
        if e["status"] == "active" and e["own_count"] > 0
    ]
    return sorted(rows, key=lambda row: (row["golem_id"], row["entry_id"]))


def _crossing(entry: Row, links: list[dict[str, Any]], policy: Policy, old: bool) -> dict[str, Any]:
    size, doubt = abs(entry["effect_mean_ppm"]), (entry["effect_high_ppm"] - entry["effect_low_ppm"]) // 2
    agreeing = sum(
        link["relation"] == "agrees" and link["golem_id"] == entry["golem_id"]
        and entry["entry_id"] in (link["entry_id"], link["other_id"])
        for link in links
    )  # fmt: skip
    clear = size * WHOLE // max(size + doubt, 1)
    if entry["source"] in ("pattern", "dream"):
        named = sum(entry[n] is not None for n in ("tool", "action_type", "anomaly_band", "gas_band"))
        specific, actionable = (named + (entry["regime"] not in (None, "unknown"))) * WHOLE // 5, clear
    elif entry["source"] == "baseline":
        specific, actionable = WHOLE - min(doubt * WHOLE // max(size, 1), WHOLE), 0
    else:
        named = sum(entry[n] is not None for n in ("cause", "effect", "lag_ticks", "regime"))
        specific, actionable = named * WHOLE // 4, clear // 2
    votes = entry["validations"] + entry["contradictions"]
    parts = {
        "specificity_ppm": specific,
        "actionability_ppm": actionable,
        "novelty_ppm": WHOLE // (1 + agreeing),
        "verifiability_ppm": entry["own_count"] * WHOLE // (entry["own_count"] + policy.curator.cluster_min),
        "consistency_ppm": (entry["validations"] + 1) * WHOLE // (votes + 1),
    }
    admission = sum(parts.values()) // 5
    gate = {"heuristic": "outcomes", "warning": "novelty"}.get(entry["kind"], "admission")
    gate = "validation" if entry["source"] == "dream" else gate
    lacks = _lacks(entry, gate, parts["novelty_ppm"], admission, policy, old)
    return {
        "golem_id": entry["golem_id"], "entry_id": entry["entry_id"], "kind": entry["kind"], "at": entry["anchor_at"],
        **parts, "admission_ppm": admission, "gate": gate, "crosses": lacks is None,
        "reason": lacks or f"passes by {gate}",
    }  # fmt: skip


def _lacks(entry: Row, gate: str, novelty: int, admission: int, policy: Policy, old: bool) -> str | None:
    rules, trust = policy.bridge, entry["confidence_ppm"]
    if gate == "validation":
        dreamt = policy.dreams.clade_confidence * WHOLE
        return "confidence is below what a dream needs" if trust < dreamt else None
    if gate == "novelty":
        return "others of the golem say as much" if novelty < rules.warning_novelty_min * WHOLE else None
    if gate == "outcomes":
        if trust < rules.heuristic_confidence * WHOLE:
            return "confidence is below what a heuristic needs"
        if entry["validated_at"] <= entry["created_at"]:
            return "not acted on since it was made"
        return None if entry["validations"] > entry["contradictions"] else "outcomes did not bear it out"
    if trust < (rules.legacy_confidence if old else rules.insight_confidence) * WHOLE:
        return "confidence is below what an insight needs"
    return None if admission > rules.admission_min * WHOLE else "its five parts do not add up to admission"
