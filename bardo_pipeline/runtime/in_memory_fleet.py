"""Runs golems through a part of a market in memory, for evaluations.

Steps, records and curation are those of a run (fleet_run.py), without a log. Golems do not influence each other, so
golems under different conditions run side by side. Source: docs/adr/0028.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Float64Array, Int64Array
from bardo_pipeline.clock import micros_of, moment_at
from bardo_pipeline.curator.curate import Curation
from bardo_pipeline.curator.state.decision_log import DECISION_SCHEMA
from bardo_pipeline.curator.state.grimoire_state import to_table
from bardo_pipeline.derivation.curation.curator_state import CuratorState
from bardo_pipeline.derivation.incremental.record_queries import cycle_of
from bardo_pipeline.dreams.lived_lessons import LivedLessons
from bardo_pipeline.events.life.events import Born
from bardo_pipeline.events.record.arrow_columns import all_required, required
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA
from bardo_pipeline.heartbeat.entry_names import EntryNames
from bardo_pipeline.heartbeat.fleet import Fleet
from bardo_pipeline.heartbeat.gating.learned_gate import inherit_gate
from bardo_pipeline.heartbeat.recall_table import Recall, recall_of, with_priors
from bardo_pipeline.heartbeat.records.build_records import records_of
from bardo_pipeline.heartbeat.records.chunk_rows import Buffers, Chunk
from bardo_pipeline.heartbeat.step import Interventions, Overseer, step
from bardo_pipeline.katabasis.belief_credits import BeliefCredits
from bardo_pipeline.katabasis.lived_failures import LivedFailures
from bardo_pipeline.katabasis.priors import PRIOR_SCHEMA, scars_as_priors
from bardo_pipeline.katabasis.scar_rules import RULE_COLUMNS
from bardo_pipeline.market.tick_series import Tape
from bardo_pipeline.mortality.vitality import CAUSES
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.credit_totals import CreditTotals

DEATH_TICKS = pa.schema([required("golem_id", pa.string()), *all_required(pa.int64(), "cycle", "tick")])
"""Columns that scars need of a death."""


class Start(NamedTuple):
    """Initial state of one golem: birth, learning state, and `luck`, the seed of its random numbers.

    Golems with equal luck meet the same chances.
    """

    golem_id: str
    birth: Born
    luck: np.uint64
    forecast_variance: tuple[float | None, ...] = (None, None, None)
    attention: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())
    gate: tuple[list[float], list[list[float]]] | None = None


@dataclass
class Lives:
    """Results of golems, [golems]: ticks, cause of death (a position in CAUSES, -1 alive), and worth in micro-dollars.

    Worth is net asset value plus credits. course: worth after each cycle [cycles, golems], constant after death.
    budget: what the owner pays at birth, including the death reserve. last_at: position of the last tick on the tape.
    forecast_variance [3, golems] and attention [2, situations, golems]: final learning state. spent: micro-dollars for
    inference and for gas, [2, golems].
    """

    golem_ids: tuple[str, ...]
    ticks: Int64Array
    cause: Int64Array
    course: Int64Array
    last_at: Int64Array
    worth: Int64Array
    first_worth: Int64Array
    budget: Int64Array
    forecast_variance: Float64Array
    attention: Float64Array
    spent: Int64Array

    def returns_at(self, ticks: Int64Array, cycle_ticks: int) -> Float64Array:
        """Return the relative gain of worth after so many ticks of life, rounded up to the cycle."""
        cycle = np.minimum((ticks + cycle_ticks - 1) // cycle_ticks, len(self.course)) - 1
        worth: Int64Array = self.course[cycle, np.arange(len(ticks))]
        return worth / self.first_worth - 1.0

    @property
    def returns(self) -> Float64Array:
        """Relative gain of worth over the whole life."""
        return self.worth / self.first_worth - 1.0

    @property
    def end_worth(self) -> Float64Array:
        """Worth at the end of life as a share of the budget; the death reserve counts as spent."""
        return self.worth / self.budget

    def some(self, part: slice) -> Lives:
        """Select golems."""
        columns = {name: value[..., part] for name, value in vars(self).items() if name != "golem_ids"}
        return Lives(golem_ids=self.golem_ids[part], **columns)

    def causes(self) -> list[str]:
        """Return the names of the causes of death."""
        return [CAUSES[code] if code >= 0 else "alive" for code in self.cause.tolist()]


class Cohort:
    """A fleet in a market, with the curator's state of its golems, the credits of their retrievals and their failures.

    lessons: of their dreams. propositions, beliefs: held of the line and of Lethe, as
    priors (PRIOR_SCHEMA). ends: deaths of ancestors (DEATH_TICKS).
    """

    def __init__(self, tape: Tape, fleet: Fleet, policy: Policy, derivation_id: str | None = None) -> None:
        self.tape, self.fleet, self._policy, self._derivation_id = tape, fleet, policy, derivation_id
        self.mind, self.names, self.credits = CuratorState(policy), EntryNames(), CreditTotals()
        self.failures, self.propositions = LivedFailures(policy), PRIOR_SCHEMA.empty_table()
        self._beliefs, self._belief_credits = PRIOR_SCHEMA.empty_table(), BeliefCredits()
        self.ends, self.lessons = DEATH_TICKS.empty_table(), LivedLessons(policy)
        self._scars: tuple[pa.Table, pa.Table] = (self.failures.rows, PRIOR_SCHEMA.empty_table())
        self.overseer: Overseer | None = None

    def step_chunk(
        self,
        start: int,
        stop: int,
        interventions: Callable[[int], Interventions | None] = lambda _: None,
        *,
        killed: Callable[[], bool] = lambda: False,
        oracle: bool = True,
    ) -> tuple[Chunk, Int64Array]:
        """Step from start to stop, or until no golem is left; return the ticks and causes of death, -1 for survivors.

        interventions: tick -> those due. killed, oracle: as in `Run`.
        """
        fleet, policy, recall = self.fleet, self._policy, self.recall_at(start)
        out, cause = Buffers(fleet.size, stop - start), np.full(fleet.size, -1)
        for t in range(start, stop):
            died = step(
                fleet, self.tape, t, recall=recall, policy=policy, out=out, at=t - start,
                interventions=interventions(t), killed=killed(), oracle=oracle, overseer=self.overseer,
            )  # fmt: skip
            cause = np.where(died >= 0, died, cause)
            if not fleet.alive.any():
                out.cut(t - start + 1)
                break
        return Chunk(out, self.tape, start, fleet.golem_ids, recall, self._derivation_id, policy), cause

    def recall_at(self, start: int) -> Recall:
        """Return what the golems can retrieve in the chunk that begins at this position of the tape."""
        fleet, policy = self.fleet, self._policy
        at_us = int(self.tape.at_us[start])
        recall = recall_of(self.mind.state, fleet.golem_ids, at_us, self.names, policy, self.credits)
        return with_priors(recall, self.priors(), fleet.golem_ids, at_us, self.names, policy, self._belief_credits)

    def close_cycles(self, records: pa.Table, upto: dict[str, int]) -> Curation:
        """Curate closed cycles up to `upto`, credit their retrievals, qualify their failures, and dream.

        Return the new decisions.
        """
        cycle = cycle_of(records["tick"].to_numpy(), self._policy.curator.cycle_ticks)
        made = self.mind.advance(records, cycle, upto)
        self.credits.note(made.decisions)
        self.credits.credit(records, cycle, self._policy.curator)
        self._belief_credits.close(records, self._policy.curator)
        self.failures.close(records, self._rules_of)
        self.lessons.close(records)
        return made

    def begin_dreaming(self, golem_id: str, birth: Born, at: datetime) -> None:
        """Begin the dreams of a newborn golem."""
        born_us = micros_of(at)
        width = birth.traits.range_half_width_ticks
        self.lessons.begin(golem_id, width, born_us, has_bundle=birth.bundle_hash is not None)

    def priors(self) -> pa.Table:
        """Return scars, propositions and lessons that golems hold (PRIOR_SCHEMA); scars follow from all failures."""
        if self._scars[0] is not self.failures.rows:
            self._scars = self.failures.rows, scars_as_priors(self.failures.rows, self.ends, self._policy)
        return pa.concat_tables([self._scars[1], self.propositions, self._beliefs, self._standing_lessons()])

    def propositions_of(self, golem_id: str) -> list[str]:
        """Return the ids of the propositions that a golem holds of its line."""
        is_own = pc.equal(self.propositions["golem_id"], golem_id)
        held: list[str] = self.propositions.filter(is_own)["prior_id"].to_pylist()
        return held

    def believe(self, beliefs: pa.Table) -> None:
        """Replace the beliefs of Lethe that golems hold (PRIOR_SCHEMA); decisions credit those that helped."""
        self._beliefs = beliefs
        self._belief_credits.note(beliefs)

    def _standing_lessons(self) -> pa.Table:
        """Return the lessons that their owners did not retract by each golem's last curated cycle."""
        lessons, span = self.lessons.priors(), self._policy.curator.cycle_ticks
        orders = self.mind.overrides.due({}, self.mind.done, span)
        retracted = {(order.golem_id, order.entry_id) for order in orders if order.kind == "EntryRetracted"}
        if not retracted:
            return lessons
        held = zip(lessons["golem_id"].to_pylist(), lessons["prior_id"].to_pylist(), strict=True)
        return lessons.filter(pa.array([pair not in retracted for pair in held], pa.bool_()))

    def _rules_of(self, golem_ids: list[str]) -> pa.Table:
        """Return the rules of golems as of their last curated cycle, in the columns of decisions (RULE_COLUMNS)."""
        state = self.mind.state
        codes = [state.golem_code(golem_id) for golem_id in golem_ids]
        held = np.flatnonzero(np.isin(state["golem"], codes))
        rules = to_table(state, self._policy.curator, self._policy.decay, held)
        cycle = pa.array([self.mind.done[golem_id] for golem_id in rules["golem_id"].to_pylist()], pa.int64())
        zero = pa.array(np.zeros(rules.num_rows, np.int64))
        columns = {"cycle": cycle, "revision": zero, "seq": zero}
        return pa.table({n: columns.get(n, rules[n] if n in rules.column_names else None) for n in RULE_COLUMNS})

    def forget(self, golem_ids: set[str]) -> None:
        """Forget the credits, failures, lessons, propositions and beliefs of golems."""
        self.credits.forget(golem_ids)
        self._belief_credits.forget(golem_ids)
        self.lessons.forget(golem_ids)
        self.failures.forget(golem_ids)
        gone = pa.array(sorted(golem_ids), pa.string())
        self.propositions, self._beliefs = (
            held.filter(pc.invert(pc.is_in(held["golem_id"], value_set=gone)))
            for held in (self.propositions, self._beliefs)
        )

    def load_playbooks(self) -> None:
        """Load the playbooks of the last closed cycle into the fleet."""
        fleet, books = self.fleet, self.mind.playbooks
        for i, golem_id in enumerate(fleet.golem_ids):
            fleet.follow(i, *books.of(golem_id, self._policy), books.choices_of(golem_id), self.names)
            fleet.cycle_seen[i] = self.mind.done.get(golem_id, 0)

    def moment(self, t: int) -> datetime:
        """Return the time of a tick."""
        return moment_at(int(self.tape.at_us[t]))


class InMemoryFleet(Cohort):
    """Golems born together at a position of a tape. remember: keep all past states of their entries.

    thought_costs: micro-dollars for chosen and for forced deliberations by cycle, [2, golems] each.
    """

    def __init__(
        self, tape: Tape, start: int, starts: Sequence[Start], policy: Policy, *, remember: bool = False
    ) -> None:
        fleet = Fleet([s.golem_id for s in starts], [s.birth for s in starts], policy)
        fleet.seed = np.array([s.luck for s in starts], np.uint64)
        for i, own in enumerate(starts):
            fleet.begin_with(i, own.forecast_variance, own.attention)
            inherit_gate(fleet, i, own.gate, policy)
        super().__init__(tape, fleet, policy)
        self._start, self._starts, self._remember = start, starts, remember
        self._spent, self._past_states = np.zeros((2, fleet.size), np.int64), [ENTRY_SCHEMA.empty_table()]
        self.thought_costs: list[Int64Array] = []

    def begin(self, inherited: pa.Table) -> None:
        """Give golems their inherited entries: ENTRY_SCHEMA; golems without rows start with none."""
        at = self.moment(self._start)
        for start in self._starts:
            entries = inherited.filter(pc.equal(inherited["golem_id"], start.golem_id))
            base = start.birth.traits.rebalance_threshold
            begun = self.mind.begin_life(start.golem_id, at=at, base_threshold=base, inherited=entries, bundle_hash="-")
            self.credits.note(begun.decisions)
            self.begin_dreaming(start.golem_id, start.birth, at)
        self._clear_pending()

    def live(self, stop: int) -> Lives:
        """Run to a position of the tape, or until no golem is left."""
        span, fleet = self._policy.curator.cycle_ticks, self.fleet
        self.load_playbooks()
        cause, course = np.full(fleet.size, -1), []
        for start in range(self._start, stop, span):
            died = self._chunk(start, min(start + span, stop))
            cause = np.where(died >= 0, died, cause)
            course.append(np.where(fleet.alive, np.floor(fleet.nav).astype(np.int64), fleet.final_nav) + fleet.credits)
            if not fleet.alive.any():
                break
        worth = course[-1]
        return Lives(
            tuple(fleet.golem_ids), fleet.tick.copy(), cause, np.stack(course),
            np.where(cause >= 0, fleet.final_at, stop - 1), worth,
            np.array([b.capital_micros + b.credits_micros for b in fleet.births]),
            np.array([b.capital_micros + b.credits_micros + b.reserve_micros for b in fleet.births]),
            fleet.forecast_var.copy(),
            np.stack([fleet.thoughts, fleet.vain]), self._spent,
        )  # fmt: skip

    def grimoire(self) -> pa.Table:
        """Return the current entries of any status: ENTRY_SCHEMA."""
        return to_table(self.mind.state, self._policy.curator, self._policy.decay)

    def ever(self) -> pa.Table:
        """Return all past states of entries: ENTRY_SCHEMA, several rows per entry."""
        return pa.concat_tables(self._past_states)

    def _chunk(self, start: int, stop: int) -> Int64Array:
        """Step one cycle and close it for all living golems, whose cycles are synchronous. Return causes of death."""
        span, fleet, lived = self._policy.curator.cycle_ticks, self.fleet, self.fleet.alive.copy()
        chunk, cause = self.step_chunk(start, stop)
        self._spent += np.stack([chunk.out[name].sum(axis=1) for name in ("inference", "gas")])
        costs, forced = chunk.out["inference"], chunk.out["forced"] >= 0
        self.thought_costs.append(np.stack([np.where(forced, 0, costs).sum(axis=1), (costs * forced).sum(axis=1)]))
        records = records_of(chunk)
        upto = {fleet.golem_ids[i]: int(cycle_of(fleet.tick[i : i + 1], span)[0]) for i in np.flatnonzero(lived)}
        self.close_cycles(records, upto)
        self._clear_pending()
        self.load_playbooks()
        return cause

    def _clear_pending(self) -> None:
        if self._remember:
            self._past_states += [made.decisions.select(ENTRY_SCHEMA.names) for _, made in self.mind.pending]
        self.mind.pending.clear()
        self.mind.touched.clear()


assert set(ENTRY_SCHEMA.names) <= set(DECISION_SCHEMA.names), "a decision contains the entry's new state"
