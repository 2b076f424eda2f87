"""Recomputes which entries a golem would have recalled at past ticks, from the history of a grimoire. Pure.

A golem's decisions in their order determine its state at each closed cycle, and `recall_of` builds the same tables as
for a living fleet. So two histories of the same golems can be compared. Source: X-3 ("retrievals that would have
differed"); HB S3, canon 24.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import BoolArray, Float64Array, Int64Array
from bardo_pipeline.curator.state.grimoire_state import WARNING, GrimoireState, from_table
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.heartbeat.entry_names import EntryNames
from bardo_pipeline.heartbeat.fleet import RECALL
from bardo_pipeline.heartbeat.recall_table import cells, recall_of
from bardo_pipeline.policy import Policy

_NEVER = 2**62


@dataclass(frozen=True)
class Lookups:
    """Retrievals of golems, one element each.

    golem: position in golem_ids. cycle: last closed cycle. laid_out_us: when the fleet's recall tables were built.
    """

    golem_ids: list[str]
    golem: Int64Array
    tick: Int64Array
    cycle: Int64Array
    laid_out_us: Int64Array
    regime: Int64Array
    score: Float64Array
    gas: Float64Array

    @classmethod
    def of(cls, rows: pa.Table) -> Lookups:
        """Build from rows of golem_id, tick, cycle_seen, laid_out_us, regime, anomaly_score and gas_hour_ratio."""
        names = pa.array(sorted(rows["golem_id"].unique().to_pylist()), pa.string())
        code = pc.index_in(rows["golem_id"], value_set=names).to_numpy().astype(np.int64)
        regime = pc.index_in(rows["regime"], value_set=pa.array(REGIMES)).to_numpy().astype(np.int64)
        numbers = (rows[n].to_numpy() for n in ("tick", "cycle_seen", "laid_out_us", "anomaly_score", "gas_hour_ratio"))
        tick, cycle, laid_out, score, gas = numbers
        return cls(names.to_pylist(), code, tick, cycle, laid_out, regime, score, gas)


@dataclass(frozen=True)
class RecallResults:
    """Results of lookups. entries: codes of up to RECALL entries, descending, -1 fills, [RECALL, lookups].

    warnings: number of warnings among them. blocked: whether one of them blocks re-centring.
    """

    entries: Int64Array
    warnings: Int64Array
    blocked: BoolArray


class RecallHistory:
    """The states of golems' grimoires at every cycle, under one policy."""

    def __init__(self, decisions: pa.Table, policy: Policy) -> None:
        keys = [(n, "ascending") for n in ("cycle", "revision", "seq")]
        rows = decisions.take(pc.sort_indices(decisions, sort_keys=keys))
        self.policy = policy
        self._state = from_table(rows)
        golem, structure = (_first_sight(rows[n]) for n in ("golem_id", "structure"))
        order = np.argsort((golem << 32) | structure, kind="stable")
        key, self._cycle = ((golem << 32) | structure)[order], rows["cycle"].to_numpy().astype(np.int64)[order]
        assert np.array_equal(key, self._state.keys()), "decisions are in the state's order"
        self._until = np.full(len(key), _NEVER, np.int64)
        same = key[1:] == key[:-1]
        self._until[:-1][same] = self._cycle[1:][same]

    def at(self, cycle: dict[str, int]) -> GrimoireState:
        """Return the golems' state at the close of these cycles."""
        state = self._state
        seen = np.array([cycle.get(g, -1) for g in state.golems], np.int64)
        cycle_seen = seen[state["golem"]] if state.rows else np.zeros(0, np.int64)
        is_current = (self._cycle <= cycle_seen) & (cycle_seen < self._until)
        block = state.block.compress(is_current, axis=1)
        return GrimoireState(list(state.golems), state.structures, block, dict(state._golem_codes))

    def recalled(self, lookups: Lookups, names: EntryNames) -> RecallResults:
        """Return the result of each lookup. names: the same for all compared histories."""
        count = len(lookups.golem)
        out = RecallResults(np.full((RECALL, count), -1, np.int64), np.zeros(count, np.int64), np.zeros(count, bool))
        cell = cells(lookups.regime, lookups.score, lookups.gas, self.policy.curator)
        order = np.lexsort((lookups.golem, lookups.laid_out_us))
        starts = np.flatnonzero(np.diff(lookups.laid_out_us[order], prepend=-1))
        for rows in np.split(order, starts[1:]) if count else []:
            self._recall(lookups, rows, cell[rows], names, out)
        return out

    def _recall(
        self, lookups: Lookups, rows: Int64Array, cell: Int64Array, names: EntryNames, out: RecallResults
    ) -> None:
        """Build the recall tables of one moment and run its lookups."""
        golem_codes, place = np.unique(lookups.golem[rows], return_inverse=True)
        golems = [lookups.golem_ids[g] for g in golem_codes.tolist()]
        seen = dict(
            zip((lookups.golem_ids[g] for g in lookups.golem[rows].tolist()), lookups.cycle[rows].tolist(), strict=True)
        )
        recall = recall_of(self.at(seen), golems, int(lookups.laid_out_us[rows[0]]), names, self.policy)
        top, block = recall.top[:, cell, place], recall.block[cell, place]
        exists = top >= 0
        codes = np.where(exists, recall.code[top], -1)
        out.entries[:, rows] = -np.sort(-codes, axis=0)
        out.warnings[rows] = (exists & (recall.kind[top] == WARNING)).sum(axis=0)
        out.blocked[rows] = block >= 0


def _first_sight(column: pa.ChunkedArray) -> Int64Array:
    """Return dictionary codes in order of first occurrence."""
    array = column.combine_chunks() if column.num_chunks else pa.array([], column.type)
    codes_by_row: Int64Array = array.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes_by_row
