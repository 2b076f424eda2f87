"""Weigh: add a cycle's evidence to entries and candidates, and compute confidence intervals of effects. Pure.

Every rule is tested again after each cycle, so the interval is a confidence sequence that holds at all tests together
(the normal mixture of Robbins; Waudby-Smith and others 2021, eq. 14). The probability that it ever misses the true
effect is the policy's `false_alarm`. This is approximate, because the variance is treated as known: if effects spread
twice as wide as the prior, the probability is three times as high. The variance is shrunk towards the prior, so that
three lucky windows do not look certain. Source: MEM-4, TOOLS (clusters of at least 3).
"""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa

from bardo_pipeline.arrays import Float64Array, Int64Array
from bardo_pipeline.curator.state.decision_log import CycleBatch
from bardo_pipeline.curator.state.evidence import gather_evidence
from bardo_pipeline.curator.state.grimoire_state import FOLDED, PRUNED, GrimoireState, coded
from bardo_pipeline.curator.state.level_readings import LevelReadings
from bardo_pipeline.curator.state.reports import CONDITIONS_JOINED
from bardo_pipeline.grimoire.entry_columns import index_of
from bardo_pipeline.policy import Policy

OWN_EVIDENCE = ("own_count", "own_sum", "own_sumsq", "pleasure_sum_milli", "arousal_sum_milli", "dominance_sum_milli")
"""Columns of a row's own evidence: count, sum and sum of squares of effects, sums of moods. Of a level: market days,
first cycle whose readings count, number of readings, sums of moods."""

_SUM_MAX = 2**62
"""Upper limit of a sum of squares; prevents an overflow of int64."""


def interval(
    count: Int64Array, total: Int64Array, squares: Int64Array, policy: Policy
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return (mean, low, high) of effects in ppm from count > 0, sum and sum of squares."""
    rules = policy.curator
    mean = total / count
    spread = np.maximum(squares - total * mean, 0.0)
    prior = rules.variance_prior * rules.effect_sigma_prior_ppm**2
    variance = (prior + spread) / (rules.variance_prior + np.maximum(count - 1, 0))
    surprise = -2.0 * math.log(rules.false_alarm)
    mixture = count * ((surprise + math.log(surprise + 1.0)) / rules.sharpest_witnesses)
    half = np.sqrt(
        variance * 2.0 * (mixture + 1.0) / (count * mixture) * np.log(np.sqrt(mixture + 1.0) / rules.false_alarm)
    )
    low, middle, high = (np.rint(x).astype(np.int64) for x in (mean - half, mean, mean + half))
    return middle, low, high


def report_interval(
    count: Int64Array, total: Int64Array, squares: Int64Array, false_alarm: Float64Array, policy: Policy
) -> tuple[Int64Array, Int64Array]:
    """Return (low, high) of effects of unknown scale from count > 0, sum and sum of squares.

    The effect over its spread has a normal prior, and the spread any scale (Lai 1976; Wang and Ramdas 2025, t-test
    e-process). An interval of too few witnesses is as wide as effects can be.

    Parameters
    ----------
    false_alarm : probability for each effect that its interval ever misses it
    """
    mean, prior = total / count, policy.curator.report_effect_prior**-2
    variance = np.maximum(squares / count - mean * mean, 0.0)
    limit = np.exp((2.0 * np.log(1.0 / false_alarm) + np.log((count + prior) / prior)) / count)
    share = 1.0 - limit * prior / (count + prior)
    bounded = np.where(share > 0.0, variance * (limit - 1.0) / np.where(share > 0.0, share, 1.0), np.inf)
    half = np.minimum(np.sqrt(bounded), 2.0 * REWARD_SPAN_PPM)
    return np.rint(mean - half).astype(np.int64), np.rint(mean + half).astype(np.int64)


REWARD_SPAN_PPM = 2_000_000
"""Difference between the best and the worst reward of a report."""


def _report_bounds(state: GrimoireState, rows: Int64Array, policy: Policy) -> tuple[Int64Array, Int64Array]:
    """Return (low, high) of reported effects. The false alarms of all situations of a golem together are limited.

    Rules with no, one and two conditions get a third each; the golem's rules of one number share theirs equally.
    """
    about = state.structures.reported()[state["structure"]]
    known = np.flatnonzero((about >= 0) & (state["own_count"] > 0))
    counts = np.zeros((len(state.golems), CONDITIONS_JOINED + 1), np.int64)
    np.add.at(counts, (state["golem"][known], about[known]), 1)
    many = np.maximum(counts[state["golem"][rows], about[rows]], 1)
    false_alarm = policy.curator.false_alarm / (CONDITIONS_JOINED + 1) / many
    count, total, squares = (state[name][rows] for name in ("own_count", "own_sum", "own_sumsq"))
    return report_interval(np.maximum(count, 1), total, squares, false_alarm, policy)


def weigh(state: GrimoireState, wave: CycleBatch, policy: Policy) -> None:
    """Add the wave's evidence to its rows; a removed entry that gets evidence again becomes the golem's own."""
    rows = wave.rows
    removed = (state["status"][rows] >= PRUNED) & (state["status"][rows] != FOLDED)
    relearned = rows[removed & (state["own_count"][rows] == 0)]
    state["origin"][relearned] = state["golem"][relearned]
    level = state.structures.is_level()[state["structure"][rows]]
    _read_levels(state, wave, np.flatnonzero(level))
    for name, values in (("own_count", wave.count), ("own_sum", wave.total), ("own_sumsq", wave.squares)):
        state[name][rows[~level]] = np.minimum(state[name][rows[~level]] + values[~level], _SUM_MAX)
    for i, name in enumerate(_MOODS):
        state[name][rows[~level]] += wave.mood[~level, i]


_MOODS = ("pleasure_sum_milli", "arousal_sum_milli", "dominance_sum_milli")


def _read_levels(state: GrimoireState, wave: CycleBatch, chosen: Int64Array) -> None:
    """Add the readings of these rows of the wave; a day that was counted in an earlier cycle is no new witness."""
    spans = wave.causes[chosen]
    chosen = chosen[spans[:, 1] > spans[:, 0]]
    if not len(chosen):
        return
    rows, spans, days = wave.rows[chosen], wave.causes[chosen], wave.count[chosen]
    slots, begins = state.reading_slots(rows), state["own_sumsq"][rows] == 0
    wave.slots = slots
    state.readings.clear(slots[begins])
    state["own_sum"][rows[begins]] = wave.cycle[wave.place(state, rows[begins])]
    fresh = state.readings.add(slots, spans, wave.reading, wave.day)
    state["own_count"][rows] += fresh
    state["own_sumsq"][rows] += spans[:, 1] - spans[:, 0]
    for i, name in enumerate(_MOODS):
        state[name][rows] += (2 * wave.mood[chosen, i] * fresh + days) // (2 * days)


def counted_readings(state: GrimoireState, records: pa.Table, cycle: Int64Array, policy: Policy) -> LevelReadings:
    """Return the histograms that the state's levels have after these records.

    Parameters
    ----------
    records : pa.Table, EVIDENCE_COLUMNS, all records from the first cycle whose readings a level counts, any order
    cycle : int64 [records], cycle of each record
    """
    golem = coded(records.column("golem_id"), state.golem_code)
    evidence = gather_evidence(records, golem=golem, cycle=cycle, structures=state.structures, policy=policy.curator)
    row = index_of(state.keys(), (evidence.golem << 32) | evidence.structure)
    is_counted = (row >= 0) & state.structures.is_level()[evidence.structure]
    is_counted &= (state["own_sumsq"][row] > 0) & (evidence.cycle >= state["own_sum"][row])
    groups = np.flatnonzero(is_counted)
    counted, summed = LevelReadings(), GrimoireState(state.golems, state.structures, state.block)
    if len(groups):
        groups = groups[np.lexsort((evidence.cycle[groups], row[groups]))]
        length = evidence.stop[groups] - evidence.first[groups]
        at = np.repeat(evidence.first[groups] - (np.cumsum(length) - length), length) + np.arange(int(length.sum()))
        first = np.flatnonzero(np.r_[True, row[groups][1:] != row[groups][:-1]])
        start = (np.cumsum(length) - length)[first]
        spans = np.stack([start, np.r_[start[1:], len(at)]], axis=1)
        summed.readings = counted
        counted.add(summed.reading_slots(row[groups][first]), spans, evidence.reading[at], evidence.day[at])
    return counted


def clear_own_evidence(state: GrimoireState, rows: Int64Array) -> None:
    """Set the own evidence of these rows to zero."""
    for name in OWN_EVIDENCE:
        state[name][rows] = 0


def own_effect(
    state: GrimoireState, rows: Int64Array, policy: Policy
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """Return (mean, low, high, sign) of the effect that each row's own evidence shows, in ppm.

    The sign is 0 unless there are enough witnesses, the mean is large enough and the interval excludes zero.
    """
    count = state["own_count"][rows]
    mean, low, high = interval(np.maximum(count, 1), state["own_sum"][rows], state["own_sumsq"][rows], policy)
    reported = np.flatnonzero(state.structures.reported()[state["structure"][rows]] >= 0)
    if len(reported):
        low[reported], high[reported] = _report_bounds(state, rows[reported], policy)
    sure = (count >= policy.curator.cluster_min) & (np.abs(mean) >= policy.curator.effect_min_ppm)
    sure &= (low > 0) | (high < 0)
    return mean, low, high, np.where(sure, np.sign(mean), 0)
