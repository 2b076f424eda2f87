"""The row-at-a-time twin of credits: compares each verdict with the entry at the time of the decision."""

from __future__ import annotations

from typing import Any

from bardo_pipeline.policy import CuratorPolicy


def sign_before(decisions: list[dict[str, Any]], golem_id: str, entry_id: str, cycle: int) -> tuple[int, str | None]:
    """Return the sign of an entry at the start of a cycle, and its action."""
    own_decisions = [
        d for d in decisions if (d["golem_id"], d["entry_id"]) == (golem_id, entry_id) and d["cycle"] < cycle
    ]
    last = max(own_decisions, key=lambda d: (d["cycle"], d["revision"], d["seq"]), default=None)
    return (last["sign"], last["action_type"]) if last else (0, None)


def credits_by_row(
    records: list[dict[str, Any]], decisions: list[dict[str, Any]], policy: CuratorPolicy
) -> dict[tuple[str, int, str], dict[str, Any]]:
    """Return the results of retrievals, by (golem, cycle, entry)."""
    out: dict[tuple[str, int, str], dict[str, Any]] = {}

    def row(record: dict[str, Any], entry: str) -> dict[str, Any]:
        cycle = (record["tick"] - 1) // policy.cycle_ticks + 1
        fresh = {"retrieved": 0, "useful": 0, "misled": 0, "last_access_at": None, "cause_ticks": set()}
        result = out.setdefault((record["golem_id"], cycle, entry), fresh)
        result["cause_ticks"].add(record["tick"])
        return result

    for record in sorted(records, key=lambda r: (r["golem_id"], r["tick"])):
        for entry in {e["entry_id"] for e in record["retrieved_entries"]}:
            credit = row(record, entry)
            credit["retrieved"] += 1
            credit["last_access_at"] = record["observed_at"]
        for judged in record["resolutions"]:
            if not judged["verified"] or abs(judged["effect_ppm"]) < policy.effect_min_ppm:
                continue
            decided = (judged["decision_tick"] - 1) // policy.cycle_ticks + 1
            for entry in set(judged["retrieved_entry_ids"]):
                side, action = sign_before(decisions, record["golem_id"], entry, decided)
                if side and action == judged["action_type"]:
                    right = (side > 0) == (judged["effect_ppm"] > 0)
                    row(record, entry)["useful" if right else "misled"] += 1
    return out
