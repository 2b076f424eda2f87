"""View of a live golem for its owner: phase, mood, vitality, position, last decisions with reasons, budget. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from bardo_pipeline.runtime.live.live_run import LiveTick

DECISIONS_SHOWN = 5


class LiveView:
    """The newest state of each golem, and its last decisions."""

    def __init__(self) -> None:
        self._decisions: dict[str, deque[dict[str, Any]]] = {}
        self._golems: dict[str, dict[str, Any]] = {}
        self._prefetched: dict[str, tuple[int, int]] = {}

    def note(self, tick: LiveTick) -> list[dict[str, Any]]:
        """Take a tick; return the golems that lived in it, as JSON values."""
        self._golems = {}
        for row in tick.records.to_pylist():
            golem_id = row["golem_id"]
            decisions = self._decisions.setdefault(golem_id, deque(maxlen=DECISIONS_SHOWN))
            if row["deliberation"] is not None:
                decisions.appendleft(_decision(row))
            hits, reads = self._prefetched.get(golem_id, (0, 0))
            hits, reads = hits + row["clocks"]["prefetch_hits"], reads + row["clocks"]["prefetched"]
            self._prefetched[golem_id] = hits, reads
            self._golems[golem_id] = _golem(row, tick) | {
                "prefetch_hit_rate": hits / reads if reads else None,
                "owner_id": tick.owners[golem_id], "decisions": list(decisions),
            }  # fmt: skip
        return list(self._golems.values())


def _golem(row: Mapping[str, Any], tick: LiveTick) -> dict[str, Any]:
    seen, positions = row["observation"], row["observation"]["positions"]
    state = tick.states.get(row["golem_id"])
    return {
        "golem_id": row["golem_id"], "tick": row["tick"], "at": tick.at.isoformat(), "is_replay": tick.is_replay,
        "state": state.name if state is not None else "idle", "phase": row["phase"],
        "emotion": row["primary_emotion"], "mood": list(row["pad_after"].values()),
        "vitality": row["vitality"]["composite"], "regime": row["regime"], "price": seen["price"],
        "net_asset_value_micros": seen["net_asset_value_micros"], "credits_micros": row["credits_micros"],
        "positions": [f"{each['protocol']} {each['pair']} {each['value_micros'] / 1e6:,.2f} $, "
                      f"health {each['health_factor']:.2f}" for each in positions],
        "tier": row["tier"], "reason": row["gating_reason"], "spent_share": tick.spent_share.get(row["golem_id"], 0.0),
        "queue_depth": row["pipeline"]["queue_depth"] if row["pipeline"] else 0,
    }  # fmt: skip


def _decision(row: Mapping[str, Any]) -> dict[str, Any]:
    thought = row["deliberation"]
    return {
        "tick": row["tick"], "decision": thought["decision"], "reason": thought["reasoning_summary"],
        "actions": [f"{each['action_type']}: {each['status']}" for each in row["actions"]],
        "steers": [each["intent"] for each in row["active_interventions"]],
    }  # fmt: skip
