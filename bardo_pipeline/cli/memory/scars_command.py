"""Scarring: the commands that show what hurt golems, and all that a death left."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console

from bardo_pipeline.cli.options import EmbedderOption, FormatOption, HomeOption, check_format, require_born, root_of
from bardo_pipeline.cli.output.tables import print_json, print_table
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.katabasis.bloodstains import bloodstain as bloodstain_of_golem
from bardo_pipeline.derivation.katabasis.scars import failures_with_scars

out = Console(soft_wrap=False, highlight=False)


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(scars)
    app.command()(bloodstain)


def scars(
    golem: Annotated[str | None, typer.Argument(help="A golem; without one, everybody's.")] = None,
    home: HomeOption = None,
    format: FormatOption = "table",
    failures: Annotated[bool, typer.Option("--failures", help="Also what became no scar, and why.")] = False,
    embedder: EmbedderOption = None,
) -> None:
    """What hurt golems, and why: verified failures that their clade did not know yet."""
    check_format(format)
    stores = DerivationContext.open(root_of(home), embedder=embedder)
    require_born(stores, golem)
    told = [row for row in failures_with_scars(stores, golem) if failures or row["is_scar"]]
    if format == "json":
        print_json(told)
        return
    if not told:
        out.print("nothing that hurt them is on record", soft_wrap=True)
        return
    for row in told:
        out.print(f"{row['scar_id']}, {_standing(row)}: {row['causal_narrative']}", markup=False, soft_wrap=True)


def _standing(row: dict[str, Any]) -> str:
    if not row["is_scar"]:
        return f"no scar ({row['because']})"
    often = f", seen {row['seen_count']} times" if row["seen_count"] > 1 else ""
    kind = "bloodstain" if row["is_bloodstain"] else "scar"
    return f"{kind} of {row['confidence_now_ppm'] / 1e4:.0f} %, {row['emotion'].lower()}{often}"


def bloodstain(
    golem: Annotated[str, typer.Argument(help="A golem that died.")],
    home: HomeOption = None,
    format: FormatOption = "table",
    public: Annotated[bool, typer.Option("--public", help="Only its echo: what may go to anybody.")] = False,
    embedder: EmbedderOption = None,
) -> None:
    """All that a death left, as one artefact: scars, last words, testament, bundle, and the market as it was."""
    check_format(format)
    found = bloodstain_of_golem(DerivationContext.open(root_of(home), embedder=embedder), golem)
    if format == "json":
        print_json(found["echo"] if public else found)
    elif public:
        _print_echo(found["echo"])
    else:
        _print(found)


def _print(found: dict[str, Any]) -> None:
    market = found["conditions"]
    facts = {
        "bloodstain": found["bloodstain_id"],
        "golem": f"{found['golem_id']}, generation {found['generation']}, of {found['owner_id']}",
        "died": f"at tick {found['tick']}, {found['died_at']} ({found['cause']})",
        "market": _market(market),
        "testament": found["testament_hash"] or "not written yet",
        "bundle": _bundle(found),
    }
    for name, value in facts.items():
        out.print(f"{name:12}{value}", markup=False, soft_wrap=True)
    for scar in found["scars"]:
        out.print(f"\n{scar['scar_id']} ({scar['emotion'].lower()}): {scar['causal_narrative']}", markup=False)
    out.print()
    votes = [(v["claim"], f"{v['confidence_ppm'] / 1e4:.0f} %", v["weight"]) for v in found["death_votes"]]
    if votes:
        print_table(out, "Last words", ["claim", "believed", "weight"], votes)
    else:
        out.print("no last words: it believed nothing that can be said to strangers")


def _print_echo(echo: dict[str, Any]) -> None:
    out.print(f"{'market':12}{_market(echo['conditions'])}", markup=False, soft_wrap=True)
    out.print(f"{'last words':12}{echo['death_vote_count']}", markup=False)
    out.print(f"{'testament':12}{echo['testament_hash'] or 'not written yet'}", markup=False)
    for pattern in echo["failure_patterns"]:
        out.print(pattern, markup=False, soft_wrap=True)


def _market(seen: dict[str, Any] | None) -> str:
    if seen is None:
        return "its last record counts as never having been"
    place = f"{seen['pair']} on {seen['protocol']}, {seen['chain']}"
    return f"{place}: {seen['regime']} ({seen['market_regime']}), gas {seen['gas_band']}"


def _bundle(found: dict[str, Any]) -> str:
    if found["bundle_hash"] is None:
        return "not made yet"
    return str(found["bundle_hash"]) + ("" if found["bundle_published"] else " (not published)")
