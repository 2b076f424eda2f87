"""Applies the Weismann barrier to entries that cross a death: lower confidence, no private experience. Pure.

Three steps over columns: mark the active warnings of dead golems as bloodstains, attenuate confidence, reset own sums.
Source: INH S7.2, KAT (bloodstains: "death-sourced warnings"), canon 2, 7-9.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.grimoire import confidence as conf
from bardo_pipeline.grimoire.entry_columns import (
    bool_column,
    confidence_of,
    floor_of,
    half_life_of,
    int_column,
    micros,
    moments,
    to_bools,
    with_columns,
)
from bardo_pipeline.katabasis.anonymous_votes import entries_of_dead_golems
from bardo_pipeline.policy import InheritancePolicy, Policy

SHED_COLUMNS = (
    "own_count",
    "own_sum",
    "own_sumsq",
    "pleasure_sum_milli",
    "arousal_sum_milli",
    "dominance_sum_milli",
    "validations",
    "contradictions",
    "created_cycle",
    "pinned_ppm",
)
"""Columns that an heir starts at 0: sums of own evidence and mood, own confirmations, the owner's pins."""


def leave_bloodstains(entries: pa.Table, deaths: pa.Table, policy: Policy) -> pa.Table:
    """Mark the active warnings of dead golems as bloodstains. Returns ENTRY_SCHEMA rows of the dead golems.

    The longer half-life of bloodstains acts from death on. The anchor keeps its time, so its confidence is restated to
    leave the confidence at death unchanged (to 1 ppm). Existing bloodstains and other kinds stay unchanged (canon 7).
    An owner's pin ends at death: the entry keeps its pinned confidence at death and decays from there.

    Parameters
    ----------
    entries : pa.Table, ENTRY_SCHEMA; entries of living golems are left out
    deaths : pa.Table, columns golem_id and at
    """
    dead, at_us = entries_of_dead_golems(entries, deaths)
    dead = _without_pins(dead, at_us, policy)
    is_bloodstain = bool_column(dead, "is_bloodstain")
    active_warning = pc.and_(pc.equal(dead.column("kind"), "warning"), pc.equal(dead.column("status"), "active"))
    marked = with_columns(dead, is_bloodstain=is_bloodstain | to_bools(active_warning))
    at_death, floor = confidence_of(dead, at_us, policy.decay), floor_of(marked, policy.decay)
    age = np.maximum(at_us - micros(dead, "anchor_at"), 0)
    halvings_saved = age / half_life_of(marked, policy.decay) - age / half_life_of(dead, policy.decay)
    anchored = np.rint(int_column(dead, "confidence_ppm") * np.exp2(halvings_saved)).astype(np.int64)
    restated = np.where(at_death < floor, at_death, np.maximum(anchored, floor))
    return with_fade_time(with_columns(marked, confidence_ppm=restated), policy)


def _without_pins(dead: pa.Table, at_us: Int64Array, policy: Policy) -> pa.Table:
    """Replace each pin by an anchor at death with the pinned confidence."""
    is_pinned = int_column(dead, "pinned_ppm") > 0
    if not is_pinned.any():
        return dead
    confidence = np.where(is_pinned, confidence_of(dead, at_us, policy.decay), int_column(dead, "confidence_ppm"))
    anchors = moments(np.where(is_pinned, at_us, micros(dead, "anchor_at")))
    no_pins = np.zeros(dead.num_rows, np.int64)
    return with_columns(dead, confidence_ppm=confidence, anchor_at=anchors, pinned_ppm=no_pins)


def attenuate(entries: pa.Table, policy: Policy) -> pa.Table:
    """Attenuate entries for one crossing: confidence x 0.85, generation + 1, the anchor's time unchanged.

    entries: ENTRY_SCHEMA; further columns are kept. With `weismann = "reset"` the column confidence_death_ppm is read
    too, and a confidence at death above `reset_confidence` is lowered to it. Attenuation stops at an entry's floor; a
    confidence below its floor stays unchanged.
    """
    confidence, floor = int_column(entries, "confidence_ppm"), floor_of(entries, policy.decay)
    rules = policy.inheritance
    if rules.weismann == "reset":
        at_death = np.maximum(int_column(entries, "confidence_death_ppm"), 1)
        crossed = np.floor(confidence * np.minimum(conf.ppm(rules.reset_confidence) / at_death, 1.0)).astype(np.int64)
    else:
        crossed = conf.attenuated(confidence, rules.attenuation)
    crossed = np.maximum(crossed, np.minimum(floor, confidence))
    generation = int_column(entries, "generation") + 1
    return with_fade_time(with_columns(entries, confidence_ppm=crossed, generation=generation), policy)


def shed(entries: pa.Table, policy: Policy) -> pa.Table:
    """Set SHED_COLUMNS to 0. evidence_count keeps own evidence, because a fact's half-life depends on it."""
    evidence = np.maximum(int_column(entries, "own_count"), int_column(entries, "evidence_count"))
    zeros = np.zeros(entries.num_rows, np.int64)
    return with_fade_time(with_columns(entries, evidence_count=evidence, **dict.fromkeys(SHED_COLUMNS, zeros)), policy)


def crossing_limit(at_death: Int64Array, floor: Int64Array, policy: InheritancePolicy) -> Int64Array:
    """Return the highest confidence at death, in ppm, that one crossing may leave, with 1 ppm for rounding.

    at_death: confidence before the crossing. floor: 0 for entries without a floor.
    """
    if policy.weismann == "reset":
        limit = np.minimum(at_death, conf.ppm(policy.reset_confidence)) + 1
    else:
        limit = conf.attenuated(at_death, policy.attenuation) + 1
    return np.maximum(limit, np.minimum(floor, at_death))


def with_fade_time(entries: pa.Table, policy: Policy) -> pa.Table:
    """Recompute fades_at from the anchors; null for entries that never fade or are not active."""
    fades = conf.fades_at_us(
        int_column(entries, "confidence_ppm"),
        micros(entries, "anchor_at"),
        half_life_of(entries, policy.decay),
        floor_of(entries, policy.decay),
        conf.ppm(policy.curator.prune_confidence),
    )
    never = (fades >= conf.FOREVER_US) | ~to_bools(pc.equal(entries.column("status"), "active"))
    return with_columns(entries, fades_at=moments(fades, never))
