"""Causal links: what the moments say becomes entries, and what comes later confirms them or takes them down. Pure.

Every 1,000 ticks, for each golem and market. The stretch since the last test is evidence that no link was chosen by:
each link that is held or staged is scored on it first, by weights learned before. Then all moments are searched. A pair
that passes is staged; it becomes an entry once fresh evidence supports it, below a fact's confidence; and a fact when
fresh evidence alone is far from chance and more than one stretch bears witness. A stretch that should have shown the
effect and did not contradicts.
Source: HB S4, S6, S9; INH S7.3; issue 4; canon 1, 16.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bardo_pipeline.curator.causality.granger import (
    Floats,
    Found,
    Heard,
    Places,
    Regression,
    Task,
    critical,
    find_causes,
    listen,
    spread_of,
    tasks,
)
from bardo_pipeline.curator.causality.lagged_moments import Key, Memory, Stretch
from bardo_pipeline.curator.causality.variables import CONSTANT, SCALE, Column
from bardo_pipeline.curator.passes.distil import create, vote
from bardo_pipeline.curator.state.cycle_batch import Wave
from bardo_pipeline.curator.state.decision_log import CONTRADICTED, CREATED, REINFORCED, STAGED
from bardo_pipeline.curator.state.grimoire_state import (
    ACTIVE,
    CANDIDATE,
    CAUSAL_LINK,
    PRUNED,
    RETRACTED,
    GrimoireState,
    is_quarantined,
)
from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.grimoire.confidence import PPM, ppm
from bardo_pipeline.grimoire.entries import CAUSAL_VARIABLES
from bardo_pipeline.policy import Policy

OWN = ("own_count", "own_sum", "own_sumsq")
"""A link's own evidence: stretches for it less those against it; its score, in thousandths of a spread of the effect
times a step of the cause; and what its square would be by chance, in thousandths of a squared step."""

_NOTHING = -1

_TOGETHER = 256
"""Golems tested in one pass over columns: their matrices fit into a few dozen megabytes."""


def learn_causal_links(state: GrimoireState, wave: Wave, policy: Policy) -> None:
    """Test the golems of the wave that are due, and add what they were tested on to their moments."""
    every = policy.causal.test_cycles
    if (wave.cycle % every).all():
        return
    due = {state.golems[g]: (g, c // every) for g, c in zip(wave.golem.tolist(), wave.cycle.tolist(), strict=True)
           if c % every == 0}  # fmt: skip
    units = []
    for key, memory in sorted(state.moments.of.items(), key=lambda item: item[0]):
        if key[0] in due:
            golem, number = due[key[0]]
            stretch = memory.fresh.get(number)
            memory.tested(number - 1)
            if stretch is not None and stretch.moments[CONSTANT, CONSTANT]:
                units.append(_Unit(key, golem, memory, stretch))
            else:
                memory.tested(number)
    for start in range(0, len(units), _TOGETHER):
        _test(state, wave, units[start : start + _TOGETHER], policy)
    for unit in units:
        unit.memory.tested(due[unit.key[0]][1])


@dataclass(frozen=True)
class _Unit:
    """A golem in a market, at its test."""

    key: Key
    golem: int
    memory: Memory
    stretch: Stretch


@dataclass(frozen=True)
class _Held:
    """Rows of state that are links of an effect, by unit: [units, links], -1 for none; and their columns."""

    rows: Places
    columns: Places

    def where(self) -> tuple[Places, Places]:
        """(unit, place) of every link."""
        unit, place = np.nonzero(self.rows >= 0)
        return unit, place


def _test(state: GrimoireState, wave: Wave, units: list[_Unit], policy: Policy) -> None:
    rules = policy.causal
    before = np.stack([u.memory.before for u in units]).astype(np.float64)
    fresh = np.stack([u.stretch.moments for u in units]).astype(np.float64)
    causes = np.array([(u.stretch.cause, u.stretch.cause + 1) for u in units], np.int64)
    seen = before[:, CONSTANT, CONSTANT] / SCALE**2 >= rules.ticks_min
    ripe = (before + fresh)[:, CONSTANT, CONSTANT] / SCALE**2 >= rules.ticks_min
    earlier, now = state.moments.bases.of(before), state.moments.bases.of(before + fresh)
    for task, known, begun in zip(tasks(), earlier, now, strict=True):
        test = _Test(state, wave, units, task, policy, causes)
        active, staged = test.links(ACTIVE), test.links(CANDIDATE)
        spread = spread_of(known, task)
        for held in (active, staged):
            if (held.rows >= 0).any():
                test.hear(held, listen(known, task, held.columns, fresh), seen, spread)
        found = find_causes(begun, task, active.columns, rules)
        test.judge_active(active, found)
        test.judge_staged(staged, found, ripe)
        test.stage(active, found, ripe, begun)


class _Test:
    """The test of one effect: its links in the state, and what is decided about them."""

    def __init__(
        self, state: GrimoireState, wave: Wave, units: list[_Unit], task: Task, policy: Policy, causes: Places
    ) -> None:
        self.state, self.wave, self.units, self.task, self.policy = state, wave, units, task, policy
        self.causes = causes
        self.heard: dict[int, tuple[float, float, float]] = {}

    def links(self, status: int) -> _Held:
        """The links of this effect that stand so, of every unit, surest first; a candidate without a side is none."""
        state = self.state
        index = {unit.key: place for place, unit in enumerate(self.units)}
        about = state.structures.rows
        mine = state.structures.effects() == self.task.effect
        rows = np.flatnonzero(mine[state["structure"]] & (state["status"] == status) & (state["sign"] != 0))
        rows = rows[np.isin(state["golem"][rows], [u.golem for u in self.units])]
        order = np.lexsort((state.structures.stable()[state["structure"][rows]], -state["confidence_ppm"][rows]))
        held = np.full((len(self.units), self.policy.causal.links_max), _NOTHING)
        columns, counts, taken = held.copy(), np.zeros(len(self.units), np.int64), set()
        for row in rows[order].tolist():
            structure = about[state["structure"][row]]
            unit = index.get((state.golems[state["golem"][row]], (structure.chain, structure.protocol, structure.pair)))
            column = _column(structure, self.task)
            if unit is None or column < 0 or (unit, structure.cause) in taken:
                continue
            if counts[unit] < held.shape[1]:
                held[unit, counts[unit]], columns[unit, counts[unit]] = row, column
                counts[unit] += 1
                taken.add((unit, structure.cause))
        return _Held(held, columns)

    def hear(self, held: _Held, heard: Heard, seen: np.ndarray, spread: Floats) -> None:
        """Add what the fresh stretch says to the links' own evidence; keep how far it went, for the judgement.

        Kept by row: sigmas towards the link's side, and how many there would be if the stated effect held.
        """
        state, rules = self.state, self.policy.causal
        for unit, place in zip(*held.where(), strict=True):
            info = float(heard.info[unit, place])
            if not seen[unit] or info < rules.info_min:
                continue
            row, score = int(held.rows[unit, place]), float(heard.score[unit, place])
            sign = int(state["sign"][row])
            sigmas = sign * score / np.sqrt(info)
            due = abs(int(state["effect_mean_ppm"][row])) / PPM / max(float(spread[unit]), 1e-9) * np.sqrt(info)
            state["own_sum"][row] += round(score * SCALE)
            state["own_sumsq"][row] += round(info * SCALE)
            witness = int(sigmas >= rules.witness_sigma) - int(sigmas <= -rules.witness_sigma)
            state["own_count"][row] = max(int(state["own_count"][row]) + witness, 0)
            self.heard[row] = (float(sigmas), float(due), self._proof(row))

    def _proof(self, row: int) -> float:
        """How far all fresh evidence is from chance, towards the link's side."""
        state = self.state
        expected = np.sqrt(max(int(state["own_sumsq"][row]), 1) / SCALE)
        return float(int(state["sign"][row]) * int(state["own_sum"][row]) / SCALE / expected)

    def _idle(self, row: int, proof: float) -> bool:
        """Whether all fresh evidence rules out that the cause moves so much towards the link's side as links must.

        What the link states shrinks as it is refuted, and so would what it could be missed by; this does not.
        """
        rules = self.policy.causal
        least = rules.effect_min * np.sqrt(int(self.state["own_sumsq"][row]) / SCALE)
        return bool(proof + rules.missed_sigma < least)

    def judge_active(self, held: _Held, found: Found) -> None:
        """Vote on the links that are held: by fresh evidence alone."""
        state, rules, curator = self.state, self.policy.causal, self.policy.curator
        decided: dict[int, list[tuple[int, int]]] = {STAGED: [], REINFORCED: [], CONTRADICTED: []}
        for unit, place in zip(*held.where(), strict=True):
            row = int(held.rows[unit, place])
            if row not in self.heard:
                continue
            sigmas, due, proof = self.heard[row]
            self._state(row, found, unit, place)
            sure = proof >= rules.confirm_sigma and state["own_count"][row] >= rules.confirm_witnesses
            if sigmas >= rules.witness_sigma and sure:
                decided[REINFORCED].append((row, unit))
            elif (due >= rules.missed_sigma and sigmas < due * rules.missed_share) or self._idle(row, proof):
                decided[CONTRADICTED].append((row, unit))
            else:
                decided[STAGED].append((row, unit))
        for operation, pairs in decided.items():
            rows, at, before = self._now(pairs)
            if operation == REINFORCED:
                raised = np.maximum(before + ppm(curator.upvote), ppm(curator.confidence_fact))
                vote(state, rows, raised, at, "validations")
            elif operation == CONTRADICTED:
                vote(state, rows, before - ppm(curator.downvote), at, "contradictions")
            self._note(operation, pairs, before)

    def judge_staged(self, held: _Held, found: Found, ripe: np.ndarray) -> None:
        """Candidates become entries, wait, or are let go where the whole no longer says so.

        What was contradicted and forgotten comes back only by as much as confirms: the whole still says what was true.
        """
        state, rules = self.state, self.policy.causal
        born: list[tuple[int, int]] = []
        waits: list[tuple[int, int]] = []
        for unit, place in zip(*held.where(), strict=True):
            row, column = int(held.rows[unit, place]), int(held.columns[unit, place])
            at = np.flatnonzero(found.column[unit] == column)
            stands = bool(len(at)) and ripe[unit] and np.sign(found.weight[unit, at[0]]) == state["sign"][row]
            came = bool(is_quarantined(state, np.array([row]))[0])
            if came and not ripe[unit]:
                waits.append((row, unit))
            elif not stands:
                if came:  # its own moments do not say so: what it finds later is its own
                    state["origin"][row], state["provenance"][row] = state["golem"][row], 0
                for name in (*OWN, "sign"):
                    state[name][row] = 0
                waits.append((row, unit))
            elif row in self.heard:
                self._state(row, found, unit, int(at[0]))
                again = state["contradictions"][row] > 0
                enough = rules.confirm_sigma if again else rules.found_sigma
                supported = self.heard[row][2] >= enough and state["own_count"][row] >= 1
                (born if supported else waits).append((row, unit))
        rows, _, _before = self._now(born)
        sign = state["sign"][rows].copy()
        create(state, rows, sign, self.wave, confidence=ppm(rules.confidence_found))
        state["kind"][rows] = CAUSAL_LINK
        self._note(STAGED, waits, np.zeros(len(waits), np.int64))
        self._note(CREATED, born, np.zeros(len(born), np.int64))

    def stage(self, active: _Held, found: Found, ripe: np.ndarray, begun: Regression) -> None:
        """Stage what was found and is not known yet."""
        limits, effect = critical(self.policy.causal), CAUSAL_VARIABLES[self.task.effect]
        spread = spread_of(begun, self.task)
        wanted: list[tuple[int, int, int]] = []
        for unit, place in zip(*np.nonzero(found.column >= 0), strict=True):
            count = int((found.column[unit] >= 0).sum())
            known = active.columns[unit, place] >= 0 if place < active.columns.shape[1] else False
            weak = abs(found.sigmas[unit, place]) < limits[min(count, len(limits)) - 1]
            small = abs(found.weight[unit, place]) < self.policy.causal.effect_min * spread[unit]
            if ripe[unit] and not known and not weak and not small:
                column = self.task.called(int(found.column[unit, place]))
                _, market = self.units[unit].key
                plain = Structure("causal", *market)
                structure = plain._replace(cause=CAUSAL_VARIABLES[column.variable], effect=effect, lag_ticks=column.lag)
                wanted.append((unit, place, self.state.structures.code(structure)))
        if not wanted:
            return
        golem = np.array([self.units[unit].golem for unit, _, _ in wanted])
        codes = np.array([code for _, _, code in wanted])
        self.wave.ensure(self.state, golem, codes)
        fresh: list[tuple[int, int]] = []
        for row, (unit, place, _) in zip(self.state.find(golem, codes).tolist(), wanted, strict=True):
            status, side = int(self.state["status"][row]), int(self.state["sign"][row])
            if status in (PRUNED, RETRACTED) or (status == CANDIDATE and side == 0):
                self._begin(row, int(np.sign(found.weight[unit, place])))
                self._state(row, found, unit, place)
                fresh.append((row, unit))
        self._note(STAGED, fresh, np.zeros(len(fresh), np.int64))

    def _begin(self, row: int, sign: int) -> None:
        """A candidate, from nothing; one that was forgotten is the golem's own from now on."""
        state = self.state
        if state["status"][row] != CANDIDATE:
            state["origin"][row] = state["golem"][row]
        for name, value in (*((n, 0) for n in OWN), ("status", CANDIDATE), ("kind", CAUSAL_LINK), ("sign", sign)):
            state[name][row] = value

    def _state(self, row: int, found: Found, unit: int, place: int) -> None:
        """What the entry says of the effect: all evidence so far."""
        weight, error = float(found.weight[unit, place]), float(found.error[unit, place])
        if not np.isfinite(weight) or not np.isfinite(error):
            return
        half = self.policy.curator.interval_z * error
        for name, value in (("mean", weight), ("low", weight - half), ("high", weight + half)):
            self.state[f"effect_{name}_ppm"][row] = round(value * PPM)
        self.state["evidence_count"][row] = self._stretches(unit)

    def _stretches(self, unit: int) -> int:
        """How many stretches' worth of ticks a unit has seen, at least 1: what its statements rest on."""
        one = self.units[unit]
        ticks = int(one.memory.before[CONSTANT, CONSTANT] + one.stretch.moments[CONSTANT, CONSTANT]) // SCALE**2
        return max(ticks // (self.policy.causal.test_cycles * self.policy.curator.cycle_ticks), 1)

    def _now(self, pairs: list[tuple[int, int]]) -> tuple[Places, Places, Places]:
        """(rows, closing moments, confidence now) of these links."""
        rows = np.array([row for row, _ in pairs], np.int64)
        if not len(rows):
            return rows, rows, rows
        at = self.wave.closing(self.state, rows)
        return rows, at, self.state.confidence_at(rows, at, self.policy.decay)

    def _note(self, operation: int, pairs: list[tuple[int, int]], before: Places) -> None:
        rows = np.array([row for row, _ in pairs], np.int64)
        if len(rows):
            units = np.array([unit for _, unit in pairs], np.int64)
            self.wave.note(self.state, operation, rows, before, self.causes[units])


def _column(structure: Structure, task: Task) -> int:
    """Where a link's cause stands among the columns of its effect; -1 if nothing there looks so far back."""
    if structure.cause not in CAUSAL_VARIABLES or structure.lag_ticks is None:
        return _NOTHING
    return task.column(Column(CAUSAL_VARIABLES.index(structure.cause), structure.lag_ticks))
