"""The Weismann barrier: what crosses a death loses confidence once, and leaves private experience behind. Pure.

Three steps over columns: the dying leave their warnings as bloodstains, confidence is attenuated, own sums are shed.
Source: INH S7.2, KAT (bloodstains: "death-sourced warnings"), canon 2, 7-9.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

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

Ints = NDArray[np.int64]

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
"""What dies with the golem: the sums of its own evidence and mood, its own confirmations, its owner's pins. An heir
starts at 0."""


def leave_bloodstains(entries: pa.Table, deaths: pa.Table, policy: Policy) -> pa.Table:
    """Mark what the dying leave: their active warnings become bloodstains, from death on.

    entries: ENTRY_SCHEMA; entries of the living are left out. deaths: golem_id and at. Returns ENTRY_SCHEMA.
    The flag's longer half-life acts from death, not from the anchor: an anchor keeps its time, and its confidence is
    restated so that the confidence at death is what it was (to 1 ppm). What is a bloodstain already stays as it is, and
    what the golem knows beside its warnings crosses unmarked (canon 7: not everything that its heir inherits).
    An owner's pin ends with the golem: the entry is worth at death what it was held at, and fades from there.
    """
    dead, at_us = entries_of_dead_golems(entries, deaths)
    dead = _released(dead, at_us, policy)
    stained = bool_column(dead, "is_bloodstain")
    active_warning = pc.and_(pc.equal(dead.column("kind"), "warning"), pc.equal(dead.column("status"), "active"))
    left = with_columns(dead, is_bloodstain=stained | to_bools(active_warning))
    at_death, floor = confidence_of(dead, at_us, policy.decay), floor_of(left, policy.decay)
    age = np.maximum(at_us - micros(dead, "anchor_at"), 0)
    slower = age / half_life_of(left, policy.decay) - age / half_life_of(dead, policy.decay)
    anchored = np.rint(int_column(dead, "confidence_ppm") * np.exp2(slower)).astype(np.int64)
    restated = np.where(at_death < floor, at_death, np.maximum(anchored, floor))
    return fading(with_columns(left, confidence_ppm=restated), policy)


def _released(dead: pa.Table, at_us: Ints, policy: Policy) -> pa.Table:
    """Without pins: what was pinned is anchored at death, with the confidence that it was held at."""
    pinned = int_column(dead, "pinned_ppm") > 0
    if not pinned.any():
        return dead
    held = np.where(pinned, confidence_of(dead, at_us, policy.decay), int_column(dead, "confidence_ppm"))
    anchors = moments(np.where(pinned, at_us, micros(dead, "anchor_at")))
    return with_columns(dead, confidence_ppm=held, anchor_at=anchors, pinned_ppm=np.zeros(dead.num_rows, np.int64))


def attenuate(entries: pa.Table, policy: Policy) -> pa.Table:
    """One crossing: confidence x 0.85, generation + 1, the anchor's time kept.

    entries: ENTRY_SCHEMA, further columns allowed; the switch "reset" reads confidence_death_ppm (SELECTED_SCHEMA) too,
    and brings what stood above 0.4 at death to 0.4 there (nothing gains by crossing). A floor binds the crossing as it
    binds decay: what stands above its floor is not taken below it, and what a downvote took below is left as it is.
    """
    confidence, floor = int_column(entries, "confidence_ppm"), floor_of(entries, policy.decay)
    rules = policy.inheritance
    if rules.weismann == "reset":
        at_death = np.maximum(int_column(entries, "confidence_death_ppm"), 1)
        crossed = np.floor(confidence * np.minimum(conf.ppm(rules.reset_confidence) / at_death, 1.0)).astype(np.int64)
    else:
        crossed = conf.attenuated(confidence, rules.attenuation)
    crossed = np.maximum(crossed, np.minimum(floor, confidence))
    return fading(
        with_columns(entries, confidence_ppm=crossed, generation=int_column(entries, "generation") + 1), policy
    )


def shed(entries: pa.Table, policy: Policy) -> pa.Table:
    """Leave private experience behind: SHED_COLUMNS become 0.

    evidence_count keeps the count that a fact's half-life rests on, so that shedding changes no confidence.
    """
    evidence = np.maximum(int_column(entries, "own_count"), int_column(entries, "evidence_count"))
    nothing = np.zeros(entries.num_rows, np.int64)
    return fading(with_columns(entries, evidence_count=evidence, **dict.fromkeys(SHED_COLUMNS, nothing)), policy)


def crossing_limit(at_death: Ints, floor: Ints, policy: InheritancePolicy) -> Ints:
    """The most confidence, in ppm, that one crossing may leave at the moment of death; 1 ppm of it is for rounding.

    at_death: confidence before the crossing; floor: 0 where there is none.
    """
    if policy.weismann == "reset":
        most = np.minimum(at_death, conf.ppm(policy.reset_confidence)) + 1
    else:
        most = conf.attenuated(at_death, policy.attenuation) + 1
    return np.maximum(most, np.minimum(floor, at_death))


def fading(entries: pa.Table, policy: Policy) -> pa.Table:
    """The same entries with fades_at as their anchors now say; null for what never fades or is not active."""
    fades = conf.fades_at_us(
        int_column(entries, "confidence_ppm"),
        micros(entries, "anchor_at"),
        half_life_of(entries, policy.decay),
        floor_of(entries, policy.decay),
        conf.ppm(policy.curator.prune_confidence),
    )
    never = (fades >= conf.FOREVER_US) | ~to_bools(pc.equal(entries.column("status"), "active"))
    return with_columns(entries, fades_at=moments(fades, never))
