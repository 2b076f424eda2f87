"""Chooses the entries that a golem shares with its clade, and packs them into parcels.

An entry is shared once, when it passes its gate of the bridge (`crossings`). A golem shares at most `hour_out` entries
within an hour of its own time, the most confident first; the rest waits. Warnings are exempt and go into a parcel of
their own. Entries that the golem received from its clade are not shared again.
Source: INH S5.1, S5.3, S6.2; MEM-14; canon 45.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.views.crossings import crossings_of
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.grimoire_views import elders
from bardo_pipeline.derivation.curation.record_overrides import Grimoire, grimoire_of
from bardo_pipeline.derivation.incremental.retraction_tracking import handled_retractions
from bardo_pipeline.derivation.legacy.bundle_store import write_bundle
from bardo_pipeline.derivation.legacy.death_queries import births_of
from bardo_pipeline.events.life.bundle_events import EntriesShared
from bardo_pipeline.events.life.events import LifeEvent, life_event
from bardo_pipeline.grimoire.entries import CLADE_SIBLING, ENTRY_SCHEMA
from bardo_pipeline.inheritance.clade_parcel import pack_parcel

HOUR = timedelta(hours=1)


def share_entries(context: DerivationContext, golem_id: str) -> list[LifeEvent]:
    """Pack the parcels that a golem shares now, durably; return their events (EntriesShared), to be recorded."""
    grimoire, limits = grimoire_of(context, golem_id), context.policy.clade
    rows = context.life_fields("EntriesShared", "entry_ids", "is_urgent", golems=[golem_id]).to_pylist()
    known = [entry_id for row in rows for entry_id in row["entry_ids"]]
    recent = _shared_lately(rows, grimoire)
    entries = _crossing(context, grimoire)
    entries = entries.filter(pc.invert(pc.is_in(entries["entry_id"], value_set=pa.array(known, pa.string()))))
    is_warning = pc.equal(entries["kind"], "warning")
    parts = entries.filter(is_warning), entries.filter(pc.invert(is_warning)).slice(0, max(limits.hour_out - recent, 0))
    size = context.policy.reception.entries_max
    return [
        life_event(golem_id, grimoire.at, _packed(context, grimoire, part.slice(start, size), is_urgent))
        for part, is_urgent in zip(parts, (True, False), strict=True)
        for start in range(0, part.num_rows, size)
    ]


def parcel_of_entry(
    context: DerivationContext, grimoire: Grimoire, entry_id: str, kept_days: int
) -> EntriesShared | str:
    """Pack a parcel of one entry and return its event, which is not recorded, or the reason why it does not cross.

    Parameters
    ----------
    kept_days : days for which the golem pays
    """
    rows = context.life_fields("EntriesShared", "entry_ids", "is_urgent", golems=[grimoire.golem_id]).to_pylist()
    if any(entry_id in row["entry_ids"] for row in rows):
        return "the clade has it already"
    entries = grimoire.entries.select(ENTRY_SCHEMA.names)
    row = entries.filter(pc.equal(entries["entry_id"], entry_id))
    if row["provenance"].to_pylist() == [CLADE_SIBLING]:
        return "it came from the clade"
    gates = crossings_of(entries, context.policy, elders(context))
    gate = gates.filter(pc.equal(gates["entry_id"], entry_id)).to_pylist()
    if not gate:
        return "the golem has no evidence of its own for it"
    if not gate[0]["crosses"]:
        return str(gate[0]["reason"])
    is_warning = gate[0]["kind"] == "warning"
    if not is_warning and _shared_lately(rows, grimoire) >= context.policy.clade.hour_out:
        return f"the golem shared {context.policy.clade.hour_out} entries within its last hour"
    return _packed(context, grimoire, row, is_warning, kept_days)


def _shared_lately(rows: list[dict[str, Any]], grimoire: Grimoire) -> int:
    """Return the entries that a golem shared within the hour before its newest tick, warnings apart."""
    return sum(
        len(row["entry_ids"]) for row in rows if not row["is_urgent"] and row["observed_at"] > grimoire.at - HOUR
    )


def _crossing(context: DerivationContext, grimoire: Grimoire) -> pa.Table:
    """Return the entries of a grimoire that pass their gate and are the golem's own, the most confident first."""
    rows = grimoire.entries.select(ENTRY_SCHEMA.names)
    gates = crossings_of(rows, context.policy, elders(context))
    passed = gates.filter(gates["crosses"])["entry_id"].combine_chunks()
    is_shared = pc.and_(pc.is_in(rows["entry_id"], value_set=passed), pc.not_equal(rows["provenance"], CLADE_SIBLING))
    return rows.filter(is_shared)


def _packed(
    context: DerivationContext, grimoire: Grimoire, entries: pa.Table, is_urgent: bool, kept_days: int | None = None
) -> EntriesShared:
    """Pack entries into a parcel, whose files are durable afterwards, and return its event."""
    ((birth, _),) = births_of(context, [grimoire.golem_id]).values()
    parcel = pack_parcel(
        entries, grimoire.golem_id, birth, cycle=grimoire.cycle, at=grimoire.at,
        left_out=handled_retractions(context, ["curation"]), derivation_id=context.derivation_id,
        policy=context.policy, kept=kept_days,
    )  # fmt: skip
    write_bundle(context.home.bundles, parcel)
    return EntriesShared(
        bundle_hash=parcel.bundle_hash, entry_ids=tuple(sorted(entries["entry_id"].to_pylist())),
        cycle_seen=grimoire.cycle, is_urgent=is_urgent,
    )  # fmt: skip
