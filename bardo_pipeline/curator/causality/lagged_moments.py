"""Causal moments: what a golem's ticks say of which variable goes with which, as sums that can be added up. Pure.

For every golem and market one matrix of sums of products over all columns of variables.py: all that correlations at a
lag, and partial correlations given anything else, are made of. Integers, so that no order of addition shows; additive,
so that a cycle costs what is new. The last ticks of a stretch are kept, since lags reach back across cycles.
Source: HB S4, issue 4 ("tested against chance and against common causes"); architecture ("Numbers", law 5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from bardo_pipeline.curator.causality.granger import Bases
from bardo_pipeline.curator.causality.variables import (
    COLUMNS,
    CONSTANT,
    READINGS,
    SCALE,
    WARM,
    WIDTH,
    Ints,
    readings,
    standardised,
)
from bardo_pipeline.curator.state.evidence import Market, market_codes
from bardo_pipeline.policy import Policy

_BATCH_ROWS, _FEW_ROWS = 2_000, 50
_LAG_MAX = max(column.lag for column in COLUMNS)
_UPPER = np.triu_indices(WIDTH)

MOMENTS_SCHEMA = pa.schema(
    [
        pa.field("golem_id", pa.string(), nullable=False),
        pa.field("chain", pa.string(), nullable=False),
        pa.field("protocol", pa.string(), nullable=False),
        pa.field("pair", pa.string(), nullable=False),
        pa.field("tail_tick", pa.int64(), nullable=False),
        pa.field("tail", pa.list_(pa.int64()), nullable=False),
        pa.field("before", pa.list_(pa.int64()), nullable=False),
        pa.field("stretch", pa.int64(), nullable=False),
        pa.field("tick_first", pa.int64(), nullable=False),
        pa.field("tick_last", pa.int64(), nullable=False),
        pa.field("fresh", pa.list_(pa.int64()), nullable=False),
    ]
)
"""One row per (golem, market, stretch that is not tested yet; 0 where there is none). Matrices by their upper triangle;
tail: READINGS of the last ticks, row by row."""


@dataclass
class Stretch:
    """The ticks between two tests: their moments, and the first and last of them.

    cause: where these two stand among the causes of the decisions at hand.
    """

    moments: Ints
    tick_first: int
    tick_last: int
    cause: int = -1


@dataclass
class Memory:
    """What is kept of one golem in one market. tail: READINGS of the last unbroken ticks up to tail_tick.

    before: moments of all tested stretches, int64 [WIDTH, WIDTH]. fresh: stretches not tested yet, by number from 1.
    """

    tail: Ints = field(default_factory=lambda: np.zeros((0, len(READINGS)), np.int64))
    tail_tick: int = 0
    before: Ints = field(default_factory=lambda: np.zeros((WIDTH, WIDTH), np.int64))
    fresh: dict[int, Stretch] = field(default_factory=dict)

    def tested(self, number: int) -> None:
        """Add to what was tested every stretch up to this one."""
        for done in sorted(n for n in self.fresh if n <= number):
            self.before = self.before + self.fresh.pop(done).moments


Key = tuple[str, Market]


@dataclass
class Moments:
    """The memories of some golems, by golem and market."""

    of: dict[Key, Memory] = field(default_factory=dict)
    bases: Bases = field(default_factory=Bases, repr=False, compare=False)

    def without_golems(self, golem_ids: set[str]) -> Moments:
        """Those of all other golems."""
        return Moments({key: memory for key, memory in self.of.items() if key[0] not in golem_ids})

    def absorb(self, other: Moments) -> None:
        """Take over the memories of another, in place of those known of the same golems."""
        self.of = self.without_golems({golem_id for golem_id, _ in other.of}).of | other.of

    def add(self, records: pa.Table, cycle: Ints, policy: Policy) -> None:
        """Take in the records of closed cycles, in any order; the cycle of each beside.

        A tick that does not follow the one before begins anew: what lies across a gap is not looked at.
        """
        if not records.num_rows:
            return
        keys, code = _keys(records)
        tick = records.column("tick").to_numpy().astype(np.int64)
        order = np.lexsort((tick, code))
        flat = _with_tails(self, keys, code[order], tick[order], readings(records)[order], cycle[order])
        told = standardised(flat.read, flat.age, policy.causal)
        stretch = (flat.cycle - 1) // policy.causal.test_cycles + 1
        for (owner, number), rows in _runs(flat, stretch):
            memory = self.of.setdefault(keys[owner], Memory())
            usable = rows[flat.age[rows] >= WARM]
            ticks = flat.tick[rows[0]], flat.tick[rows[-1]]
            known = memory.fresh.setdefault(number, Stretch(np.zeros((WIDTH, WIDTH), np.int64), int(ticks[0]), 0))
            known.moments = known.moments + moments_of(told, usable)
            known.tick_last = int(ticks[1])
        _keep_tails(self, keys, flat)

    def settle(self, done: Mapping[str, int], policy: Policy) -> None:
        """Count as tested what was tested by these cycles. done: golem to its last cycle."""
        for (golem_id, _), memory in self.of.items():
            memory.tested(done[golem_id] // policy.causal.test_cycles)

    def mention(self, start: int) -> Ints:
        """First and last tick of every stretch that is not tested yet, int64 [stretches, 2]; each learns its place.

        start: how many causes there are already.
        """
        known = [memory.fresh[n] for _, memory in sorted(self.of.items()) for n in sorted(memory.fresh)]
        for place, one in enumerate(known):
            one.cause = start + place
        return np.array([(one.tick_first, one.tick_last) for one in known], np.int64).reshape(-1, 2)

    def table(self, golem_ids: set[str]) -> pa.Table:
        """The memories of these golems as MOMENTS_SCHEMA."""
        rows = [row for key, memory in sorted(self.of.items()) if key[0] in golem_ids for row in _stored(key, memory)]
        columns = {n: [row[n] for row in rows] for n in MOMENTS_SCHEMA.names}
        arrays = [
            _lists(columns[f.name]) if pa.types.is_list(f.type) else pa.array(columns[f.name], f.type)
            for f in MOMENTS_SCHEMA
        ]
        return pa.table(arrays, schema=MOMENTS_SCHEMA)


def from_table(table: pa.Table) -> Moments:
    """Memories from MOMENTS_SCHEMA."""
    made = Moments()
    lists = {n: table.column(n) for n in ("tail", "before", "fresh")}
    plain = table.select([n for n in MOMENTS_SCHEMA.names if n not in lists]).to_pylist()
    for place, row in enumerate(plain):
        tail, before, fresh = (lists[n][place].values.to_numpy().astype(np.int64) for n in lists)
        key = (row["golem_id"], (row["chain"], row["protocol"], row["pair"]))
        memory = made.of.setdefault(key, Memory(tail.reshape(-1, len(READINGS)), row["tail_tick"], _whole(before)))
        if row["stretch"]:
            memory.fresh[row["stretch"]] = Stretch(_whole(fresh), row["tick_first"], row["tick_last"])
    return made


def moments_of(told: Ints, rows: Ints) -> Ints:
    """Sums of products over these rows of all COLUMNS and the constant, int64 [WIDTH, WIDTH].

    told: ALL_VARIABLES of consecutive ticks. rows: ascending. Doubles hold the sums exactly, whatever order BLAS adds
    them in; a few rows at a time, since more would wake its threads, which costs more than they do.
    """
    total = np.zeros((WIDTH, WIDTH), np.int64)
    for start in range(0, len(rows), _BATCH_ROWS):
        part = rows[start : start + _BATCH_ROWS]
        first, count = int(part[0]) - _LAG_MAX, len(part)
        near = told[first : part[-1] + 1].T.astype(np.float64, order="C")
        unbroken = near.shape[1] == count + _LAG_MAX
        columns = np.zeros((WIDTH, -(-count // _FEW_ROWS) * _FEW_ROWS))
        for place, (variable, lag) in enumerate(COLUMNS):
            at = slice(_LAG_MAX - lag, _LAG_MAX - lag + count) if unbroken else part - first - lag
            columns[place, :count] = near[variable, at]
        columns[CONSTANT, :count] = SCALE
        few = columns.reshape(WIDTH, -1, _FEW_ROWS).transpose(1, 0, 2)
        total += np.matmul(few, few.transpose(0, 2, 1)).sum(axis=0).astype(np.int64)
    return total


@dataclass
class _Flat:
    """Kept and new ticks of all golems, one stretch after another; age: ticks of the same stretch before each."""

    owner: Ints
    tick: Ints
    read: Ints
    cycle: Ints
    new: np.ndarray
    age: Ints


def _keys(records: pa.Table) -> tuple[list[Key], Ints]:
    """Golems with their markets, and each record's place among them."""
    market, names = market_codes(records)
    ids = records.column("golem_id").combine_chunks().dictionary_encode()
    ids = ids.chunk(0) if isinstance(ids, pa.ChunkedArray) else ids
    packed = ids.indices.to_numpy(zero_copy_only=False).astype(np.int64) << 32 | market.astype(np.int64)
    unique, code = np.unique(packed, return_inverse=True)
    golems = ids.dictionary.to_pylist()
    return [(golems[p >> 32], names[p & 0xFFFFFFFF]) for p in unique.tolist()], code.reshape(-1).astype(np.int64)


def _with_tails(moments: Moments, keys: list[Key], code: Ints, tick: Ints, read: Ints, cycle: Ints) -> _Flat:
    """Put before each golem's new ticks what was kept of the last ones, where they follow."""
    starts = np.flatnonzero(np.r_[True, code[1:] != code[:-1]])
    stops = np.r_[starts[1:], len(code)]
    parts: list[tuple[Ints, ...]] = []
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):  # one round a golem
        memory = moments.of.get(keys[code[start]])
        if memory is not None and len(memory.tail) and memory.tail_tick + 1 == tick[start]:
            kept = len(memory.tail)
            ticks = np.arange(memory.tail_tick - kept + 1, memory.tail_tick + 1)
            parts.append(
                (np.full(kept, code[start]), ticks, memory.tail, np.zeros(kept, np.int64), np.zeros(kept, bool))
            )
        mine = slice(start, stop)
        parts.append((code[mine], tick[mine], read[mine], cycle[mine], np.ones(stop - start, bool)))
    owner, ticks, reads, cycles, new = (np.concatenate(column) for column in zip(*parts, strict=True))
    begins = np.r_[True, (owner[1:] != owner[:-1]) | (ticks[1:] != ticks[:-1] + 1)]
    row = np.arange(len(owner))
    return _Flat(owner, ticks, reads, cycles, new, row - np.maximum.accumulate(np.where(begins, row, 0)))


def _runs(flat: _Flat, stretch: Ints) -> list[tuple[tuple[int, int], Ints]]:
    """New rows by (owner, stretch)."""
    rows = np.flatnonzero(flat.new)
    owner, number = flat.owner[rows], stretch[rows]
    starts = np.flatnonzero(np.r_[True, (owner[1:] != owner[:-1]) | (number[1:] != number[:-1])])
    named = zip(owner[starts].tolist(), number[starts].tolist(), strict=True)
    return list(zip(named, np.split(rows, starts[1:]), strict=True))


def _keep_tails(moments: Moments, keys: list[Key], flat: _Flat) -> None:
    last = np.flatnonzero(np.r_[flat.owner[1:] != flat.owner[:-1], True])
    for end in last.tolist():
        memory = moments.of[keys[flat.owner[end]]]
        kept = min(int(flat.age[end]) + 1, WARM)
        memory.tail, memory.tail_tick = flat.read[end + 1 - kept : end + 1].copy(), int(flat.tick[end])


def _stored(key: Key, memory: Memory) -> list[dict[str, Any]]:
    """Rows of MOMENTS_SCHEMA; matrix and tail stand in the first of them alone."""
    golem_id, (chain, protocol, pair) = key
    rows: list[dict[str, Any]] = []
    none = np.zeros(0, np.int64)
    for number in sorted(memory.fresh) or [0]:
        known = memory.fresh.get(number)
        rows.append(
            {
                "golem_id": golem_id, "chain": chain, "protocol": protocol, "pair": pair,
                "tail_tick": memory.tail_tick, "tail": none if rows else memory.tail.reshape(-1),
                "before": none if rows else memory.before[_UPPER], "stretch": number,
                "tick_first": known.tick_first if known else 0, "tick_last": known.tick_last if known else 0,
                "fresh": known.moments[_UPPER] if known else none,
            }
        )  # fmt: skip
    return rows


def _lists(parts: list[Ints]) -> pa.Array:
    """Arrays of int64 as one list column."""
    offsets = np.cumsum([0, *(len(part) for part in parts)])
    flat = np.concatenate([np.zeros(0, np.int64), *parts])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(flat, pa.int64()))


def _whole(upper: Ints) -> Ints:
    """A symmetric matrix from its upper triangle; zeros from nothing."""
    matrix = np.zeros((WIDTH, WIDTH), np.int64)
    if len(upper):
        matrix[_UPPER] = upper
        matrix = matrix + np.triu(matrix, 1).T
    return matrix
