"""A wave: the next open cycle of each golem at hand, curated together. Pure.

Golems do not see each other, so the k-th cycle of every golem can be taken in one pass over columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bardo_pipeline.curator.state.decision_log import Considered, DecisionLog
from bardo_pipeline.curator.state.evidence import Evidence
from bardo_pipeline.curator.state.grimoire_state import ACTIVE, GrimoireState
from bardo_pipeline.curator.state.proposal_agenda import Motion
from bardo_pipeline.curator.state.received_entries import Delivery
from bardo_pipeline.events.life.override_events import Order


@dataclass
class Wave:
    """One cycle of each of some golems, and the evidence that it brought.

    golem, cycle, at_us: [golems in the wave], golems ascending, at_us being the cycle's closing moment (event time of
    its last tick).
    rows: state rows with new evidence; their count, total, squares, mood and span of causes beside them.
    doubted: rows that lost a vote in this cycle. orders: what owners said of the golems' entries, in
    order; order_rows: the state row of each, -1 for none, once they are heeded. motions: what was proposed, in order.
    deliveries: what came to them from elsewhere, in order.
    pruned, promoted, proposed: how many entries of each golem were, proposed being heuristics for its playbook.
    """

    golem: np.ndarray
    cycle: np.ndarray
    at_us: np.ndarray
    rows: np.ndarray
    count: np.ndarray
    total: np.ndarray
    squares: np.ndarray
    mood: np.ndarray
    causes: np.ndarray
    log: DecisionLog
    pruned: np.ndarray
    promoted: np.ndarray
    proposed: np.ndarray
    doubted: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    orders: tuple[Order, ...] = ()
    order_rows: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    motions: tuple[Motion, ...] = ()
    deliveries: tuple[Delivery, ...] = ()

    def look_at(self, rows: np.ndarray) -> None:
        """Take in rows that this cycle brought no evidence for, to be judged by what they have."""
        none, pairs = np.zeros(len(rows), np.int64), np.zeros((len(rows), 2), np.int64)
        self.bring(rows, none, none, none, np.zeros((len(rows), 3), np.int64), pairs)

    def bring(
        self,
        rows: np.ndarray,
        count: np.ndarray,
        total: np.ndarray,
        squares: np.ndarray,
        mood: np.ndarray,
        causes: np.ndarray,
    ) -> None:
        """Take in rows, ascending and not there yet, with the evidence for them."""
        place = np.searchsorted(self.rows, rows)
        self.rows = np.insert(self.rows, place, rows)
        self.count, self.total, self.squares = (
            np.insert(old, place, new)
            for old, new in ((self.count, count), (self.total, total), (self.squares, squares))
        )
        self.mood = np.insert(self.mood, place, mood, axis=0)
        self.causes = np.insert(self.causes, place, causes, axis=0)

    def place(self, state: GrimoireState, rows: np.ndarray) -> np.ndarray:
        """Position in the wave of the golem of each row."""
        return np.searchsorted(self.golem, state["golem"][rows])

    def note(
        self,
        state: GrimoireState,
        operation: int,
        rows: np.ndarray,
        before: np.ndarray,
        causes: np.ndarray | None = None,
        orders: Sequence[Order | Considered] | None = None,
    ) -> None:
        """Record a decision about each of these rows, at the close of its golem's cycle."""
        if len(rows):
            place = self.place(state, rows)
            self.log.note(
                state,
                operation,
                rows,
                cycle=self.cycle[place],
                at_us=self.at_us[place],
                before=before,
                causes=causes,
                orders=orders,
            )

    def closing(self, state: GrimoireState, rows: np.ndarray) -> np.ndarray:
        """Closing moment (microseconds) of the cycle of each row's golem."""
        return self.at_us[self.place(state, rows)]

    def ensure(self, state: GrimoireState, golem: np.ndarray, structure: np.ndarray) -> None:
        """Make room in the state for these pairs; what the wave points at moves along."""
        keys = state.keys()
        held = np.flatnonzero(self.order_rows >= 0)
        pointed = keys[self.rows], keys[self.doubted], keys[self.order_rows[held]]
        state.ensure(golem, structure)
        self.rows, self.doubted, self.order_rows[held] = (np.searchsorted(state.keys(), k) for k in pointed)

    def living(self, state: GrimoireState) -> np.ndarray:
        """State rows of active entries of the wave's golems."""
        rows = np.flatnonzero(state["status"] == ACTIVE)
        return rows if len(self.golem) == len(state.golems) else rows[self.has(state)[state["golem"][rows]]]

    def has(self, state: GrimoireState) -> np.ndarray:
        """Which golems of the state are in the wave. bool [golems]."""
        here = np.zeros(len(state.golems), bool)
        here[self.golem] = True
        return here


def wave_of(
    state: GrimoireState,
    evidence: Evidence,
    pick: np.ndarray,
    golem: np.ndarray,
    cycle: np.ndarray,
    at_us: np.ndarray,
    log: DecisionLog,
    orders: tuple[Order, ...] = (),
    motions: tuple[Motion, ...] = (),
    deliveries: tuple[Delivery, ...] = (),
) -> Wave:
    """The wave of these golems' cycles. pick: indices of the evidence groups that belong to it."""
    rows = state.find(evidence.golem[pick], evidence.structure[pick])
    zeros = np.zeros(len(golem), np.int64)
    return Wave(
        golem=golem, cycle=cycle, at_us=at_us, rows=rows, count=evidence.count[pick], total=evidence.total[pick],
        squares=evidence.squares[pick], mood=evidence.mood[pick],
        causes=np.stack([evidence.first[pick], evidence.stop[pick]], axis=1), log=log,
        pruned=zeros.copy(), promoted=zeros.copy(), proposed=zeros.copy(), orders=orders,
        motions=motions, deliveries=deliveries,
    )  # fmt: skip
