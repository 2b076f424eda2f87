"""Runs golems in real time: each tick waits for its moment, and its record is durable before the next tick.

Decisions, curation, deaths and succession are those of a simulated run (runtime/fleet_run.py). A run that was
killed lives its recorded ticks again without waiting, compares them with the record, and goes on.
Source: HB S7, S12, "The Adaptive Clock"; docs/adr/0113.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import numpy as np
import pyarrow as pa

from bardo_pipeline.arrays import BoolArray, Int64Array
from bardo_pipeline.clock import moment_at
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.events.life.events import Born, Steered, life_event
from bardo_pipeline.events.record.arrow_columns import rows_of_other_golems
from bardo_pipeline.events.record.arrow_schema import to_models
from bardo_pipeline.events.record.model import DecisionCycleRecord
from bardo_pipeline.heartbeat.probes import Probes
from bardo_pipeline.heartbeat.recall_table import Recall
from bardo_pipeline.heartbeat.records.build_records import records_of
from bardo_pipeline.heartbeat.rhythm.heartbeat_state import HeartbeatState, Step
from bardo_pipeline.heartbeat.rhythm.pending_ticks import Taken
from bardo_pipeline.heartbeat.rhythm.pulse_rates import Resolution, resolve
from bardo_pipeline.heartbeat.rhythm.speculation import CoOccurrence, Reads, schedule_reads
from bardo_pipeline.heartbeat.step import Interventions, look
from bardo_pipeline.market.market import LENDER
from bardo_pipeline.market.regime import features
from bardo_pipeline.market.tick_series import tape_of
from bardo_pipeline.runtime.entry_counts import count_entries
from bardo_pipeline.runtime.fleet_run import FleetRun, lists_by_place
from bardo_pipeline.runtime.live.heart import Heart, Reached, SteerSource
from bardo_pipeline.runtime.live.market_clock import MarketClock
from bardo_pipeline.runtime.live.measurements import Measurements
from bardo_pipeline.runtime.live.recorded_life import RecordedLife
from bardo_pipeline.runtime.live.tick_attempt import READS, Attempt, Scene, attempt
from bardo_pipeline.runtime.run_settings import Ending, Run
from bardo_pipeline.storage.journal.async_event_writer import AsyncEventWriter

DAY_US = 86_400_000_000


@dataclass(frozen=True)
class Latency:
    """Market seconds that the stages of a tick take, besides the machine's own time, and the lag of the source."""

    reading: float = 0.0
    deciding: float = 0.0
    simulating: float = 0.0
    validating: float = 0.0
    call: float = 0.0
    source: float = 0.0


@dataclass
class _Delta:
    """A curator's cycle that is being lived. causes: of death by golem."""

    start: int
    recall: Recall
    reorged: BoolArray | None
    records: list[pa.Table] = field(default_factory=list)
    causes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class LiveTick:
    """A tick that was lived: its records, and figures for a screen."""

    at: datetime
    records: pa.Table
    states: Mapping[str, HeartbeatState]
    owners: Mapping[str, str]
    spent_share: Mapping[str, float]
    is_replay: bool


class LiveRun(FleetRun):
    """A run in real time.

    Parameters
    ----------
    clock : recording times
    market_clock : time of the market
    on_tick : called after each tick whose record is durable
    """

    def __init__(
        self,
        context: DerivationContext,
        run: Run,
        clock: Callable[[], datetime],
        *,
        market_clock: MarketClock,
        steers: SteerSource,
        latency: Latency = Latency(),
        on_tick: Callable[[LiveTick], None] = lambda _: None,
    ) -> None:
        super().__init__(context, run, clock)
        if run.replicants or run.steers:
            raise ConfigError("a live run takes its steers while it lives and sends no replicants: leave both out")
        self._features, self._schedule = features(run.market, context.policy), self.tape
        self._latency, self._on_tick = latency, on_tick
        self.heart = Heart(
            run.market, self._features, context.policy, market_clock, steers, lag_seconds=latency.source,
            perceive=self._perceive,
        )  # fmt: skip
        self._bars: list[int] = []
        self._past, self._writers = RecordedLife(), dict[str, AsyncEventWriter]()
        self._delta: _Delta | None = None
        self._delta_before = 0
        self._seen: list[tuple[int, Resolution]] = []
        self._calls, self._reads = dict[str, CoOccurrence](), dict[str, Reads]()
        self._loop: asyncio.AbstractEventLoop

    def stop(self) -> None:
        """End the run after the present tick."""
        self.heart.is_stopping = True

    async def beat(self) -> Ending:
        """Live through the market, until no golem is left or the run is stopped; all records are durable at the end."""
        self._loop = asyncio.get_running_loop()
        try:
            await asyncio.to_thread(self._found_lineages)
            is_live = False
            while self.fleet.size and not self.heart.is_stopping:
                at_us = self._past.next_moment(self._last_us)
                if at_us is not None and self._delta is None and await asyncio.to_thread(self._live_cycle_again):
                    await self._dream()
                    continue
                if at_us is not None:
                    taken: Taken | None = self._past.taken(at_us, self.run.market.at_us)
                else:
                    if not is_live:
                        self.heart.begin(self._bars[-1] if self._bars else -1)
                    is_live = True
                    taken = await self.heart.next_tick()
                if taken is None:
                    break
                await self._tick(taken, is_replay=at_us is not None)
                assert self._delta is not None
                is_closed = len(self._bars) - self._delta.start == self.context.policy.curator.cycle_ticks
                if is_closed or not self.fleet.alive.any():
                    self._pass_over(self._delta.start + self.context.policy.curator.cycle_ticks)
                    await self._dream()
            if self._delta is not None and not self.heart.is_stopping:
                await self._dream()
            await asyncio.to_thread(self._commit)
        finally:
            for writer in self._writers.values():
                await writer.close()
            self._writers.clear()
        return self._ending()

    @property
    def _last_us(self) -> int:
        """Moment of the last tick, -1 before the first."""
        return int(self.run.market.at_us[self._bars[-1]]) if self._bars else -1

    def _welcome(self, births: list[tuple[str, Born]], at: datetime) -> None:
        super()._welcome(births, at)
        golem_ids = [golem_id for golem_id, _ in births]
        asyncio.run_coroutine_threadsafe(self._open_writers(golem_ids), self._loop).result()
        self._past.read(self.context, golem_ids)

    async def _open_writers(self, golem_ids: Sequence[str]) -> None:
        """Open the writers of newborn golems; the first one drains what a killed run left."""
        for golem_id in golem_ids:
            self._writers[golem_id] = await AsyncEventWriter.open(
                self.context.home, golem_id, clock=self._acceptance_clock, policy=self.context.policy,
                writer=f"live-{self.run.name}", drain="thread",
            )  # fmt: skip

    def _acceptance_clock(self) -> datetime:
        """Return the time of recording, or the market's where that is later: a synthetic market may lie ahead."""
        return max(self.clock(), moment_at(max(self._last_us, int(self.run.market.at_us[0]))))

    # a tick

    async def _tick(self, taken: Taken, *, is_replay: bool) -> None:
        began_ms, heart = self.heart.clock.real_ms(), self.heart
        self._follow(taken.bar)
        if self._delta is None:
            await asyncio.to_thread(self._begin_delta)
        delta, at_us = self._delta, int(self.run.market.at_us[taken.bar])
        assert delta is not None
        living = [g for g, alive in zip(self.fleet.golem_ids, self.fleet.alive, strict=True) if alive]
        heart.move(living, Step.OBSERVING)
        killed = self._past.killed(at_us) if is_replay else self.run.killed()
        scene = await asyncio.to_thread(self._scene, taken, delta, killed)
        reached = self._past.reached(at_us) if is_replay else self._take_waiting(living)
        sent = self._past.calls_sent(at_us) if is_replay else {}
        tried = await asyncio.to_thread(attempt, self.fleet, scene, reached, sent)
        heart.move(living, Step.ANALYZING)
        heart.move(living, Step.GATING)
        if not is_replay:
            tried, sent = await self._deliberate(tried, scene, reached)
        states = dict(heart.states)
        heart.move([g for g in living if states[g].step is Step.EXECUTING], Step.VERIFYING)
        heart.move([g for g in living if heart.states[g].step is not Step.REFLECTING], Step.REFLECTING)
        self.fleet = tried.fleet
        delta.causes |= {self.fleet.golem_ids[i]: int(tried.cause[i]) for i in np.flatnonzero(tried.cause >= 0)}
        self._bars.append(taken.bar)
        records = await asyncio.to_thread(self._records, tried, reached)
        self._throttle()
        if is_replay:
            records = self._past.check(self._measured(records, taken, reached, sent, began_ms))
        else:
            records = self._measured(records, taken, reached, sent, began_ms)
        self._learn_calls(records)
        new = rows_of_other_golems(records, self._past.at(at_us))
        await self._write(new, reached)
        delta.records.append(records)
        self.records += records.num_rows
        heart.move(living, Step.IDLE)
        owners = {g: b.owner_id for g, b in zip(self.fleet.golem_ids, self.fleet.births, strict=True)}
        self._on_tick(LiveTick(moment_at(at_us), records, states, owners, self._shares(), is_replay))

    def _live_cycle_again(self) -> bool:
        """Live the next recorded cycle in one pass, if nothing interrupted it; return whether it was lived."""
        start, span = len(self._bars), self.context.policy.curator.cycle_ticks
        moments = self._past.plain_cycle(self._last_us, span, self.fleet.golem_ids)
        if moments is None or self.tape.at_us[start : start + span].tolist() != moments:
            return False
        self._begin_delta()
        delta, before = self._delta, self.fleet
        assert delta is not None
        self.fleet = before.copied()
        first = None if delta.reorged is None else replace(Interventions.none(before.size), reorg=delta.reorged)
        chunk, cause = self.step_chunk(
            start, start + span, lambda t: first if t == start else None, oracle=self.run.oracle
        )
        if (cause >= 0).any():  # the ticks up to a death are lived one by one
            self.fleet = before
            return False
        records = self._past.check(records_of(replace(chunk, mutations=self._mutations(chunk.out))))
        self._bars += self.tape.bar[start : start + span].tolist()
        self._throttle()
        self._learn_calls(records)
        delta.records.append(records)
        self.records += records.num_rows
        return True

    def _follow(self, bar: int) -> None:
        """Let the tape tick at this bar next; if ticks were dropped, it covers their bars too."""
        t = len(self._bars)
        if t < self.tape.ticks and self.tape.bar[t] == bar:
            return
        later = self._schedule.bar[self._schedule.bar > bar]
        bars = np.concatenate([np.array([*self._bars, bar], np.int64), later])
        self.tape = tape_of(self.run.market, self.context.policy, bars, self._features)

    def _pass_over(self, stop: int) -> None:
        """Let the rest of a cycle pass without a golem, because heirs start with the next one."""
        passed = self.tape.bar[len(self._bars) : stop].tolist()
        if passed:
            self._bars += passed
            self.heart.pass_over(passed[-1])

    def _begin_delta(self) -> None:
        start = len(self._bars)
        self._join_waiting(start)
        reorged = self._apply_retractions(start)
        # Another process may record a receipt of the present delta while the delta lives. A resumed run would hear it
        # earlier than the run before, so a receipt is heard one delta later.
        self._hear_others(start, self.moment(self._delta_before))
        self._delta_before = start
        self._delta = _Delta(start, self.recall_at(start), reorged)

    def _scene(self, taken: Taken, delta: _Delta, killed: bool) -> Scene:
        """Return the inputs of all attempts of this tick; the probes of dropped ticks are those of the schedule."""
        t, policy = len(self._bars), self.context.policy
        dropped: list[Probes] = []
        for bar in taken.dropped:
            place = int(np.searchsorted(self._schedule.bar, bar))
            dropped.append(look(self.fleet, self._schedule, place, recall=delta.recall, policy=policy, killed=killed))
        reorged = delta.reorged if t == delta.start else None
        return Scene(
            self.tape, t, delta.recall, policy, self.context.derivation_id, tuple(dropped), reorged, killed,
            self.run.oracle,
        )  # fmt: skip

    def _take_waiting(self, living: Sequence[str]) -> list[Reached]:
        """Return the steers that wait for this tick; those of golems that do not live here are settled."""
        waiting, self.heart.waiting = self.heart.waiting, []
        taken = [
            each for each in waiting
            if each.steer.steer_id not in self._past.steer_ids and each.steer.golem_id in living
        ]  # fmt: skip
        self.heart.settle([each.steer.steer_id for each in waiting if each not in taken])
        return taken

    async def _deliberate(self, tried: Attempt, scene: Scene, reached: list[Reached]) -> tuple[Attempt, dict[str, int]]:
        """Let the golems that passed the gate decide, simulate, validate and execute; steers that arrive take effect.

        Return the tick, and the golems whose execution was cut with the number of calls that were sent.
        """
        heart, latency = self.heart, self._latency
        thinkers = tried.thinkers
        if not thinkers:
            return tried, {}
        heart.move(thinkers, Step.RETRIEVING)
        heart.move(thinkers, Step.DECIDING)
        await self._read(tried, thinkers)
        await heart.stage(latency.deciding, lambda: bool(heart.interrupts))
        while heart.interrupts:
            reached += heart.interrupts
            heart.interrupts = []
            tried = await asyncio.to_thread(attempt, self.fleet, scene, reached, {})
            await heart.stage(latency.deciding, lambda: bool(heart.interrupts))
        deep = [g for g in tried.simulated if g in thinkers]
        heart.move(deep, Step.SIMULATING)
        heart.move([g for g in thinkers if g not in deep], Step.VALIDATING)
        await heart.stage(latency.simulating)
        heart.move(deep, Step.VALIDATING)
        await heart.stage(latency.validating)
        cut = await self._execute(tried.calls)
        for each in heart.cancels:
            is_cut = each.steer.golem_id in cut
            (reached if is_cut else heart.waiting).append(each if is_cut else replace(each, effect="waits"))
        heart.cancels = []
        if cut:
            tried = await asyncio.to_thread(attempt, self.fleet, scene, reached, cut)
        return tried, cut

    async def _read(self, tried: Attempt, thinkers: Sequence[str]) -> None:
        """Let golems read what they deliberate about; likely reads are prefetched."""
        asked, rules = tried.reads, self.context.policy.clocks
        self._reads = {
            g: schedule_reads(asked[g], self._calls.get(g, CoOccurrence(rules)), READS, self._latency.reading)
            for g in thinkers
        }  # fmt: skip
        await self.heart.stage(max(each.seconds for each in self._reads.values()), lambda: bool(self.heart.interrupts))

    async def _execute(self, calls: Mapping[str, int]) -> dict[str, int]:
        """Send the calls of each golem in order; return the golems whose calls ended early, with the number sent.

        A call in flight is finished, because a chain takes nothing back. The kill switch restricts all calls.
        """
        heart = self.heart
        heart.move(calls, Step.EXECUTING)
        for each in heart.cancels:
            golem_id = each.steer.golem_id
            heart.states[golem_id] = heart.states[golem_id].steered(each.steer)
        sent = dict.fromkeys(calls, 0)
        for number in range(max(calls.values(), default=0)):
            if self.run.killed():
                for golem_id in calls:
                    heart.states[golem_id] = heart.states[golem_id].restricted("kill switch")
            sending = [g for g, count in calls.items() if number < count and heart.states[g].sends_calls]
            if not sending:
                break
            await heart.stage(self._latency.call)
            for golem_id in sending:
                sent[golem_id] += 1
        return {golem_id: sent[golem_id] for golem_id, count in calls.items() if sent[golem_id] < count}

    # the record

    def _records(self, tried: Attempt, reached: Sequence[Reached]) -> pa.Table:
        """Build the records of the tick without its measurements."""
        chunk, rows = tried.chunk, dict[int, list[dict[str, str]]]()
        for each in reached:
            steer = each.steer
            row = {"intervention_id": steer.steer_id, "severity": steer.severity, "intent": steer.intent}
            kind = "steer" if steer.is_high else "follow_up"
            rows.setdefault(self.fleet.golem_ids.index(steer.golem_id), []).append(row | {"kind": kind})
        is_first = self._delta is not None and len(self._bars) - 1 == self._delta.start
        mutations = self._mutations(chunk.out) if is_first else None
        in_force = lists_by_place("active_interventions", rows, chunk.out)
        return records_of(replace(chunk, mutations=mutations, interventions=in_force))

    def _measured(
        self, records: pa.Table, taken: Taken, reached: Sequence[Reached], sent: Mapping[str, int], began_ms: int
    ) -> pa.Table:
        """Add the measurements of the tick to its records."""
        heart, bars_us = self.heart, self.run.market.at_us
        seen, self._seen = self._seen, []
        reads, self._reads = self._reads, {}
        measurements = Measurements(
            taken, [int(bars_us[bar]) for bar in taken.dropped], reached, sent, heart.take_pulses(),
            heart.gamma_seconds, self._theta_seconds(taken.bar), heart.is_throttled,
            heart.clock.real_ms() - began_ms, seen, reads, self._readings(taken.bar),
        )  # fmt: skip
        return measurements.added_to(records, self.fleet.golem_ids)

    def _readings(self, bar: int) -> dict[str, str]:
        """Return the result of each read at a bar, in words."""
        market = self.run.market
        return {
            "read_price": f"{market.price[bar]:.6g} {market.pair}", "read_gas": f"{market.gas_gwei[bar]:.4g} gwei",
            "read_position": market.protocol, "read_loan": LENDER, "read_liquidity": f"{market.liquidity[bar]:.4g}",
        }  # fmt: skip

    def _learn_calls(self, records: pa.Table) -> None:
        """Learn which calls follow which from the tools that ran."""
        for golem_id, pipeline in zip(*(records[n].to_pylist() for n in ("golem_id", "pipeline")), strict=True):
            tools = [each["tool"] for each in (pipeline or {}).get("tool_runs") or ()]
            self._calls.setdefault(golem_id, CoOccurrence(self.context.policy.clocks)).note(tools)

    def _theta_seconds(self, bar: int) -> int:
        longest = self.context.policy.regime.interval_seconds_max
        return longest if self.heart.is_throttled else int(self._features.interval_seconds[bar])

    async def _write(self, records: pa.Table, reached: Sequence[Reached]) -> None:
        """Record the steers, append the records, and return when all are durable."""
        models = await asyncio.to_thread(to_models, records, DecisionCycleRecord)
        ticks = {model.golem_id: model.tick for model in models}
        at = self.moment(len(self._bars) - 1)
        events = [
            life_event(each.steer.golem_id, at, Steered(
                intervention_id=each.steer.steer_id, due_tick=ticks[each.steer.golem_id],
                severity="high" if each.steer.is_high else "low", intent=each.steer.intent,
            ))
            for each in reached if each.steer.golem_id in ticks
        ]  # fmt: skip
        if events:
            await asyncio.to_thread(self.context.log.record, events, self.clock())
        await asyncio.gather(*(self._writers[model.golem_id].append(model) for model in models))
        self.heart.settle([each.steer.steer_id for each in reached])

    # clocks

    def _perceive(self, bar: int) -> int:
        """Resolve the standing predictions by a bar between two ticks; return the most violations of a golem."""
        market = self.run.market
        seen = resolve(self.fleet.expected, self.fleet.half, float(market.price[bar]), float(market.gas_gwei[bar]))
        self._seen.append((int(market.at_us[bar]), seen))
        return int(seen.violated.sum(axis=0).max(initial=0))

    def _throttle(self) -> None:
        """Slow the clocks down near the daily budget of a golem."""
        most = max(self._shares().values(), default=0.0)
        self.heart.is_throttled = most >= self.context.policy.clocks.throttled_share

    def _shares(self) -> dict[str, float]:
        """Return the spent share of the daily budget of each golem."""
        fleet, budget = self.fleet, max(self.context.policy.gateway.daily_budget_micros, 1)
        spent = np.where(fleet.spent_day == self._last_us // DAY_US, fleet.day_spent, 0) / budget
        return dict(zip(fleet.golem_ids, spent.tolist(), strict=True))

    # the end of a cycle

    async def _dream(self) -> None:
        """Close the cycle: curate, dream, complete deaths, welcome heirs. The heartbeat is suspended meanwhile."""
        heart = self.heart
        heart.move(self.fleet.golem_ids, Step.DREAMING)
        heart.is_dreaming = True
        delta, self._delta = self._delta, None
        assert delta is not None
        try:
            for golem_id, writer in list(self._writers.items()):
                await (self._close_writer(golem_id) if golem_id in delta.causes else writer.record())
            await asyncio.to_thread(self._close_delta, delta)
        finally:
            heart.catch_up()
            heart.is_dreaming = False
        for golem_id in delta.causes:
            heart.states.pop(golem_id, None)
        heart.states = {golem_id: HeartbeatState() for golem_id in self.fleet.golem_ids}

    async def _close_writer(self, golem_id: str) -> None:
        await self._writers.pop(golem_id).close()

    def _close_delta(self, delta: _Delta) -> None:
        stop = len(self._bars)
        records = pa.concat_tables(delta.records).combine_chunks()
        place = {golem_id: i for i, golem_id in enumerate(self.fleet.golem_ids)}
        golem: Int64Array = np.array([place[g] for g in records["golem_id"].to_pylist()], np.int64)
        records = records.take(pa.array(np.lexsort((records["tick"].to_numpy(), golem))))
        self.entries += count_entries(records)
        self._curate(records, delta.causes)
        self._end_chunk(delta.start, stop, delta.causes)
