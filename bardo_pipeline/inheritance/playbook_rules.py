"""Extracts procedures: the crossing rules of a golem's playbook, with condition and action. Pure.

Source: MEM ("procedural facts capturing validated execution strategies"), INH-8.
"""

from __future__ import annotations

import pyarrow as pa

from bardo_pipeline.grimoire.entry_columns import query_tables

_PROCEDURES = """
    with playbook_rules as (
        select golem_id, unnest(cause_entries) as entry_id, true as in_force from books
        union all select golem_id, unnest(staged_entries), false from books
    )
    select golem_id, entry_id, in_force, regime, anomaly_band, gas_band, action_type, kind = 'heuristic' as acts,
        confidence_ppm
    from crossing join playbook_rules using (golem_id, entry_id) order by golem_id, in_force desc, entry_id
"""


def procedures_of(crossing: pa.Table, books: pa.Table) -> pa.Table:
    """Return golem_id and PROCEDURE_COLUMNS of the crossing rules in a playbook, by golem, rules in force first.

    crossing: attenuated entries. books: the last playbook of each golem (golem_id, cause_entries, staged_entries).
    A warning raises the threshold of its regime (the golem holds), a heuristic lowers it (the golem acts).
    """
    names = ["golem_id", "entry_id", "kind", "regime", "anomaly_band", "gas_band", "action_type", "confidence_ppm"]
    return query_tables(_PROCEDURES, crossing=crossing.select(names), books=books)
