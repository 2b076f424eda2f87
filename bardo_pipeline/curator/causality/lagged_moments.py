"""Lagged moments: sums of products of lagged variables for each golem and market, updated cycle by cycle. Pure.

A moment matrix holds the sums of products over all columns of variables.py. Every lagged or partial correlation follows
from it. Sums are integers, so the order of addition does not matter, and a cycle costs only its new ticks. The last
ticks are kept, because lags reach back across cycles. A stretch is the ticks between two causal tests.
Source: HB S4; docs/adr/0031 (links are tested against chance and common causes); architecture ("Numbers", law 5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import BoolArray, Int64Array
from bardo_pipeline.curator.causality import variables as var
from bardo_pipeline.curator.causality.granger import EFFECTS, Bases
from bardo_pipeline.events.record.arrow_columns import all_required, contiguous, required
from bardo_pipeline.events.record.market_codes import Market, has_market, market_codes
from bardo_pipeline.grimoire.entries import CAUSAL_VARIABLES
from bardo_pipeline.policy import Policy

_BATCH_ROWS, _FEW_ROWS = 2_000, 50
_LAG_MAX = max(column.lag for column in var.COLUMNS)
_UPPER = np.triu_indices(var.WIDTH)

MOMENTS_SCHEMA = pa.schema(
    [
        *all_required(pa.string(), "golem_id", "chain", "protocol", "pair"),
        required("tail_tick", pa.int64()),
        *all_required(pa.list_(pa.int64()), "tail", "before"),
        *all_required(pa.int64(), "stretch", "tick_first", "tick_last"),
        *all_required(pa.list_(pa.int64()), "fresh", "reports"),
    ]
)
"""One row per golem, market and untested stretch (0 for none). tail: READINGS of the last ticks, row by row. before,
fresh: upper triangles of matrices. reports: counts row by row. tail, before and reports are in a golem's first row
only."""

_SHAPE = (len(CAUSAL_VARIABLES), len(EFFECTS))


@dataclass
class Stretch:
    """Moments of the ticks between two tests, with the first and last tick.

    cause: row of these two ticks in the decision log's cause ticks.
    """

    moments: Int64Array
    tick_first: int
    tick_last: int
    cause: int = -1


@dataclass
class Memory:
    """Moments of one golem in one market.

    tail: READINGS of the last consecutive ticks up to tail_tick. before: moments of all tested stretches
    [WIDTH, WIDTH]. fresh: untested stretches by number, from 1. reports: verified outcomes that name a cause and an
    effect [CAUSAL_VARIABLES, EFFECTS].
    """

    tail: Int64Array = field(default_factory=lambda: np.zeros((0, len(var.READINGS)), np.int64))
    tail_tick: int = 0
    before: Int64Array = field(default_factory=lambda: np.zeros((var.WIDTH, var.WIDTH), np.int64))
    fresh: dict[int, Stretch] = field(default_factory=dict)
    reports: Int64Array = field(default_factory=lambda: np.zeros(_SHAPE, np.int64))

    def tested(self, number: int) -> None:
        """Merge the stretches up to this number into `before`."""
        for stretch in sorted(n for n in self.fresh if n <= number):
            self.before = self.before + self.fresh.pop(stretch).moments


Key = tuple[str, Market]


@dataclass
class Moments:
    """Memories of some golems, by (golem, market)."""

    of: dict[Key, Memory] = field(default_factory=dict)
    bases: Bases = field(default_factory=Bases, repr=False, compare=False)

    def without_golems(self, golem_ids: set[str]) -> Moments:
        """Return the memories of all other golems."""
        return Moments({key: memory for key, memory in self.of.items() if key[0] not in golem_ids})

    def absorb(self, other: Moments) -> None:
        """Add another's memories, replacing those of the same golems."""
        self.of = self.without_golems({golem_id for golem_id, _ in other.of}).of | other.of

    def add(self, records: pa.Table, cycle: Int64Array, policy: Policy) -> None:
        """Add the records of closed cycles, in any order. A gap between ticks starts a new sequence.

        Records without a market are left out.
        """
        is_market = has_market(records)
        if not is_market.all():
            records, cycle = records.filter(pa.array(is_market)), cycle[is_market]
        if not records.num_rows:
            return
        keys, code = _keys(records)
        tick = records.column("tick").to_numpy().astype(np.int64)
        order = np.lexsort((tick, code))
        ticks = _with_tails(self, keys, code[order], tick[order], var.readings(records)[order], cycle[order])
        seen, groups = _distinct(ticks)
        variables = var.standardised(seen.readings, seen.age, policy.causal)
        for (owner, number), rows in _runs(seen, (seen.cycle - 1) // policy.causal.test_cycles + 1):
            moments = moments_of(variables, rows[seen.age[rows] >= var.WARM])
            first, last = int(seen.tick[rows[0]]), int(seen.tick[rows[-1]])
            for key in groups[owner]:
                memory = self.of.setdefault(keys[key], Memory())
                stretch = memory.fresh.setdefault(number, Stretch(np.zeros_like(moments), first, 0))
                stretch.moments, stretch.tick_last = stretch.moments + moments, last
        _keep_tails(self, keys, ticks)
        for owner, cause, effect in _reported(records, code):
            self.of[keys[owner]].reports[cause, effect] += 1

    def settle(self, done: Mapping[str, int], policy: Policy) -> None:
        """Merge the stretches tested by these cycles. done: golem to its last cycle."""
        for (golem_id, _), memory in self.of.items():
            memory.tested(done[golem_id] // policy.causal.test_cycles)

    def register_causes(self, start: int) -> Int64Array:
        """Number the untested stretches from `start` as causes. Return their (first, last) ticks [stretches, 2]."""
        stretches = [memory.fresh[n] for _, memory in sorted(self.of.items()) for n in sorted(memory.fresh)]
        for place, stretch in enumerate(stretches):
            stretch.cause = start + place
        return np.array([(s.tick_first, s.tick_last) for s in stretches], np.int64).reshape(-1, 2)

    def table(self, golem_ids: set[str]) -> pa.Table:
        """Return the memories of these golems as MOMENTS_SCHEMA."""
        rows = [row for key, memory in sorted(self.of.items()) if key[0] in golem_ids for row in _stored(key, memory)]
        return pa.Table.from_pylist(rows, MOMENTS_SCHEMA)


def from_table(table: pa.Table) -> Moments:
    """Convert MOMENTS_SCHEMA to memories."""
    moments = Moments()
    lists = {n: table.column(n) for n in ("tail", "before", "fresh", "reports")}
    plain = table.select([n for n in MOMENTS_SCHEMA.names if n not in lists]).to_pylist()
    for place, row in enumerate(plain):
        tail, before, fresh, reports = (lists[n][place].values.to_numpy().astype(np.int64) for n in lists)
        key = (row["golem_id"], (row["chain"], row["protocol"], row["pair"]))
        tail = tail.reshape(-1, len(var.READINGS))
        memory = moments.of.setdefault(key, Memory(tail, row["tail_tick"], _whole(before)))
        memory.reports = reports.reshape(_SHAPE) if len(reports) else memory.reports
        if row["stretch"]:
            memory.fresh[row["stretch"]] = Stretch(_whole(fresh), row["tick_first"], row["tick_last"])
    return moments


def moments_of(variables: Int64Array, rows: Int64Array) -> Int64Array:
    """Return the sums of products of COLUMNS and the constant over ascending rows. [WIDTH, WIDTH].

    variables: ALL_VARIABLES of consecutive ticks. Sums are exact in doubles, so BLAS may add in any order. Matrices of
    _FEW_ROWS rows keep BLAS from starting its threads, which costs more than the products.
    """
    total = np.zeros((var.WIDTH, var.WIDTH), np.int64)
    for start in range(0, len(rows), _BATCH_ROWS):
        part = rows[start : start + _BATCH_ROWS]
        first, count = int(part[0]) - _LAG_MAX, len(part)
        near = variables[first : part[-1] + 1].T.astype(np.float64, order="C")
        unbroken = near.shape[1] == count + _LAG_MAX
        columns = np.zeros((var.WIDTH, -(-count // _FEW_ROWS) * _FEW_ROWS))
        for place, (variable, lag) in enumerate(var.COLUMNS):
            at = slice(_LAG_MAX - lag, _LAG_MAX - lag + count) if unbroken else part - first - lag
            columns[place, :count] = near[variable, at]
        columns[var.CONSTANT, :count] = var.SCALE
        few = columns.reshape(var.WIDTH, -1, _FEW_ROWS).transpose(1, 0, 2)
        total += np.matmul(few, few.transpose(0, 2, 1)).sum(axis=0).astype(np.int64)
    return total


@dataclass
class _Ticks:
    """Kept and new ticks of all (golem, market) keys in order; age: number of earlier ticks without a gap."""

    owner: Int64Array
    tick: Int64Array
    readings: Int64Array
    cycle: Int64Array
    is_new: BoolArray
    age: Int64Array


def _keys(records: pa.Table) -> tuple[list[Key], Int64Array]:
    """Return the (golem, market) keys of records and each record's index in them."""
    market, names = market_codes(records)
    ids = contiguous(records.column("golem_id")).dictionary_encode()
    packed = ids.indices.to_numpy(zero_copy_only=False).astype(np.int64) << 32 | market.astype(np.int64)
    unique, code = np.unique(packed, return_inverse=True)
    golems = ids.dictionary.to_pylist()
    return [(golems[p >> 32], names[p & 0xFFFFFFFF]) for p in unique.tolist()], code.reshape(-1).astype(np.int64)


def _reported(records: pa.Table, code: Int64Array) -> list[tuple[int, int, int]]:
    """Return (key, cause, effect) of each verified outcome that names a cause and an effect of the graph."""
    outcome = contiguous(records.column("outcome"))
    cause = pc.index_in(pc.struct_field(outcome, "cause_variable"), value_set=pa.array(CAUSAL_VARIABLES))
    effects = pa.array([CAUSAL_VARIABLES[effect] for effect in EFFECTS])
    effect = pc.index_in(pc.struct_field(outcome, "effect_variable"), value_set=effects)
    verified = pc.fill_null(pc.struct_field(outcome, "verified"), False)
    rows = np.flatnonzero(pc.and_(verified, pc.and_(cause.is_valid(), effect.is_valid())))
    named = (code[rows], *(part.take(pa.array(rows)).to_numpy() for part in (cause, effect)))
    return list(zip(*(part.tolist() for part in named), strict=True))


def _with_tails(
    moments: Moments, keys: list[Key], code: Int64Array, tick: Int64Array, readings: Int64Array, cycle: Int64Array
) -> _Ticks:
    """Put each key's kept ticks before its new ticks, if the new ones follow without a gap."""
    starts = np.flatnonzero(np.r_[True, code[1:] != code[:-1]])
    stops = np.r_[starts[1:], len(code)]
    parts: list[tuple[Int64Array, ...]] = []
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        memory = moments.of.get(keys[code[start]])
        if memory is not None and len(memory.tail) and memory.tail_tick + 1 == tick[start]:
            kept = len(memory.tail)
            tail_ticks = np.arange(memory.tail_tick - kept + 1, memory.tail_tick + 1)
            zeros = np.zeros(kept, np.int64)
            parts.append((np.full(kept, code[start]), tail_ticks, memory.tail, zeros, zeros == 1))
        new = slice(start, stop)
        parts.append((code[new], tick[new], readings[new], cycle[new], np.ones(stop - start, bool)))
    owner, ticks, all_readings, cycles, is_new = (np.concatenate(column) for column in zip(*parts, strict=True))
    begins = np.r_[True, (owner[1:] != owner[:-1]) | (ticks[1:] != ticks[:-1] + 1)]
    row = np.arange(len(owner))
    return _Ticks(owner, ticks, all_readings, cycles, is_new, row - np.maximum.accumulate(np.where(begins, row, 0)))


def _distinct(ticks: _Ticks) -> tuple[_Ticks, dict[int, list[int]]]:
    """Return the ticks of one key of each group that has equal ticks and readings, and the groups by this key.

    Golems that watch one market in step have equal ones, so the fleet's size does not multiply the work.
    """
    starts = np.flatnonzero(np.r_[True, ticks.owner[1:] != ticks.owner[:-1]])
    alike: dict[bytes, list[int]] = {}
    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(ticks.owner)], strict=True):
        content = b"".join(part[start:stop].tobytes() for part in (ticks.tick, ticks.cycle, ticks.readings))
        alike.setdefault(content, []).append(int(ticks.owner[start]))
    groups = {keys[0]: keys for keys in alike.values()}
    is_first = np.isin(ticks.owner, list(groups))
    return _Ticks(*(column[is_first] for column in vars(ticks).values())), groups


def _runs(ticks: _Ticks, stretch: Int64Array) -> list[tuple[tuple[int, int], Int64Array]]:
    rows = np.flatnonzero(ticks.is_new)
    owner, number = ticks.owner[rows], stretch[rows]
    starts = np.flatnonzero(np.r_[True, (owner[1:] != owner[:-1]) | (number[1:] != number[:-1])])
    named = zip(owner[starts].tolist(), number[starts].tolist(), strict=True)
    return list(zip(named, np.split(rows, starts[1:]), strict=True))


def _keep_tails(moments: Moments, keys: list[Key], ticks: _Ticks) -> None:
    """Store the last WARM consecutive readings of each key."""
    last = np.flatnonzero(np.r_[ticks.owner[1:] != ticks.owner[:-1], True])
    for end in last.tolist():
        memory = moments.of[keys[ticks.owner[end]]]
        kept = min(int(ticks.age[end]) + 1, var.WARM)
        memory.tail, memory.tail_tick = ticks.readings[end + 1 - kept : end + 1].copy(), int(ticks.tick[end])


def _stored(key: Key, memory: Memory) -> list[dict[str, Any]]:
    golem_id, (chain, protocol, pair) = key
    rows: list[dict[str, Any]] = []
    none = np.zeros(0, np.int64)
    for number in sorted(memory.fresh) or [0]:
        stretch = memory.fresh.get(number)
        rows.append(
            {
                "golem_id": golem_id, "chain": chain, "protocol": protocol, "pair": pair,
                "tail_tick": memory.tail_tick, "tail": none if rows else memory.tail.reshape(-1),
                "before": none if rows else memory.before[_UPPER], "stretch": number,
                "tick_first": stretch.tick_first if stretch else 0, "tick_last": stretch.tick_last if stretch else 0,
                "fresh": stretch.moments[_UPPER] if stretch else none,
                "reports": none if rows else memory.reports.reshape(-1),
            }
        )  # fmt: skip
    return rows


def _whole(upper: Int64Array) -> Int64Array:
    """Return the symmetric matrix of an upper triangle, zeros for an empty one."""
    matrix = np.zeros((var.WIDTH, var.WIDTH), np.int64)
    if len(upper):
        matrix[_UPPER] = upper
        matrix = matrix + np.triu(matrix, 1).T
    return matrix
