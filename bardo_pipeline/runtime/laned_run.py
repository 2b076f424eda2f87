"""Runs a large fleet in lanes, so that neither its size nor its deaths stop it.

A lane is a part of the fleet at one position of the tape. In each turn a lane steps one cycle, or two if it is behind.
A process of its own completes the deaths (death_process.py). Heirs are born at the end of the cycle of the death, as in
`FleetRun`; they start in a lane that is behind, and join another lane when they have caught up. Golems do not influence
each other, so records and derived rows are those of `FleetRun`; only the order of commits differs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.events.life.events import Born
from bardo_pipeline.heartbeat.fleet import Fleet
from bardo_pipeline.runtime.death_process import DeathProcess
from bardo_pipeline.runtime.fleet_run import FleetRun
from bardo_pipeline.runtime.run_settings import COMMIT_CHUNKS, Ending, Progress, Run
from bardo_pipeline.storage.home import bucket_of
from bardo_pipeline.storage.log.protocol import RUN_WRITER

LANED_GOLEMS_MIN = 129
"""Golems from which on a run has lanes; the deaths of a smaller fleet take about a second."""

LANE_GOLEMS_MAX = 256
"""Golems in a lane; the records of a cycle of so many are written and curated in less than a second."""

BATCH_GOLEMS_MAX = 16
"""Deaths that are completed at a time, which bounds how long the derivation lock is held."""


class _Dead(NamedTuple):
    """A golem whose death is on record, and the end of the cycle in which it died, where its heir is born."""

    golem_id: str
    birth: Born
    stop: int


@dataclass(eq=False)
class _Lane:
    """Golems at one position of the tape.

    learned: changes to their grimoires in the last closed cycle. pending: cycles whose curation is not written.
    is_newborn: no golem of it has lived a tick.
    """

    fleet: Fleet
    start: int
    learned: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    pending: int = 0
    is_newborn: bool = False

    def join(self, other: _Lane) -> None:
        """Append the golems of another lane at the same position."""
        self.fleet.join(other.fleet)
        self.learned |= other.learned
        self.pending = max(self.pending, other.pending)
        self.is_newborn &= other.is_newborn


def has_lanes(run: Run) -> bool:
    """Return whether a run is large enough for lanes and has no feature that depends on the order of lives."""
    depends = run.heirs or run.replicants or run.succeed or run.exchange or run.back_up
    return run.golems >= LANED_GOLEMS_MIN and not depends


class LanedRun(FleetRun):
    """A run in lanes, for which `has_lanes` holds."""

    def __init__(self, context: DerivationContext, run: Run, clock: Callable[[], datetime]) -> None:
        super().__init__(context, run, clock)
        self.segment = max(context.log.last_segment(f"{RUN_WRITER}{run.name}"), 0)  # the order may differ now
        self._lanes: list[_Lane] = []
        self._dead: deque[_Dead] = deque()
        self._batch: list[_Dead] = []
        self._bundles: dict[str, str] = {}
        self._front = 0

    def live(self, on_progress: Callable[[Progress], None] = lambda _: None) -> Ending:
        """Run through the whole market, or until no golem is left."""
        with DeathProcess(self.context) as deaths:
            self._found_lineages()
            while self._lanes or self._dead or self._batch:
                for lane in self._turns():
                    self._step_lane(lane)
                    if deaths.is_busy or not self._commit_lane():  # the process holds the lock during a batch
                        self._complete_deaths(deaths)
                    on_progress(self._progress())
                if not self._lanes:
                    self._complete_deaths(deaths, wait=True)
            self._commit()
        return self._ending()

    def _found_lineages(self) -> None:
        """Found the first generation in lanes of about equal size, each with golems of few buckets."""
        buckets, golems = self.context.home.bucket_count, self.run.golems
        births = sorted(self._first_births(), key=lambda birth: bucket_of(birth[0], buckets))
        lane_count = -(-golems // LANE_GOLEMS_MAX)
        for n in range(lane_count):
            self._begin_lane(births[golems * n // lane_count : golems * (n + 1) // lane_count], 0)

    def _begin_lane(self, births: list[tuple[str, Born]], start: int) -> None:
        self.fleet = Fleet([], [], self.context.policy)
        self._welcome(births, self._boundary(start))
        self._add_lane(_Lane(self.fleet, start, is_newborn=start > 0))

    def _add_lane(self, lane: _Lane) -> None:
        """Add a lane, or join its golems to a lane at the same position that has room for them."""
        for other in self._lanes:
            if other.start == lane.start and other.fleet.size + lane.fleet.size <= LANE_GOLEMS_MAX:
                other.join(lane)
                return
        self._lanes.append(lane)

    def _turns(self) -> Iterator[_Lane]:
        """Yield each lane once, and a second time while it is behind the first one.

        Newborn heirs wait for those of the same cycle whose bundles are not complete, so that all of them share a lane;
        they do not wait if no other golem lives.
        """
        expected = {dead.stop for dead in (*self._dead, *self._batch)}
        ready = [lane for lane in self._lanes if not (lane.is_newborn and lane.start in expected)]
        for lane in ready or list(self._lanes):
            if lane not in self._lanes:  # it joined another lane
                continue
            yield lane
            if lane in self._lanes and lane.start < max(other.start for other in self._lanes):
                yield lane

    def _step_lane(self, lane: _Lane) -> None:
        """Step a lane one cycle and record its deaths; a lane without golems or future ends."""
        start, stop = lane.start, min(lane.start + self.context.policy.curator.cycle_ticks, self.tape.ticks)
        self.fleet, self._learned = lane.fleet, lane.learned
        dead = self._chunk(start, stop, self._apply_retractions(start))
        if dead:
            self._dead += [_Dead(golem_id, birth, stop) for golem_id, birth in self._record_deaths(dead).items()]
        self._lanes.remove(lane)
        if self.fleet.size and stop < self.tape.ticks:
            lane.fleet, lane.start, lane.learned, lane.is_newborn = self.fleet, stop, self._learned, False
            lane.pending += 1
            self._add_lane(lane)

    def _commit_lane(self) -> bool:
        """Write the curation of the first lane that has enough of it; return whether there is one."""
        full = next((lane for lane in self._lanes if lane.pending >= COMMIT_CHUNKS), None)
        if full is not None:
            self._commit(set(full.fleet.golem_ids))
            full.pending = 0
        return full is not None

    def _complete_deaths(self, deaths: DeathProcess, *, wait: bool = False) -> None:
        """Welcome the heirs of one cycle's end from a completed batch, or else begin the next batch.

        wait: wait for the end of the running batch.
        """
        if deaths.has_finished() or (deaths.is_busy and wait):
            self._bundles = deaths.bundles()
        if self._batch and not deaths.is_busy:
            stop = self._batch[0].stop
            lives = {dead.golem_id: dead.birth for dead in self._batch if dead.stop == stop}
            heirs = self._heirs(lives, {g: self._bundles[g] for g in lives if g in self._bundles}, stop)
            if heirs:
                self._begin_lane(heirs, stop)
            self._batch = [dead for dead in self._batch if dead.stop != stop]
        elif self._dead and not deaths.is_busy:
            self._batch = [self._dead.popleft() for _ in range(min(len(self._dead), BATCH_GOLEMS_MAX))]
            gone = {dead.golem_id for dead in self._batch}
            self._commit(gone)  # a bundle is made from the curation of the golem's last cycle
            self.mind.remove_golems(gone)
            self._bequeath(gone)
            deaths.begin([dead.golem_id for dead in self._batch], self.clock())

    def _progress(self) -> Progress:
        self._front = max([self._front, *(lane.start for lane in self._lanes)])
        living = sum(lane.fleet.size for lane in self._lanes)
        counts = (self.births, self.deaths, self.published, self.refused)
        return Progress(self._front, self.tape.ticks, self.records, living, *counts)
