"""The curator: the passes in their order, and `curate`, which runs closed cycles through them. Pure.

Source: MEM (every 50 ticks, in order: validate, prune, compress, cross-reference), MEM-6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.curator.passes.admit_received import quarantine_received, vote_on_quarantined
from bardo_pipeline.curator.passes.bind_fragments import bind_fragments
from bardo_pipeline.curator.passes.compress import carry_up_evidence, compress
from bardo_pipeline.curator.passes.distil import consolidate, distil, phage
from bardo_pipeline.curator.passes.learn_causal_links import learn_causal_links
from bardo_pipeline.curator.passes.overrides_and_proposals import (
    apply_overrides,
    apply_proposed_votes,
    apply_retractions,
    stage_additions,
)
from bardo_pipeline.curator.passes.promote import promote, prune
from bardo_pipeline.curator.passes.weigh import weigh
from bardo_pipeline.curator.playbook import PLAYBOOK_SCHEMA, Playbooks, playbook_table
from bardo_pipeline.curator.state.decision_log import DECISION_SCHEMA, CycleBatch, DecisionLog
from bardo_pipeline.curator.state.evidence import Evidence, gather_evidence
from bardo_pipeline.curator.state.grimoire_state import GrimoireState, coded
from bardo_pipeline.curator.state.proposal_agenda import Agenda
from bardo_pipeline.curator.state.received_entries import Delivery
from bardo_pipeline.events.life.override_events import Order
from bardo_pipeline.events.life.proposal_events import Proposal
from bardo_pipeline.events.life.received_knowledge import Arrival
from bardo_pipeline.events.record.arrow_columns import all_required, required
from bardo_pipeline.grimoire.entries import MOMENT
from bardo_pipeline.mortality.random_streams import rank_within
from bardo_pipeline.policy import Policy

PASSES: tuple[Callable[[GrimoireState, CycleBatch, Policy], None], ...] = (
    apply_overrides, carry_up_evidence, weigh, consolidate, stage_additions, distil, vote_on_quarantined,
    apply_proposed_votes, promote, bind_fragments, phage, learn_causal_links, prune, apply_retractions, compress,
    quarantine_received,
)  # fmt: skip
"""The passes of a cycle, in order."""

PASSES_EDITION = "21"
"""Part of the derivation id. Increase it with every change of what passes or dreams decide."""

CYCLE_SCHEMA = pa.schema(
    [
        required("golem_id", pa.string()),
        *all_required(pa.int64(), "cycle", "tick_last"),
        required("closed_at", MOMENT),
        *all_required(pa.int64(), "record_count", "entries_pruned", "entries_promoted", "heuristics_proposed"),
    ]
)
"""One row per closed cycle of a golem (CuratorCycleComplete, MEM); key (golem_id, cycle).

entries_promoted: insights that became heuristics or warnings. heuristics_proposed: the heuristics among them, which
the playbook stages."""


@dataclass(frozen=True)
class Curation:
    """Result of `curate`: tables of DECISION_SCHEMA, CYCLE_SCHEMA and PLAYBOOK_SCHEMA."""

    decisions: pa.Table
    cycles: pa.Table
    playbooks: pa.Table


def curate(
    state: GrimoireState,
    playbooks: Playbooks,
    records: pa.Table,
    cycle: Int64Array,
    *,
    policy: Policy,
    policy_hash: str,
    orders: Sequence[Order] = (),
    proposals: Sequence[Proposal] = (),
    cited: pa.Table | None = None,
    deliveries: Sequence[Delivery] = (),
) -> Curation:
    """Run closed cycles through the passes. The result does not depend on how golems and cycles are batched.

    Parameters
    ----------
    state, playbooks : after each golem's last curated cycle; advanced in place
    records : pa.Table, EVIDENCE_COLUMNS, all records of the closed cycles, in any order
    cycle : int64 [records], cycle of each record
    orders : orders of owners that take effect in these cycles, which may have no records
    proposals : proposals of models to judge in these cycles
    cited : pa.Table, records that the proposals may cite
    deliveries : received entries to quarantine in these cycles
    """
    if not records.num_rows and not orders:
        return Curation(DECISION_SCHEMA.empty_table(), CYCLE_SCHEMA.empty_table(), PLAYBOOK_SCHEMA.empty_table())
    golem = coded(records.column("golem_id"), state.golem_code)
    evidence = gather_evidence(records, golem=golem, cycle=cycle, structures=state.structures, policy=policy.curator)
    state.ensure(evidence.golem, evidence.structure)
    state.moments.add(records, cycle, policy)

    def key_of(event: Order | Arrival) -> int:
        """Return the packed (golem, cycle) in which an event takes effect."""
        return (state.golem_code(event.golem_id) << 32) | event.cycle(policy.curator.cycle_ticks)

    keyed_orders = sorted(((key_of(order), order) for order in orders), key=lambda keyed: (keyed[0], keyed[1][:3]))
    closed = _closed_cycles(records, golem, cycle, keyed_orders)
    agenda = Agenda.of(state, proposals, cited, policy.curator, offset=len(evidence.cause_tick)).within(closed.key)
    state.ensure(*agenda.additions)
    cause_tick = np.concatenate([evidence.cause_tick, agenda.causes])
    cause_tick = np.concatenate([cause_tick, state.moments.register_causes(len(cause_tick))])
    keyed_deliveries = [(key_of(d.arrival), d) for d in sorted(deliveries, key=lambda d: d.arrival[:3])]
    log, versions = DecisionLog(cause_tick), []
    counts = np.zeros((3, len(closed.key)), np.int64)
    for cycles, wave in _waves(state, closed, evidence, log):
        keys = closed.key[cycles]
        wave.orders = tuple(order for key, order in keyed_orders if key in keys)
        wave.motions = agenda.within(keys).motions
        wave.deliveries = tuple(delivery for key, delivery in keyed_deliveries if key in keys)
        for curator_pass in PASSES:
            curator_pass(state, wave, policy)
        versions += playbooks.revise(state, wave.golem, wave.cycle, wave.at_us, policy)
        counts[:, cycles] = wave.pruned, wave.promoted, wave.proposed
    decisions = log.table(state, policy, policy_hash)
    return Curation(decisions, _cycle_table(state, closed, counts), playbook_table(versions))


@dataclass(frozen=True)
class _Closed:
    """Closed cycles sorted by (golem, cycle); wave is a cycle's position, from 0, among its golem's."""

    key: Int64Array
    golem: Int64Array
    cycle: Int64Array
    wave: Int64Array
    tick_last: Int64Array
    at_us: Int64Array
    count: Int64Array


def _closed_cycles(
    records: pa.Table, golem: Int64Array, cycle: Int64Array, orders: Sequence[tuple[int, Order]]
) -> _Closed:
    """Return the cycles of the records, and the cycles without records that orders (with their keys) close."""
    packed = (golem << 32) | cycle
    tick = records.column("tick").to_numpy()
    at_us = records.column("observed_at").cast(pa.int64()).to_numpy()
    order = np.lexsort((tick, packed))
    key, first, count = np.unique(packed[order], return_index=True, return_counts=True)
    last = order[first + count - 1]
    tick_last, closed_us = tick[last], at_us[last]
    ordered_at = {order_key: order.at for order_key, order in orders}  # the last order of each cycle
    empty = np.setdiff1d(np.array(list(ordered_at), np.int64), key)
    if len(empty):  # a cycle without records closes at the time of its last order
        ordered_us = pa.array([ordered_at[k] for k in empty.tolist()], MOMENT).cast(pa.int64()).to_numpy()
        sort, zeros = np.argsort(np.r_[key, empty]), np.zeros_like(empty)
        added = (key, empty), (count, zeros), (tick_last, zeros), (closed_us, ordered_us)
        key, count, tick_last, closed_us = (np.r_[pair][sort] for pair in added)
    owner = key >> 32
    return _Closed(key, owner, key & 0xFFFFFFFF, rank_within(owner), tick_last, closed_us, count)


def _waves(
    state: GrimoireState, closed: _Closed, evidence: Evidence, log: DecisionLog
) -> Iterator[tuple[Int64Array, CycleBatch]]:
    """Yield (positions in `closed`, batch) of the first cycles of all golems, then of the second ones, and so on.

    The rows of a batch are found when it is due, because the passes add rows to the state.
    """
    waves = int(closed.wave.max()) + 1
    group_wave = closed.wave[np.searchsorted(closed.key, (evidence.golem << 32) | evidence.cycle)]
    for cycles, groups in zip(_by_wave(closed.wave, waves), _by_wave(group_wave, waves), strict=True):
        yield cycles, CycleBatch(
            closed.golem[cycles], closed.cycle[cycles], closed.at_us[cycles],
            rows=state.find(evidence.golem[groups], evidence.structure[groups]), count=evidence.count[groups],
            total=evidence.total[groups], squares=evidence.squares[groups], mood=evidence.mood[groups],
            causes=np.stack([evidence.first[groups], evidence.stop[groups]], axis=1), log=log,
            reading=evidence.reading, day=evidence.day,
        )  # fmt: skip


def _by_wave(wave: Int64Array, waves: int) -> list[Int64Array]:
    """Return the ascending positions of each wave."""
    order = np.argsort(wave, kind="stable")
    return np.split(order, np.searchsorted(wave[order], np.arange(1, waves)))


def _cycle_table(state: GrimoireState, closed: _Closed, counts: Int64Array) -> pa.Table:
    """Return the cycles with records as CYCLE_SCHEMA. counts: pruned, promoted, proposed [3, cycles]."""
    table = pa.table(
        {
            "golem_id": pa.array(state.golems, pa.string()).take(pa.array(closed.golem)),
            "cycle": closed.cycle, "tick_last": closed.tick_last,
            "closed_at": pa.array(closed.at_us).cast(MOMENT), "record_count": closed.count,
            "entries_pruned": counts[0], "entries_promoted": counts[1], "heuristics_proposed": counts[2],
        }
    )  # fmt: skip
    recorded = table.filter(pa.array(closed.count > 0))
    return recorded.cast(CYCLE_SCHEMA).sort_by([("golem_id", "ascending"), ("cycle", "ascending")])
