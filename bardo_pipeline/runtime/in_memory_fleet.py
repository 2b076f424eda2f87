"""A brood: golems that live through a stretch of a tape and learn as they go, in memory.

The same steps, records and curation as those of a run (living.py), without a log: nothing is kept but what they know,
what they did and how they ended. A golem's life depends on no other's, so those that are to be compared live side by
side. Source: issue 5 ("Proof of worth").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.state.decision_log import DECISION_SCHEMA
from bardo_pipeline.curator.state.grimoire_state import to_table
from bardo_pipeline.derivation.curation.curator_state import CuratorState
from bardo_pipeline.derivation.incremental.record_queries import cycle_of
from bardo_pipeline.events.life.events import Born
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA
from bardo_pipeline.heartbeat.decide import REBALANCE
from bardo_pipeline.heartbeat.fleet import Fleet
from bardo_pipeline.heartbeat.recall_table import EntryNames, recall_of
from bardo_pipeline.heartbeat.records.build_records import records_of
from bardo_pipeline.heartbeat.records.chunk_rows import Chunk
from bardo_pipeline.heartbeat.records.tick_buffers import Buffers
from bardo_pipeline.heartbeat.step import step
from bardo_pipeline.market.tick_series import Tape
from bardo_pipeline.mortality.vitality import CAUSES
from bardo_pipeline.policy import Policy


class Start(NamedTuple):
    """How one golem begins: its name and birth, whose luck it has, and what its forecasts begin with.

    luck: a number that its draws come from; golems with the same one meet the same chances.
    """

    golem_id: str
    birth: Born
    luck: np.uint64
    forecast_variance: tuple[float | None, ...] = (None, None, None)
    attention: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())


@dataclass
class Ledger:
    """What golems spent and did, [golems]: micro-dollars for thought and gas, thoughts by tier, times re-centred and
    times that a warning stopped it."""

    thought: np.ndarray
    gas: np.ndarray
    shallow: np.ndarray
    deep: np.ndarray
    moved: np.ndarray
    warned: np.ndarray

    @classmethod
    def empty(cls, size: int) -> Ledger:
        """Nothing yet."""
        return cls(*(np.zeros(size, np.int64) for _ in range(6)))

    def add(self, out: Buffers) -> None:
        """Take in a chunk of ticks."""
        self.thought += out["inference"].sum(axis=1)
        self.gas += out["gas"].sum(axis=1)
        self.shallow += (out["tier"] == 1).sum(axis=1)
        self.deep += (out["tier"] == 2).sum(axis=1)
        if "choice_action" in out:
            moved = out["choice_action"] == REBALANCE
            self.moved += (moved & (out["choice_status"] == 0)).sum(axis=1)
            self.warned += (moved & (out["choice_blocker"] >= 0) & (out["choice_status"] == 1)).sum(axis=1)


@dataclass
class Lives:
    """How golems lived, [golems]: ticks, cause of death (a position in CAUSES, -1 for who lives), the tape's position
    of the last tick, worth (net asset value and credits) at the end and at the start in micro-dollars, and the ledger.

    course: worth after each cycle, [cycles, golems], of the dead as they died. forecast_variance [3, golems], attention
    [2, situations, golems]: what their learning came to.
    """

    golem_ids: tuple[str, ...]
    ticks: np.ndarray
    cause: np.ndarray
    course: np.ndarray
    last_at: np.ndarray
    worth: np.ndarray
    first_worth: np.ndarray
    forecast_variance: np.ndarray
    attention: np.ndarray
    ledger: Ledger

    def returns_at(self, ticks: np.ndarray, cycle_ticks: int) -> np.ndarray:
        """Worth after so many ticks of life, [golems], to the cycle, over worth at the start, less one."""
        cycle = np.minimum((ticks + cycle_ticks - 1) // cycle_ticks, len(self.course)) - 1
        worth: np.ndarray = self.course[cycle, np.arange(len(ticks))]
        return worth / self.first_worth - 1.0

    @property
    def returns(self) -> np.ndarray:
        """Worth at the end over worth at the start, less one."""
        return self.worth / self.first_worth - 1.0

    def some(self, part: slice) -> Lives:
        """Those of some golems."""
        ledger = Ledger(*(column[part] for column in vars(self.ledger).values()))
        ticks, cause, last_at, worth, first = (
            c[part] for c in (self.ticks, self.cause, self.last_at, self.worth, self.first_worth)
        )
        return Lives(
            self.golem_ids[part], ticks, cause, self.course[:, part], last_at, worth, first,
            self.forecast_variance[:, part], self.attention[..., part], ledger,
        )  # fmt: skip

    def causes(self) -> list[str]:
        """What each died of."""
        return [CAUSES[code] if code >= 0 else "alive" for code in self.cause.tolist()]


@dataclass
class Brood:
    """Golems born together at a position of a tape. remember: keep every state that their entries were in."""

    tape: Tape
    start: int
    starts: Sequence[Start]
    policy: Policy
    remember: bool = False
    mind: CuratorState = field(init=False)
    fleet: Fleet = field(init=False)
    ledger: Ledger = field(init=False)
    _ever: list[pa.Table] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Form the fleet; nobody knows anything."""
        self.mind, self.ledger = CuratorState(self.policy), Ledger.empty(len(self.starts))
        self.fleet = Fleet([s.golem_id for s in self.starts], [s.birth for s in self.starts], self.policy)
        self.fleet.seed = np.array([s.luck for s in self.starts], np.uint64)
        for i, one in enumerate(self.starts):
            self.fleet.begin_with(i, one.forecast_variance, one.attention)
        self._names = EntryNames()

    def begin(self, inherited: pa.Table) -> None:
        """Give them what they know at birth: ENTRY_SCHEMA of these golems; who has no row there knows nothing."""
        at = self._moment(self.start)
        for one in self.starts:
            mine = inherited.filter(pc.equal(inherited["golem_id"], one.golem_id))
            base = one.birth.traits.rebalance_threshold
            self.mind.begin_life(one.golem_id, at=at, base_threshold=base, inherited=mine, bundle_hash="-")
        self._keep()

    def live(self, stop: int) -> Lives:
        """Live until a position of the tape, or until nobody is left."""
        span, fleet = self.policy.curator.cycle_ticks, self.fleet
        self._see()
        cause, course = np.full(fleet.size, -1), []
        for start in range(self.start, stop, span):
            died = self._chunk(start, min(start + span, stop))
            cause = np.where(died >= 0, died, cause)
            course.append(np.where(fleet.alive, np.floor(fleet.nav).astype(np.int64), fleet.final_nav) + fleet.credits)
            if not fleet.alive.any():
                break
        worth = course[-1]
        births = [s.birth for s in self.starts]
        return Lives(
            tuple(fleet.golem_ids), fleet.tick.copy(), cause, np.stack(course),
            np.where(cause >= 0, fleet.final_at, stop - 1), worth,
            np.array([b.capital_micros + b.credits_micros for b in births]), fleet.forecast_var.copy(),
            np.stack([fleet.thoughts, fleet.vain]), self.ledger,
        )  # fmt: skip

    def grimoire(self) -> pa.Table:
        """What they know by now, of every status: ENTRY_SCHEMA."""
        return to_table(self.mind.state, self.policy.curator, self.policy.decay)

    def ever(self) -> pa.Table:
        """Every state that a decision left an entry in: ENTRY_SCHEMA, several rows an entry."""
        return pa.concat_tables([ENTRY_SCHEMA.empty_table(), *self._ever])

    def _chunk(self, start: int, stop: int) -> np.ndarray:
        """One cycle: live, record, curate, see. Returns causes of death, [golems], -1 for who lives on."""
        fleet, policy = self.fleet, self.policy
        recall = recall_of(self.mind.state, fleet.golem_ids, int(self.tape.at_us[start]), self._names, policy)
        out, cause = Buffers(fleet.size, stop - start), np.full(fleet.size, -1)
        lived = fleet.alive.copy()
        for t in range(start, stop):
            died = step(
                fleet, self.tape, t, recall=recall, asked=None, killed=False, policy=policy, out=out, at=t - start
            )
            cause = np.where(died >= 0, died, cause)
            if not fleet.alive.any():
                out.cut(t - start + 1)
                break
        self.ledger.add(out)
        records = records_of(Chunk(out, self.tape, start, fleet.golem_ids, recall, None, policy))
        self._curate(records, lived)
        return cause

    def _curate(self, records: pa.Table, lived: np.ndarray) -> None:
        """Close the cycle of whoever finished it or died in it: all of them, since they began together."""
        span, fleet = self.policy.curator.cycle_ticks, self.fleet
        upto = {fleet.golem_ids[i]: int(cycle_of(fleet.tick[i : i + 1], span)[0]) for i in np.flatnonzero(lived)}
        self.mind.advance(records, cycle_of(records["tick"].to_numpy(), span), upto)
        self._keep()
        self._see()

    def _keep(self) -> None:
        if self.remember:
            self._ever += [made.decisions.select(ENTRY_SCHEMA.names) for made in self.mind.pending]
        self.mind.pending.clear()
        self.mind.touched.clear()

    def _see(self) -> None:
        fleet = self.fleet
        for i, golem_id in enumerate(fleet.golem_ids):
            fleet.playbook_version[i], fleet.rebalance_threshold[:, i] = self.mind.playbooks.of(golem_id, self.policy)
            fleet.cycle_seen[i] = self.mind.done.get(golem_id, 0)

    def _moment(self, t: int) -> datetime:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(self.tape.at_us[t]))


assert set(ENTRY_SCHEMA.names) <= set(DECISION_SCHEMA.names), "a decision carries the entry as it left it"
