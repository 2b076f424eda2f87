"""Curation: closed cycles to decisions, grimoire, playbooks. The runtime and Dagster's job call the same code.

Whoever comes second finds the cycle on record under (golem, cycle) and leaves it. Source: architecture ("Time and
order").
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.curate import CYCLE_SCHEMA, Curation, curate
from bardo_pipeline.curator.playbook import PLAYBOOK_SCHEMA, PlaybookLog, Playbooks
from bardo_pipeline.curator.state.decision_log import DECISION_SCHEMA, fold
from bardo_pipeline.curator.state.evidence import EVIDENCE_COLUMNS
from bardo_pipeline.curator.state.grimoire_state import GrimoireState, from_table, to_table
from bardo_pipeline.curator.state.received_entries import Delivery
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.causal_moments_cache import load_moments, save_moments
from bardo_pipeline.derivation.curation.playbook_files import follow_adoption, write_playbooks
from bardo_pipeline.derivation.incremental.cycle_reader import CycleReader
from bardo_pipeline.derivation.incremental.record_queries import (
    cited_records,
    closed_records,
    curated_through,
    cycle_of,
)
from bardo_pipeline.derivation.incremental.retraction_tracking import (
    RetractionCursor,
    first_touched_cycles,
    is_from_cycle,
    retraction_event_ids,
    without_retracted,
)
from bardo_pipeline.derivation.legacy.bundle_store import load_bundle
from bardo_pipeline.events.life.inherited_defaults import Instincts
from bardo_pipeline.events.life.override_events import Overrides
from bardo_pipeline.events.life.proposal_events import Proposal, Proposed
from bardo_pipeline.events.life.received_knowledge import Arrival, Arrivals
from bardo_pipeline.events.life.retractions import LeftOut
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.entry_columns import newest_per_golem
from bardo_pipeline.inheritance.heir_entries import inherited_entries, received_decisions
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.delta.table_digest import Written


def _nothing_cited(_: Sequence[Proposal]) -> pa.Table:
    return pa.table({})


def _nothing_came(_: Arrival) -> pa.Table:
    raise AssertionError("who hears of an arrival can read its bundle")


@dataclass
class CuratorState:
    """What some golems know and go by, in working form, and what was decided since the last commit.

    left: what counts as never having been in all that it is given to curate; the decisions' revision says so.
    overrides, proposed: what owners said and models proposed, as of the closing of the newest cycle that it is given;
    look_up gives the records that proposals cite. arrivals: what came to them from elsewhere by then; unpack gives the
    entries of one.
    """

    policy: Policy
    left: LeftOut = field(default_factory=LeftOut)
    overrides: Overrides = field(default_factory=Overrides)
    proposed: Proposed = field(default_factory=Proposed)
    look_up: Callable[[Sequence[Proposal]], pa.Table] = field(default=_nothing_cited)
    arrivals: Arrivals = field(default_factory=Arrivals)
    unpack: Callable[[Arrival], pa.Table] = field(default=_nothing_came)
    state: GrimoireState = field(default_factory=GrimoireState)
    playbooks: Playbooks = field(default_factory=Playbooks)
    done: dict[str, int] = field(default_factory=dict)
    pending: list[Curation] = field(default_factory=list)
    touched: set[str] = field(default_factory=set)

    def begin(
        self,
        golem_id: str,
        *,
        at: datetime,
        base_threshold: float,
        inherited: pa.Table | None,
        bundle_hash: str | None,
        instincts: Instincts | None = None,
    ) -> None:
        """A golem starts its life: with nothing, or with what its bundle holds (cycle 0) and what its line knows."""
        code = self.state.golem_code(golem_id)
        self.base_on(golem_id, base_threshold, instincts or Instincts())
        decisions = DECISION_SCHEMA.empty_table()
        if inherited is not None and inherited.num_rows:
            assert bundle_hash is not None, "what is inherited comes in a bundle"
            self.state.absorb(inherited)
            decisions = received_decisions(inherited, bundle_hash, at, self.policy.hash)
        log = PlaybookLog()
        at_us = np.array([pa.scalar(at, pa.timestamp("us", tz="UTC")).cast(pa.int64()).as_py()])
        self.playbooks.revise(self.state, np.array([code]), np.zeros(1, np.int64), at_us, log, self.policy)
        self._take(Curation(decisions, CYCLE_SCHEMA.empty_table(), log.table()), {golem_id: 0})

    def base_on(self, golem_id: str, threshold: float, instincts: Instincts) -> None:
        """What the golem's thresholds start from: its own, or where its line knows better, that."""
        self.playbooks.base[golem_id] = instincts.base(golem_id, threshold)
        self.playbooks.instincts[golem_id] = instincts.words(golem_id)

    def advance(self, records: pa.Table, cycle: np.ndarray, upto: dict[str, int]) -> Curation:
        """Curate closed cycles of these golems."""
        span = self.policy.curator.cycle_ticks
        orders, proposals = self.overrides.due(self.done, upto, span), self.proposed.due(self.done, upto, span)
        made = curate(
            self.state, self.playbooks, records, cycle, policy=self.policy, policy_hash=self.policy.hash, orders=orders,
            proposals=proposals, cited=without_retracted(self.look_up(proposals), self.left) if proposals else None,
            deliveries=[self._delivery(one) for one in self.arrivals.due(self.done, upto, span)],
        )  # fmt: skip
        return self._take(made, upto)

    def _delivery(self, arrival: Arrival) -> Delivery:
        """What came, without what was withdrawn from the golem since."""
        entries, gone = self.unpack(arrival), self.left.entries(arrival.golem_id)
        kept = pc.invert(pc.is_in(entries["entry_id"], value_set=pa.array(sorted(gone), pa.string())))
        return Delivery(arrival, entries.filter(kept) if gone else entries)

    def _take(self, made: Curation, upto: dict[str, int]) -> Curation:
        revised = replace(made, decisions=self._revised(made.decisions))
        self.pending.append(revised)
        self.done |= upto
        self.touched |= set(upto)
        return revised

    def _revised(self, decisions: pa.Table) -> pa.Table:
        span = self.policy.curator.cycle_ticks
        revision = self.left.revision(decisions["golem_id"], decisions["cycle"].to_numpy(), span)
        place = decisions.schema.get_field_index("revision")
        return decisions.set_column(place, decisions.schema.field(place), pa.array(revision, pa.int64()))

    def made(self) -> Curation:
        """What was decided since the last commit, in one."""
        parts = (
            ("decisions", DECISION_SCHEMA),
            ("cycles", CYCLE_SCHEMA),
            ("playbooks", PLAYBOOK_SCHEMA),
        )
        return Curation(
            *(
                pa.concat_tables([schema.empty_table(), *(getattr(c, name) for c in self.pending)]).combine_chunks()
                for name, schema in parts
            )
        )

    def listen(self, context: DerivationContext) -> None:
        """Take in what was said and proposed by now."""
        self.overrides, self.proposed = context.overrides(), context.proposed()
        self.look_up = partial(cited_records, context)
        self.arrivals, self.unpack = context.arrivals(), partial(_unpacked, context)

    def overtaken(self, left: LeftOut, overrides: Overrides, proposed: Proposed, arrivals: Arrivals) -> set[str]:
        """Golems with news to commit that were derived from something that is left out now, or before a word was said.

        Only death closes a cycle that is curated already, so only of the dead somebody can have spoken since.
        """
        return {
            g
            for g in self.touched
            if left.of_golem(g) != self.left.of_golem(g)
            or self._heard(g, overrides, proposed, arrivals)
            != self._heard(g, self.overrides, self.proposed, self.arrivals)
        }

    def _heard(self, golem_id: str, overrides: Overrides, proposed: Proposed, arrivals: Arrivals) -> tuple[object, ...]:
        upto, span = {golem_id: self.done[golem_id]}, self.policy.curator.cycle_ticks
        return overrides.due({}, upto, span), proposed.due({}, upto, span), arrivals.due({}, upto, span)

    def drop(self, golem_ids: set[str]) -> None:
        """Do not commit what was decided of these golems."""
        if golem_ids:
            self.pending = [_others(curation, golem_ids) for curation in self.pending]
            self.touched -= golem_ids

    def adopt(self, other: CuratorState) -> None:
        """Take over the golems of another mind, in place of what was known of them here; nothing of it is pending."""
        golems = set(other.done)
        self.state = self.state.without_golems(golems)
        self.state.absorb(to_table(other.state, self.policy.curator, self.policy.decay))
        self.state.moments.absorb(other.state.moments)
        self.playbooks.version |= other.playbooks.version
        self.playbooks.threshold |= other.playbooks.threshold
        self.playbooks.staged |= other.playbooks.staged

    def forget(self, golem_ids: set[str]) -> None:
        """Let go of golems that are dead and committed."""
        self.state = self.state.without_golems(golem_ids)


def _unpacked(context: DerivationContext, arrival: Arrival) -> pa.Table:
    """The entries of a bundle that came. Raises BundleError if it is not in this home any more."""
    return load_bundle(context.home, arrival.content_hash).entries()


def _others(curation: Curation, golem_ids: set[str]) -> Curation:
    gone = pa.array(sorted(golem_ids), pa.string())
    tables = (curation.decisions, curation.cycles, curation.playbooks)
    return Curation(*(table.filter(pc.invert(pc.is_in(table["golem_id"], value_set=gone))) for table in tables))


def commit_curation(context: DerivationContext, mind: CuratorState) -> list[Written]:
    """Write what was decided since the last commit: decisions, cycles and playbooks grow, the grimoire is renewed.

    The caller holds `context.deriving()`. The grimoire comes last and carries how far each golem has come: until it is
    there, the cycle counts as open, and whoever derives it again finds the rows that are on record and leaves them.
    """
    grimoire = context.projections.replaceable("grimoire")
    upto = {g: mind.done[g] for g in sorted(mind.touched)}
    upto = {g: cycle for g, cycle in upto.items() if (known := grimoire.done(g)) is None or known < cycle}
    written = []
    if upto:
        made = mind.made()
        for name, rows in (("curation", made.decisions), ("cycles", made.cycles), ("playbooks", made.playbooks)):
            written.append(context.projections.growing(name).append(rows, upto))
        written.append(_amend_grimoire(context, mind, made.decisions, upto))
        save_moments(context, mind.state.moments, upto, mind.left)
        write_playbooks(context, made.playbooks)
    mind.pending.clear()
    mind.touched.clear()
    return written


def _amend_grimoire(
    context: DerivationContext, mind: CuratorState, decisions: pa.Table, upto: Mapping[str, int]
) -> Written:
    """The grimoire with the entries that were decided about as they are now: what changes an entry is a decision."""
    rows = mind.state.told_of(decisions["golem_id"], decisions["structure"])
    amended = _of(to_table(mind.state, context.policy.curator, context.policy.decay, rows), upto)
    return context.projections.replaceable("grimoire").upsert(amended, by=("golem_id", "structure"), upto=upto)


def _renew_grimoire(context: DerivationContext, mind: CuratorState, upto: Mapping[str, int]) -> Written:
    grimoire = context.projections.replaceable("grimoire")
    mine = _of(to_table(mind.state, context.policy.curator, context.policy.decay), upto)
    buckets = grimoire.buckets(upto)
    others = grimoire.read(buckets, trusting=True)
    others = others.filter(pc.invert(pc.is_in(others["golem_id"], value_set=pa.array(sorted(upto), pa.string()))))
    return grimoire.replace(pa.concat_tables([others, mine]), buckets, upto=upto)


def _of(entries: pa.Table, golem_ids: Collection[str]) -> pa.Table:
    return entries.filter(pc.is_in(entries["golem_id"], value_set=pa.array(sorted(golem_ids), pa.string())))


def load_state(context: DerivationContext, golem_ids: list[str], left: LeftOut) -> CuratorState:
    """These golems as they stood at their last committed cycle; golems without one are begun from their birth."""
    mind = CuratorState(context.policy, left)
    grimoire = context.projections.replaceable("grimoire")
    mind.done = {g: done for g in golem_ids if (done := grimoire.done(g)) is not None}
    mind.state = from_table(grimoire.read(only=golem_ids, trusting=True))
    mind.state.moments = load_moments(context, mind.done, left)
    return _furnished(context, mind, golem_ids)


def state_before(context: DerivationContext, first: Mapping[str, int], left: LeftOut) -> CuratorState:
    """Golems as they stood before a cycle of theirs, from the decisions that stand; before cycle 0 they are begun."""
    mind = CuratorState(context.policy, left)
    mind.done = {g: cycle - 1 for g, cycle in first.items() if cycle > 0}
    decisions = context.projections.growing("curation").read(golems=sorted(mind.done))
    earlier = pc.invert(is_from_cycle(decisions, first))
    mind.state = from_table(fold(decisions.filter(earlier)))
    mind.state.moments = load_moments(context, mind.done, left)
    return _furnished(context, mind, sorted(first))


def state_from_birth(context: DerivationContext, upto: Mapping[str, int], left: LeftOut) -> CuratorState:
    """Golems as their own records alone make them, from birth to a closed cycle, without what is left out."""
    first = dict.fromkeys(upto, 0)
    mind = state_before(context, first, left)
    records = without_retracted(closed_records(context, EVIDENCE_COLUMNS, first, upto), left)
    mind.advance(records, cycle_of(records["tick"].to_numpy(), context.policy.curator.cycle_ticks), dict(upto))
    return mind


def _furnished(context: DerivationContext, mind: CuratorState, golem_ids: list[str]) -> CuratorState:
    """The same, with each golem's playbook, base and owner's words; who has done nothing is begun from its birth."""
    mind.listen(context)
    born = context.life("GolemBorn").select(["golem_id", "observed_at", "born"])
    mine = born.filter(pc.is_in(born["golem_id"], value_set=pa.array(golem_ids, pa.string())))
    births = {e["golem_id"]: e for e in mine.to_pylist()}
    _load_playbooks(context, mind, golem_ids)
    instincts = Instincts.of(context.life("DefaultsInherited"))
    for golem_id in sorted(golem_ids):
        birth = births.get(golem_id)
        base = birth["born"]["traits"]["rebalance_threshold"] if birth else context.policy.playbook.rebalance_threshold
        mind.base_on(golem_id, base, instincts)
        if golem_id not in mind.done and birth is not None:
            _begin(context, mind, golem_id, birth["observed_at"], base, birth["born"]["bundle_hash"], instincts)
    return mind


def _begin(
    context: DerivationContext,
    mind: CuratorState,
    golem_id: str,
    at: datetime,
    base: float,
    bundle_hash: str | None,
    instincts: Instincts,
) -> None:
    inherited = None
    if bundle_hash is not None:
        gone = mind.left.entries(golem_id)
        inherited = inherited_entries(load_bundle(context.home, bundle_hash), golem_id, context.policy, gone)
    mind.begin(golem_id, at=at, base_threshold=base, inherited=inherited, bundle_hash=bundle_hash, instincts=instincts)


def _load_playbooks(context: DerivationContext, mind: CuratorState, golem_ids: list[str]) -> None:
    for row in _playbooks(context, mind.done, golem_ids).to_pylist():
        mind.playbooks.version[row["golem_id"]] = row["version"]
        mind.playbooks.threshold[row["golem_id"]] = tuple(row["rebalance_threshold"][r] for r in REGIMES)
        mind.playbooks.staged[row["golem_id"]] = tuple(row["staged_entries"])


def _playbooks(context: DerivationContext, done: Mapping[str, int], golem_ids: list[str]) -> pa.Table:
    """The newest playbook of each of these golems as of its last committed cycle.

    What is of a cycle that was not finished, or that is taken up again from before, will be written again, the same.
    """
    table = context.projections.growing("playbooks")
    columns = ["version", "cycle", "rebalance_threshold", "staged_entries"]
    newest = table.newest("version", columns)
    newest = newest.filter(pc.is_in(newest["golem_id"], value_set=pa.array(golem_ids, pa.string())))
    if _is_by(done, newest).all():
        return newest
    rows = table.read(["golem_id", *columns], golems=golem_ids)
    return newest_per_golem(rows.filter(pa.array(_is_by(done, rows))), "version")


def _is_by(done: Mapping[str, int], rows: pa.Table) -> np.ndarray:
    """Which rows are of a cycle that is committed. bool [rows]"""
    upto = np.array([done.get(g, -1) for g in rows["golem_id"].to_pylist()], np.int64)
    return rows["cycle"].to_numpy() <= upto


def derive_curation(context: DerivationContext) -> list[Written]:
    """Curate every closed cycle that is not on record, and again what rests on something that is left out since.

    Returns what was written, nothing if nothing was new.
    """
    with context.deriving():
        left = context.left_out()
        written = _repair(context, left)
        grimoire = context.projections.replaceable("grimoire")
        reader = CycleReader(context, "curation", EVIDENCE_COLUMNS, left, ordered=False)
        upto, portions = reader.batches(grimoire.done)
        unborn = [g for g in context.life("GolemBorn")["golem_id"].to_pylist() if not grimoire.begun(g)]
        golems = sorted({*upto, *unborn})
        mind = load_state(context, golems, left) if golems else None
        for fresh in portions:
            if mind is not None:
                mind.advance(fresh.records, fresh.cycle, fresh.upto)
        if mind is not None:
            written += commit_curation(context, mind)
        reader.advance(fresh)
        follow_adoption(context)
        return written


CURATION_TABLES = ("curation", "cycles", "playbooks", "grimoire")
"""The tables of a curator's commit, in its order."""


def _repair(context: DerivationContext, left: LeftOut) -> list[Written]:
    """Curate again, from the cycle before, what rests on something that is left out since.

    The grimoire comes last, as in `commit`: until it is there and the causes are kept as heeded, all is done again.
    """
    heeded, span = RetractionCursor(context, "curation"), context.policy.curator.cycle_ticks
    due = heeded.pending(left)
    wanted = first_touched_cycles(due, span)
    upto, committed = _reached(context, wanted)
    first = {g: min(wanted[g], committed[g] + 1) for g in upto if wanted[g] <= upto[g]}
    written: list[Written] = []
    if first:
        upto = {g: upto[g] for g in first}
        mind = state_before(context, first, left)
        records = without_retracted(closed_records(context, EVIDENCE_COLUMNS, first, upto), left)
        mind.advance(records, cycle_of(records["tick"].to_numpy(), span), upto)
        made = mind.made()
        for name, rows in (("curation", made.decisions), ("cycles", made.cycles), ("playbooks", made.playbooks)):
            table = context.projections.growing(name)
            standing = table.read(golems=first, only=pc.field("cycle") >= min(first.values()), hidden=True)
            standing = standing.filter(is_from_cycle(standing, first))
            written.append(table.repair(standing, rows, retraction_event_ids(standing, due, span)))
        written.append(_renew_grimoire(context, mind, upto))
        save_moments(context, mind.state.moments, upto, left)
        write_playbooks(context, context.projections.growing("playbooks").read(golems=first))
    heeded.mark_handled(cause.event_id for cause in due)
    return written


def _reached(context: DerivationContext, golems: Iterable[str]) -> tuple[dict[str, int], dict[str, int]]:
    """The last cycle of these golems that any table holds, and the last that is committed to the end, -1 for none.

    A commit that was cut off left some tables ahead of the grimoire. Golems of whom no table knows are left out.
    """
    furthest: dict[str, int] = {}
    committed: dict[str, int] = {}
    for golem_id in golems:
        tables = [context.projections.growing(name) for name in CURATION_TABLES[:-1]]
        grimoire = curated_through(context, golem_id)
        found = [grimoire, *(table.done(golem_id) for table in tables)]
        if any(done is not None for done in found):
            furthest[golem_id] = max(done for done in found if done is not None)
            committed[golem_id] = -1 if grimoire is None else grimoire
    return furthest, committed
