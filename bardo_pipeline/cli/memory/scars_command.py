"""`bardo scars | bloodstain`: verified failures of golems, and the record of a death."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console

from bardo_pipeline.cli.options import EmbedderOption, FormatOption, HomeOption, check_format, require_born, root_of
from bardo_pipeline.cli.output.tables import percent, print_json, print_table
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.katabasis.bloodstains import bloodstain as bloodstain_of_golem
from bardo_pipeline.derivation.katabasis.scars import failures_with_scars

out = Console(soft_wrap=False, highlight=False)


def scars(
    golem: Annotated[str | None, typer.Argument(help="Golem id (default: all golems).")] = None,
    home: HomeOption = None,
    format: FormatOption = "table",
    failures: Annotated[
        bool, typer.Option("--failures", help="Include failures without a scar, with the reason.")
    ] = False,
    embedder: EmbedderOption = None,
) -> None:
    """List scars: verified failures that were new to the golem's clade, with their causes."""
    check_format(format)
    stores = DerivationContext.open(root_of(home), embedder=embedder)
    require_born(stores, golem)
    failure_rows = [row for row in failures_with_scars(stores, golem) if failures or row["is_scar"]]
    if format == "json":
        print_json(failure_rows)
        return
    if not failure_rows:
        out.print("no scars on record", soft_wrap=True)
        return
    for row in failure_rows:
        out.print(f"{row['scar_id']}, {_scar_state(row)}: {row['causal_narrative']}", markup=False, soft_wrap=True)


def _scar_state(row: dict[str, Any]) -> str:
    if not row["is_scar"]:
        return f"no scar ({row['because']})"
    repeats = f", seen {row['seen_count']} times" if row["seen_count"] > 1 else ""
    kind = "bloodstain" if row["is_bloodstain"] else "scar"
    return f"{kind} of {percent(row['confidence_now_ppm'])}, {row['emotion'].lower()}{repeats}"


def bloodstain(
    golem: Annotated[str, typer.Argument(help="Dead golem.")],
    home: HomeOption = None,
    format: FormatOption = "table",
    public: Annotated[bool, typer.Option("--public", help="Show only the public part (the echo).")] = False,
    embedder: EmbedderOption = None,
) -> None:
    """Show the bloodstain of a death: market conditions, scars, last votes, testament, bundle."""
    check_format(format)
    stain = bloodstain_of_golem(DerivationContext.open(root_of(home), embedder=embedder), golem)
    if format == "json":
        print_json(stain["echo"] if public else stain)
    elif public:
        _print_echo(stain["echo"])
    else:
        _print(stain)


def _print(stain: dict[str, Any]) -> None:
    market = stain["conditions"]
    facts = {
        "bloodstain": stain["bloodstain_id"],
        "golem": f"{stain['golem_id']}, generation {stain['generation']}, of {stain['owner_id']}",
        "died": f"at tick {stain['tick']}, {stain['died_at']} ({stain['cause']})",
        "market": _market(market),
        "testament": stain["testament_hash"] or "not written yet",
        "bundle": _bundle(stain),
    }
    for name, value in facts.items():
        out.print(f"{name:12}{value}", markup=False, soft_wrap=True)
    for scar in stain["scars"]:
        out.print(f"\n{scar['scar_id']} ({scar['emotion'].lower()}): {scar['causal_narrative']}", markup=False)
    out.print()
    votes = [(v["claim"], percent(v["confidence_ppm"]), v["weight"]) for v in stain["death_votes"]]
    if votes:
        print_table(out, "Last words", ["claim", "believed", "weight"], votes)
    else:
        out.print("no last votes: it held no claim that may be published")


def _print_echo(echo: dict[str, Any]) -> None:
    out.print(f"{'market':12}{_market(echo['conditions'])}", markup=False, soft_wrap=True)
    out.print(f"{'last words':12}{echo['death_vote_count']}", markup=False)
    out.print(f"{'testament':12}{echo['testament_hash'] or 'not written yet'}", markup=False)
    for pattern in echo["failure_patterns"]:
        out.print(pattern, markup=False, soft_wrap=True)


def _market(conditions: dict[str, Any] | None) -> str:
    if conditions is None:
        return "unknown: its last record was struck"
    venue = f"{conditions['pair']} on {conditions['protocol']}, {conditions['chain']}"
    return f"{venue}: {conditions['regime']} ({conditions['market_regime']}), gas {conditions['gas_band']}"


def _bundle(stain: dict[str, Any]) -> str:
    if stain["bundle_hash"] is None:
        return "not made yet"
    return str(stain["bundle_hash"]) + ("" if stain["bundle_published"] else " (not published)")
