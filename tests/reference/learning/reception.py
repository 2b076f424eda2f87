"""The row-at-a-time twins of curator/state/received_entries.py and curator/passes/admit_received.py; their docstrings
have the rules.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.grimoire.gas_bands import band_keys
from bardo_pipeline.policy import Policy
from tests.reference.inheritance.bottleneck import confidence_by_row
from tests.reference.learning.curator import _sure
from tests.reference.learning.evidence import Group
from tests.reference.learning.novelty import apart_by_row, ranked_by_row

Row = Mapping[str, Any]

CAME_OVER = ("import", "replicant")


def verdicts_by_row(
    arriving: list[Row], held: list[Row], at: datetime, source: str, unproven: Collection[str], policy: Policy
) -> list[tuple[str, str, int]]:
    """Return (entry, verdict, initial confidence) in ranked order."""
    known = [{**row, "status": "active"} for row in held if _holds_claim(row)]
    by_id = {row["entry_id"]: row for row in arriving}
    gone = {part for row in held if row["status"] == "retracted" for part in _claim_key(row)}
    out, taken = [], 0
    for entry_id, relation, _, _ in ranked_by_row(arriving, known, at, policy):
        row = by_id[entry_id]
        if entry_id in unproven:
            verdict = "unproven"
        elif gone & set(_claim_key(row)) or relation == "opposed":
            verdict = "contradicted"
        elif relation == "same":
            verdict = "redundant"
        elif known and source != "replicant" and _is_strange(row, known, policy):
            verdict = "anomalous"
        elif taken == policy.reception.entries_max:
            verdict = "deferred"
        else:
            verdict, taken = "accepted", taken + 1
        rules = policy.reception
        base = rules.replicant_confidence if source == "replicant" else rules.import_confidence
        most = round(base * 10**6 * 0.85 ** (max(row["generation"], 1) - 1))
        worth = min(most, confidence_by_row(row, at, policy))
        out.append((entry_id, verdict, worth if verdict == "accepted" else 0))
    return out


def _holds_claim(row: Row) -> bool:
    claims = row["provenance"] in CAME_OVER or (row["source"] == "causal" and row["sign"] != 0)
    return bool(row["status"] == "active" or (row["status"] == "candidate" and claims))


def _claim_key(row: Row) -> tuple[str, ...]:
    return band_keys(row["structure"]) or (row["structure"],)


def _is_strange(row: Row, known: list[Row], policy: Policy) -> bool:
    if apart_by_row(row, known) > 10:
        return True
    kind = ("source", "metric", "effect")
    sizes = [abs(o["effect_mean_ppm"]) for o in known if all(o[n] == row[n] for n in kind)]
    enough = len(sizes) >= policy.reception.size_entries_min
    return enough and abs(row["effect_mean_ppm"]) > policy.reception.size_factor * max(*sizes, 1)


def shadow_by_row(
    sign: int, confidence: int, before: list[Group], after: Mapping[int, Group], policy: Policy
) -> list[tuple[int, str]]:
    """Return (cycle, operation) of each decision about a claim that does not fade, until it leaves quarantine.

    before: the golem's own evidence about that situation up to the cycle with which it was let in; after: later.
    """
    rules = policy.curator
    own = {"own_count": sum(g.count for g in before), "own_sum": sum(g.total for g in before),
           "own_sumsq": sum(g.squares for g in before)}  # fmt: skip
    up = down = 0
    rows: list[tuple[int, str]] = []
    for cycle, group in sorted(after.items()):
        for name, more in (("own_count", group.count), ("own_sum", group.total), ("own_sumsq", group.squares)):
            own[name] += more
        sure, loud = _sure(own, policy), abs(group.total) >= rules.effect_min_ppm * group.count
        news = (group.total > 0) - (group.total < 0) if loud else 0
        if news == sign:
            up, confidence = up + 1, min(10**6, confidence + round(rules.upvote * 10**6))
            rows.append((cycle, "borne_out"))
            often = up >= policy.reception.shadow_validations and up > down
            if sure != -sign and (often or sure == sign):
                return [*rows, (cycle, "admitted")]
        elif news == -sign:
            down, confidence = down + 1, max(0, confidence - round(rules.downvote * 10**6))
            rows.append((cycle, "spoken_against"))
            if sure == -sign or confidence < round(rules.prune_confidence * 10**6):
                return [*rows, (cycle, "refused")]
        else:
            rows.append((cycle, "staged"))
    return rows


def evidence_about(by_key: Mapping[Any, Group], golem_id: str, about: Structure) -> dict[int, Group]:
    """Cycle to a golem's own evidence about one structure."""
    return {c: group for (g, c, s), group in by_key.items() if (g, s) == (golem_id, about)}
