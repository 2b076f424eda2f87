"""The evaluation of gates: bounds over handmade tallies, and what each gate of a short market does."""

from __future__ import annotations

import pytest

from bardo_pipeline.policy import Policy
from bardo_pipeline.runtime.gate_evaluation import (
    ATTENTION,
    FIXED,
    GATES,
    INHERITED,
    LEARNED,
    ORACLE,
    ROUTED,
    GateLives,
    Tally,
    Trial,
    compare_gates,
    graded_gates,
)

POLICY = Policy()


def tally(caught: int, chosen_micros: int, worth: float = 0.9) -> Tally:
    return Tally(1_000, 100, caught, chosen_micros, 50_000, worth)


def market(number: int, learned: Tally, inherited: Tally) -> GateLives:
    fixed = tally(10 + number % 3, 200_000)
    tallies = {
        FIXED: fixed,
        ATTENTION: fixed,
        LEARNED: learned,
        INHERITED: inherited,
        ROUTED: learned,
        ORACLE: tally(100, 20_000),
    }
    return GateLives(f"m-{number}", tallies, tallies)


@pytest.mark.row("X-5", "HB-7")
def test_a_gate_is_compared_with_the_fixed_one_by_cost_per_tick_and_by_share_caught() -> None:
    report = graded_gates([market(i, tally(30, 100_000, 0.8), tally(5, 190_000)) for i in range(6)], POLICY)
    learned, inherited = (report.whole[GATES.index(name)] for name in (LEARNED, INHERITED))
    assert learned.cost == (0.5, 0.5, 0.5)
    assert learned.whole_cost[0] == pytest.approx(150 / 250)
    assert (learned.caught, learned.ahead[0]) == (pytest.approx(0.3), pytest.approx(0.3 - 0.11))
    assert learned.ahead[1] < learned.ahead[0] < learned.ahead[2]
    assert learned.worth[0] == pytest.approx(-0.1)
    assert [bound.kept for bound in report.bounds] == [True, True, False, False]
    assert not report.kept
    assert inherited.ahead[2] < 0.0


@pytest.mark.full
@pytest.mark.row("X-5", "HB-7")
def test_the_oracle_catches_every_important_tick_and_other_gates_a_part() -> None:
    lives = compare_gates(Trial(seed=905, golems=2, ancestor_days=0.15, days=0.3), POLICY)
    whole, first = lives.whole, lives.first
    assert whole[ORACLE].important > 0
    for tallies in (whole, first):
        assert tallies[ORACLE].caught == tallies[ORACLE].important
    assert whole[ORACLE].chosen_micros < whole[FIXED].chosen_micros
    assert all(first[gate].ticks == 400 < whole[gate].ticks for gate in GATES)
    assert len({whole[gate].chosen_micros for gate in GATES}) > 3, "the gates choose apart"
    assert all(whole[gate].forced_micros > 0 for gate in GATES), "the first tick of a life is forced"
