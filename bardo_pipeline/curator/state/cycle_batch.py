"""Wave: one cycle of each golem, curated together over columns. Pure.

Golems are independent of each other, so the k-th cycles of all golems are one wave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bardo_pipeline.arrays import BoolArray, Int64Array
from bardo_pipeline.curator.state.decision_log import Considered, DecisionLog
from bardo_pipeline.curator.state.evidence import Evidence
from bardo_pipeline.curator.state.grimoire_state import ACTIVE, GrimoireState
from bardo_pipeline.curator.state.proposal_agenda import Motion
from bardo_pipeline.curator.state.received_entries import Delivery
from bardo_pipeline.events.life.override_events import Order


@dataclass
class Wave:
    """One cycle of each of some golems, with its evidence.

    golem, cycle, at_us: [golems], golems ascending; at_us: closing time, the event time of the cycle's last tick.
    rows: state rows with evidence in this cycle. count, total, squares, mood, causes: the evidence of each row.
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
    pruned: Int64Array
    promoted: Int64Array
    proposed: Int64Array
    doubted: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))
    orders: tuple[Order, ...] = ()
    order_rows: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))
    motions: tuple[Motion, ...] = ()
    deliveries: tuple[Delivery, ...] = ()

    def look_at(self, rows: Int64Array) -> None:
        """Add rows without evidence in this cycle, to be judged by their earlier evidence."""
        none, pairs = np.zeros(len(rows), np.int64), np.zeros((len(rows), 2), np.int64)
        self.bring(rows, none, none, none, np.zeros((len(rows), 3), np.int64), pairs)

    def bring(
        self,
        rows: Int64Array,
        count: Int64Array,
        total: Int64Array,
        squares: Int64Array,
        mood: Int64Array,
        causes: Int64Array,
    ) -> None:
        """Add new rows, ascending, with their evidence."""
        place = np.searchsorted(self.rows, rows)
        self.rows = np.insert(self.rows, place, rows)
        self.count, self.total, self.squares = (
            np.insert(old, place, new)
            for old, new in ((self.count, count), (self.total, total), (self.squares, squares))
        )
        self.mood = np.insert(self.mood, place, mood, axis=0)
        self.causes = np.insert(self.causes, place, causes, axis=0)

    def place(self, state: GrimoireState, rows: Int64Array) -> Int64Array:
        """Return the index in the wave of each row's golem."""
        return np.searchsorted(self.golem, state["golem"][rows])

    def note(
        self,
        state: GrimoireState,
        operation: int,
        rows: Int64Array,
        before: Int64Array,
        causes: Int64Array | None = None,
        orders: Sequence[Order | Considered] | None = None,
    ) -> None:
        """Log a decision about each row at the close of its golem's cycle. before: confidence in ppm."""
        if len(rows):
            place = self.place(state, rows)
            cycle, at_us = self.cycle[place], self.at_us[place]
            self.log.note(state, operation, rows, cycle=cycle, at_us=at_us, before=before, causes=causes, orders=orders)

    def closing(self, state: GrimoireState, rows: Int64Array) -> Int64Array:
        """Return the closing time, in microseconds, of the cycle of each row's golem."""
        return self.at_us[self.place(state, rows)]

    def ensure(self, state: GrimoireState, golem: Int64Array, structure: Int64Array) -> None:
        """Add missing (golem, structure) rows to the state, and renumber the wave's row references."""
        keys = state.keys()
        held = np.flatnonzero(self.order_rows >= 0)
        row_keys = keys[self.rows], keys[self.doubted], keys[self.order_rows[held]]
        state.ensure(golem, structure)
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


def wave_of(
    state: GrimoireState,
    evidence: Evidence,
    pick: Int64Array,
    golem: Int64Array,
    cycle: Int64Array,
    at_us: Int64Array,
    log: DecisionLog,
    orders: tuple[Order, ...] = (),
    motions: tuple[Motion, ...] = (),
    deliveries: tuple[Delivery, ...] = (),
) -> Wave:
    """Build the wave of these golems' cycles. pick: indices of its evidence groups."""
    rows = state.find(evidence.golem[pick], evidence.structure[pick])
    zeros = np.zeros(len(golem), np.int64)
    return Wave(
        golem=golem, cycle=cycle, at_us=at_us, rows=rows, count=evidence.count[pick], total=evidence.total[pick],
        squares=evidence.squares[pick], mood=evidence.mood[pick],
        causes=np.stack([evidence.first[pick], evidence.stop[pick]], axis=1), log=log,
        pruned=zeros.copy(), promoted=zeros.copy(), proposed=zeros.copy(), orders=orders,
        motions=motions, deliveries=deliveries,
    )  # fmt: skip
