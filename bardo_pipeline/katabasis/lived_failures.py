"""Derives the failures of living golems cycle by cycle, equal to the rows of the table of failures. Pure.

Source: KAT (Scar Generation Lifecycle: the curator's cycle qualifies), canon 47.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.events.record.arrow_columns import contiguous
from bardo_pipeline.katabasis.action_outcomes import ENDED_SCHEMA, failures_among, outcomes_of
from bardo_pipeline.katabasis.scar_rules import FAILURE_COLUMNS, FAILURE_SCHEMA, failures_of
from bardo_pipeline.policy import Policy

_NO_DEATHS = ENDED_SCHEMA.empty_table()


@dataclass
class LivedFailures:
    """Failures of living golems and of their ancestors, and the records that a later check may judge.

    rows: FAILURE_SCHEMA; owner_id is the golem that holds the failure, which may be an heir of the golem that failed.
    """

    policy: Policy
    rows: pa.Table = field(default_factory=FAILURE_SCHEMA.empty_table)
    _unchecked: pa.Table | None = None

    def close(self, records: pa.Table, rules_of: Callable[[list[str]], pa.Table]) -> None:
        """Add the failures that closed cycles confirmed.

        Parameters
        ----------
        records : pa.Table, FAILURE_COLUMNS, whole cycles of each golem, later than those before
        rules_of : golems -> rules of their curated cycles, as of `failures_of`
        """
        lengths = [pc.list_value_length(contiguous(records.column(n))) for n in ("actions", "resolutions")]
        relevant = records.select(FAILURE_COLUMNS).filter(pc.greater(pc.add(*lengths), 0))
        relevant = relevant if self._unchecked is None else pa.concat_tables([self._unchecked, relevant])
        self._unchecked = relevant.filter(pc.greater(pc.list_value_length(contiguous(relevant["actions"])), 0))
        spans = records.group_by("golem_id", use_threads=False).aggregate([("tick", "min"), ("tick", "max")])
        if self._unchecked.num_rows:
            failed = failures_among(outcomes_of(relevant, _NO_DEATHS, self.policy))
            since = _of_golem(failed, spans, "tick_min", 2**53)
            self._describe(failed.filter(pc.greater_equal(failed["confirmed_tick"], since)), relevant, rules_of)
            judged_until = pc.subtract(
                _of_golem(self._unchecked, spans, "tick_max", 0), self.policy.prediction.check_ticks
            )
            self._unchecked = self._unchecked.filter(pc.greater(self._unchecked["tick"], judged_until))

    def inherit(self, failures: pa.Table) -> None:
        """Add the failures of ancestors (FAILURE_SCHEMA), whose owner_id is the heir."""
        self.rows = pa.concat_tables([self.rows, failures]).combine_chunks()

    def absorb(self, other: LivedFailures) -> None:
        """Add the failures of golems that have none here, and their records that a later check may judge."""
        self.inherit(other.rows)
        unchecked = [rows for rows in (self._unchecked, other._unchecked) if rows is not None]
        self._unchecked = pa.concat_tables(unchecked) if unchecked else None

    def held_by(self, golem_id: str) -> pa.Table:
        """Return the failures that a golem holds (FAILURE_SCHEMA): its own and its ancestors'."""
        return self.rows.filter(pc.equal(self.rows["owner_id"], golem_id))

    def forget(self, golem_ids: set[str]) -> None:
        """Remove golems."""
        gone = pa.array(sorted(golem_ids), pa.string())
        self.rows = self.rows.filter(pc.invert(pc.is_in(self.rows["owner_id"], value_set=gone)))
        if self._unchecked is not None:
            self._unchecked = self._unchecked.filter(pc.invert(pc.is_in(self._unchecked["golem_id"], value_set=gone)))

    def _describe(self, failed: pa.Table, records: pa.Table, rules_of: Callable[[list[str]], pa.Table]) -> None:
        if not failed.num_rows:
            return
        golems, span = failed["golem_id"].unique(), self.policy.curator.cycle_ticks
        cycle = (failed["confirmed_tick"].to_numpy() - 1) // span + 1
        own = self.rows.filter(pc.equal(self.rows["golem_id"], self.rows["owner_id"]))
        before = own.group_by("golem_id", use_threads=False).aggregate([([], "count_all")])
        described = failures_of(
            failed.append_column("cycle", pa.array(cycle, pa.int64())), records, rules_of(golems.to_pylist()),
            pa.table({"golem_id": golems, "owner_id": golems}), before.rename_columns(["golem_id", "known"]),
            self.policy,
        )  # fmt: skip
        self.rows = pa.concat_tables([self.rows, described]).combine_chunks()


def _of_golem(rows: pa.Table, spans: pa.Table, name: str, unknown: int) -> pa.Array:
    """Return a column of the golem of each row; `unknown` for other golems."""
    place = pc.index_in(contiguous(rows["golem_id"]), value_set=contiguous(spans["golem_id"]))
    return pc.fill_null(contiguous(spans[name]).take(place), unknown)
