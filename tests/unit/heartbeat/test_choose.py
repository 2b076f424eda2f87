"""Decisions: the cost of acting, paired trials, and the effect of collecting fees."""

from typing import Any

import numpy as np
import pytest

from bardo_pipeline.events.life.events import Traits
from bardo_pipeline.heartbeat.decide import COLLECT, ENTER, HOLD, Choice, choose
from bardo_pipeline.heartbeat.defi.rebalance import ACT, judge, try_inaction
from bardo_pipeline.heartbeat.entry_names import EntryNames
from bardo_pipeline.heartbeat.fleet import Fleet, born
from bardo_pipeline.heartbeat.gas_gate import age_payments
from bardo_pipeline.heartbeat.observe import Sight, observe
from bardo_pipeline.heartbeat.recall_table import nothing_known
from bardo_pipeline.heartbeat.refusals import EXECUTED
from bardo_pipeline.market.tick_series import Tape, tape_of
from bardo_pipeline.policy import Policy
from tests.support.fleets.memory_fleets import FOUNDING, drawn_market

POLICY = Policy()
CENTRE = 200_000
AWAY = CENTRE + 150
"""Ticks from the centre of a range of 160 to each side: an anomaly worth a trial, under the playbook's threshold."""

BRANCH = ("liquidity", "idle", "lower", "upper", "root_lower", "root_upper", "fees")


def fleet_of(count: int) -> Fleet:
    """Golems of equal traits."""
    traits = Traits(rebalance_threshold=0.9, range_half_width_ticks=160, forecast_memory=0.95)
    births = [
        born(
            lineage_id=f"choose/{i}", generation=0, owner_id="owner-1", founding=FOUNDING, market="by hand",
            market_hash="0", derivation_id="by hand", policy=POLICY, traits=traits,
        )
        for i in range(count)
    ]  # fmt: skip
    return Fleet([g for g, _ in births], [b for _, b in births], POLICY)


def think(fleet: Fleet, tape: Tape, t: int, policy: Policy = POLICY) -> tuple[Choice, Sight]:
    """Run one tick in which every golem deliberates at T1."""
    fleet.tick += 1
    sight = observe(fleet, tape, t, policy)
    age_payments(fleet, tape, t, policy)
    recall = nothing_known(fleet.size, EntryNames())
    choice = choose(fleet, tape, t, sight, np.ones(fleet.size, np.int64), recall, policy)
    assert choice is not None
    return choice, sight


def entered(count: int, **market: Any) -> tuple[Fleet, Tape]:
    """Golems that hold a position from tick 0, and the tape on which the price then goes away from it."""
    tape = tape_of(drawn_market([CENTRE, *[AWAY] * 3], **market), POLICY)
    fleet = fleet_of(count)
    choice, _ = think(fleet, tape, 0)
    assert (choice.action == ENTER).all()
    assert (choice.status == EXECUTED).all()
    return fleet, tape


@pytest.mark.row("HB-1")
def test_collecting_fees_is_tried_against_the_same_recentring_as_holding() -> None:
    fleet, tape = entered(2)
    fleet.fees[:] = [0.0, 2.0 * POLICY.playbook.collect_fees_micros]
    choice, _ = think(fleet, tape, 1)
    assert choice.action.tolist() == [HOLD, COLLECT]
    assert (choice.swap_micros == 0).all()
    assert (fleet.trial_due[0] > 0).all()
    for name in BRANCH:
        first, second = getattr(fleet, f"branch_{name}")[ACT, 0]
        assert first == second, name
    gas = POLICY.cost.rebalance_gas_units * tape.gas_gwei[1] * 1e-9 * tape.market.native_usd_micros
    assert (fleet.branch_idle[ACT, 0] == -np.rint(gas)).all()


@pytest.mark.row("HB-1")
@pytest.mark.parametrize("fees", [600_000.0, 2_000_000.0])
def test_collecting_fees_does_not_change_the_drawdown(fees: float) -> None:
    fleet, tape = entered(1)
    fleet.fees[:] = fees
    fleet.high_water[:] = 52_000_000.0  # some of it was lost before
    credits, earned = fleet.credits.copy(), fleet.earned.copy()
    choice, sight = think(fleet, tape, 1)
    assert choice.action.tolist() == [COLLECT]
    assert choice.status.tolist() == [EXECUTED]
    collected = fleet.credits - credits + choice.gas_micros
    assert collected.tolist() == (fleet.earned - earned).tolist()
    assert collected[0] >= fees
    after = observe(fleet, tape, 2, POLICY)
    new_fees = fleet.fees.copy()
    assert after.nav + collected - new_fees == pytest.approx(sight.nav, abs=1.0)
    undone = (after.nav - new_fees) / fleet.high_water
    assert 1.0 - undone == pytest.approx(sight.drawdown, abs=1e-6)


def held_back(fleet: Fleet, tape: Tape, t: int) -> Sight:
    """Run one tick in which the gate suppresses every golem."""
    fleet.tick += 1
    sight = observe(fleet, tape, t, POLICY)
    try_inaction(fleet, tape, t, sight, np.zeros(fleet.size, np.int64), POLICY)
    return sight


@pytest.mark.row("HB-24")
def test_a_suppressed_tick_is_tried_against_the_recentring_of_a_deliberation() -> None:
    fleet, tape = entered(2)
    thinker, _ = entered(2)
    held_back(fleet, tape, 1)
    think(thinker, tape, 1)
    assert fleet.trial_due[0].tolist() == [2 + POLICY.prediction.check_ticks] * 2
    assert not fleet.trial_thought.any()
    assert thinker.trial_thought[0].all()
    for name in (f"branch_{part}" for part in BRANCH):
        np.testing.assert_array_equal(getattr(fleet, name)[:, 0], getattr(thinker, name)[:, 0], name)
    assert (fleet.trial_recalled == -1).all(), "a suppressed tick retrieves nothing"


@pytest.mark.row("HB-24")
def test_inaction_is_tried_once_at_a_time_and_only_for_a_position_off_centre() -> None:
    fleet, tape = entered(3)
    fleet.liquidity[1] = 0.0
    fleet.lower[2], fleet.upper[2] = fleet.lower[2] - 2_000, fleet.upper[2] + 2_000
    held_back(fleet, tape, 1)
    held_back(fleet, tape, 2)
    assert (fleet.trial_due >= 0).sum(axis=0).tolist() == [1, 0, 0], (
        "off centre, without a position, within a wide range"
    )


@pytest.mark.row("HB-24")
def test_a_decision_is_tried_beside_inaction_but_inaction_not_beside_a_decision() -> None:
    fleet, tape = entered(1)
    held_back(fleet, tape, 1)
    think(fleet, tape, 2)
    assert fleet.trial_thought[:, 0].tolist()[:2] == [False, True]
    other, _ = entered(1)
    think(other, tape, 1)
    held_back(other, tape, 2)
    assert (other.trial_due >= 0).sum() == 1


@pytest.mark.row("HB-24")
def test_decisions_to_hold_are_tried_one_at_a_time_and_an_act_beside_them() -> None:
    fleet, tape = entered(2)
    think(fleet, tape, 1)
    fleet.rebalance_threshold[:, 1] = 0.0
    think(fleet, tape, 2)
    assert (fleet.trial_due >= 0).sum(axis=0).tolist() == [1, 2]
    assert fleet.trial_chosen[:2, 1].tolist() == [False, True]


@pytest.mark.row("HB-24")
def test_a_trial_of_inaction_does_not_change_the_confidence_in_decisions() -> None:
    fleet, tape = entered(2)
    held_back(fleet, tape, 1)
    fleet.trial_thought[0, 1] = True
    fleet.tick[:] = fleet.trial_due[0]
    verdicts = judge(fleet, tape, 3, POLICY)
    assert verdicts is not None
    assert verdicts.due[0].all()
    assert fleet.confidence[0] == POLICY.prediction.first_confidence != fleet.confidence[1]
