"""CycleBatch: one cycle of each golem, curated together over columns. Pure.

Golems are independent of each other, so the k-th cycles of all golems are one wave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bardo_pipeline.arrays import BoolArray, Int64Array
from bardo_pipeline.curator.state.decision_log import DecisionLog, OutcomeNote
from bardo_pipeline.curator.state.grimoire_state import ACTIVE, GrimoireState
from bardo_pipeline.curator.state.proposal_agenda import CitedProposal
from bardo_pipeline.curator.state.received_entries import Delivery
from bardo_pipeline.events.life.override_events import Order


@dataclass
class CycleBatch:
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
        """Log a decision about each row at the close of its golem's cycle (see `DecisionLog.note`)."""
        if len(rows):
            place = self.place(state, rows)
            self.log.note(state, operation, rows, self.cycle[place], self.at_us[place], before, causes, orders)

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
