"""Recorded ticks of a live run: a resumed run lives them again without waiting, and compares them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
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

_COLUMNS = ("golem_id", "tick", "observed_at", "active_interventions", "pipeline", "clocks", "content_hash")


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

    def check(self, at_us: int, records: pa.Table) -> pa.Table:
        """Return records with the recorded measurements. Raises ForkError if one differs from its record otherwise."""
        rows = self.at(at_us)
        measured: dict[str, list[Any]] = {}
        for name in MEASURED:
            own = zip(records["golem_id"].to_pylist(), records[name].to_pylist(), strict=True)
            measured[name] = [rows[golem_id][name] if golem_id in rows else value for golem_id, value in own]
        records = with_columns(records, **measured)
        digests = digest_column(row_digests(records)).to_pylist()
        for golem_id, tick, digest in zip(
            *(records[n].to_pylist() for n in ("golem_id", "tick")), digests, strict=True
        ):
            if golem_id in rows and rows[golem_id]["content_hash"] != digest:
                raise ForkError(
                    golem_id, tick, "is on record with other content: live on with the same market and policy"
                )
        return records


def without(golem_ids: Iterable[str], records: pa.Table) -> pa.Table:
    """Return the records of other golems than these."""
    return records.filter(pc.invert(pc.is_in(records["golem_id"], value_set=pa.array(sorted(golem_ids), pa.string()))))
