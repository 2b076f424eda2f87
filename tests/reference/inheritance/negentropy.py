"""The row-at-a-time twin of quality/negentropy.py: it takes the verdicts in order of time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from bardo_pipeline.grimoire.gas_bands import band_keys
from bardo_pipeline.policy import Policy
from tests.reference.inheritance.bottleneck import confidence_by_row

Row = Mapping[str, Any]


def order_by_row(decisions: list[Row], outcomes: list[Row], policy: Policy) -> dict[str, dict[str, int]]:
    """Return a row of ORDER_SCHEMA by golem."""
    out: dict[str, dict[str, int]] = {}
    for golem in sorted({o["golem_id"] for o in outcomes if o["effect_ppm"]}):
        own_outcomes = [o for o in outcomes if o["golem_id"] == golem and o["effect_ppm"]]
        sums = dict.fromkeys(("judged_count", "spoken_count", "count_ubits", "known_ubits", "inherited_ubits"), 0)
        for outcome in own_outcomes:
            won = outcome["effect_ppm"] > 0
            earlier = [o for o in own_outcomes if o["at"] < outcome["at"]]
            tally = (sum(o["effect_ppm"] > 0 for o in earlier) + 0.5) / (len(earlier) + 1)
            by_count = known = _ubits(tally if won else 1 - tally)
            speaks = [
                (-confidence_by_row(rule, outcome["at"], policy), rule["entry_id"], rule)
                for rule in _held(decisions, golem, outcome["at"])
                if outcome["structure"] in (band_keys(rule["structure"]) or (rule["structure"],))
            ]
            if speaks:
                sure, _, rule = min(speaks, key=lambda rows: rows[:2])
                trusted = policy.worth.rule_trust * -sure / 10**6
                known = _ubits((1 + (trusted if (rule["sign"] > 0) == won else -trusted)) / 2)
                sums["inherited_ubits"] += by_count - known if rule["generation"] else 0
            sums["judged_count"] += 1
            sums["spoken_count"] += bool(speaks)
            sums["count_ubits"] += by_count
            sums["known_ubits"] += known
        out[golem] = sums | {"rule_count": len(_held(decisions, golem, max(o["at"] for o in own_outcomes)))}
    return out


def _held(decisions: list[Row], golem: str, at: Any) -> list[Row]:
    """Return the active rules after the last decisions before a moment."""
    last: dict[str, Row] = {}
    for decision in sorted(decisions, key=lambda d: (d["revision"], d["cycle"], d["seq"])):
        if decision["golem_id"] == golem and decision["at"] < at:
            last[decision["structure"]] = decision
    return [d for d in last.values() if d["status"] == "active" and d["sign"] and d["source"] == "pattern"]


def _ubits(chance: float) -> int:
    return round(-math.log2(chance) * 10**6)
