"""Causal links: find links in the moments, and confirm or contradict them by later ticks. Pure.

The test runs every 1,000 ticks for each golem and market.
1. Active and staged links are scored on the ticks since the last test (the fresh stretch), with weights from before it,
   so the evidence is independent of the selection.
2. All moments are searched for new links, which are staged. A pair of variables that verified outcomes of the golem
   reported `cluster_min` times as cause and effect is a given hypothesis: it is tested over its lags alone.
3. A staged link becomes an entry, below a fact's confidence, once fresh evidence supports it. It becomes a fact when
   fresh evidence from more than one stretch is far from chance. A stretch that should have shown the effect but did not
   contradicts the link.
Source: HB S4, S6, S9; INH S7.3; docs/adr/0031; canon 1, 16.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bardo_pipeline.arrays import BoolArray, Float64Array, Int64Array
from bardo_pipeline.curator.causality import granger
from bardo_pipeline.curator.causality.lagged_moments import Key, Memory, Stretch
from bardo_pipeline.curator.causality.variables import CONSTANT, SCALE, Column
from bardo_pipeline.curator.passes.distil import create, vote
from bardo_pipeline.curator.state import grimoire_state as grimoire
from bardo_pipeline.curator.state.decision_log import CONTRADICTED, CREATED, REINFORCED, STAGED, CycleBatch
from bardo_pipeline.curator.state.grimoire_state import GrimoireState, is_quarantined
from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.grimoire.confidence import PPM, ppm
from bardo_pipeline.grimoire.entries import CAUSAL_VARIABLES
from bardo_pipeline.policy import Policy

OWN = ("own_count", "own_sum", "own_sumsq")
"""A link's own evidence. own_count: stretches for it minus stretches against it. own_sum: score, in thousandths of
(spread of the effect x step of the cause). own_sumsq: expected square of the score by chance, in thousandths of a
squared step."""

_NONE = -1

_BATCH_UNITS = 256
"""Units tested together; bounds memory to a few dozen megabytes."""


def learn_causal_links(state: GrimoireState, wave: CycleBatch, policy: Policy) -> None:
    """Test the wave's golems whose test cycle closes, and merge their fresh stretch into their moments."""
    every = policy.causal.test_cycles
    if (wave.cycle % every).all():
        return
    cycles = zip(wave.golem.tolist(), wave.cycle.tolist(), strict=True)
    tested = {state.golems[g]: (g, cycle // every) for g, cycle in cycles if cycle % every == 0}
    units = []
    for key, memory in sorted(state.moments.of.items(), key=lambda item: item[0]):
        if key[0] in tested:
            golem, number = tested[key[0]]
            stretch = memory.fresh.get(number)
            memory.tested(number - 1)
            if stretch is not None and stretch.moments[CONSTANT, CONSTANT]:
                units.append(_Unit(key, golem, memory, stretch))
            else:
                memory.tested(number)
    for start in range(0, len(units), _BATCH_UNITS):
        _test(state, wave, units[start : start + _BATCH_UNITS], policy)
    for unit in units:
        unit.memory.tested(tested[unit.key[0]][1])


@dataclass(frozen=True)
class _Unit:
    """A golem in one market, with its fresh stretch."""

    key: Key
    golem: int
    memory: Memory
    stretch: Stretch


@dataclass(frozen=True)
class _Links:
    """State rows of the links of one effect and the columns of their causes. Both [units, links], -1 for none."""

    rows: Int64Array
    columns: Int64Array

    def places(self) -> list[tuple[int, int]]:
        return [(unit, place) for unit, place in np.argwhere(self.rows >= 0).tolist()]


def _test(state: GrimoireState, wave: CycleBatch, units: list[_Unit], policy: Policy) -> None:
    rules = policy.causal
    before = np.stack([u.memory.before for u in units]).astype(np.float64)
    fresh = np.stack([u.stretch.moments for u in units]).astype(np.float64)
    causes = np.array([(u.stretch.cause, u.stretch.cause + 1) for u in units], np.int64)
    scorable = before[:, CONSTANT, CONSTANT] / SCALE**2 >= rules.ticks_min
    searchable = (before + fresh)[:, CONSTANT, CONSTANT] / SCALE**2 >= rules.ticks_min
    earlier, now = state.moments.bases.of(before), state.moments.bases.of(before + fresh)
    for task, old_base, base in zip(granger.tasks(), earlier, now, strict=True):
        test = _Test(state, wave, units, task, policy, causes)
        active, staged = test.links(grimoire.ACTIVE), test.links(grimoire.CANDIDATE)
        spread = granger.spread_of(old_base, task)
        for links in (active, staged):
            if (links.rows >= 0).any():
                test.add_scores(links, granger.score_links(old_base, task, links.columns, fresh), scorable, spread)
        fitted = granger.find_causes(base, task, active.columns, rules, test.reported)
        test.judge_active(active, fitted)
        test.judge_staged(staged, fitted, searchable)
        test.stage(active, fitted, searchable, base)


class _Test:
    """The test of one effect for some units. evidence: link row -> (sigmas, expected sigmas, total sigmas)."""

    def __init__(
        self,
        state: GrimoireState,
        wave: CycleBatch,
        units: list[_Unit],
        task: granger.Task,
        policy: Policy,
        causes: Int64Array,
    ) -> None:
        self.state, self.wave, self.units, self.task, self.policy = state, wave, units, task, policy
        self.causes = causes
        self.evidence: dict[int, tuple[float, float, float]] = {}
        reports = np.stack([unit.memory.reports[:, granger.EFFECTS.index(task.effect)] for unit in units])
        self.reported: BoolArray = reports >= policy.curator.cluster_min

    def links(self, status: int) -> _Links:
        """Return the units' links of this effect with a status and a sign, surest first, one per cause."""
        state = self.state
        index = {unit.key: place for place, unit in enumerate(self.units)}
        structures = state.structures.rows
        is_effect = state.structures.effects() == self.task.effect
        rows = np.flatnonzero(is_effect[state["structure"]] & (state["status"] == status) & (state["sign"] != 0))
        rows = rows[np.isin(state["golem"][rows], [u.golem for u in self.units])]
        order = np.lexsort((state.structures.stable()[state["structure"][rows]], -state["confidence_ppm"][rows]))
        links = np.full((len(self.units), self.policy.causal.links_max), _NONE)
        columns, counts, taken = links.copy(), np.zeros(len(self.units), np.int64), set()
        for row in rows[order].tolist():
            structure = structures[state["structure"][row]]
            unit = index.get((state.golems[state["golem"][row]], (structure.chain, structure.protocol, structure.pair)))
            column = _column(structure, self.task)
            if unit is None or column < 0 or (unit, structure.cause) in taken:
                continue
            if counts[unit] < links.shape[1]:
                links[unit, counts[unit]], columns[unit, counts[unit]] = row, column
                counts[unit] += 1
                taken.add((unit, structure.cause))
        return _Links(links, columns)

    def add_scores(
        self, links: _Links, scores: tuple[Float64Array, Float64Array], scorable: BoolArray, spread: Float64Array
    ) -> None:
        """Add the fresh stretch's scores to the links' own evidence, and keep their sigmas in `evidence`."""
        state, rules = self.state, self.policy.causal
        for unit, place in links.places():
            score, info = (float(values[unit, place]) for values in scores)
            if not scorable[unit] or info < rules.info_min:
                continue
            row = int(links.rows[unit, place])
            sign = int(state["sign"][row])
            sigmas = sign * score / np.sqrt(info)
            expected = abs(int(state["effect_mean_ppm"][row])) / PPM / max(float(spread[unit]), 1e-9) * np.sqrt(info)
            state["own_sum"][row] += round(score * SCALE)
            state["own_sumsq"][row] += round(info * SCALE)
            witness = int(sigmas >= rules.witness_sigma) - int(sigmas <= -rules.witness_sigma)
            state["own_count"][row] = max(int(state["own_count"][row]) + witness, 0)
            self.evidence[row] = (float(sigmas), float(expected), self._total_sigmas(row))

    def _total_sigmas(self, row: int) -> float:
        """Return the sigmas of all fresh evidence so far, positive in the direction of the link's sign."""
        state = self.state
        deviation = np.sqrt(max(int(state["own_sumsq"][row]), 1) / SCALE)
        return float(int(state["sign"][row]) * int(state["own_sum"][row]) / SCALE / deviation)

    def _is_too_small(self, row: int, total_sigmas: float) -> bool:
        """Return whether all fresh evidence excludes an effect of `effect_min` in the link's direction.

        The limit is fixed, because the stated effect of a refuted link shrinks with every test.
        """
        rules = self.policy.causal
        sigmas_min = rules.effect_min * np.sqrt(int(self.state["own_sumsq"][row]) / SCALE)
        return bool(total_sigmas + rules.missed_sigma < sigmas_min)

    def judge_active(self, links: _Links, causes: granger.Causes) -> None:
        """Vote on active links by fresh evidence alone."""
        state, rules, curator = self.state, self.policy.causal, self.policy.curator
        decided: dict[int, list[tuple[int, int]]] = {STAGED: [], REINFORCED: [], CONTRADICTED: []}
        for unit, place in links.places():
            row = int(links.rows[unit, place])
            if row not in self.evidence:
                continue
            sigmas, expected, total_sigmas = self.evidence[row]
            self._restate(row, causes, unit, place)
            missed = expected >= rules.missed_sigma and sigmas < expected * rules.missed_share
            sure = total_sigmas >= rules.confirm_sigma and state["own_count"][row] >= rules.confirm_witnesses
            if sigmas >= rules.witness_sigma and sure:
                decided[REINFORCED].append((row, unit))
            elif missed or self._is_too_small(row, total_sigmas):
                decided[CONTRADICTED].append((row, unit))
            else:
                decided[STAGED].append((row, unit))
        for operation, pairs in decided.items():
            rows = np.array([row for row, _ in pairs], np.int64)
            at = self.wave.closing(state, rows)
            before = state.confidence_at(rows, at, self.policy.decay)
            if operation == REINFORCED:
                raised = np.maximum(before + ppm(curator.upvote), ppm(curator.confidence_fact))
                vote(state, rows, raised, at, "validations")
            elif operation == CONTRADICTED:
                vote(state, rows, before - ppm(curator.downvote), at, "contradictions")
            self._note(operation, pairs, before)

    def judge_staged(self, links: _Links, causes: granger.Causes, searchable: BoolArray) -> None:
        """Turn staged links into entries, keep them staged, or drop them if the search no longer finds them.

        A link with contradictions needs `confirm_sigma` to return, because the moments still contain its old evidence.
        """
        state, rules = self.state, self.policy.causal
        created: list[tuple[int, int]] = []
        staged: list[tuple[int, int]] = []
        for unit, place in links.places():
            row, column = int(links.rows[unit, place]), int(links.columns[unit, place])
            at = np.flatnonzero(causes.column[unit] == column)
            holds = bool(len(at)) and searchable[unit] and np.sign(causes.weight[unit, at[0]]) == state["sign"][row]
            received = bool(is_quarantined(state, np.array([row]))[0])
            if received and not searchable[unit]:
                staged.append((row, unit))
            elif not holds:
                if received:  # refuted by own moments; if the search finds it later, it is the golem's own
                    state["origin"][row], state["provenance"][row] = state["golem"][row], 0
                for name in (*OWN, "sign"):
                    state[name][row] = 0
                staged.append((row, unit))
            elif row in self.evidence:
                self._restate(row, causes, unit, int(at[0]))
                sigmas_min = rules.confirm_sigma if state["contradictions"][row] > 0 else rules.found_sigma
                supported = self.evidence[row][2] >= sigmas_min and state["own_count"][row] >= 1
                (created if supported else staged).append((row, unit))
        rows = np.array([row for row, _ in created], np.int64)
        create(state, rows, state["sign"][rows].copy(), self.wave, confidence=ppm(rules.confidence_found))
        state["kind"][rows] = grimoire.CAUSAL_LINK
        self._note(STAGED, staged)
        self._note(CREATED, created)

    def stage(self, active: _Links, causes: granger.Causes, searchable: BoolArray, base: granger.Regression) -> None:
        """Stage the found links that are not active yet and whose sigmas and weight are large enough."""
        limits, effect = granger.critical_sigmas(self.policy.causal), CAUSAL_VARIABLES[self.task.effect]
        spread, reported_limits = (
            granger.spread_of(base, self.task),
            granger.reported_sigmas(self.task, self.policy.causal),
        )
        wanted: list[tuple[int, int, int]] = []
        for unit, place in zip(*np.nonzero(causes.column >= 0), strict=True):
            count = int((causes.column[unit] >= 0).sum())
            is_active = active.columns[unit, place] >= 0 if place < active.columns.shape[1] else False
            limit = limits[min(count, len(limits)) - 1]
            if self.reported[unit, self.task.cause(int(causes.column[unit, place])).variable]:
                limit = min(limit, reported_limits[self.task.causes.index(int(causes.column[unit, place]))])
            weak = abs(causes.sigmas[unit, place]) < limit
            small = abs(causes.weight[unit, place]) < self.policy.causal.effect_min * spread[unit]
            if searchable[unit] and not is_active and not weak and not small:
                column = self.task.cause(int(causes.column[unit, place]))
                cause = CAUSAL_VARIABLES[column.variable]
                plain = Structure("causal", *self.units[unit].key[1])
                structure = plain._replace(cause=cause, effect=effect, lag_ticks=column.lag)
                wanted.append((unit, place, self.state.structures.code(structure)))
        if not wanted:
            return
        golem = np.array([self.units[unit].golem for unit, _, _ in wanted])
        codes = np.array([code for _, _, code in wanted])
        self.wave.ensure(self.state, golem, codes)
        staged: list[tuple[int, int]] = []
        for row, (unit, place, _) in zip(self.state.find(golem, codes).tolist(), wanted, strict=True):
            status, sign = int(self.state["status"][row]), int(self.state["sign"][row])
            if status in (grimoire.PRUNED, grimoire.RETRACTED) or (status == grimoire.CANDIDATE and sign == 0):
                self._reset(row, int(np.sign(causes.weight[unit, place])))
                self._restate(row, causes, unit, place)
                staged.append((row, unit))
        self._note(STAGED, staged)

    def _reset(self, row: int, sign: int) -> None:
        """Turn a row into a candidate without evidence; a removed entry becomes the golem's own."""
        state = self.state
        if state["status"][row] != grimoire.CANDIDATE:
            state["origin"][row] = state["golem"][row]
        claim = {"status": grimoire.CANDIDATE, "kind": grimoire.CAUSAL_LINK, "sign": sign}
        for name, value in (dict.fromkeys(OWN, 0) | claim).items():
            state[name][row] = value

    def _restate(self, row: int, causes: granger.Causes, unit: int, place: int) -> None:
        """Set the stated effect of a link from all evidence so far."""
        weight, error = float(causes.weight[unit, place]), float(causes.error[unit, place])
        if not np.isfinite(weight) or not np.isfinite(error):
            return
        half = self.policy.curator.interval_z * error
        for name, value in (("mean", weight), ("low", weight - half), ("high", weight + half)):
            self.state[f"effect_{name}_ppm"][row] = round(value * PPM)
        moments = self.units[unit].memory.before, self.units[unit].stretch.moments
        ticks = int(sum(m[CONSTANT, CONSTANT] for m in moments)) // SCALE**2
        stretch_ticks = self.policy.causal.test_cycles * self.policy.curator.cycle_ticks
        self.state["evidence_count"][row] = max(ticks // stretch_ticks, 1)

    def _note(self, operation: int, pairs: list[tuple[int, int]], before: Int64Array | int = 0) -> None:
        """Log a decision about each (row, unit). before: confidence in ppm."""
        rows, units = np.array(pairs, np.int64).reshape(-1, 2).T
        self.wave.note(self.state, operation, rows, before, self.causes[units])


def _column(structure: Structure, task: granger.Task) -> int:
    """Return the column of a link's cause and lag, -1 if the task has none."""
    if structure.cause not in CAUSAL_VARIABLES or structure.lag_ticks is None:
        return _NONE
    return task.column(Column(CAUSAL_VARIABLES.index(structure.cause), structure.lag_ticks))
