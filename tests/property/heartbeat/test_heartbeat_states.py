"""Laws of a heartbeat in real time: states, steers, waiting ticks, intervals and reads, beside models of their own."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bardo_pipeline.heartbeat.probes import ABSENT, Probes
from bardo_pipeline.heartbeat.rhythm.heartbeat_state import NEXT, HeartbeatState, Steer, Step
from bardo_pipeline.heartbeat.rhythm.pending_ticks import PendingTicks, merged
from bardo_pipeline.heartbeat.rhythm.pulse_rates import MINUTE_US, ReadLimit, gamma_seconds, resolve, theta_seconds
from bardo_pipeline.heartbeat.rhythm.speculation import CoOccurrence, schedule_reads
from bardo_pipeline.policy import Policy

RULES = Policy().clocks
PIPELINE = "idle observing analyzing gating retrieving deciding simulating validating executing verifying reflecting"
ACCEPTING = {"deciding", "simulating", "validating", "executing"}
WAYS_ON = {
    "idle": "observing dreaming", "observing": "analyzing", "analyzing": "gating", "gating": "retrieving reflecting",
    "retrieving": "deciding", "deciding": "simulating validating", "simulating": "validating",
    "validating": "executing reflecting", "executing": "verifying", "verifying": "reflecting", "reflecting": "idle",
    "dreaming": "idle",
}  # fmt: skip
STEPS, HIGHS = st.sampled_from(list(Step)), st.booleans()


class Heartbeat(RuleBasedStateMachine):
    """A heartbeat under steers, constraints and time, beside a model in plain words."""

    def __init__(self) -> None:
        super().__init__()
        self.state, self.step, self.sends, self.words = HeartbeatState(), "idle", True, ""
        self.number = 0

    @rule(step=STEPS)
    def goes_on(self, step: Step) -> None:
        if str(step) not in WAYS_ON[self.step].split():
            with pytest.raises(AssertionError):
                self.state.to(step)
            return
        self.state, self.step, self.sends, self.words = self.state.to(step), str(step), True, ""

    @rule(is_high=HIGHS)
    def is_steered(self, is_high: bool) -> None:
        self.number += 1
        steer = Steer(f"s-{self.number}", "g-1", is_high, "hold")
        if self.step == "deciding":
            self.words = "interrupted"
        if self.step == "executing" and is_high and self.sends:
            self.sends, self.words = False, "cancel_pending"
        self.state = self.state.steered(steer)
        if self.words == "interrupted":
            assert self.state.cause == steer.steer_id

    @precondition(lambda self: self.step == "executing")
    @rule()
    def meets_a_constraint(self) -> None:
        self.state, self.sends, self.words = self.state.restricted("kill switch"), False, "restricted"

    @invariant()
    def agrees(self) -> None:
        assert self.state.name == (f"{self.step}.{self.words}" if self.words else self.step)
        assert self.state.accepts_steer == (self.step in ACCEPTING)
        assert self.state.sends_calls == (self.step == "executing" and self.sends)


TestHeartbeat = pytest.mark.row("HB-11")(Heartbeat.TestCase)
TestHeartbeat.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


def test_the_eleven_states_lead_through_the_pipeline_and_back() -> None:
    assert {str(step) for step in Step} == {*PIPELINE.split(), "dreaming"}
    assert {str(step): " ".join(sorted(map(str, following))) for step, following in NEXT.items()} == {
        step: " ".join(sorted(words.split())) for step, words in WAYS_ON.items()
    }


class Queue(RuleBasedStateMachine):
    """Due ticks that wait, beside plain lists."""

    def __init__(self) -> None:
        super().__init__()
        self.pending, self.bars, self.lost = PendingTicks(3), list[int](), list[int]()
        self.next_bar, self.deepest, self.dreamt = 0, 0, False

    @rule(dreaming=st.booleans())
    def is_due(self, dreaming: bool) -> None:
        self.pending.push(self.next_bar, dreaming=dreaming)
        if len(self.bars) == 3:
            self.lost.append(self.bars.pop(0))
            self.dreamt |= dreaming
        self.bars.append(self.next_bar)
        self.next_bar += 1
        self.deepest = max(self.deepest, len(self.bars))

    @precondition(lambda self: self.bars)
    @rule()
    def is_taken(self) -> None:
        taken = self.pending.take()
        assert taken == (self.bars.pop(0), self.deepest, tuple(self.lost), self.dreamt)
        self.lost, self.deepest, self.dreamt = [], len(self.bars), False

    @invariant()
    def holds_three_at_most(self) -> None:
        assert len(self.pending) == len(self.bars) <= 3


TestQueue = pytest.mark.row("HB-18")(Queue.TestCase)
TestQueue.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)

SEVERITIES = st.lists(st.lists(st.floats(0.0, 0.05) | st.just(float("nan")), min_size=12, max_size=12), max_size=4)


@given(SEVERITIES)
def test_the_worst_reading_of_each_probe_survives_dropped_ticks(columns: list[list[float]]) -> None:
    probes = [Probes(np.array(column)[:, None], Policy().probes) for column in [[0.0] * 12, *columns]]
    together = merged(probes[0], probes[1:])
    worst = np.max([each.severity for each in probes], axis=0)
    assert (together.severity == worst).all()
    for probe in range(12):
        assert any(
            each.severity[probe] == worst[probe] and each.value[probe] == together.value[probe] for each in probes
        ) or (worst[probe] == ABSENT)


@given(st.integers(0, 100), st.booleans())
def test_gamma_quickens_with_violations_within_its_bounds(violations: int, throttled: bool) -> None:
    seconds = gamma_seconds(violations, RULES, throttled=throttled)
    assert seconds == (15.0 if throttled else max(5.0, 15.0 / (1.0 + 0.3 * violations)))
    assert theta_seconds(30, 120, throttled=throttled) == (120 if throttled else 30)


@pytest.mark.row("HB-21")
def test_gamma_has_the_rates_of_the_source() -> None:
    rates = [round(gamma_seconds(number, RULES), 3) for number in (0, 1, 2, 6, 7)]
    assert rates == [15.0, 11.538, 9.375, 5.357, 5.0]


@given(st.lists(st.tuples(st.integers(0, 90_000_000), st.booleans()), max_size=80))
def test_reads_within_a_minute_stay_within_the_limit(script: list[tuple[int, bool]]) -> None:
    limit, now, read = ReadLimit(RULES), 0, list[int]()
    for wait, is_tick in script:
        now += wait
        recent = [at for at in read if at > now - MINUTE_US]
        assert limit.allows(now) == (len(recent) < RULES.reads_per_minute_max)
        if is_tick or limit.allows(now):
            limit.note(now)
            read.append(now)


@given(st.floats(1.0, 5_000.0), st.floats(0.1, 100.0), st.floats(1.0, 5_000.0))
def test_a_reading_outside_the_interval_violates_the_prediction(expected: float, half: float, price: float) -> None:
    seen = resolve(np.array([[expected], [np.nan], [1.0]]), np.array([[half], [1.0], [1.0]]), price, 30.0)
    assert seen.violated[:, 0].tolist() == [abs(price - expected) > half, False]  # no prediction of gas, no violation


TOOLS = st.sampled_from(["read_price", "read_gas", "read_position", "swap"])
READ_TOOLS = ("read_price", "read_gas", "read_position")


@pytest.mark.row("HB-12")
@given(st.lists(st.lists(TOOLS, max_size=6), max_size=30))
def test_a_golem_learns_which_read_follows_and_prefetches_no_write(ticks: list[list[str]]) -> None:
    learned, model = CoOccurrence(RULES), dict[str, list[list[Any]]]()
    for tools in [*ticks, *[["read_price", "swap"]] * 12]:
        learned.note(tools)
        for first, then in pairwise(tools):  # the code of HB S8, line by line
            entry = model.setdefault(first, [])
            pair = next((pair for pair in entry if pair[0] == then), None)
            if pair is not None:
                pair[1] = pair[1] * 0.9 + 0.1
            else:
                entry.append([then, 0.1])
            for other in entry:
                if other[0] != then:
                    other[1] *= 0.99
            model[first] = [pair for pair in entry if pair[1] > 0.01]
    for tool in {*READ_TOOLS, "swap"}:
        assert learned.chances(tool) == pytest.approx(dict(model.get(tool, [])))
        likely = {name for name, chance in learned.chances(tool).items() if chance >= 0.7 and name in READ_TOOLS}
        assert set(learned.predicted(tool, READ_TOOLS)) == likely
    assert learned.chances("read_price")["swap"] >= 0.7
    assert "swap" not in learned.predicted("read_price", READ_TOOLS)


@given(st.lists(TOOLS, max_size=6, unique=True), st.lists(st.lists(TOOLS, max_size=6), max_size=40))
def test_prefetching_never_delays_a_read(tools: list[str], ticks: list[list[str]]) -> None:
    learned = CoOccurrence(RULES)
    for each in ticks:
        learned.note(each)
    reads = schedule_reads(tools, learned, READ_TOOLS, 2.0)
    assert [run.tool for run in reads.runs] == tools
    assert reads.seconds <= 2.0 * len(tools)
    assert all(run.seconds <= 2.0 for run in reads.runs)
    assert reads.hits <= reads.prefetched
    assert all(run.prefetched or run.seconds == 2.0 for run in reads.runs)
