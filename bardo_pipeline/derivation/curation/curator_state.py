"""CuratorState: the working state of a curator for some golems, how it is loaded, and the caches of its sums.

Causal moments follow from the log alone, histograms of levels from the log and the entries. Those of a golem are made
from its records again if the cache does not hold them for the wanted cycle and the current retractions.
Source: HB S4; architecture ("Time and order", law 5).
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import BoolArray, Int64Array
from bardo_pipeline.curator.causality import lagged_moments
from bardo_pipeline.curator.causality.lagged_moments import MOMENTS_SCHEMA, Moments
from bardo_pipeline.curator.choice_rules import CHOICE_FIELDS, Choices
from bardo_pipeline.curator.curate import CYCLE_SCHEMA, Curation, curate
from bardo_pipeline.curator.passes.weigh import counted_readings
from bardo_pipeline.curator.playbook import PLAYBOOK_SCHEMA, Playbooks, playbook_table
from bardo_pipeline.curator.state import level_readings
from bardo_pipeline.curator.state.decision_log import DECISION_SCHEMA, fold
from bardo_pipeline.curator.state.evidence import EVIDENCE_COLUMNS
from bardo_pipeline.curator.state.grimoire_state import GrimoireState, from_table, to_table
from bardo_pipeline.curator.state.level_readings import READINGS_SCHEMA, LevelReadings
from bardo_pipeline.curator.state.received_entries import Delivery
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental import record_queries as queries
from bardo_pipeline.derivation.incremental.golem_cache import GolemCache
from bardo_pipeline.derivation.incremental.record_queries import closed_records, cycle_of
from bardo_pipeline.derivation.incremental.retraction_tracking import is_from_cycle, without_retracted
from bardo_pipeline.derivation.legacy.bundle_sales import bought_at_birth
from bardo_pipeline.derivation.legacy.bundle_store import load_bundle
from bardo_pipeline.events.life.override_events import Overrides
from bardo_pipeline.events.life.proposal_events import Proposed
from bardo_pipeline.events.life.received_knowledge import Arrival, Arrivals
from bardo_pipeline.events.life.retractions import LeftOut
from bardo_pipeline.events.life.succession_events import Instincts
from bardo_pipeline.events.record.arrow_columns import required, rows_of_golems
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.entry_columns import newest_per_golem
from bardo_pipeline.inheritance.choice_evidence import BUNDLE_EVIDENCE_COLUMNS, evidence_bundles, name_bundles
from bardo_pipeline.inheritance.heir_entries import inherited_entries, received_decisions, with_bundle_evidence
from bardo_pipeline.policy import Policy


@dataclass
class CuratorState:
    """Entries and playbooks of some golems in working form, and the decisions since the last commit.

    left_out: retractions that its records and decisions respect. overrides, proposed, arrivals: owners' orders, models'
    proposals and received bundles on record when the newest cycle closed. context: of the last `refresh_inputs`, from
    which cited records and received bundles are read. done: golem id to last curated cycle. pending: curations with
    their golems. touched: golems with pending rows. bundles: (golem id, structure) to the bundle with inherited
    evidence about that choice.
    """

    policy: Policy
    left_out: LeftOut = field(default_factory=LeftOut)
    overrides: Overrides = field(default_factory=Overrides)
    proposed: Proposed = field(default_factory=Proposed)
    arrivals: Arrivals = field(default_factory=Arrivals)
    context: DerivationContext = field(init=False, repr=False, compare=False)
    state: GrimoireState = field(default_factory=GrimoireState)
    playbooks: Playbooks = field(default_factory=Playbooks)
    done: dict[str, int] = field(default_factory=dict)
    pending: list[tuple[frozenset[str], Curation]] = field(default_factory=list)
    touched: set[str] = field(default_factory=set)
    bundles: dict[tuple[str, str], str] = field(default_factory=dict)

    def begin_life(
        self,
        golem_id: str,
        *,
        at: datetime,
        base_threshold: float,
        inherited: pa.Table | None,
        bundle_hash: str | None,
        instincts: Instincts | None = None,
    ) -> Curation:
        """Begin a golem's life at cycle 0, with the entries of its bundle and the defaults of its lineage if any."""
        code = self.state.golem_code(golem_id)
        self.set_base(golem_id, base_threshold, instincts or Instincts())
        decisions = DECISION_SCHEMA.empty_table()
        if inherited is not None and inherited.num_rows:
            assert bundle_hash is not None, "inherited entries come in a bundle"
            self.state.absorb(inherited)
            decisions = received_decisions(inherited, bundle_hash, at, self.policy.hash)
            self.bundles |= evidence_bundles(decisions)
        at_us = np.array([pa.scalar(at, pa.timestamp("us", tz="UTC")).cast(pa.int64()).as_py()])
        versions = self.playbooks.revise(self.state, np.array([code]), np.zeros(1, np.int64), at_us, self.policy)
        return self._add(Curation(decisions, CYCLE_SCHEMA.empty_table(), playbook_table(versions)), {golem_id: 0})

    def set_base(self, golem_id: str, threshold: float, instincts: Instincts) -> None:
        """Set the golem's thresholds before any rule: inherited defaults by regime, else `threshold`."""
        self.playbooks.base[golem_id] = instincts.base(golem_id, threshold)
        self.playbooks.instincts[golem_id] = instincts.words(golem_id)

    def advance(self, records: pa.Table, cycle: Int64Array, upto: dict[str, int]) -> Curation:
        """Curate the closed cycles of these golems up to `upto`; returns the new decisions.

        Raises BundleError for a received bundle that is not in this home.
        """
        span = self.policy.curator.cycle_ticks
        orders, proposals = self.overrides.due(self.done, upto, span), self.proposed.due(self.done, upto, span)
        cited = without_retracted(queries.cited_records(self.context, proposals), self.left_out) if proposals else None
        arrivals = self.arrivals.due(self.done, upto, span)
        contents = {name: load_bundle(self.context.home, name).entries() for name in {a.content_hash for a in arrivals}}
        curation = curate(
            self.state, self.playbooks, records, cycle, policy=self.policy, policy_hash=self.policy.hash, orders=orders,
            proposals=proposals, cited=cited,
            deliveries=[self._delivery(arrival, contents[arrival.content_hash]) for arrival in arrivals],
        )  # fmt: skip
        decisions, self.bundles = name_bundles(curation.decisions, self.bundles)
        return self._add(replace(curation, decisions=decisions), upto)

    def _delivery(self, arrival: Arrival, entries: pa.Table) -> Delivery:
        """Return the received entries that were not withdrawn."""
        withdrawn = self.left_out.entries(arrival.golem_id)
        is_kept = pc.invert(pc.is_in(entries["entry_id"], value_set=pa.array(sorted(withdrawn), pa.string())))
        return Delivery(arrival, entries.filter(is_kept) if withdrawn else entries)

    def _add(self, curation: Curation, upto: dict[str, int]) -> Curation:
        decisions, span = curation.decisions, self.policy.curator.cycle_ticks
        revision = self.left_out.revision(decisions["golem_id"], decisions["cycle"].to_numpy(), span)
        column = decisions.schema.get_field_index("revision")
        revision = pa.array(revision, pa.int64())
        curation = replace(curation, decisions=decisions.set_column(column, decisions.schema.field(column), revision))
        self.pending.append((frozenset(upto), curation))
        self.done |= upto
        self.touched |= set(upto)
        return curation

    def pending_curation(self, golem_ids: Set[str] | None = None) -> Curation:
        """Return everything decided for these golems, or for all, since the last commit."""
        decided = [
            curation if golem_ids is None else _rows_of(curation, golems, golem_ids)
            for golems, curation in self.pending
            if golem_ids is None or golems & golem_ids
        ]
        schemas = (("decisions", DECISION_SCHEMA), ("cycles", CYCLE_SCHEMA), ("playbooks", PLAYBOOK_SCHEMA))
        tables = ([s.empty_table(), *(getattr(curation, name) for curation in decided)] for name, s in schemas)
        return Curation(*(pa.concat_tables(parts).combine_chunks() for parts in tables))

    def refresh_inputs(self, context: DerivationContext) -> None:
        """Load the overrides, proposals and arrivals that are on record now."""
        self.context = context
        self.overrides, self.proposed, self.arrivals = context.overrides(), context.proposed(), context.arrivals()

    def stale_golems(self, context: DerivationContext) -> set[str]:
        """Return the golems whose retractions or due inputs changed since their pending decisions were made.

        Inputs for a closed cycle can only come after a death, because only death closes a cycle early.
        """
        left_out = context.left_out()
        inputs = self.overrides, self.proposed, self.arrivals
        current = context.overrides(), context.proposed(), context.arrivals()
        return {
            golem_id
            for golem_id in self.touched
            if left_out.of_golem(golem_id) != self.left_out.of_golem(golem_id)
            or self._due_inputs(golem_id, *inputs) != self._due_inputs(golem_id, *current)
        }

    def _due_inputs(
        self, golem_id: str, overrides: Overrides, proposed: Proposed, arrivals: Arrivals
    ) -> tuple[object, ...]:
        upto, span = {golem_id: self.done[golem_id]}, self.policy.curator.cycle_ticks
        return overrides.due({}, upto, span), proposed.due({}, upto, span), arrivals.due({}, upto, span)

    def discard(self, golem_ids: set[str]) -> None:
        """Discard the pending decisions of these golems."""
        self.touched -= golem_ids
        self.pending = [
            (others, _rows_of(curation, golems, others))
            for golems, curation in self.pending
            if (others := golems - golem_ids)
        ]

    def replace_golems(self, other: CuratorState) -> None:
        """Replace the golems of another state, which have nothing pending here, by their state there."""
        self.state = self.state.without_golems(set(other.done))
        self.state.absorb(to_table(other.state, self.policy.curator, self.policy.decay))
        self.state.moments.absorb(other.state.moments)
        self.state.readings.absorb(other.state.readings)
        self.playbooks.version |= other.playbooks.version
        self.playbooks.threshold |= other.playbooks.threshold
        self.playbooks.staged |= other.playbooks.staged
        self.playbooks.choices |= other.playbooks.choices
        self._forget_bundles(set(other.done))
        self.bundles |= other.bundles

    def remove_golems(self, golem_ids: set[str]) -> None:
        """Remove dead golems that have nothing pending."""
        self.state = self.state.without_golems(golem_ids)
        self._forget_bundles(golem_ids)

    def _forget_bundles(self, golem_ids: set[str]) -> None:
        self.bundles = {key: bundle for key, bundle in self.bundles.items() if key[0] not in golem_ids}


def load_state(context: DerivationContext, golem_ids: list[str], left_out: LeftOut) -> CuratorState:
    """Return golems at their last committed cycle; golems without one begin their life."""
    state = CuratorState(context.policy, left_out)
    grimoire = context.projections.replaceable("grimoire")
    state.done = {g: done for g in golem_ids if (done := grimoire.done(g)) is not None}
    state.state = from_table(grimoire.read(only=golem_ids))
    return _completed(context, state, golem_ids)


def state_before(context: DerivationContext, first: Mapping[str, int], left_out: LeftOut) -> CuratorState:
    """Return golems in their state before a cycle, from standing decisions; before cycle 0 they begin their life."""
    state = CuratorState(context.policy, left_out)
    state.done = {g: cycle - 1 for g, cycle in first.items() if cycle > 0}
    decisions = context.projections.growing("curation").read(golems=sorted(state.done))
    state.state = from_table(fold(decisions.filter(pc.invert(is_from_cycle(decisions, first)))))
    return _completed(context, state, sorted(first))


def state_from_birth(context: DerivationContext, upto: Mapping[str, int], left_out: LeftOut) -> CuratorState:
    """Curate golems again from birth to a closed cycle, from their records alone, without retracted ones."""
    first = dict.fromkeys(upto, 0)
    state = state_before(context, first, left_out)
    records = queries.closed_records(context, EVIDENCE_COLUMNS, first, upto, left_out)
    state.advance(records, queries.cycle_of(records["tick"].to_numpy(), context.policy.curator.cycle_ticks), dict(upto))
    return state


def _completed(context: DerivationContext, state: CuratorState, golem_ids: list[str]) -> CuratorState:
    """Add moments, inputs, playbooks and bases; golems without a curated cycle begin their life."""
    state.state.moments = load_moments(context, state.done, state.left_out)
    state.state.readings = load_readings(context, state.state, state.done, state.left_out)
    state.refresh_inputs(context)
    for row in _playbooks(context, state.done, golem_ids).to_pylist():
        state.playbooks.version[row["golem_id"]] = row["version"]
        state.playbooks.threshold[row["golem_id"]] = tuple(row["rebalance_threshold"][r] for r in REGIMES)
        state.playbooks.staged[row["golem_id"]] = tuple(row["staged_entries"])
        state.playbooks.choices[row["golem_id"]] = Choices.of_columns(row)
    births = rows_of_golems(context.life("GolemBorn").select(["golem_id", "observed_at", "born"]), golem_ids)
    births_by_golem = {row["golem_id"]: row for row in births.to_pylist()}
    heirs = {g: state.done[g] for g, b in births_by_golem.items() if g in state.done and b["born"]["bundle_hash"]}
    state.bundles |= _evidence_bundles_at(context, heirs)
    instincts = Instincts.of(context.life("DefaultsInherited"))
    bought = bought_at_birth(context, [golem_id for golem_id in golem_ids if golem_id not in state.done])
    for golem_id in sorted(golem_ids):
        birth = births_by_golem.get(golem_id)
        base = birth["born"]["traits"]["rebalance_threshold"] if birth else context.policy.playbook.rebalance_threshold
        state.set_base(golem_id, base, instincts)
        if golem_id not in state.done and birth is not None:
            bundle_hash, inherited = birth["born"]["bundle_hash"], None
            if bundle_hash is not None:
                withdrawn = state.left_out.entries(golem_id)
                bundle = load_bundle(context.home, bundle_hash)
                is_bought = golem_id in bought
                inherited = inherited_entries(bundle, golem_id, context.policy, withdrawn, bought=is_bought)
                inherited = with_bundle_evidence(
                    inherited, bundle, golem_id, context.policy, withdrawn, bought=is_bought
                )
            state.begin_life(
                golem_id, at=birth["observed_at"], base_threshold=base, inherited=inherited, bundle_hash=bundle_hash,
                instincts=instincts,
            )  # fmt: skip
    return state


def _evidence_bundles_at(context: DerivationContext, done: Mapping[str, int]) -> dict[tuple[str, str], str]:
    """Return the bundles whose evidence about choices is in the sums of heirs after these cycles."""
    if not done:
        return {}
    of_interest = (pc.field("source") == "choice") & ((pc.field("cycle") == 0) | (pc.field("own_count") == 0))
    table = context.projections.growing("curation")
    rows = table.read(BUNDLE_EVIDENCE_COLUMNS, golems=sorted(done), only=of_interest)
    return evidence_bundles(rows.filter(pa.array(_is_committed(done, rows), pa.bool_())))


def _playbooks(context: DerivationContext, done: Mapping[str, int], golem_ids: list[str]) -> pa.Table:
    """Return each golem's newest playbook as of its last committed cycle.

    Playbooks of later cycles come from an interrupted commit or are derived again; they are ignored.
    """
    table = context.projections.growing("playbooks")
    columns = ["version", "cycle", "rebalance_threshold", "staged_entries", *(f.name for f in CHOICE_FIELDS)]
    newest = rows_of_golems(table.newest("version", columns), golem_ids)
    if _is_committed(done, newest).all():
        return newest
    rows = table.read(["golem_id", *columns], golems=golem_ids)
    return newest_per_golem(rows.filter(pa.array(_is_committed(done, rows))), "version")


def _is_committed(done: Mapping[str, int], rows: pa.Table) -> BoolArray:
    last = np.array([done.get(g, -1) for g in rows["golem_id"].to_pylist()], np.int64)
    is_committed: BoolArray = rows["cycle"].to_numpy() <= last
    return is_committed


_RECORD_COLUMNS = ("golem_id", "tick", "observed_at", "observation", "outcome")
_VALID_FOR = required("cycle", pa.int64()), required("left", pa.string())
"""The cycle after which a golem's cached sums are valid, and the signature of its retractions."""

_CACHE_SCHEMA = pa.schema([*MOMENTS_SCHEMA, *_VALID_FOR])
_READINGS_CACHE_SCHEMA = pa.schema([*READINGS_SCHEMA, *_VALID_FOR])


def load_moments(context: DerivationContext, done: Mapping[str, int], left_out: LeftOut) -> Moments:
    """Return the moments of golems at their last cycles; a golem at cycle 0 has none.

    Parameters
    ----------
    done : golem id to last cycle
    """
    wanted = {g: cycle for g, cycle in done.items() if cycle > 0}
    moments = Moments()
    cached = _current(GolemCache(context, "moments", _CACHE_SCHEMA), wanted, left_out)
    moments.absorb(lagged_moments.from_table(cached.select(MOMENTS_SCHEMA.names)))
    loaded = {golem_id for golem_id, _ in moments.of}
    missing = {g: cycle for g, cycle in wanted.items() if g not in loaded}
    if missing:
        records = closed_records(context, _RECORD_COLUMNS, dict.fromkeys(missing, 1), missing, left_out)
        cycle = cycle_of(records["tick"].to_numpy(), context.policy.curator.cycle_ticks)
        computed = Moments()
        computed.add(records, cycle, context.policy)
        computed.settle(missing, context.policy)
        moments.absorb(computed)
    return moments


def load_readings(
    context: DerivationContext, state: GrimoireState, done: Mapping[str, int], left_out: LeftOut
) -> LevelReadings:
    """Return the histograms of the levels of golems at their last cycles.

    Parameters
    ----------
    state : entries of the golems at these cycles
    done : golem id to last cycle
    """
    rows = np.flatnonzero(state.structures.is_level()[state["structure"]] & (state["own_sumsq"] > 0))
    first: dict[str, int] = {}
    for golem, cycle in zip(state["golem"][rows].tolist(), state["own_sum"][rows].tolist(), strict=True):
        golem_id = state.golems[golem]
        first[golem_id] = min(cycle, first.get(golem_id, cycle))
    first = {g: cycle for g, cycle in first.items() if done.get(g, 0) > 0}
    cached = _current(GolemCache(context, "readings", _READINGS_CACHE_SCHEMA), {g: done[g] for g in first}, left_out)
    readings = level_readings.from_table(cached.select(READINGS_SCHEMA.names))
    loaded = {golem_id for golem_id, _ in readings.slots}
    missing = {g: cycle for g, cycle in first.items() if g not in loaded}
    if missing:
        records = closed_records(context, EVIDENCE_COLUMNS, missing, {g: done[g] for g in missing}, left_out)
        cycle = cycle_of(records["tick"].to_numpy(), context.policy.curator.cycle_ticks)
        readings.absorb(counted_readings(state, records, cycle, context.policy))
    return readings


def _current(cache: GolemCache, wanted: Mapping[str, int], left_out: LeftOut) -> pa.Table:
    """Return the cached rows that are valid for the wanted cycles and the retractions."""
    cached = cache.read(wanted)
    named = zip(*(cached[n].to_pylist() for n in ("golem_id", "cycle", "left")), strict=True)
    is_current = [wanted.get(g) == cycle and _signature(left_out, g) == left for g, cycle, left in named]
    return cached.filter(pa.array(is_current, pa.bool_()))


def _rows_of(curation: Curation, golems: Set[str], wanted: Set[str]) -> Curation:
    """Return the rows of the wanted golems in a curation of `golems`."""
    if golems <= wanted:
        return curation
    tables = curation.decisions, curation.cycles, curation.playbooks
    return Curation(*(rows_of_golems(rows, wanted) for rows in tables))


def save_sums(context: DerivationContext, state: GrimoireState, done: Mapping[str, int], left_out: LeftOut) -> None:
    """Cache moments and histograms of these golems at their last cycles; those of dead golems are dropped."""
    alive = set(done) - set(context.life("DeathDeclared")["golem_id"].to_pylist())
    caches = ("moments", _CACHE_SCHEMA, state.moments), ("readings", _READINGS_CACHE_SCHEMA, state.readings)
    for name, schema, sums in caches:
        rows = sums.table(alive)
        golems = rows["golem_id"].to_pylist()
        valid_for = [done[g] for g in golems], [_signature(left_out, g) for g in golems]
        for column, values in zip(_VALID_FOR, valid_for, strict=True):
            rows = rows.append_column(column, pa.array(values, column.type))
        GolemCache(context, name, schema).replace(rows, done)


def _signature(left_out: LeftOut, golem_id: str) -> str:
    """Return a text that identifies the retracted ticks of a golem."""
    return repr(left_out.of_golem(golem_id)[0])
