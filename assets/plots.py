"""Plots of marts in the metadata of their materializations: one curve for each kind, over equally spaced points."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

import dagster as dg
import duckdb

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BASE = 680, 220, 56, 540, 16, 180
_COLOURS = ("#2563eb", "#dc2626", "#16a34a", "#9333ea", "#ea580c", "#0891b2", "#65a30d", "#db2777")
_LABELS_MAX = 8


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
            values = {name: [of_point.get(point, 0.0) for point in points] for name, of_point in curves.items()}
            image = b64encode(line_plot(plot.caption, points, values).encode()).decode()
            shown[mart] = dg.MetadataValue.md(f"![{plot.caption}](data:image/svg+xml;base64,{image})")
    return shown


def line_plot(caption: str, points: Sequence[str], curves: Mapping[str, Sequence[float]]) -> str:
    """Draw curves over equally spaced points as SVG; the vertical axis begins at 0."""
    highest = max(1e-12, *(value for values in curves.values() for value in values))
    step = (_RIGHT - _LEFT) / max(len(points) - 1, 1)
    every = -(-len(points) // _LABELS_MAX)
    parts = [
        f'<line x1="{_LEFT}" y1="{_BASE}" x2="{_RIGHT}" y2="{_BASE}" stroke="#888"/>',
        f'<text x="0" y="{_TOP + 4}">{highest:,.4g}</text><text x="0" y="{_BASE}">0</text>',
    ]
    parts += [
        f'<text x="{_LEFT + i * step:.0f}" y="{_BASE + 16}">{escape(points[i])}</text>'
        for i in range(0, len(points), every)
    ]
    for i, (name, values) in enumerate(curves.items()):
        colour = _COLOURS[i % len(_COLOURS)]
        places = [(_LEFT + n * step, _BASE - (_BASE - _TOP) * v / highest) for n, v in enumerate(values)]
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        parts.append(f'<text x="{_RIGHT + 12}" y="{_TOP + 4 + 16 * i}" fill="{colour}">{escape(name)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="#fff"/>'
        f'{"".join(parts)}<text x="{_LEFT}" y="{_HEIGHT - 6}">{escape(caption)}</text></svg>'
    )
