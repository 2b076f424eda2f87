"""The heart of a live run: it lets the market's time pass, and wakes for pulses, due ticks and steers.

It knows no golem's state and decides nothing. All clocks run in one coroutine, so no two of them act at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from bardo_pipeline.heartbeat.rhythm.heartbeat_state import HeartbeatState, Steer, Step
from bardo_pipeline.heartbeat.rhythm.pending_ticks import PendingTicks, Taken
from bardo_pipeline.heartbeat.rhythm.pulse_rates import ReadLimit, gamma_seconds, theta_seconds
from bardo_pipeline.market.market import Market
from bardo_pipeline.market.regime import Features
from bardo_pipeline.policy import Policy
from bardo_pipeline.runtime.live.market_clock import MarketClock

SECOND_US = 1_000_000
NEVER = sys.maxsize


class SteerSource(Protocol):
    """Where steers arrive."""

    def arrivals(self, now_us: int) -> list[Steer]:
        """Return the steers that arrived by now and were not returned before."""

    def next_us(self) -> int:
        """Return the next moment at which a steer may arrive, NEVER if it is unknown."""

    def settle(self, steer_ids: Iterable[str]) -> None:
        """Forget steers that are on record."""


@dataclass(frozen=True)
class Reached:
    """A steer that reached the heartbeat: the state at its arrival, and its effect."""

    steer: Steer
    state: str
    effect: str


@dataclass
class Pulses:
    """Pulses of gamma since the last tick."""

    count: int = 0
    cached: int = 0


class Heart:
    """States, clocks and queues of a live run.

    Parameters
    ----------
    lag_seconds : market seconds after which the source has a bar
    perceive : resolves standing predictions by the reading of a bar; returns the number of violations
    """

    def __init__(
        self,
        market: Market,
        features: Features,
        policy: Policy,
        clock: MarketClock,
        steers: SteerSource,
        *,
        lag_seconds: float,
        perceive: Callable[[int], int],
    ) -> None:
        self._market, self._features, self._policy = market, features, policy
        self.clock, self._steers, self._perceive = clock, steers, perceive
        self._lag_us = round(lag_seconds * SECOND_US)
        self.states: dict[str, HeartbeatState] = {}
        self.pending = PendingTicks(policy.clocks.pending_ticks_max)
        self.pulses, self.gamma_seconds = Pulses(), float(policy.clocks.gamma_seconds_max)
        self.is_stopping = self.is_throttled = self.is_dreaming = False
        self.waiting: list[Reached] = []
        self.interrupts: list[Reached] = []
        self.cancels: list[Reached] = []
        self._reads = ReadLimit(policy.clocks)
        self._due_bar, self._gamma_us, self._read_bar = market.bars, NEVER, -1

    def begin(self, after_bar: int) -> None:
        """Start the clocks after the tick at this bar; -1 for the first tick of the market."""
        first = max(after_bar, 0)
        self.clock.start_at(int(self._market.at_us[first]))
        self._due_bar = 0 if after_bar < 0 else self._following(after_bar)
        self._read_bar = after_bar
        self._gamma_us = self.clock.now_us() + round(self.gamma_seconds * SECOND_US)

    def _following(self, bar: int) -> int:
        """Return the bar of the tick after the one at this bar; the number of bars at the end of the market."""
        longest = self._policy.regime.interval_seconds_max
        seconds = theta_seconds(int(self._features.interval_seconds[bar]), longest, throttled=self.is_throttled)
        due_us = self._market.at_us[bar] + seconds * SECOND_US
        return int(np.searchsorted(self._market.at_us, due_us, side="left"))

    @property
    def _theta_us(self) -> int:
        """Moment of the next due tick, NEVER at the end of the market."""
        return NEVER if self._due_bar >= self._market.bars else int(self._market.at_us[self._due_bar]) + self._lag_us

    def pass_over(self, bar: int) -> None:
        """Leave out the ticks up to this bar."""
        self.pending.forget(bar)
        if self._due_bar <= bar:
            self._due_bar = self._following(bar)

    def move(self, golems: Iterable[str], step: Step) -> None:
        """Move golems to a step."""
        for golem_id in golems:
            self.states[golem_id] = self.states.get(golem_id, HeartbeatState()).to(step)

    async def next_tick(self) -> Taken | None:
        """Wait for the next tick; None at the end of the market or when the run stops."""
        self.catch_up()
        while not self.pending:
            if self.is_stopping or self._theta_us == NEVER:
                return None
            await self._wait(self._theta_us)
        if self.is_stopping:
            return None
        taken = self.pending.take()
        self._reads.note(self.clock.now_us())
        self._read_bar = taken.bar
        return taken

    async def stage(self, seconds: float, wakes: Callable[[], bool] = lambda: False) -> None:
        """Let market seconds pass in a stage of a tick, until `wakes`, which is asked after each arrival of a steer."""
        until = self.clock.now_us() + round(seconds * SECOND_US)
        self.catch_up()
        while not (wakes() or self.is_stopping or self.clock.now_us() >= until):
            await self._wait(until)

    async def _wait(self, until: int) -> None:
        await self.clock.sleep_until(min(until, self._gamma_us, self._theta_us, self._steers.next_us()))
        self.catch_up()

    def catch_up(self) -> None:
        """Queue the ticks that are due by now, give gamma its pulse, and receive the steers that arrived."""
        now = self.clock.now_us()
        while self._theta_us <= now:
            self.pending.push(self._due_bar, dreaming=self.is_dreaming)
            self._due_bar = self._following(self._due_bar)
        if self._gamma_us <= now and not self.is_dreaming:
            self._pulse(now)
        for steer in self._steers.arrivals(now):
            self._receive(steer)

    def _pulse(self, now: int) -> None:
        """Read the newest bar, and resolve standing predictions by it if it lies between two ticks."""
        rules, violations = self._policy.clocks, 0
        self.pulses.count += 1
        if self._reads.allows(now):
            self._reads.note(now)
            newest = int(np.searchsorted(self._market.at_us, now - self._lag_us, side="right")) - 1
            is_between = not self.pending and all(state.step is Step.IDLE for state in self.states.values())
            if is_between and self._read_bar < newest < self._due_bar:
                self._read_bar = newest
                violations = self._perceive(newest)
        else:
            self.pulses.cached += 1
        self.gamma_seconds = gamma_seconds(violations, rules, throttled=self.is_throttled)
        self._gamma_us = now + round(self.gamma_seconds * SECOND_US)

    def _receive(self, steer: Steer) -> None:
        """Let a steer reach its golem's present tick, or wait for the next one."""
        state = self.states.get(steer.golem_id, HeartbeatState())
        if state.step is Step.DECIDING:
            self.interrupts.append(Reached(steer, state.name, "interrupts"))
        elif state.accepts_steer and steer.is_high:
            self.cancels.append(Reached(steer, state.name, "cancels"))
        else:
            self.waiting.append(Reached(steer, state.name, "waits"))
        self.states[steer.golem_id] = state.steered(steer)

    def take_pulses(self) -> Pulses:
        """Return the pulses since the last call."""
        pulses, self.pulses = self.pulses, Pulses()
        return pulses

    def settle(self, steer_ids: Iterable[str]) -> None:
        """Forget steers that are on record."""
        self._steers.settle(steer_ids)
