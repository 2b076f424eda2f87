"""`bardo eval negentropy`: whether what a clade knows gains order from generation to generation."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Annotated, Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import typer
from rich.console import Console

from bardo_pipeline.cli.options import HomeOption, root_of
from bardo_pipeline.cli.output.eval_page import page, table
from bardo_pipeline.cli.output.svg_plots import Line, Mark, lines
from bardo_pipeline.cli.output.tables import print_table
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.reports.negentropy_report import Order, order_of_home
from bardo_pipeline.errors import ConfigError, QueryError
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.quality.negentropy import BIT, Trend

out = Console(soft_wrap=False)
LINES_MAX = 12
NAMES = ("gen", "golems", "judged", "by rule", "bits", "order", "inherited", "rules", "bits/rule")
"""Of a generation: its golems, decisions judged, those of which a rule spoke, bits that there were to know, the share
of them that knowledge took away and what of it was inherited, rules a golem held, and bits that each took away."""


def negentropy(
    home: HomeOption = None,
    owner: Annotated[str | None, typer.Option(help="Only this owner's clade.")] = None,
    folder: Annotated[Path, typer.Option("--out", help="Folder of the page.")] = Path("eval") / "negentropy",
    json: Annotated[bool, typer.Option("--json", help="Print JSON in place of tables.")] = False,
) -> None:
    """Tell whether a clade's knowledge gains order: how much of the uncertainty of what came next it took away."""
    found = order_of_home(DerivationContext.open(root_of(home)), owner)
    if not found.golems.num_rows:
        raise QueryError("no decision of any golem was judged yet: order is told of what came after it was known")
    said = orjson.dumps(_document(found), option=orjson.OPT_INDENT_2)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "index.html").write_text(order_page(found), "utf-8")
        (folder / "report.json").write_bytes(said)
    except OSError as error:
        raise ConfigError(f"--out {folder}: {error.strerror}: name a folder that can be written to") from error
    if json:
        typer.echo(said.decode())
        return
    for clade, trend in found.trends.items():
        print_table(out, f"Clade {clade}: {_words(trend)}", list(NAMES), _rows(found.clades, clade))
    out.print(f"Page: {folder / 'index.html'}", highlight=False, soft_wrap=True)


def _rows(groups: pa.Table, name: str) -> list[tuple[Any, ...]]:
    return [
        (r["generation"], r["golem_count"], r["judged_count"], r["spoken_count"], round(r["count_ubits"] / BIT),
         f"{r['order_ppm'] / PPM:+.1%}", f"{r['inherited_ubits'] / max(r['count_ubits'], 1):+.1%}",
         round(r["rule_count"] / r["golem_count"], 1), f"{r['per_rule_ubits'] / BIT:+.2f}")
        for r in groups.filter(pc.equal(groups["group"], name)).to_pylist()
    ]  # fmt: skip


def _words(trend: Trend) -> str:
    if trend.slope is None or trend.low is None or trend.high is None:
        return "undecided (three golems of two generations are needed)"
    return f"{trend.verdict} ({trend.slope:+.1%} a generation, 95 % between {trend.low:+.1%} and {trend.high:+.1%})"


def _document(found: Order) -> dict[str, Any]:
    trends = {name: {**vars(one), "verdict": one.verdict} for name, one in found.trends.items()}
    groups = {name: getattr(found, name).to_pylist() for name in ("clades", "lineages", "golems")}
    return {"trends": trends, **groups}


def order_page(found: Order) -> str:
    """Order over generations, by clade and by lineage, with what it was reached by."""
    head = (
        "Order is the share of the uncertainty of each next verdict that knowledge took away, beside a mind that only "
        "counts how often acting won: 0 for one that knows nothing else, 1 for one that is never surprised, below 0 "
        "where forgetting would have been better. Duplicates and junk do not raise it; what holds does."
    )
    sections = [f'<h2>By clade</h2><div class="plots">{_plot("Order by generation", found.clades)}</div>']
    for clade, trend in found.trends.items():
        sections.append(f"<h3>{escape(clade)}: {escape(_words(trend))}</h3>{table(NAMES, _rows(found.clades, clade))}")
    sections.append(f'<h2>By lineage</h2><div class="plots">{_plot("Order by generation", found.lineages)}</div>')
    return page("Negentropy: is knowledge gaining order?", head, sections)


def _plot(title: str, groups: pa.Table) -> str:
    points: dict[str, list[tuple[float, float]]] = {}
    for row in groups.to_pylist():
        points.setdefault(row["group"], []).append((float(row["generation"]), row["order_ppm"] / PPM))
    longest = sorted(points.items(), key=lambda item: (-len(item[1]), item[0]))[:LINES_MAX]
    drawn = [Line(name[:22], line) for name, line in longest]
    heights = [y for line in drawn for _, y in line.points]
    top, bottom = max([*heights, 0.1]), min([*heights, 0.0])
    return lines(title, "generation", drawn, [Mark("counting alone", 0.0)] if bottom < 0 else (), top, bottom)
