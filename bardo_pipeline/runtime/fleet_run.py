"""Runs a fleet through a market, from birth to succession; all results are events in the log.

A chunk is a curation cycle: golems step 50 ticks, the records are appended, closed cycles are curated, and the next
chunk uses the result. Deaths are completed between chunks, and heirs start with the next chunk.

Strikes, reorgs and withdrawals are applied between chunks too: golems forget retracted knowledge, and a golem with a
reorg deliberates the chunk's first tick at T2. Events on record at the start of the run are applied in the first chunk
after their own time, so that a repeated run gives the same records. Exception: an event that arrived in the middle of a
chunk was applied one chunk later the first time. If this changes a record, the log rejects the fork.

Golems that were born between runs live in separate passes of the next run, so that its founders do not depend on them.
A recorded event names each pass, so that a repeated run gives the same golems. Source: INH S13, step 7.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from datetime import datetime

import numpy as np
import orjson
import pyarrow as pa

from bardo_pipeline.arrays import BoolArray
from bardo_pipeline.curator.state.decision_log import DECISION_SCHEMA
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import commit_curation, derive_curation
from bardo_pipeline.derivation.curation.curator_state import state_from_birth
from bardo_pipeline.derivation.derive_home import complete_deaths
from bardo_pipeline.derivation.dreams.derive_dreams import lived_lessons
from bardo_pipeline.derivation.incremental.record_queries import cycle_of
from bardo_pipeline.derivation.katabasis.line_knowledge import line_knowledge, lived_failures
from bardo_pipeline.derivation.legacy.bundle_store import published_bundles
from bardo_pipeline.derivation.legacy.death_queries import births_of, succeeded_golems, waiting_golems
from bardo_pipeline.derivation.memory.retrieval_credits import rederive_credits
from bardo_pipeline.derivation.strikes_and_reorgs import withdraw
from bardo_pipeline.derivation.succession.birth_events import birth_record
from bardo_pipeline.errors import ConfigError, DerivationError
from bardo_pipeline.events.life.events import Born, Died, LifeEvent, Steered, life_event
from bardo_pipeline.events.life.succession_events import TakenUp
from bardo_pipeline.events.record.arrow_columns import rows_of_golems
from bardo_pipeline.events.record.model import PHASES, Vitality
from bardo_pipeline.heartbeat.fleet import Fleet, born
from bardo_pipeline.heartbeat.gating.event_router import inherit_router
from bardo_pipeline.heartbeat.gating.learned_gate import inherit_gate
from bardo_pipeline.heartbeat.records.build_records import records_of
from bardo_pipeline.heartbeat.records.chunk_rows import Buffers, record_type
from bardo_pipeline.heartbeat.step import Interventions
from bardo_pipeline.inheritance.learning_state import attention_of, forecast_variances, gate_of
from bardo_pipeline.inheritance.router_learning import router_of
from bardo_pipeline.market.tick_series import tape_of
from bardo_pipeline.mortality.vitality import CAUSES
from bardo_pipeline.runtime.entry_counts import EntryCounts, count_entries, state_no_entry
from bardo_pipeline.runtime.in_memory_fleet import DEATH_TICKS, Cohort
from bardo_pipeline.runtime.public_beliefs import PublicBeliefs
from bardo_pipeline.runtime.replicants import Replicants
from bardo_pipeline.runtime.run_settings import Ending, Heir, Progress, Run
from bardo_pipeline.runtime.sibling_notes import SiblingNotes
from bardo_pipeline.storage.log.protocol import RUN_WRITER


class FleetRun(Cohort):
    """One run in one home. The clock gives recording times only; no content depends on it."""

    def __init__(self, context: DerivationContext, run: Run, clock: Callable[[], datetime]) -> None:
        if run.golems < (0 if run.heirs else 1) or run.generations < 1:
            raise ConfigError(
                "a run needs at least one golem and one generation: give --golems and --generations from 1 up"
            )
        if run.founding.loan is not None and run.market.reserves is None:
            raise ConfigError(f"{run.market.name} has no reserves to borrow from: found golems without a loan")
        if context.frozen is not None:
            raise DerivationError(context.frozen)  # a later refusal would leave golems whose deaths cannot be completed
        policy = context.policy
        super().__init__(tape_of(run.market, policy), Fleet([], [], policy), policy, context.derivation_id)
        self.context, self.run, self.clock = context, run, clock
        self.segment = self.records = self.births = self.deaths = self.published = self.refused = 0
        self.entries = EntryCounts()
        self._learned: dict[str, list[dict[str, str]]] = {}
        self._applied_causes: set[str] = set()
        self._waiting = list(run.heirs)
        self._replicants = Replicants(context, run)
        self._siblings, self._public = SiblingNotes(context, run.market), PublicBeliefs(context, run.market)
        self._bequeathed: dict[str, pa.Table] = {}
        self._first_causes = frozenset(cause.event_id for cause in context.left_out().causes)

    def live(self, on_progress: Callable[[Progress], None] = lambda _: None) -> Ending:
        """Run through the whole market, or until no golem is left."""
        span = self.context.policy.curator.cycle_ticks
        self._found_lineages()
        for start in range(0, self.tape.ticks, span):
            self._join_waiting(start)
            if not self.fleet.size:
                if self._waiting:
                    continue
                break
            stop = min(start + span, self.tape.ticks)
            self._end_chunk(start, stop, self._chunk(start, stop, self._apply_retractions(start)))
            counts = (self.births, self.deaths, self.published, self.refused)
            on_progress(Progress(stop, self.tape.ticks, self.records, self.fleet.size, *counts))
        self._commit()
        return self._ending()

    def _end_chunk(self, start: int, stop: int, dead: dict[str, int]) -> None:
        """Complete the deaths of a chunk, welcome heirs and replicants, and commit, exchange and back up what is due.

        dead: causes of death by golem.
        """
        heirs = self._bury(dead, stop) if dead else []
        if heirs:
            self._welcome(heirs, self._boundary(stop))
        if stop < self.tape.ticks and (births := self._replicants.sent(self.fleet, self.mind)):
            self._welcome(births, self._boundary(stop))
        chunks = start // self.context.policy.curator.cycle_ticks + 1
        if chunks % self.run.commit_chunks == 0:
            self._commit()
            if self.run.exchange is not None:
                self.run.exchange()
        if self.run.back_up is not None:
            self.run.back_up()

    def _ending(self) -> Ending:
        no_entry = state_no_entry(self.entries, self.tape, self.run.founding, self.context.policy)
        return Ending(self.records, self.births, self.deaths, self.published, self.refused, self.entries, no_entry)

    def _commit(self, golems: Set[str] | None = None) -> None:
        """Write the curation of these golems, or of all, while holding the derivation lock.

        The state of golems with retracted inputs is discarded and derived again from the log.
        """
        with self.context.deriving():
            stale = self.mind.stale_golems(self.context)
            self.mind.discard(stale)
            commit_curation(self.context, self.mind, None if stale else golems)
        if stale:
            derive_curation(self.context)

    # birth

    def _found_lineages(self) -> None:
        """Found the first generation."""
        self._welcome(self._first_births(), self._boundary(0))

    def _first_births(self) -> list[tuple[str, Born]]:
        """Return one birth per lineage, with owners in turn."""
        owners = self.run.founding.owners
        return [self._birth(f"{self.run.name}/{i}", 0, owners[i % len(owners)]) for i in range(self.run.golems)]

    def _birth(
        self, lineage_id: str, generation: int, owner_id: str, *, predecessor: tuple[str, Born, str] | None = None
    ) -> tuple[str, Born]:
        market = self.run.market
        dead, life, bundle_hash = predecessor or (None, None, None)
        return born(
            lineage_id=lineage_id, generation=generation, owner_id=owner_id, founding=self.run.founding,
            market=market.name, market_hash=market.content_hash, derivation_id=self.context.derivation_id,
            policy=self.context.policy, predecessor_id=dead, traits=None if life is None else life.traits,
            bundle_hash=bundle_hash,
        )  # fmt: skip

    def _welcome(self, births: list[tuple[str, Born]], at: datetime) -> None:
        """Record births with their accompanying events; the newborn join the fleet for the next chunk."""
        events: list[LifeEvent] = []
        decisions = [DECISION_SCHEMA.empty_table()]  # a run may found no golem
        newborn = Fleet([g for g, _ in births], [b for _, b in births], self.context.policy)
        for i, (golem_id, birth) in enumerate(births):
            start = self._replicants.beginning(golem_id, birth, at) or birth_record(
                self.context, golem_id, birth, at, events, self.run.founding.loan
            )
            if start.loan is not None:
                newborn.grant(i, start.loan)
            if start.bundle is not None:
                learning = start.bundle.learning
                newborn.begin_with(i, forecast_variances(learning), attention_of(learning))
                inherit_gate(newborn, i, gate_of(learning), self.context.policy)
                inherit_router(newborn, i, router_of(learning), self.context.policy)
            events += start.events
            begun = self.mind.begin_life(
                golem_id, at=at, base_threshold=birth.traits.rebalance_threshold, inherited=start.inherited,
                bundle_hash=birth.bundle_hash, instincts=start.instincts,
            )  # fmt: skip
            decisions.append(begun.decisions)
            self.begin_dreaming(golem_id, birth, at)
        self.credits.note(pa.concat_tables(decisions))  # once, because it sorts the signs of all golems
        self._inherit_priors(dict(births))
        self.context.log.record(events, self.clock())
        withdraw(self.context, now=self.clock())  # entries of an ordered kit may have been retracted meanwhile
        if self.fleet.size:
            self.fleet.join(newborn)
        else:
            self.fleet = newborn
        self.load_playbooks()
        self.births += len(births)

    def _bequeath(self, dead: set[str]) -> None:
        """Keep the failures that dead golems held for their heirs, and forget the golems."""
        self._bequeathed |= {golem_id: self.failures.held_by(golem_id) for golem_id in dead}
        self.forget(dead)

    def _inherit_priors(self, births: dict[str, Born]) -> None:
        """Give heirs the failures of the golems that they descend from, and the consensus of their last votes."""
        heirs = {g: b.predecessor_id for g, b in births.items() if b.predecessor_id is not None}
        if heirs:
            held = {g: self._bequeathed.pop(g) for g in heirs.values() if g in self._bequeathed}
            line = line_knowledge(self.context, heirs, self.mind.left_out, held)
            self.failures.inherit(line.failures)
            ends = pa.concat_tables([self.ends, line.deaths.select(DEATH_TICKS.names).cast(DEATH_TICKS)])
            self.ends = ends.group_by(DEATH_TICKS.names, use_threads=False).aggregate([])
            self.propositions = pa.concat_tables([self.propositions, line.propositions]).combine_chunks()

    def _join_waiting(self, start: int) -> None:
        """Let golems that were born between runs, by this moment, join the fleet."""
        now = self.moment(start)
        ready = [heir for heir in self._waiting if heir.at <= now]
        for heir in ready:
            self._welcome([(heir.golem_id, heir.birth)], heir.at)
        self._waiting = [heir for heir in self._waiting if heir not in ready]

    # life

    def _apply_retractions(self, start: int) -> BoolArray | None:
        """Forget what was retracted by now; return the golems with a reorg as a mask, None for none.

        The affected golems' state is derived again from their remaining records.
        """
        at, present = self.moment(start), set(self.fleet.golem_ids)
        causes = [c for c in self.context.left_out().causes if c.golem_id in present]
        causes = [c for c in causes if c.event_id not in self._applied_causes]
        new_causes = [c for c in causes if c.at <= at or c.event_id not in self._first_causes]
        if not new_causes:
            return None
        self._commit()  # write or discard pending decisions before the new causes apply
        self._applied_causes |= {c.event_id for c in new_causes}
        self.mind.left_out = self.context.left_out().only({*self.mind.left_out.causes, *new_causes})
        golems = sorted({c.golem_id for c in new_causes})
        upto = {g: self.mind.done[g] for g in golems}
        again = state_from_birth(self.context, upto, self.mind.left_out)
        self.mind.replace_golems(again)
        self._remember_again(upto, again.pending_curation().decisions)
        self.load_playbooks()
        reorged = {c.golem_id for c in new_causes if c.kind == "ReorgObserved"}
        return np.isin(self.fleet.golem_ids, sorted(reorged)) if reorged else None

    def _remember_again(self, upto: dict[str, int], decisions: pa.Table) -> None:
        """Derive credits, failures, lessons and priors of golems again from the records that are not retracted.

        upto: golem to its last closed cycle. decisions: those of all these cycles.
        """
        left_out = self.mind.left_out
        self.forget(set(upto))
        self._siblings.forget(set(upto))
        self._public.forget(set(upto))
        self.credits.note(decisions)
        self.credits.add(rederive_credits(self.context, dict.fromkeys(upto, 1), upto, left_out, self.credits.signs))
        self.failures.absorb(lived_failures(self.context, upto, left_out, decisions))
        self.lessons.absorb(lived_lessons(self.context, upto, left_out))
        self._inherit_priors({g: b for g, b in zip(self.fleet.golem_ids, self.fleet.births, strict=True) if g in upto})

    def _chunk(self, start: int, stop: int, reorged: BoolArray | None) -> dict[str, int]:
        """Hear siblings and strangers, step from start to stop, append the records and curate closed cycles.

        Returns the causes of death by golem.

        reorged: golems whose first tick is forced to T2.
        """
        self._hear_others(start, self.moment(start))
        due_rows: dict[int, list[dict[str, str]]] = {}

        def due(t: int) -> Interventions | None:
            interventions = self._due_interventions(t, t - start, due_rows, stop - start)
            if t == start and reorged is not None:
                return replace(interventions or Interventions.none(len(reorged)), reorg=reorged)
            return interventions

        chunk, cause = self.step_chunk(start, stop, due, killed=self.run.killed, oracle=self.run.oracle)
        dead = {self.fleet.golem_ids[i]: int(cause[i]) for i in np.flatnonzero(cause >= 0)}
        in_force = lists_by_place("active_interventions", due_rows, chunk.out)
        records = records_of(replace(chunk, mutations=self._mutations(chunk.out), interventions=in_force))
        self.segment += 1
        writer = f"{RUN_WRITER}{self.run.name}"
        self.context.log.append(records, writer=writer, segment=self.segment, recorded_at=self.clock(), simulated=True)
        self.records += records.num_rows
        self.entries += count_entries(records)
        self._curate(records, dead)
        return dead

    def _hear_others(self, start: int, received: datetime) -> None:
        """Let the golems hear the notes of their clades and the public posts of an earlier moment.

        start: position on the tape. received: moment of the receipt, which is excluded
        """
        self._siblings.tell(self, received)
        self._public.tell(self, received, int(self.tape.regime[start]))

    def _due_interventions(
        self, t: int, column: int, rows: dict[int, list[dict[str, str]]], ticks: int
    ) -> Interventions | None:
        """Collect the interventions due at this tick; record them as events and as record fields."""
        if not self.run.steers:
            return None
        fleet = self.fleet
        steer, follow = np.zeros(fleet.size, bool), np.zeros(fleet.size, np.int64)
        for i, golem_id in enumerate(fleet.golem_ids):
            due = int(fleet.tick[i]) + 1
            steer_order = self.run.steers.get((golem_id, due)) or self.run.steers.get(("*", due))
            if steer_order is None or not fleet.alive[i]:
                continue
            severity, intent = steer_order
            steer[i], follow[i] = severity == "high", severity == "low"
            name = f"{golem_id}-{due}"
            row = {"intervention_id": name, "severity": severity, "intent": intent}
            rows.setdefault(i * ticks + column, []).append(row | {"kind": "steer" if steer[i] else "follow_up"})
            payload = Steered(intervention_id=name, due_tick=due, severity="high" if steer[i] else "low", intent=intent)
            self.context.log.record([life_event(golem_id, self.moment(t), payload)], self.clock())
        return Interventions(steer, follow)

    def _mutations(self, out: Buffers) -> pa.Array | None:
        """Build the last closed cycle's changes to each grimoire, for the first record after it."""
        rows = {i * out.ticks: self._learned.get(g, []) for i, g in enumerate(self.fleet.golem_ids)}
        return lists_by_place("grimoire_mutations", rows, out)

    def _curate(self, records: pa.Table, dead: dict[str, int]) -> None:
        """Close the cycles of golems that finished one or died in one."""
        span = self.context.policy.curator.cycle_ticks
        tick = {g: int(t) for g, t in zip(self.fleet.golem_ids, self.fleet.tick, strict=True)}
        upto = {g: int(cycle_of(np.array(t), span)) for g, t in tick.items() if t % span == 0 or g in dead}
        closed = records if len(upto) == len(tick) else rows_of_golems(records, upto)
        self.mind.refresh_inputs(self.context)
        made = self.close_cycles(closed, upto)
        self._learned = {}
        for row in made.decisions.select(["golem_id", "operation", "entry_id", "kind"]).to_pylist():
            if row["operation"] != "staged":
                self._learned.setdefault(row.pop("golem_id"), []).append(row)
        self.load_playbooks()

    # death

    def _bury(self, dead: dict[str, int], stop: int) -> list[tuple[str, Born]]:
        """Record the deaths, complete them, and return births of heirs of golems with a published bundle."""
        lives = self._record_deaths(dead)
        self._commit()
        self.mind.remove_golems(set(dead))
        self._bequeath(set(dead))
        complete_deaths(self.context, now=self.clock(), golems=dead)
        bundles = published_bundles(self.context, lives)
        if stop < self.tape.ticks:
            self._replicants.report(dead, bundles, self.fleet, at=self.moment(stop - 1), now=self.clock())
        return self._heirs(lives, bundles, stop)

    def _record_deaths(self, dead: dict[str, int]) -> dict[str, Born]:
        """Record the deaths and remove the dead from the fleet; return their births."""
        positions = [i for i, g in enumerate(self.fleet.golem_ids) if g in dead]
        lives = {self.fleet.golem_ids[i]: self.fleet.births[i] for i in positions}
        self.context.log.record([self._death(i, dead) for i in positions], self.clock())
        self.deaths += len(positions)
        self.fleet.keep(~np.isin(np.arange(self.fleet.size), positions))
        return lives

    def _heirs(self, lives: dict[str, Born], bundles: dict[str, str], stop: int) -> list[tuple[str, Born]]:
        """Return births of the heirs of completed deaths, at the end of the chunk in which they happened."""
        self.published += len(bundles)
        self.refused += len(lives) - len(bundles)
        if stop >= self.tape.ticks:
            return []
        lives = {g: b for g, b in lives.items() if g in bundles and b.generation + 1 < self.run.generations}
        lives = {g: b for g, b in lives.items() if g not in self._replicants}
        if self.run.succeed is not None:
            return self.run.succeed(lives, self._boundary(stop))
        summoned = succeeded_golems(self.context)
        return [
            self._birth(b.lineage_id, b.generation + 1, b.owner_id, predecessor=(g, b, bundles[g]))
            for g, b in lives.items()
            if g not in summoned
        ]

    def _death(self, i: int, dead: dict[str, int]) -> LifeEvent:
        fleet, golem_id = self.fleet, self.fleet.golem_ids[i]
        tick = int(fleet.tick[i])
        payload = Died.model_validate(
            {
                "cause": CAUSES[dead[golem_id]],
                "tick": tick,
                "phase": PHASES[-1],
                "vitality": dict(zip(Vitality.model_fields, fleet.final_life[:, i].tolist(), strict=True)),
                "credits_micros": int(fleet.credits[i]),
                "capital_micros": int(fleet.final_nav[i]),
                "earned_micros": int(fleet.earned[i]),
            }
        )
        return life_event(golem_id, self.moment(int(fleet.final_at[i])), payload)

    def _boundary(self, stop: int) -> datetime:
        """Return the birth moment of golems that start at this tick: at most the tape's last moment."""
        return self.moment(min(stop, self.tape.ticks - 1))


def lists_by_place(name: str, rows: Mapping[int, list[dict[str, str]]], out: Buffers) -> pa.Array | None:
    """Build the record field `name` from lists of structs by position in the buffers; None if all are empty."""
    if not any(rows.values()):
        return None
    values: list[list[dict[str, str]]] = [[] for _ in range(out.golems * out.ticks)]
    for place, items in rows.items():
        values[place] = items
    return pa.array(values, record_type(name))


def waiting(context: DerivationContext) -> list[Heir]:
    """Return golems that were born between runs and have not lived yet, by id."""
    births = births_of(context, waiting_golems(context))
    return [Heir(golem_id, *births[golem_id]) for golem_id in sorted(births)]


def passes(context: DerivationContext, run: Run, last: datetime, *, now: datetime) -> list[Run]:
    """Return a run's passes: those that it made before, and one for golems that wait now. Records the latter.

    last: the market's last moment; golems born later wait for another run.
    """
    taken = context.life("GolemTakenUp").select(["golem_id", "taken_up"]).to_pylist()
    births = births_of(context, [row["golem_id"] for row in taken])
    groups: dict[str, list[Heir]] = {}
    for row in taken:
        if row["taken_up"]["began_with"] == run.name:
            heir = Heir(row["golem_id"], *births[row["golem_id"]])
            groups.setdefault(row["taken_up"]["run"], []).append(heir)
    waiting_heirs = [heir for heir in waiting(context) if heir.birth.market == run.market.name and heir.at < last]
    if waiting_heirs:
        content = orjson.dumps([run.name, [heir.golem_id for heir in waiting_heirs]])
        name = hashlib.sha256(content).hexdigest()[:8]
        payload = TakenUp(run=name, began_with=run.name, market=run.market.name, market_hash=run.market.content_hash)
        context.log.record([life_event(heir.golem_id, heir.at, payload) for heir in waiting_heirs], now)
        groups[name] = waiting_heirs
    return [
        replace(run, name=name, golems=0, heirs=tuple(sorted(heirs, key=lambda heir: heir.golem_id)))
        for name, heirs in groups.items()
    ]
