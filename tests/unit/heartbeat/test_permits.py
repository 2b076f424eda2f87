"""Permits and the risk engine: what each stops, and that no interleaving executes an action without its permit."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from bardo_pipeline.curator.choice_rules import LEAVE as LEAVES
from bardo_pipeline.heartbeat.decide import ENTER, HOLD, LEAVE, REBALANCE, Choice, Plan, considered, execute
from bardo_pipeline.heartbeat.defi.risk_engine import kelly_limit
from bardo_pipeline.heartbeat.entry_names import EntryNames
from bardo_pipeline.heartbeat.fleet import Fleet
from bardo_pipeline.heartbeat.gas_gate import age_payments
from bardo_pipeline.heartbeat.observe import observe
from bardo_pipeline.heartbeat.recall_table import nothing_known
from bardo_pipeline.heartbeat.refusals import (
    ACCURACY,
    BLOCKED,
    DEFERRED,
    DRAWDOWN,
    EXECUTED,
    EXIT_SLIPPAGE,
    EXPOSURE,
    KELLY,
    LOAN_HEALTH,
    NO_PERMIT,
    REVERTED,
    SIMULATED_LOSS,
)
from bardo_pipeline.heartbeat.safety.permits import Permits, issue, market_state
from bardo_pipeline.market.tick_series import tape_of
from bardo_pipeline.policy import Policy, RiskPolicy
from bardo_pipeline.quality.reason_checks import contradictions
from tests.support.fleets.loan_markets import RICH, loan
from tests.support.fleets.memory_fleets import drawn_market, live, lively_market
from tests.support.fleets.shared_fleets import cage
from tests.unit.heartbeat.test_choose import AWAY, CENTRE, POLICY, entered, fleet_of, think


def risk(**limits: Any) -> Policy:
    return cage(gas_share_max=1.0).model_copy(update={"risk": RiskPolicy(**limits)})


@pytest.mark.row("HB-27")
@pytest.mark.parametrize(
    ("why", "status", "policy", "state"),
    [
        (KELLY, BLOCKED, risk(kelly_floor=0.0), {"confidence": 0.5}),
        (EXPOSURE, BLOCKED, risk(exposure_max=0.9), {}),
        (DRAWDOWN, BLOCKED, risk(drawdown_max=0.01), {"high_water": 52_000_000.0}),
        (EXIT_SLIPPAGE, BLOCKED, risk(exit_slippage_max=0.000_1), {}),
        (LOAN_HEALTH, DEFERRED, POLICY, {"loan_health": 1.01}),
        (ACCURACY, BLOCKED, risk(accuracy_min=0.71), {}),
    ],
)
def test_each_layer_stops_an_act_that_takes_a_risk_and_none_stops_leaving(
    why: int, status: int, policy: Policy, state: dict[str, float]
) -> None:
    for action in (REBALANCE, LEAVE):
        fleet, tape = entered(2)
        for name, value in state.items():
            getattr(fleet, name)[:] = value
        fleet.rebalance_threshold[:] = 0.0
        if action == LEAVE:
            fleet.presence[:] = LEAVES
        before = copy.deepcopy(fleet)
        choice, _ = think(fleet, tape, 1, policy)
        assert choice.action.tolist() == [action] * 2
        if action == LEAVE:
            assert choice.status.tolist() == [EXECUTED] * 2
            continue
        assert (choice.status.tolist(), choice.why.tolist()) == ([status] * 2, [why] * 2)
        assert (choice.why_size > choice.why_limit).all()
        assert not choice.permitted.any()
        assert fleet.opened_tick.tolist() == before.opened_tick.tolist()
        assert fleet.partitions.tolist() == before.partitions.tolist()


@pytest.mark.row("HB-27")
@pytest.mark.parametrize(("tier", "why"), [(1, 0), (2, SIMULATED_LOSS)])
def test_only_a_decision_at_t2_is_simulated_before_it_is_sent(tier: int, why: int) -> None:
    fleet, tape = entered(1)
    fleet.rebalance_threshold[:] = 0.0
    fleet.tick += 1
    policy = risk(simulated_loss_max=0.000_01)
    sight = observe(fleet, tape, 1, policy)
    age_payments(fleet, tape, 1, policy)
    one, recall = np.array([0]), nothing_known(1, EntryNames())
    choice, _ = considered(fleet, tape, 1, sight, one, one == 2 - tier, recall, policy, one > 0, None)
    assert (choice.action.tolist(), choice.why.tolist()) == ([REBALANCE], [why])


@pytest.mark.row("HB-27")
def test_half_kelly_grows_with_the_share_of_right_decisions_from_a_floor() -> None:
    right = np.array([0.0, 0.5, 0.6, 0.75, 1.0])
    assert kelly_limit(right, np.full(5, 1e6), POLICY).tolist() == [5_000, 5_000, 99_999, 250_000, 500_000]


@pytest.mark.row("HB-25")
def test_every_sent_action_names_its_permit_and_no_other_action_has_one() -> None:
    lent = live(lively_market(900), lineages=range(3), founding=RICH)
    seen = 0
    for row in lent.rows:
        sent = [a for a in row["actions"] if a["status"] in ("executed", "reverted") and a["permit_id"]]
        assert all(a["permit_id"] for a in row["actions"] if a["status"] in ("executed", "reverted"))
        permits = row["permits"] or []
        assert [(p["permit_id"], p["action_type"]) for p in permits] == [
            (a["permit_id"], a["action_type"]) for a in sent
        ]
        for permit in permits:
            ends = row["observed_at"].timestamp() + POLICY.risk.permit_seconds
            assert permit["expires_us"] == round(ends * 1e6)
            assert permit["simulated"] == (row["tier"] == "T2")
            assert POLICY.risk.accuracy_min <= permit["accuracy"] <= 1.0
            seen += 1
    assert seen
    assert contradictions(lent.records) == []


@pytest.mark.row("HB-25")
def test_loans_are_taken_and_repaid_by_permit_and_liquidated_without_one() -> None:
    from tests.support.fleets.routed_fleets import routed

    kinds = {}
    for row in routed().rows:
        permitted = {p["permit_id"] for p in row["permits"] or []}
        for action in row["actions"]:
            if action["tool_name"].startswith("aave") and action["status"] == "executed":
                kinds[action["action_type"]] = action["permit_id"] in permitted
                assert (action["action_type"] == "liquidated") is not (action["permit_id"] in permitted)
    assert kinds["borrow"]
    assert loan(0.5)


class Interleavings(RuleBasedStateMachine):
    """Decisions, executions, market moves, new ticks and waits in any order, of two golems.

    A twin keeps what each golem may execute: the last decision, until it is executed, or the market or a tick moves.
    """

    @initialize()
    def begin(self) -> None:
        prices = [CENTRE, *[AWAY, AWAY, CENTRE, AWAY + 40] * 30]
        self.tape = tape_of(drawn_market(prices), POLICY)
        self.fleet: Fleet = fleet_of(2)
        self.recall = nothing_known(2, EntryNames())
        self.t, self.pending = 0, None
        self.executed, self.permitted = 0, 0
        self._tick(0)

    def _tick(self, t: int) -> None:
        self.t = t
        self.fleet.tick += 1
        self.sight = observe(self.fleet, self.tape, t, POLICY)
        age_payments(self.fleet, self.tape, t, POLICY)

    @rule(threshold=st.sampled_from([0.0, 0.95]), tier=st.sampled_from([1, 2]))
    def decide(self, threshold: float, tier: int) -> None:
        self.fleet.rebalance_threshold[:] = threshold
        both = np.arange(2)
        deep, none = np.full(2, tier == 2), np.zeros(2, bool)
        choice, plan = considered(
            self.fleet, self.tape, self.t, self.sight, both, deep, self.recall, POLICY, none, None
        )
        permits = issue(self.fleet, self.tape, self.t, both, choice.action, choice.status, deep, POLICY)
        self.used = False
        self.pending = choice, plan, permits, self.t, self.fleet.tick.copy(), choice.action.copy(), choice.status.copy()

    @rule(steps=st.integers(1, 3))
    def pass_ticks(self, steps: int) -> None:
        for _ in range(steps):
            if self.t + 1 < self.tape.ticks:
                self._tick(self.t + 1)

    @rule()
    def move_the_market(self) -> None:
        """The market moves between two ticks of the golems: gamma sees it, theta does not yet."""
        if self.t + 1 < self.tape.ticks:
            self.t += 1
            self.sight = observe(self.fleet, self.tape, self.t, POLICY)

    @rule(other=st.sampled_from([HOLD, ENTER, LEAVE]))
    def change_the_action(self, other: int) -> None:
        """A planner replaces the decided action, as a compromised model would."""
        if self.pending is not None:
            self.pending[0].action[:] = other
            self.pending[0].status[:] = EXECUTED

    @rule()
    def execute(self) -> None:
        if self.pending is None:
            return
        choice, plan, permits, at, tick, action, status = self.pending
        before = self._state()
        self._execute(choice, plan, permits)
        same_state = market_state(self.tape, self.t) == market_state(self.tape, at)
        in_time = self.tape.at_us[self.t] - self.tape.at_us[at] < POLICY.risk.permit_seconds * 1_000_000
        may = (action != HOLD) & np.isin(status, (EXECUTED, REVERTED)) & (choice.action == action)
        may &= (tick == self.fleet.tick) & same_state & in_time & (not self.used)
        changed = (self._state() != before).any(axis=0)
        assert not (changed & ~may).any(), "something was executed without its permit"
        sent = np.isin(choice.status, (EXECUTED, REVERTED)) & (choice.action != HOLD)
        assert sent.tolist() == may.tolist()
        refused = (choice.action != HOLD) & ~sent
        assert np.isin(choice.status[refused], (BLOCKED, DEFERRED)).all()
        assert (choice.why[refused] != 0).all()
        self.executed += int(changed.sum())
        self.permitted += int(may.sum())
        self.used = True

    def _execute(self, choice: Choice, plan: Plan, permits: Permits) -> None:
        execute(self.fleet, self.tape, self.t, self.sight, choice, plan, permits, self.recall, POLICY)

    def _state(self) -> np.ndarray:
        fleet = self.fleet
        return np.stack([fleet.liquidity, fleet.idle, fleet.root_lower, fleet.opened_tick, *fleet.partitions])

    @invariant()
    def executions_do_not_exceed_permits(self) -> None:
        assert getattr(self, "executed", 0) <= getattr(self, "permitted", 0)


@pytest.mark.row("HB-25")
def test_no_interleaving_of_the_clocks_executes_without_a_permit() -> None:
    run_state_machine_as_test(Interleavings, settings=settings(max_examples=60, stateful_step_count=25, deadline=None))


@pytest.mark.row("HB-25")
def test_a_permit_counts_once_for_its_action_tick_market_and_time() -> None:
    fleet, tape = entered(1)
    fleet.tick += 1
    one, state, low = np.array([0]), np.array([EXECUTED]), np.array([False])

    def fresh() -> Permits:
        return issue(fleet, tape, 1, one, np.array([REBALANCE]), state, low, POLICY)

    assert fresh().use(fleet, tape, 1, np.array([REBALANCE])).all()
    permits = fresh()
    assert permits.use(fleet, tape, 1, np.array([REBALANCE])).all()
    assert not permits.use(fleet, tape, 1, np.array([REBALANCE])).any(), "it counts once"
    assert not fresh().use(fleet, tape, 1, np.array([LEAVE])).any()
    assert not fresh().use(fleet, tape, 0, np.array([REBALANCE])).any(), "the market moved"
    assert market_state(tape, 1) == market_state(tape, 2)
    assert not fresh().use(fleet, tape, 2, np.array([REBALANCE])).any(), "it expired"
    kept = fresh()
    fleet.tick += 1
    assert not kept.use(fleet, tape, 1, np.array([REBALANCE])).any(), "another tick"
    assert NO_PERMIT


@pytest.mark.row("HB-25")
@pytest.mark.parametrize("other", [HOLD, LEAVE, ENTER])
def test_an_action_that_was_replaced_after_its_permit_is_neither_executed_nor_paid(other: int) -> None:
    fleet, tape = entered(1)
    fleet.rebalance_threshold[:] = 0.0
    fleet.tick += 1
    sight = observe(fleet, tape, 1, POLICY)
    age_payments(fleet, tape, 1, POLICY)
    one, low, recall = np.array([0]), np.array([False]), nothing_known(1, EntryNames())
    choice, plan = considered(fleet, tape, 1, sight, one, low, recall, POLICY, low, None)
    assert choice.gas_micros[0] > 0
    permits = issue(fleet, tape, 1, one, choice.action, choice.status, low, POLICY)
    choice.action[:] = other
    before = copy.deepcopy(fleet)
    execute(fleet, tape, 1, sight, choice, plan, permits, recall, POLICY)
    for name in ("partitions", "liquidity", "idle", "opened_tick", "fees"):
        assert (getattr(fleet, name) == getattr(before, name)).all(), name
    assert choice.why.tolist() == [0 if other == HOLD else NO_PERMIT]
