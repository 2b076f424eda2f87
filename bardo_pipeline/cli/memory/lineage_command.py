"""`bardo lineage`: an entry through generations, down to the ticks that it was derived from."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape
from rich.tree import Tree

from bardo_pipeline.cli.options import EmbedderOption, HomeOption, format_option, open_context
from bardo_pipeline.cli.output.tables import out, percent, print_json
from bardo_pipeline.derivation.reports.lineage import WITHDRAWN, Holding, lineage_of

SHOWN_DECISIONS = 6
SHOWN_TICKS = 12


def lineage(
    entry: Annotated[str, typer.Argument(help="Entry id, or a unique prefix.")],
    home: HomeOption = None,
    golem: Annotated[str | None, typer.Option(help="Only this golem and its ancestors.")] = None,
    format: Annotated[str, format_option("tree", "json", help="tree or json.")] = "tree",
    embedder: EmbedderOption = None,
) -> None:
    """Trace an entry through generations to the ticks that it was derived from."""
    holdings = lineage_of(open_context(home, embedder), entry, golem)
    if format == "json":
        print_json([asdict(h) for h in holdings])
        return
    first = holdings[0]
    tree = Tree(f"[bold]{first.entry_id}[/] {escape(first.text)}")
    for held in holdings:
        _branch(tree, held)
    out.print(tree)


def _branch(tree: Tree, held: Holding) -> None:
    origin = (
        f", received from {held.from_golem_id} in bundle {held.bundle_hash[:12]}"
        if held.bundle_hash
        else ", its own experience"
    )
    trust = percent(held.confidence_ppm)
    label = f"(generation {held.generation}): {held.kind}, {held.status}, {trust}{origin}"
    branch = tree.add(f"[bold]{escape(held.golem_id)}[/] {escape(label)}")
    for reason in held.because:
        branch.add(escape(f"withdrawn: {reason}" if held.status == WITHDRAWN else f"derived again: {reason}"))
    decisions = branch.add(f"{len(held.decisions)} decisions")
    for d in held.decisions[-SHOWN_DECISIONS:]:
        ticks = ", ".join(str(tick) for tick in d["cause_ticks"][:8]) + (", …" if len(d["cause_ticks"]) > 8 else "")
        moved = f"{d['confidence_before_ppm'] / 1e4:.0f} → {d['confidence_ppm'] / 1e4:.0f} %"
        decisions.add(
            escape(
                f"cycle {d['cycle']}: {d['operation']} ({moved}); {d['reason']}" + (f"; ticks {ticks}" if ticks else "")
            )
        )
    if held.ticks:
        ticks_branch = branch.add(f"{len(held.ticks)} ticks")
        for tick in held.ticks[:SHOWN_TICKS]:
            events = "; ".join(
                [*tick.actions, *(f"acting vs holding: {e:+,} ppm" for e in tick.effects_ppm), *tick.transactions]
            )
            ticks_branch.add(
                escape(
                    f"tick {tick.tick}, {tick.observed_at:%Y-%m-%d %H:%M}, {tick.regime}, {tick.tier}"
                    + (f": {events}" if events else "")
                )
            )
        if len(held.ticks) > SHOWN_TICKS:
            ticks_branch.add(f"… {len(held.ticks) - SHOWN_TICKS} more (--format json has all)")
