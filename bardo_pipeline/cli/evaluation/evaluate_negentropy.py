"""`bardo eval negentropy`: measure whether a clade's knowledge gains order over generations."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
from typer import Option

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.options import open_context
from bardo_pipeline.cli.output.eval_report import make_output_folder, page, table, write_report
from bardo_pipeline.cli.output.plots import Line, Mark, lines
from bardo_pipeline.cli.output.tables import print_table
from bardo_pipeline.derivation.reports.negentropy_report import Order, order_of_home
from bardo_pipeline.errors import QueryError
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.quality.negentropy import BIT, Trend

LINES_MAX = 12
NAMES = ("gen", "golems", "judged", "by rule", "bits", "order", "inherited", "rules", "bits/rule")
"""Columns per generation: golems, judged decisions, those covered by a rule, bits of uncertainty, share removed by
knowledge, share removed by inherited knowledge, rules per golem, bits removed per rule."""


def negentropy(
    home: opt.Home = None,
    folder: Annotated[Path, Option("--out", help="Output folder.")] = Path("eval") / "negentropy",
    json: opt.Json = False,
) -> None:
    """Measure the share of uncertainty about outcomes that a clade's knowledge removes, by generation."""
    order = order_of_home(open_context(home))
    if not order.golems.num_rows:
        raise QueryError("no decision was judged yet: run a fleet for more ticks (`bardo run`)")
    trends = {clade: {**vars(trend), "verdict": trend.verdict} for clade, trend in order.trends.items()}
    facts = {"trends": trends} | {name: getattr(order, name).to_pylist() for name in ("clades", "lineages", "golems")}

    def show() -> None:
        for clade, trend in order.trends.items():
            print_table(f"Clade {clade}: {_trend_text(trend)}", NAMES, _rows(order.clades, clade))

    write_report(make_output_folder(folder), order_page(order), facts, show, json=json)


def _rows(groups: pa.Table, clade: str) -> list[tuple[Any, ...]]:
    return [
        (r["generation"], r["golem_count"], r["judged_count"], r["spoken_count"], round(r["count_ubits"] / BIT),
         f"{r['order_ppm'] / PPM:+.1%}", f"{r['inherited_ubits'] / max(r['count_ubits'], 1):+.1%}",
         round(r["rule_count"] / r["golem_count"], 1), f"{r['per_rule_ubits'] / BIT:+.2f}")
        for r in groups.filter(pc.equal(groups["group"], clade)).to_pylist()
    ]  # fmt: skip


def _trend_text(trend: Trend) -> str:
    if trend.slope is None or trend.low is None or trend.high is None:
        return "undecided (needs three golems of two generations)"
    return f"{trend.verdict} ({trend.slope:+.1%} a generation, 95 % between {trend.low:+.1%} and {trend.high:+.1%})"


def order_page(order: Order) -> str:
    """Return the HTML page: order over generations, by clade and by lineage."""
    head = (
        "Order is the share of uncertainty about each next verdict that knowledge removes, relative to a baseline that "
        "only counts how often acting won: 0 equals the baseline, 1 predicts every verdict, below 0 is worse than the "
        "baseline. Duplicates and junk do not raise it; true entries do."
    )
    sections = [f'<h2>By clade</h2><div class="plots">{_plot("Order by generation", order.clades)}</div>']
    for clade, trend in order.trends.items():
        sections.append(
            f"<h3>{escape(clade)}: {escape(_trend_text(trend))}</h3>{table(NAMES, _rows(order.clades, clade))}"
        )
    sections.append(f'<h2>By lineage</h2><div class="plots">{_plot("Order by generation", order.lineages)}</div>')
    return page("Negentropy: order of knowledge by generation", head, sections)


def _plot(title: str, groups: pa.Table) -> str:
    points: dict[str, list[tuple[float, float]]] = {}
    for row in groups.to_pylist():
        points.setdefault(row["group"], []).append((float(row["generation"]), row["order_ppm"] / PPM))
    longest = sorted(points.items(), key=lambda item: (-len(item[1]), item[0]))[:LINES_MAX]
    curves = [Line(name[:22], line) for name, line in longest]
    heights = [y for line in curves for _, y in line.points]
    top, bottom = max([*heights, 0.1]), min([*heights, 0.0])
    return lines(title, "generation", curves, [Mark("baseline", 0.0)] if bottom < 0 else (), top, bottom)
