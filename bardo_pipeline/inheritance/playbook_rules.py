"""Procedures: the rules of a golem's playbook that cross, each as when it applies and what it does. Pure.

Source: MEM ("procedural facts capturing validated execution strategies"), INH-8.
"""

from __future__ import annotations

import pyarrow as pa

from bardo_pipeline.grimoire.entry_columns import query_tables

_PROCEDURES = """
    with told as (
        select golem_id, unnest(cause_entries) as entry_id, true as in_force from books
        union all select golem_id, unnest(staged_entries), false from books
    )
    select golem_id, entry_id, in_force, regime, anomaly_band, gas_band, action_type, kind = 'heuristic' as acts,
        confidence_ppm
    from crossing join told using (golem_id, entry_id) order by golem_id, in_force desc, entry_id
"""


def procedures_of(crossing: pa.Table, books: pa.Table) -> pa.Table:
    """Rules that cross and stood in their golem's playbook: golem_id and PROCEDURE_COLUMNS (bundle_files.py), by golem,
    those in force first.

    crossing: what crosses, attenuated. books: the last playbook of each golem (golem_id, cause_entries,
    staged_entries). A warning holds (it lifts the threshold of its regime), a heuristic acts (it lowers it).
    """
    names = ["golem_id", "entry_id", "kind", "regime", "anomaly_band", "gas_band", "action_type", "confidence_ppm"]
    return query_tables(_PROCEDURES, crossing=crossing.select(names), books=books)
