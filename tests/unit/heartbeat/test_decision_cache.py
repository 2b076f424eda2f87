"""The decision cache: consistency, validity, every invalidation rule, drift, and that an answer costs nothing."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import cache
from typing import Any

import numpy as np
import pytest

from bardo_pipeline.errors import BardoError
from bardo_pipeline.heartbeat.fleet import Fleet
from bardo_pipeline.heartbeat.observe import Sight, observe
from bardo_pipeline.heartbeat.safety.decision_cache import RESULTS, forget_regime, look_up, note_outcomes
from bardo_pipeline.market.tick_series import Tape, tape_of
from bardo_pipeline.policy import Policy
from bardo_pipeline.policy.safety import CachePolicy
from bardo_pipeline.quality.reason_checks import contradictions
from tests.support.fleets.gated_fleets import GATED
from tests.support.fleets.memory_fleets import Lived, drawn_market, live, lively_market
from tests.support.records.stated_reasons import stated_in_rules
from tests.unit.heartbeat.test_choose import CENTRE, fleet_of

ON = Policy().model_copy(update={"cache": CachePolicy(mode="on")})
ONE = np.array([0])
MINUTE = 60_000_000
BASE = 60


class Desk:
    """One golem without a position, whose deliberations and lookups a test places by hand.

    Ticks count from one at which the regime of a market that stands still no longer changes.
    """

    def __init__(self, **market: Any) -> None:
        self.tape: Tape = tape_of(drawn_market([CENTRE] * 400, **market), ON)
        births = fleet_of(1)
        self.fleet = Fleet(births.golem_ids, births.births, ON)

    def at_us(self, tick: int) -> int:
        return int(self.tape.at_us[BASE + tick])

    def sight(self, t: int) -> Sight:
        return observe(self.fleet, self.tape, t, ON)

    def decide(self, *ticks: int, outcome: int = 0, policy: Policy = ON) -> None:
        for t in (BASE + tick for tick in ticks):
            note_outcomes(self.fleet, self.tape, t, self.sight(t), ONE, np.array([outcome]), policy)

    def ask(self, t: int, policy: Policy = ON) -> str:
        sight = self.sight(BASE + t)
        return RESULTS[int(look_up(self.fleet, self.tape, BASE + t, sight, np.array([True]), policy).result[0])]


@pytest.mark.row("HB-16")
def test_three_like_outcomes_are_needed_and_another_one_begins_anew() -> None:
    desk = Desk()
    assert desk.ask(0) == "unknown"
    desk.decide(0, 1)
    assert desk.ask(2) == "unproven"
    desk.decide(2)
    assert desk.ask(3) == "hit"
    desk.decide(3, outcome=2)
    assert desk.ask(4) == "acts", "an act needs a permit, so a deliberation"
    desk.decide(4, 5)
    assert desk.ask(6) == "unproven"
    desk.decide(6)
    assert desk.ask(7) == "hit"


@pytest.mark.row("HB-16")
@pytest.mark.parametrize("ttl", [15.0, 30.0, 45.0])
def test_a_decision_expires_after_its_minutes_of_event_time(ttl: float) -> None:
    policy = ON.model_copy(update={"cache": CachePolicy(mode="on", ttl_minutes=ttl)})
    desk = Desk()
    desk.decide(0, 1, 2)
    last = next(t for t in range(120) if desk.at_us(t) >= desk.at_us(2) + ttl * MINUTE)
    assert desk.ask(last - 1, policy) == "hit"
    assert desk.ask(last, policy) == "expired"
    assert desk.ask(last, policy) == "unknown", "what expired is forgotten"


@pytest.mark.row("HB-16")
@pytest.mark.parametrize("ttl", [14.9, 45.1])
def test_the_validity_is_between_15_and_45_minutes(ttl: float) -> None:
    with pytest.raises(ValueError, match="ttl_minutes"):
        CachePolicy(ttl_minutes=ttl)
    assert issubclass(BardoError, Exception)


@pytest.mark.row("HB-16")
def test_a_change_of_regime_invalidates_all_decisions_even_if_the_regime_returns() -> None:
    desk = Desk()
    desk.decide(0, 1, 2)
    assert desk.ask(3) == "hit"
    forget_regime(desk.fleet, np.array([True]))
    assert desk.ask(4) == "regime"
    assert desk.ask(5) == "unknown"


@pytest.mark.row("HB-16")
def test_a_revision_of_the_context_policy_invalidates_all_decisions() -> None:
    desk = Desk()
    desk.decide(0, 1, 2)
    other = ON.retrieval.model_copy(update={"contrarian_ticks": ON.retrieval.contrarian_ticks + 1})
    assert desk.ask(3, ON.model_copy(update={"retrieval": other})) == "context"


@pytest.mark.row("HB-16")
@pytest.mark.parametrize("column", ["rebalance_threshold", "presence", "loan_choice"])
@pytest.mark.parametrize("own", [True, False])
def test_a_change_of_the_playbook_invalidates_the_decisions_that_used_it(column: str, own: bool) -> None:
    desk = Desk()
    desk.decide(0, 1, 2)
    regime = int(desk.tape.regime[BASE + 3])
    getattr(desk.fleet, column)[regime if own else regime - 1, 0] += 1
    assert desk.ask(3) == ("playbook" if own else "hit")


@pytest.mark.row("HB-16")
@pytest.mark.parametrize(("change", "result"), [(1.19, "hit"), (1.21, "drift"), (0.81, "hit"), (0.79, "drift")])
def test_a_condition_that_drifted_by_more_than_a_fifth_invalidates_a_decision(change: float, result: str) -> None:
    desk = Desk()
    desk.decide(0, 1, 2)
    desk.tape.price[BASE + 3] *= change
    assert desk.ask(3) == result


def with_cache(policy: Policy) -> Policy:
    return policy.model_copy(update={"cache": CachePolicy(mode="on", outcomes_min=1, drift_max=1.0)})


@cache
def lived(mode: str) -> Lived:
    """Golems with a cache that answers soon, and their heirs."""
    policy = with_cache({"fixed": Policy(), "learned": GATED}[mode])
    steers = {("*", tick): ("low", "look") for tick in range(60, 900, 60)}
    return live(lively_market(1_300), lineages=range(4), policy=policy, steers=steers)


@pytest.mark.row("HB-16")
def test_an_answer_costs_nothing_and_every_lookup_is_recorded_with_its_result() -> None:
    results: Counter[str] = Counter()
    for row in lived("learned").rows:
        cached = row["cached_decision"]
        if cached is None:
            assert row["tier"] not in ("T1", "T2") or row["forced_by"] or row["gating"]["explored"] or pending(row)
            continue
        results[cached["result"]] += 1
        assert row["forced_by"] is None
        if cached["result"] == "hit":
            assert row["tier"] == "T0"
            assert (row["deliberation"], row["actions"], row["cost"]["inference_micros"]) == (None, [], 0)
            assert f"answers {cached['wanted_tier']}: hold, after {cached['outcomes']} " in row["gating_reason"]
        else:
            assert row["tier"] == cached["wanted_tier"]
            assert row["deliberation"] is not None
    assert results["hit"] > 20, results
    assert {"unknown", "regime"} <= set(results)


def pending(row: dict[str, Any]) -> bool:
    return row["prediction_error_sources"]["interventions"] > 0.0


@pytest.mark.row("HB-16")
def test_the_hits_of_a_life_follow_from_its_own_deliberations_alone() -> None:
    """No golem answers a situation in which it did not deliberate before, in its own life and regime."""
    held: dict[str, set[int]] = defaultdict(set)
    regime: dict[str, str] = {}
    for row in sorted(lived("learned").rows, key=lambda row: (row["golem_id"], row["tick"])):
        golem, cached = row["golem_id"], row["cached_decision"]
        if regime.get(golem) != row["regime"]:
            held[golem].clear()
        regime[golem] = row["regime"]
        if cached is not None and cached["result"] == "hit":
            assert cached["pattern"] in held[golem]
        elif cached is not None:
            held[golem].add(cached["pattern"])
        elif row["deliberation"] is not None:
            held[golem] |= set(range(30))  # a forced one states no pattern


@pytest.mark.row("HB-16")
@pytest.mark.parametrize("mode", ["fixed", "learned"])
def test_an_answered_tick_states_its_figures_without_a_contradiction(mode: str) -> None:
    records = lived(mode).records
    assert contradictions(records) == []
    assert stated_in_rules(records) == records.num_rows


@pytest.mark.row("HB-16")
def test_an_heir_begins_with_an_empty_cache_and_the_cache_is_off_by_default() -> None:
    births = fleet_of(2)
    heir = Fleet(births.golem_ids, births.births, ON)
    assert heir.cache_outcomes.shape == (30, 2)
    assert not heir.cache_outcomes.any()
    assert fleet_of(1).cache_outcomes.shape == (0, 1)
