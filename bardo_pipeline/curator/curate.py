"""The curator: its passes in their order, and `curate`, which takes a stretch of closed cycles through them. Pure.

Source: MEM (every 50 ticks, in order: validate, prune, compress, cross-reference), MEM-6.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from bardo_pipeline.curator.passes.admit_received import receive, shadow
from bardo_pipeline.curator.passes.compress import compress, lead
from bardo_pipeline.curator.passes.consolidate import consolidate
from bardo_pipeline.curator.passes.distil import distil
from bardo_pipeline.curator.passes.learn_causal_links import learn_links
from bardo_pipeline.curator.passes.model_proposals import consider, stage
from bardo_pipeline.curator.passes.owner_overrides import heed, retract
from bardo_pipeline.curator.passes.phage import phage
from bardo_pipeline.curator.passes.promote import promote
from bardo_pipeline.curator.passes.prune import prune
from bardo_pipeline.curator.passes.weigh import weigh
from bardo_pipeline.curator.playbook import PlaybookLog, Playbooks
from bardo_pipeline.curator.state.cycle_batch import Wave, wave_of
from bardo_pipeline.curator.state.decision_log import DECISION_SCHEMA, DecisionLog
from bardo_pipeline.curator.state.evidence import gather_evidence
from bardo_pipeline.curator.state.grimoire_state import GrimoireState
from bardo_pipeline.curator.state.proposal_agenda import Agenda
from bardo_pipeline.curator.state.received_entries import Delivery
from bardo_pipeline.events.life.override_events import Order
from bardo_pipeline.events.life.proposal_events import Proposal
from bardo_pipeline.grimoire.entries import MOMENT
from bardo_pipeline.grimoire.entry_columns import contiguous
from bardo_pipeline.policy import Policy

PASSES: tuple[Callable[[GrimoireState, Wave, Policy], None], ...] = (
    heed, lead, weigh, consolidate, stage, distil, shadow, consider, promote, phage, learn_links, prune, retract,
    compress, receive,
)  # fmt: skip
"""The passes of a cycle, in order."""

PASSES_EDITION = "15"
"""Changed whenever a pass, or a dream, decides differently; part of the derivation id."""

CYCLE_SCHEMA = pa.schema(
    [
        pa.field("golem_id", pa.string(), nullable=False),
        pa.field("cycle", pa.int64(), nullable=False),
        pa.field("tick_last", pa.int64(), nullable=False),
        pa.field("closed_at", MOMENT, nullable=False),
        pa.field("record_count", pa.int64(), nullable=False),
        pa.field("entries_pruned", pa.int64(), nullable=False),
        pa.field("entries_promoted", pa.int64(), nullable=False),
        pa.field("heuristics_proposed", pa.int64(), nullable=False),
    ]
)
"""One row per closed cycle of a golem (CuratorCycleComplete, MEM); key (golem_id, cycle).

entries_promoted: insights that became heuristics or warnings; heuristics_proposed: the heuristics among them, which
the playbook stages."""


@dataclass(frozen=True)
class Curation:
    """What curating a stretch of cycles gave: tables of DECISION_SCHEMA, CYCLE_SCHEMA and PLAYBOOK_SCHEMA."""

    decisions: pa.Table
    cycles: pa.Table
    playbooks: pa.Table


def curate(
    state: GrimoireState,
    playbooks: Playbooks,
    records: pa.Table,
    cycle: np.ndarray,
    *,
    policy: Policy,
    policy_hash: str,
    orders: Sequence[Order] = (),
    proposals: Sequence[Proposal] = (),
    cited: pa.Table | None = None,
    deliveries: Sequence[Delivery] = (),
) -> Curation:
    """Take closed cycles through the passes.

    state, playbooks: as they stood at each golem's last curated cycle; they are advanced in place. records: the records
    (EVIDENCE_COLUMNS) of whole closed cycles, in any order; cycle: int64 [records], the cycle of each. orders: what
    owners said that takes effect in these cycles; one that has no record is curated for their sake alone. proposals:
    what models proposed that is judged in these cycles; cited: the records that may hold what it cites.
    deliveries: what came to golems from elsewhere and is let into quarantine with these cycles.
    The result does not depend on which golems or how many cycles are taken together.
    """
    if not records.num_rows and not orders:
        return Curation(DECISION_SCHEMA.empty_table(), CYCLE_SCHEMA.empty_table(), PlaybookLog().table())
    golem = _golem_codes(state, records)
    evidence = gather_evidence(records, golem=golem, cycle=cycle, structures=state.structures, policy=policy.curator)
    state.ensure(evidence.golem, evidence.structure)
    state.moments.add(records, cycle, policy)
    heard = _Heard.of(state, orders, policy.curator.cycle_ticks)
    closed = _closed_cycles(records, golem, cycle, heard)
    agenda = Agenda.of(state, proposals, cited, policy.curator, offset=len(evidence.cause_tick)).within(closed.key)
    state.ensure(*agenda.additions)
    cause_tick = np.concatenate([evidence.cause_tick, agenda.causes])
    cause_tick = np.concatenate([cause_tick, state.moments.mention(len(cause_tick))])
    brought = _brought(state, deliveries, policy.curator.cycle_ticks)
    group_wave = closed.wave[np.searchsorted(closed.key, (evidence.golem << 32) | evidence.cycle)]
    by_wave = np.argsort(group_wave, kind="stable")
    bounds = np.searchsorted(group_wave[by_wave], np.arange(closed.waves + 1))
    log, books = DecisionLog(cause_tick), PlaybookLog()
    reports: list[tuple[np.ndarray, ...]] = []
    by_number = np.split(np.argsort(closed.wave, kind="stable"), np.cumsum(np.bincount(closed.wave))[:-1])
    for number, mine in enumerate(by_number):
        wave = wave_of(
            state, evidence, by_wave[bounds[number] : bounds[number + 1]],
            closed.golem[mine], closed.cycle[mine], closed.at_us[mine], log, heard.among(closed.key[mine]),
            agenda.within(closed.key[mine]).motions,
            tuple(d for d, key in brought if key in closed.key[mine]),
        )  # fmt: skip
        for one in PASSES:
            one(state, wave, policy)
        playbooks.revise(state, wave.golem, wave.cycle, wave.at_us, books, policy)
        reports.append((mine, wave.pruned, wave.promoted, wave.proposed))
    return Curation(log.table(state, policy, policy_hash), _report(state, closed, reports), books.table())


def _brought(state: GrimoireState, deliveries: Sequence[Delivery], cycle_ticks: int) -> list[tuple[Delivery, int]]:
    """What came, by golem, tick seen and event, with the packed (golem, cycle) with which it is let in."""
    ordered = sorted(deliveries, key=lambda delivery: delivery.arrival[:3])
    return [(d, (state.golem_code(d.arrival.golem_id) << 32) | d.arrival.cycle(cycle_ticks)) for d in ordered]


@dataclass(frozen=True)
class _Heard:
    """Orders by golem, cycle and number, the packed (golem, cycle) of each, and when it was said (microseconds)."""

    orders: tuple[Order, ...]
    key: np.ndarray
    at_us: np.ndarray

    @classmethod
    def of(cls, state: GrimoireState, orders: Sequence[Order], cycle_ticks: int) -> _Heard:
        def place(order: Order) -> int:
            return (state.golem_code(order.golem_id) << 32) | order.cycle(cycle_ticks)

        ordered = tuple(sorted(orders, key=lambda order: (place(order), order[:3])))
        at = pa.array([order.at for order in ordered], MOMENT).cast(pa.int64()).to_numpy()
        return cls(ordered, np.array([place(order) for order in ordered], np.int64), at)

    def among(self, keys: np.ndarray) -> tuple[Order, ...]:
        """Those that take effect in these cycles."""
        return tuple(self.orders[i] for i in np.flatnonzero(np.isin(self.key, keys))) if self.orders else ()


@dataclass(frozen=True)
class _Closed:
    """The closed cycles at hand, sorted by (golem, cycle); wave: the how-manieth of its golem."""

    key: np.ndarray
    golem: np.ndarray
    cycle: np.ndarray
    wave: np.ndarray
    tick_last: np.ndarray
    at_us: np.ndarray
    count: np.ndarray

    @property
    def waves(self) -> int:
        return int(self.wave.max()) + 1 if len(self.wave) else 0


def _golem_codes(state: GrimoireState, records: pa.Table) -> np.ndarray:
    ids = contiguous(records.column("golem_id")).dictionary_encode()
    codes = np.array([state.golem_code(g) for g in ids.dictionary.to_pylist()], dtype=np.int64)
    return codes[ids.indices.to_numpy(zero_copy_only=False)]


def _closed_cycles(records: pa.Table, golem: np.ndarray, cycle: np.ndarray, heard: _Heard) -> _Closed:
    packed = (golem << 32) | cycle
    tick = records.column("tick").to_numpy()
    at_us = records.column("observed_at").cast(pa.int64()).to_numpy()
    order = np.lexsort((tick, packed))
    key, first, count = np.unique(packed[order], return_index=True, return_counts=True)
    last = order[first + count - 1]
    tick_last, closed_us = tick[last], at_us[last]
    bare = np.setdiff1d(heard.key, key)
    if len(bare):  # no record stands in it: it closes with the last word that was said
        said = np.searchsorted(heard.key, bare, side="right") - 1
        sort = np.argsort(np.r_[key, bare])
        key, count, tick_last, closed_us = (
            np.r_[a, b][sort]
            for a, b in (
                (key, bare), (count, np.zeros_like(bare)), (tick_last, np.zeros_like(bare)),
                (closed_us, heard.at_us[said]),
            )
        )  # fmt: skip
    owner = key >> 32
    starts = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]])
    wave = np.arange(len(key)) - np.repeat(starts, np.diff(np.r_[starts, len(key)]))
    return _Closed(key, owner, key & 0xFFFFFFFF, wave, tick_last, closed_us, count)


def _report(state: GrimoireState, closed: _Closed, reports: list[tuple[np.ndarray, ...]]) -> pa.Table:
    place = np.concatenate([r[0] for r in reports])
    counted = [np.zeros(len(closed.key), np.int64) for _ in range(3)]
    for column, number in zip(counted, (1, 2, 3), strict=True):
        column[place] = np.concatenate([r[number] for r in reports])
    table = pa.table(
        {
            "golem_id": pa.array(state.golems, pa.string()).take(pa.array(closed.golem)),
            "cycle": closed.cycle, "tick_last": closed.tick_last,
            "closed_at": pa.array(closed.at_us).cast(MOMENT), "record_count": closed.count,
            "entries_pruned": counted[0], "entries_promoted": counted[1], "heuristics_proposed": counted[2],
        }
    )  # fmt: skip
    told = table.filter(pa.array(closed.count > 0))  # a cycle without a record was not lived
    return told.cast(CYCLE_SCHEMA).sort_by([("golem_id", "ascending"), ("cycle", "ascending")])
