"""Gathers what a golem holds of its own life and of its ancestors': failures, and the consensus of their last votes.

All of it depends on the lives of these golems alone, not on other golems of the clade or on what was derived before.
So a run gives the same records in any number of lanes. Source: KAT (Acheron, Lethe, Retrieval in Heartbeat), canon 44,
46, 48.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental import record_queries as queries
from bardo_pipeline.derivation.legacy.death_queries import deaths_with_ticks
from bardo_pipeline.events.life.retractions import LeftOut
from bardo_pipeline.events.record.arrow_columns import rows_of_golems
from bardo_pipeline.katabasis.lived_failures import LivedFailures
from bardo_pipeline.katabasis.priors import propositions_as_priors
from bardo_pipeline.katabasis.scar_rules import FAILURE_COLUMNS, FAILURE_SCHEMA, RULE_COLUMNS


class LineKnowledge(NamedTuple):
    """Failures with the heir as owner_id (FAILURE_SCHEMA), deaths of ancestors, and propositions (PRIOR_SCHEMA)."""

    failures: pa.Table
    deaths: pa.Table
    propositions: pa.Table


def line_knowledge(
    context: DerivationContext, heirs: Mapping[str, str], left_out: LeftOut, held: Mapping[str, pa.Table] | None = None
) -> LineKnowledge:
    """Return what these heirs hold of their ancestors.

    Parameters
    ----------
    heirs : heir to its predecessor
    left_out : retractions that the failures respect
    held : failures that predecessors held when they died (FAILURE_SCHEMA); those of others are read from their records
    """
    held = held or {}
    before = queries.predecessors(context)
    lines = {heir: queries.ancestors(before, predecessor)[::-1] for heir, predecessor in heirs.items()}
    golems = sorted({golem_id for line in lines.values() for golem_id in line})
    deaths = rows_of_golems(deaths_with_ticks(context), golems)
    lives = {g for heir, line in lines.items() if heirs[heir] not in held for g in line}
    ends = queries.values_by_golem(rows_of_golems(deaths, lives), "cycle")
    read = _failures_of_dead(context, ends, left_out)
    failures, column = [FAILURE_SCHEMA.empty_table()], FAILURE_SCHEMA.get_field_index("owner_id")
    for heir, line in lines.items():
        own = held.get(heirs[heir])
        own = rows_of_golems(read, line) if own is None else own
        owner = pa.array([heir] * own.num_rows, pa.string())
        failures.append(own.set_column(column, FAILURE_SCHEMA.field(column), owner))
    pairs = [(heir, golem_id) for heir, line in lines.items() for golem_id in line]
    table = pa.table({"holder": [heir for heir, _ in pairs], "golem_id": [golem_id for _, golem_id in pairs]})
    entries = context.projections.replaceable("grimoire").read(only=golems)
    propositions = propositions_as_priors(table, entries, deaths, context.policy)
    return LineKnowledge(pa.concat_tables(failures), deaths, propositions)


def lived_failures(
    context: DerivationContext, upto: Mapping[str, int], left_out: LeftOut, rules: pa.Table
) -> LivedFailures:
    """Return the failures that golems' own cycles confirmed, from their records.

    Parameters
    ----------
    upto : golem to its last closed cycle
    left_out : retractions that the failures respect
    rules : decisions of these cycles (RULE_COLUMNS), further columns are ignored
    """
    lived = LivedFailures(context.policy)
    records = queries.closed_records(context, FAILURE_COLUMNS, dict.fromkeys(upto, 1), upto, left_out)
    if records.num_rows:
        lived.close(records, lambda _: rules)
    return lived


def _failures_of_dead(context: DerivationContext, upto: Mapping[str, int], left_out: LeftOut) -> pa.Table:
    """Return the failures of dead golems up to their last cycles, from their records and decisions."""
    if not upto:
        return FAILURE_SCHEMA.empty_table()
    rules = context.projections.growing("curation").read(
        list(RULE_COLUMNS), golems=list(upto), only=pc.field("source") == "pattern"
    )
    return lived_failures(context, upto, left_out, rules).rows
