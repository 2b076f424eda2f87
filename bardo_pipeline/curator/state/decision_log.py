"""Decisions: what the curator did to which entry, when, why, on which evidence. Append-only. Pure.

A decision carries the entry as it was left, so that a grimoire is the fold of its decisions: the newest of each entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.state.grimoire_state import COLUMNS, GrimoireState, entry_columns, entry_id
from bardo_pipeline.events.life.override_events import Order
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA, MOMENT
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
        pa.field("golem_id", pa.string(), nullable=False),
        pa.field("revision", pa.int64(), nullable=False),
        pa.field("cycle", pa.int64(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("at", MOMENT, nullable=False),
        pa.field("operation", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("confidence_before_ppm", pa.int64(), nullable=False),
        pa.field("cause_ticks", pa.list_(pa.field("element", pa.int64(), nullable=False)), nullable=False),
        pa.field("cause_bundle", pa.string()),
        pa.field("cause_event", pa.string()),
        pa.field("policy_hash", pa.string(), nullable=False),
        *[f for f in ENTRY_SCHEMA if f.name != "golem_id"],
    ]
)
"""One row per decision; key (golem_id, revision, cycle, seq). cause_ticks: the ticks of this golem whose records
are its evidence (empty for what time alone or an owner did); cause_bundle: the content hash of the bundle an entry was
received in; cause_event: the life event with its owner's word or a model's proposal. seq follows the passes, so that
the last one about an entry leaves it as the cycle did."""


class Considered(NamedTuple):
    """What was proposed, or came, in an event, and what came of it, in words. bundle: that it came in, if it did."""

    event_id: str
    said: str
    bundle: str | None = None


DECISION_KEY = ("golem_id", "revision", "cycle", "seq")

_NOTED = (*COLUMNS, "operation", "cycle", "at_us", "before", "cause_first", "cause_stop", "said")
_OPERATION, _CYCLE, _AT, _BEFORE, _FIRST, _STOP, _SAID = range(len(COLUMNS), len(_NOTED))
_CAUSES = slice(_FIRST, _STOP + 1)


class DecisionLog:
    """Decisions as they are taken, in columns; turned into a table once.

    cause_tick: int64 [causes, 2], the decision and judgement ticks that spans of causes point into.
    """

    def __init__(self, cause_tick: np.ndarray) -> None:
        self._causes, self._count = cause_tick, len(cause_tick)  # with room for what is joined
        self.parts: list[np.ndarray] = []  # int64 [_NOTED, rows], entries as they were left and what is said of them
        self.orders: list[Order | Considered] = []

    def note(
        self,
        state: GrimoireState,
        operation: int,
        rows: np.ndarray,
        *,
        cycle: np.ndarray,
        at_us: np.ndarray,
        before: np.ndarray,
        causes: np.ndarray | None = None,
        orders: Sequence[Order | Considered] | None = None,
    ) -> None:
        """Keep a decision about each row. causes: [rows, 2] bounds into the evidence's cause_tick, or None.

        orders: the owner's word or the proposal behind each, or None.
        """
        if not len(rows):
            return
        part = np.zeros((len(_NOTED), len(rows)), np.int64)
        part[: len(COLUMNS)] = state.block.take(rows, axis=1)
        part[_OPERATION], part[_CYCLE], part[_AT], part[_BEFORE] = operation, cycle, at_us, before
        if causes is not None:
            part[_CAUSES] = causes.T
        part[_SAID] = np.arange(len(rows)) + len(self.orders) if orders else -1
        self.parts.append(part)
        self.orders += orders or ()

    def join(self, spans: np.ndarray, first: np.ndarray) -> np.ndarray:
        """One span for each group of spans. spans: int64 [spans, 2], at least one; first: where each group begins."""
        start, inside = self._count, _inside(spans[:, 0], spans[:, 1])
        self._count = start + len(inside)
        if self._count > len(self._causes):
            self._causes = np.concatenate([self._causes[:start], np.zeros((self._count, 2), np.int64)])
        self._causes[start : self._count] = self._causes[inside]
        ends = start + np.cumsum(np.add.reduceat(spans[:, 1] - spans[:, 0], first))
        return np.stack([np.r_[start, ends[:-1]], ends], axis=1)

    def table(self, state: GrimoireState, policy: Policy, policy_hash: str) -> pa.Table:
        """All decisions as DECISION_SCHEMA, in the order of their key."""
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
            "reason": self._reasons(rows),
            "confidence_before_ppm": pa.array(rows["before"], pa.int64()),
            "cause_ticks": _cause_lists(rows["cause_first"], rows["cause_stop"], self._causes),
            "cause_bundle": self._said([getattr(order, "bundle", None) for order in self.orders], rows["said"]),
            "cause_event": self._said([order.event_id for order in self.orders], rows["said"]),
            "policy_hash": pa.array([policy_hash]).take(pa.array(np.zeros(count, np.int64))),
            "seq": pa.array(_sequence(rows["golem"], rows["cycle"])),
        }
        return pa.table({n: columns[n] for n in DECISION_SCHEMA.names}).cast(DECISION_SCHEMA)

    def _reasons(self, rows: dict[str, np.ndarray]) -> pa.Array:
        """The owner's own words, or the proposer's, where there are any."""
        words = [
            said.said if isinstance(said, Considered) else f"{REASONS[_BY_KIND[said.kind]]}: {said.why}"
            for said in self.orders
        ]
        return pc.coalesce(self._said(words, rows["said"]), _reasons(rows))

    def _said(self, words: Sequence[str | None], place: np.ndarray) -> pa.Array:
        """The word at each place, null at -1."""
        return pa.array(words, pa.string()).take(pa.array(place, pa.int64(), mask=place < 0))


_BY_KIND = {"EntryPinned": PINNED, "EntryUnpinned": UNPINNED, "EntryCorrected": CORRECTED, "EntryRetracted": RETRACTED}


def _reasons(rows: dict[str, np.ndarray]) -> pa.Array:
    """What decided, in words and figures: the sentence of the operation and the interval it rests on."""
    sentence = pa.array(REASONS).take(pa.array(rows["operation"]))
    figures = [pa.array(rows[n]).cast(pa.string()) for n in ("evidence_count", "effect_low_ppm", "effect_high_ppm")]
    full = pc.binary_join_element_wise(
        sentence,
        pc.binary_join_element_wise("n=", figures[0], ""),
        pc.binary_join_element_wise("interval ", figures[1], " to ", figures[2], ""),
        "; ",
    )
    return pc.if_else(pa.array(rows["evidence_count"] > 0), full, sentence)


def _cause_lists(first: np.ndarray, stop: np.ndarray, cause_tick: np.ndarray) -> pa.Array:
    """Distinct ticks of each span, ascending."""
    lengths = stop - first
    owner = np.repeat(np.arange(len(first)), lengths)
    flat = cause_tick[_inside(first, stop)] if len(owner) else np.zeros((0, 2), np.int64)
    ticks, rank = np.unique(flat, return_inverse=True)
    told = np.unique(np.repeat(owner, 2) * len(ticks) + rank.reshape(-1))  # one word sorts faster than a pair
    whose, which = np.divmod(told, max(len(ticks), 1))
    offsets = np.searchsorted(whose, np.arange(len(first) + 1))
    field_type = DECISION_SCHEMA.field("cause_ticks").type
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(ticks[which], pa.int64())).cast(field_type)


def _inside(first: np.ndarray, stop: np.ndarray) -> np.ndarray:
    """Every place of these spans, one after another."""
    lengths = stop - first
    return np.repeat(first - np.cumsum(lengths) + lengths, lengths) + np.arange(int(lengths.sum()))


def _sorted(state: GrimoireState, rows: dict[str, np.ndarray], order: np.ndarray) -> np.ndarray:
    """Places of the decisions by golem, cycle, order in which they were noted, and entry."""
    pairs, entry = np.unique((rows["origin"] << 32) | rows["structure"], return_inverse=True)
    ids = [entry_id(state.golems[pair >> 32], state.structures.key(pair & 0xFFFFFFFF)) for pair in pairs.tolist()]
    return np.lexsort((_rank(ids)[entry], order, rows["cycle"], _rank(state.golems)[rows["golem"]]))


def _rank(words: Sequence[str]) -> np.ndarray:
    """Where each word stands among them all."""
    return np.argsort(sorted(range(len(words)), key=words.__getitem__))


def _sequence(golem: np.ndarray, cycle: np.ndarray) -> np.ndarray:
    new = np.r_[True, (golem[1:] != golem[:-1]) | (cycle[1:] != cycle[:-1])]
    starts = np.flatnonzero(new)
    return np.arange(len(golem)) - np.repeat(starts, np.diff(np.r_[starts, len(golem)]))


def fold(decisions: pa.Table) -> pa.Table:
    """A grimoire from its decisions: of each (golem, structure) the newest of the newest revision. ENTRY_SCHEMA.

    By structure, since an inherited entry that was pruned and learned again is the golem's own, under an id of its own.
    """
    keys = [
        ("golem_id", "ascending"),
        ("structure", "ascending"),
        ("revision", "ascending"),
        ("cycle", "ascending"),
        ("seq", "ascending"),
    ]
    ordered = decisions.take(pc.sort_indices(decisions, sort_keys=keys))
    golem, structure = (
        ordered.column("golem_id").to_numpy(zero_copy_only=False),
        ordered.column("structure").to_numpy(zero_copy_only=False),
    )
    if not len(golem):
        return ENTRY_SCHEMA.empty_table()
    last = np.r_[(golem[1:] != golem[:-1]) | (structure[1:] != structure[:-1]), True]
    kept = ordered.filter(pa.array(last)).select(ENTRY_SCHEMA.names).cast(ENTRY_SCHEMA)
    return kept.sort_by([("golem_id", "ascending"), ("entry_id", "ascending")])
