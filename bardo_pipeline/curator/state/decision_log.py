"""CycleBatch, one cycle of each golem, curated together over columns; and the log of decisions about entries. Pure.

Golems are independent of each other, so the k-th cycles of all golems are one wave. A decision contains the entry after
the decision. A grimoire is the fold of its decisions: the newest one of each entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import BoolArray, Int64Array
from bardo_pipeline.curator.state.grimoire_state import ACTIVE, COLUMNS, GrimoireState, entry_columns, entry_id
from bardo_pipeline.curator.state.proposal_agenda import CitedProposal
from bardo_pipeline.curator.state.received_entries import Delivery
from bardo_pipeline.events.life.override_events import Order
from bardo_pipeline.events.record.arrow_columns import all_nullable, all_required, listed, required
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA, MOMENT
from bardo_pipeline.mortality.random_streams import rank_within
from bardo_pipeline.policy import Policy

OPERATIONS = (
    "received", "staged", "created", "reinforced", "contradicted", "promoted", "pruned",
    "pinned", "unpinned", "corrected", "retracted",
    "edited", "demoted", "noted",
    "generalized", "folded", "parted",
    "quarantined", "borne_out", "spoken_against", "admitted", "refused",
)  # fmt: skip
RECEIVED, STAGED, CREATED, REINFORCED, CONTRADICTED, PROMOTED, PRUNED = range(7)
PINNED, UNPINNED, CORRECTED, RETRACTED = range(7, 11)
EDITED, DEMOTED, NOTED = range(11, 14)
GENERALIZED, FOLDED, PARTED = range(14, 17)
QUARANTINED, BORNE_OUT, SPOKEN_AGAINST, ADMITTED, REFUSED = range(17, 22)

REASONS = (
    "inherited; not yet confirmed by own evidence",
    "evidence gathered, not yet decisive",
    "evidence is decisive",
    "own evidence agrees",
    "own evidence disagrees",
    "held long and surely enough to be acted on",
    "confidence fell below what earns a place",
    "its owner pinned it",
    "its owner unpinned it",
    "its owner corrected it",
    "its owner retracted it",
    "evidence moved what it says",
    "contradicted too often to be acted on",
    "a note stands beside it",
    "rules that differ in gas alone agree; it stands for them",
    "a wider rule stands for it",
    "what was told as one differs by now",
    "came from elsewhere; speaks in the shadow until own outcomes bear it out",
    "in the shadow: own outcomes agree",
    "in the shadow: own outcomes disagree",
    "own outcomes bore out what came from elsewhere",
    "own outcomes spoke against what came from elsewhere",
)

DECISION_SCHEMA = pa.schema(
    [
        required("golem_id", pa.string()),
        *all_required(pa.int64(), "revision", "cycle", "seq"),
        required("at", MOMENT),
        *all_required(pa.string(), "operation", "reason"),
        required("confidence_before_ppm", pa.int64()),
        listed("cause_ticks", pa.int64()),
        *all_nullable(pa.string(), "cause_bundle", "cause_event"),
        required("policy_hash", pa.string()),
        *[f for f in ENTRY_SCHEMA if f.name != "golem_id"],
    ]
)
"""One row per decision; key (golem_id, revision, cycle, seq).

cause_ticks: ticks of this golem whose records are the evidence; empty for effects of decay or an owner's order.
cause_bundle: content hash of the bundle that delivered the entry, or that delivered part of the sums of its choice.
cause_event: life event with the owner's order, the model's proposal or the delivery. seq follows the passes, so the
last decision about an entry holds its final state."""


class OutcomeNote(NamedTuple):
    """The event behind a decision about a proposed or received entry; bundle: content hash of its bundle, if any."""

    event_id: str
    reason: str
    bundle: str | None = None


DECISION_KEY = ("golem_id", "revision", "cycle", "seq")

_NOTED = (*COLUMNS, "operation", "cycle", "at_us", "before", "cause_first", "cause_stop", "order")
_OPERATION, _CYCLE, _AT, _BEFORE, _FIRST, _STOP, _ORDER = range(len(COLUMNS), len(_NOTED))
_CAUSES = slice(_FIRST, _STOP + 1)


class DecisionLog:
    """Collects decisions as columns.

    cause_tick: int64 [causes, 2], decision and judgement ticks; spans of causes are ranges of its rows.
    """

    def __init__(self, cause_tick: Int64Array) -> None:
        self._causes, self._count = cause_tick, len(cause_tick)  # `join` appends rows
        self.parts: list[Int64Array] = []  # [_NOTED, rows] each
        self.orders: list[Order | OutcomeNote] = []

    def add(self, part: Int64Array, orders: Sequence[Order | OutcomeNote]) -> None:
        """Add decisions [_NOTED, rows], and the order, proposal or delivery behind each; empty for none."""
        part[_ORDER] = np.arange(part.shape[1]) + len(self.orders) if orders else -1
        self.parts.append(part)
        self.orders += orders

    def join(self, spans: Int64Array, first: Int64Array) -> Int64Array:
        """Join each group of spans [spans, 2] into one span. first: index of each group's first span."""
        start, inside = self._count, _indices(spans[:, 0], spans[:, 1])
        self._count = start + len(inside)
        if self._count > len(self._causes):
            self._causes = np.concatenate([self._causes[:start], np.zeros((self._count, 2), np.int64)])
        self._causes[start : self._count] = self._causes[inside]
        ends = start + np.cumsum(np.add.reduceat(spans[:, 1] - spans[:, 0], first))
        return np.stack([np.r_[start, ends[:-1]], ends], axis=1)

    def table(self, state: GrimoireState, policy: Policy, policy_hash: str) -> pa.Table:
        """Return the decisions as DECISION_SCHEMA, sorted by key."""
        if not self.parts:
            return DECISION_SCHEMA.empty_table()
        order = np.repeat(np.arange(len(self.parts)), [p.shape[1] for p in self.parts])
        noted = np.concatenate(self.parts, axis=1)
        place = _sorted(state, dict(zip(_NOTED, noted, strict=True)), order)
        rows = dict(zip(_NOTED, noted.take(place, axis=1), strict=True))
        columns = entry_columns(state, rows, policy.curator, policy.decay)
        count = len(rows["golem"])
        columns |= {
            "revision": pa.array(np.zeros(count, np.int64)),
            "cycle": pa.array(rows["cycle"], pa.int64()),
            "at": pa.array(rows["at_us"], pa.int64()).cast(MOMENT),
            "operation": pa.array(OPERATIONS).take(pa.array(rows["operation"])),
            "reason": _reasons(rows, self.orders),
            "confidence_before_ppm": pa.array(rows["before"], pa.int64()),
            "cause_ticks": _cause_lists(rows["cause_first"], rows["cause_stop"], self._causes),
            "cause_bundle": _taken([getattr(order, "bundle", None) for order in self.orders], rows["order"]),
            "cause_event": _taken([order.event_id for order in self.orders], rows["order"]),
            "policy_hash": pa.array([policy_hash]).take(pa.array(np.zeros(count, np.int64))),
            "seq": pa.array(rank_within((rows["golem"] << 32) | rows["cycle"])),
        }
        return pa.table({n: columns[n] for n in DECISION_SCHEMA.names}).cast(DECISION_SCHEMA)


def _taken(values: Sequence[str | None], place: Int64Array) -> pa.Array:
    """Return the value at each place, null at -1."""
    return pa.array(values, pa.string()).take(pa.array(place, pa.int64(), mask=place < 0))


_BY_KIND = {"EntryPinned": PINNED, "EntryUnpinned": UNPINNED, "EntryCorrected": CORRECTED, "EntryRetracted": RETRACTED}


def _reasons(rows: dict[str, Int64Array], orders: Sequence[Order | OutcomeNote]) -> pa.Array:
    """Return the reason given with each order, else the sentence of the operation with count and interval."""
    ordered = [
        order.reason if isinstance(order, OutcomeNote) else f"{REASONS[_BY_KIND[order.kind]]}: {order.why}"
        for order in orders
    ]
    sentence = pa.array(REASONS).take(pa.array(rows["operation"]))
    figures = [pa.array(rows[n]).cast(pa.string()) for n in ("evidence_count", "effect_low_ppm", "effect_high_ppm")]
    full = pc.binary_join_element_wise(sentence, "; n=", figures[0], "; interval ", figures[1], " to ", figures[2], "")
    by_operation = pc.if_else(pa.array(rows["evidence_count"] > 0), full, sentence)
    return pc.coalesce(_taken(ordered, rows["order"]), by_operation)


def _cause_lists(first: Int64Array, stop: Int64Array, cause_tick: Int64Array) -> pa.Array:
    """Return the distinct ticks of each span, ascending."""
    owner = np.repeat(np.arange(len(first)), stop - first)
    flat = cause_tick[_indices(first, stop)] if len(owner) else np.zeros((0, 2), np.int64)
    ticks = int(flat.max(initial=0)) + 1
    packed = (owner[:, None] * ticks + flat).reshape(-1)  # sorts faster than pairs
    packed.sort()
    row, tick = np.divmod(packed[np.diff(packed, prepend=-1) > 0], ticks)
    offsets = np.searchsorted(row, np.arange(len(first) + 1))
    field_type = DECISION_SCHEMA.field("cause_ticks").type
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(tick, pa.int64())).cast(field_type)


def _indices(first: Int64Array, stop: Int64Array) -> Int64Array:
    lengths = stop - first
    return np.repeat(first - np.cumsum(lengths) + lengths, lengths) + np.arange(int(lengths.sum()))


def _sorted(state: GrimoireState, rows: dict[str, Int64Array], order: Int64Array) -> Int64Array:
    """Return the order of decisions by golem, cycle, part of the log and entry."""
    pairs, entry = np.unique((rows["origin"] << 32) | rows["structure"], return_inverse=True)
    keys = state.structures.keys()
    ids = [entry_id(state.golems[pair >> 32], keys[pair & 0xFFFFFFFF]) for pair in pairs.tolist()]
    return np.lexsort((_rank(ids)[entry], order, rows["cycle"], _rank(state.golems)[rows["golem"]]))


def _rank(names: Sequence[str]) -> Int64Array:
    return np.argsort(sorted(range(len(names)), key=names.__getitem__))


def fold(decisions: pa.Table) -> pa.Table:
    """Fold decisions into a grimoire (ENTRY_SCHEMA): the newest of the newest revision by golem and structure.

    The key is the structure, because an inherited entry that was pruned and learned again has a new id.
    """
    keys = [(name, "ascending") for name in ("golem_id", "structure", "revision", "cycle", "seq")]
    ordered = decisions.take(pc.sort_indices(decisions, sort_keys=keys))
    golem, structure = (ordered.column(n).to_numpy(zero_copy_only=False) for n in ("golem_id", "structure"))
    if not len(golem):
        return ENTRY_SCHEMA.empty_table()
    last = np.r_[(golem[1:] != golem[:-1]) | (structure[1:] != structure[:-1]), True]
    kept = ordered.filter(pa.array(last)).select(ENTRY_SCHEMA.names).cast(ENTRY_SCHEMA)
    return kept.sort_by([("golem_id", "ascending"), ("entry_id", "ascending")])


@dataclass
class CycleBatch:
    """One cycle of each of some golems, with its evidence.

    golem, cycle, at_us: [golems], golems ascending; at_us: closing time, the event time of the cycle's last tick.
    rows: state rows with evidence in this cycle. count, total, squares, mood, causes: the evidence of each row.
    reading, day: values and market days of levels, by cause. slots: in `readings`, of the levels with readings.
    doubted: rows that got a downvote. orders: orders of owners; order_rows: state row of each, -1 for none.
    motions: proposals of models. deliveries: received entries.
    pruned, promoted, proposed: numbers of entries by golem; proposed counts the new heuristics.
    """

    golem: Int64Array
    cycle: Int64Array
    at_us: Int64Array
    rows: Int64Array
    count: Int64Array
    total: Int64Array
    squares: Int64Array
    mood: Int64Array
    causes: Int64Array
    log: DecisionLog
    reading: Int64Array
    day: Int64Array
    slots: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))
    doubted: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))
    orders: tuple[Order, ...] = ()
    order_rows: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))
    motions: tuple[CitedProposal, ...] = ()
    deliveries: tuple[Delivery, ...] = ()

    def __post_init__(self) -> None:
        self.pruned, self.promoted, self.proposed = np.zeros((3, len(self.golem)), np.int64)

    def add_rows(self, rows: Int64Array, **evidence: Int64Array) -> None:
        """Add new rows, ascending, with evidence by column; a column that is not given is 0."""
        place = np.searchsorted(self.rows, rows)
        self.rows = np.insert(self.rows, place, rows)
        for name in ("count", "total", "squares", "mood", "causes"):
            setattr(self, name, np.insert(getattr(self, name), place, evidence.get(name, 0), axis=0))

    def place(self, state: GrimoireState, rows: Int64Array) -> Int64Array:
        """Return the index in the wave of each row's golem."""
        return np.searchsorted(self.golem, state["golem"][rows])

    def note(
        self,
        state: GrimoireState,
        operation: int,
        rows: Int64Array,
        before: Int64Array | int = 0,
        causes: Int64Array | None = None,
        orders: Sequence[Order | OutcomeNote] | None = None,
    ) -> None:
        """Log a decision about each row at the close of its golem's cycle.

        Parameters
        ----------
        before : int64 [rows], confidence before the decision in ppm
        causes : int64 [rows, 2], spans of the log's causes; None for no evidence
        orders : the order, proposal or delivery behind each decision, or None
        """
        if not len(rows):
            return
        place = self.place(state, rows)
        part = np.zeros((len(_NOTED), len(rows)), np.int64)
        part[: len(COLUMNS)] = state.block.take(rows, axis=1)
        part[_OPERATION], part[_BEFORE] = operation, before
        part[_CYCLE], part[_AT] = self.cycle[place], self.at_us[place]
        if causes is not None:
            part[_CAUSES] = causes.T
        self.log.add(part, orders or ())

    def closing(self, state: GrimoireState, rows: Int64Array) -> Int64Array:
        """Return the closing time, in microseconds, of the cycle of each row's golem."""
        return self.at_us[self.place(state, rows)]

    def ensure(self, state: GrimoireState, golem: Int64Array, structure: Int64Array) -> None:
        """Add missing (golem, structure) rows to the state, and renumber the wave's row references."""
        keys = state.keys()
        state.ensure(golem, structure)
        if state.rows == len(keys):
            return
        held = np.flatnonzero(self.order_rows >= 0)
        row_keys = keys[self.rows], keys[self.doubted], keys[self.order_rows[held]]
        self.rows, self.doubted, self.order_rows[held] = (np.searchsorted(state.keys(), k) for k in row_keys)

    def living(self, state: GrimoireState) -> Int64Array:
        """Return the state rows of the wave's active entries."""
        rows = np.flatnonzero(state["status"] == ACTIVE)
        return rows if len(self.golem) == len(state.golems) else rows[self.has(state)[state["golem"][rows]]]

    def has(self, state: GrimoireState) -> BoolArray:
        """Return which golems of the state are in the wave."""
        included = np.zeros(len(state.golems), bool)
        included[self.golem] = True
        return included
