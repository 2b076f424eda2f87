"""Derives the hypotheses of living golems cycle by cycle, equal to the rows of the table of hypotheses. Pure.

Hypotheses follow from records and births alone, so a living golem has its lessons before the tables are derived. A
lesson about the threshold of re-centring is a staged revision of the playbook: a prior of the ticks after its cycle.
Source: KAT (Loop 3: branches are proposed revisions of PLAYBOOK.md that life has to validate), MEM-16, KAT-7.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import BoolArray, Int64Array
from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.dreams.counterfactual_simulation import (
    CHANGES,
    HIGHER,
    LOWER,
    SIMULATION_COLUMNS,
    Decisions,
    decisions_of,
)
from bardo_pipeline.dreams.dream_cycle import DreamInputs, update_hypotheses
from bardo_pipeline.dreams.hypothesis_staging import CONFIRMED, Hypotheses
from bardo_pipeline.dreams.hypothesis_table import lesson_entry_id
from bardo_pipeline.dreams.lessons import acting_sign
from bardo_pipeline.dreams.recorded_market import RATES, RecordedMarket, recorded_market
from bardo_pipeline.dreams.replay_selection import DROWSY_COLUMNS, Cycles, Due, LastDream, cycles_of, dreams_due
from bardo_pipeline.grimoire.confidence import DAY_US
from bardo_pipeline.grimoire.entry_columns import moments
from bardo_pipeline.katabasis.priors import PRIOR_SCHEMA
from bardo_pipeline.policy import Policy

LESSON_COLUMNS = tuple(dict.fromkeys((*SIMULATION_COLUMNS, *DROWSY_COLUMNS)))
"""Columns of a record from which lived lessons follow."""

Columns = TypeVar("Columns", RecordedMarket, Cycles)


@dataclass
class _Dreamer:
    """A golem: half-width of its ranges in pool ticks, its last dream, and RATES and tick up to it."""

    half_width: int
    last: LastDream
    tick: int = 0
    rates: tuple[int, ...] = (0,) * len(RATES)


@dataclass
class _Judged:
    """Judged decisions that no dream covers yet, by code of the golem."""

    golem: Int64Array
    decided: Int64Array
    judged: Int64Array
    acted: BoolArray
    effect_ppm: Int64Array
    anomaly: Int64Array
    situation: Int64Array

    def take(self, pick: Int64Array | BoolArray) -> _Judged:
        """Return the decisions at these places."""
        return _Judged(*(getattr(self, f.name)[pick] for f in fields(self)))


@dataclass
class LivedLessons:
    """Hypotheses of living golems, and what their next dreams need of the records since the last ones."""

    policy: Policy
    hypotheses: Hypotheses = field(default_factory=lambda: Hypotheses([]))
    _dreamers: dict[int, _Dreamer] = field(default_factory=dict)
    _codes: dict[str, int] = field(default_factory=dict)
    _situations: dict[Structure, int] = field(default_factory=dict)
    _tail: tuple[pa.Table, Int64Array] | None = None
    _market: list[RecordedMarket] = field(default_factory=list)
    _judged: list[_Judged] = field(default_factory=list)
    _cycles: list[Cycles] = field(default_factory=list)
    _priors: pa.Table = field(default_factory=PRIOR_SCHEMA.empty_table)

    def begin(self, golem_id: str, half_width: int, born_us: int, *, has_bundle: bool) -> None:
        """Begin the life of a golem."""
        code = self._codes[golem_id] = len(self.hypotheses.golems)
        self.hypotheses.golems.append(golem_id)
        self._dreamers[code] = _Dreamer(half_width, LastDream(0, born_us, has_bundle))

    def close(self, records: pa.Table) -> None:
        """Dream at the ends of closed cycles where a dream is due.

        records: LESSON_COLUMNS, whole cycles of each golem, later than those before.
        """
        if not records.num_rows:
            return
        closed = self._read(records.select(LESSON_COLUMNS))
        cycles = _joined(self._cycles)
        cycles = _taken(cycles, np.lexsort((cycles.cycle, cycles.golem)))
        self._cycles = [cycles]
        due = dreams_due(cycles, {code: self._dreamers[code].last for code in closed}, self.policy.dreams)
        if len(due.golem):
            self._dream(due)
            self._priors = self._revisions()

    def priors(self) -> pa.Table:
        """Return the confirmed hypotheses about the threshold of re-centring as priors (PRIOR_SCHEMA)."""
        return self._priors

    def absorb(self, other: LivedLessons) -> None:
        """Add the golems of another object; none of them may be in this one."""
        offset = len(self.hypotheses.golems)
        self.hypotheses.golems += other.hypotheses.golems
        self._codes |= {golem_id: code + offset for golem_id, code in other._codes.items()}
        self._dreamers |= {code + offset: dreamer for code, dreamer in other._dreamers.items()}
        known = other.hypotheses
        keys = [self.hypotheses.code(*pair) for pair in zip(known.structures, known.changes, strict=True)]
        rows = dict(known.columns)
        rows["golem"], rows["key"] = rows["golem"] + offset, np.array(keys, np.int64)[rows["key"]]
        self.hypotheses.add(rows)
        places = np.array([self._situation(about) for about in other._situations], np.int64)
        self._market += [replace(part, golem=part.golem + offset) for part in other._market]
        self._cycles += [replace(part, golem=part.golem + offset) for part in other._cycles]
        self._judged += [
            replace(part, golem=part.golem + offset, situation=places[part.situation]) for part in other._judged
        ]
        if other._tail is not None:
            tails = [(other._tail[0], other._tail[1] + offset), *([self._tail] if self._tail else [])]
            self._tail = pa.concat_tables([rows for rows, _ in tails]), np.concatenate([codes for _, codes in tails])
        self._priors = self._revisions()

    def forget(self, golem_ids: Iterable[str]) -> None:
        """Remove golems."""
        codes = [self._codes.pop(golem_id) for golem_id in golem_ids if golem_id in self._codes]
        for code in codes:
            del self._dreamers[code]
        gone = np.array(codes, np.int64)
        kept = ~np.isin(self.hypotheses["golem"], gone)
        self.hypotheses.columns = {name: values[kept] for name, values in self.hypotheses.columns.items()}
        self._market = [_taken(part, ~np.isin(part.golem, gone)) for part in self._market]
        self._cycles = [_taken(part, ~np.isin(part.golem, gone)) for part in self._cycles]
        self._judged = [part.take(~np.isin(part.golem, gone)) for part in self._judged]
        if self._tail is not None:
            living = ~np.isin(self._tail[1], gone)
            self._tail = self._tail[0].filter(pa.array(living)), self._tail[1][living]
        self._priors = self._revisions()

    def _read(self, records: pa.Table) -> list[int]:
        """Read market, cycles and verdicts of new records. Their trials may have begun in the records kept in `_tail`.

        Return the codes of their golems.
        """
        names = list(self._codes)
        index = pc.index_in(records["golem_id"], value_set=pa.array(names, pa.string()))
        codes = np.array(list(self._codes.values()), np.int64)[index.to_numpy()]
        is_new = np.ones(len(codes), bool)
        if self._tail is not None:
            recent = np.isin(self._tail[1], codes)
            others = self._tail[0].filter(pa.array(~recent)), self._tail[1][~recent]
            records = pa.concat_tables([self._tail[0].filter(pa.array(recent)), records])
            codes, is_new = np.r_[self._tail[1][recent], codes], np.r_[np.zeros(int(recent.sum()), bool), is_new]
        else:
            others = records.slice(0, 0), codes[:0]
        tick = records["tick"].to_numpy()
        order = np.lexsort((tick, codes))
        records, codes, tick, is_new = records.take(pa.array(order)), codes[order], tick[order], is_new[order]
        market = recorded_market(records, codes, self.policy)
        decisions = decisions_of(records, market, self.policy)
        places = np.array([self._situation(about) for about in decisions.situations], np.int64)
        judged = _Judged(
            codes[decisions.row], tick[decisions.row], tick[decisions.judged_row], decisions.acted,
            decisions.effect_ppm, decisions.anomaly, places[decisions.situation],
        )  # fmt: skip
        self._judged.append(judged.take(is_new[decisions.judged_row]))
        self._market.append(_taken(market, is_new))
        cycle = (tick - 1) // self.policy.curator.cycle_ticks + 1
        fresh = records.filter(pa.array(is_new))
        self._cycles.append(cycles_of(fresh, codes[is_new], cycle[is_new], self.policy))
        stops = np.flatnonzero(np.r_[codes[1:] != codes[:-1], True])
        last = np.repeat(tick[stops], np.diff(np.r_[-1, stops]))
        kept = tick > last - self.policy.prediction.check_ticks
        tail = records.filter(pa.array(kept))
        self._tail = pa.concat_tables([others[0], tail]), np.concatenate([others[1], codes[kept]])
        return np.unique(codes[is_new]).tolist()

    def _situation(self, about: Structure) -> int:
        return self._situations.setdefault(about, len(self._situations))

    def _dream(self, due: Due) -> None:
        """Update the hypotheses of the golems with due dreams, and drop what no later dream needs."""
        dreaming = np.unique(due.golem)
        market, judged = (
            _joined(self._market),
            _Judged(*(np.concatenate([getattr(part, f.name) for part in self._judged]) for f in fields(_Judged))),
        )
        own, concerned = np.isin(market.golem, dreaming), np.isin(judged.golem, dreaming)
        lived = _taken(market, own)
        lived = _taken(lived, np.lexsort((lived.tick, lived.golem)))
        trials = judged.take(concerned)
        trials = trials.take(np.lexsort((trials.judged, trials.golem)))
        packed = (lived.golem << 40) | lived.tick
        row, judged_row = (np.searchsorted(packed, (trials.golem << 40) | at) for at in (trials.decided, trials.judged))
        decisions = Decisions(
            row, judged_row, trials.acted, trials.effect_ppm, trials.anomaly, trials.situation, list(self._situations),
        )  # fmt: skip
        golems = self.hypotheses.golems
        width, last_tick, rates = (np.zeros((n, len(golems)), np.int64) for n in (1, 1, len(RATES)))
        for code in dreaming.tolist():
            dreamer = self._dreamers[code]
            width[0, code], last_tick[0, code], rates[:, code] = dreamer.half_width, dreamer.tick, dreamer.rates
        inputs = DreamInputs(golems, width[0], last_tick[0], rates, {})
        sums = update_hypotheses(lived, decisions, inputs, due, self.hypotheses, self.policy)
        self.hypotheses.log.clear()
        self.hypotheses.causes.clear()
        for place, code in enumerate(due.golem.tolist()):  # the last dream of a golem comes last
            dreamer = self._dreamers[code]
            dreamer.last = LastDream(int(due.cycle[place]), int(due.at_us[place]), False)
            dreamer.tick, dreamer.rates = int(due.tick[place]), tuple(sums[:, place].tolist())
        ends = np.zeros(len(golems), np.int64)
        ends[dreaming] = [self._dreamers[code].tick for code in dreaming.tolist()]
        self._market = [_taken(market, market.tick >= ends[market.golem] - self.policy.prediction.check_ticks)]
        self._judged = [judged.take(judged.judged > ends[judged.golem])]
        span, (cycles,) = self.policy.curator.cycle_ticks, self._cycles
        self._cycles = [_taken(cycles, cycles.cycle * span > ends[cycles.golem])]

    def _revisions(self) -> pa.Table:
        state = self.hypotheses
        changes = np.array(state.changes, np.int64)[state["key"]] if len(state["key"]) else state["key"]
        rows = np.flatnonzero((state["state"] == CONFIRMED) & np.isin(changes, (HIGHER, LOWER)))
        about = [state.structures[key] for key in state["key"][rows].tolist()]
        golems = [state.golems[code] for code in state["golem"][rows].tolist()]
        change = changes[rows]
        ids = [
            lesson_entry_id(golem_id, situation, CHANGES[code])
            for golem_id, situation, code in zip(golems, about, change.tolist(), strict=True)
        ]
        count, claims = len(rows), zip(change.tolist(), state["sign"][rows].tolist(), strict=True)
        columns: dict[str, Any] = {
            "golem_id": golems, "prior_id": ids, "kind": ["lesson"] * count, "origin": ["own"] * count,
            **{name: [getattr(s, name) for s in about] for name in _SITUATION},
            "sign": [acting_sign(CHANGES[code], sign) for code, sign in claims],
            "confidence_ppm": state["confidence_ppm"][rows], "confirmed_at": moments(state["anchor_us"][rows]),
            "is_bloodstain": np.zeros(count, bool), "half_life_days": state.half_life_us(rows, self.policy) / DAY_US,
            **{name: np.zeros(count) for name in ("pleasure", "arousal", "dominance")},
        }  # fmt: skip
        table = pa.table({name: columns[name] for name in PRIOR_SCHEMA.names}).cast(PRIOR_SCHEMA)
        return table.sort_by([("golem_id", "ascending"), ("prior_id", "ascending")])


_SITUATION = ("action_type", "regime", "anomaly_band", "gas_band")


def _taken(columns: Columns, pick: Int64Array | BoolArray) -> Columns:
    """Return some rows of columns."""
    return type(columns)(**{f.name: getattr(columns, f.name)[pick] for f in fields(columns)})


def _joined(parts: list[Columns]) -> Columns:
    """Return the rows of parts after each other."""
    first = parts[0]
    return type(first)(**{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(first)})
