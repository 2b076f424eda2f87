"""Builds the initial grimoires of the conditions that measure the worth of inheritance, and names their parts. Pure.

Heirs start with the entries that pass the bottleneck and the barrier, and with the learning state; the other conditions
are controls.
Source: X-5; docs/adr/0029.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA
from bardo_pipeline.grimoire.entry_columns import confidence_of, moments, query_tables, with_columns
from bardo_pipeline.inheritance.bottleneck import bottleneck
from bardo_pipeline.inheritance.choice_evidence import crossing_evidence, with_evidence
from bardo_pipeline.inheritance.heir_entries import as_inherited
from bardo_pipeline.inheritance.weismann import attenuate, leave_bloodstains, shed, with_fade_time
from bardo_pipeline.katabasis.anonymous_votes import entries_of_dead_golems
from bardo_pipeline.policy import Policy

CONDITIONS = ("heirs", "orphans", "clones", "total_recall", "entries_only", "attention_only")
HEIRS, ORPHANS, CLONES, TOTAL_RECALL, ENTRIES_ONLY, ATTENTION_ONLY = CONDITIONS


class Inherited(NamedTuple):
    """Parts of a predecessor's knowledge that a condition passes on.

    forecasts: variances of the predictions. attention: deliberations, and vain ones, by situation.
    """

    entries: bool
    forecasts: bool
    attention: bool


INHERITED = {
    HEIRS: Inherited(entries=True, forecasts=True, attention=True),
    ORPHANS: Inherited(entries=False, forecasts=False, attention=False),
    CLONES: Inherited(entries=True, forecasts=True, attention=True),
    TOTAL_RECALL: Inherited(entries=True, forecasts=True, attention=True),
    ENTRIES_ONLY: Inherited(entries=True, forecasts=False, attention=False),
    ATTENTION_ONLY: Inherited(entries=False, forecasts=False, attention=True),
}
"""Condition -> the parts that it passes on."""


def endowment(
    condition: str, entries: pa.Table, ever: pa.Table, deaths: pa.Table, heirs: dict[str, str], policy: Policy
) -> pa.Table:
    """Return the heirs' entries at birth under a condition: ENTRY_SCHEMA, sorted by golem and entry.

    - heirs, entries_only: entries after bottleneck and barrier, and evidence about choices, as in a bundle;
    - orphans, attention_only: no entries;
    - clones: the complete grimoire at death, pinned at its confidence so that it does not decay;
    - total_recall: a clone's entries, plus every formerly active entry at its highest confidence.

    Parameters
    ----------
    entries : pa.Table, ENTRY_SCHEMA, all entries of the dead golems at death, every status
    ever : pa.Table, ENTRY_SCHEMA, every former state of their and their ancestors' entries; read by total_recall
    deaths : pa.Table, columns golem_id and at
    heirs : dead golem's id -> heir's id
    """
    if not INHERITED[condition].entries:
        return ENTRY_SCHEMA.empty_table()
    if condition in (HEIRS, ENTRIES_ONLY):
        selected = bottleneck(leave_bloodstains(entries, deaths, policy), deaths, policy)
        crossed = shed(attenuate(selected, policy), policy).select(ENTRY_SCHEMA.names)
        return _with_evidence_of(entries, as_inherited(renamed(crossed, heirs), policy), heirs, policy)
    dead, at_us = entries_of_dead_golems(entries, deaths)
    kept = _pinned(dead, confidence_of(dead, at_us, policy.decay), at_us)
    if condition == TOTAL_RECALL:
        kept = _with_former_entries(kept, ever, deaths)
    return with_fade_time(renamed(kept, heirs), policy).sort_by([("golem_id", "ascending"), ("entry_id", "ascending")])


def _with_evidence_of(entries: pa.Table, inherited: pa.Table, heirs: dict[str, str], policy: Policy) -> pa.Table:
    """Add the dead golems' evidence about choices to their heirs' entries."""
    crossing = crossing_evidence(entries, {}, policy)
    parts = [
        with_evidence(inherited.filter(pc.equal(inherited["golem_id"], heir)), crossing.get(dead, ()), heir, policy)
        for dead, heir in sorted(heirs.items(), key=lambda pair: pair[1])
    ]
    return pa.concat_tables([ENTRY_SCHEMA.empty_table(), *parts])


def _pinned(entries: pa.Table, confidence: Int64Array, at_us: Int64Array) -> pa.Table:
    """Anchor and pin active entries at this confidence, others at 0, so that nothing decays."""
    is_active = pc.equal(entries["status"], "active").to_numpy(zero_copy_only=False)
    pins = np.where(is_active, confidence, 0)
    return with_columns(entries, confidence_ppm=pins, anchor_at=moments(at_us), pinned_ppm=pins)


def _with_former_entries(kept: pa.Table, ever: pa.Table, deaths: pa.Table) -> pa.Table:
    """Add the formerly active structures that are no longer active, each at its highest confidence."""
    former, at_us = entries_of_dead_golems(ever.filter(pc.equal(ever["status"], "active")), deaths)
    union = pa.concat_tables([kept, _pinned(former, former["confidence_ppm"].to_numpy(), at_us)])
    place = np.arange(union.num_rows)
    candidates = union.select(["golem_id", "structure", "status", "confidence_ppm"]).append_column("place", [place])
    return union.take(query_tables(_BEST, {"kept_count": kept.num_rows}, candidates=candidates)["place"])


_BEST = """
    select place from candidates
    qualify row_number() over (
        partition by golem_id, structure
        order by status <> 'active', place >= $kept_count, confidence_ppm desc, place
    ) = 1
"""


def renamed(entries: pa.Table, heirs: dict[str, str]) -> pa.Table:
    """Replace each golem id by its heir's id; drop entries of golems without an heir."""
    heir_index = pc.index_in(entries["golem_id"], value_set=pa.array(list(heirs), pa.string()))
    heir_ids = pa.array(list(heirs.values()), pa.string()).take(heir_index.combine_chunks())
    return with_columns(entries, golem_id=heir_ids).filter(pc.is_valid(heir_index))
