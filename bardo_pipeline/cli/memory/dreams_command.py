"""Dreaming: the command that shows what golems dreamt, and what became of their hypotheses."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console

from bardo_pipeline.cli.options import EmbedderOption, HomeOption, require_born, root_of
from bardo_pipeline.cli.output.tables import print_json, print_table
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.dreams.derive_dreams import dreams_and_hypotheses

out = Console(soft_wrap=False)
FATES = ("confirmed", "staged", "gone")


def dreams(
    golem: Annotated[str | None, typer.Argument(help="A golem; without one, everybody's newest dreams.")] = None,
    home: HomeOption = None,
    json: Annotated[bool, typer.Option("--json", help="Everything as JSON, causes to the tick included.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most so many rows a table.")] = 20,
    embedder: EmbedderOption = None,
) -> None:
    """What golems dreamt and why, and their hypotheses: staged, confirmed by what came after, or gone."""
    stores = DerivationContext.open(root_of(home), embedder=embedder)
    require_born(stores, golem)
    dreamt, hypotheses = dreams_and_hypotheses(stores, golem)
    if json:
        print_json({"dreams": dreamt, "hypotheses": hypotheses})
        return
    if not dreamt:
        whose = f"golem {golem} has" if golem else "nobody has"
        out.print(
            f"{whose} dreamt yet: dreams come while idle, every four hours of a golem's time; `bardo ui` runs them",
            markup=False,
            soft_wrap=True,
        )
        return
    shown = [_dream_row(row, golem) for row in dreamt[-limit:]]
    print_table(
        out,
        "Dreams (s: hypotheses staged, c: confirmed, g: gone)",
        list(shown[0]),
        [tuple(row.values()) for row in shown],
    )
    for fate in FATES:
        for told in [h for h in hypotheses if h["state"] == fate][:limit]:
            out.print(_said(told, golem), highlight=False, markup=False)
    waiting = sum(h["state"] == "imagined" for h in hypotheses)
    out.print(f"{waiting} more have too few witnesses to be staged", highlight=False)


def _dream_row(row: dict[str, Any], golem: str | None) -> dict[str, Any]:
    return ({} if golem else {"golem": row["golem_id"]}) | {
        "cycle": row["cycle"],
        "when": f"{row['at']:%m-%d %H:%M}",
        "by": row["began_by"],
        "replays": len(row["replayed"]) + len(row["scars"]),
        "branches": row["branch_count"],
        "s": row["staged_count"],
        "c": row["confirmed_count"],
        "g": row["gone_count"],
    }


def _said(row: dict[str, Any], golem: str | None) -> str:
    whose = "" if golem else f"{row['golem_id']}: "
    lines = [f"{whose}{row['fate']}, {row['confidence_now_ppm'] / 1e4:.0f} %: {row['text']}"]
    if row["entry_id"]:
        offered = ", offered to the clade" if row["pushed"] else ""
        lines.append(f"    known as entry {row['entry_id'][:12]}{offered}")
    for side, what in (("", "of failures imagined"), ("live_", "of decisions since")):
        if row[f"{side}count"]:
            mean, low, high = (row[f"{side}{n}_ppm"] for n in ("mean", "low", "high"))
            lines.append(f"    {what} n={row[f'{side}count']}: {mean:+,} ppm ({low:+,} to {high:+,})")
    return "\n".join(lines)
