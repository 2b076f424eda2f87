"""BeliefCredits: which beliefs of Lethe helped the decisions that retrieved them, and which misled. Pure.

A belief was useful if its side agrees with the verdict on the decision, and misleading if it disagrees, as an entry
is. Both count as tests of the belief for this golem alone. Source: KAT (Retrieval in Heartbeat); MEM-11; canon 15.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Float64Array
from bardo_pipeline.policy import CuratorPolicy
from bardo_pipeline.retrieval.scoring import validation_ratio

_Held = tuple[str, str]
"""A golem and a proposition that it holds."""


class BeliefCredits:
    """Credits of the golems of a fleet, from their own records."""

    def __init__(self) -> None:
        self._sides: dict[_Held, tuple[str, int]] = {}
        self._retrieved: dict[tuple[str, int], list[str]] = {}
        self._tests: dict[_Held, tuple[int, int]] = {}

    def note(self, beliefs: pa.Table) -> None:
        """Add the acts and sides of beliefs (golem_id, prior_id, action_type, sign)."""
        columns = (beliefs[name].to_pylist() for name in ("golem_id", "prior_id", "action_type", "sign"))
        self._sides |= {(golem, belief): (act, sign) for golem, belief, act, sign in zip(*columns, strict=True)}

    def close(self, records: pa.Table, policy: CuratorPolicy) -> None:
        """Credit the beliefs by the verdicts in records (golem_id, tick, retrieval, resolutions) of closed cycles."""
        if not self._sides:
            return
        judged = pc.greater(pc.list_value_length(records["resolutions"]), 0)
        is_relevant = pc.or_(pc.is_valid(records["retrieval"]), judged)
        rows = records.select(["golem_id", "tick", "retrieval", "resolutions"]).filter(is_relevant)
        for row in rows.sort_by([("golem_id", "ascending"), ("tick", "ascending")]).to_pylist():
            golem_id = row["golem_id"]
            priors = (row["retrieval"] or {}).get("priors") or []
            if held := [p["prior_id"] for p in priors if (golem_id, p["prior_id"]) in self._sides]:
                self._retrieved[golem_id, row["tick"]] = held
            for verdict in row["resolutions"] or []:
                if verdict["verified"] and abs(verdict["effect_ppm"] or 0) >= policy.effect_min_ppm:
                    self._judge(golem_id, verdict["decision_tick"], verdict["action_type"], verdict["effect_ppm"])

    def ratios(self, golem_ids: list[str], belief_ids: list[str]) -> Float64Array:
        """Return the share of the tests that confirmed each belief for its golem, in (0, 1]; 1 before any test."""
        tests = [self._tests.get(pair, (0, 0)) for pair in zip(golem_ids, belief_ids, strict=True)]
        useful, misled = np.array(tests, np.int64).reshape(-1, 2).T
        return validation_ratio(useful, misled)

    def forget(self, golem_ids: set[str]) -> None:
        """Remove golems."""
        self._sides = {pair: side for pair, side in self._sides.items() if pair[0] not in golem_ids}
        self._retrieved = {at: held for at, held in self._retrieved.items() if at[0] not in golem_ids}
        self._tests = {pair: tests for pair, tests in self._tests.items() if pair[0] not in golem_ids}

    def _judge(self, golem_id: str, tick: int, action_type: str, effect_ppm: int) -> None:
        for belief_id in self._retrieved.get((golem_id, tick), []):
            act, sign = self._sides[golem_id, belief_id]
            if act == action_type:
                useful, misled = self._tests.get((golem_id, belief_id), (0, 0))
                is_useful = (effect_ppm > 0) == (sign > 0)
                self._tests[golem_id, belief_id] = useful + is_useful, misled + (not is_useful)
