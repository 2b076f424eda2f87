"""Recorded ticks of a live run: a resumed run lives them again without waiting, and compares them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.errors import ForkError
from bardo_pipeline.events.record.row_digest import digest_column, row_digests
from bardo_pipeline.heartbeat.rhythm.heartbeat_state import Steer
from bardo_pipeline.heartbeat.rhythm.pending_ticks import Taken
from bardo_pipeline.runtime.live.heart import Reached
from bardo_pipeline.runtime.live.measurements import MEASURED, with_columns

_COLUMNS = (
    "golem_id",
    "tick",
    "observed_at",
    "active_interventions",
    "anomalies",
    "pipeline",
    "clocks",
    "content_hash",
)
KILL_SWITCH = "kill_switch"


class RecordedLife:
    """Recorded ticks by moment and golem."""

    def __init__(self) -> None:
        self._rows: dict[int, dict[str, dict[str, Any]]] = {}
        self._moments: list[int] = []
        self.steer_ids: set[str] = set()

    def read(self, context: DerivationContext, golem_ids: Sequence[str]) -> None:
        """Add the records of these golems."""
        table = context.log.read_cycles(list(_COLUMNS), golems=list(golem_ids))
        moments = pc.cast(table["observed_at"], pa.int64()).to_pylist()
        for at_us, row in zip(moments, table.to_pylist(), strict=True):
            self._rows.setdefault(at_us, {})[row["golem_id"]] = row
            self.steer_ids |= {steer["intervention_id"] for steer in row["active_interventions"]}
        self._moments = sorted(self._rows)

    def next_moment(self, after_us: int) -> int | None:
        """Return the moment of the next recorded tick, None at the end of the record."""
        place = bisect_right(self._moments, after_us)
        return self._moments[place] if place < len(self._moments) else None

    def at(self, at_us: int) -> dict[str, dict[str, Any]]:
        """Return the recorded rows of a tick by golem."""
        return self._rows.get(at_us, {})

    def taken(self, at_us: int, bars_us: np.ndarray[Any, Any]) -> Taken:
        """Return a recorded tick. bars_us: time of each bar of the market."""
        dropped = {at for row in self.at(at_us).values() for at in (row["clocks"] or {}).get("dropped_at_us", ())}
        moments = np.array(sorted(dropped), np.int64)
        bar, *_ = np.searchsorted(bars_us, [at_us])
        return Taken(int(bar), 1, tuple(np.searchsorted(bars_us, moments).tolist()))

    def reached(self, at_us: int) -> list[Reached]:
        """Return the interventions of a recorded tick, with the state at their arrival."""
        found = []
        for golem_id, row in self.at(at_us).items():
            steers = {steer["intervention_id"]: steer for steer in row["active_interventions"]}
            for taken in (row["clocks"] or {}).get("steers", ()):
                told = steers[taken["intervention_id"]]
                steer = Steer(told["intervention_id"], golem_id, told["severity"] == "high", told["intent"])
                found.append(Reached(steer, taken["state"], taken["effect"]))
        return found

    def calls_sent(self, at_us: int) -> dict[str, int]:
        """Return the golems whose execution was cut in a recorded tick, with the number of calls that were sent."""
        rows = {golem_id: row["clocks"] or {} for golem_id, row in self.at(at_us).items()}
        return {
            golem_id: clocks["calls_sent"] for golem_id, clocks in rows.items() if clocks.get("calls_sent") is not None
        }

    def killed(self, at_us: int) -> bool:
        """Return whether the kill switch was thrown at a recorded tick."""
        rows = self.at(at_us).values()
        return any(anomaly["probe"] == KILL_SWITCH for row in rows for anomaly in row["anomalies"])

    def plain_cycle(self, after_us: int, ticks: int, golem_ids: Sequence[str]) -> list[int] | None:
        """Return the moments of the next ticks if all are on record for all golems and nothing interrupted them."""
        place = bisect_right(self._moments, after_us)
        moments = self._moments[place : place + ticks]
        if len(moments) < ticks or any(self._rows[at].keys() != set(golem_ids) for at in moments):
            return None
        is_plain = all(_is_plain(row) for at in moments for row in self._rows[at].values())
        return moments if is_plain and not any(map(self.killed, moments)) else None

    def check(self, records: pa.Table) -> pa.Table:
        """Return records with the recorded measurements. Raises ForkError if one differs from its record otherwise."""
        moments = pc.cast(records["observed_at"], pa.int64()).to_pylist()
        golem_ids, ticks = (records[name].to_pylist() for name in ("golem_id", "tick"))
        rows = [self.at(at).get(golem_id) for at, golem_id in zip(moments, golem_ids, strict=True)]
        measured: dict[str, list[Any]] = {}
        for name in MEASURED:
            own = records[name].to_pylist()
            measured[name] = [value if row is None else row[name] for row, value in zip(rows, own, strict=True)]
        records = with_columns(records, **measured)
        digests = digest_column(row_digests(records)).to_pylist()
        for golem_id, tick, row, digest in zip(golem_ids, ticks, rows, digests, strict=True):
            if row is not None and row["content_hash"] != digest:
                raise ForkError(
                    golem_id, tick, "is on record with other content: run it with the same market and policy"
                )
        return records


def _is_plain(row: Mapping[str, Any]) -> bool:
    clocks = row["clocks"]
    return clocks is not None and not (
        row["active_interventions"] or clocks["dropped_at_us"] or clocks["calls_sent"] is not None
    )
