"""Dream times, selection of replayed episodes, and reduction of their arousal. Pure, set-based.

A dream follows a cycle with idle last ticks: every four hours, or earlier after a tagged episode or an import.
Source: TOOLS (Dream cycle integration), KAT (NREM, REM), canon 50.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import BoolArray, Float64Array, Int64Array
from bardo_pipeline.events.record.arrow_columns import contiguous
from bardo_pipeline.policy import DreamPolicy, Policy

DROWSY_COLUMNS = ("golem_id", "tick", "observed_at", "tier", "actions", "vitality", "dream_tag")
"""Columns of a record that decide when a golem dreams."""

BEGAN_BY = ("schedule", "import", "tag")
SCHEDULE, IMPORT, TAG = range(3)
HOUR_US = 3_600_000_000


@dataclass(frozen=True)
class Cycles:
    """Closed cycles sorted by (golem, cycle). tick, at_us: of the last record. tags: number of tagged records."""

    golem: Int64Array
    cycle: Int64Array
    tick: Int64Array
    at_us: Int64Array
    idle: BoolArray
    tags: Int64Array


def cycles_of(records: pa.Table, golem: Int64Array, cycle: Int64Array, policy: Policy) -> Cycles:
    """Aggregate records (DROWSY_COLUMNS, sorted by golem and tick) by golem code and cycle.

    A cycle is idle if its last tick is recorded and survived, and its last `idle_ticks` have no T1, T2 or action.
    """
    tick = records["tick"].to_numpy().astype(np.int64)
    busy = pc.is_in(records["tier"], value_set=pa.array(["T1", "T2"])).to_numpy()
    busy |= pc.list_value_length(contiguous(records["actions"])).to_numpy(zero_copy_only=False) > 0
    span = policy.curator.cycle_ticks
    late = tick > cycle * span - policy.dreams.idle_ticks
    tagged = records["dream_tag"].is_valid().to_numpy()
    first = np.flatnonzero(np.r_[True, (golem[1:] != golem[:-1]) | (cycle[1:] != cycle[:-1])][: len(tick)])
    last = np.r_[first[1:], len(tick)][: len(first)] - 1

    def summed(values: Int64Array | BoolArray) -> Int64Array:
        return np.add.reduceat(values.astype(np.int64), first) if len(first) else np.zeros(0, np.int64)

    alive = pc.struct_field(contiguous(records["vitality"]), "composite").to_numpy(zero_copy_only=False) > 0
    idle = (tick[last] == cycle[first] * span) & alive[last] & (summed(busy & late) == 0)
    at_us = records["observed_at"].cast(pa.int64()).to_numpy()
    return Cycles(golem[first], cycle[first], tick[last], at_us[last], idle, summed(tagged))


@dataclass(frozen=True)
class LastDream:
    """Cycle and time of a golem's last dream; cycle 0 and its birth for none.

    has_new_import: whether it was born with a bundle and has not dreamt since.
    """

    cycle: int
    at_us: int
    has_new_import: bool


@dataclass(frozen=True)
class Due:
    """Due dreams sorted by (golem, cycle). tick, at_us: end of the cycle. began_by: index in BEGAN_BY."""

    golem: Int64Array
    cycle: Int64Array
    tick: Int64Array
    at_us: Int64Array
    began_by: Int64Array


def dreams_due(cycles: Cycles, last_dreams: dict[int, LastDream], policy: DreamPolicy) -> Due:
    """Return the dreams that are due in cycles after each golem's last dream. last_dreams: by golem code.

    The next dream is found by bisection, so the loop has one step per dream.
    """
    wait = round(policy.every_hours * HOUR_US)
    due: list[tuple[int, int]] = []
    for golem, last in last_dreams.items():
        start, stop = np.searchsorted(cycles.golem, [golem, golem + 1]).tolist()
        first = start + int(np.searchsorted(cycles.cycle[start:stop], last.cycle, side="right"))
        idle = (first + np.flatnonzero(cycles.idle[first:stop])).tolist()
        times = cycles.at_us[idle].tolist()
        tagged = (first + np.flatnonzero(cycles.tags[first:stop] > 0)).tolist()
        last_us, place, has_new_import = last.at_us, 0, last.has_new_import
        while place < len(idle):
            by_clock = bisect_left(times, last_us + wait, place)
            next_tag = bisect_left(tagged, idle[place - 1] + 1 if place else first)
            by_tag = bisect_left(idle, tagged[next_tag], place) if next_tag < len(tagged) else len(idle)
            by_import = place if has_new_import else len(idle)
            place, trigger = min((by_clock, SCHEDULE), (by_import, IMPORT), (by_tag, TAG))
            if place == len(idle):
                break
            due.append((idle[place], trigger))
            last_us, has_new_import, place = times[place], False, place + 1
    rows, triggers = np.array(due, np.int64).reshape(-1, 2).T
    return Due(cycles.golem[rows], cycles.cycle[rows], cycles.tick[rows], cycles.at_us[rows], triggers)


def salience(
    arousal: Float64Array, valence: Float64Array, age_ticks: Int64Array, novelty: Float64Array, policy: DreamPolicy
) -> Float64Array:
    """Return the replay weight of episodes in [0, 1] (KAT). arousal, valence: [-1, 1]; negative arousal counts 0."""
    recency = np.exp(-np.asarray(age_ticks, np.float64) / policy.recency_ticks)
    return (
        policy.arousal_weight * np.clip(arousal, 0.0, 1.0)
        + policy.valence_weight * np.abs(valence)
        + policy.recency_weight * recency
        + policy.novelty_weight * novelty
    )


def scar_salience(
    age_ticks: Int64Array, novelty: Float64Array, pressure: Float64Array, policy: DreamPolicy
) -> Float64Array:
    """Return the replay weight of inherited scars: that of full arousal and valence, times the mortality pressure."""
    ones = np.ones(len(age_ticks))
    return pressure * salience(ones, ones, age_ticks, novelty, policy)


def depotentiated(arousal: Float64Array, times: Int64Array, policy: DreamPolicy) -> Float64Array:
    """Reduce arousal by 0.12 per replay, at most to 0.10; lower arousal is unchanged."""
    eased = np.maximum(arousal - policy.depotentiation * times, policy.arousal_floor)
    return np.where(arousal > policy.arousal_floor, eased, arousal)
