"""Report of the order (negentropy) of each generation's knowledge, computed from decisions and recorded judgements.

Source: INH S8.3; quality/negentropy.py defines order.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.judged_outcomes import judged_outcomes
from bardo_pipeline.derivation.incremental.record_queries import birth_rows
from bardo_pipeline.quality.negentropy import Trend, order_of_golems, order_of_groups, trend


@dataclass(frozen=True)
class Order:
    """Order of a home's knowledge.

    Parameters
    ----------
    golems : ORDER_SCHEMA with owner_id, lineage_id and generation
    clades, lineages : GROUP_SCHEMA by owner and by lineage
    trends : by clade
    """

    golems: pa.Table
    clades: pa.Table
    lineages: pa.Table
    trends: dict[str, Trend]


def order_of_home(context: DerivationContext) -> Order:
    """Measure order by golem, lineage and clade."""
    wanted = birth_rows(context)
    decisions = context.projections.growing("curation").read(golems=list(wanted))
    orders = order_of_golems(decisions, judged_outcomes(context, list(wanted)), context.policy)
    names = orders["golem_id"].to_pylist()
    for place, column in enumerate(("owner_id", "lineage_id", "generation"), 1):
        kind = pa.int64() if column == "generation" else pa.string()
        orders = orders.add_column(place, column, pa.array([wanted[g][column] for g in names], kind))
    columns = ("golem_id", "name", "generation")
    clades, lineages = (
        order_of_groups(orders, orders.select(["golem_id", column, "generation"]).rename_columns(columns))
        for column in ("owner_id", "lineage_id")
    )
    trends = {}
    for name in sorted(set(orders["owner_id"].to_pylist())):
        rows = orders.filter(pc.equal(orders["owner_id"], name))
        trends[name] = trend(rows, rows["generation"].to_pylist())
    return Order(orders, clades, lineages, trends)
