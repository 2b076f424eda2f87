"""Decision cache: a situation in which deliberations agreed is answered at T0, without a model. Pure, over columns.

A situation is the anomaly band, the gas band, and whether a position is open. The cache answers with holding alone: an
act needs a permit, and permits belong to decisions at T1 and T2. Entries belong to one life; no bundle holds them.
Source: HB S11, canon 36.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from bardo_pipeline.arrays import BoolArray, Float64Array, Int64Array, first_case
from bardo_pipeline.heartbeat.fleet import Fleet
from bardo_pipeline.heartbeat.observe import Sight
from bardo_pipeline.heartbeat.recall_table import cells
from bardo_pipeline.market.tick_series import Tape
from bardo_pipeline.policy import Policy, RetrievalPolicy

RESULTS = ("hit", "unknown", "unproven", "acts", "expired", "regime", "context", "playbook", "drift")
HIT, UNKNOWN, UNPROVEN, ACTS, EXPIRED, REGIME, CONTEXT, PLAYBOOK, DRIFT = range(len(RESULTS))
HOLD = 0
MINUTE_US = 60_000_000


@dataclass
class Lookup:
    """Lookups of a tick, [golems]; the figures are valid where `asked`.

    pattern: the situation. outcomes: like outcomes of deliberations in it. result: a position in RESULTS.
    """

    asked: BoolArray
    pattern: Int64Array
    outcomes: Int64Array
    result: Int64Array

    @property
    def answered(self) -> BoolArray:
        """The golems whose deliberation is needless."""
        return self.asked & (self.result == HIT)


def look_up(fleet: Fleet, tape: Tape, t: int, sight: Sight, asks: BoolArray, policy: Policy) -> Lookup:
    """Look up the situations of golems that would deliberate, and forget entries that no longer hold.

    A change of the regime makes all entries of a golem invalid.
    """
    golem = np.arange(fleet.size)
    pattern = _patterns(tape, t, sight, golem, policy)
    outcomes, fault = (
        fleet.cache_outcomes[pattern, golem].copy(),
        _faults(fleet, tape, t, sight, golem, pattern, policy),
    )
    acts, few = fleet.cache_outcome[pattern, golem] != HOLD, outcomes < policy.cache.outcomes_min
    result = first_case([fault != HIT, acts, few], [fault, ACTS, UNPROVEN], HIT)
    gone = asks & (fault != HIT)
    fleet.cache_outcomes[pattern[gone], golem[gone]] = 0
    return Lookup(asks, pattern, outcomes, result)


def forget_regime(fleet: Fleet, changed: BoolArray) -> None:
    """Make all entries of golems in a changed regime invalid."""
    fleet.cache_regime[:, changed] = -1


def note_outcomes(
    fleet: Fleet, tape: Tape, t: int, sight: Sight, golem: Int64Array, outcome: Int64Array, policy: Policy
) -> None:
    """Count the outcomes of deliberations; one that differs from those before begins anew.

    golem: positions of those that deliberated. outcome: code of what each decided, 0 for holding.
    """
    pattern = _patterns(tape, t, sight, golem, policy)
    place = pattern, golem
    holds = _faults(fleet, tape, t, sight, golem, pattern, policy) == HIT
    same = holds & (fleet.cache_outcome[place] == outcome)
    fleet.cache_outcomes[place] = np.where(same, fleet.cache_outcomes[place] + 1, 1)
    fleet.cache_outcome[place] = outcome
    fleet.cache_us[place], fleet.cache_regime[place] = int(tape.at_us[t]), int(tape.regime[t])
    fleet.cache_context[place] = context_revision(policy.retrieval)
    fleet.cache_rules[:, pattern, golem] = _rules(fleet, tape, t, golem)
    fleet.cache_conditions[:, pattern, golem] = _conditions(tape, t, sight, golem)


@lru_cache(maxsize=8)
def context_revision(rules: RetrievalPolicy) -> int:
    """Return a number that changes with the policy that assembles the context of a deliberation."""
    digest = hashlib.blake2b(rules.model_dump_json().encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big")


def _patterns(tape: Tape, t: int, sight: Sight, golem: Int64Array, policy: Policy) -> Int64Array:
    """Return the situations of these golems; the regime is no part, because entries of another one are invalid."""
    cell = cells(0, sight.score[golem], tape.gas_hour_ratio[t], policy.curator)
    return cell * 2 + sight.open[golem]


def _rules(fleet: Fleet, tape: Tape, t: int, golem: Int64Array) -> Float64Array:
    """Return what the playbook says in this regime: threshold, presence and loan, [3, golems]."""
    regime = int(tape.regime[t])
    columns = fleet.rebalance_threshold, fleet.presence, fleet.loan_choice
    return np.stack([column[regime, golem].astype(np.float64) for column in columns])


def _conditions(tape: Tape, t: int, sight: Sight, golem: Int64Array) -> Float64Array:
    """Return what a decision depends on: anomaly score, price, gas beside its hour, and volatility, [4, golems]."""
    market = np.array([tape.price[t], tape.gas_hour_ratio[t], np.nan_to_num(tape.sigma_ratio[t], nan=1.0)])
    return np.vstack([sight.score[golem], np.repeat(market[:, None], len(golem), axis=1)])


def _faults(
    fleet: Fleet, tape: Tape, t: int, sight: Sight, golem: Int64Array, pattern: Int64Array, policy: Policy
) -> Int64Array:
    """Return why each entry does not hold, and HIT for those that do."""
    place, rules = (pattern, golem), policy.cache
    before, now = fleet.cache_conditions[:, pattern, golem], _conditions(tape, t, sight, golem)
    drifted = (np.abs(now - before) > rules.drift_max * np.abs(before)).any(axis=0)
    ended = int(tape.at_us[t]) >= fleet.cache_us[place] + round(rules.ttl_minutes * MINUTE_US)
    changed = (fleet.cache_rules[:, pattern, golem] != _rules(fleet, tape, t, golem)).any(axis=0)
    cases = [
        fleet.cache_outcomes[place] == 0,
        fleet.cache_regime[place] != int(tape.regime[t]),
        fleet.cache_context[place] != context_revision(policy.retrieval),
        changed,
        ended,
        drifted,
    ]
    return first_case(cases, [UNKNOWN, REGIME, CONTEXT, PLAYBOOK, EXPIRED, DRIFT], HIT)
