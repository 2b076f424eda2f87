"""Differences between two grimoires of the same golems: entries gained and lost, changed confidence. Pure.

Source: X-3 ("entries gained and lost, confidence shifts").
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.events.record.arrow_columns import all_nullable, all_required
from bardo_pipeline.grimoire.entry_columns import confidence_of, query_tables
from bardo_pipeline.policy import DecayPolicy

CHANGE_SCHEMA = pa.schema(
    [
        *all_required(pa.string(), "golem_id", "entry_id", "category", "text"),
        *all_nullable(pa.string(), "kind_before", "kind_after"),
        *all_nullable(pa.int64(), "before_ppm", "after_ppm"),
    ]
)
"""One row per golem and entry that differs: null before means gained, null after means lost."""

_COLUMNS = ("golem_id", "entry_id", "category", "text", "kind")

_CHANGES = """
    select coalesce(b.golem_id, a.golem_id) as golem_id, coalesce(b.entry_id, a.entry_id) as entry_id,
        coalesce(a.category, b.category) as category, coalesce(a.text, b.text) as text,
        b.kind as kind_before, a.kind as kind_after, b.ppm as before_ppm, a.ppm as after_ppm
    from before as b full join after as a on b.golem_id = a.golem_id and b.entry_id = a.entry_id
    where b.ppm is distinct from a.ppm or b.kind is distinct from a.kind
    order by 1, 2
"""


def entry_changes(
    before: pa.Table, after: pa.Table, at_us: int, decay_before: DecayPolicy, decay_after: DecayPolicy
) -> pa.Table:
    """Return the entries that differ (CHANGE_SCHEMA) by golem and entry.

    Parameters
    ----------
    before, after : ENTRY_SCHEMA; only active entries are compared
    at_us : time at which confidence is compared, each side with its own half-lives
    """
    changes = query_tables(
        _CHANGES, before=_known(before, at_us, decay_before), after=_known(after, at_us, decay_after)
    )
    return changes.select(CHANGE_SCHEMA.names).cast(CHANGE_SCHEMA)


def _known(entries: pa.Table, at_us: int, decay: DecayPolicy) -> pa.Table:
    active = entries.filter(pc.equal(entries["status"], "active"))
    return active.select(list(_COLUMNS)).append_column("ppm", pa.array(confidence_of(active, at_us, decay), pa.int64()))
