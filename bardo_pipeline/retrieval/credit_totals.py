"""Keeps the credits of living golems' retrievals, equal to the sums of the table of credits. Pure.

The credits are those of `credit_rules`, cycle by cycle, so the heartbeat's recall weighs an entry as `bardo ask` does.
Source: MEM-11, MEM (reinforcement on retrieval), HB S13 (Loop 1).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.policy import CuratorPolicy
from bardo_pipeline.retrieval.credit_rules import SIGN_SCHEMA, credits_of, signs_of, totals


@dataclass(frozen=True)
class Uses:
    """Earlier retrievals per entry: decisions helped, decisions misled, last access in UTC microseconds (0: never)."""

    useful: Int64Array
    misled: Int64Array
    last_us: Int64Array


@dataclass
class CreditTotals:
    """Sums of credits by golem and entry, and the signs of entries from which later credits are computed."""

    signs: pa.Table = field(default_factory=SIGN_SCHEMA.empty_table)
    _totals: dict[tuple[str, str], tuple[int, int, int]] = field(default_factory=dict)
    _sides: dict[tuple[str, str], int] = field(default_factory=dict)

    def note(self, decisions: pa.Table) -> None:
        """Add the signs of new decisions (DECISION_SCHEMA). Decisions that leave all signs as they are cost little."""
        rows = decisions.filter(decisions["action_type"].is_valid())
        sides = zip(*(rows[name].to_pylist() for name in ("golem_id", "entry_id", "sign")), strict=True)
        if any(self._sides.get((golem_id, entry_id)) != sign for golem_id, entry_id, sign in sides):
            is_own = pc.is_in(self.signs["golem_id"], value_set=rows["golem_id"].unique())
            own, others = signs_of(rows, self.signs.filter(is_own)), self.signs.filter(pc.invert(is_own))
            self.signs = pa.concat_tables([others, own]).combine_chunks()
            columns = (own[name].to_pylist() for name in ("golem_id", "entry_id", "sign"))
            self._sides |= {(golem_id, entry_id): sign for golem_id, entry_id, sign in zip(*columns, strict=True)}

    def credit(self, records: pa.Table, cycle: Int64Array, policy: CuratorPolicy) -> None:
        """Add the credits of closed cycles, whose decisions may be noted or not. Arguments: as of `credits_of`."""
        self.add(credits_of(records, cycle, self.signs, policy))

    def add(self, credits: pa.Table) -> None:
        """Add credits (CREDIT_SCHEMA)."""
        for golem_id, entry_id, *counts in zip(*totals(credits).to_pydict().values(), strict=True):
            useful, misled, last_us = self._totals.get((golem_id, entry_id), (0, 0, 0))
            self._totals[golem_id, entry_id] = useful + counts[0], misled + counts[1], max(last_us, counts[2])

    def uses(self, golem_ids: Iterable[str], entry_ids: Iterable[str]) -> Uses:
        """Return the earlier retrievals of each of these entries by its golem."""
        never = (0, 0, 0)
        rows = [self._totals.get(pair, never) for pair in zip(golem_ids, entry_ids, strict=True)]
        return Uses(*np.array(rows, np.int64).reshape(-1, 3).T)

    def forget(self, golem_ids: set[str]) -> None:
        """Remove golems."""
        self._totals = {pair: counts for pair, counts in self._totals.items() if pair[0] not in golem_ids}
        gone = pa.array(sorted(golem_ids), pa.string())
        self.signs = self.signs.filter(pc.invert(pc.is_in(self.signs["golem_id"], value_set=gone)))
        self._sides = {pair: sign for pair, sign in self._sides.items() if pair[0] not in golem_ids}
