"""The row-at-a-time twins of outcomes and scars: act by act, failure by failure."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from bardo_pipeline.policy import Policy

LIMIT = 10**6


def _limited(value: int | None) -> int | None:
    return None if value is None else max(-LIMIT, min(LIMIT, value))


def _verdict(records: list[dict[str, Any]], tick: int, act: str) -> tuple[int, dict[str, Any]] | None:
    """The first verified verdict on an act, and the record that holds it."""
    for record in sorted(records, key=lambda r: r["tick"]):
        effect_ppms = [
            r["effect_ppm"] for r in record["resolutions"]
            if r["verified"] and r["chosen"] == "act" and (r["decision_tick"], r["action_type"]) == (tick, act)
        ]  # fmt: skip
        if effect_ppms:
            return min(effect_ppms), record
    return None


def outcomes_by_row(
    records: list[dict[str, Any]], ended: dict[str, dict[str, Any]], policy: Policy
) -> list[dict[str, Any]]:
    """Return the results of all sent actions. ended: golem to the tick and time of its death."""
    out = []
    for record in sorted(records, key=lambda r: (r["golem_id"], r["tick"])):
        sent = [a for a in record["actions"] if a["status"] in ("executed", "reverted")]
        if not sent:
            continue
        limit = policy.cage.slippage_max * LIMIT

        def slipped(a: dict[str, Any], limit: float = limit) -> bool:
            return a["slippage_ppm"] is not None and a["slippage_ppm"] > limit

        act = min(sent, key=lambda a: (a["status"] != "reverted", not slipped(a)))
        own_records = [r for r in records if r["golem_id"] == record["golem_id"]]
        result = _verdict(own_records, record["tick"], act["action_type"])
        outcome, stake = record["outcome"], act["value_micros"]
        known = outcome is not None and outcome["verified"]
        pnl = outcome["pnl_impact_micros"] if known and stake > 0 else None
        share = None if pnl is None else Fraction(pnl, stake)
        death, rules = ended.get(record["golem_id"]), policy.katabasis
        hurt = share is not None and share <= -Fraction(str(rules.loss_min))
        confirmed: tuple[str, int, Any] | None = None
        at_once = ("immediate", record["tick"], record["observed_at"])
        if act["status"] == "reverted":
            name, confirmed = "revert", at_once
        elif slipped(act) and known:
            name, confirmed = "slippage", at_once
        elif share is not None and share < -Fraction(str(rules.drawdown_max)):
            name, confirmed = "drawdown", at_once
        elif result and result[0] <= -rules.loss_min * LIMIT:
            name, confirmed = "lasting", ("deferred", result[1]["tick"], result[1]["observed_at"])
        elif not result and hurt and death and death["tick"] < record["tick"] + policy.prediction.check_ticks:
            name, confirmed = "lasting", ("at_death", death["tick"], death["at"])
        else:
            name = ("recovered" if result else "waiting") if hurt else "passed"
        how, tick, at = confirmed or (None, None, None)
        by_key = {n: act[n] for n in ("action_type", "tool_name", "slippage_ppm")}
        out.append(
            {"golem_id": record["golem_id"], "tick": record["tick"], **by_key, "outcome_class": name}
            | {"gas_ppm": _limited(act["gas_cost_micros"] * LIMIT // stake) if stake > 0 else None}
            | {"pnl_ppm": None if share is None else _limited(int(share * LIMIT))}
            | {"effect_ppm": _limited(result[0]) if result else None}
            | {"confirmed": how, "confirmed_tick": tick, "confirmed_at": at}
        )
    return out


PLACE = ("chain", "protocol", "pair")
PARTS: tuple[tuple[str, ...], ...] = (
    PLACE, ("tool_name", "action_type"), ("mechanism",), ("regime",), ("anomaly_band",), ("gas_band",),
)  # fmt: skip


def scars_by_row(
    failures: list[dict[str, Any]], deaths: dict[str, dict[str, int]], policy: Policy
) -> dict[str, dict[str, Any]]:
    """Return each clade's published scars. failures: rows of FAILURE_SCHEMA. deaths: golem to last cycle and tick."""
    out: dict[str, dict[str, Any]] = {}
    for failure in sorted(failures, key=lambda f: (f["confirmed_at"], f["golem_id"], f["seq"])):
        if not failure["is_clear"] or failure["confidence_ppm"] < policy.katabasis.scar_confidence_min * LIMIT:
            continue
        known = [s for s in out.values() if s["owner_id"] == failure["owner_id"]]
        same = [s for s in known if (s["structure"], s["mechanism"]) == (failure["structure"], failure["mechanism"])]
        if same:
            same[0]["seen_count"] += 1
            continue
        shared = [sum(all(s[n] == failure[n] for n in part) for part in PARTS) for s in known]
        end = failure["cycle"] * policy.curator.cycle_ticks
        death = deaths.get(failure["golem_id"])
        stained = death is not None and death["cycle"] == failure["cycle"]
        out[failure["scar_id"]] = failure | {
            "novelty_ppm": LIMIT - max(shared, default=0) * LIMIT // 6, "seen_count": 1,
            "qualified_at_tick": min(end, death["tick"]) if death else end,
            "is_bloodstain": stained, "published": "death" if stained else "life", "decay_class": "tactical",
        }  # fmt: skip
    return out
