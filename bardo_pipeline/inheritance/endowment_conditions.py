"""Conditions: what a golem may begin with, so that what inheritance is worth can be told. Pure, set-based.

Heirs begin with what the bottleneck and the barrier let through; the others are what they are compared with. Source:
issue 5 ("Proof of worth"), X-5.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA
from bardo_pipeline.grimoire.entry_columns import confidence_of, moments, with_columns
from bardo_pipeline.inheritance.bottleneck import bottleneck
from bardo_pipeline.inheritance.heir_entries import as_inherited
from bardo_pipeline.inheritance.weismann import attenuate, fading, leave_bloodstains, shed
from bardo_pipeline.katabasis.anonymous_votes import entries_of_dead_golems
from bardo_pipeline.policy import Policy

CONDITIONS = ("heirs", "orphans", "clones", "total_recall")
HEIRS, ORPHANS, CLONES, TOTAL_RECALL = CONDITIONS


def endowment(
    condition: str, entries: pa.Table, ever: pa.Table, deaths: pa.Table, heirs: dict[str, str], policy: Policy
) -> pa.Table:
    """What the heirs of these dead know at birth under a condition: ENTRY_SCHEMA, sorted by golem and entry.

    entries: the grimoires of the dead as they died (ENTRY_SCHEMA, every status). ever: every state that an entry of
    theirs or of their ancestors was ever in (ENTRY_SCHEMA, several rows an entry), of the same golem ids; only total
    recall reads it. deaths: golem_id, at. heirs: the dead golem's id to its heir's.

    - heirs: through the bottleneck and the barrier, as a bundle carries it;
    - orphans: nothing;
    - clones: the grimoire as it stood at death, evidence and candidates with it, as sure as then, and nothing of it
      fades (votes still count);
    - total recall: a clone's, and whatever was ever held beside it, as sure as it was at its surest.
    """
    if condition == ORPHANS:
        return ENTRY_SCHEMA.empty_table()
    if condition == HEIRS:
        left = bottleneck(leave_bloodstains(entries, deaths, policy), deaths, policy)
        crossed = shed(attenuate(left, policy), policy).select(ENTRY_SCHEMA.names)
        return as_inherited(renamed(crossed, heirs), policy)
    held, at_us = entries_of_dead_golems(entries, deaths)
    kept = _held_fast(held, confidence_of(held, at_us, policy.decay), at_us)
    if condition == TOTAL_RECALL:
        kept = _and_all_that_was(kept, ever, deaths)
    return fading(renamed(kept, heirs), policy).sort_by([("golem_id", "ascending"), ("entry_id", "ascending")])


def _held_fast(entries: pa.Table, confidence: np.ndarray, at_us: np.ndarray) -> pa.Table:
    """As sure as said from a moment on, and pinned there, so that no time takes any of it."""
    active = pc.equal(entries["status"], "active").to_numpy(zero_copy_only=False)
    sure = np.where(active, confidence, 0)
    return with_columns(entries, confidence_ppm=sure, anchor_at=moments(at_us), pinned_ppm=sure)


def _and_all_that_was(kept: pa.Table, ever: pa.Table, deaths: pa.Table) -> pa.Table:
    """With everything that was active at any time and is not, each as it was at its surest."""
    was, at_us = entries_of_dead_golems(ever.filter(pc.equal(ever["status"], "active")), deaths)
    was = _held_fast(was, was["confidence_ppm"].to_numpy(), at_us)
    living = kept.filter(pc.equal(kept["status"], "active"))
    both = pa.concat_tables([living, was, kept.filter(pc.not_equal(kept["status"], "active"))])
    rank = np.r_[np.zeros(living.num_rows), np.ones(was.num_rows), np.full(kept.num_rows - living.num_rows, 2.0)]
    order = np.lexsort((-both["confidence_ppm"].to_numpy(), rank))
    both = both.take(pa.array(order))
    keys = pc.binary_join_element_wise(both["golem_id"], both["structure"], "\n").combine_chunks().dictionary_encode()
    _, first = np.unique(keys.indices.to_numpy(), return_index=True)
    return both.take(pa.array(np.sort(first)))


def renamed(entries: pa.Table, heirs: dict[str, str]) -> pa.Table:
    """The same entries, each golem's in the name of its heir; those of golems without one are left out."""
    place = pc.index_in(entries["golem_id"], value_set=pa.array(list(heirs), pa.string()))
    named = pa.array(list(heirs.values()), pa.string()).take(place.combine_chunks())
    return with_columns(entries, golem_id=named).filter(pc.is_valid(place))
