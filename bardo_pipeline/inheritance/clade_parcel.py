"""Packs the entries that a living golem shares with its clade into a parcel, a bundle without a death. Pure.

Source: INH S5.1, S6; KAT-9.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.errors import BundleError
from bardo_pipeline.events.life.clade_events import KEPT_DAYS_MAX
from bardo_pipeline.events.life.events import Born
from bardo_pipeline.events.life.retractions import LeftOut
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA
from bardo_pipeline.inheritance.bundle_files import CLADE, Bundle
from bardo_pipeline.inheritance.packed_entries import pack_entries
from bardo_pipeline.policy import Policy


def pack_parcel(
    entries: pa.Table,
    golem_id: str,
    born: Born,
    *,
    cycle: int,
    at: datetime,
    left_out: LeftOut,
    derivation_id: str,
    policy: Policy,
    kept: int | None = None,
) -> Bundle:
    """Pack entries of a golem's grimoire as of its last closed cycle.

    Parameters
    ----------
    entries : pa.Table, ENTRY_SCHEMA
    at : datetime, UTC, time of the golem's newest tick
    left_out : retractions that the grimoire has handled
    kept : days for which the sender paid; None for those of any parcel
    """
    head: dict[str, Any] = {
        "clade": {"owner_id": born.owner_id, "cycle": cycle}, "left_out": left_out.listing(golem_id),
    }  # fmt: skip
    head["clade"] |= {} if kept is None else {"kept_days": kept}
    return pack_entries(
        entries.select(ENTRY_SCHEMA.names), golem_id=golem_id, lineage_id=born.lineage_id, generation=born.generation,
        at=at, selected_by=CLADE, title=(f"Parcel of {golem_id}", f"For its clade, after cycle {cycle}."), head=head,
        derivation_id=derivation_id, policy=policy, source_watermark=cycle * policy.curator.cycle_ticks,
    )  # fmt: skip


def is_parcel(bundle: Bundle) -> bool:
    """Whether a bundle is a parcel of a clade."""
    return "clade" in bundle.manifest


def check_parcel(bundle: Bundle, owner_id: str) -> None:
    """Raise BundleError for a bundle that is no parcel of this owner's clade."""
    clade = bundle.manifest.get("clade")
    if not isinstance(clade, dict) or clade.get("owner_id") != owner_id:
        raise BundleError(f"bundle {bundle.bundle_hash} is no parcel of the clade of {owner_id!r}")


def is_urgent(bundle: Bundle) -> bool:
    """Whether a parcel holds warnings alone, which no limit delays (INH S5.3)."""
    return bool(pc.all(pc.equal(bundle.entries()["kind"], "warning"), min_count=0).as_py())


def kept_days(bundle: Bundle) -> int | None:
    """Return the days for which a parcel's sender paid, None for any other bundle or value."""
    clade = bundle.manifest.get("clade")
    days = clade.get("kept_days") if isinstance(clade, dict) else None
    return days if isinstance(days, int) and 1 <= days <= KEPT_DAYS_MAX else None
