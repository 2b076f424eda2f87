"""Recomputes which entries a golem would have recalled at past ticks, from the history of a grimoire. Pure.

A golem's decisions in their order determine its state at each closed cycle, and its credits those of its retrievals.
`recall_of` and `retrieved` do the same as for a living fleet. So two histories of the same golems can be compared.
Source: X-3 ("retrievals that would have differed"); HB S3, canon 24.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bardo_pipeline.arrays import BoolArray, Float64Array, Int64Array
from bardo_pipeline.curator.state.grimoire_state import WARNING, GrimoireState, from_table
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.heartbeat.entry_names import EntryNames
from bardo_pipeline.heartbeat.fleet import RECALL
from bardo_pipeline.heartbeat.recall_table import cells, recall_of
from bardo_pipeline.heartbeat.recollection import Moment, retrieved
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.credit_totals import CreditTotals
from bardo_pipeline.retrieval.situation import SILENT_TIERS

_NEVER = 2**62


@dataclass(frozen=True)
class Lookups:
    """Situations of golems, one element each; `mood` is [3, lookups].

    golem: position in golem_ids. cycle: last closed cycle. laid_out_us: when the fleet's recall tables were built.
    regime_before, regime_ticks, thought_tick: as in retrieval.situation, -1 without an earlier regime.
    """

    golem_ids: list[str]
    protocol: NDArray[np.object_]
    golem: Int64Array
    tick: Int64Array
    cycle: Int64Array
    laid_out_us: Int64Array
    at_us: Int64Array
    regime: Int64Array
    regime_before: Int64Array
    regime_ticks: Int64Array
    thought_tick: Int64Array
    score: Float64Array
    gas: Float64Array
    surprise: Float64Array
    mood: Float64Array

    @classmethod
    def of(cls, rows: pa.Table) -> Lookups:
        """Build from all records of some golems, one lookup each.

        rows: golem_id, tick, observed_at, cycle_seen, laid_out_us, regime, tier, protocol, anomaly_score,
        gas_hour_ratio, surprise and mood (pleasure, arousal, dominance), by golem and tick.
        """
        names = pa.array(sorted(rows["golem_id"].unique().to_pylist()), pa.string())
        golem = pc.index_in(rows["golem_id"], value_set=names).to_numpy().astype(np.int64)
        regime = pc.index_in(rows["regime"], value_set=pa.array(REGIMES)).to_numpy().astype(np.int64)
        tick, place = rows["tick"].to_numpy(), np.arange(rows.num_rows)
        born = np.r_[True, golem[1:] != golem[:-1]][: len(golem)]
        changes = born | np.r_[True, regime[1:] != regime[:-1]][: len(golem)]
        start = np.maximum.accumulate(np.where(changes, place, 0))
        thinks = ~pc.is_in(rows["tier"], value_set=pa.array(SILENT_TIERS)).to_numpy(zero_copy_only=False)
        thought = np.maximum.accumulate(np.where(thinks | born, place, 0))
        before = np.r_[0, thought[:-1]][: len(golem)]  # the last thought before each record, or the first record
        earlier = ~born & thinks[before]
        numbers = ("cycle_seen", "laid_out_us", "anomaly_score", "gas_hour_ratio", "surprise")
        cycle, laid_out, score, gas, surprise = (rows[n].to_numpy() for n in numbers)
        mood = np.stack([rows[n].to_numpy() for n in ("pleasure", "arousal", "dominance")])
        return cls(
            names.to_pylist(), rows["protocol"].to_numpy(), golem, tick, cycle, laid_out,
            rows["observed_at"].cast(pa.int64()).to_numpy(), regime, np.where(born[start], -1, regime[start - 1]),
            tick - tick[start], np.where(earlier, tick[before], 0), score, gas, surprise, mood,
        )  # fmt: skip

    def take(self, rows: Int64Array | BoolArray) -> Lookups:
        """Select lookups."""
        columns = {name: value[..., rows] for name, value in vars(self).items() if name != "golem_ids"}
        return Lookups(golem_ids=self.golem_ids, **columns)


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

    def __init__(self, decisions: pa.Table, credits: pa.Table, policy: Policy) -> None:
        self._credits = credits
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
        order = np.lexsort((lookups.golem, lookups.laid_out_us))
        starts = np.flatnonzero(np.diff(lookups.laid_out_us[order], prepend=-1))
        for rows in np.split(order, starts[1:]) if count else []:
            self._recall(lookups.take(rows), rows, names, out)
        return out

    def _recall(self, lookups: Lookups, rows: Int64Array, names: EntryNames, out: RecallResults) -> None:
        """Build the recall tables of one moment and run its lookups, which are these rows of the result."""
        golem_codes, place = np.unique(lookups.golem, return_inverse=True)
        golems = [lookups.golem_ids[g] for g in golem_codes.tolist()]
        seen = dict(zip((lookups.golem_ids[g] for g in lookups.golem.tolist()), lookups.cycle.tolist(), strict=True))
        policy, rules = self.policy, self.policy.curator
        recall = recall_of(self.at(seen), golems, int(lookups.laid_out_us[0]), names, policy, self._credits_until(seen))
        coverage = np.zeros(len(rows))
        for protocol, share in recall.coverage.items():
            coverage = np.where(lookups.protocol == protocol, share[place], coverage)
        anomaly = np.searchsorted(rules.anomaly_edges, lookups.score, side="right")
        gas = np.searchsorted(rules.gas_edges, lookups.gas, side="right")
        moment = Moment(
            lookups.at_us, lookups.regime, anomaly, gas, lookups.regime_before, lookups.regime_ticks, lookups.tick,
            lookups.thought_tick, lookups.mood, lookups.surprise, coverage,
        )  # fmt: skip
        top = retrieved(place, moment, recall, policy).recalled
        cell = cells(lookups.regime, lookups.score, lookups.gas, rules)
        exists = top >= 0
        codes = np.where(exists, recall.code[top], -1)
        out.entries[:, rows] = -np.sort(-codes, axis=0)
        out.warnings[rows] = (exists & (recall.kind[top] == WARNING)).sum(axis=0)
        out.blocked[rows] = recall.block[cell, place] >= 0

    def _credits_until(self, seen: dict[str, int]) -> CreditTotals:
        """Return the credits of golems' cycles up to these."""
        totals = CreditTotals()
        last = np.array([seen.get(golem_id, -1) for golem_id in self._credits["golem_id"].to_pylist()], np.int64)
        totals.add(self._credits.filter(pa.array(self._credits["cycle"].to_numpy() <= last, pa.bool_())))
        return totals


def _first_sight(column: pa.ChunkedArray) -> Int64Array:
    """Return dictionary codes in order of first occurrence."""
    array = column.combine_chunks() if column.num_chunks else pa.array([], column.type)
    return array.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
