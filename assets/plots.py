"""Plots of marts in the metadata of their materializations: one curve for each kind, over equally spaced points."""

from __future__ import annotations

from base64 import b64encode
from typing import NamedTuple

import dagster as dg
import duckdb

from bardo_pipeline.cli.output.plots import Line, lines


class Plot(NamedTuple):
    """A plot of a mart. sql: gives rows of (point, curve, value), points in order; a missing value counts as 0."""

    caption: str
    sql: str


PLOTS = {
    "fct_tier_costs": Plot(
        "Dollars of inference and gas by day, by tier",
        "select day, tier, sum(total_cost_usd) from warehouse.fct_tier_costs group by all order by all",
    ),
    "fct_knowledge": Plot(
        "Active entries by confidence now, in tenths, by kind",
        "select least(confidence_ppm // 100000, 9) / 10 as tenth, kind, count(*) from warehouse.fct_knowledge "
        "group by all order by all",
    ),
    "dim_golem": Plot(
        "Dead golems by ticks lived, in twelfths of the longest life, by cause",
        "select ticks_lived * 12 // (1 + (select max(ticks_lived) from warehouse.dim_golem)) as twelfth, cause, "
        "count(*) from warehouse.dim_golem where not is_alive group by all order by all",
    ),
}
"""The plots, by mart."""


def plots_of(connection: duckdb.DuckDBPyConnection) -> dict[str, dg.MarkdownMetadataValue]:
    """Return the plots of all marts that have rows for one. connection: has the database `warehouse`."""
    shown = {}
    for mart, plot in PLOTS.items():
        if rows := connection.sql(plot.sql).fetchall():
            curves: dict[str, dict[str, float]] = {}
            for point, curve, value in rows:
                curves.setdefault(str(curve), {})[str(point)] = float(value)
            points = list(dict.fromkeys(str(point) for point, _, _ in rows))
            drawn = [
                Line(name, [(i, of_point.get(point, 0.0)) for i, point in enumerate(points)])
                for name, of_point in curves.items()
            ]
            highest = max(1e-12, *(height for line in drawn for _, height in line.points))
            image = b64encode(lines(plot.caption, "", drawn, top=highest, points=points).encode()).decode()
            shown[mart] = dg.MetadataValue.md(f"![{plot.caption}](data:image/svg+xml;base64,{image})")
    return shown
