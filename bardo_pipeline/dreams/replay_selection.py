"""Sleep: when a golem dreams, which episodes it replays, and how they lose their sting. Pure, set-based.

A dream comes at the close of a cycle whose last ticks were idle: every four hours, or earlier where an episode was
tagged for it or knowledge was imported. Source: TOOLS (Dream cycle integration), KAT (NREM, REM), canon 50.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.grimoire.entry_columns import contiguous
from bardo_pipeline.mortality.random_streams import drawn
from bardo_pipeline.policy import DreamPolicy, Policy

DROWSY_COLUMNS = ("golem_id", "tick", "observed_at", "tier", "actions", "vitality", "dream_tag")
"""Columns of a record that say whether a golem may dream."""

BEGAN_BY = ("schedule", "import", "tag")
SCHEDULE, IMPORT, TAG = range(3)
HOUR_US = 3_600_000_000
STREAM_REPLAY = 16


@dataclass(frozen=True)
class Cycles:
    """Closed cycles, sorted by (golem, cycle): when and with which tick each ended, whether idle, how many tags."""

    golem: np.ndarray
    cycle: np.ndarray
    tick: np.ndarray
    at_us: np.ndarray
    idle: np.ndarray
    tags: np.ndarray


def cycles_of(records: pa.Table, golem: np.ndarray, cycle: np.ndarray, policy: Policy) -> Cycles:
    """Sum up records (DROWSY_COLUMNS, sorted by golem and tick) by cycle; golem, cycle: int64 codes [records].

    Idle: the cycle's last tick is on record and was survived, and in its last ticks nothing was thought (T1, T2) and
    nothing done.
    """
    tick = records["tick"].to_numpy().astype(np.int64)
    busy = pc.is_in(records["tier"], value_set=pa.array(["T1", "T2"])).to_numpy()
    busy |= pc.list_value_length(contiguous(records["actions"])).to_numpy(zero_copy_only=False) > 0
    span = policy.curator.cycle_ticks
    late = tick > cycle * span - policy.dreams.idle_ticks
    tagged = records["dream_tag"].is_valid().to_numpy()
    first = np.flatnonzero(np.r_[True, (golem[1:] != golem[:-1]) | (cycle[1:] != cycle[:-1])][: len(tick)])
    last = np.r_[first[1:], len(tick)][: len(first)] - 1

    def summed(values: np.ndarray) -> np.ndarray:
        return np.add.reduceat(values.astype(np.int64), first) if len(first) else np.zeros(0, np.int64)

    alive = pc.struct_field(contiguous(records["vitality"]), "composite").to_numpy(zero_copy_only=False) > 0
    whole = (tick[last] == cycle[first] * span) & alive[last]
    at_us = records["observed_at"].cast(pa.int64()).to_numpy()
    return Cycles(
        golem[first], cycle[first], tick[last], at_us[last], whole & (summed(busy & late) == 0), summed(tagged)
    )


@dataclass(frozen=True)
class Bed:
    """What is known of a golem before these cycles: its last dream (cycle 0 and its birth for none), and whether it was
    born with a bundle that it has not dreamt of."""

    cycle: int
    at_us: int
    imported: bool


@dataclass(frozen=True)
class Due:
    """Dreams to come, sorted by (golem, cycle): the end of the cycle each closes with, and what began it."""

    golem: np.ndarray
    cycle: np.ndarray
    tick: np.ndarray
    at_us: np.ndarray
    began_by: np.ndarray


def dreams_due(cycles: Cycles, beds: dict[int, Bed], policy: DreamPolicy) -> Due:
    """The dreams that these cycles bring. beds: of every golem among them; cycles up to its last dream do not count.

    One step a dream and not a record: each is found in the golem's cycles by bisection.
    """
    wait = round(policy.every_hours * HOUR_US)
    found: list[tuple[int, int, int]] = []
    bounds = np.flatnonzero(np.r_[True, cycles.golem[1:] != cycles.golem[:-1]][: len(cycles.golem)])
    stops = [*bounds[1:].tolist(), len(cycles.golem)][: len(bounds)]
    for start, stop in zip(bounds.tolist(), stops, strict=True):
        golem = int(cycles.golem[start])
        bed = beds[golem]
        first = start + int(np.searchsorted(cycles.cycle[start:stop], bed.cycle, side="right"))
        idle = (first + np.flatnonzero(cycles.idle[first:stop])).tolist()
        moments = cycles.at_us[idle].tolist()
        tagged = (first + np.flatnonzero(cycles.tags[first:stop] > 0)).tolist()
        last_us, place, imported = bed.at_us, 0, bed.imported
        while place < len(idle):
            by_clock = bisect_left(moments, last_us + wait, place)
            unseen = bisect_left(tagged, idle[place - 1] + 1 if place else first)
            by_tag = bisect_left(idle, tagged[unseen], place) if unseen < len(tagged) else len(idle)
            options = ((by_clock, SCHEDULE), (place if imported else len(idle), IMPORT), (by_tag, TAG))
            place, why = min(options)
            if place == len(idle):
                break
            found.append((golem, idle[place], why))
            last_us, imported, place = moments[place], False, place + 1
    rows = np.array([f[1] for f in found], np.int64)
    why_codes = np.array([f[2] for f in found], np.int64)
    return Due(cycles.golem[rows], cycles.cycle[rows], cycles.tick[rows], cycles.at_us[rows], why_codes)


def salience(
    arousal: np.ndarray, valence: np.ndarray, age_ticks: np.ndarray, novelty: np.ndarray, policy: DreamPolicy
) -> np.ndarray:
    """How much an episode asks to be replayed, in [0, 1] (KAT). arousal, valence in [-1, 1]: calm counts nothing."""
    recency = np.exp(-np.asarray(age_ticks, np.float64) / policy.recency_ticks)
    return (
        policy.arousal_weight * np.clip(arousal, 0.0, 1.0)
        + policy.valence_weight * np.abs(valence)
        + policy.recency_weight * recency
        + policy.novelty_weight * novelty
    )


def scar_salience(age_ticks: np.ndarray, novelty: np.ndarray, pressure: np.ndarray, policy: DreamPolicy) -> np.ndarray:
    """An inherited scar's: that of an episode felt to the full, times the mortality pressure in [0, 1].

    What the dead felt does not cross a generation; that it was paid for with a life does.
    """
    ones = np.ones(len(age_ticks))
    return pressure * salience(ones, ones, age_ticks, novelty, policy)


def depotentiated(arousal: np.ndarray, times: np.ndarray, policy: DreamPolicy) -> np.ndarray:
    """Arousal after so many REM cycles: less 0.12 each, never below 0.10; what lies lower is left alone."""
    eased = np.maximum(arousal - policy.depotentiation * times, policy.arousal_floor)
    return np.where(arousal > policy.arousal_floor, eased, arousal)


def chosen(dream: np.ndarray, seed: np.ndarray, name: np.ndarray, weight: np.ndarray, places: int) -> np.ndarray:
    """Draw for each dream as many as it has places for, by weight: positions, sorted by dream."""
    return drawn(dream, seed, name, weight, places, STREAM_REPLAY)
