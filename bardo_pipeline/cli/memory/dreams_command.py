"""`bardo dreams`: dreams of golems and the state of their hypotheses."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console

from bardo_pipeline.cli.options import EmbedderOption, HomeOption, JsonOption, require_born, root_of
from bardo_pipeline.cli.output.tables import percent, print_json, print_table
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.dreams.derive_dreams import dreams_and_hypotheses

out = Console(soft_wrap=False)
FATES = ("confirmed", "staged", "gone")


def dreams(
    golem: Annotated[str | None, typer.Argument(help="Golem id (default: the newest dreams of all golems).")] = None,
    home: HomeOption = None,
    json: JsonOption = False,
    limit: Annotated[int, typer.Option(min=1, help="Maximum rows per table.")] = 20,
    embedder: EmbedderOption = None,
) -> None:
    """List dreams with their causes, and hypotheses: staged, confirmed by later outcomes, or rejected."""
    stores = DerivationContext.open(root_of(home), embedder=embedder)
    require_born(stores, golem)
    dreamt, hypotheses = dreams_and_hypotheses(stores, golem)
    if json:
        print_json({"dreams": dreamt, "hypotheses": hypotheses})
        return
    if not dreamt:
        subject = f"golem {golem} has not" if golem else "no golem has"
        out.print(
            f"{subject} dreamt yet: dreams run while idle, every four hours of a golem's time; `bardo ui` runs them",
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
        for hypothesis in [h for h in hypotheses if h["state"] == fate][:limit]:
            out.print(_hypothesis_text(hypothesis, golem), highlight=False, markup=False)
    waiting = sum(h["state"] == "imagined" for h in hypotheses)
    out.print(f"{waiting} more have too little evidence to be staged", highlight=False)


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


def _hypothesis_text(row: dict[str, Any], golem: str | None) -> str:
    prefix = "" if golem else f"{row['golem_id']}: "
    lines = [f"{prefix}{row['fate']}, {percent(row['confidence_now_ppm'])}: {row['text']}"]
    if row["entry_id"]:
        offered = ", offered to the clade" if row["pushed"] else ""
        lines.append(f"    known as entry {row['entry_id'][:12]}{offered}")
    for side, source in (("", "in imagined failures"), ("live_", "in later decisions")):
        if row[f"{side}count"]:
            mean, low, high = (row[f"{side}{n}_ppm"] for n in ("mean", "low", "high"))
            lines.append(f"    {source} n={row[f'{side}count']}: {mean:+,} ppm ({low:+,} to {high:+,})")
    return "\n".join(lines)
