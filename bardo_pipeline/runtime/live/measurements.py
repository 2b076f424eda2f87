"""The fields of a record that the clocks of a live run fill: `pipeline` and `clocks`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from bardo_pipeline.heartbeat.refusals import EXECUTED, REVERTED, STATUS
from bardo_pipeline.heartbeat.rhythm.pending_ticks import Taken
from bardo_pipeline.heartbeat.rhythm.pulse_rates import QUANTITIES, Resolution
from bardo_pipeline.heartbeat.rhythm.speculation import Reads
from bardo_pipeline.runtime.live.heart import Pulses, Reached

MEASURED = ("pipeline", "clocks")
"""Fields that a simulated life leaves null."""

_SENT = (STATUS[EXECUTED], STATUS[REVERTED])


@dataclass(frozen=True)
class Measurements:
    """Measurements of one tick.

    Parameters
    ----------
    dropped_at_us : times of dropped ticks
    sent : golems whose execution was cut, with the number of calls that were sent
    seen : resolutions between two ticks, with their times
    reads : of the golems that deliberated
    """

    taken: Taken
    dropped_at_us: Sequence[int]
    reached: Sequence[Reached]
    sent: Mapping[str, int]
    pulses: Pulses
    gamma_seconds: float
    theta_seconds: int
    throttled: bool
    duration_ms: int
    seen: Sequence[tuple[int, Resolution]] = ()
    reads: Mapping[str, Reads] = field(default_factory=dict)
    summaries: Mapping[str, str] = field(default_factory=dict)

    def added_to(self, records: pa.Table, golem_ids: Sequence[str]) -> pa.Table:
        """Return the records of the tick with its measurements. golem_ids: of the fleet."""
        places = {golem_id: i for i, golem_id in enumerate(golem_ids)}
        rows = records.select(["golem_id", "actions"]).to_pylist()
        pipeline = [self._pipeline(row) for row in rows]
        clocks = [self._clocks(row["golem_id"], places[row["golem_id"]]) for row in rows]
        return with_columns(records, pipeline=pipeline, clocks=clocks)

    def _pipeline(self, row: Mapping[str, Any]) -> dict[str, Any]:
        golem_id = row["golem_id"]
        states = [each.state for each in self.reached if each.steer.golem_id == golem_id]
        return {
            "queue_depth": self.taken.depth, "ticks_dropped": len(self.taken.dropped),
            "dropped_while_dreaming": self.taken.in_dream, "duration_ms": self.duration_ms,
            "steer_state": states[-1] if states else None, "tool_runs": self._tool_runs(row),
        }  # fmt: skip

    def _tool_runs(self, row: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """Return the reads and the sent calls of a deliberation, in order; None without one."""
        reads = self.reads.get(row["golem_id"])
        if reads is None:
            return None
        runs = [
            _run(tool, ["prefetched"] * is_hit, round(seconds * 1e3), self.summaries[tool])
            for tool, seconds, is_hit in reads.runs
        ]  # fmt: skip
        sent = [each for each in row["actions"] if each["status"] in _SENT]
        return runs + [_run(each["tool_name"], [], None, None, each["status"] == _SENT[0]) for each in sent]

    def _clocks(self, golem_id: str, i: int) -> dict[str, Any]:
        reads = self.reads.get(golem_id, Reads())
        return {
            "gamma_seconds": self.gamma_seconds, "theta_seconds": self.theta_seconds,
            "gamma_pulses": self.pulses.count, "cached_reads": self.pulses.cached, "throttled": self.throttled,
            "dropped_at_us": list(self.dropped_at_us), "prefetched": reads.prefetched, "prefetch_hits": reads.hits,
            "resolutions": sum(int(np.isfinite(each.expected[:, i]).sum()) for _, each in self.seen),
            "violations": [
                {
                    "quantity": QUANTITIES[q], "observed_at_us": at, "expected": float(each.expected[q, i]),
                    "half_width": float(each.half[q, i]), "actual": float(each.actual[q, i]),
                }
                for at, each in self.seen for q in np.flatnonzero(each.violated[:, i])
            ],
            "steers": [
                {"intervention_id": each.steer.steer_id, "state": each.state, "effect": each.effect}
                for each in self.reached if each.steer.golem_id == golem_id
            ],
            "calls_sent": self.sent.get(golem_id),
        }  # fmt: skip


def _run(tool: str, steps: list[str], ms: int | None, summary: str | None, success: bool = True) -> dict[str, Any]:
    return {"tool": tool, "params_hash": None, "steps": steps, "success": success, "duration_ms": ms,
            "result_summary": summary}  # fmt: skip


def with_columns(records: pa.Table, **columns: Sequence[Any]) -> pa.Table:
    """Return records with these columns replaced."""
    for name, values in columns.items():
        place = records.schema.get_field_index(name)
        of = records.schema.field(place)
        records = records.set_column(place, of, pa.array(values, of.type))
    return records
