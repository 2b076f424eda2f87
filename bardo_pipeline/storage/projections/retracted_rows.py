"""Withdrawals: the retracted rows of a derivation's tables and the causes.

They are part of the history of these tables; a rebuild from the log has no retractions.
Source: canon 20 ("withdrawn and named").
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from bardo_pipeline.events.record.arrow_columns import all_required, contiguous, required
from bardo_pipeline.storage.projections.projections import GrowingTable, Projections
from bardo_pipeline.storage.projections.table_specs import TABLES

WITHDRAWAL_SCHEMA = pa.schema(
    [
        required("table_name", pa.string()),
        pa.field("golem_id", pa.string()),
        *all_required(pa.string(), "row_name", "because"),
        required("row_count", pa.int64()),
        required("made_again", pa.bool_()),
    ]
)
"""One row per table, row name and causing life event. golem_id: null for an anonymous vote. row_count: retracted rows
with the name. made_again: a row with the name is valid now, with other content."""

_NAMED_BY = {
    "episodes": "episode_id",
    "curation": "entry_id",
    "cycles": "cycle",
    "playbooks": "version",
    "credits": "entry_id",
    "hypotheses": "hypothesis_id",
    "dreams": "cycle",
    "failures": "scar_id",
    "votes": "vote_id",
    "vote_causes": "vote_id",
    "testaments": "golem_id",
    "candidates": "bundle_hash",
}


def withdrawals(projections: Projections) -> pa.Table:
    """Return all retractions by table, golem and name (WITHDRAWAL_SCHEMA)."""
    parts = [_of_table(projections.growing(name)) for name, spec in TABLES.items() if spec.grows]
    order = [(name, "ascending") for name in ("table_name", "golem_id", "row_name", "because")]
    return pa.concat_tables(parts).sort_by(order)


def _of_table(table: GrowingTable) -> pa.Table:
    column = _NAMED_BY[table.name]
    owner = "golem_id" if "golem_id" in table.spec.schema.names else None
    wanted = [column] if owner in (None, column) else ["golem_id", column]
    retracted = table.taken_back(wanted)
    if not retracted.num_rows:
        return WITHDRAWAL_SCHEMA.empty_table()
    by = "golem_id" if owner else column
    valid = table.read(wanted, only=ds.field(by).isin(retracted[by].unique()))
    named = _named(retracted, column, owner).append_column("because", retracted["because"])
    counted = named.group_by(["golem_id", "row_name", "because"], use_threads=False).aggregate([([], "count_all")])
    is_made_again = pc.is_in(_pair(counted), value_set=_pair(_named(valid, column, owner)))
    columns = {
        "table_name": pa.repeat(pa.scalar(table.name), counted.num_rows),
        **{name: counted[name] for name in ("golem_id", "row_name", "because")},
        "row_count": counted["count_all"],
        "made_again": is_made_again,
    }
    return pa.table(columns).cast(WITHDRAWAL_SCHEMA)


def _named(rows: pa.Table, column: str, owner: str | None) -> pa.Table:
    golems = rows[owner] if owner else pa.nulls(rows.num_rows, pa.string())
    return pa.table({"golem_id": golems, "row_name": rows[column].cast(pa.string())})


def _pair(rows: pa.Table) -> pa.Array:
    return contiguous(pc.binary_join_element_wise(pc.fill_null(rows["golem_id"], ""), rows["row_name"], "\x1f"))
