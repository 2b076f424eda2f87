"""The Weismann barrier: what crosses a death loses confidence once, and leaves private experience behind. Pure.

Three steps, each a function of columns: the dying leave their warnings as bloodstains, confidence is attenuated, and the
golem's own sums are shed. Source: INH S7.2, KAT (bloodstains are death-sourced warnings), canon 2, 7-9.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.grimoire import confidence as conf
from bardo_pipeline.grimoire.columns import (
    confidence_of,
    flag,
    floor_of,
    half_life_of,
    micros,
    moments,
    replaced,
    whole,
)
from bardo_pipeline.katabasis.votes import of_the_dead
from bardo_pipeline.policy import InheritancePolicy, Policy

SHED_COLUMNS = (
    "own_count",
    "own_sum",
    "own_sumsq",
    "recent_count",
    "recent_sum",
    "pleasure_sum_milli",
    "arousal_sum_milli",
    "dominance_sum_milli",
    "validations",
    "contradictions",
    "created_cycle",
)
"""What dies with the golem: the sums of its own evidence and mood, and its own confirmations. An heir starts at 0."""


def leave_bloodstains(entries: pa.Table, deaths: pa.Table, policy: Policy) -> pa.Table:
    """Mark what the dying leave: their active warnings become bloodstains, each from its golem's death on.

    entries: ENTRY_SCHEMA; entries of the living are left out. deaths: golem_id and at. The flag's longer half-life acts
    from death, not from the anchor: an anchor keeps its time, and its confidence is restated so that the confidence at
    death is what it was (to 1 ppm). What is a bloodstain already stays as it is.
    """
    dead, at_us = of_the_dead(entries, deaths)
    fresh = pc.and_(pc.equal(dead.column("kind"), "warning"), pc.equal(dead.column("status"), "active"))
    fresh = fresh.to_numpy(zero_copy_only=False).astype(bool) & ~flag(dead, "is_bloodstain")
    before, half = confidence_of(dead, at_us, policy.decay), half_life_of(dead, policy.decay)
    stained = replaced(dead, is_bloodstain=flag(dead, "is_bloodstain") | fresh)
    longer, floor = half_life_of(stained, policy.decay), floor_of(stained, policy.decay)
    age = np.maximum(at_us - micros(dead, "anchor_at"), 0)
    shift = np.where(half >= conf.FOREVER_US, 0.0, age / longer - age / half)
    anchored = np.rint(whole(dead, "confidence_ppm") * np.exp2(shift)).astype(np.int64)
    restated = np.where(before < floor, before, np.maximum(anchored, floor))
    confidence = np.where(fresh, restated, whole(dead, "confidence_ppm"))
    return fading(replaced(stained, confidence_ppm=confidence), policy)


def attenuate(entries: pa.Table, policy: Policy) -> pa.Table:
    """One crossing: confidence x 0.85 (or at most the flat 0.4), generation + 1, the anchor's time kept.

    entries: ENTRY_SCHEMA, more columns allowed. A floor binds the crossing as it binds decay: what stands above its
    floor is not taken below it, and what stands below (a downvote went through) is left as it is.
    """
    confidence, floor = whole(entries, "confidence_ppm"), floor_of(entries, policy.decay)
    rules = policy.inheritance
    if rules.weismann == "reset":
        crossed = np.minimum(confidence, conf.ppm(rules.reset_confidence))
    else:
        crossed = conf.attenuated(confidence, rules.attenuation)
    crossed = np.maximum(crossed, np.minimum(floor, confidence))
    entries = replaced(entries, confidence_ppm=crossed, generation=whole(entries, "generation") + 1)
    return fading(entries, policy)


def shed(entries: pa.Table, policy: Policy) -> pa.Table:
    """Leave private experience behind: SHED_COLUMNS become 0.

    evidence_count keeps the count that a fact's half-life rests on, so that shedding changes no confidence.
    """
    evidence = np.maximum(whole(entries, "own_count"), whole(entries, "evidence_count"))
    nothing = np.zeros(entries.num_rows, np.int64)
    entries = replaced(entries, evidence_count=evidence, **dict.fromkeys(SHED_COLUMNS, nothing))
    return fading(entries, policy)


def crossing_limit(at_death: np.ndarray, floor: np.ndarray, policy: InheritancePolicy) -> np.ndarray:
    """The most confidence, in ppm, that may be left at death's own moment after one crossing; 1 ppm is for rounding."""
    if policy.weismann == "reset":
        most = np.minimum(at_death, conf.ppm(policy.reset_confidence))
    else:
        most = conf.attenuated(at_death, policy.attenuation) + 1
    return np.maximum(most, np.minimum(floor, at_death))


def fading(entries: pa.Table, policy: Policy) -> pa.Table:
    """The same entries with fades_at as their anchors now say."""
    fades = conf.fades_at_us(
        whole(entries, "confidence_ppm"),
        micros(entries, "anchor_at"),
        half_life_of(entries, policy.decay),
        floor_of(entries, policy.decay),
        conf.ppm(policy.curator.prune_confidence),
    )
    never = (fades >= conf.FOREVER_US) | ~pc.equal(entries.column("status"), "active").to_numpy(
        zero_copy_only=False
    ).astype(bool)
    return replaced(entries, fades_at=moments(fades, never))
